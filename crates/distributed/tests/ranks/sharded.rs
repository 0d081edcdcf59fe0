//! `Sharded` against the whole array: the conformance suite on every rank, and what the suite does not reach.

mod cached;

use std::slice::from_ref;
use std::time::Duration;

use mlx_rs::transforms::compile::compile;
use mlx_rs::{Array, Dtype, complex64, fast, nn, ops};
use tacit_arrays::format::Affine;
use tacit_arrays::{AffineArray, Lora, Nf4Array};
use tacit_conformance::oracle::Oracle;
use tacit_conformance::{Subject, close};
use tacit_core::transform::grad;
use tacit_core::{Policy, Result, Value, implicit};
use tacit_distributed::{FullySharded, Group, Shard, Sharded, Split};
use tacit_nn::Model;

use self::cached::{caches, decoding};
use crate::case::Case;
use crate::checkpoints::normal;

pub(crate) const CASES: &[Case] = &[
    // These two are of thousands of collectives, for each of which four ranks on two cores take turns.
    Case::new("handlers", |group| each(group, |subject| tacit_conformance::handlers(subject).expect_clean()))
        .sizes(&[2])
        .within(Duration::from_mins(4)),
    Case::new("surface", |group| each(group, |subject| tacit_conformance::surface(subject).expect_clean())).sizes(&[2]),
    Case::new("gradients", |group| each(group, |subject| tacit_conformance::gradients(subject).expect_clean())),
    Case::new("captures", |group| each(group, |subject| tacit_conformance::captures(subject).expect_clean())),
    Case::new("failures", |group| each(group, |subject| tacit_conformance::failures(subject).expect_clean())),
    Case::new("structure", |group| each(group, |subject| tacit_conformance::structure(subject).expect_clean())),
    Case::new("coverage", coverage),
    Case::new("empty_and_whole", empty_and_whole),
    Case::new("attention", attention),
    Case::new("rotation_and_norms", rotation_and_norms),
    Case::new("caches", caches),
    Case::new("experts", experts),
    Case::new("extremes", extremes),
    Case::new("negative_zeros", negative_zeros),
    Case::new("products_that_alpha_brings_back", products_that_alpha_brings_back),
    Case::new("vocabulary", vocabulary),
    Case::new("parts_of_parts_are_refused", parts_of_parts_are_refused),
    Case::new("stored", stored),
    Case::new("low_rank", low_rank),
    Case::new("split_inside_a_gradient", split_inside_a_gradient),
    Case::new("decoding", decoding),
    Case::new("collectives_of_a_step", collectives_of_a_step),
    Case::new("activations", activations),
];

/// Handlers of calls that the suite does not have; the cases below try them, and those of functions without shapes.
const ELSEWHERE: [&str; 14] = [
    "sharded_broadcast_axes",
    "sharded_broadcast_shape",
    "sharded_compiled",
    "sharded_compiled_second",
    "sharded_gather_mm",
    "sharded_attention",
    "sharded_rope",
    "sharded_rms_norm",
    "sharded_layer_norm",
    "sharded_slice_update_of",
    "sharded_dynamic_update_of",
    "sharded_scatter_axis_of",
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
        Ok(f64::from(Group::init()?.all_sum(&parts)?.item_exact::<f32>()))
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

fn split(seed: u64, shape: &[i32], axis: i32, group: &Group) -> Result<Value> {
    Ok(Sharded::split(normal(seed, shape)?, axis, group)?.into())
}

/// Nothing has a part on every rank, beside what is replicated as well; a bias that is added to a sum over ranks has none.
fn empty_and_whole(group: &Group) -> Result<()> {
    let nothing = ops::zeros::<f32>(&[0, 4])?;
    let operands = [Sharded::from_part(nothing.clone(), 0, group)?.into(), nothing.into()];
    Oracle::new(0.0).values_only().check("a sum of nothing", &operands, |a| Ok(vec![a[0].add(&a[1])?]));
    let model = Model::new(nn::Linear::new(8, 4)?)?.shard("*", Split::Rows(group))?;
    assert!(model.get("weight")?.downcast::<Sharded>().is_some() && model.get("bias")?.as_dense().is_some());
    // Other cases expect that ranks draw differently until they split a model themselves.
    group.seed(1)
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
    check("rope", from_ref(&x), |a| Ok(vec![fast::rope(&a[0], 16, false, 10_000.0, 1.0, 2, None)?]));
    let weights: [Value; 2] = [normal(2, &[16])?.into(), normal(3, &[16])?.into()];
    check("rms_norm", &[x.clone(), weights[0].clone()], |a| Ok(vec![fast::rms_norm(&a[0], Some(&a[1]), 1e-5)?]));
    check("layer_norm", &[x, weights[0].clone(), weights[1].clone()], |a| {
        Ok(vec![fast::layer_norm(&a[0], &a[1], &a[2], 1e-5)?])
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

/// A product beyond the range of f16 does not make the sum infinite, whatever is split.
fn products_that_alpha_brings_back(group: &Group) -> Result<()> {
    let of = |number: f32, shape: &[i32]| ops::full::<f32>(shape, Array::from_f32(number))?.as_dtype(Dtype::Float16);
    let (a, b, c) = (of(100.0, &[4, 8])?, of(200.0, &[8, 4])?, of(1.0, &[4, 4])?);
    let split = |whole: &Array, axis| -> Result<Value> { Ok(Sharded::split(whole, axis, group)?.into()) };
    let operands = [
        [split(&a, 0)?, (&b).into(), (&c).into()],
        [split(&a, 1)?, split(&b, 0)?, (&c).into()],
        [(&a).into(), split(&b, 1)?, (&c).into()],
        [(&a).into(), (&b).into(), split(&c, 0)?],
    ];
    for (at, [a, b, c]) in operands.into_iter().enumerate() {
        let sum = implicit((a, b, c), |(a, b, c)| ops::addmm(&c, &a, &b, 1e-2, 2.0))?.dense()?;
        let expected = ops::full::<f32>(&[4, 4], Array::from_f32(1_602.0))?.as_dtype(Dtype::Float16)?;
        assert!(sum.eq(&expected)?.all(None)?.item_exact::<bool>(), "{at}: {sum}");
    }
    Ok(())
}

/// The greatest and least number is NaN where that of any rank is NaN; its place has no gradient.
fn extremes(group: &Group) -> Result<()> {
    for at in [0, 7] {
        let numbers: Vec<f32> = (0..8).map(|i| if i == at { f32::NAN } else { i as f32 }).collect();
        let x = Sharded::split(Array::from_slice(&numbers, &[1, 8]), 1, group)?;
        let greatest = implicit(x.clone(), |x| x.max_axis(1, false))?.dense()?.item_exact::<f32>();
        let least = implicit(x, |x| x.min_axis(1, false))?.dense()?.item_exact::<f32>();
        assert!(greatest.is_nan() && least.is_nan(), "{at}: {greatest} {least}");
    }
    // The place is MLX's, which passes over NaN before 0.32.3 but where a row begins with it.
    for (at, least) in (0..8).flat_map(|at| [(at, false), (at, true)]) {
        let numbers = [1.0, 5.0, 2.0, 0.0, 3.0, 7.0, -1.0, 4.0];
        let numbers: Vec<f32> = (0..8).map(|i| if i == at { f32::NAN } else { numbers[i] }).collect();
        let x = Array::from_slice(&numbers, &[1, 8]);
        let place = |x: Array| -> Result<Array> {
            Ok(if least { ops::indexing::argmin_axis(x, 1, false)? } else { ops::indexing::argmax_axis(x, 1, false)? })
        };
        let found = implicit(Sharded::split(&x, 1, group)?, place)?.dense()?;
        assert_eq!(found.item_exact::<u32>(), place(x)?.item_exact::<u32>(), "NaN at {at}, least: {least}");
    }
    // An infinity has the gradient of every other extreme.
    for numbers in [[1.0, f32::INFINITY, 3.0, f32::INFINITY], [f32::NEG_INFINITY; 4]] {
        let x = Array::from_slice(&numbers, &[1, 4]);
        for dtype in [Dtype::Float32, Dtype::Float16] {
            let x = x.as_dtype(dtype)?;
            let greatest = |x: Array| -> Result<Array> { Ok(x.max_axis(1, false)?.sum(None)?) };
            let expected = grad(greatest).call(&x)?;
            let found = grad(greatest).call(Value::from(Sharded::split(&x, 1, group)?))?;
            let found = group.all_gather(found.child("part").array()?, 1)?;
            assert!(found.eq(expected.array()?)?.all(None)?.item_exact::<bool>(), "{found} of {x}");
        }
    }
    let numbers = [(1.0, 1.0), (3.0, 2.0), (-4.0, 0.0), (3.0, 2.0)].map(|(re, im)| complex64::new(re, im));
    let x = Array::from_slice(&numbers, &[1, 4]);
    let greatest = |x: Array| -> Result<Array> { Ok(ops::real(x.max_axis(1, false)?)?.sum(None)?) };
    let expected = grad(greatest).call(&x)?;
    let found = grad(greatest).call(Value::from(Sharded::split(&x, 1, group)?))?;
    let found = group.all_gather(found.child("part").array()?, 1)?;
    assert!(found.eq(expected.array()?)?.all(None)?.item_exact::<bool>(), "{found} of {x}");
    check("places", &[split(1, &[4, 8], 1, group)?], |a| {
        let places = ops::indexing::argmax_axis(&a[0], 1, false)?.as_dtype(Dtype::Float32)?;
        Ok(vec![a[0].sum_axis(1, false)?.multiply(places)?])
    });
    Ok(())
}

/// What is only moved or chosen keeps its bits, also those of a negative zero, which equals the positive one.
fn negative_zeros(group: &Group) -> Result<()> {
    let _allow = Policy::Allow.scope();
    let is_negative = |name: &str, found: Value| -> Result<()> {
        let found = found.dense()?.contiguous()?;
        assert!(found.as_slice::<f32>().iter().all(|x| x.is_sign_negative()), "{name}: {found}");
        Ok(())
    };
    let zeros = ops::full::<f32>(&[4, 8], Array::from_f32(-0.0))?;
    let rows = Array::from_slice(&[3u32, 0], &[2]);
    for axis in [0, 1] {
        let x = Sharded::split(&zeros, axis, group)?;
        is_negative("rows", implicit(x.clone(), |x| x.take_axis(&rows, 0))?)?;
        let places = rows.reshape(if axis == 0 { &[2, 1] } else { &[1, 2] })?;
        let places = ops::broadcast_to(places, if axis == 0 { &[2, 8] } else { &[4, 2] })?;
        is_negative("elements", implicit(x.clone(), |x| x.take_along_axis(&places, axis))?)?;
        is_negative("the greatest", implicit(x.clone(), |x| x.max_axis(axis, false))?)?;
        is_negative("the least", implicit(x, |x| x.min_axis(axis, false))?)?;
    }
    Ok(())
}

/// Embeddings and the cross-entropy of logits whose vocabulary is split.
fn vocabulary(group: &Group) -> Result<()> {
    for axis in [0, 1] {
        let table = split(1, &[16, 8], axis, group)?;
        check("embedding and loss", from_ref(&table), |a| {
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

/// Whatever lies in parts, or has something inside that does, is split no second time, and says so.
fn parts_of_parts_are_refused(group: &Group) -> Result<()> {
    let whole = ops::arange::<_, f32>(None, 16, None)?.reshape(&[4, 4])?;
    let factor = || ops::zeros::<f32>(&[4, 4]);
    let columns = Value::from(Sharded::split(&whole, 1, group)?);
    let fully = Value::from(FullySharded::new(&whole, group)?);
    let adapted = Value::from(Lora::new(columns.clone(), factor()?, factor()?, 1.0)?);
    for value in [columns, fully, adapted] {
        let refused = [
            FullySharded::new(value.clone(), group).err(),
            Sharded::split(value.clone(), 0, group).err(),
            Sharded::from_part(value.clone(), 0, group).err(),
        ];
        for error in refused {
            let error = error.unwrap_or_else(|| panic!("{value} is split twice")).to_string();
            let words = "split over the ranks already\nhelp: split the whole value, once";
            assert!(error.ends_with(words), "{error}");
        }
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
        let aware = tacit_arrays::ste(&dense, |x| Nf4Array::quantize(x, 32))?;
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
            grad(move |w: Array| -> Result<Array> { Ok(x.matmul(w.t())?.square()?.sum(None)?) }).call(w)
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

/// What is split inside the function is replicated outside: its gradient is the whole one, on every rank.
fn split_inside_a_gradient(group: &Group) -> Result<()> {
    for axis in [0, 1] {
        let x = normal(1, &[4, 8])?;
        let own = group.clone();
        let found = grad(move |x: Array| -> Result<Array> {
            let split = Sharded::split(&x, axis, &own)?;
            implicit(split, |x| x.square()?.sum(None))?.dense()
        })
        .call(&x)?;
        close(found.array()?, x.multiply(Array::from_f32(2.0))?, 1e-6)
            .unwrap_or_else(|error| panic!("along axis {axis}: {error}"));
    }
    // A factor that every rank has is summed over the ranks once, and so is one that is cut.
    let base = Value::from(Nf4Array::quantize(&normal(1, &[64, 128])?, 32)?);
    let (x, a, b) = (normal(4, &[3, 128])?, normal(2, &[4, 128])?, normal(3, &[64, 4])?);
    let _allow = Policy::Allow.scope();
    for axis in [0, 1] {
        let gradients = |is_split: bool| {
            let (x, base, own) = (x.clone(), base.clone(), group.clone());
            grad(move |(a, b): (Array, Array)| -> Result<Array> {
                let whole = Value::from(Lora::new(base.clone(), a, b, 0.5)?);
                let w: Value = if is_split { Sharded::split(whole, axis, &own)?.into() } else { whole };
                implicit((&x, w), |(x, w)| x.matmul(w.t())?.square()?.sum(None))?.dense()
            })
            .call((a.clone(), b.clone()))
        };
        let (found, expected) = (gradients(true)?, gradients(false)?);
        for (factor, found, expected) in [("a", &found.0, &expected.0), ("b", &found.1, &expected.1)] {
            close(found.array()?, expected.array()?, 2e-5)
                .unwrap_or_else(|error| panic!("{factor}, along axis {axis}: {error}"));
        }
    }
    Ok(())
}

/// A block of two halves costs one sum each in the forward pass, and one each in the backward pass.
fn collectives_of_a_step(group: &Group) -> Result<()> {
    let columns = |seed| split(seed, &[64, 64], 0, group);
    let weights =
        vec![columns(1)?, columns(2)?, columns(3)?, split(4, &[64, 64], 1, group)?, split(5, &[64, 64], 1, group)?];
    let x = normal(6, &[4, 64])?;
    let half = |x: &Array, a: &Array, b: &Array, c: &Array| -> Result<Array> {
        Ok(x.matmul(a.t())?.multiply(mlx_rs::nn::silu(x.matmul(b.t())?)?)?.matmul(c.t())?.add(x)?)
    };
    let mut step = grad(move |(w, x): (Vec<Array>, Array)| -> Result<Array> {
        let y = half(&x, &w[0], &w[1], &w[3])?;
        Ok(half(&y, &w[0], &w[2], &w[4])?.square()?.sum(None)?)
    });
    let before = group.traffic();
    let (by_weight, by_x) = step.call((weights, x))?;
    for gradient in &by_weight {
        gradient.child("part").array()?.eval()?;
    }
    by_x.array()?.eval()?;
    let after = group.traffic();
    assert_eq!(after.collectives - before.collectives, 4);
    assert_eq!(after.bytes - before.bytes, 4 * 4 * 64 * 4);
    Ok(())
}

/// Activations that mlx-rs compiles, of parts.
fn activations(group: &Group) -> Result<()> {
    for axis in [-1, -2] {
        let x = split(1, &[8, 16], axis, group)?;
        check("gelu", from_ref(&x), |a| Ok(vec![mlx_rs::nn::gelu(&a[0])?]));
        check("silu", from_ref(&x), |a| Ok(vec![mlx_rs::nn::silu(&a[0])?]));
        check("softplus", from_ref(&x), |a| Ok(vec![mlx_rs::nn::softplus(&a[0])?]));
        let dense: Value = normal(2, &[8, 16])?.into();
        check("one of two is split", &[dense, x.clone()], |a| {
            let mut compiled = compile(|(a, b): (&Array, &Array)| a.exp()?.multiply(b)?.add(b), false);
            Ok(vec![compiled((&a[0], &a[1]))?])
        });
        check("gelu_approximate", &[x], |a| Ok(vec![mlx_rs::nn::gelu_approximate(&a[0])?]));
    }
    Ok(())
}
