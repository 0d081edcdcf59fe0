//! Half types over long axes: where the dense product is rounded once, so is what stands for it.

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{F16 as F16_FORMAT, Int8};
use tacit_arrays::kernel::hadamard;
use tacit_arrays::{
    AsStored, Concat, Constant, Diagonal, F16Array, Int8Array, Lora, LoraSet, LowRank, Rotated, ScaledChannels,
    Sparse24, Stacked,
};
use tacit_conformance::oracle::floats;
use tacit_core::{Policy, Result, Value, implicit, transform};

use crate::operands::{every, nf4, normal_of};

pub(crate) const HALVES: [Dtype; 2] = [Dtype::Bfloat16, Dtype::Float16];
const LONG: i32 = 1000;

pub(crate) fn ones(dtype: Dtype, shape: &[i32]) -> Array {
    full(dtype, shape, 1.0)
}

pub(crate) fn full(dtype: Dtype, shape: &[i32], value: f32) -> Array {
    ops::full::<f32>(shape, Array::from_f32(value)).and_then(|array| array.as_dtype(dtype)).expect("a float type")
}

/// `f` of the operands under `Policy::Deny`: every element must be `expected`.
#[track_caller]
pub(crate) fn check<const N: usize>(operands: [Value; N], expected: f32, f: impl Fn([Array; N]) -> Result<Array>) {
    let _deny = Policy::Deny.scope();
    let names: Vec<String> = operands.iter().map(ToString::to_string).collect();
    let made = implicit(operands, f).and_then(|made| made.dense()).expect("is handled");
    let found = floats(&made).expect("floats");
    assert!(
        found.iter().all(|found| found.to_bits() == expected.to_bits()),
        "{}: {} is not {expected}",
        names.join(", "),
        found[0]
    );
}

fn times([x, w]: [Array; 2]) -> Result<Array> {
    Ok(x.matmul(w)?)
}

#[test]
fn a_product_with_a_constant_counts_all_rows() {
    for dtype in HALVES {
        let of = |shape: &[i32]| Value::from(Constant::ones(shape, dtype).expect("ones"));
        check([ones(dtype, &[1, LONG]).into(), of(&[LONG, 4])], 1000.0, times);
        check([of(&[4, LONG]), ones(dtype, &[LONG, 1]).into()], 1000.0, times);
        check([of(&[4, LONG]), of(&[LONG, 2])], 1000.0, times);
        check([nf4(&ones(dtype, &[4, 1024]), 64), of(&[1024, 3])], 1024.0, times);
        check([of(&[3, 1024]), nf4(&ones(dtype, &[1024, 4]), 64)], 1024.0, times);
    }
}

#[test]
fn the_gradient_of_a_product_with_a_constant_counts_all_columns() {
    for dtype in HALVES {
        let w = Value::from(Constant::ones(&[4, LONG], dtype).expect("ones"));
        let sum = |(x, w): (Array, Array)| x.matmul(w)?.as_dtype(Dtype::Float32)?.sum(None);
        let (x, w) = transform::grad(sum).call((ones(dtype, &[1, 4]), w)).expect("is handled");
        assert_eq!(floats(x.array().expect("dense")).expect("floats"), [1000.0; 4]);
        assert_eq!(floats(w.child("value").array().expect("dense")).expect("floats"), [4000.0]);
    }
}

#[test]
fn the_gradient_of_a_diagonal_counts_all_rows() {
    for dtype in HALVES {
        for transposed in [false, true] {
            let d = Value::from(Diagonal::new(ones(dtype, &[4])).expect("a vector"));
            let x = ones(dtype, if transposed { &[4, LONG] } else { &[LONG, 4] });
            let sum = move |d: Array| {
                let y = if transposed { d.matmul(&x)? } else { x.matmul(d)? };
                y.as_dtype(Dtype::Float32)?.sum(None)
            };
            let found = transform::grad(sum).call(d).expect("is handled");
            assert_eq!(floats(found.child("diagonal").array().expect("dense")).expect("floats"), [1000.0; 4]);
        }
    }
}

#[test]
fn sums_of_parts_count_all_elements() {
    let sum = |axis: i32| move |[w]: [Array; 1]| Ok(w.sum_axis(axis, None)?);
    for dtype in HALVES {
        let diagonal = Diagonal::new(ones(dtype, &[LONG])).expect("a vector");
        check([diagonal.into()], 1000.0, |[w]| Ok(w.sum(None)?));
        let low_rank = |n, k| LowRank::new(ones(dtype, &[n, 1]), ones(dtype, &[1, k])).expect("a product");
        check([low_rank(LONG, 4).into()], 1000.0, sum(0));
        check([low_rank(4, LONG).into()], 1000.0, sum(1));
        let sparse = Sparse24::prune(&ones(dtype, &[4, 2 * LONG])).expect("groups");
        check([sparse.into()], 1000.0, sum(1));
    }
}

#[test]
fn products_of_many_parts_are_added_in_single_precision() {
    for dtype in HALVES {
        let parts = (0..500).map(|_| ones(dtype, &[2, 4]).into()).collect();
        let w = Value::from(Concat::new(parts, 0).expect("fits"));
        check([ones(dtype, &[1, LONG]).into(), w.clone()], 1000.0, times);
        check([w, ones(dtype, &[LONG, 1]).into()], 1000.0, |[w, x]| Ok(w.t().matmul(x)?));
    }
}

#[test]
fn what_the_base_of_a_lora_leaves_is_rounded_once() {
    // 257 and 2049 are between two numbers of their types.
    for (dtype, between) in [(Dtype::Bfloat16, 256.0), (Dtype::Float16, 2048.0)] {
        let base = full(dtype, &[1, 1], -between);
        let lora = |base: Value| {
            let a = full(Dtype::Float32, &[1, 1], between + 1.0);
            Value::from(Lora::new(base, a, ones(Dtype::Float32, &[1, 1]), 1.0).expect("fits"))
        };
        check([ones(dtype, &[1, 1]).into(), lora((&base).into())], 1.0, times);
        check([lora((&base).into()), ones(dtype, &[1, 1]).into()], 1.0, times);
        check([lora((&base).into())], 1.0, |[w]| Ok(w.take_axis(Array::from_slice(&[0u32], &[1]), 0)?));
        let _allow = Policy::Allow.scope();
        assert_eq!(floats(&lora(base.into()).dense().expect("dense")).expect("floats"), [1.0]);
    }
}

#[test]
fn packed_and_stacked_products_over_long_axes() {
    for dtype in HALVES {
        for w in every(dtype, 1, &[8, 1024]) {
            let x = normal_of(dtype, 2, &[3, 1024]);
            let found = implicit((&x, &w), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense());
            let found = floats(&found.expect("is handled")).expect("floats");
            let _allow = Policy::Allow.scope();
            let f32 = |array: &Array| array.as_dtype(Dtype::Float32).expect("f32");
            let expected = f32(&x).matmul(f32(&w.dense().expect("dense")).t()).expect("dense");
            for (found, expected) in found.iter().zip(floats(&expected).expect("floats")) {
                assert!((found - expected).abs() < 0.5, "{w}: {found} {expected}");
            }
        }
        let experts = vec![ones(dtype, &[LONG, 4]).into(), nf4(&ones(dtype, &[LONG, 4]), 64)];
        let w = Value::from(Stacked::new(experts).expect("of one aval"));
        check([ones(dtype, &[2, 1, LONG]).into(), w], 1000.0, times);
    }
}

/// Where the dense matrix is in the range of `f16`, its product is, whatever it is made of.
#[test]
fn what_is_small_again_may_be_large_between() -> Result<()> {
    const F16: Dtype = Dtype::Float16;
    let half = |shape: &[i32], value: f32| full(F16, shape, value);
    let int8 = |shape: &[i32], value: f32| Int8Array::quantize(&half(shape, value), 32);
    let factors = |count: i32, value: f32| full(Dtype::Float32, &[count], value);
    let transposed = |[x, w]: [Array; 2]| Ok(x.matmul(w.t())?);

    let thin = |left: f32, right: f32| LowRank::new(half(&[8, 1], left), half(&[1, 8], right));
    check([half(&[1, 8], 100.0).into(), thin(100.0, 2f32.powi(-7))?.into()], 625.0, times);
    check([thin(300.0, 2f32.powi(-10))?.into(), half(&[8, 1], 300.0).into()], 703.0, |[w, x]| {
        Ok(w.multiply(&x)?.matmul(ones(F16, &[8, 1]))?)
    });
    let wide = LowRank::new(full(Dtype::Float32, &[8, 1], 1e6), full(Dtype::Float32, &[1, 8], 2f32.powi(-20)))?;
    check([wide.into()], 1953.0 / 2048.0, |[w]| {
        Ok(w.as_dtype(F16)?.matmul(ones(F16, &[8, 8]))?.multiply(half(&[], 0.125))?)
    });

    let scaled = ScaledChannels::new(int8(&[8, 32], 2f32.powi(-10))?, &factors(32, 1024.0), -1)?;
    check([half(&[2, 32], 100.0).into(), scaled.into()], 3200.0, transposed);
    let scaled = ScaledChannels::new(int8(&[8, 32], 128.0)?, &factors(8, 2f32.powi(-10)), 0)?;
    check([half(&[2, 32], 100.0).into(), scaled.into()], 400.0, transposed);

    let joined = Concat::new(vec![int8(&[4, 32], 10.0)?.into(), int8(&[4, 32], -10.0)?.into()], 1)?;
    check([half(&[1, 64], 250.0).into(), joined.into()], 0.0, transposed);
    let zeros = half(&[4], 0.0);
    check([half(&[1, 32], 250.0).into(), int8(&[4, 32], 10.0)?.into()], 40000.0, move |[x, w]| {
        Ok(ops::addmm(&zeros, &x, w.t(), 0.5, 1.0)?)
    });
    let rotated = Rotated::new(int8(&[2, 64], 1.0)?, -1)?;
    let rows = implicit((rotated, half(&[1, 64], 3e4)), |(w, rows): (Array, Array)| ops::concatenate(&[w, rows], 0))?;
    let rows = floats(&rows.dense()?.as_dtype(Dtype::Float32)?)?;
    assert!(rows[128..].iter().all(|x| (x - 3e4).abs() < 300.0), "{:?}", &rows[128..]);
    Ok(())
}

/// A change that is added may bring back into the range what it is added to, and a cast is that of the sum.
#[test]
fn what_a_sum_brings_back_may_be_large_before() -> Result<()> {
    const F16: Dtype = Dtype::Float16;
    let half = |shape: &[i32], value: f32| full(F16, shape, value);
    let single = |shape: &[i32], value: f32| full(Dtype::Float32, shape, value);
    let transposed = |[x, w]: [Array; 2]| Ok(x.matmul(w.t())?);

    // A dense base would be copied for that.
    let base = F16Array::quantize(&half(&[1, 2], 300.0), F16_FORMAT)?;
    let lora = Lora::new(base, single(&[1, 2], 1.0), single(&[1, 1], -100.0), 1.0)?;
    check([half(&[1, 2], 150.0).into(), lora.clone().into()], 60_000.0, transposed);
    for index in [Array::from_slice(&[0u32], &[]), Array::from_slice(&[0u32], &[1])] {
        let set = LoraSet::new(std::slice::from_ref(&lora), index)?;
        check([half(&[1, 2], 150.0).into(), set.into()], 60_000.0, transposed);
    }
    let small = Lora::new(half(&[1, 1], 0.0), half(&[1, 1], 2f32.powi(-10)), half(&[1, 1], 1024.0), 1.0)?;
    check([ones(F16, &[1, 1]).into(), small.into()], 128.0, |[x, w]| Ok(x.matmul(w.multiply(half(&[], 128.0))?)?));
    let large = Lora::new(single(&[1, 1], 100_000.0), single(&[1, 1], 1.0), single(&[1, 1], -50_016.0), 1.0)?;
    check([ones(F16, &[1, 1]).into(), large.into()], 49_984.0, |[x, w]| Ok(x.matmul(w.as_dtype(F16)?)?));

    let bias = half(&[4], -20_000.0);
    let w = Int8Array::quantize(&half(&[4, 32], 10.0), 32)?;
    check([half(&[1, 32], 250.0).into(), w.clone().into()], 60_000.0, |[x, w]| {
        Ok(ops::addmm(&bias, &x, w.t(), 1.0, 1.0)?)
    });
    let column = half(&[4, 1], -20_000.0);
    check([w.into(), half(&[32, 1], 250.0).into()], 60_000.0, |[w, x]| Ok(ops::addmm(&column, &w, &x, 1.0, 1.0)?));

    // Rotated, the first element of each column is 96000.
    let rotated = Rotated::new(hadamard(&single(&[2, 1024], 3000.0))?.t(), 0)?;
    check([half(&[1, 1024], 2f32.powi(-10)).into(), rotated.clone().into()], 3000.0, |[x, w]| {
        Ok(x.matmul(w.as_dtype(F16)?)?)
    });
    check([rotated.into()], 3000.0, |[w]| Ok(w.as_dtype(F16)?.t()));
    Ok(())
}

#[test]
fn a_bias_of_a_half_type_builds_no_matrix() -> Result<()> {
    const F16: Dtype = Dtype::Float16;
    let one = |shape: &[i32]| ones(F16, shape);
    let int8 = Int8Array::quantize(&one(&[4, 32]), 32)?;
    let thin = || LowRank::new(one(&[4, 1]), one(&[1, 32]));
    let lora = |base: Value| Lora::new(base, ones(Dtype::Float32, &[2, 32]), full(Dtype::Float32, &[4, 2], 0.0), 1.0);
    let channels = ScaledChannels::new(int8.clone(), &ones(Dtype::Float32, &[32]), -1)?;
    for w in [
        channels.clone().into(),
        thin()?.into(),
        Constant::ones(&[4, 32], F16)?.into(),
        AsStored::new(lora(int8.into())?, Int8::from(32))?.into(),
        lora(channels.into())?.into(),
        lora(thin()?.into())?.into(),
        lora(one(&[4, 32]).into())?.into(),
    ] {
        let bias = one(&[4]);
        check([one(&[1, 32]).into(), w], 33.0, |[x, w]| Ok(ops::addmm(&bias, &x, w.t(), 1.0, 1.0)?));
    }
    Ok(())
}

#[test]
fn the_gradient_of_a_set_of_adapters_counts_all_sequences() -> Result<()> {
    for dtype in HALVES {
        let lora = Lora::new(full(dtype, &[1, 4], 0.0), ones(dtype, &[1, 4]), ones(dtype, &[1, 1]), 1.0)?;
        let set = Value::from(LoraSet::new(&[lora], ops::zeros::<u32>(&[LONG])?)?);
        let x = ones(dtype, &[LONG, 4]);
        let sum = move |w: Array| x.matmul(w.t())?.as_dtype(Dtype::Float32)?.sum(None);
        let found = transform::grad(sum).call(set)?;
        assert_eq!(floats(found.child("a").array()?)?, [1000.0; 4], "{dtype:?}");
    }
    Ok(())
}
