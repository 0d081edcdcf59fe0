//! Activations that are held in a format for the backward pass.

use std::cell::RefCell;
use std::collections::HashMap;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::transform::{SavedForm, Transformed, saved_as};
use tacit_core::{Error, Result, Tree, Value};

use crate::format::AnyFormat;

/// Lets a gradient through `f` read the activations of `f` from codes of a format, such as 8 bits: memory for accuracy.
///
/// An activation is a float array that `f` makes of its dense arguments, and these arguments; weights are what `f` captures,
/// and stay as they are. The forward pass is that of `f` to the bit. Of what the backward pass reads, float arrays are decoded
/// from codes that the forward pass makes of them once, and masks are exact. [`saved_as`] says it in full, and how this
/// composes with other transforms.
///
/// A format whose blocks lie along rows has the activation's own rows if they are whole blocks; otherwise, and if they are
/// shorter than 32, the elements are coded in rows of 256. What has fewer elements than that, or one in each row, such as the
/// means of a norm, is held as it is. Scales are `f32`, whatever the dtype.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::saved;
/// use tacit_core::transform::value_and_grad;
///
/// let x = ops::ones::<f32>(&[4, 64])?;
/// let mut step = value_and_grad(move |w: Array| -> tacit_core::Result<Array> {
///     let mut layers = saved("affine:8:64", |x: Array| x.matmul(&w)?.square())?;
///     Ok(layers.call(&x)?.dense()?.sum(None)?)
/// });
/// let (loss, gradient) = step.call(ops::ones::<f32>(&[64, 8])?)?;
/// assert_eq!(loss.dense()?.item_exact::<f32>(), 4.0 * 8.0 * 64.0 * 64.0);
/// assert_eq!(gradient.to_string(), "f32[64,8]");
/// # Ok(())
/// # }
/// ```
///
/// To train from compressed activations is from `ActNN` (Chen et al., 2021); COAT (Xi et al., 2024) does so in 8 bits.
///
/// # Errors
///
/// There is no such format, or it rounds by a random key. A call fails where `f` fails. A gradient fails as [`saved_as`] says, and its
/// eval where an activation that is read is NaN or infinite, which no code can hold.
pub fn saved<'f, A, O, E, F>(
    format: impl TryInto<AnyFormat, Error: Into<Error>>,
    f: F,
) -> Result<Transformed<'f, A, O::With<Value>>>
where
    A: Tree + 'f,
    O: Tree + 'f,
    E: Into<Error> + 'f,
    F: FnMut(A) -> Result<O, E> + 'f,
{
    let format = format.try_into().map_err(Into::into)?;
    check_saving(&format)?;
    Ok(saved_as(move |activation: &Array| encoded(&format, activation), f))
}

/// Checks that a format can be that of activations: it has its options, and needs no random key, which a gradient has not.
pub(crate) fn check_saving(format: &AnyFormat) -> Result<()> {
    format.supported()?;
    format.stochastic().map_or(Ok(()), |nearest| {
        Err(Error::invalid(
            format!("activations are not saved in the format {format}, which rounds by a random key"),
            format!("write {nearest}"),
        ))
    })
}

/// The form of activations in a format, or of those that stay as they are: one for equal formats.
pub(crate) fn form_of(format: Option<&AnyFormat>) -> SavedForm {
    thread_local! {
        static FORMS: RefCell<HashMap<Option<AnyFormat>, SavedForm>> = RefCell::default();
    }
    let form = || match format.cloned() {
        Some(format) => SavedForm::new(move |activation: &Array| encoded(&format, activation)),
        None => SavedForm::plain(),
    };
    FORMS.with_borrow_mut(|forms| forms.entry(format.cloned()).or_insert_with(form).clone())
}

/// The elements of a row where an activation has none that serves, and those from which on codes are worth their scales.
const ROW: i32 = 256;
/// The elements of the shortest rows that are coded as they are.
const SHORTEST: i32 = 32;

/// An activation in a format, with rows that fit it.
fn encoded(format: &AnyFormat, activation: &Array) -> Result<Value> {
    let last = activation.shape().last().copied().unwrap_or(1);
    if last == 1 || activation.size() < ROW as usize {
        return Ok(activation.into());
    }
    // Scales are floats of 32 bits: those of half the bits would err as much as the codes.
    let activation = activation.as_dtype(Dtype::Float32)?;
    if last >= SHORTEST
        && let Ok(value) = format.quantize(&activation.reshape(&[-1, last])?)
    {
        return Ok(value);
    }
    let missing = (ROW - (activation.size() % ROW as usize) as i32) % ROW;
    let flat = activation.reshape(&[-1])?;
    let whole = if missing == 0 { flat } else { ops::pad(flat, (0, missing), None, None)? };
    format.quantize(&whole.reshape(&[-1, ROW])?)
}
