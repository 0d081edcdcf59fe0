//! Attention over packed keys and values, in every way that it is written, against that over dense ones.

use expect_test::expect;
use mlx_rs::fast::{ScaledDotProductAttentionMask as Named, scaled_dot_product_attention};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_conformance::oracle::{Oracle, relative_error};
use tacit_core::{Aval, Counters, Error, Policy, Result, Value, explain, implicit};

use crate::operands::{FORMATS, normal, normal_of};

const SCALE: f32 = 0.125;
const HEAD: i32 = 64;

/// How queries come to the heads of keys and values.
const BATCH: i32 = 2;
const HEADS: i32 = 2;
const REPEATS: i32 = 3;

type Way = fn(&[Array]) -> Result<Array>;

/// With as many heads of keys as of queries: each is repeated.
fn repeated(x: &Array) -> Result<Array> {
    let [batch, heads, tokens, head] = *x.shape() else { return Err(Error::decline("four axes")) };
    let wide = ops::broadcast_to(x.expand_dims(2)?, &[batch, heads, REPEATS, tokens, head])?;
    Ok(wide.reshape(&[batch, heads * REPEATS, tokens, head])?)
}

fn weighted(scores: &Array, mask: Option<&Array>, v: &Array) -> Result<Array> {
    let scores = scores.multiply(Array::from_f32(SCALE).as_dtype(scores.dtype())?)?;
    let scores = match mask {
        None => scores,
        Some(mask) if mask.dtype() == Dtype::Bool => {
            let least = if scores.dtype() == Dtype::Float16 { -65504.0 } else { -1e30 };
            ops::select(mask, &scores, Array::from_f32(least).as_dtype(scores.dtype())?)?
        }
        Some(mask) => scores.add(mask)?,
    };
    Ok(ops::softmax_axis(&scores, -1, true)?.matmul(v)?)
}

/// By repeated heads.
fn by_repeats(a: &[Array]) -> Result<Array> {
    let (k, v) = (repeated(&a[1])?, repeated(&a[2])?);
    weighted(&a[0].matmul(k.swap_axes(-1, -2)?)?, a.get(3), &v)
}

/// By groups of queries.
fn by_groups(a: &[Array]) -> Result<Array> {
    let [batch, heads, m, head] = *a[0].shape() else { return Err(Error::decline("four axes")) };
    let q = a[0].reshape(&[batch, heads / REPEATS, REPEATS, m, head])?;
    let (k, v) = (a[1].expand_dims(2)?, a[2].expand_dims(2)?);
    let mask = a.get(3).map(|mask| if mask.ndim() > 3 { mask.expand_dims(2) } else { Ok(mask.clone()) }).transpose()?;
    let y = weighted(&q.matmul(k.transpose_axes(&[0, 1, 2, 4, 3])?)?, mask.as_ref(), &v)?;
    let head = y.dim(-1);
    Ok(y.reshape(&[batch, heads, m, head])?)
}

/// With a softmax in `f32`, as models of half floats are written.
fn by_wide_weights(a: &[Array]) -> Result<Array> {
    let (k, v) = (repeated(&a[1])?, repeated(&a[2])?);
    let scores = a[0].matmul(k.swap_axes(-1, -2)?)?.divide(Array::from_f32(8.0).as_dtype(a[0].dtype())?)?;
    let scores = scores.as_dtype(Dtype::Float32)?;
    let scores = match a.get(3) {
        None => scores,
        Some(mask) if mask.dtype() == Dtype::Bool => ops::select(mask, &scores, Array::from_f32(f32::NEG_INFINITY))?,
        Some(mask) => scores.add(mask.as_dtype(Dtype::Float32)?)?,
    };
    Ok(ops::softmax_axis(&scores, -1, None)?.as_dtype(a[0].dtype())?.matmul(&v)?)
}

/// By MLX's own.
fn by_mlx(a: &[Array]) -> Result<Array> {
    Ok(scaled_dot_product_attention(&a[0], &a[1], &a[2], SCALE, a.get(3).map(Named::from), None)?)
}

/// With a factor behind the mask, and one of the weights.
fn by_late_factors(a: &[Array]) -> Result<Array> {
    let (k, v) = (repeated(&a[1])?, repeated(&a[2])?);
    let number = |number: f32| Array::from_f32(number).as_dtype(a[0].dtype());
    let scores = a[0].matmul(k.swap_axes(-1, -2)?)?;
    let scores = match a.get(3) {
        None => scores,
        Some(mask) if mask.dtype() == Dtype::Bool => ops::select(mask, &scores, number(f32::NEG_INFINITY)?)?,
        Some(mask) => scores.add(mask)?,
    };
    let weights = ops::softmax_axis(scores.multiply(number(SCALE)?)?.divide(number(2.0)?)?, -1, true)?;
    Ok(weights.multiply(number(3.0)?)?.divide(number(-2.0)?)?.matmul(&v)?)
}

const WAYS: [(&str, Way); 5] = [
    ("repeats", by_repeats),
    ("groups", by_groups),
    ("wide weights", by_wide_weights),
    ("late factors", by_late_factors),
    ("mlx", by_mlx),
];

fn queries(dtype: Dtype, m: i32) -> Value {
    normal_of(dtype, 7, &[BATCH, HEADS * REPEATS, m, HEAD]).into()
}

/// Keys and values of two formats.
fn cache(dtype: Dtype, keys: usize, tokens: i32) -> [Value; 2] {
    let of = |format: usize, seed, width| {
        (FORMATS[format % FORMATS.len()].of)(&normal_of(dtype, seed, &[BATCH, HEADS, tokens, width])).expect("packs")
    };
    [of(keys, 1, HEAD), of(keys + 4, 2, 96)]
}

fn causal(m: i32, tokens: i32) -> Array {
    let at = |len: i32| Array::from_iter(0..len, &[len]);
    let rows = at(m).add(Array::from_int(tokens - m)).and_then(|rows| rows.reshape(&[1, 1, m, 1])).expect("rows");
    rows.ge(at(tokens)).expect("a mask")
}

fn oracle(dtype: Dtype) -> Oracle {
    Oracle::new(match dtype {
        Dtype::Bfloat16 => 3e-2,
        Dtype::Float16 => 6e-3,
        _ => 2e-5,
    })
}

fn check(oracle: Oracle, name: &str, operands: &[Value], way: Way) {
    oracle.check(name, operands, move |a| Ok(vec![way(&a)?]));
    let _deny = Policy::Deny.scope();
    let (told, counters) = Counters::during(|| explain(operands.to_vec(), move |a: Vec<Array>| way(&a)));
    let told = told.expect("runs").to_string();
    assert!(told.contains("scores_matmul") && !told.contains("computed"), "{name}: {told}");
    assert_eq!(counters.materialized, 0, "{told}");
}

#[test]
fn in_every_format_it_is_one_kernel() {
    for format in 0..FORMATS.len() {
        let [k, v] = cache(Dtype::Float32, format, 8);
        check(oracle(Dtype::Float32).eager_only(), "mlx", &[queries(Dtype::Float32, 2), k, v], by_mlx);
    }
}

#[test]
fn in_every_way_of_writing_it_is_one_kernel() {
    for (name, way) in WAYS {
        for (m, tokens) in [(1, 1), (1, 37), (5, 16)] {
            let [k, v] = cache(Dtype::Float32, 4, tokens);
            let operands = [queries(Dtype::Float32, m), k, v];
            let oracle =
                |_| if m == 5 { oracle(Dtype::Float32).transformed() } else { oracle(Dtype::Float32).eager_only() };
            check(oracle(Dtype::Float32), name, &operands, way);
            let added = normal(9, &[BATCH, 1, m, tokens]);
            let alibi = normal(9, &[HEADS * REPEATS, 1, tokens]);
            for mask in [causal(m, tokens), added] {
                check(oracle(Dtype::Float32), name, &[&operands[..], &[mask.into()]].concat(), way);
            }
            if name != "groups" {
                check(oracle(Dtype::Float32), name, &[&operands[..], &[alibi.into()]].concat(), way);
            }
        }
    }
}

#[test]
fn in_half_floats_it_is_one_kernel() {
    for dtype in [Dtype::Bfloat16, Dtype::Float16] {
        for (name, way) in WAYS {
            let [k, v] = cache(dtype, 0, 12);
            let operands = [queries(dtype, 3), k, v];
            // Of the gradients MLX rounds each on the way.
            check(oracle(dtype).values_only().eager_only(), name, &operands, way);
            let masked = [&operands[..], &[causal(3, 12).into()]].concat();
            check(oracle(dtype).values_only().eager_only(), name, &masked, way);
        }
    }
}

/// As a cache has them that joins the tokens of each call to those before: nothing of either is built.
#[test]
fn dense_tokens_behind_stored_ones_are_seen_as_well() {
    for (name, way) in WAYS {
        for m in [1, 3] {
            let [k, v] = cache(Dtype::Float32, 4, 16);
            let new = |seed, width| Value::from(normal(seed, &[BATCH, HEADS, m, width]));
            let mask = causal(m, 16 + m).into();
            let operands = [queries(Dtype::Float32, m), k, v, new(3, HEAD), new(4, 96), mask];
            oracle(Dtype::Float32).eager_only().check(name, &operands, move |a| {
                let joined = |stored: &Array, new: &Array| ops::concatenate(&[stored, new], 2);
                Ok(vec![way(&[a[0].clone(), joined(&a[1], &a[3])?, joined(&a[2], &a[4])?, a[5].clone()])?])
            });
        }
    }
}

/// Beyond what a chunk or a task holds; by a mask most of it is hidden.
#[test]
fn thousands_of_tokens_are_right() {
    for (m, tokens) in [(1, 4500), (70, 1200)] {
        let [k, v] = cache(Dtype::Float32, 4, tokens);
        let operands = [queries(Dtype::Float32, m), k, v];
        let last = causal(m, tokens)
            .logical_and(
                causal(m, tokens - 700)
                    .logical_not()
                    .and_then(|_| {
                        Array::from_iter((0..tokens).map(|t| t > tokens / 2), &[1, 1, 1, tokens]).as_dtype(Dtype::Bool)
                    })
                    .expect("a window"),
            )
            .expect("a mask");
        for mask in [None, Some(last)] {
            let operands = [&operands[..], &mask.map(Value::from).into_iter().collect::<Vec<_>>()].concat();
            let dense: Vec<Array> = operands.iter().map(|value| value.dense().expect("dense")).collect();
            let expected = by_mlx(&dense).expect("runs");
            let _deny = Policy::Deny.scope();
            let made = implicit(&operands, |a: Vec<Array>| by_mlx(&a)).expect("runs").dense().expect("dense");
            assert!(relative_error(&made, &expected).expect("floats") < 1e-5);
        }
    }
}

#[test]
fn causal_attention_of_mlx_is_one_kernel() {
    let [k, v] = cache(Dtype::Float32, 4, 20);
    let causal: Way = |a| Ok(scaled_dot_product_attention(&a[0], &a[1], &a[2], SCALE, Named::Causal, None)?);
    check(oracle(Dtype::Float32), "causal", &[queries(Dtype::Float32, 6), k, v], causal);
}

/// What MLX's softmax makes of equal numbers, of minus infinities, and of NaN.
#[test]
fn queries_that_see_nothing_and_queries_that_are_nan_have_what_mlx_gives_them() {
    let [k, v] = cache(Dtype::Float32, 0, 9);
    let dense = [&k, &v].map(|value| value.dense().expect("dense"));
    let q = normal(7, &[BATCH, HEADS * REPEATS, 2, HEAD]);
    let nan =
        ops::select(Array::from_slice(&[true, false], &[2, 1]), Array::from_f32(f32::NAN), &q).expect("some are NaN");
    let nothing = Array::from_slice(&[false; 9], &[1, 9]);
    let first = Array::from_iter((0..18).map(|i| i >= 9), &[2, 9]);
    let infinite = ops::select(&first, Array::from_f32(0.0), Array::from_f32(f32::NEG_INFINITY)).expect("a mask");
    for q in [q, nan] {
        for mask in [None, Some(&nothing), Some(&first), Some(&infinite)] {
            for (name, way) in WAYS {
                let rest = mask.map(Value::from);
                let operands: Vec<Value> = [Value::from(&q), k.clone(), v.clone()].into_iter().chain(rest).collect();
                let plain: Vec<Array> =
                    [q.clone(), dense[0].clone(), dense[1].clone()].into_iter().chain(mask.cloned()).collect();
                let expected = way(&plain).expect("runs");
                let made = implicit(&operands, |a: Vec<Array>| way(&a)).expect("runs").dense().expect("dense");
                for (a, b) in made.as_slice::<f32>().iter().zip(expected.as_slice::<f32>()) {
                    let same = (a.is_nan() && b.is_nan()) || (a - b).abs() < 1e-4;
                    assert!(same, "{name} {:?}: {a} and {b}", mask.map(Aval::from));
                }
            }
        }
    }
}

#[test]
fn scores_and_weights_that_are_wanted_are_computed_by_the_codes() {
    let [k, v] = cache(Dtype::Float32, 4, 11);
    let scores: Way = |a| Ok(a[0].matmul(repeated(&a[1])?.swap_axes(-1, -2)?)?);
    let all: Way = |a| {
        let scores = a[0].matmul(repeated(&a[1])?.swap_axes(-1, -2)?)?;
        let scores = scores.multiply(Array::from_f32(SCALE))?.add(Array::from_f32(1.0))?;
        let weights = ops::softmax_axis(&scores, -1, None)?;
        let most = weights.max_axis(-1, true)?;
        Ok(weights.matmul(repeated(&a[2])?)?.add(most)?.add(scores.exp()?.sum_axis(-1, true)?)?)
    };
    let dense_values: Way = |a| {
        let weights = ops::softmax_axis(a[0].matmul(repeated(&a[1])?.swap_axes(-1, -2)?)?, -1, None)?;
        Ok(weights.matmul(ops::broadcast_to(&a[2], &[BATCH, HEADS * REPEATS, 11, 5])?)?)
    };
    let dense_weights: Way = |a| Ok(ops::softmax_axis(&a[0], -1, None)?.matmul(repeated(&a[1])?)?);
    let transposed_values: Way = |a| {
        let weights = ops::softmax_axis(a[0].matmul(repeated(&a[1])?.swap_axes(-1, -2)?)?, -1, None)?;
        Ok(weights.matmul(repeated(&a[2])?.swap_axes(-1, -2)?)?)
    };
    let q = queries(Dtype::Float32, 3);
    let weights = Value::from(normal(3, &[BATCH, HEADS * REPEATS, 3, 11]));
    let square = (FORMATS[0].of)(&normal(2, &[BATCH, HEADS, 32, 32])).expect("packs");
    let tall = (FORMATS[0].of)(&normal(2, &[BATCH, HEADS, 32, HEAD])).expect("packs");
    for (name, operands, way) in [
        ("scores", vec![q.clone(), k.clone()], scores),
        ("all", vec![q.clone(), k.clone(), v.clone()], all),
        ("dense values", vec![q.clone(), k.clone(), normal(4, &[BATCH, 1, 11, 5]).into()], dense_values),
        ("dense weights", vec![weights, v.clone()], dense_weights),
        ("transposed values", vec![q.clone(), tall, square], transposed_values),
    ] {
        oracle(Dtype::Float32).eager_only().check(name, &operands, move |a| Ok(vec![way(&a)?]));
        let _deny = Policy::Deny.scope();
        let (made, counters) = Counters::during(|| implicit(&operands, |a: Vec<Array>| way(&a)));
        assert!(made.expect("runs").as_dense().is_some(), "{name}");
        assert_eq!(counters.materialized, 0, "{name}");
    }
}

/// A part of the tokens, some heads, one head, heads in another order.
#[test]
fn parts_of_keys_and_values_are_views() {
    let [k, v] = cache(Dtype::Float32, 4, 16);
    let ways: [(&str, Way); 5] = [
        ("tokens", |a| {
            let part = |x: &Array| Ok::<_, Error>(x.try_index((.., .., 4..9))?);
            by_mlx(&[a[0].clone(), part(&a[1])?, part(&a[2])?])
        }),
        ("heads", |a| {
            let part = |x: &Array| Ok::<_, Error>(repeated(x)?.try_index((.., 1..5))?);
            let scores = a[0].try_index((.., 1..5))?.matmul(part(&a[1])?.swap_axes(-1, -2)?)?;
            weighted(&scores, None, &part(&a[2])?)
        }),
        ("one head", |a| {
            let part = |x: &Array| Ok::<_, Error>(repeated(x)?.try_index((1..2, 4..5))?.squeeze_axes(&[0, 1])?);
            let scores = a[0].try_index((0, 0))?.matmul(part(&a[1])?.t())?;
            weighted(&scores, None, &part(&a[2])?)
        }),
        ("heads before batches", |a| {
            let transposed = |x: &Array| Ok::<_, Error>(x.transpose_axes(&[1, 0, 2, 3])?);
            let (k, v) = (transposed(&repeated(&a[1])?)?, transposed(&repeated(&a[2])?)?);
            weighted(&transposed(&a[0])?.matmul(k.swap_axes(2, 3)?)?, None, &v)
        }),
        ("left", |a| {
            let (k, v) = (repeated(&a[1])?, repeated(&a[2])?);
            let scores = k.matmul(a[0].swap_axes(-1, -2)?)?;
            Ok(v.swap_axes(-1, -2)?.matmul(ops::softmax_axis(scores, -2, None)?)?)
        }),
    ];
    for (name, way) in ways {
        let operands = [queries(Dtype::Float32, 3), k.clone(), v.clone()];
        oracle(Dtype::Float32).eager_only().check(name, &operands, move |a| Ok(vec![way(&a)?]));
        let _deny = Policy::Deny.scope();
        let (made, counters) = Counters::during(|| implicit(operands.to_vec(), |a: Vec<Array>| way(&a)));
        made.expect("runs");
        assert_eq!(counters.materialized, 0, "{name}");
    }
}

#[test]
fn an_explanation_shows_what_becomes_of_scores() {
    let operands =
        [queries(Dtype::Float32, 1), cache(Dtype::Float32, 4, 16)[0].clone(), cache(Dtype::Float32, 4, 16)[0].clone()];
    let told = explain(operands.to_vec(), |a: Vec<Array>| by_mlx(&a)).expect("runs").to_string();
    let told: String =
        told.lines().map(|line| line.split("   crates/").next().unwrap_or(line).to_owned() + "\n").collect();
    expect![[r#"
        { lambda a:f32[2,6,1,64] b:Affine(f32[2,2,16,64]) c:Affine(f32[2,2,16,64]) .
            d:f32[2,6,1,64]             = multiply f32[2,6,1,64] a
            e:f32[2,2,3,1,64]           = unflatten[axis=1,shape=(2,3)] d
            f:Affine(f32[2,2,1,16,64])  = expand_dims[axes=(2)] b              packed_reshape
            g:Batched(f32[2,2,1,64,16]) = transpose[axes=(0,1,2,4,3)] f        linear_transpose
            h:Batched(f32[2,2,3,64,16]) = broadcast[shape=(2,2,3,64,16)] g     linear_broadcast
            i:Scores(f32[2,2,3,1,16])   = matmul e h                           scores_of
            j:Scores(f32[2,2,3,1,16])   = softmax[precise=true] i              scores_softmax
            k:Affine(f32[2,2,1,16,64])  = expand_dims[axes=(2)] c              packed_reshape
            l:Batched(f32[2,2,3,16,64]) = broadcast[shape=(2,2,3,16,64)] k     linear_broadcast
            m:f32[2,2,3,1,64]           = matmul j l                           scores_matmul
            n:f32[2,6,1,64]             = flatten[start_axis=1,end_axis=2] m
            in (n) }   11 ops, 8 handled, 0 materialized (0 B)
    "#]]
    .assert_eq(&told);
}

/// What is done to weights with a factor beside a product, and what is not a number.
#[test]
fn scaled_weights_that_are_wanted_are_computed() {
    let [k, _] = cache(Dtype::Float32, 4, 11);
    let ways: [(&str, Way); 3] = [
        ("weights", |a| {
            let scores = a[0].matmul(repeated(&a[1])?.swap_axes(-1, -2)?)?;
            Ok(ops::softmax_axis(&scores, -1, None)?.multiply(Array::from_f32(0.5))?)
        }),
        ("of scores with a mask", |a| {
            let scores = a[0].matmul(repeated(&a[1])?.swap_axes(-1, -2)?)?.add(Array::from_f32(2.0))?;
            Ok(scores.multiply(Array::from_f32(0.5))?.divide(Array::from_f32(3.0))?)
        }),
        ("a row of factors", |a| {
            let scores = a[0].matmul(repeated(&a[1])?.swap_axes(-1, -2)?)?;
            Ok(ops::softmax_axis(&scores, -1, None)?.multiply(ops::arange::<_, f32>(None, 11, None)?)?)
        }),
    ];
    let operands = [queries(Dtype::Float32, 3), k];
    for (name, way) in ways {
        oracle(Dtype::Float32).check(name, &operands, move |a| Ok(vec![way(&a)?]));
    }
}
