//! Attention, rotations and norms.

use mlx_rs::Array;
use mlx_rs::fast::{self, ScaledDotProductAttentionMask};
use tacit_core::primitives::{LayerNorm, RMSNorm, RoPE, ScaledDotProductAttention};
use tacit_core::{Error, Result, Value, broadcast_source, handler, implicit};

use super::{Sharded, own_part};

/// The attention of the own heads, or of the own rows of the batch.
#[handler(precedence = 4)]
pub(crate) fn sharded_attention(op: &ScaledDotProductAttention, q: &Sharded, rest: &[&Value]) -> Result<Value> {
    let [k, v, more @ ..] = rest else { return Err(Error::decline("there are no keys and values")) };
    if q.axis > 1 || op.output_logsumexp {
        return Err(Error::decline("neither heads nor rows of the batch are split, or sums are wanted"));
    }
    let (sinks, masks) =
        if op.has_sinks { more.split_last().map_or((None, more), |(s, m)| (Some(*s), m)) } else { (None, more) };
    let mask = masks.first().map(|mask| own_mask(q, mask)).transpose()?;
    let sinks = match (sinks, q.axis) {
        (None, _) => None,
        (Some(sinks), 1) => Some(q.operand(sinks, 0)?),
        (Some(sinks), _) => Some(q.entered(sinks)?.into()),
    };
    let (k, v) = (q.operand(k, q.axis)?, q.operand(v, q.axis)?);
    let part = implicit((q.entered_part()?, k, v, mask, sinks), |(q, k, v, mask, sinks)| {
        let mask = match &mask {
            Some(mask) => Some(ScaledDotProductAttentionMask::Array(mask)),
            None => op.do_causal.then_some(ScaledDotProductAttentionMask::Causal),
        };
        Ok::<_, Error>(fast::scaled_dot_product_attention(q, k, v, op.scale, mask, sinks.as_ref())?)
    })?;
    q.with(part, q.axis)
}

/// The mask of the own part: one for all heads or rows stays as it is.
fn own_mask(q: &Sharded, mask: &Value) -> Result<Value> {
    let Value::Dense(array) = mask else { return q.operand(mask, q.axis) };
    let from_end = q.behind();
    let source = broadcast_source(array)?;
    if source.ndim() < from_end || source.shape()[source.ndim() - from_end] == 1 {
        return Ok(q.group.enter(&source)?.into());
    }
    Ok(own_part(array, array.ndim() - from_end, &q.group)?.into())
}

/// The rotation of the own heads, or of the own rows of the batch.
#[handler]
pub(crate) fn sharded_rope(op: &RoPE, x: &Sharded, rest: &[&Value]) -> Result<Value> {
    if x.behind() < 3 {
        return Err(Error::decline("positions or features are split"));
    }
    if !op.forward {
        return Err(Error::decline("it is the inverse rotation"));
    }
    let dense = |value: &&Value| value.as_dense().cloned().ok_or_else(|| Error::decline("an operand is not dense"));
    let mut inputs = rest.iter().map(dense);
    let offset = inputs.next().ok_or_else(|| Error::decline("there is no offset"))??;
    if offset.ndim() > 0 && x.axis == 0 {
        return Err(Error::decline("each row of the batch has an offset of its own"));
    }
    let freqs: Option<Array> = inputs.next().transpose()?;
    x.mapped(x.axis, |part| {
        let base = freqs.is_none().then_some(op.base);
        Ok(fast::rope_dynamic(part, op.dims, op.traditional, base, op.scale, &offset, freqs.as_ref())?)
    })
}

/// The norm of the own rows.
#[handler]
pub(crate) fn sharded_rms_norm(op: &RMSNorm, x: &Sharded, weight: &Value) -> Result<Value> {
    whole_rows(x)?;
    let weight = x.entered(weight)?;
    x.mapped(x.axis, |part| Ok(fast::rms_norm(part, if weight.ndim() == 0 { None } else { Some(&weight) }, op.eps)?))
}

/// The norm of the own rows.
#[handler]
pub(crate) fn sharded_layer_norm(op: &LayerNorm, x: &Sharded, weight: &Value, bias: &Value) -> Result<Value> {
    whole_rows(x)?;
    let (weight, bias) = (x.entered(weight)?, x.entered(bias)?);
    x.mapped(x.axis, |part| {
        let unless_scalar = |array| if Array::ndim(array) == 0 { None } else { Some(array) };
        Ok(fast::layer_norm(part, unless_scalar(&weight), unless_scalar(&bias), op.eps)?)
    })
}

fn whole_rows(x: &Sharded) -> Result<()> {
    if x.behind() == 1 {
        return Err(Error::decline("the features of each row are split"));
    }
    Ok(())
}
