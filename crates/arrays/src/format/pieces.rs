//! Values that are read some rows at a time, so that what is large is never whole in memory as floats.

use std::ops::Range;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::extra_ops::dynamic_slice_update;
use tacit_core::{Aval, Policy, Result, Value, forget_pages, implicit, tree};

use super::declaration::{Format, Quantizer};
use crate::kernel::{self, Nested};
use crate::packed::array::{PackedArray, checked};

/// Elements of a piece: with what is computed of them, such as differences, some pieces of `f32` have 64 MB.
const ELEMENTS: usize = 1 << 20;

/// Rows of a piece are a multiple of this where there are so many: blocks and words of most formats end there.
const ALIGNED: usize = 256;

/// The rows of a value, some at a time, as floats.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::format::Pieces;
///
/// let value = ops::ones::<f32>(&[5000, 1024])?.into();
/// let pieces = Pieces::of(&value)?;
/// let mut rows = 0;
/// for range in pieces.ranges() {
///     rows += pieces.get(range)?.dim(0);
/// }
/// assert_eq!(rows, 5000);
/// # Ok(())
/// # }
/// ```
pub struct Pieces {
    value: Value,
    aval: Aval,
    rows: i32,
    /// What becomes of each row, if anything.
    map: Option<Map>,
}

/// A function of rows.
pub(super) type Map = fn(&Array) -> Result<Array>;

impl Pieces {
    /// The pieces of a value. An implicit array that cannot be cut into rows is made dense, which the policy is asked for.
    ///
    /// # Errors
    ///
    /// It has no aval, or refuses to be made dense.
    pub fn of(value: &Value) -> Result<Self> {
        let aval = value.aval()?;
        let mut pieces = Self { value: value.clone(), rows: rows(&aval), aval, map: None };
        if !pieces.is_one() && value.is_implicit() {
            let cut = {
                let _deny = Policy::Deny.scope();
                pieces.cut(0..pieces.rows)
            };
            if !cut.is_ok_and(|cut| cut.is_implicit()) {
                pieces.value = value.dense()?.into();
            }
        }
        Ok(pieces)
    }

    /// Whether the value is a single piece.
    #[must_use]
    pub fn is_one(&self) -> bool {
        self.aval.shape.first().is_none_or(|&rows| rows <= self.rows)
    }

    /// The rows of each piece; of a value without axes those of one piece that is all of it.
    pub fn ranges(&self) -> impl Iterator<Item = Range<i32>> + use<> {
        let (all, rows) = (self.aval.shape.first().copied().unwrap_or(1).max(1), self.rows);
        (0..all).step_by(rows as usize).map(move |begin| begin..all.min(begin + rows))
    }

    /// The floats of a piece. Those of an implicit array are built, which the policy is asked for.
    ///
    /// # Errors
    ///
    /// The policy forbids it.
    pub fn get(&self, rows: Range<i32>) -> Result<Array> {
        let piece = if self.is_one() { self.value.dense()? } else { self.cut(rows)?.dense()? };
        match self.map {
            Some(map) => map(&piece),
            None => Ok(piece),
        }
    }

    /// Lets the memory of a piece go, if it lies in a mapped file: it is read from there again.
    ///
    /// # Errors
    ///
    /// It cannot be evaluated.
    pub fn forget(&self, rows: Range<i32>) -> Result<()> {
        if let Value::Dense(array) = &self.value {
            if self.is_one() { forget_pages(array) } else { forget_pages(&array.try_index(rows)?) }?;
        }
        Ok(())
    }

    /// The shape and dtype of all rows.
    pub(super) fn aval(&self) -> &Aval {
        &self.aval
    }

    /// The same rows as `map` makes them, in another dtype perhaps.
    pub(super) fn mapped(&self, map: Map, dtype: Dtype) -> Self {
        Self { value: self.value.clone(), aval: Aval::new(&self.aval.shape, dtype), rows: self.rows, map: Some(map) }
    }

    fn cut(&self, rows: Range<i32>) -> Result<Value> {
        match &self.value {
            Value::Dense(array) => Ok(array.try_index(rows)?.into()),
            implicit => self::implicit(implicit, |array| array.try_index(rows)),
        }
    }
}

/// The rows of a piece of an array.
fn rows(aval: &Aval) -> i32 {
    let Some((&all, inner)) = aval.shape.split_first() else { return 1 };
    let width: usize = inner.iter().map(|&extent| extent as usize).product::<usize>().max(1);
    // The rows of a vector are numbers that are summed together.
    if inner.is_empty() || all as usize * width <= ELEMENTS {
        return all.max(1);
    }
    let most = (ELEMENTS / width).max(1);
    (if most > ALIGNED { most / ALIGNED * ALIGNED } else { most }) as i32
}

/// The array that stands for `value` in a format, computed: in pieces where the format can, so that no more than its codes and
/// a piece of floats are in memory at a time. What [`Quantizer::quantize`] makes of all floats is the same.
///
/// Where `value` is a part of a mapped file, the pages that were read are let go of.
///
/// # Errors
///
/// As for [`Quantizer::quantize`]; an element is not finite; the policy forbids to build the floats of an implicit array.
pub fn quantize_in_pieces(format: &dyn Quantizer, value: &Value) -> Result<Value> {
    let pieces = Pieces::of(value)?;
    if !pieces.is_one()
        && let Some(made) = format.quantize_pieces(&pieces)?
    {
        return Ok(made);
    }
    let made = format.quantize(&pieces.value.dense()?)?;
    tree::eval(&made)?;
    pieces.ranges().try_for_each(|rows| pieces.forget(rows))?;
    Ok(made)
}

/// The same of a declared format: none where its blocks are not those of pieces.
pub(crate) fn quantized<F: Format>(own: &F, pieces: &Pieces) -> Result<Option<Value>> {
    let format = own.on(&pieces.aval.shape);
    let (aval, scheme, block) = (checked(pieces.aval.clone(), &format)?, format.scheme(), format.block());
    let elements = pieces.rows as usize * (aval.shape[1..].iter().map(|&extent| extent as usize).product::<usize>());
    let groups = if let Some(Nested::Integers { .. }) = scheme.nested { scheme.integers()?.0 } else { 1 };
    let aligned = elements % (block * groups).max(1) == 0 && elements * scheme.bits() % 32 == 0;
    if own.by_columns() || scheme.half() == Some(aval.dtype) || !aligned {
        return Ok(None);
    }
    if groups > 1 {
        let part = |rows: Range<i32>| -> Result<Value> {
            let part = Value::from(PackedArray::coded(&pieces.get(rows.clone())?, &format, None)?);
            tree::eval(&part)?;
            pieces.forget(rows)?;
            Ok(part)
        };
        let parts = pieces.ranges().map(part).collect::<Result<Vec<_>>>()?;
        let made = implicit(parts, |parts: Vec<Array>| ops::concatenate(&parts, 0))?;
        tree::eval(&made)?;
        return Ok(Some(made));
    }
    let mut global = None;
    if scheme.is_relative() {
        let mut most = Array::from_f32(0.0);
        for rows in pieces.ranges() {
            let x = pieces.get(rows.clone())?.as_dtype(Dtype::Float32)?;
            most = ops::maximum(&most, x.abs()?.max(None)?)?;
            tree::eval(&most)?;
            pieces.forget(rows)?;
        }
        global = Some(kernel::global_scale(&most)?);
    }
    let avals = scheme.made(&aval.shape, block);
    let zeros = |aval: &Aval| ops::zeros_dtype(&aval.shape, aval.dtype);
    let mut made = avals.iter().map(zeros).collect::<Result<Vec<_>, _>>()?;
    tree::eval(&made)?;
    let mut places = vec![0; made.len()];
    for rows in pieces.ranges() {
        let x = pieces.get(rows.clone())?.as_dtype(Dtype::Float32)?;
        let parts = kernel::quantize(scheme, block, &[x].into_iter().chain(global.clone()).collect::<Vec<_>>())?;
        for ((all, part), place) in made.iter_mut().zip(parts).zip(&mut places) {
            *all = dynamic_slice_update(all, &part, &Array::from_slice(&[*place], &[1]), &[0])?;
            *place += part.dim(0);
        }
        // The buffers are nobody else's, so each piece is written where it belongs.
        tree::eval(&made)?;
        pieces.forget(rows)?;
    }
    let made = PackedArray::of_codes(made, format, global, aval)?;
    tree::eval(&Value::from(made.clone()))?;
    Ok(Some(made.into()))
}

#[cfg(test)]
mod tests {
    use mlx_rs::random;

    use super::*;
    use crate::format::AnyFormat;

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
                let pieces = Pieces::of(&value).expect("has rows");
                assert!(
                    pieces.ranges().count() > 2 && format.quantize_pieces(&pieces).expect("fits").is_some(),
                    "{text}"
                );
                let found = quantize_in_pieces(&*format, &value).expect("quantizes");
                assert_eq!(found.to_string(), whole.to_string());
                assert!(found == whole, "{text} of {dtype:?}");
            }
        }
    }
}
