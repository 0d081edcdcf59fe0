//! `Sharded` against the whole array: the conformance suite on every rank, and what the suite does not reach.

use mlx_rs::{Array, Dtype, fast, ops, random};
use tacit_arrays::format::Affine;
use tacit_arrays::{AffineArray, Lora, Nf4Array};
use tacit_conformance::oracle::Oracle;
use tacit_conformance::{Subject, close};
use tacit_core::transform::grad;
use tacit_core::{Policy, Result, Value, implicit};
use tacit_distributed::{Group, Sharded};

use crate::case::Case;

pub(crate) const CASES: &[Case] = &[
    Case::new("handlers", |group| each(group, |subject| tacit_conformance::handlers(subject).expect_clean())),
    Case::new("gradients", |group| each(group, |subject| tacit_conformance::gradients(subject).expect_clean())),
    Case::new("captures", |group| each(group, |subject| tacit_conformance::captures(subject).expect_clean())),
    Case::new("failures", |group| each(group, |subject| tacit_conformance::failures(subject).expect_clean())),
    Case::new("structure", |group| each(group, |subject| tacit_conformance::structure(subject).expect_clean())),
    Case::new("surface", |group| each(group, |subject| tacit_conformance::surface(subject).expect_clean())),
    Case::new("coverage", coverage),
    Case::new("attention", attention),
    Case::new("rotation_and_norms", rotation_and_norms),
    Case::new("caches", caches),
    Case::new("experts", experts),
    Case::new("vocabulary", vocabulary),
    Case::new("stored", stored),
    Case::new("low_rank", low_rank),
];

/// Handlers of calls that the suite does not have; the cases below try them.
const ELSEWHERE: [&str; 10] = [
    "sharded_gather_mm",
    "sharded_attention",
    "sharded_rope",
    "sharded_rms_norm",
    "sharded_layer_norm",
    "sharded_copy",
    "sharded_slice_update_of",
    "sharded_dynamic_update_of",
    "sharded_concatenate_behind",
    "sharded_pad",
];

/// The array split along either of its last axes.
fn subjects(group: &Group) -> Vec<Subject> {
    let subject = |name, axis: i32| {
        let group = group.clone();
        Subject::new(name, move |x: &Array| Sharded::split(x, axis, &group))
            .over_ranks(over_ranks)
            .elsewhere(&ELSEWHERE)
    };
    vec![subject("sharded_rows", -2), subject("sharded_columns", -1)]
}

/// The sum of a number over the ranks.
fn over_ranks(own: f64) -> f64 {
    let sum = || -> Result<f64> {
        let parts = Array::from_slice(&[own as f32], &[1]);
        Ok(f64::from(Group::init()?.all_sum(&parts)?.try_item::<f32>()?))
    };
    sum().expect("a sum")
}

fn each(group: &Group, check: impl Fn(&Subject)) -> Result<()> {
    subjects(group).iter().for_each(check);
    Ok(())
}

fn coverage(group: &Group) -> Result<()> {
    tacit_conformance::coverage(&subjects(group)).expect_clean();
    Ok(())
}

/// Without a gather of the whole; and transformed, where a result that is split is gathered.
fn check(name: &str, operands: &[Value], f: impl Fn(Vec<Array>) -> Result<Vec<Array>> + Clone + 'static) {
    let oracle = Oracle::new(2e-5).over_ranks(Some(over_ranks));
    oracle.check(name, operands, f.clone());
    oracle.transformed().allowing().check(name, operands, f);
}

fn normal(seed: u64, shape: &[i32]) -> Result<Array> {
    Ok(random::normal::<f32>(shape, None, None, Some(&random::key(seed)?))?)
}

fn split(seed: u64, shape: &[i32], axis: i32, group: &Group) -> Result<Value> {
    Ok(Sharded::split(normal(seed, shape)?, axis, group)?.into())
}

fn attention(group: &Group) -> Result<()> {
    for (axis, heads) in [(1, 4), (1, 8), (0, 4)] {
        let q = split(1, &[4, 8, 3, 16], axis, group)?;
        let [k, v] = [split(2, &[4, heads, 5, 16], axis, group)?, split(3, &[4, heads, 5, 16], axis, group)?];
        let attend = |mask: bool| {
            move |a: Vec<Array>| -> Result<Vec<Array>> {
                let mask = if mask { Some((&a[3]).into()) } else { None };
                Ok(vec![fast::scaled_dot_product_attention(&a[0], &a[1], &a[2], 0.25, mask, None)?])
            }
        };
        let plain = [q.clone(), k.clone(), v.clone()];
        check("attention", &plain, attend(false));
        for shape in [&[3, 5][..], &[4, 1, 3, 5], &[1, 8, 3, 5], &[4, 8, 3, 5]] {
            let masked = [&plain[..], &[normal(4, shape)?.into()]].concat();
            check("masked attention", &masked, attend(true));
        }
    }
    Ok(())
}

fn rotation_and_norms(group: &Group) -> Result<()> {
    let x = split(1, &[2, 4, 3, 16], 1, group)?;
    check("rope", &[x.clone()], |a| Ok(vec![fast::rope(&a[0], 16, false, 10_000.0, 1.0, 2, None)?]));
    let weights: [Value; 2] = [normal(2, &[16])?.into(), normal(3, &[16])?.into()];
    check("rms_norm", &[x.clone(), weights[0].clone()], |a| Ok(vec![fast::rms_norm(&a[0], Some(&a[1]), 1e-5)?]));
    check("layer_norm", &[x, weights[0].clone(), weights[1].clone()], |a| {
        Ok(vec![fast::layer_norm(&a[0], &a[1], &a[2], 1e-5)?])
    });
    Ok(())
}

fn caches(group: &Group) -> Result<()> {
    let new = split(1, &[1, 4, 2, 8], 1, group)?;
    check("write into a new cache", &[new.clone()], |a| {
        let start = Array::from_slice(&[3i32], &[1]);
        let cache = ops::zeros::<f32>(&[1, 4, 8, 8])?;
        let cache = tacit_core::ops::dynamic_slice_update(&cache, &a[0], &start, &[2])?;
        let next = tacit_core::ops::dynamic_slice_update(&cache, &a[0], &Array::from_slice(&[5i32], &[1]), &[2])?;
        Ok(vec![tacit_core::ops::dynamic_slice(&next, &start, &[2], &[1, 4, 4, 8])?])
    });
    check("grow an empty cache", &[new.clone()], |a| {
        let empty = ops::zeros::<f32>(&[1, 4, 1, 8])?;
        let first = ops::concatenate(&[&empty, &a[0]], 2)?;
        Ok(vec![
            ops::concatenate(&[&first, &a[0]], 2)?,
            ops::pad(&a[0], &[(0, 0), (0, 0), (1, 2), (0, 0)], None, None)?,
        ])
    });
    check("write at a place", &[new], |a| {
        use mlx_rs::ops::indexing::TryIndexMutOp;
        let mut cache = ops::zeros::<f32>(&[1, 4, 8, 8])?;
        cache.try_index_mut((.., .., 2..4, ..), &a[0])?;
        Ok(vec![cache])
    });
    Ok(())
}

fn experts(group: &Group) -> Result<()> {
    for axis in 0..3 {
        let w = split(1, &[8, 16, 4], axis, group)?;
        let x: Value = normal(2, &[5, 1, 16])?.into();
        check("experts", &[x, w], |a| {
            let chosen = Array::from_slice(&[7u32, 0, 3, 3, 4], &[5]);
            Ok(vec![ops::gather_mm(&a[0], &a[1], None, &chosen, None)?])
        });
    }
    Ok(())
}

/// Embeddings and the cross-entropy of logits whose vocabulary is split.
fn vocabulary(group: &Group) -> Result<()> {
    for axis in [0, 1] {
        let table = split(1, &[16, 8], axis, group)?;
        check("embedding and loss", &[table.clone()], |a| {
            let tokens = Array::from_slice(&[3i32, 15, 0, 8, 3, 7], &[2, 3]);
            let x = a[0].take_axis(&tokens, 0)?;
            let logits = x.matmul(a[0].t())?;
            let own = logits.take_along_axis(tokens.expand_dims(-1)?, -1)?.squeeze_axes(&[-1])?;
            Ok(vec![logits.logsumexp_axis(-1, false)?.subtract(own)?.mean(None)?])
        });
        Oracle::new(0.0).values_only().check("greedy", &[table], |a| {
            let x = ops::ones::<f32>(&[2, 8])?;
            Ok(vec![ops::indexing::argmax_axis(x.matmul(a[0].t())?, -1, false)?.as_dtype(Dtype::Float32)?])
        });
    }
    Ok(())
}

/// Stored and structured parts: products, and the gradients of what is split and of what every rank has.
fn stored(group: &Group) -> Result<()> {
    for axis in [0, 1] {
        let dense = normal(1, &[64, 128])?;
        let nf4 = Value::from(Nf4Array::quantize(&dense, 32)?);
        let affine = Value::from(AffineArray::quantize(&dense, Affine { bits: 4, group: 128 })?);
        let lora = Value::from(Lora::new(nf4.clone(), normal(2, &[4, 128])?, normal(3, &[64, 4])?, 0.5)?);
        let aware = tacit_arrays::ste(|x: &Array| Nf4Array::quantize(x, 32))(&dense)?;
        for (name, whole) in [("nf4", nf4), ("affine", affine), ("lora", lora), ("straight-through", aware)] {
            let w = Value::from(Sharded::split(whole.clone(), axis, group)?);
            let _deny = Policy::Deny.scope();
            let x = normal(4, &[3, 128])?;
            let product = |x: Array, w: Array| -> Result<Array> { Ok(x.matmul(w.t())?) };
            let expected = implicit((&x, &whole), |(x, w)| product(x, w))?.dense()?;
            let found = implicit((&x, &w), |(x, w)| product(x, w))?;
            let found = match found.downcast::<Sharded>() {
                Some(split) => group.all_gather(&split.part().dense()?, -1)?,
                None => found.dense()?,
            };
            close(&found, &expected, 2e-5).unwrap_or_else(|error| panic!("{name} along axis {axis}: {error}"));
        }
    }
    Ok(())
}

/// A low-rank sum trains as it does in one process: the factor that every rank has stays the same on all of them.
fn low_rank(group: &Group) -> Result<()> {
    for axis in [0, 1] {
        let base = Value::from(Nf4Array::quantize(&normal(1, &[64, 128])?, 32)?);
        let x = normal(4, &[3, 128])?;
        let whole = Lora::new(base, normal(2, &[4, 128])?, normal(3, &[64, 4])?, 0.5)?;
        let split = Sharded::split(whole.clone(), axis, group)?;
        let gradient = |w: Value| {
            let x = x.clone();
            grad(move |w: Array| -> Result<Array> { Ok(x.matmul(w.t())?.square()?.sum(None)?) })(w)
        };
        let (expected, found) = (gradient(whole.into())?, gradient(split.into())?);
        for factor in ["a", "b"] {
            let expected = expected.child(factor).array()?;
            let mut found = found.child("part").child(factor).array()?.clone();
            if let Some(axis) = (0..2).find(|&axis| expected.dim(axis) != found.dim(axis)) {
                found = group.all_gather(&found, axis)?;
            }
            close(&found, expected, 2e-5).unwrap_or_else(|error| panic!("{factor}, along axis {axis}: {error}"));
        }
    }
    Ok(())
}
