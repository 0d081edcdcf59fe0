//! Shapes, slices, joins and scales: the codes stay as they are.

use std::slice::from_ref;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, Nf4};
use tacit_arrays::{AffineArray, Dynamic8Array, Mxfp4Array, Nf4Array, ScaleRule, cut};
use tacit_conformance::opaque::Opaque;
use tacit_core::tree::{self, Open};
use tacit_core::{Policy, Result, Value, explain, implicit};

use crate::operands::{FORMATS, Format, Scales, check_built, every, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

type Op = fn(&Array) -> Result<Array>;

/// What `f` gives, which must be packed.
#[track_caller]
fn packed(w: &Value, f: Op) -> Value {
    let made = implicit(w, move |w| f(&w)).expect("is handled");
    assert!(made.is_implicit(), "{w} became dense");
    made
}

/// A matrix in the formats that `which` names, with those.
fn in_formats(seed: u64, shape: &[i32], which: impl Fn(&Format) -> bool) -> Vec<(&'static Format, Value)> {
    let x = normal(seed, shape);
    let chosen = FORMATS.iter().filter(|format| which(format));
    chosen.map(|format| (format, (format.of)(&x).expect("quantizes"))).collect()
}

/// A matrix in the formats whose scales are not packed themselves.
fn single(seed: u64, shape: &[i32]) -> Vec<Value> {
    in_formats(seed, shape, |format| format.scales != Scales::Nested).into_iter().map(|(_, value)| value).collect()
}

#[test]
fn shapes() {
    let cases: [(&str, Op); 8] = [
        ("reshape", |w| Ok(w.reshape(&[2, 5, 2, 64])?)),
        ("reshape to groups", |w| Ok(w.reshape(&[40, 32])?)),
        ("flatten", |w| Ok(w.flatten(None, None)?)),
        ("flatten two axes", |w| Ok(w.flatten(0, 1)?)),
        ("unflatten", |w| Ok(ops::unflatten(w, 2, &[2, 32])?)),
        ("expand_dims", |w| Ok(w.expand_dims(0)?)),
        ("expand_dims of two", |w| Ok(w.expand_dims_axes(&[3, 0])?)),
        ("squeeze", |w| Ok(w.expand_dims(1)?.squeeze_axes(&[1])?)),
    ];
    for w in every(F32, 1, &[4, 5, 64]) {
        for (name, f) in cases {
            oracle(F32).check(name, from_ref(&w), move |arrays| Ok(vec![f(&arrays[0])?]));
            if name != "expand_dims of two" {
                assert_eq!(packed(&w, f).nbytes(), w.nbytes());
            }
        }
    }
}

#[test]
fn a_product_with_a_matrix_in_another_shape() {
    for w in every(F32, 1, &[4, 5, 64]) {
        oracle(F32).check("x flat(W)^T", &[normal(2, &[3, 64]).into(), w], |arrays| {
            Ok(vec![arrays[0].matmul(arrays[1].reshape(&[20, 64])?.t())?])
        });
    }
}

#[test]
fn a_shape_that_cuts_a_group_is_built() {
    for w in [
        Value::from(AffineArray::quantize(&normal(1, &[4, 64]), Affine { bits: 4, group: 64 }).expect("quantizes")),
        Mxfp4Array::quantize(&normal(1, &[4, 64]), ScaleRule::Floor).expect("quantizes").into(),
    ] {
        let cut = |arrays: Vec<Array>| Ok(vec![arrays[0].reshape(&[16, 16])?]);
        check_built("reshape", &[w], cut);
    }
}

#[test]
fn a_transposed_view_in_another_shape_is_built() {
    for w in every(F32, 1, &[4, 64]) {
        let transposed = |arrays: Vec<Array>| Ok(vec![arrays[0].t().reshape(&[-1])?]);
        check_built("reshape", &[w], transposed);
    }
}

#[test]
fn slices() {
    let cases: [(&str, Op); 5] = [
        ("rows", |w| Ok(w.try_index(4..12)?)),
        ("first rows", |w| Ok(w.try_index(..4)?)),
        ("all", |w| Ok(w.try_index((.., ..))?)),
        ("rows of the transpose", |w| Ok(w.t().try_index((.., 8..16))?)),
        ("rows of rows", |w| Ok(w.try_index(4..)?.try_index(4..8)?)),
    ];
    for w in single(1, &[16, 64]) {
        for (name, f) in cases {
            oracle(F32).check(name, from_ref(&w), move |arrays| Ok(vec![f(&arrays[0])?]));
            packed(&w, f);
        }
        oracle(F32).check("x W[a..b]^T", &[normal(2, &[3, 64]).into(), w.clone()], |arrays| {
            Ok(vec![arrays[0].matmul(arrays[1].try_index(4..12)?.t())?])
        });
    }
}

#[test]
fn slices_of_the_last_axis_at_the_ends_of_blocks() {
    for (format, w) in in_formats(1, &[3, 4, 128], |format| format.scales != Scales::Nested) {
        let checking = if format.scales == Scales::Rows { oracle(F32).allowing() } else { oracle(F32) };
        checking.check("columns", &[w], |arrays| Ok(vec![arrays[0].try_index((1.., 1..3, 32..96))?]));
    }
}

#[test]
fn ragged_slices_of_flat_codes() {
    // A row is no whole number of blocks, but four are.
    let w = nf4(&normal(1, &[9, 40]), 32);
    for range in [(0, 4), (4, 8), (4, 9), (0, 5), (8, 9)] {
        oracle(F32).check("rows", from_ref(&w), move |arrays| Ok(vec![arrays[0].try_index(range.0..range.1)?]));
    }
    let straddling = |arrays: Vec<Array>| Ok(vec![arrays[0].try_index(1..5)?]);
    check_built("rows", &[w], straddling);
}

#[test]
fn slices_with_a_step_are_built() {
    for w in single(1, &[16, 64]) {
        let stepped = |arrays: Vec<Array>| {
            use mlx_rs::ops::indexing::IntoStrideBy;
            Ok(vec![arrays[0].try_index((..).stride_by(2))?])
        };
        check_built("rows", &[w], stepped);
    }
}

#[test]
fn joins() {
    for format in FORMATS {
        let parts = |axis: usize| -> [Value; 3] {
            [1, 2, 3].map(|seed| {
                let mut shape = [4, 64];
                shape[axis] = 32 * (1 + seed as i32 % 2);
                (format.of)(&normal(seed, &shape)).expect("quantizes")
            })
        };
        oracle(F32).check("rows", &parts(0), |arrays| Ok(vec![ops::concatenate(&arrays, 0)?]));
        oracle(F32).check("rows transposed", &parts(0), |arrays| {
            let transposed: Vec<Array> = arrays.iter().map(Array::t).collect();
            Ok(vec![ops::concatenate(&transposed, 1)?])
        });
        oracle(F32).check("columns", &parts(1), |arrays| Ok(vec![ops::concatenate(&arrays, 1)?]));
    }
}

#[test]
fn a_product_with_joined_parts_builds_none() {
    for format in FORMATS.iter().filter(|format| ![Scales::Nested, Scales::Factor].contains(&format.scales)) {
        let parts = [1, 2].map(|seed| (format.of)(&normal(seed, &[8, 64])).expect("quantizes"));
        let operands = [normal(3, &[3, 64]).into(), parts[0].clone(), parts[1].clone()];
        oracle(F32).check("x [V W]^T", &operands, |arrays| {
            Ok(vec![arrays[0].matmul(ops::concatenate(&arrays[1..], 0)?.t())?])
        });
    }
}

/// Codes of several formats, and floats, in any order.
#[test]
fn joins_of_other_static_fields_are_views() {
    let join = |arrays: Vec<Array>| Ok(vec![ops::concatenate(&arrays, 0)?]);
    let (a, b) = (normal(1, &[4, 64]), normal(2, &[4, 64]));
    let affine = |x: &Array| AffineArray::quantize(x, Affine { bits: 4, group: 32 }).expect("quantizes").into();
    let several = [
        vec![nf4(&a, 32), nf4(&b, 64)],
        vec![nf4(&a, 32), affine(&b)],
        vec![affine(&a), nf4(&b, 32)],
        vec![a.clone().into(), nf4(&b, 32)],
        vec![nf4(&a, 32), b.clone().into()],
        vec![a.clone().into(), b.clone().into(), nf4(&b, 32), a.clone().into()],
        vec![Opaque::new(a.clone()).into(), nf4(&b, 32)],
        // The first part does not end with a block.
        vec![nf4(&normal(1, &[1, 64]), 128), nf4(&b, 128)],
    ];
    for parts in several {
        oracle(F32).allowing().check("join", &parts, join);
        let operands: Vec<Value> = std::iter::once(normal(3, &[3, 64]).into()).chain(parts.iter().cloned()).collect();
        let checking = if parts.iter().any(|part| part.downcast::<Opaque>().is_some()) {
            oracle(F32).allowing()
        } else {
            oracle(F32)
        };
        checking
            .check("x [..]^T", &operands, |arrays| Ok(vec![arrays[0].matmul(ops::concatenate(&arrays[1..], 0)?.t())?]));
    }
    // The last one need not.
    oracle(F32).check("join", &[nf4(&a, 128), nf4(&normal(2, &[3, 64]), 128)], join);
    // Nothing is gained by a view of what no product takes.
    let opaque = [Opaque::new(a).into(), Opaque::new(b).into()];
    check_built("join", &opaque, join);
}

#[test]
fn parts_of_other_formats_are_named_by_their_formats() {
    let parts = (nf4(&normal(1, &[4, 64]), 64), nf4(&normal(2, &[4, 64]), 32));
    let told = explain(parts, |(a, b)| ops::concatenate(&[a, b], 0)).expect("is handled").to_string();
    assert!(told.contains("the parts have different formats: nf4:64 and nf4:32"), "{told}");
}

fn scalars() -> Vec<Value> {
    vec![Array::from_f32(-1.7).into(), Array::from_slice(&[0.3f32], &[1]).into()]
}

#[test]
fn scaled_by_a_scalar() {
    // The gradient for the scalar is a sum over all elements, which must not be one of those that cancel.
    let x = normal(1, &[8, 64]).add(Array::from_f32(0.5)).expect("adds");
    for format in FORMATS {
        let w = (format.of)(&x).expect("quantizes");
        let checking = if format.scales == Scales::Fixed { oracle(F32).allowing() } else { oracle(F32) };
        for scalar in scalars() {
            let operands = [w.clone(), scalar];
            checking.check("w s", &operands, |arrays| Ok(vec![arrays[0].multiply(&arrays[1])?]));
            checking.check("s w", &operands, |arrays| Ok(vec![arrays[1].multiply(&arrays[0])?]));
            checking.check("w / s", &operands, |arrays| Ok(vec![arrays[0].divide(&arrays[1])?]));
            checking.check("s w^T", &operands, |arrays| Ok(vec![arrays[0].t().multiply(&arrays[1])?]));
        }
        checking.check("-w", from_ref(&w), |arrays| Ok(vec![arrays[0].negative()?]));
        checking.check("x (2 W)^T", &[normal(2, &[3, 64]).into(), w], |arrays| {
            Ok(vec![arrays[0].matmul(arrays[1].multiply(Array::from_f32(2.0))?.t())?])
        });
    }
}

#[test]
fn scaled_in_half_types() {
    for dtype in [Dtype::Bfloat16, Dtype::Float16] {
        let scalar = Array::from_f32(0.3).as_dtype(dtype).expect("a float type");
        let x = normal_of(dtype, 1, &[1, 64]).add(&scalar).expect("adds");
        for format in FORMATS {
            let operands = [(format.of)(&x).expect("quantizes"), (&scalar).into()];
            oracle(dtype).allowing().check("w s", &operands, |arrays| Ok(vec![arrays[0].multiply(&arrays[1])?]));
        }
    }
}

#[test]
fn a_factor_that_is_no_scalar_builds_the_array() {
    for w in every(F32, 1, &[8, 64]) {
        for shape in [&[8, 64][..], &[64], &[8, 1], &[1, 8, 64]] {
            let operands = [w.clone(), normal(2, shape).into()];
            let product = |arrays: Vec<Array>| Ok(vec![arrays[0].multiply(&arrays[1])?]);
            check_built("w x", &operands, product);
        }
        let operands = [normal(2, &[8, 64]).into(), w];
        oracle(F32)
            .allowing()
            .check("x / w", &operands, |arrays| Ok(vec![arrays[0].divide(arrays[1].add(Array::from_f32(9.0))?)?]));
    }
}

#[test]
fn nested_scales_are_scaled_and_not_cut() {
    let w = Value::from(Nf4Array::quantize(&normal(1, &[16, 64]), Nf4 { block: 64, double: true }).expect("quantizes"));
    let scaled = packed(&w, |w| Ok(w.multiply(Array::from_f32(2.0))?));
    let absmax = scaled.downcast::<Nf4Array>().expect("nf4").scales().expect("scales");
    assert!(absmax.downcast::<Dynamic8Array>().is_some());
    let rows = |arrays: Vec<Array>| Ok(vec![arrays[0].try_index(4..12)?]);
    oracle(F32).allowing().check("rows", from_ref(&w), rows);
}

/// What reads such children cuts them as well.
#[test]
fn nested_scales_that_were_cast_are_cut() -> Result<()> {
    let w = Value::from(Nf4Array::quantize(&normal(1, &[1024, 64]), Nf4 { block: 64, double: true })?);
    let half = tree::map(&w, Open::Fully, |leaf| match leaf {
        Value::Dense(array) if array.dtype() == F32 => Ok(array.as_dtype(Dtype::Bfloat16)?.into()),
        leaf => Ok(leaf),
    })?;
    let _allow = Policy::Allow.scope();
    let whole = half.dense()?;
    let sliced = packed(&half, |w| Ok(w.try_index(..256)?));
    assert!(sliced.dense()?.eq_exact(whole.try_index(..256)?)?);
    // Inside the blocks of the scales, which become smaller.
    let part = cut(&half, 0, 128..256)?;
    assert!(part.dense()?.eq_exact(whole.try_index(128..256)?)?);
    // Inside the blocks of the elements.
    let part = cut(&half, 1, 32..64)?;
    assert!(part.dense()?.eq_exact(whole.try_index((.., 32..64))?)?);
    Ok(())
}

#[test]
fn in_another_float_type() {
    let w = Value::from(Nf4Array::quantize(&normal_of(Dtype::Bfloat16, 1, &[16, 64]), 64).expect("quantizes"));
    oracle(Dtype::Bfloat16)
        .check("rows", &[w], |arrays| Ok(vec![arrays[0].try_index(4..12)?.reshape(&[4, 128])?.negative()?]));
}
