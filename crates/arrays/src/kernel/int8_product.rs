//! Products of integers of 8 bits, with codes on both sides.

use mlx_rs::{Array, Dtype};
use tacit_core::kernel::{Fallback, Input, Kernel, Mapped, Output, apply, permit_dense};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::{Codes, Matrix, Orientation, Scales};

use super::host::{Fallible, floats_mut, rows_of, single};
use super::int8_rows::{Int8Rows, no_int8_derivative};
use crate::avals::axes::with_last;

/// `x W^T` with a scale for each row of `W`, or `x W` without scales, for rows `x` of integers and `matrix: i8[.., k]`, whose rows are
/// those of all its axes but the last: in `dtype`.
pub(crate) fn int8_product(x: &Int8Rows, matrix: &Array, scales: Option<&Array>, dtype: Dtype) -> Result<Array> {
    let inputs: Vec<Array> = [&x.codes, &x.units, matrix].into_iter().chain(scales).cloned().collect();
    let orientation = if scales.is_some() { Orientation::Transposed } else { Orientation::Plain };
    single(apply(Int8Product { orientation, dtype }, &inputs)?)
}

pub(super) struct Int8Product {
    pub(super) orientation: Orientation,
    /// That of the result.
    pub(super) dtype: Dtype,
}

/// The matrix that an array of such a shape is.
fn extents(shape: &[i32]) -> [usize; 2] {
    [rows_of(shape), shape.last().copied().unwrap_or(1) as usize]
}

impl Kernel for Int8Product {
    fn name(&self) -> &'static str {
        "Int8Product"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let transpose = self.orientation == Orientation::Transposed;
        Some(vec![("transpose", Param::Bool(transpose)), ("dtype", Param::Dtype(self.dtype))])
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let [n, k] = extents(&inputs[2].shape);
        let columns = if self.orientation == Orientation::Transposed { n } else { k };
        Ok(vec![Aval::new(&with_last(&inputs[0].shape, &[columns as i32]), self.dtype)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let ([codes, units, matrix, scales @ ..], [out]) = (inputs, outputs) else {
            return Err("codes, units and a matrix are expected, and perhaps its scales".into());
        };
        let [n, k] = extents(&matrix.aval().shape);
        let (scales, block) = match scales.first() {
            Some(scales) => (Scales::F32(scales.elements()?), k.max(1)),
            None => (Scales::One, (n * k).max(1)),
        };
        let stored = Codes::Signed { codes: matrix.elements()? };
        let matrix = Matrix { n, k, codes: stored, scales, biases: None, block };
        let (codes, units) = (codes.elements()?, units.elements()?);
        Ok(tacit_kernels::int8_product(codes, units, &matrix, self.orientation, floats_mut(out)?)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let [codes, units, matrix, scales @ ..] = inputs else {
            return Err("codes, units and a matrix are expected".into());
        };
        let (codes, matrix) = (codes.as_dtype(Dtype::Float32)?, matrix.as_dtype(Dtype::Float32)?);
        let matrix = if matrix.ndim() == 2 { matrix } else { matrix.reshape(&[-1, matrix.dim(-1)])? };
        let sums = match scales {
            [scales, ..] => codes.matmul(matrix.swap_axes(0, 1)?)?.multiply(scales)?,
            [] => codes.matmul(matrix)?,
        };
        Ok(vec![sums.multiply(units.expand_dims(-1)?)?.as_dtype(self.dtype)?])
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        permit_dense(self.name(), &Aval::new(inputs[2].shape(), Dtype::Float32), reason)?;
        self.decompose(inputs)
    }

    fn vjp(&self, _: &[Array], _: &[Array], _: &[usize]) -> Option<Fallible<Vec<Array>>> {
        Some(Err(no_int8_derivative().into()))
    }

    fn jvp(&self, _: &[Array], _: &[Array], _: &[usize]) -> Option<Fallible<Vec<Array>>> {
        Some(Err(no_int8_derivative().into()))
    }

    /// The rows of all examples, if they share the matrix.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        let (&[Some(codes), Some(units)], true) = (axes.first_chunk::<2>()?, axes[2..].iter().all(Option::is_none))
        else {
            return None;
        };
        let mapped = || -> Fallible<Mapped> {
            let mut inputs = inputs.to_vec();
            inputs[0] = inputs[0].move_axis(codes as i32, 0)?;
            inputs[1] = inputs[1].move_axis(units as i32, 0)?;
            Ok((apply(Self { orientation: self.orientation, dtype: self.dtype }, &inputs)?, vec![0]))
        };
        Some(mapped())
    }
}
