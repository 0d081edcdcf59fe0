//! Products of the formats that MLX multiplies itself, for devices without our kernels: nothing dense is built.

use mlx_rs::{Array, Dtype};
use tacit_core::Result;
use tacit_core::kernel::{QuantizationMode, Quantized, quantized_matmul};
use tacit_kernels::{E2M1, Order, Orientation};

use super::{Coding, Layout, Scaling};

/// MLX's product of `x` with the matrix, in the type of `x`; nothing if MLX has none.
pub(super) fn product(
    x: &Array,
    layout: Layout,
    children: &[Array],
    orientation: Orientation,
) -> Result<Option<Array>> {
    if let Some(dtype) = layout.scheme.half() {
        return of_halves(x, layout, children, orientation, dtype);
    }
    let (Some(mode), [codes, scales, more @ ..]) = (mode(layout), children) else { return Ok(None) };
    let wide;
    let (scales, biases, factor) = match (mode, more) {
        (QuantizationMode::Affine, [biases]) => (scales, Some(biases), None),
        (QuantizationMode::Affine, []) => {
            // MLX has no symmetric format. In `f32` biases are exact.
            let widened = scales.as_dtype(Dtype::Float32)?;
            wide = [widened.clone(), widened.multiply(layout.scheme.center())?];
            (&wide[0], Some(&wide[1]), None)
        }
        (QuantizationMode::Nvfp4, [factor]) => (scales, None, Some(factor)),
        (QuantizationMode::Mxfp4 | QuantizationMode::Mxfp8 | QuantizationMode::Nvfp4, []) => (scales, None, None),
        _ => return Ok(None),
    };
    let by_rows = |part: &Array| part.reshape(&[layout.n as i32, (part.size() / layout.n) as i32]);
    let (codes, scales, biases) = (by_rows(codes)?, by_rows(scales)?, biases.map(by_rows).transpose()?);
    let (group, bits) = (layout.block, layout.scheme.bits());
    let matrix = Quantized { codes: &codes, scales: &scales, biases: biases.as_ref(), group, bits, mode };
    let transposed = orientation == Orientation::Transposed;
    let product = match factor {
        None => quantized_matmul(x, matrix, transposed)?,
        // MLX's product has no argument for the factor, and f16 no room for the sums without it.
        Some(factor) => {
            let wide = if x.dtype() == Dtype::Float16 { &x.as_dtype(Dtype::Float32)? } else { x };
            quantized_matmul(wide, matrix, transposed)?.as_dtype(Dtype::Float32)?.multiply(factor)?
        }
    };
    // Scales of another float type widen the product.
    Ok(Some(product.as_dtype(x.dtype())?))
}

/// The product of `x` of the same half floats as the matrix, whose codes are read where they lie.
fn of_halves(
    x: &Array,
    layout: Layout,
    children: &[Array],
    orientation: Orientation,
    dtype: Dtype,
) -> Result<Option<Array>> {
    let [codes] = children else { return Ok(None) };
    if x.dtype() != dtype {
        return Ok(None);
    }
    let matrix = codes.view_dtype(dtype)?.reshape(&[layout.n as i32, layout.k as i32])?;
    let matrix = if orientation == Orientation::Transposed { matrix.t() } else { matrix };
    Ok(Some(x.matmul(matrix)?))
}

/// The mode in which MLX reads the codes and scales as they lie.
fn mode(layout: Layout) -> Option<QuantizationMode> {
    let Layout { scheme, n, k, block } = layout;
    // The steps of MLX's kernels along a row are of 32 elements; a matrix without any has nothing to multiply.
    if !scheme.is_grouped() || n == 0 || k == 0 || !k.is_multiple_of(32) {
        return None;
    }
    let e2m1 = |order, values: &[f32; 16]| order == Order::LowFirst && values.iter().eq(E2M1.iter());
    match (scheme.coding, scheme.scaling, block) {
        (Coding::Unsigned { bits: 2..=6 | 8 } | Coding::Offset { bits: 2..=6 | 8 }, Scaling::Float, 32 | 64 | 128) => {
            Some(QuantizationMode::Affine)
        }
        (Coding::Table { bits: 4, order, values }, Scaling::E8m0, 32) if e2m1(order, &values) => {
            Some(QuantizationMode::Mxfp4)
        }
        (Coding::Table { bits: 4, order, values }, Scaling::E4m3, 16) if e2m1(order, &values) => {
            Some(QuantizationMode::Nvfp4)
        }
        (Coding::E4m3, Scaling::E8m0, 32) => Some(QuantizationMode::Mxfp8),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
