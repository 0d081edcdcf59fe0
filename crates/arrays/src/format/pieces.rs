//! Values that are read some rows at a time, so that a large one is never in memory as floats as a whole.

use std::ops::Range;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Policy, Result, Value, forget_pages, implicit};

/// Elements of a piece, 4 MB of `f32`: what is computed of it, such as differences, takes some times that.
const ELEMENTS: usize = 1 << 20;

/// Rows of a piece are a multiple of this where there are so many: blocks and words of most formats end there.
const ALIGNED: usize = 256;

/// The rows of a value, some at a time, as floats.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::format::RowPieces;
///
/// let value = ops::ones::<f32>(&[5000, 1024])?.into();
/// let pieces = RowPieces::new(&value)?;
/// let mut rows = 0;
/// for range in pieces.ranges() {
///     rows += pieces.get(range)?.dim(0);
/// }
/// assert_eq!(rows, 5000);
/// # Ok(())
/// # }
/// ```
pub struct RowPieces {
    value: Value,
    aval: Aval,
    rows: i32,
    /// What becomes of each row, if anything.
    map: Option<Map>,
}

pub(super) type Map = fn(&Array) -> Result<Array>;

impl RowPieces {
    /// The pieces of a value.
    ///
    /// An implicit array that cannot be cut into rows is made dense, which the policy is asked for.
    ///
    /// # Errors
    ///
    /// It has no aval, or refuses to be made dense.
    pub fn new(value: &Value) -> Result<Self> {
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

    /// The floats of a piece.
    ///
    /// Those of an implicit array are built, which the policy is asked for.
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

    /// The value that the rows are of, before they are mapped.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// The rows of a piece, of which the last may have fewer.
    pub(crate) fn rows(&self) -> i32 {
        self.rows
    }

    pub(crate) fn aval(&self) -> &Aval {
        &self.aval
    }

    /// The same rows as `map` makes them, in another dtype perhaps.
    pub(super) fn mapped(&self, map: Map, dtype: Dtype) -> Self {
        Self { value: self.value.clone(), aval: Aval::new(&self.aval.shape, dtype), rows: self.rows, map: Some(map) }
    }

    fn cut(&self, rows: Range<i32>) -> Result<Value> {
        match &self.value {
            Value::Dense(array) => Ok(array.try_index(rows)?.into()),
            array @ Value::Implicit(_) => implicit(array, |array| array.try_index(rows)),
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
