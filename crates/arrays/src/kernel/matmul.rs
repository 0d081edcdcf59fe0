//! Products with a stored matrix.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Fallback, Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::Orientation;

use super::parts::{gradients_of, tangents_of};
use super::{Fallible, Layout, floats, floats_mut, mlx_matmul, single};

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

    /// Off the CPU MLX's own product, where it has one for the format.
    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        let (x, children) = (&inputs[0], &inputs[1..]);
        if reason == Fallback::Device
            && let Some(product) = mlx_matmul::product(x, self.layout, children, self.orientation)?
        {
            return Ok(vec![product]);
        }
        self.layout.permit(self.name(), reason)?;
        self.decompose(inputs)
    }

    /// The gradient for `x` is the product with the same packed matrix turned round; those for float children are those
    /// of the decomposition, and codes have none.
    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let of_x = || Ok(matmul(&cotangents[0], self.layout, &primals[1..], self.turned())?);
        Some(gradients_of(self, self.layout, [primals, cotangents], argnums, of_x))
    }

    /// The product is linear in `x` and in the float children together.
    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let product = |x: &Array, children: &[Array]| matmul(x, self.layout, children, self.orientation);
        let tangent = || -> Fallible<Array> {
            Ok(match tangents_of(primals, tangents, argnums)? {
                (Some(x), None) => product(&x, &primals[1..])?,
                (None, Some(children)) => product(&primals[0], &children)?,
                (Some(x), Some(children)) => product(&x, &primals[1..])?.add(product(&primals[0], &children)?)?,
                (None, None) => ops::zeros_dtype(&[primals[0].dim(0), self.columns() as i32], primals[0].dtype())?,
            })
        };
        Some(tangent().map(|tangent| vec![tangent]))
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
