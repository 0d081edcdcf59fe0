//! Products with a stored matrix.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_core::kernel::{Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::Orientation;

use super::{Fallible, Layout, floats, floats_mut, single};

/// `x W^T` or `x W` for a stored `W: [n, k]`, in the float type of `x`.
///
/// # Errors
///
/// When it runs: the rows of `x` do not fit the matrix.
pub fn matmul(x: &Array, layout: Layout, children: &[Array], orientation: Orientation) -> Result<Array> {
    single(apply(Matmul { layout, orientation }, &[std::slice::from_ref(x), children].concat())?)
}

pub(super) struct Matmul {
    pub(super) layout: Layout,
    pub(super) orientation: Orientation,
}

impl Kernel for Matmul {
    fn name(&self) -> &'static str {
        self.layout.scheme.kernel("Matmul")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let mut params = self.layout.params();
        params.push(("transpose", Param::Bool(self.orientation == Orientation::Transposed)));
        Some(params)
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&[inputs[0].shape[0], self.columns() as i32], inputs[0].dtype)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let matrix = self.layout.matrix(&inputs[1..])?;
        let m = inputs[0].aval().shape[0] as usize;
        let out = floats_mut(&mut outputs[0])?;
        Ok(tacit_kernels::matmul(floats(&inputs[0])?, m, &matrix, self.orientation, out)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let dense = self.layout.decoded(&inputs[1..])?;
        let right = match self.orientation {
            Orientation::Transposed => dense.t(),
            Orientation::Plain => dense,
        };
        Ok(vec![inputs[0].as_dtype(Dtype::Float32)?.matmul(right)?.as_dtype(inputs[0].dtype())?])
    }

    /// The gradient for `x` is the product with the same packed matrix turned round; those for float children are those
    /// of the decomposition, and codes have none.
    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let one = |argnum: &usize| -> Fallible<Array> {
            match *argnum {
                0 => Ok(matmul(&cotangents[0], self.layout, &primals[1..], self.turned())?),
                argnum if primals[argnum].dtype().is_inexact() => {
                    let through = |child: &[Array]| {
                        let mut primals = primals.to_vec();
                        primals[argnum] = child[0].clone();
                        self.decompose(&primals).map_err(|error| Exception::custom(error.to_string()))
                    };
                    let (_, mut gradients) = transforms::fallible_vjp(through, &primals[argnum..=argnum], cotangents)?;
                    gradients.pop().ok_or_else(|| "the vjp of the decomposition gave nothing".into())
                }
                argnum => Ok(ops::zeros_like(&primals[argnum])?),
            }
        };
        Some(argnums.iter().map(one).collect())
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        self.mapped(inputs, axes, |x, children| matmul(x, self.layout, children, self.orientation))
    }
}

impl Matmul {
    /// One product of the rows of all examples, if they share the matrix.
    pub(super) fn mapped(
        &self,
        inputs: &[Array],
        axes: &[Option<usize>],
        product: impl Fn(&Array, &[Array]) -> Result<Array>,
    ) -> Option<Fallible<Mapped>> {
        let (Some(axis), true) = (axes[0], axes[1..].iter().all(Option::is_none)) else { return None };
        let all = || -> Fallible<Mapped> {
            let x = inputs[0].move_axis(axis as i32, 0)?;
            let made = product(&x.flatten(0, 1)?, &inputs[1..])?;
            Ok((vec![made.reshape(&[x.dim(0), x.dim(1), self.columns() as i32])?], vec![0]))
        };
        Some(all())
    }

    fn columns(&self) -> usize {
        match self.orientation {
            Orientation::Transposed => self.layout.n,
            Orientation::Plain => self.layout.k,
        }
    }

    fn turned(&self) -> Orientation {
        match self.orientation {
            Orientation::Transposed => Orientation::Plain,
            Orientation::Plain => Orientation::Transposed,
        }
    }
}
