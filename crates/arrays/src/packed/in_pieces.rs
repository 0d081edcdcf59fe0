//! Quantizing some rows at a time.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::extra_ops::dynamic_slice_update;
use tacit_core::{Aval, Error, Result, Value, implicit, tree};

use crate::format::any::AnyFormat;
use crate::format::declaration::Format;
use crate::format::pieces::RowPieces;
use crate::kernel::{self, Nested};
use crate::packed::array::{PackedArray, Parts, checked};
use crate::packed::super_blocks;

/// The array that stands for `value` in a format, computed: in pieces where the format can, so that no more than its codes and a
/// few pieces of floats are in memory at a time.
///
/// What [`Quantizer::quantize`](crate::format::Quantizer::quantize) makes of all floats is the same. Where `value` is a part of a
/// mapped file, the pages that were read are let go of.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::format::quantize_in_pieces;
///
/// let w = ops::ones::<f32>(&[64, 128])?.into();
/// let codes = quantize_in_pieces("nf4:64", &w)?;
/// assert_eq!(codes.to_string(), "Nf4(f32[64,128])");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`Quantizer::quantize`](crate::format::Quantizer::quantize); the text is no format; an element is not finite; the policy
/// forbids to build the floats of an implicit array.
pub fn quantize_in_pieces(format: impl TryInto<AnyFormat, Error: Into<Error>>, value: &Value) -> Result<Value> {
    let format = format.try_into().map_err(Into::into)?;
    let pieces = RowPieces::new(value)?;
    if !pieces.is_one()
        && let Some(result) = format.quantize_pieces(&pieces)?
    {
        return Ok(result);
    }
    let result = format.quantize(&pieces.value().dense()?)?;
    tree::eval(&result)?;
    pieces.ranges().try_for_each(|rows| pieces.forget(rows))?;
    Ok(result)
}

/// The same of a declared format: none where its blocks are not those of pieces.
pub(crate) fn quantized<F: Format>(own: &F, pieces: &RowPieces) -> Result<Option<Value>> {
    let format = own.on(&pieces.aval().shape);
    let (aval, scheme, block) = (checked(pieces.aval().clone(), &format)?, format.scheme(), format.block());
    let width: usize = aval.shape.iter().skip(1).map(|&extent| extent as usize).product();
    let elements = pieces.rows() as usize * width;
    let groups = if let Some(Nested::Integers { .. }) = scheme.nested { scheme.integers()? } else { 1 };
    let aligned = elements.is_multiple_of((block * groups).max(1)) && (elements * scheme.bits()).is_multiple_of(32);
    if own.by_columns() || scheme.half() == Some(aval.dtype) || !aligned {
        return Ok(None);
    }
    let before = |rows: &Range<i32>| rows.start as usize * width;
    if groups > 1 {
        let part = |rows: Range<i32>| -> Result<Value> {
            let x = pieces.get(rows.clone())?;
            let (codes, scales) = super_blocks::encoded(&x.as_dtype(Dtype::Float32)?, &scheme, block, before(&rows))?;
            let part =
                Value::from(PackedArray::unchecked(Parts::new(codes, scales), own.on(x.shape()), Aval::from(&x)));
            tree::eval(&part)?;
            pieces.forget(rows)?;
            Ok(part)
        };
        let parts = pieces.ranges().map(part).collect::<Result<Vec<_>>>()?;
        let result = implicit(parts, |parts: Vec<Array>| ops::concatenate(&parts, 0))?;
        tree::eval(&result)?;
        return Ok(Some(result));
    }
    let mut global = None;
    if scheme.is_relative() {
        let mut absmax = Array::from_f32(0.0);
        for rows in pieces.ranges() {
            let x = pieces.get(rows.clone())?.as_dtype(Dtype::Float32)?;
            absmax = ops::maximum(&absmax, x.abs()?.max(None)?)?;
            tree::eval(&absmax)?;
            if !absmax.item_exact::<f32>().is_finite() {
                // The pieces before would be refused for what is in this one.
                tree::eval(&kernel::quantize_piece(scheme, block, before(&rows), &[x, absmax.clone()])?)?;
            }
            pieces.forget(rows)?;
        }
        global = Some(kernel::global_scale(&absmax)?);
    }
    let avals = scheme.output_avals(&aval.shape, block);
    let zeros = |aval: &Aval| ops::zeros_dtype(&aval.shape, aval.dtype);
    let mut results = avals.iter().map(zeros).collect::<Result<Vec<_>, _>>()?;
    tree::eval(&results)?;
    let mut places = vec![0; results.len()];
    for rows in pieces.ranges() {
        let x = pieces.get(rows.clone())?.as_dtype(Dtype::Float32)?;
        let inputs: Vec<Array> = [x].into_iter().chain(global.clone()).collect();
        let parts = kernel::quantize_piece(scheme, block, before(&rows), &inputs)?;
        for ((result, part), place) in results.iter_mut().zip(parts).zip(&mut places) {
            *result = dynamic_slice_update(result, &part, &Array::from_slice(&[*place], &[1]), &[0])?;
            *place += part.dim(0);
        }
        // The buffers are nobody else's, so each piece is written where it belongs.
        tree::eval(&results)?;
        pieces.forget(rows)?;
    }
    let array = PackedArray::of_codes(results, format, global, aval)?;
    tree::eval(&Value::from(array.clone()))?;
    Ok(Some(array.into()))
}

#[cfg(test)]
mod tests {
    use mlx_rs::random;

    use super::*;

    #[test]
    fn pieces_have_the_codes_of_the_whole() {
        let key = random::key(1).expect("a key");
        let x = random::normal::<f32>(&[9000, 512], None, None, &key).expect("numbers");
        for text in [
            "nf4:64",
            "nf4:64:double",
            "affine:4:64",
            "affine:3:32",
            "int8:64",
            "mxfp4",
            "nvfp4",
            "nvfp4:global",
            "f16",
        ] {
            for dtype in [Dtype::Float32, Dtype::Bfloat16] {
                let format: AnyFormat = text.parse().expect("a format");
                let x = x.as_dtype(dtype).expect("casts");
                let whole = format.quantize(&x).expect("quantizes");
                let value = Value::from(x);
                let pieces = RowPieces::new(&value).expect("has rows");
                assert!(
                    pieces.ranges().count() > 2 && format.quantize_pieces(&pieces).expect("fits").is_some(),
                    "{text}"
                );
                let found = quantize_in_pieces(&format, &value).expect("quantizes");
                assert_eq!(found.to_string(), whole.to_string());
                assert!(found == whole, "{text} of {dtype:?}");
            }
        }
    }

    #[test]
    fn what_has_no_code_is_counted_among_all_elements() {
        let mut numbers = vec![1.0_f32; 9000 * 512];
        numbers[4_000_007] = f32::NAN;
        let x = Value::from(Array::from_slice(&numbers, &[9000, 512]));
        for text in ["nf4:64", "affine:4:64", "nvfp4:global", "f16", "k:4", "k:6"] {
            let format: AnyFormat = text.parse().expect("a format");
            let error = quantize_in_pieces(&format, &x).expect_err("it has no code").to_string();
            assert!(error.contains("element 4000007 is NaN"), "{text}: {error}");
        }
    }
}
