//! What a file says, what ranks share, and why handlers decline.

use expect_test::expect;
use mlx_rs::ops;
use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexMutOp, TryIndexOp};
use tacit_arrays::format::Affine;
use tacit_arrays::{AffineArray, Lora, Nf4Array};
use tacit_core::extra_ops::dynamic_slice;
use tacit_core::{Policy, explain};

use super::*;
use crate::FullySharded;

#[test]
fn what_a_file_says_is_checked() {
    let array = |shape: &[i32]| ops::zeros::<f32>(shape).expect("zeros");
    let right = Sharded::from_part(array(&[4, 6]), 1, &Group::alone()).expect("splits");
    right.check().expect("is right");
    let said = |array: Sharded| array.check().expect_err("is refused").to_string();
    let wrapped = Sharded { axis: (1 << 32) | 1, ..right.clone() };
    expect![[r"
        f32[4,6] has no axis 2147483647 to split
        help: give an axis of the array"]]
    .assert_eq(&said(wrapped));
    let shared = Sharded { shared: vec![1], ..right.clone() };
    expect![[r"
        f32[4,6] has no float leaf 1 that every rank would have
        help: split the whole by `Sharded::split`"]]
    .assert_eq(&said(shared));
    let other = Sharded { part: array(&[4, 5]).into(), ..right };
    expect![[r"
        1 ranks with parts of f32[4,5] make f32[4,5], not f32[4,6]
        help: give the part of this rank"]]
    .assert_eq(&said(other));
}

#[test]
fn what_every_rank_has_is_told_by_what_it_is() -> Result<()> {
    let ones = |shape: &[i32]| ops::ones::<f32>(shape);
    let (a, b) = (ones(&[2, 32])?, ones(&[4, 2])?);
    let codes = AffineArray::quantize(&ones(&[4, 32])?, Affine { bits: 4, group: 32 })?;
    let adapted = Value::from(Lora::new(ones(&[4, 32])?, a.clone(), b.clone(), 2.0)?);
    // Of the base, `a` and `b`, whose rows are split, every rank has `a`.
    let split = Sharded { shared: vec![1], ..Sharded::from_part(&adapted, 0, &Group::alone())? };
    let shared = |part: Value| -> Result<Vec<usize>> {
        let result = split.with_held(&mut |_| Ok(Some(part.clone())))?.expect("is given");
        Ok(result.downcast::<Sharded>().expect("it stays split").shared.clone())
    };
    assert_eq!(shared(adapted.clone())?, [1]);
    assert_eq!(shared(Lora::new(codes.clone(), a, b, 2.0)?.into())?, [3]);
    // Merged, each rank has scales of its own.
    assert!(shared(codes.into())?.is_empty());
    Ok(())
}

/// An op on some operands.
type Call = (&'static str, Vec<Value>, fn(&[Array]) -> Result<Array>);

fn ones(shape: &[i32]) -> Array {
    ops::ones::<f32>(shape).expect("ones")
}

/// Ones that are split along an axis, over one rank.
fn split(shape: &[i32], axis: i32) -> Value {
    Sharded::from_part(ones(shape), axis, &Group::alone()).expect("splits").into()
}

/// The numbers 0 and 1 in turn.
fn places(shape: &[i32]) -> Array {
    let numbers: Vec<i32> = (0..shape.iter().product::<i32>()).map(|at| at % 2).collect();
    Array::from_slice(&numbers, shape)
}

/// The reasons of the handlers that decline these calls.
fn reasons(calls: impl IntoIterator<Item = Call>) -> String {
    let _allow = Policy::Allow.scope();
    let mut lines = Vec::new();
    for (name, operands, f) in calls {
        let told = explain(operands, |arrays: Vec<Array>| f(&arrays)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let declined = told.equations.iter().flat_map(|equation| &equation.declined);
        lines.extend(declined.map(|decline| format!("{name}: {}: {}", decline.handler.name, decline.reason)));
    }
    lines.join("\n")
}

#[test]
fn ops_that_move_elements_across_parts_are_declined() {
    let calls: [Call; 10] = [
        ("columns of rows", vec![split(&[4, 6], 0), places(&[3]).into()], |a| Ok(a[0].take_axis(&a[1], 1)?)),
        ("a slice", vec![split(&[4, 6], 0)], |a| Ok(a[0].try_index(1..)?)),
        ("backwards", vec![split(&[4, 6], 0)], |a| Ok(a[0].try_index((.., (..).stride_by(-1)))?)),
        ("an update of two rows", vec![ones(&[6, 4]).into(), split(&[2, 4], 0)], |a| {
            let mut whole = a[0].clone();
            whole.try_index_mut((..2, ..), &a[1])?;
            Ok(whole)
        }),
        ("elements of two rows", vec![ones(&[6, 4]).into(), places(&[2, 4]).into(), split(&[2, 4], 0)], |a| {
            Ok(a[0].put_along_axis(&a[1], &a[2], 0)?)
        }),
        ("elements across parts", vec![split(&[4, 6], 0), places(&[2, 6]).into(), ones(&[2, 6]).into()], |a| {
            Ok(a[0].put_along_axis(&a[1], &a[2], 0)?)
        }),
        ("a dynamic slice", vec![split(&[4, 6], 0)], |a| {
            dynamic_slice(&a[0], &Array::from_slice(&[1i32], &[1]), &[0], &[2, 6])
        }),
        ("pieces", vec![split(&[4, 6], 0)], |a| Ok(a[0].split_equal(2, 0)?.swap_remove(0))),
        ("one behind the other", vec![split(&[4, 6], 0), split(&[2, 6], 0)], |a| {
            Ok(ops::concatenate(&[&a[0], &a[1]], 0)?)
        }),
        ("padding", vec![split(&[4, 6], 0)], |a| {
            Ok(ops::pad(&a[0], [(1, 1), (0, 0)].as_slice(), Array::from_f32(0.0), None)?)
        }),
    ];
    expect![[r#"
        columns of rows: sharded_gather: only whole rows are gathered from the parts
        a slice: sharded_slice: the slice cuts the axis that is split
        a slice: linear_slice: no view of tacit.Sharded has a product
        backwards: sharded_slice: the slice runs backwards
        backwards: linear_slice: only ranges without steps are cut as a view
        an update of two rows: sharded_slice_update_of: the update does not cover the axis that it is split along
        elements of two rows: sharded_scatter_axis_of: the update does not cover the axis that it is split along
        elements across parts: sharded_scatter_axis: it puts elements along the axis that is split
        a dynamic slice: sharded_dynamic_slice: the slice cuts the axis that is split
        pieces: sharded_split: the pieces lie across the parts
        one behind the other: sharded_concatenate: arrays are joined along the axis that is split
        one behind the other: linear_concatenate: no part has a product
        one behind the other: sharded_concatenate: arrays are joined along the axis that is split
        one behind the other: linear_concatenate: no part has a product
        padding: sharded_pad: the axis that is split is padded"#]]
    .assert_eq(&reasons(calls));
}

#[test]
fn ops_whose_operands_are_split_in_another_way_are_declined() -> Result<()> {
    let codes = Value::from(Nf4Array::quantize(&ones(&[8, 64]), 64)?);
    let gathered = Value::from(FullySharded::new(ones(&[4, 6]), &Group::alone())?);
    let places_in_parts = Value::from(Sharded::from_part(places(&[2, 3]), 1, &Group::alone())?);
    let calls: [Call; 9] = [
        ("a sum", vec![split(&[4, 6], 0), split(&[4, 6], 1)], |a| Ok(a[0].add(&a[1])?)),
        ("a scan", vec![split(&[4, 6], 1)], |a| Ok(a[0].cumsum(1, None, None)?)),
        ("a sort", vec![split(&[4, 6], 1)], |a| Ok(ops::sort_axis(&a[0], 1)?)),
        ("a product of elements", vec![split(&[4, 6], 1)], |a| Ok(a[0].prod_axis(1, false)?)),
        ("places in parts", vec![split(&[2, 6], 1), places_in_parts], |a| Ok(a[0].take_along_axis(&a[1], 1)?)),
        ("experts of experts", vec![ones(&[5, 1, 3]).into(), split(&[2, 2, 3, 4], 2)], |a| {
            let chosen = Array::from_slice(&[1u32, 0, 1, 1, 0], &[5]);
            Ok(ops::gather_mm(&a[0], &a[1], None, &chosen, None)?)
        }),
        ("a product with codes", vec![split(&[4, 64], 0), codes], |a| Ok(a[0].matmul(a[1].t())?)),
        ("no gradient", vec![split(&[4, 6], 0)], |a| Ok(mlx_rs::stop_gradient(&a[0])?)),
        ("rows", vec![gathered, places(&[3]).into()], |a| Ok(a[0].take_axis(&a[1], 0)?)),
    ];
    expect![[r#"
        a sum: sharded_elementwise: Sharded(f32[4,6]) is split along axis 1 over one rank, and f32[4,6] along axis 0 over one rank
        a sum: sharded_elementwise_second: Sharded(f32[4,6]) is split along axis 0 over one rank, and f32[4,6] along axis 1 over one rank
        a sum: sharded_elementwise: Sharded(f32[4,6]) is split along axis 0 over one rank, and f32[4,6] along axis 1 over one rank
        a sum: sharded_elementwise_second: Sharded(f32[4,6]) is split along axis 1 over one rank, and f32[4,6] along axis 0 over one rank
        a scan: sharded_scan: it runs along the axis that is split
        a sort: sharded_rowwise: it runs along the axis that is split
        a product of elements: sharded_reduction: ranks share no products of their elements
        places in parts: sharded_gather_axis: the places are not dense
        experts of experts: sharded_gather_mm: f32[2,2,3,4] is not a stack of matrices
        a product with codes: sharded_matmul: Nf4(f32[64,8]) is not whole on every rank, or is stored
        a product with codes: linear_matmul: the other side is Sharded(f32[4,64]), which is not dense
        no gradient: sharded_compiled: parts have no rule for it
        rows: linear_gather: rows are taken of what is gathered"#]].assert_eq(&reasons(calls));
    Ok(())
}
