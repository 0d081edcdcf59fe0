//! Merging an adapter into its base, and the error of that.

use std::fmt;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Error, Result, Value, implicit};

use crate::families::adapter::Adapter;
use crate::families::linear::{Linear, within_products};
use crate::families::structural::itself;
use crate::format::AnyFormat;

/// An adapter that was merged into its base.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The array that stands for both.
    pub value: Value,
    /// How far it is from the adapter.
    pub loss: MergeLoss,
}

/// How far a merged array is from what was trained, in Frobenius norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeLoss {
    /// `|merged - trained| / |trained|`.
    pub relative: f64,
    /// `|trained - base| / |base|`: how large the change is.
    pub change: f64,
    /// `|merged - trained| / |trained - base|`: at 1 the merge is as far off as the base without the adapter is. It is
    /// infinite where nothing was changed and the format alone loses something.
    pub of_change: f64,
}

impl MergeLoss {
    /// Whether the merged array is the trained one to the last bit.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.relative == 0.0
    }
}

impl fmt::Display for MergeLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("exact");
        }
        write!(f, "off by {:.1e}, which is {:.1}% of the change", self.relative, 100.0 * self.of_change)
    }
}

/// Merges an adapter into its base, in this format.
///
/// Dropout is left out.
///
/// Where the adapter changes nothing, a base that is in the format already stays as it is, byte for byte: to quantize its
/// own values again would change the codes of some formats. Most formats code the sum block by block, so that no dense array
/// is built; the loss is measured by rows.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{Lora, Nf4Array, merge};
///
/// let base = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
/// let lora = Lora::new(base, ops::ones::<f32>(&[2, 32])?, ops::zeros::<f32>(&[8, 2])?, 16.0)?;
/// let merged = merge(&lora, "nf4:64")?;
/// assert!(merged.loss.is_none());
/// assert_eq!(merged.value.to_string(), "Nf4(f32[8,32])");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// There is no such format, the sum does not fit it, or the policy forbids to build what has to be built: see
/// [`Quantizer::quantize_sum`](crate::format::Quantizer::quantize_sum).
pub fn merge(adapter: &dyn Adapter, format: impl TryInto<AnyFormat, Error: Into<Error>>) -> Result<Merged> {
    merged(adapter, Some(&format.try_into().map_err(Into::into)?))
}

/// Merges an adapter into its base without a loss: into stored codes where these hold the sum, and into a dense array otherwise.
///
/// The dense array is what the adapter stands for, in its dtype: half floats round the sum, which products with the adapter do not.
/// Dropout is left out.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{Lora, Nf4Array, merge_exactly};
///
/// let base = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
/// let lora = Lora::new(base, ops::ones::<f32>(&[2, 32])?, ops::ones::<f32>(&[8, 2])?, 2.0)?;
/// let merged = merge_exactly(&lora)?;
/// assert!(merged.loss.is_none());
/// assert_eq!(merged.value.to_string(), "f32[8,32]");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The policy forbids to build the dense array.
pub fn merge_exactly(adapter: &dyn Adapter) -> Result<Merged> {
    merged(adapter, None)
}

fn merged(adapter: &dyn Adapter, format: Option<&AnyFormat>) -> Result<Merged> {
    let still = Value::from(adapter.with_key(None)?);
    let adapter = still.family::<dyn Adapter>().unwrap_or(adapter);
    let base = adapter.base();
    let (change, before) = distances(&[&still, base])?;
    if let Some(format) = format
        && change == 0.0
        && format.stores(within_products(base))
    {
        return Ok(Merged { value: base.clone(), loss: MergeLoss { relative: 0.0, change: 0.0, of_change: 0.0 } });
    }
    let lossless =
        adapter.lossless()?.filter(|stored| format.is_none_or(|format| format.stores(within_products(stored))));
    let value = match (lossless, format) {
        (Some(stored), _) => stored,
        (None, Some(format)) => format.quantize_sum(adapter)?,
        (None, None) => itself(adapter).dense()?.into(),
    };
    let value = rounding_as(base, value)?;
    // The dense array is what the adapter stands for: what rows by themselves are off by is no loss of the merge.
    let exact = matches!(within_products(&value), Value::Dense(_)) && format.is_none();
    let (lost, size) = if exact { (0.0, 0.0) } else { distances(&[&value, &still])? };
    let loss = MergeLoss { relative: ratio(lost, size), change: ratio(change, before), of_change: ratio(lost, change) };
    Ok(Merged { value, loss })
}

/// What an adapter of a base became, with products that round activations, or are of integers, as those with the base were, where it has
/// such.
pub(super) fn rounding_as(base: &Value, merged: Value) -> Result<Value> {
    match base.family::<dyn Linear>() {
        Some(base) => base.rounding_alike(merged),
        None => Ok(merged),
    }
}

/// The share of a total; 0 of a total of 0 is 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if part == 0.0 { 0.0 } else { part / whole }
}

/// Elements that are compared at a time.
const PART: i32 = 1 << 20;

/// `|first - second|` and `|second|` of two matrices of one shape, by some rows at a time.
fn distances(values: &[&Value; 2]) -> Result<(f64, f64)> {
    let shape = values[0].aval()?.shape;
    let &[n, k] = shape.as_slice() else {
        return Err(Error::invalid(format!("{} is no matrix", values[0]), "merge adapters of matrices"));
    };
    let (mut apart, mut size) = (0.0, 0.0);
    let step = (PART / k.max(1)).max(1);
    for start in (0..n).step_by(step as usize) {
        let rows = ops::arange::<_, i32>(start, n.min(start + step), None)?;
        let taken = |value: &Value| -> Result<Array> {
            let gathered = implicit((value, &rows), |(w, rows)| w.take_axis(rows, 0)).map_err(without_handler)?;
            Ok(gathered.dense()?.as_dtype(Dtype::Float32)?)
        };
        let [first, second] = [taken(values[0])?, taken(values[1])?];
        apart += squares(&first.subtract(&second)?)?;
        size += squares(&second)?;
    }
    Ok((apart.sqrt(), size.sqrt()))
}

/// The error for a caller who merges: the primitive is one of the comparison, for which they have no handler to write.
fn without_handler(mut error: Error) -> Error {
    if let Error::MaterializationDenied { asked, nearest, .. } = &mut error {
        *asked = true;
        nearest.clear();
    }
    error
}

fn squares(array: &Array) -> Result<f64> {
    let sum = array.square()?.sum(None)?;
    sum.eval()?;
    Ok(f64::from(sum.item_exact::<f32>()))
}
