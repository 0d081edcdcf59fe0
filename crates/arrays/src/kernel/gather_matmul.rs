//! Products with matrices of a stored stack, by index.

use mlx_rs::ops::indexing::scatter_add_single;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::{Indices, KernelError, Orientation, Stack};

use super::host::{Fallible, floats, floats_mut, int, number, single, within};
use super::parts::{gradients_of, product_tangent};
use super::product_scale_gradients::product_scale_gradients;
use super::{Layout, gpu};
use crate::avals::axes::oriented;

/// Matrices of one shape, each the rows behind those of the one before it.
#[derive(Clone, Copy, Debug)]
pub struct StackLayout {
    /// The rows of all of them.
    pub rows: Layout,
    /// How many there are.
    pub count: usize,
    /// Which way round each is multiplied.
    pub orientation: Orientation,
}

/// For each `i` the product of `x[left[i]]` with matrix `right[i]`: `x: [a, m, depth]` and `u32[p]` twice give
/// `[p, m, columns]`, in the float type of `x`.
///
/// # Errors
///
/// When it runs: an index is outside of what it chooses from, or the rows of `x` do not fit the matrices.
pub fn gather_matmul(operands: [&Array; 3], stack: StackLayout, children: &[Array]) -> Result<Array> {
    let inputs: Vec<Array> = operands.into_iter().chain(children).cloned().collect();
    single(apply(GatherMatmul { stack }, &inputs)?)
}

pub(super) struct GatherMatmul {
    pub(super) stack: StackLayout,
}

impl Kernel for GatherMatmul {
    fn name(&self) -> &'static str {
        self.stack.rows.scheme.kernel("GatherMatmul")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let transpose = Param::Bool(self.stack.orientation == Orientation::Transposed);
        let params = [("count", int(self.stack.count)), ("transpose", transpose)];
        Some(self.stack.rows.params().into_iter().chain(params).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let (x, left) = (&inputs[0], &inputs[1]);
        Ok(vec![Aval::new(&[left.shape[0], x.shape[1], self.stack.columns()], x.dtype)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let StackLayout { rows, count, orientation } = &self.stack;
        let [x, left, right, children @ ..] = inputs else { return Err("x and two indices are expected".into()) };
        let indices = Indices { rows: x.aval().shape[1] as usize, x: left.elements()?, stack: right.elements()? };
        let stack = Stack { matrix: rows.matrix(children)?, count: *count };
        Ok(tacit_kernels::gather_matmul(floats(x)?, indices, &stack, *orientation, floats_mut(&mut outputs[0])?)?)
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::gather_matmul(&self.stack, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let [x, left, right, children @ ..] = inputs else { return Err("x and two indices are expected".into()) };
        let (expected, actual) = (left.size(), right.size());
        if actual != expected {
            // A single one would be repeated.
            let help = "one matrix for each group of rows";
            return Err(KernelError::Length { name: "stack", expected, actual, help }.into());
        }
        let StackLayout { rows, count, orientation } = self.stack;
        let dense = rows.decoded(children)?.reshape(&[count as i32, self.stack.n(), rows.k as i32])?;
        let dense = oriented(&dense, orientation)?;
        let (left, right) = (within(left, x.dim(0))?, within(right, count as i32)?);
        let result = ops::gather_mm(x.as_dtype(Dtype::Float32)?, dense, &left, &right, None)?;
        Ok(vec![result.as_dtype(x.dtype())?])
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        self.stack.rows.permit(self.name(), reason)?;
        self.decompose(inputs)
    }

    /// The gradient for `x` is the product with the same matrices transposed, summed where an index repeats.
    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let of_x = || -> Fallible<Array> {
            let [x, left, right, children @ ..] = primals else { return Err("x and two indices are expected".into()) };
            let rows = ops::arange::<_, u32>(None, left.dim(0), None)?;
            let cotangent = cotangents[0].as_dtype(Dtype::Float32)?;
            let transposed = StackLayout { orientation: self.stack.orientation.transposed(), ..self.stack };
            let result = gather_matmul([&cotangent, &rows, right], transposed, children)?;
            let zeros = ops::zeros::<f32>(x.shape())?;
            let summed = scatter_add_single(zeros, within(left, x.dim(0))?, result.expand_dims(1)?, 0)?;
            Ok(summed.as_dtype(x.dtype())?)
        };
        let of_numbers = || -> Fallible<Vec<Array>> {
            let [x, left, right, codes, ..] = primals else { return Err("x and two indices are expected".into()) };
            let x = x.take_axis(within(left, x.dim(0))?, 0)?;
            let StackLayout { rows, count, orientation } = self.stack;
            Ok(product_scale_gradients([&x, &cotangents[0], right], orientation, codes, (rows, count))?)
        };
        Some(gradients_of(self.stack.rows, 3, primals, argnums, of_x, of_numbers))
    }

    /// The product is linear in `x` and in the float children together.
    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let product = |x: &Array, rest: &[Array]| gather_matmul([x, &rest[0], &rest[1]], self.stack, &rest[2..]);
        let shape = [primals[1].dim(0), primals[0].dim(1), self.stack.columns()];
        Some(product_tangent(primals, tangents, argnums, &shape, product))
    }

    /// One product of all examples, if they share the matrices.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        let ([x, left, right, children @ ..], [of_x, _, _, of_children @ ..]) = (inputs, axes) else { return None };
        let examples = inputs.iter().zip(axes).find_map(|(input, axis)| axis.map(|axis| input.dim(axis as i32)))?;
        if of_children.iter().any(Option::is_some) {
            return None;
        }
        let mapped = || -> Fallible<Mapped> {
            let first = |array: &Array, axis: Option<usize>| match axis {
                Some(axis) => array.move_axis(axis as i32, 0),
                None => ops::broadcast_to(array, &[&[examples], array.shape()].concat()),
            };
            let (mut left, right) = (first(left, axes[1])?, first(right, axes[2])?);
            let pairs = left.dim(1);
            let mut groups = x.clone();
            if of_x.is_some() {
                let x = first(x, *of_x)?;
                // Each example chooses from groups of its own; a choice from beyond them stays one.
                let (example, count) = (ops::arange::<_, u32>(None, examples, None)?, number(x.dim(1)));
                let moved = left.add(example.multiply(&count)?.expand_dims(1)?)?;
                left = ops::select(left.lt(&count)?, moved, Array::from_slice(&[u32::MAX], &[]))?;
                groups = x.flatten(0, 1)?;
            }
            let (left, right) = (left.flatten(0, 1)?, right.flatten(0, 1)?);
            let result = gather_matmul([&groups, &left, &right], self.stack, children)?;
            let shape = [examples, pairs, groups.dim(1), self.stack.columns()];
            Ok((vec![result.reshape(&shape)?], vec![0]))
        };
        Some(mapped())
    }
}

impl StackLayout {
    /// Rows of each matrix.
    fn n(&self) -> i32 {
        self.rows.n.checked_div(self.count).unwrap_or(0) as i32
    }

    fn columns(&self) -> i32 {
        match self.orientation {
            Orientation::Transposed => self.n(),
            Orientation::Plain => self.rows.k as i32,
        }
    }
}
