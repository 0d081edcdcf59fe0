//! Products with a stored matrix.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::{KernelError, Orientation};

use super::host::{Fallible, floats, floats_mut, int, rows_of, single};
use super::parts::{gradients_of, product_tangent};
use super::product_scale_gradients::product_scale_gradients;
use super::{Layout, gpu, mlx_matmul};
use crate::avals::axes::{oriented, with_last};

/// `x W^T` or `x W` for a stored `W: [n, k]` and `x: [.., depth]`, in the float type of `x`.
///
/// # Errors
///
/// When it runs: the rows of `x` do not fit the matrix.
pub fn matmul(x: &Array, layout: Layout, children: &[Array], orientation: Orientation) -> Result<Array> {
    apply_to(Matmul { layout, orientation, groups: None }, x, children)
}

/// `x[e] W^T` or `x[e] W` for each entry of `x: [.., m, depth]`, where `W` is one of the matrices that are stored as one.
///
/// # Errors
///
/// When it runs: the entries of `x` do not fit the matrices.
pub fn grouped_matmul(
    x: &Array,
    layout: Layout,
    children: &[Array],
    orientation: Orientation,
    groups: Groups,
) -> Result<Array> {
    apply_to(Matmul { layout, orientation, groups: Some(groups) }, x, children)
}

fn apply_to(matmul: Matmul, x: &Array, children: &[Array]) -> Result<Array> {
    single(apply(matmul, &[std::slice::from_ref(x), children].concat())?)
}

/// Which of the matrices that are stored as one each entry of a batch is multiplied with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// For each entry, the number of its matrix; a batch of several times as many entries goes through them again and again.
    pub matrices: Vec<usize>,
    /// Rows of each matrix.
    pub rows: usize,
}

impl Groups {
    pub(super) fn params(&self) -> [(&'static str, Param); 2] {
        let matrices = self.matrices.iter().map(|&matrix| matrix as i64).collect();
        [("matrices", Param::Ints(matrices)), ("rows", int(self.rows))]
    }

    /// The dense matrices of all entries, of those that `dense: [n, k]` consists of.
    pub(super) fn taken(&self, dense: &Array) -> Result<Array, Exception> {
        let indices: Vec<i32> = self.matrices.iter().map(|&matrix| matrix as i32).collect();
        let count = dense.dim(0) / (self.rows as i32).max(1);
        // MLX does not look whether there is such a one.
        if let Some(index) = self.matrices.iter().position(|&matrix| matrix >= count as usize) {
            let matrix = self.matrices[index] as u32;
            let error = KernelError::MatrixRange { index, matrix, count: count as usize };
            return Err(Exception::custom(error.to_string()));
        }
        let matrices = dense.reshape(&[count, self.rows as i32, dense.dim(1)])?;
        matrices.take_axis(Array::from_slice(&indices, &[indices.len() as i32]), 0)
    }

    pub(super) fn repeated(&self, batches: usize) -> Self {
        Self { matrices: self.matrices.repeat(batches), rows: self.rows }
    }

    /// The matrices of all entries of an array of this shape, and the rows of each entry.
    pub(super) fn over(&self, shape: &[i32]) -> (Self, usize) {
        let (batch, entry) = shape.split_at(shape.len().saturating_sub(2));
        let entries: usize = batch.iter().map(|&extent| extent as usize).product();
        (self.repeated(entries / self.matrices.len().max(1)), rows_of(entry))
    }
}

#[derive(Clone)]
pub(super) struct Matmul {
    pub(super) layout: Layout,
    pub(super) orientation: Orientation,
    /// Nothing for one matrix.
    pub(super) groups: Option<Groups>,
}

impl Kernel for Matmul {
    fn name(&self) -> &'static str {
        self.layout.scheme.kernel(if self.groups.is_some() { "GroupedMatmul" } else { "Matmul" })
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let mut params = self.layout.params();
        params.push(("transpose", Param::Bool(self.orientation == Orientation::Transposed)));
        params.extend(self.groups.iter().flat_map(Groups::params));
        Some(params)
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&with_last(&inputs[0].shape, &[self.columns() as i32]), inputs[0].dtype)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let matrix = self.layout.matrix(&inputs[1..])?;
        let shape = &inputs[0].aval().shape;
        let (x, out) = (floats(&inputs[0])?, floats_mut(&mut outputs[0])?);
        match &self.groups {
            None => Ok(tacit_kernels::matmul(x, rows_of(shape), &matrix, self.orientation, out)?),
            Some(groups) => {
                let (Groups { matrices, rows }, m) = groups.over(shape);
                Ok(tacit_kernels::grouped_matmul(x, m, &matrices, &matrix, rows, self.orientation, out)?)
            }
        }
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        match &self.groups {
            None => gpu::matmul(&self.layout, self.orientation, inputs, backend.into()),
            Some(groups) => gpu::grouped_matmul(&self.layout, self.orientation, groups, inputs, backend.into()),
        }
        .map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let dense = self.layout.decoded(&inputs[1..])?;
        let x = inputs[0].as_dtype(Dtype::Float32)?;
        let y = match &self.groups {
            None => x.matmul(oriented(&dense, self.orientation)?)?,
            Some(groups) => {
                let (groups, m) = groups.over(x.shape());
                let matrices = oriented(&groups.taken(&dense)?, self.orientation)?;
                let entries = x.reshape(&[groups.matrices.len() as i32, m as i32, x.dim(-1)])?;
                entries.matmul(matrices)?.reshape(&with_last(x.shape(), &[self.columns() as i32]))?
            }
        };
        Ok(vec![y.as_dtype(inputs[0].dtype())?])
    }

    /// Off the CPU MLX's own product, where it has one for the format.
    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        let (x, children) = (&inputs[0], &inputs[1..]);
        if reason == Fallback::Device
            && self.groups.is_none()
            && let Some(product) = mlx_matmul::product(x, self.layout, children, self.orientation)?
        {
            return Ok(vec![product]);
        }
        self.layout.permit(self.name(), reason)?;
        self.decompose(inputs)
    }

    /// The gradient for `x` is the product with the same packed matrix transposed; those for float children are sums over what would
    /// be that of the matrix, and codes have none.
    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let of_x = || Ok(apply_to(self.transposed(), &cotangents[0], &primals[1..])?);
        let of_numbers = || self.number_gradients(primals, &cotangents[0]);
        Some(gradients_of(self.layout, 1, primals, argnums, of_x, of_numbers))
    }

    /// The product is linear in `x` and in the float children together.
    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let product = |x: &Array, children: &[Array]| apply_to(self.clone(), x, children);
        let shape = with_last(primals[0].shape(), &[self.columns() as i32]);
        Some(product_tangent(primals, tangents, argnums, &shape, product))
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        mapped(inputs, axes, |x, children| apply_to(self.clone(), x, children))
    }
}

/// What `f` makes of the first inputs of all examples, whose axis goes before theirs, if they share the others.
pub(super) fn mapped(
    inputs: &[Array],
    axes: &[Option<usize>],
    f: impl Fn(&Array, &[Array]) -> Result<Array>,
) -> Option<Fallible<Mapped>> {
    let (Some(axis), true) = (axes[0], axes[1..].iter().all(Option::is_none)) else { return None };
    let mapped =
        || -> Fallible<Mapped> { Ok((vec![f(&inputs[0].move_axis(axis as i32, 0)?, &inputs[1..])?], vec![0])) };
    Some(mapped())
}

impl Matmul {
    fn number_gradients(&self, primals: &[Array], cotangent: &Array) -> Fallible<Vec<Array>> {
        let [x, codes, ..] = primals else { return Err("x and codes are expected".into()) };
        let Some(groups) = &self.groups else {
            let entry = |array: &Array| {
                let rows = if array.ndim() > 2 { array.flatten(0, -2)? } else { array.clone() };
                if rows.ndim() == 1 { rows.reshape(&[1, 1, rows.dim(0)]) } else { rows.expand_dims(0) }
            };
            let operands = [&entry(x)?, &entry(cotangent)?, &Array::from_slice(&[0u32], &[1])];
            return Ok(product_scale_gradients(operands, self.orientation, codes, (self.layout, 1))?);
        };
        let (Groups { matrices, rows }, m) = groups.over(x.shape());
        let (entries, count) = (matrices.len() as i32, self.layout.n.checked_div(rows).unwrap_or(0));
        let in_entries = |array: &Array| array.reshape(&[entries, m as i32, array.dim(-1)]);
        let matrices: Vec<u32> = matrices.iter().map(|&matrix| matrix as u32).collect();
        let matrices = Array::from_slice(&matrices, &[entries]);
        let operands = [&in_entries(x)?, &in_entries(cotangent)?, &matrices];
        Ok(product_scale_gradients(operands, self.orientation, codes, (self.layout, count))?)
    }

    fn columns(&self) -> usize {
        match self.orientation {
            Orientation::Transposed => self.groups.as_ref().map_or(self.layout.n, |groups| groups.rows),
            Orientation::Plain => self.layout.k,
        }
    }

    fn transposed(&self) -> Self {
        Self { orientation: self.orientation.transposed(), ..self.clone() }
    }
}
