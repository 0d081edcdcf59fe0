//! Attention as the one primitive that it is on a GPU, over stored keys and values.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::ScaledDotProductAttention;
use tacit_core::{Error, Result, Value, broadcast_source, handler, implicit};

use crate::avals::checks::decline_if;
use crate::families::linear::Linear;

/// By the ops that a CPU has for it, which become one kernel again where both are stored.
#[handler]
pub(crate) fn stored_attention(op: &ScaledDotProductAttention, q: &Array, rest: &[&Value]) -> Result<Value> {
    let [k, v, ..] = rest else { return Err(Error::decline("there are no keys and values")) };
    decline_if(op.output_logsumexp, "the sums of the weights are wanted as well")?;
    decline_if([k, v].iter().all(|side| side.family::<dyn Linear>().is_none()), "neither keys nor values are stored")?;
    let heads = k.aval()?.shape.get(1).copied().filter(|&heads| heads > 0 && q.ndim() == 4 && q.dim(1) % heads == 0);
    let heads = heads.ok_or_else(|| Error::decline("the heads of the queries are no groups of those of the keys"))?;
    let operands: Vec<Value> = rest.iter().map(|&operand| operand.clone()).collect();
    implicit(operands, |operands: Vec<Array>| {
        let [k, v, more @ ..] = &operands[..] else { return Err(Error::decline("there are no keys and values")) };
        attention(op, heads, q, [k, v], more)
    })
}

/// In plain ops, for groups of queries that share a head of the keys, as MLX has them.
fn attention(
    op: &ScaledDotProductAttention,
    heads: i32,
    q: &Array,
    [k, v]: [&Array; 2],
    more: &[Array],
) -> Result<Array> {
    let [batch, query_heads, m, depth] = *q.shape() else {
        return Err(Error::decline("the queries have not four axes"));
    };
    let repeats = query_heads / heads;
    let q = q.multiply(Array::from_f32(op.scale).as_dtype(q.dtype())?)?;
    let q = q.reshape(&[batch, heads, repeats, m, depth])?;
    let (k, v) = (k.expand_dims(2)?, v.expand_dims(2)?);
    let mut scores = q.matmul(k.swap_axes(-1, -2)?)?;
    let missing = || Error::decline("an operand is missing");
    let (sinks, masks) = if op.has_sinks { more.split_last().ok_or_else(missing)? } else { (&q, more) };
    let mask = if op.do_causal { Some(causal(m, scores.dim(-1))?) } else { masks.first().cloned() };
    if let Some(mask) = mask {
        let mask = grouped(&broadcast_source(&mask)?, [heads, repeats])?;
        scores = if mask.dtype() == Dtype::Bool {
            ops::select(&mask, &scores, least(scores.dtype())?)?
        } else {
            scores.add(&mask)?
        };
    }
    if op.has_sinks {
        let sinks = sinks.reshape(&[1, heads, repeats, 1, 1])?.as_dtype(scores.dtype())?;
        scores = ops::concatenate(&[&ops::broadcast_to(&sinks, &[batch, heads, repeats, m, 1])?, &scores], -1)?;
    }
    let mut weights = ops::softmax_axis(&scores, -1, true)?;
    if op.has_sinks {
        weights = weights.try_index((.., .., .., .., 1..))?;
    }
    Ok(weights.matmul(&v)?.flatten(1, 2)?)
}

/// Each query sees the tokens before it, and the last one all of them.
fn causal(m: i32, tokens: i32) -> Result<Array> {
    let rows = Array::from_iter(tokens - m..tokens, &[m, 1]);
    Ok(rows.ge(Array::from_iter(0..tokens, &[tokens]))?)
}

/// A mask for all heads as one for groups of them.
fn grouped(mask: &Array, groups: [i32; 2]) -> Result<Array> {
    let Some((batch, [heads, m, tokens])) = mask.shape().split_last_chunk() else { return Ok(mask.clone()) };
    let groups = if *heads == 1 { [1, 1] } else { groups };
    Ok(mask.reshape(&[batch, &groups, &[*m, *tokens]].concat())?)
}

/// The least finite number.
fn least(dtype: Dtype) -> Result<Array> {
    let number = match dtype {
        Dtype::Float16 => half::f16::MIN.to_f32(),
        Dtype::Bfloat16 => half::bf16::MIN.to_f32(),
        _ => f32::MIN,
    };
    Ok(Array::from_f32(number).as_dtype(dtype)?)
}

#[cfg(test)]
mod tests {
    use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
    use mlx_rs::random;
    use tacit_conformance::oracle::relative_error;
    use tacit_core::Policy;

    use super::*;
    use crate::format::AnyFormat;

    fn normal(seed: u64, shape: &[i32]) -> Array {
        let key = random::key(seed).expect("a key");
        random::normal::<f32>(shape, None, None, Some(&key)).expect("numbers")
    }

    #[test]
    fn one_primitive_over_stored_tokens_gives_what_mlx_gives_over_dense_ones() {
        let stored = |text: &str, seed| {
            let format: AnyFormat = text.parse().expect("a format");
            format.quantize(&normal(seed, &[2, 2, 9, 64])).expect("quantizes")
        };
        let (k, v) = (stored("nf4:64", 1), stored("affine:8:64", 2));
        let dense = [&k, &v].map(|side| side.dense().expect("dense"));
        let whole = ops::broadcast_to(normal(4, &[2, 1, 3, 9]), &[2, 6, 3, 9]).expect("broadcasts");
        let seen = normal(5, &[3, 9]).ge(Array::from_f32(0.0)).expect("a mask");
        let masks = [None, Some(whole), Some(seen), Some(normal(6, &[1, 6, 3, 9]))];
        for dtype in [Dtype::Float32, Dtype::Float16] {
            let q = normal(3, &[2, 6, 3, 64]).as_dtype(dtype).expect("queries");
            for (mask, do_causal) in masks.iter().map(|mask| (mask.as_ref(), false)).chain([(None, true)]) {
                for sinks in [None, Some(normal(7, &[6]))] {
                    let op = ScaledDotProductAttention {
                        scale: 0.125,
                        do_causal,
                        has_sinks: sinks.is_some(),
                        output_logsumexp: false,
                        force_fused: false,
                    };
                    let [dense_k, dense_v] = &dense;
                    let named = if do_causal { Some(Mask::Causal) } else { mask.map(Mask::Array) };
                    let wide = q.as_dtype(Dtype::Float32).expect("queries");
                    let expected = scaled_dot_product_attention(&wide, dense_k, dense_v, 0.125, named, sinks.as_ref())
                        .expect("runs");
                    let rest: Vec<Value> = mask.into_iter().chain(&sinks).map(Value::from).collect();
                    let rest: Vec<&Value> = [&k, &v].into_iter().chain(&rest).collect();
                    let _deny = Policy::Deny.scope();
                    let result = stored_attention(&op, &q, &rest).and_then(|result| result.dense()).expect("runs");
                    assert_eq!(result.shape(), expected.shape());
                    let error = relative_error(&result, &expected).expect("floats");
                    assert!(error < if dtype == Dtype::Float32 { 2e-5 } else { 6e-3 }, "{op:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_computed_from_stored_tokens() {
        let stored = |seed| {
            let format: AnyFormat = "nf4:64".parse().expect("a format");
            format.quantize(&normal(seed, &[2, 2, 9, 64])).expect("quantizes")
        };
        let (k, v, dense) = (stored(1), stored(2), Value::from(normal(3, &[2, 2, 9, 64])));
        let said = |heads: i32, output_logsumexp: bool, has_sinks: bool, rest: &[&Value]| {
            let op = ScaledDotProductAttention {
                scale: 0.125,
                do_causal: false,
                has_sinks,
                output_logsumexp,
                force_fused: false,
            };
            stored_attention(&op, &normal(4, &[2, heads, 3, 64]), rest).expect_err("declines").to_string()
        };
        let reasons = [
            said(2, false, false, &[]),
            said(2, true, false, &[&k, &v]),
            said(2, false, false, &[&dense, &dense]),
            said(3, false, false, &[&k, &v]),
            said(2, false, true, &[&k, &v]),
        ];
        expect_test::expect![[r#"
            declined: there are no keys and values
            declined: the sums of the weights are wanted as well
            declined: neither keys nor values are stored
            declined: the heads of the queries are no groups of those of the keys
            declined: an operand is missing"#]]
        .assert_eq(&reasons.join("\n"));
    }
}
