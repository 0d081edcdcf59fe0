//! An array read in another float type.

use std::slice::from_ref;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::{Cast, Concat, Sliced, Ste, ste};
use tacit_conformance::assert_close;
use tacit_conformance::opaque::Opaque;
use tacit_conformance::oracle::Oracle;
use tacit_core::tree::Open;
use tacit_core::{Policy, Value, implicit};

use crate::messages::check;
use crate::operands::{FLOATS, both, check_built, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;
const BF16: Dtype = Dtype::Bfloat16;
const F16: Dtype = Dtype::Float16;

/// A wider type, a narrower one, and one that is neither.
const PAIRS: [(Dtype, Dtype); 3] = [(BF16, F32), (F32, F16), (F16, BF16)];

/// What a comparison of products asks for, which show the rounding of the narrower type.
///
/// Plain MLX sums the gradients of affine scales and biases in that type, so `gradients_views` compares it with differences.
fn products(from: Dtype, to: Dtype, w: &Value) -> Oracle {
    let oracle = oracle(if from == BF16 || to == BF16 { BF16 } else { F16 });
    if holds_halves(w) { oracle.values_only() } else { oracle }
}

fn holds_halves(w: &Value) -> bool {
    let leaves = tacit_core::tree::leaves(w, Open::Fully).expect("leaves");
    leaves.iter().any(|leaf| matches!(leaf.aval().expect("given").dtype, BF16 | F16))
}

#[test]
fn activations_of_another_type_keep_the_fused_product() {
    for (from, to) in PAIRS {
        for w in both(from, 1, &[40, 96]) {
            let x = |rows, columns| Value::from(normal_of(to, 2, &[rows, columns]));
            let oracle = products(from, to, &w);
            oracle.check("x W^T", &[x(3, 96), w.clone()], move |a| Ok(vec![a[0].matmul(a[1].as_dtype(to)?.t())?]));
            oracle.check("W x", &[x(96, 3), w.clone()], move |a| Ok(vec![a[1].as_dtype(to)?.matmul(&a[0])?]));
            oracle.check("addmm", &[x(3, 96), w.clone(), x(3, 40)], move |a| {
                Ok(vec![ops::addmm(&a[2], &a[0], a[1].t().as_dtype(to)?, 0.5, -2.0)?])
            });
            oracle.check("addmm, left", &[x(96, 3), w, x(40, 3)], move |a| {
                Ok(vec![ops::addmm(&a[2], a[1].as_dtype(to)?, &a[0], 0.5, -2.0)?])
            });
        }
    }
}

#[test]
fn a_view_made_by_hand_is_the_same() {
    for (from, to) in PAIRS {
        for w in both(from, 1, &[40, 96]) {
            let oracle = products(from, to, &w);
            let view = Value::from(Cast::new(w, to).expect("floats"));
            let x = |rows, columns| Value::from(normal_of(to, 2, &[rows, columns]));
            oracle.check("x W^T", &[x(3, 96), view.clone()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
            oracle.check("W x", &[x(96, 3), view], |a| Ok(vec![a[1].matmul(&a[0])?]));
        }
    }
}

#[test]
fn a_wide_product_is_within_the_rounding_of_the_weight() {
    // The rounding of a bf16 element is at most 2^-9 of it, and the products are those of f32.
    let (x, w) = (normal(2, &[3, 96]), nf4(&normal_of(BF16, 1, &[40, 96]), 64));
    let found =
        implicit((&x, &w), |(x, w)| x.matmul(w.as_dtype(F32)?.t())).and_then(|y| y.dense()).expect("is handled");
    let dense = w.dense().and_then(|w| Ok(w.as_dtype(F32)?)).expect("dense");
    let difference = found.subtract(x.matmul(dense.t()).expect("plain")).and_then(|d| d.abs()).expect("plain");
    let bound = x.abs().and_then(|x| x.matmul(dense.abs()?.t())).expect("plain");
    let share = difference.divide(bound).and_then(|share| share.max(None)).expect("plain").item_exact::<f32>();
    assert!(share > 0.0 && share <= 2f32.powi(-9), "{share}");
}

#[test]
fn elements_themselves_are_rounded() {
    let rows = || Value::from(Array::from_slice(&[3u32, 0, 39], &[3]));
    for (from, to) in PAIRS {
        for w in both(from, 1, &[40, 96]) {
            let oracle = oracle(F32);
            oracle.check("astype", from_ref(&w), move |a| Ok(vec![a[0].as_dtype(to)?]));
            oracle.check("W^T", from_ref(&w), move |a| Ok(vec![a[0].as_dtype(to)?.t()]));
            oracle.check("rows", &[w.clone(), rows()], move |a| Ok(vec![a[0].as_dtype(to)?.take_axis(&a[1], 0)?]));
            for last in FLOATS {
                oracle.values_only().check("casts", from_ref(&w), move |a| {
                    let twice = a[0].as_dtype(to)?.as_dtype(last)?;
                    Ok(vec![twice.as_dtype(from)?, twice])
                });
            }
        }
    }
}

#[test]
fn slices_are_those_of_the_array_behind_it() {
    let inner = Sliced::new(nf4(&normal_of(BF16, 1, &[40, 96]), 64), &[3, 0], &[37, 96]).expect("fits");
    let view = Value::from(Cast::new(inner, F32).expect("floats"));
    oracle(F32).check("slice", from_ref(&view), |a| Ok(vec![a[0].try_index((1..9, 4..))?]));
    let _deny = Policy::Deny.scope();
    let cut = implicit(view, |w| w.try_index((1..9, 4..))).expect("is handled");
    assert_eq!(cut.to_string(), "Cast(f32[8,92])");
}

#[test]
fn there_and_back_is_the_array_itself() {
    let _deny = Policy::Deny.scope();
    let w = nf4(&normal_of(BF16, 1, &[4, 32]), 32);
    let back = implicit(&w, |w| w.as_dtype(F32)?.as_dtype(BF16)).expect("is handled");
    assert_eq!(back.to_string(), w.to_string());
    let wide = implicit(w, |w| w.as_dtype(F32)).expect("is handled");
    assert_eq!(wide.to_string(), "Cast(f32[4,32])");
}

#[test]
fn an_array_without_handlers_is_built_in_its_own_type() {
    for to in [F16, F32] {
        let view = Cast::new(Opaque::new(normal_of(BF16, 1, &[40, 96])), to).expect("floats");
        let operands = [normal_of(to, 2, &[3, 96]).into(), Value::from(view)];
        oracle(BF16).allowing().check("x W^T", &operands, |a| Ok(vec![a[0].matmul(a[1].t())?]));
    }
}

#[test]
fn joined_and_straight_through() {
    let x = || Value::from(normal(2, &[3, 96]));
    let quantize = |w: &Array| -> tacit_core::Result<Value> {
        let parts = w.split_at_indices(&[40], 0)?;
        Ok(Concat::new(parts.iter().map(|part| nf4(part, 64)).collect(), 0)?.into())
    };
    let joined = quantize(&normal_of(BF16, 1, &[64, 96])).expect("quantizes");
    oracle(BF16).check("x W^T", &[x(), joined], |a| Ok(vec![a[0].matmul(a[1].as_dtype(F32)?.t())?]));
    let straight = ste(normal_of(BF16, 1, &[64, 96]), quantize).expect("quantizes");
    assert!(straight.downcast::<Ste>().is_some());
    oracle(BF16).check("x W^T", &[x(), straight], |a| Ok(vec![a[0].matmul(a[1].as_dtype(F32)?.t())?]));
}

#[test]
fn an_integer_type_is_built() {
    let w = nf4(&normal_of(BF16, 1, &[4, 32]), 32);
    let cast = |a: Vec<Array>| Ok(vec![a[0].as_dtype(F32)?.as_dtype(Dtype::Int32)?]);
    check_built("astype", &[w], cast);
}

#[test]
fn what_is_not_cast() {
    check(
        Cast::new(nf4(&normal(1, &[4, 32]), 32), Dtype::Int8),
        expect![[r#"
            f32[4,32] is not cast as a view to i8[4,32]
            help: cast between f32, bf16 and f16, or materialize the array"#]],
    );
    check(
        Cast::new(Array::from_slice(&[1i32, 2], &[2]), F32),
        expect![[r#"
            i32[2] is not cast as a view to f32[2]
            help: cast between f32, bf16 and f16, or materialize the array"#]],
    );
}

#[test]
fn a_narrowing_cast_times_wider_activations() {
    let _deny = Policy::Deny.scope();
    let x = normal(2, &[3, 96]);
    let w = nf4(&normal(1, &[40, 96]), 32);
    let narrowed = implicit((&x, &w), |(x, w)| {
        x.matmul(w.as_dtype(Dtype::Float16)?.as_dtype(Dtype::Bfloat16)?.as_dtype(Dtype::Float32)?.t())
    })
    .expect("is handled")
    .dense()
    .expect("dense");
    let exact = implicit((&x, w), |(x, w)| x.matmul(w.t())).expect("is handled").dense().expect("dense");
    assert_close!(narrowed, exact, 1e-6);
}
