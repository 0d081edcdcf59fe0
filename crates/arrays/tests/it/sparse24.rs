//! Two of each four elements.

use std::slice::from_ref;

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::Sparse24;
use tacit_core::transform::grad;
use tacit_core::{Materialize, Policy, Result, Value, implicit};

use crate::messages::{check, said_of};
use crate::operands::{FLOATS, check_built, normal, normal_of, oracle};
use crate::structured::sparse24;

const F32: Dtype = Dtype::Float32;

type Plain = fn(Vec<Array>) -> Result<Vec<Array>>;

fn pruned(elements: &[f32]) -> Vec<f32> {
    let x = Array::from_slice(elements, &[elements.len() as i32]);
    let dense = Sparse24::prune(&x).expect("groups").materialize().expect("is built");
    dense.dense().expect("dense").as_slice::<f32>().to_vec()
}

#[test]
fn elements_of_one_row_are_taken() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let w = Value::from(Sparse24::prune(&normal(1, &[8]))?);
    let places = Array::from_slice(&[1u32, 6], &[2]);
    let found = implicit(&w, |w| w.take_axis(&places, 0))?.dense()?;
    let expected = w.dense()?.take_axis(&places, 0)?;
    assert_eq!(found.as_slice::<f32>(), expected.as_slice::<f32>());
    Ok(())
}

#[test]
fn the_two_largest_magnitudes_of_each_four() {
    for shape in [&[4, 8][..], &[4, 12], &[2, 3, 20], &[4]] {
        let x = normal(1, shape);
        let w = Sparse24::prune(&x).expect("groups");
        let dense = w.materialize().expect("is built").dense().expect("dense");
        for (x, found) in x.as_slice::<f32>().chunks(4).zip(dense.as_slice::<f32>().chunks(4)) {
            let mut places: Vec<usize> = (0..4).collect();
            places.sort_by(|&i, &j| x[j].abs().total_cmp(&x[i].abs()));
            let expected: Vec<f32> = (0..4).map(|i| if places[..2].contains(&i) { x[i] } else { 0.0 }).collect();
            assert_eq!(found, expected, "of {x:?}");
        }
    }
}

#[test]
fn ties_keep_the_earlier() {
    assert_eq!(pruned(&[1.0, -1.0, 1.0, 1.0]), [1.0, -1.0, 0.0, 0.0]);
    assert_eq!(pruned(&[0.5, 1.0, 2.0, -1.0]), [0.0, 1.0, 2.0, 0.0]);
    assert_eq!(pruned(&[0.0; 8]), [0.0; 8]);
}

#[test]
fn nan_and_infinity_are_kept() {
    // A NaN stands for itself in a text.
    let text = |elements: &[f32]| format!("{:?}", pruned(elements));
    assert_eq!(text(&[1.0, f32::NAN, 3.0, 2.0]), "[0.0, NaN, 3.0, 0.0]");
    assert_eq!(text(&[1.0, f32::NEG_INFINITY, 3.0, 2.0]), "[0.0, -inf, 3.0, 0.0]");
    assert_eq!(text(&[f32::NAN; 4]), "[NaN, NaN, 0.0, 0.0]");
}

#[test]
fn two_groups_to_a_byte_low_first() {
    let x = Array::from_slice(&[0f32, 5.0, 0.0, 7.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 3.0, 4.0], &[12]);
    let w = Sparse24::prune(&x).expect("groups");
    // Places (1, 3), (0, 1) and (2, 3).
    assert_eq!(w.indices().as_slice::<u8>(), [0b0100_1101, 0b1110]);
    assert_eq!(w.values().as_slice::<f32>(), [5.0, 7.0, 1.0, 2.0, 3.0, 4.0]);
    let again = Sparse24::from_parts(w.values().clone(), w.indices().clone()).expect("fits");
    let dense = again.materialize().expect("is built").dense().expect("dense");
    assert_eq!(dense.as_slice::<f32>(), x.as_slice::<f32>());
    assert_eq!(w.indices().nbytes() + w.values().nbytes(), 2 + 6 * 4);
}

#[test]
fn pruning_is_lazy_and_its_gradient_goes_to_the_kept() {
    let _allow = Policy::Allow.scope();
    let prune = |x: &Array| -> Result<Array> { Value::from(Sparse24::prune(x)?).dense() };
    let x = Value::from(normal(1, &[4, 12]));
    oracle(F32).check("prune", from_ref(&x), move |a| {
        let _allow = Policy::Allow.scope();
        Ok(vec![prune(&a[0])?])
    });
    let gradient =
        grad(move |x: Array| prune(&x)?.square()?.sum(None).map_err(tacit_core::Error::from)).call(x.clone());
    let expected = prune(x.as_dense().expect("dense")).expect("runs").multiply(Array::from_f32(2.0)).expect("twice");
    let gradient = gradient.expect("runs");
    assert_eq!(gradient.array().expect("dense").as_slice::<f32>(), expected.as_slice::<f32>());
}

#[test]
fn views_rows_and_scalars() {
    let w = sparse24;
    oracle(F32).check("W^T", &[w()], |a| Ok(vec![a[0].t(), a[0].t().t()]));
    oracle(F32).check("s W", &[w(), normal(1, &[]).into()], |a| Ok(vec![a[1].multiply(&a[0])?]));
    for rows in [Array::from_slice(&[3u32, 0], &[2]), Array::from_slice(&[-1i32], &[])] {
        oracle(F32).check("rows", &[w(), rows.into()], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
    }
    let f = |a: Vec<Array>| Ok(vec![a[0].sum_axes(&[-1], false)?, a[0].sum(None)?, a[0].t().sum_axes(&[0], true)?]);
    oracle(F32).check("sums", &[w()], f);
    oracle(F32).check("sums", &[Sparse24::prune(&normal(1, &[2, 3, 8])).expect("groups").into()], |a| {
        Ok(vec![a[0].sum_axes(&[-1], false)?, a[0].sum_axes(&[0, 2], true)?])
    });
    for dtype in FLOATS {
        oracle(F32).check("astype", &[w()], move |a| Ok(vec![a[0].as_dtype(dtype)?]));
        let half = Value::from(Sparse24::prune(&normal_of(dtype, 1, &[4, 12])).expect("groups"));
        oracle(F32).check("astype", &[half], |a| Ok(vec![a[0].as_dtype(F32)?]));
    }
    let y = implicit(w(), |a| a.t().multiply(Array::from_f32(2.0))?.as_dtype(Dtype::Float16));
    assert_eq!(y.expect("is handled").to_string(), "Sparse24(f16[12,4])");
}

#[test]
fn what_needs_the_array_built() {
    let rows = Value::from(Array::from_slice(&[3u32], &[1]));
    let plain: [(&str, Value, Plain); 4] = [
        ("x W^T", normal(1, &[3, 12]).into(), |a| Ok(vec![a[1].matmul(a[0].t())?])),
        ("sum of columns", normal(1, &[]).into(), |a| Ok(vec![a[0].sum_axes(&[0], false)?])),
        ("columns", rows.clone(), |a| Ok(vec![a[0].take_axis(&a[1], 1)?])),
        ("rows of W^T", rows, |a| Ok(vec![a[0].t().take_axis(&a[1], 0)?])),
    ];
    for (name, operand, f) in plain {
        let operands = [sparse24(), operand];
        check_built(name, &operands, f);
    }
}

#[test]
fn bad_arguments() {
    let said = [
        said_of(Sparse24::prune(&normal(1, &[4, 6]))),
        said_of(Sparse24::prune(&normal(1, &[]))),
        said_of(Sparse24::prune(&Array::from_slice(&[1i32, 2, 3, 4], &[4]))),
        said_of(Sparse24::prune(&ops::zeros::<f32>(&[0, 4]).expect("zeros"))),
    ];
    expect![[r#"
        f32[4,6] has no whole groups of four along its last axis
        help: pad the last axis to a multiple of 4
        f32[] has no whole groups of four along its last axis
        help: pad the last axis to a multiple of 4
        the array is i32[4], which is not float
        help: give an f32, f16 or bf16 array
        the array is f32[0,4], which has no elements
        help: keep an empty array dense
    "#]]
    .assert_eq(&said.concat());
    let bytes = |shape: &[i32]| ops::zeros::<u8>(shape).expect("zeros");
    check(
        Sparse24::from_parts(normal(1, &[2, 6]), bytes(&[2, 1])),
        expect![[r#"
            the indices are u8[2,1], and those of a sparse f32[2,12] are u8[2,2]
            help: pack the places of two groups of four to a byte"#]],
    );
    check(
        Sparse24::from_parts(normal(1, &[2, 3]), bytes(&[2, 1])),
        expect![[r#"
            f32[2,6] has no whole groups of four along its last axis
            help: pad the last axis to a multiple of 4"#]],
    );
}
