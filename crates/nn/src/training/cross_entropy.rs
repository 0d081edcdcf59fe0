//! Cross entropy of logits, also a chunk of rows at a time, so that all logits are never in memory.

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::Distributed;
use tacit_core::extra_ops::checked_numbers;
use tacit_core::transform::map_chunks;
use tacit_core::tree::{self, Arguments, Open};
use tacit_core::{Aval, Error, Result, Value, implicit};

use crate::within::mapped;

/// Bytes of the logits, as `f32`, that are computed at a time.
const CHUNK: usize = 16 << 20;

/// The cross entropy of each row of `x` at its target, where `logits` makes logits of rows: those of no more than one chunk of
/// rows are in memory at a time, in the gradient too.
///
/// `x: [.., d]` is what the head of a model is given, and `targets: [..]` are classes. `logits` takes a chunk `[rows, d]` and
/// the `head`, whole, and makes `[rows, classes]`; it is intercepted, so that the head may be implicit, such as the packed
/// embedding of a decoder. The result is `f32[..]`, a loss for each target, whatever dtype the logits are of. Average it, or
/// those of the rows that count.
///
/// `rows` is the size of a chunk; without it a chunk is of 16 MiB of logits, for whose number of classes `logits`
/// is recorded once more, with one row. A gradient computes the logits of each chunk again:
/// it takes half as much time again in the head, and the memory of a chunk. With respect to the head it is a sum over chunks.
/// Give what a gradient is taken of as `x` or `head`: see [`map_chunks`]. Inside [`implicit`](tacit_core::implicit()) an
/// implicit head would be materialized: call it on values, in the loss of [`Model::value_and_grad`](crate::Model::value_and_grad)
/// on those of [`Model::get`](crate::Model::get). One that lies in flat parts on several ranks is gathered once for all chunks, so
/// that ranks may have different numbers of rows.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::module::Module;
/// use mlx_rs::{Array, nn, ops};
/// use tacit_arrays::format::Nf4;
/// use tacit_nn::training::chunked_cross_entropy;
/// use tacit_nn::{Model, ParameterFilter};
///
/// let tokens = Array::from_slice(&[1u32, 5, 3], &[3]);
/// let mut model = Model::new(nn::Embedding::new(1000, 64)?)?.quantize("weight", Nf4 { block: 64, double: false })?;
/// let x = ops::ones::<f32>(&[3, 64])?;
/// let losses = chunked_cross_entropy(&x, model.get("weight")?, &tokens, None, |x, w| x.matmul(w.t()))?;
/// assert_eq!(losses.shape(), [3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The targets are no integers of the shape of `x` less its last axis; `logits` fails, or makes something else than a row of
/// float logits for each row; as for [`map_chunks`]. Where a target is no class, the eval of the losses is an error.
pub fn chunked_cross_entropy<H: Arguments<Arrays: 'static>, E: Into<Error> + 'static>(
    x: impl Into<Value>,
    head: H,
    targets: &Array,
    rows: Option<i32>,
    logits: impl Fn(Array, H::Arrays) -> Result<Array, E> + 'static,
) -> Result<Array> {
    let x = x.into().dense()?;
    let Some((&width, before)) = x.shape().split_last() else { return Err(unfit(&x, targets)) };
    if before != targets.shape() || targets.dtype().is_inexact() {
        return Err(unfit(&x, targets));
    }
    let count = targets.size() as i32;
    let (x, flat) = (x.reshape(&[count, width])?, targets.reshape(&[count])?);
    let rows = match rows {
        Some(rows) => rows,
        None => chunk(&x, &head, &logits)?,
    };
    let (leaves, def) = tree::flatten(&head, Open::Closed)?;
    drop(head);
    let leaves = leaves.into_iter().map(brought).collect::<Result<Vec<Value>>>()?;
    let losses = map_chunks((&x, &flat), leaves, rows, move |(x, targets): (Array, Array), leaves: Vec<Array>| {
        let head = tree::unflatten(&def, leaves.into_iter().map(Value::from).collect())?;
        let (count, logits) = (x.dim(0), logits(x, head).map_err(Into::into)?);
        if !matches!(logits.shape(), &[rows, _] if rows == count) || !logits.dtype().is_float() {
            return Err(no_logits(&logits, count));
        }
        cross_entropy(&logits, &targets)
    })?;
    Ok(losses.dense()?.reshape(targets.shape())?)
}

/// The value, with what each chunk would bring here for itself.
fn brought(value: Value) -> Result<Value> {
    let other = mapped(&value, &mut |value| value.family::<dyn Distributed>().map_or(Ok(None), Distributed::brought))?;
    Ok(other.unwrap_or(value))
}

/// The rows whose logits are a chunk. The logits of one row are recorded for their shape, and never computed.
fn chunk<H, E>(x: &Array, head: &H, logits: &impl Fn(Array, H::Arrays) -> Result<Array, E>) -> Result<i32>
where
    H: Arguments,
    E: Into<Error>,
{
    let one = ops::zeros_dtype(&[1, x.dim(1)], x.dtype())?;
    let aval = implicit((&one, head), |(one, head)| logits(one, head))?.aval()?;
    Ok(((CHUNK / 4) as i32 / aval.shape.last().copied().unwrap_or(1).max(1)).max(1))
}

/// The cross entropy of each row of `logits: [rows, classes]` at its target, an integer of `targets: [rows]`: `f32[rows]`.
///
/// The losses are computed in `f32`, whatever dtype the logits are of, and a target that is no class is an error, where a
/// gather would read other memory. [`chunked_cross_entropy`] does the same with a chunk of the logits at a time.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_nn::training::cross_entropy;
///
/// let losses = cross_entropy(&ops::zeros::<f32>(&[2, 8])?, &Array::from_slice(&[0u32, 7], &[2]))?;
/// assert_eq!(losses.try_as_slice::<f32>()?, [8f32.ln(); 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The logits are no float matrix with a row for each target, or the targets are no integers. Where a target is no class, the
/// eval of the losses is an error.
pub fn cross_entropy(logits: &Array, targets: &Array) -> Result<Array> {
    let (&[given, classes], &[rows]) = (logits.shape(), targets.shape()) else { return Err(unfit(logits, targets)) };
    if given != rows || !logits.dtype().is_float() || targets.dtype().is_inexact() {
        return Err(unfit(logits, targets));
    }
    // Half floats would lose the losses in sums over the classes.
    let logits = logits.as_dtype(Dtype::Float32)?;
    let targets =
        checked_numbers(targets, classes, "target", "give each row a class, and leave out losses that do not count")?;
    // MLX refuses the sums of an array without elements. The logits are computed all the same: other ranks may wait for this one
    // to gather the head.
    if rows == 0 {
        return Ok(logits.reshape(&[0])?);
    }
    let at_targets = logits.take_along_axis(targets.expand_dims(1)?, 1)?.squeeze_axes(&[1])?;
    Ok(logits.logsumexp_axis(-1, false)?.subtract(at_targets)?)
}

fn unfit(x: &Array, targets: &Array) -> Error {
    Error::invalid(
        format!("targets {} are given to rows {}", Aval::from(targets), Aval::from(x)),
        "give an integer for each row: the shape of `x` without its last axis",
    )
}

fn no_logits(logits: &Array, rows: i32) -> Error {
    Error::invalid(
        format!("the head makes {} of {rows} rows", Aval::from(logits)),
        "return a row of float logits for each row, `[rows, classes]`",
    )
}
