//! Arrays that are joined, such as the weights of queries, keys and values.

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::Parts;
use tacit_arrays::{Concat, Diagonal, Nf4Array, Ste, Transposed, ste};
use tacit_conformance::opaque::Refusing;
use tacit_core::{Aval, Error, Policy, Result, Value, implicit};

use crate::messages::{check, said_of};
use crate::operands::{affine, check_built, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

/// Parts of three types, of 40, 8 and 16 rows of 96.
fn rows(dtype: Dtype) -> Value {
    let part = |seed, rows| normal_of(dtype, seed, &[rows, 96]);
    let parts = vec![nf4(&part(1, 40), 64), affine(&part(2, 8), 32, 4), part(3, 16).into()];
    Concat::new(parts, 0).expect("fits").into()
}

/// Parts of two types, of 32 and 64 columns and 40 rows.
fn columns() -> Value {
    let parts = vec![nf4(&normal(1, &[40, 32]), 64), affine(&normal(2, &[40, 64]), 32, 4)];
    Concat::new(parts, -1).expect("fits").into()
}

fn product(a: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![a[0].matmul(&a[1])?])
}

fn transposed(a: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![a[0].matmul(a[1].t())?])
}

fn left(a: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![a[1].matmul(&a[0])?])
}

#[test]
fn products_are_joined_or_summed() {
    let x = |rows, columns| Value::from(normal(4, &[rows, columns]));
    for (w, n) in [(rows(F32), 64), (columns(), 40)] {
        oracle(F32).check("x W", &[x(3, n), w.clone()], product);
        oracle(F32).check("x W^T", &[x(3, 96), w.clone()], transposed);
        oracle(F32).check("W x", &[x(96, 3), w.clone()], left);
        oracle(F32).check("W^T x", &[x(n, 3), w.clone()], |a| Ok(vec![a[1].t().matmul(&a[0])?]));
        oracle(F32).check("batched", &[normal(4, &[2, 3, 96]).into(), w.clone()], transposed);
        oracle(F32).check("addmm", &[x(3, 96), w.clone(), normal(5, &[n]).into()], |a| {
            Ok(vec![ops::addmm(&a[2], &a[0], a[1].t(), 0.5, -2.0)?])
        });
        oracle(F32).check("addmm, left", &[x(96, 3), w, normal(5, &[n, 3]).into()], |a| {
            Ok(vec![ops::addmm(&a[2], &a[1], &a[0], 0.5, -2.0)?])
        });
    }
}

#[test]
fn parts_of_several_types_are_mapped_and_have_tangents() {
    let oracle = oracle(F32).allowing().transformed();
    for w in [rows(F32), columns()] {
        oracle.check("x W^T", &[normal(4, &[3, 96]).into(), w.clone()], transposed);
        oracle.check("W x", &[normal(4, &[96, 3]).into(), w], left);
    }
}

#[test]
fn a_half_projection() {
    let dtype = Dtype::Bfloat16;
    // Plain MLX sums the gradients of affine scales and biases in their own type.
    let oracle = oracle(dtype).values_only();
    oracle.check("x W^T", &[normal_of(dtype, 4, &[3, 96]).into(), rows(dtype)], transposed);
    // Activations of another type cast each part.
    oracle.check("x W^T", &[normal(4, &[3, 96]).into(), rows(dtype)], transposed);
}

#[test]
fn a_product_is_split_into_those_of_the_parts() {
    oracle(F32).check("q, k, v", &[normal(4, &[3, 96]).into(), rows(F32)], |a| {
        Ok(a[0].matmul(a[1].t())?.split_at_indices(&[40, 48], -1)?)
    });
}

#[test]
fn whole_parts_are_cut_out() {
    let x = || Value::from(normal(4, &[3, 96]));
    oracle(F32).check("slice", &[x(), rows(F32)], |a| Ok(vec![a[0].matmul(a[1].try_index(40..)?.t())?]));
    oracle(F32).check("one part", &[x(), rows(F32)], |a| Ok(vec![a[0].matmul(a[1].try_index(40..48)?.t())?]));
    oracle(F32).check("split", &[x(), rows(F32)], |a| {
        let parts = a[1].split_at_indices(&[40], 0)?;
        Ok(vec![a[0].matmul(parts[0].t())?, a[0].matmul(parts[1].t())?])
    });
    let _deny = Policy::Deny.scope();
    let part = implicit(rows(F32), |w| w.try_index(0..40)).expect("is handled");
    assert_eq!(part.to_string(), "Nf4(f32[40,96])");
}

#[test]
fn a_part_that_cannot_be_cut_is_taken_out_whole() {
    let _deny = Policy::Deny.scope();
    let parts = vec![Diagonal::new(normal(2, &[8])).expect("a vector").into(), normal(3, &[4, 8]).into()];
    let w = Concat::new(parts, 0).expect("they fit");
    let part = implicit(w, |w| w.try_index(0..8)).expect("is a part");
    assert_eq!(part.to_string(), "Diagonal(f32[8,8])");
}

#[test]
fn parts_at_the_ends_are_cut() {
    let x = Value::from(normal(4, &[3, 96]));
    oracle(F32).check("slice", &[x, rows(F32)], |a| Ok(vec![a[0].matmul(a[1].try_index(1..46)?.t())?]));
    let _deny = Policy::Deny.scope();
    let part = implicit(rows(F32), |w| w.try_index(1..48)).expect("is a view");
    assert_eq!(part.to_string(), "Concat(f32[47,96])");
}

#[test]
fn a_split_part_is_built() {
    let cases: [fn(&Array) -> Result<Array>; 2] =
        [|w| Ok(w.split_equal(4, 0)?.swap_remove(1)), |w| Ok(w.split_equal(2, 1)?.swap_remove(1))];
    for f in cases {
        let cut = move |a: Vec<Array>| Ok(vec![f(&a[0])?]);
        check_built("slice", &[rows(F32)], cut);
    }
}

#[test]
fn rows_of_any_part() {
    for (indices, shape) in [(&[3i32, 39, 40, 47, 48, 63, 0, -1, -64][..], &[9][..]), (&[45, 3, 50, 1], &[2, 2])] {
        let wanted = Value::from(Array::from_slice(indices, shape));
        oracle(F32).check("rows", &[rows(F32), wanted], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
    }
    let wanted = Value::from(Array::from_slice(&[3u32, 39, 0], &[3]));
    oracle(F32).check("rows", &[columns(), wanted], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
}

#[test]
fn casts_and_factors() {
    for w in [rows(F32), columns()] {
        oracle(F32).check("astype", std::slice::from_ref(&w), |a| Ok(vec![a[0].as_dtype(Dtype::Bfloat16)?]));
        let operands = [normal(4, &[3, 96]).into(), w, Array::from_f32(0.5).into()];
        oracle(F32).check("x (s W)^T", &operands, |a| Ok(vec![a[0].matmul(a[1].multiply(&a[2])?.t())?]));
    }
}

#[test]
fn views_of_it_and_straight_through_it() {
    let view = Transposed::new(rows(F32), &[1, 0]).expect("a matrix");
    oracle(F32).check("x W", &[normal(4, &[3, 96]).into(), view.into()], product);
    let quantize = |w: &Array| {
        let parts = w.split_at_indices(&[40], 0)?;
        let parts: Vec<Value> = parts.iter().map(|part| nf4(part, 64)).collect();
        Concat::new(parts, 0)
    };
    let w = ste(normal(1, &[64, 96]), quantize).expect("quantizes");
    assert!(w.downcast::<Ste>().is_some_and(|ste| ste.inner().downcast::<Concat>().is_some()));
    oracle(F32).check("x W^T", &[normal(4, &[3, 96]).into(), w], transposed);
}

#[test]
fn parts_of_three_axes() {
    let part = |seed, rows| nf4(&normal(seed, &[2, rows, 32]), 64);
    let w = Value::from(Concat::new(vec![part(1, 3), part(2, 5)], 1).expect("fits"));
    let operands = [normal(4, &[2, 3, 32]).into(), w];
    let product = |a: Vec<Array>| Ok(vec![a[0].matmul(a[1].swap_axes(-1, -2)?)?]);
    oracle(F32).allowing().check("x W^T", &operands, product);
    let w = Value::from(Concat::new(vec![part(1, 3), part(2, 3)], 0).expect("fits"));
    let operands = [normal(4, &[4, 3, 32]).into(), w];
    oracle(F32).allowing().check("x W^T", &operands, product);
}

#[test]
fn another_shape_has_the_same_parts_where_their_axis_stays() {
    let part = |seed, rows| nf4(&normal(seed, &[2, rows, 64]), 64);
    let w = || Value::from(Concat::new(vec![part(1, 3), part(2, 5)], 1).expect("fits"));
    {
        let _deny = Policy::Deny.scope();
        let shaped = implicit(w(), |w| w.reshape(&[1, 2, 8, 64])).expect("is a view");
        assert_eq!(shaped.to_string(), "Concat(f32[1,2,8,64])");
        let repeated = implicit(shaped, |w| ops::broadcast_to(w, &[3, 2, 8, 64])).expect("is a view");
        assert_eq!(repeated.to_string(), "Concat(f32[3,2,8,64])");
        let moved = implicit(w(), |w| w.reshape(&[16, 64]));
        assert!(matches!(moved, Err(Error::MaterializationDenied { .. })), "{moved:?}");
    }
    for shape in [&[1, 2, 8, 64][..], &[2, 8, 32, 2], &[16, 64]] {
        let shape = shape.to_vec();
        oracle(F32).allowing().check("reshape", &[w()], move |a| Ok(vec![a[0].reshape(&shape)?]));
    }
}

#[test]
fn what_is_not_joined() {
    let part =
        |dtype, shape: &[i32]| Value::from(Nf4Array::quantize(&normal_of(dtype, 1, shape), 32).expect("quantizes"));
    check(
        Concat::new(Vec::new(), 0),
        expect![[r#"
            there are no parts to join
            help: give at least one array"#]],
    );
    for axis in [2, -3] {
        let expected = if axis == 2 {
            expect![[r#"
                f32[4,32] has no axis 2 to be joined along
                help: it has 2 axes, counted from zero, or from -1 backwards"#]]
        } else {
            expect![[r#"
                f32[4,32] has no axis -3 to be joined along
                help: it has 2 axes, counted from zero, or from -1 backwards"#]]
        };
        check(Concat::new(vec![part(F32, &[4, 32])], axis), expected);
    }
    let said = [
        said_of(Concat::new(vec![part(F32, &[4, 32]), part(F32, &[4, 64])], 0)),
        said_of(Concat::new(vec![part(F32, &[4, 32]), part(Dtype::Float16, &[4, 32])], 0)),
        said_of(Concat::new(vec![part(F32, &[4, 32]), part(F32, &[128])], 0)),
    ];
    expect![[r#"
        f32[4,32] and f32[4,64] are not joined along axis 0
        help: give parts of one dtype that differ in this axis alone
        f32[4,32] and f16[4,32] are not joined along axis 0
        help: give parts of one dtype that differ in this axis alone
        f32[4,32] and f32[128] are not joined along axis 0
        help: give parts of one dtype that differ in this axis alone
    "#]]
    .assert_eq(&said.concat());
    let long = || Value::from(Refusing::new(Aval::new(&[i32::MAX, 2], F32)));
    check(
        Concat::new(vec![long(), long()], 0),
        expect![[r#"
            the parts are together longer than 2147483647 along axis 0
            help: join fewer parts"#]],
    );
}

/// Nothing is evaluated, and no memory taken.
#[test]
fn more_elements_than_a_packed_array_has_stay_parts() -> Result<()> {
    let codes = ops::broadcast_to(ops::zeros::<u8>(&[1])?, &[1 << 29])?;
    let scales = ops::broadcast_to(ops::zeros::<f32>(&[1])?, &[1 << 24])?;
    let w = Value::from(Nf4Array::from_parts(Parts::new(codes, scales), 64, Aval::new(&[1 << 17, 1 << 13], F32))?);
    let joined = implicit((&w, &w), |(a, b)| ops::concatenate(&[a, b], 0))?;
    assert_eq!(joined.to_string(), "Concat(f32[262144,8192])");
    Ok(())
}

#[test]
fn what_is_joined_again_and_again_has_few_parts() -> Result<()> {
    let (first, rows) = (nf4(&normal(1, &[4, 32]), 32), normal(2, &[600, 32]));
    let mut keys = first.clone();
    {
        let _deny = Policy::Deny.scope();
        for row in 0..600 {
            keys = implicit((&keys, rows.try_index(row..row + 1)?), |(keys, row)| ops::concatenate(&[keys, row], 0))?;
        }
    }
    assert_eq!(keys.to_string(), "Concat(f32[604,32])");
    assert_eq!(keys.downcast::<Concat>().map(|keys| keys.parts().len()), Some(2));
    let both = [rows.try_index(..1)?, rows.try_index(1..2)?];
    let longer = implicit((&keys, &both[0], &both[1]), |(keys, a, b)| ops::concatenate(&[keys, a, b], 0))?;
    assert_eq!(longer.downcast::<Concat>().map(|keys| keys.parts().len()), Some(2));
    let whole = Value::from(Concat::new(vec![first, rows.into()], 0)?);
    let scores = |keys: &Value| implicit((normal(3, &[1, 32]), keys), |(q, k)| q.matmul(k.t()))?.dense();
    let (found, expected) = (scores(&keys)?, scores(&whole)?);
    assert!(found.all_close(&expected, 1e-5, 1e-5, None)?);
    // The dense part is cut where it is asked for.
    let _deny = Policy::Deny.scope();
    let halves = implicit(&keys, |keys| keys.split_at_indices(&[300], 0))?;
    assert_eq!(halves.iter().map(Value::to_string).collect::<Vec<_>>(), ["Concat(f32[300,32])", "f32[304,32]"]);
    Ok(())
}
