//! Products with a stored matrix that round the activations to 8 bits.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::Orientation;

use super::host::{Fallible, floats, floats_mut, rows_of, single};
use super::matmul::{Matmul, mapped};
use super::{Coding, Layout, Scheme, gpu};

/// `x W^T` for a stored `W: [n, k]` and `x: [.., k]`, with each row of `x` as integers, in the float type of `x`.
///
/// The codes are a table of 4 bits, whose values are rounded too, or integers of 2 to 8 bits, which may have
/// biases. The gradient is that of the product without rounding.
///
/// # Errors
///
/// When it runs: the rows of `x` do not fit the matrix, or it has other codes.
pub fn int8_matmul(x: &Array, layout: Layout, children: &[Array]) -> Result<Array> {
    single(apply(Int8Matmul { exact: exact(layout) }, &[std::slice::from_ref(x), children].concat())?)
}

pub(super) struct Int8Matmul {
    /// The product without rounding.
    pub(super) exact: Matmul,
}

pub(super) fn exact(layout: Layout) -> Matmul {
    Matmul { layout, orientation: Orientation::Transposed, groups: None }
}

impl Kernel for Int8Matmul {
    fn name(&self) -> &'static str {
        self.exact.layout.scheme.kernel("Int8Matmul")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        self.exact.params()
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        self.exact.output_avals(inputs)
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let matrix = self.exact.layout.matrix(&inputs[1..])?;
        let m = rows_of(&inputs[0].aval().shape);
        let out = floats_mut(&mut outputs[0])?;
        Ok(tacit_kernels::int8_matmul(floats(&inputs[0])?, m, &matrix, Orientation::Transposed, out)?)
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        self.parts(inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let (layout, unit) = of_integers(self.exact.layout);
        let dense = layout.decoded(&inputs[1..])?;
        let x = rounded_rows(&inputs[0].as_dtype(Dtype::Float32)?)?.multiply(Array::from_f32(unit))?;
        Ok(vec![x.matmul(dense.t())?.as_dtype(inputs[0].dtype())?])
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        self.exact.layout.permit(self.name(), reason)?;
        self.decompose(inputs)
    }

    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        self.exact.vjp(primals, cotangents, argnums)
    }

    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        self.exact.jvp(primals, tangents, argnums)
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        mapped(inputs, axes, |x, children| int8_matmul(x, self.exact.layout, children))
    }
}

impl Int8Matmul {
    /// None for codes that the kernel of a CPU refuses.
    pub(super) fn parts(&self, inputs: &[Aval], target: gpu::Target) -> Option<gpu::Parts> {
        let layout = self.exact.layout;
        if !layout.scheme.has_integers() {
            return None;
        }
        let (layout, unit) = of_integers(layout);
        gpu::int8_matmul(&layout, unit, inputs, target)
    }
}

/// The same with integers in the place of a table's values, and what each is worth in units of its scale.
fn of_integers(layout: Layout) -> (Layout, f32) {
    let Coding::Table { bits: 4, order, values } = layout.scheme.coding else { return (layout, 1.0) };
    let (values, unit) = rounded_table(&values);
    let scheme = Scheme { coding: Coding::Table { bits: 4, order, values }, ..layout.scheme };
    (Layout { scheme, ..layout }, unit)
}

/// Each row as integers from -127 to 127 in units of its largest magnitude over 127; its change is straight through.
fn rounded_rows(x: &Array) -> std::result::Result<Array, Exception> {
    let rounded = rounded_to_int8(x, &x.abs()?.max_axis(-1, true)?)?;
    x.add(stop_gradient(rounded.subtract(x)?)?)
}

/// `x` rounded to integers from -127 to 127 in units of the largest magnitude over 127.
pub(crate) fn rounded_to_int8(x: &Array, absmax: &Array) -> std::result::Result<Array, Exception> {
    let full = Array::from_f32(127.0);
    let zero = absmax.eq(Array::from_f32(0.0))?;
    // 127 over a tiny magnitude is no float: such rows are rounded as 2^64 times as large.
    let tiny = absmax.lt(Array::from_f32(2.0_f32.powi(-110)))?;
    let grown = ops::select(tiny, Array::from_f32(2.0_f32.powi(64)), Array::from_f32(1.0))?;
    let large = absmax.multiply(&grown)?;
    let factor = ops::select(zero, Array::from_f32(0.0), full.divide(&large)?)?;
    x.multiply(&grown)?.multiply(factor)?.round(None)?.multiply(large.divide(full)?)?.divide(grown)
}

/// A table's values as integers, in units of the largest over whichever of 64 to 127 makes the squares of the errors
/// least, and that unit.
fn rounded_table(values: &[f32; 16]) -> ([f32; 16], f32) {
    let top = values.iter().fold(0.0, |most, value| f64::max(most, f64::from(value.abs())));
    let integer = |value: f32, steps: f64| (f64::from(value) * (steps / top)).round_ties_even();
    let error = |steps: f64| -> f64 {
        values.iter().map(|&value| (f64::from(value) / top - integer(value, steps) / steps).powi(2)).sum()
    };
    let steps = (64..=127).map(f64::from).min_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap_or(127.0);
    // A table of zeros has NaN in units of its largest value, which are zeros as well.
    (values.map(|value| f32::from(integer(value, steps) as i8)), (top / steps) as f32)
}
