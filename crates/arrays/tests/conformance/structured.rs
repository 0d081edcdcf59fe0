//! Structured arrays and views of the shape and dtype of a dense one, whose values they ignore or round.

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, Nf4};
use tacit_arrays::{
    AffineArray, AsStored, Batched, Cast, Concat, Diagonal, Dora, Identity, Int8Array, Lora, LoraSet, LowRank, Masked,
    Mxfp8Array, Nf4Array, Observed, QaLora, Repeated, Rotated, ScaleRule, Scaled, ScaledChannels, Scores, Sliced,
    Sparse24, Stacked, Transposed,
};
use tacit_core::{Error, Result, Value};

use crate::kinds::normal;

/// Rows and columns; an array of another rank is nothing that these types stand for.
fn extents(x: &Array) -> Result<(i32, i32)> {
    match *x.shape() {
        [n, k] => Ok((n, k)),
        _ => Err(Error::decline("only matrices")),
    }
}

fn side(x: &Array) -> Result<i32> {
    match extents(x)? {
        (n, k) if n == k => Ok(n),
        _ => Err(Error::decline("only squares")),
    }
}

/// Normal numbers in the dtype of `x`.
fn numbers(seed: u64, shape: &[i32], x: &Array) -> Result<Array> {
    Ok(normal(seed, shape).as_dtype(x.dtype())?)
}

/// Numbers of its own in eight bits.
pub(crate) fn int8(x: &Array) -> Result<Value> {
    Ok(Int8Array::quantize(&numbers(3, x.shape(), x)?, 32)?.into())
}

pub(crate) fn identity(x: &Array) -> Result<Identity> {
    Identity::new(side(x)?, x.dtype())
}

pub(crate) fn diagonal(x: &Array) -> Result<Diagonal> {
    Diagonal::new(numbers(1, &[side(x)?], x)?)
}

pub(crate) fn low_rank(x: &Array) -> Result<LowRank> {
    let (n, k) = extents(x)?;
    LowRank::new(numbers(1, &[n, 1], x)?, numbers(2, &[1, k], x)?)
}

pub(crate) fn sparse24(x: &Array) -> Result<Sparse24> {
    Sparse24::prune(&numbers(1, x.shape(), x)?)
}

/// A weight whose recording has ended: while it lasts, derivatives, maps and compiled functions are errors.
pub(crate) fn observed(x: &Array) -> Result<Observed> {
    extents(x)?;
    let observed = Observed::new(numbers(1, x.shape(), x)?)?;
    assert!(observed.finish().is_err(), "nothing was multiplied");
    Ok(observed)
}

pub(crate) fn transposed(x: &Array) -> Result<Value> {
    Ok(Transposed::new(int8(&x.swap_axes(-1, -2)?)?, &swapped(x))?.into())
}

pub(crate) fn scaled_channels(x: &Array) -> Result<Value> {
    let (_, k) = extents(x)?;
    let inner = Mxfp8Array::quantize(&numbers(1, x.shape(), x)?, ScaleRule::Ceil)?;
    Ok(ScaledChannels::new(inner, &numbers(2, &[k], x)?, -1)?.into())
}

pub(crate) fn scaled(x: &Array) -> Result<Value> {
    let inner = Mxfp8Array::quantize(&numbers(1, x.shape(), x)?, ScaleRule::Ceil)?;
    Ok(Scaled::new(inner, &Array::from_f32(0.5).as_dtype(x.dtype())?)?.into())
}

/// Elements are sums whose terms cancel, so that the gradient of a scale in the quotient by one is anything in `f32`: these
/// have no float child.
pub(crate) fn rotated(x: &Array) -> Result<Rotated> {
    Rotated::new(Mxfp8Array::quantize(&numbers(1, x.shape(), x)?, ScaleRule::Ceil)?, -1)
}

pub(crate) fn lora(x: &Array) -> Result<Lora> {
    let (n, k) = extents(x)?;
    Lora::new(Nf4Array::quantize(&numbers(3, &[n, k], x)?, 32)?, numbers(1, &[2, k], x)?, numbers(2, &[n, 2], x)?, 2.0)
}

pub(crate) fn dora(x: &Array) -> Result<Dora> {
    let (n, k) = extents(x)?;
    let (a, b) = (numbers(1, &[2, k], x)?, numbers(2, &[n, 2], x)?);
    Dora::with_magnitudes(Nf4Array::quantize(&numbers(3, &[n, k], x)?, 32)?, a, b, normal(4, &[n]), 2.0)
}

pub(crate) fn qa_lora(x: &Array) -> Result<QaLora> {
    let (n, k) = extents(x)?;
    let base = AffineArray::quantize(&numbers(3, &[n, k], x)?, Affine { bits: 4, group: 32 })?;
    QaLora::new(base, numbers(1, &[2, k / 32], x)?, numbers(2, &[n, 2], x)?, 2.0)
}

pub(crate) fn as_stored(x: &Array) -> Result<AsStored> {
    AsStored::new(lora(x)?, Nf4::from(64))
}

pub(crate) fn lora_set(x: &Array) -> Result<LoraSet> {
    LoraSet::new(&[lora(x)?, lora(x)?], Array::from_slice(&[1u32], &[]))
}

pub(crate) fn masked(x: &Array) -> Result<Masked> {
    Masked::new(int8(x)?, normal(1, x.shape()).gt(Array::from_f32(0.0))?)
}

/// The axes with the last two swapped.
fn swapped(x: &Array) -> Vec<i32> {
    let mut axes: Vec<i32> = (0..x.ndim() as i32).collect();
    let last = axes.len();
    if last > 1 {
        axes.swap(last - 1, last - 2);
    }
    axes
}

pub(crate) fn concat(x: &Array) -> Result<Value> {
    if x.ndim() == 0 || x.dim(0) < 2 {
        return Err(Error::decline("one part"));
    }
    let parts = ops::split_at_indices(x, &[1], 0)?;
    Ok(Concat::new(parts.iter().map(int8).collect::<Result<_>>()?, 0)?.into())
}

pub(crate) fn stacked(x: &Array) -> Result<Value> {
    if x.ndim() < 2 {
        return Err(Error::decline("no experts"));
    }
    let parts = ops::split_equal(x, x.dim(0), 0)?;
    let experts = parts.iter().map(|part| int8(&part.squeeze_axes(&[0])?)).collect::<Result<_>>()?;
    Ok(Stacked::new(experts)?.into())
}

/// The matrices of an array, from the last to the first.
pub(crate) fn batched(x: &Array) -> Result<Batched> {
    let Some((batch, _)) = x.shape().split_last_chunk::<2>() else { return Err(Error::decline("no matrices")) };
    let count: i32 = batch.iter().product();
    Batched::new(int8(x)?, batch, (0..count as usize).rev().collect(), false)
        .map_err(|error| Error::decline(error.to_string()))
}

/// One matrix for each of those of an array.
pub(crate) fn repeated(x: &Array) -> Result<Repeated> {
    let Some((batch, matrix)) = x.shape().split_last_chunk::<2>() else { return Err(Error::decline("no matrices")) };
    Repeated::new(int8(&ops::zeros_dtype(matrix, x.dtype())?)?, batch)
}

pub(crate) fn scores(x: &Array) -> Result<Scores> {
    let (n, k) = extents(x)?;
    Scores::new(
        &numbers(1, &[n, 32], x)?,
        Batched::new(int8(&ops::zeros_dtype(&[k, 32], x.dtype())?)?, &[], vec![0], true)?,
    )
}

pub(crate) fn sliced(x: &Array) -> Result<Value> {
    let (n, k) = extents(x)?;
    let wide = ops::concatenate(&[x, x], 0)?;
    Ok(Sliced::new(int8(&wide)?, &[1, 0], &[n + 1, k])?.into())
}

/// Numbers of eight bits, which bf16 holds, so that the cast rounds nothing; they have no float child, whose gradient
/// the dense array would round.
pub(crate) fn cast(x: &Array) -> Result<Value> {
    let inner = if x.dtype() == Dtype::Float32 { Dtype::Bfloat16 } else { Dtype::Float32 };
    let numbers = normal(1, x.shape()).as_dtype(inner)?;
    Ok(Cast::new(Mxfp8Array::quantize(&numbers, ScaleRule::Ceil)?, x.dtype())?.into())
}
