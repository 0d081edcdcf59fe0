//! Arrays that are stored rotated.

mod attention;
mod range;

use std::slice::from_ref;

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{self, IntoStrideBy, TryIndexMutOp, TryIndexOp, TryIndexUpdateOp};
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_arrays::format::{self, Affine, FloatScales, Nf4, Quantizer, Rotation, TrainedScales};
use tacit_arrays::kernel::hadamard;
use tacit_arrays::{Int8Array, Prepared, Rotated};
use tacit_conformance::assert_close;
use tacit_conformance::oracle::relative_error;
use tacit_core::extra_ops::{dynamic_slice, dynamic_slice_update};
use tacit_core::transform::{grad, vmap};
use tacit_core::tree::Gradient;
use tacit_core::{Counters, Policy, Result, Value, compile, implicit};

use crate::messages::{check, said_of};
use crate::operands::{FLOATS, affine, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

fn quantized(text: &str, x: &Array) -> Value {
    format::parse(text).and_then(|format| format.quantize(x)).expect("quantizes")
}

/// Normal numbers in rotated formats; the last axis is a multiple of 32.
fn rotated(dtype: Dtype, seed: u64, shape: &[i32]) -> [Value; 2] {
    ["rotated:nf4:32", "rotated:affine:4:32"].map(|text| quantized(text, &normal_of(dtype, seed, shape)))
}

#[test]
fn products_are_rotated_on_either_side() {
    for dtype in FLOATS {
        // 96 = 12 * 8; the long rows are more than one task's.
        for (n, k) in [(40, 96), (20, 64), (5, 2048), (300, 64)] {
            for w in rotated(dtype, 1, &[n, k]) {
                let x = |rows, columns| Value::from(normal_of(dtype, 2, &[rows, columns]));
                let c = Value::from(normal_of(dtype, 3, &[n]));
                let oracle = || oracle(dtype);
                oracle().check("x W^T", &[x(3, k), w.clone()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
                oracle().check("x W", &[x(3, n), w.clone()], |a| Ok(vec![a[0].matmul(&a[1])?]));
                oracle().check("W x", &[x(k, 3), w.clone()], |a| Ok(vec![a[1].matmul(&a[0])?]));
                oracle().check("W^T x", &[x(n, 3), w.clone()], |a| Ok(vec![a[1].t().matmul(&a[0])?]));
                oracle().check("addmm", &[x(3, k), w.clone(), c], |a| {
                    Ok(vec![ops::addmm(&a[2], &a[0], a[1].t(), 0.5, -2.0)?])
                });
                let batch = Value::from(normal_of(dtype, 4, &[2, 3, k]));
                oracle().check("batch", &[batch, w], |a| Ok(vec![a[0].matmul(a[1].t())?]));
            }
        }
    }
}

#[test]
fn products_of_one_row_under_compile() {
    let _deny = Policy::Deny.scope();
    for w in rotated(F32, 1, &[40, 96]) {
        let x = normal(2, &[1, 96]);
        let product = |(x, w): (Array, Array)| x.matmul(w.t());
        let expected = implicit((&x, &w), product).expect("runs").dense().expect("dense");
        let mut compiled = compile(product);
        for _ in 0..2 {
            let found = compiled.call((&x, w.clone())).expect("runs").dense().expect("dense");
            assert_close!(found, expected.clone(), 1e-6);
        }
        assert_eq!(compiled.stats().traces, 1);
    }
}

#[test]
fn a_mapped_product_is_that_of_a_loop() {
    let _deny = Policy::Deny.scope();
    let batch = normal(1, &[5, 3, 96]);
    for w in rotated(F32, 2, &[40, 96]) {
        let product = |(w, x): (Array, Array)| x.matmul(w.t());
        let whole = implicit((&w, &batch), product).expect("runs").dense().expect("dense");
        let mapped = vmap([None, Some(0)], 0, product).call((w.clone(), &batch)).expect("runs");
        assert_close!(mapped.dense().expect("dense"), whole, 1e-6);
    }
    // The transform itself, mapped along each axis.
    let whole = hadamard(&batch).expect("runs");
    for axis in 0..2 {
        let mapped = vmap(axis, axis, |x: Array| hadamard(&x)).call(&batch).expect("runs");
        assert_close!(mapped.dense().expect("dense"), whole.clone(), 1e-6);
    }
    let transposed = batch.swap_axes(0, 2).expect("turns");
    let mapped = vmap(2, 0, |x: Array| hadamard(&x.t())).call(&transposed).expect("runs");
    assert_close!(mapped.dense().expect("dense"), whole, 1e-6);
}

#[test]
fn the_transform_has_the_derivative_of_its_plain_ops() {
    for n in [8, 12, 40] {
        let (x, weights) = (normal(1, &[3, n]), normal(2, &[3, n]));
        let own = weights.clone();
        let loss = move |x: Array| -> Result<Array> { Ok(hadamard(&x)?.multiply(&own)?.sum(None)?) };
        let found = grad(loss).call(&x).expect("has a gradient");
        assert_close!(found.array().expect("dense").clone(), hadamard(&weights).expect("runs"), 1e-6);
    }
}

#[test]
fn whole_rows_are_moved_as_they_are_stored() {
    type Op = fn(&Array) -> Result<Array>;
    let cases: [(&str, Op); 12] = [
        ("transpose", |w| Ok(w.t())),
        ("axes", |w| Ok(w.transpose_axes(&[1, 0, 2])?)),
        ("transposed back", |w| Ok(w.swap_axes(0, 2)?.swap_axes(2, 0)?)),
        ("merged rows", |w| Ok(w.reshape(&[6, 64])?)),
        ("merged rows of a transpose", |w| Ok(w.t().expand_dims(1)?.squeeze_axes(&[1])?)),
        ("more axes", |w| Ok(w.expand_dims(1)?)),
        ("flatten", |w| Ok(w.flatten(0, 1)?)),
        ("unflatten", |w| Ok(w.reshape(&[2, 3, 1, 64])?)),
        ("slice", |w| Ok(w.try_index((1.., 1..3))?)),
        ("split", |w| Ok(w.split_equal(3, 1)?.swap_remove(2))),
        ("broadcast", |w| Ok(ops::broadcast_to(w.expand_dims(1)?, &[2, 4, 3, 64])?)),
        ("rows", |w| Ok(w.take_axis(Array::from_slice(&[1i32, 0, -1], &[3]), 0)?)),
    ];
    for w in rotated(F32, 1, &[2, 3, 64]) {
        for (name, f) in cases {
            oracle(F32).allowing().check(name, from_ref(&w), move |a| Ok(vec![f(&a[0])?]));
        }
    }
}

/// Rows that are written from their last element on are no rows as they are stored.
#[test]
fn rows_are_written_backwards() {
    let row = normal(3, &[1, 64]);
    for w in rotated(F32, 1, &[2, 64]) {
        oracle(F32).allowing().check("backwards", &[w, row.clone().into()], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((..1, (..).stride_by(-1)), &a[1])?;
            Ok(vec![w])
        });
    }
}

#[test]
fn views_of_a_matrix_stay_rotated() {
    let _deny = Policy::Deny.scope();
    for w in rotated(F32, 1, &[6, 64]) {
        let made = |f: fn(Array) -> Result<Array>| implicit(&w, f).expect("is handled").to_string();
        assert_eq!(made(|w| Ok(w.t())), "Rotated(f32[64,6])");
        assert_eq!(made(|w| Ok(w.t().t())), "Rotated(f32[6,64])");
        assert_eq!(made(|w| Ok(w.reshape(&[2, 3, 64])?)), "Rotated(f32[2,3,64])");
        assert_eq!(made(|w| Ok(w.try_index(1..4)?)), "Rotated(f32[3,64])");
        assert_eq!(made(|w| Ok(ops::concatenate(&[&w, &w], 0)?)), "Rotated(f32[12,64])");
        assert_eq!(made(|w| Ok(w.as_dtype(Dtype::Bfloat16)?)), "Rotated(bf16[6,64])");
    }
}

/// They are read in `f32` on the way, and are of their own type again.
#[test]
fn views_of_half_floats_stay_rotated() {
    let _deny = Policy::Deny.scope();
    for (dtype, name) in [(Dtype::Bfloat16, "bf16"), (Dtype::Float16, "f16")] {
        for w in rotated(dtype, 1, &[6, 64]) {
            let made = |f: fn(Array) -> Result<Array>| {
                let made = implicit(&w, f).expect("is handled");
                let inner = made.downcast::<Rotated>().expect("is rotated").inner();
                assert_eq!(inner.aval().expect("an aval").dtype, dtype, "{made}");
                made.to_string()
            };
            assert_eq!(made(|w| Ok(w.t())), format!("Rotated({name}[64,6])"));
            assert_eq!(made(|w| Ok(w.t().t())), format!("Rotated({name}[6,64])"));
            assert_eq!(made(|w| Ok(w.reshape(&[2, 3, 64])?)), format!("Rotated({name}[2,3,64])"));
            assert_eq!(made(|w| Ok(w.try_index(1..4)?)), format!("Rotated({name}[3,64])"));
            assert_eq!(made(|w| Ok(ops::concatenate(&[&w, &w], 0)?)), format!("Rotated({name}[12,64])"));
        }
    }
}

#[test]
fn what_cuts_rotated_rows_is_built() {
    type Op = fn(&Array) -> Result<Array>;
    let cases: [(&str, Op); 6] = [
        ("columns", |w| Ok(w.try_index((.., 1..3))?)),
        ("halves", |w| Ok(w.reshape(&[12, 32])?)),
        ("split", |w| Ok(w.split_equal(2, 1)?.swap_remove(1))),
        ("along", |w| Ok(indexing::take_along_axis(w, Array::from_slice(&[1u32, 0], &[1, 2]), 1)?)),
        ("columns taken", |w| Ok(w.take_axis(Array::from_slice(&[1u32, 0], &[2]), 1)?)),
        ("joined", |w| Ok(ops::concatenate(&[w, w], 1)?)),
    ];
    for w in rotated(F32, 1, &[6, 64]) {
        for (name, f) in cases {
            oracle(F32).allowing().check(name, from_ref(&w), move |a| Ok(vec![f(&a[0])?]));
        }
    }
}

type Write = fn(&Array, &Array) -> Result<Array>;

/// Ways to write two rows of each head, `[2, 3, 16, 64]`.
const WRITES: [(&str, Write); 4] = [
    ("where an array says", |a, x| dynamic_slice_update(a, x, &Array::from_slice(&[5i32], &[1]), &[2])),
    ("slice", |a, x| {
        let mut a = a.clone();
        a.try_index_mut((.., .., 5..7), x)?;
        Ok(a)
    }),
    ("added", |a, x| Ok(a.try_index_update((.., .., 5..7), x, indexing::UpdateMode::Add).expect("fits"))),
    ("scattered", |a, x| {
        let places = ops::broadcast_to(Array::from_slice(&[9i32, 0], &[1, 1, 2, 1]), x.shape())?;
        Ok(a.put_along_axis(places, x, 2)?)
    }),
];

#[test]
fn rows_are_written_rotated_and_quantized_alone() {
    for dtype in FLOATS {
        for text in ["rotated:nf4:32", "rotated:affine:4:32", "rotated:mxfp8"] {
            let w = quantized(text, &normal_of(dtype, 1, &[2, 3, 16, 64]));
            let x = normal_of(dtype, 2, &[2, 3, 2, 64]);
            let coded = quantized(text, &x);
            let dense = |value: &Value| {
                let _allow = Policy::Allow.scope();
                value.dense().expect("decodes")
            };
            for (name, write) in WRITES.iter().filter(|(name, _)| *name != "added") {
                let expected = write(&dense(&w), &dense(&coded)).expect("writes");
                for update in [Value::from(x.clone()), coded.clone()] {
                    let _deny = Policy::Deny.scope();
                    let made = implicit((&w, &update), |(w, x)| write(&w, &x));
                    let made = made.unwrap_or_else(|error| panic!("{name} of {update} into {w}: {error}"));
                    assert_eq!((made.to_string(), made.nbytes()), (w.to_string(), w.nbytes()), "{name}");
                    assert_close!(dense(&made), expected.clone(), if dtype == F32 { 1e-6 } else { 1e-2 });
                }
            }
            // And read where an array says.
            let read = |w: &Array| dynamic_slice(w, &Array::from_slice(&[1i32, 7], &[2]), &[0, 2], &[1, 3, 5, 64]);
            let _deny = Policy::Deny.scope();
            let made = implicit(&w, |w| read(&w)).expect("is handled");
            assert!(made.is_implicit());
            assert_close!(dense(&made), read(&dense(&w)).expect("reads"), if dtype == F32 { 1e-6 } else { 1e-2 });
        }
    }
}

#[test]
fn what_quantizes_nothing_is_written_exactly() {
    let w = Value::from(Rotated::new(normal(1, &[2, 3, 16, 64]), -1).expect("rotates"));
    for (name, write) in WRITES {
        let update = Value::from(normal(2, &[2, 3, 2, 64]));
        oracle(F32).allowing().check(name, &[w.clone(), update], move |a| Ok(vec![write(&a[0], &a[1])?]));
    }
    // Parts of rows, for which the rotated array is built.
    let parts: [(&str, [i32; 4], Write); 3] = [
        ("slice of a row", [2, 3, 16, 8], |a, x| {
            let mut a = a.clone();
            a.try_index_mut((.., .., .., 8..16), x)?;
            Ok(a)
        }),
        ("where an array says in a row", [2, 3, 16, 8], |a, x| {
            dynamic_slice_update(a, x, &Array::from_slice(&[5i32], &[1]), &[3])
        }),
        ("scattered in a row", [2, 3, 16, 2], |a, x| {
            let places = ops::broadcast_to(Array::from_slice(&[9i32, 0], &[1, 1, 1, 2]), x.shape())?;
            Ok(a.put_along_axis(places, x, 3)?)
        }),
    ];
    for (name, shape, write) in parts {
        let update = Value::from(normal(2, &shape));
        oracle(F32).allowing().check(name, &[w.clone(), update], move |a| Ok(vec![write(&a[0], &a[1])?]));
    }
}

#[test]
fn casts() {
    for dtype in FLOATS {
        for w in rotated(dtype, 1, &[6, 96]) {
            for to in FLOATS {
                oracle(to).values_only().check("astype", from_ref(&w), move |a| Ok(vec![a[0].as_dtype(to)?]));
                let x = Value::from(normal_of(to, 2, &[3, 96]));
                let least = if dtype == F32 { to } else { dtype };
                oracle(least)
                    .values_only()
                    .check("x W^T", &[x, w.clone()], |a| Ok(vec![a[0].matmul(a[1].as_dtype(a[0].dtype())?.t())?]));
            }
        }
    }
}

#[test]
fn a_format_knows_its_own() {
    let x = normal(1, &[8, 64]);
    let (four, nf4) = (Affine { bits: 4, group: 32 }, Nf4 { block: 32, double: false });
    let rotation = Rotation::new(four).expect("is one");
    let made = rotation.quantize(&x).expect("quantizes");
    assert!(rotation.stores(&made));
    assert!(!Rotation::new(nf4).expect("is one").stores(&made) && !four.stores(&made));
    assert!(!rotation.stores(&affine(&x, 32, 4)));
    let transposed = implicit(&made, |w| Ok::<_, tacit_core::Error>(w.t())).expect("turns");
    assert!(!rotation.stores(&transposed));
    assert!(
        rotation.supported().is_ok()
            && Rotation::new(Affine { bits: 7, group: 32 }).expect("is one").supported().is_err()
    );
    assert!(rotation.trained_scales().is_some());
    let bytes = [&made, &affine(&x, 32, 4)].map(Value::nbytes);
    assert_eq!(bytes[0], bytes[1]);
    // Half floats keep scales of their own type.
    let halves = [
        rotation.quantize(&normal_of(Dtype::Bfloat16, 1, &[8, 64])),
        four.quantize(&normal_of(Dtype::Bfloat16, 1, &[8, 64])),
    ];
    let bytes = halves.map(|made| made.expect("quantizes").nbytes());
    assert_eq!(bytes[0], bytes[1]);
}

#[test]
fn a_prepared_weight_is_rotated() {
    let master = normal(1, &[8, 64]);
    let x = normal(2, &[3, 64]);
    let format = "rotated:affine:4:32".parse::<format::AnyFormat>().expect("a format");
    let w = Prepared::new(&master, &format).expect("fits");
    for w in [w.clone(), w.clone().with_trained_scales().expect("has scales")] {
        let stored = w.convert().expect("quantizes");
        assert_eq!(stored.to_string(), "Rotated(f32[8,64])");
        let expected = implicit((&x, &stored), |(x, w)| x.matmul(w.t())).expect("runs").dense().expect("dense");
        let found = implicit((&x, w), |(x, w)| x.matmul(w.t())).expect("runs").dense().expect("dense");
        assert_close!(found, expected, 1e-5);
    }
    // Straight through: that of the dense weight.
    let own = x.clone();
    let gradient = grad(move |w: Array| x.matmul(w.t())?.sum(None)).call(w).expect("has a gradient");
    let Gradient::Node { children, .. } = gradient else { panic!("of an array") };
    let expected = ops::broadcast_to(own.sum_axis(0, false).expect("sums"), &[8, 64]).expect("rows");
    assert_close!(children[0].1.array().expect("dense").clone(), expected, 1e-5);
}

#[test]
fn trained_scales_are_those_of_the_rotated_rows() {
    let (x, weights) = (normal(1, &[8, 64]), normal(2, &[8, 64]));
    let rotation = Rotation::new(Affine { bits: 3, group: 32 }).expect("is one");
    let trained = rotation.trained_scales().expect("has scales");
    let scales = trained.scales_of(&rotation.quantize(&x).expect("quantizes")).expect("of this format");
    let with = |own: &Array| FloatScales { scales: own.clone(), ..scales.clone() };
    // Smaller ones, so that some elements are beyond the range.
    let small = scales.scales.multiply(Array::from_f32(0.7)).expect("scales");
    let gradients = |trained: &dyn TrainedScales, x: &Array, weights: &Array| {
        let loss = |arrays: &[Array]| {
            let (_, derivative) = trained.quantize_by(&arrays[0], &with(&arrays[1]))?;
            Ok::<_, Exception>(vec![derivative.multiply(weights)?.sum(None)?])
        };
        transforms::value_and_grad_with_argnums(loss, &[0, 1][..])(&[x.clone(), small.clone()]).expect("runs").1
    };
    let found = gradients(trained, &x, &weights);
    let rotated = |x: &Array| hadamard(x).expect("rotates");
    let expected = gradients(rotation.inner().trained_scales().expect("has scales"), &rotated(&x), &rotated(&weights));
    assert_close!(found[0].clone(), rotated(&expected[0]), 1e-5);
    assert_close!(found[1].clone(), expected[1].clone(), 1e-5);
    assert!(relative_error(&expected[0], &rotated(&weights)).expect("floats") > 0.1, "nothing is beyond the range");
}

/// The root mean square of the difference, relative to that of `expected`.
fn error(found: &Array, expected: &Array) -> f32 {
    let power = |x: &Array| x.square().and_then(|x| x.mean(None)).expect("a mean").item_exact::<f32>();
    (power(&found.subtract(expected).expect("one shape")) / power(expected)).sqrt()
}

#[test]
fn nothing_is_built_for_a_product() {
    for w in rotated(F32, 1, &[40, 96]) {
        let (made, counters) = Counters::during(|| implicit((normal(2, &[3, 96]), w), |(x, w)| x.matmul(w.t())));
        made.expect("runs");
        assert_eq!(counters.materialized, 0);
    }
}

#[test]
fn what_has_no_rotation() {
    let said = [
        said_of(Rotated::new(nf4(&normal(1, &[4, 44]), 32), -1)),
        said_of(Rotated::new(nf4(&normal(1, &[4, 32]), 32), 2)),
        said_of(Rotated::new(Array::from_slice(&[1i32, 2], &[2]), 0)),
        said_of(Rotation::new("rotated:int8".parse::<format::AnyFormat>().expect("a format"))),
        said_of(quantized_of("rotated:int8", &Array::from_f32(1.0))),
        said_of(quantized_of("rotated:affine:4:64", &normal(1, &[2, 32]))),
    ];
    expect![[r#"
        f32[4,44] has no Hadamard rotation along axis 1
        help: take an extent of m 2^k, for m = 1, 12, 20, 28, 36, 52, 60, 76, 84, 100, 108, 124 or 148, or the format without the rotation
        f32[4,32] has no axis 2 to rotate
        help: it has 2 axes, counted from zero, or from -1 backwards
        i32[2] is not rotated
        help: rotate an f32, f16 or bf16 array
        the format rotated:int8 is a rotation itself, and two rotations cancel each other
        help: name a format that does not rotate
        f32[] has no axis to rotate
        help: keep a scalar dense
        the last axis of f32[2,32] is not whole groups of 64, as affine has them
        help: use a smaller group size, or an array type whose blocks may straddle rows
    "#]]
    .assert_eq(&said.concat());
    check(hadamard(&normal(1, &[2, 44])), expect!["f32[2,44] has no fast Hadamard transform along its last axis"]);
    check(hadamard(&Array::from_slice(&[1i32, 2], &[2])), expect!["i32[2] is not f32, f16 or bf16"]);
}

fn quantized_of(text: &str, x: &Array) -> Result<Value> {
    format::parse(text)?.quantize(x)
}

/// MLX reads a transposed array that was reshaped in the order that it had before.
#[test]
fn a_rotation_may_be_transposed_and_reshaped() {
    let w = Rotated::new(Int8Array::quantize(&normal(1, &[6, 12]), 12).expect("whole rows"), 1).expect("has one");
    let c = normal(2, &[2, 3, 12]).transpose_axes(&[2, 0, 1]).expect("a view");
    oracle(Dtype::Float32)
        .allowing()
        .check("reshaped", &[w.into(), c.into()], |a| Ok(vec![a[0].t().reshape(&[-1, 2, 3])?.multiply(&a[1])?]));
}
