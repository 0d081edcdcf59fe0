//! The kernel against plain ops, and against columns that are coded as whole blocks of equal elements.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Kernel, apply};

use super::super::quantize::Quantize;
use super::super::tests::{normal, schemes};
use super::super::{Coding, Layout, Scheme};
use super::{RoundColumns, dequantize, encode_by, round_columns};
use crate::format::{Format, Nf4, Nvfp4};

const ROWS: i32 = 5;
const COLUMNS: i32 = 6;
const GROUPS: [i32; 6] = [0, 1, 0, 0, 1, 1];

/// A column as each of its elements is coded in a block of its row's scale.
fn in_blocks(scheme: Scheme, block: usize, column: &Array, stored: &[Array]) -> Array {
    let width = block as i32;
    let layout = Layout { scheme, n: ROWS as usize, k: block, block };
    let whole = ops::broadcast_to(column, &[ROWS, width]).expect("broadcasts");
    let mut children = vec![encode_by(scheme, block, &whole, stored).expect("codes")];
    children.extend(stored.iter().cloned());
    if matches!(scheme.coding, Coding::Signed) {
        children[1] = stored[0].divide(Array::from_f32(127.0)).expect("divides");
    }
    if scheme.is_relative() {
        children[2] = stored[1].divide(Array::from_f32(448.0 * 6.0)).expect("divides");
    }
    let read = dequantize(layout, &children, Dtype::Float32).expect("reads");
    read.take_axis(Array::from_slice(&[0], &[1]), 1).expect("takes")
}

fn check(scheme: Scheme, block: usize, global: Option<&Array>) {
    // What the rows of two groups are coded by.
    let stored = [1, 4].map(|seed| -> Vec<Array> {
        let x = normal(seed, &[ROWS, block as i32]);
        let inputs: Vec<Array> = std::iter::once(&x).chain(global).cloned().collect();
        let results = apply(Quantize::new(scheme, block), &inputs).expect("quantizes");
        results[1..].iter().chain(global).cloned().collect()
    });
    let numbers = stored[0].len() - usize::from(global.is_some());
    let both = (0..numbers).map(|number| {
        let of_group = |group: usize| stored[group][number].reshape(&[1, ROWS]);
        ops::concatenate(&[of_group(0)?, of_group(1)?], 0)
    });
    let both = both.collect::<Result<Vec<_>, Exception>>().expect("one for each row");
    let both: Vec<Array> = both.iter().chain(global).cloned().collect();
    let x = normal(2, &[ROWS, COLUMNS]);
    let two = ops::eye::<f32>(COLUMNS, None, None).and_then(|unit| unit.multiply(Array::from_f32(2.0))).expect("2");
    let spread = normal(3, &[COLUMNS, COLUMNS]).multiply(Array::from_f32(0.3)).expect("scales");
    let triangle = spread.add(two).expect("adds");

    let found = round_columns(scheme, [&x, &triangle], &GROUPS, &both).expect("runs");
    let groups = Array::from_slice(&GROUPS, &[COLUMNS]);
    let of_columns = both[..numbers].iter().map(|numbers| numbers.take_axis(&groups, 0).expect("takes"));
    let sides = [&x, &triangle].into_iter().cloned();
    let inputs: Vec<Array> = sides.chain(of_columns).chain(global.cloned()).collect();
    let plain = RoundColumns { scheme }.decompose(&inputs).expect("runs");
    let (mut part, mut rounded, mut errors) = (x, Vec::new(), Vec::new());
    for (column, group) in (0..).zip(GROUPS) {
        let at = Array::from_slice(&[column], &[1]);
        let taken = |array: &Array, axis| array.take_axis(&at, axis).expect("takes");
        let (own, row) = (taken(&part, 1), taken(&triangle, 0));
        let result = in_blocks(scheme, block, &own, &stored[group as usize]);
        let error = own.subtract(&result).and_then(|lost| lost.divide(taken(&row, 1))).expect("divides");
        part = error.multiply(row).and_then(|spread| part.subtract(spread)).expect("subtracts");
        rounded.push(result);
        errors.push(error);
    }
    let expected = [rounded, errors].map(|columns| ops::concatenate(&columns, 1).expect("joins"));
    for ((found, plain), expected) in found.iter().zip(&plain).zip(&expected) {
        assert_eq!(found.shape(), [ROWS, COLUMNS]);
        assert!(found.eq_exact(expected).expect("compares"), "{} {block}: {found:?}\n{expected:?}", scheme.label);
        assert!(plain.eq_exact(expected).expect("compares"), "{} {block}: {plain:?}\n{expected:?}", scheme.label);
    }
}

#[test]
fn a_column_by_itself_has_the_numbers_that_it_has_in_whole_blocks() {
    for (scheme, block, _) in schemes().into_iter().filter(|(scheme, ..)| scheme.is_scaled()) {
        check(scheme, block, None);
    }
    check(Nvfp4 { global: true }.scheme(), 16, Some(&Array::from_f32(3.0)));
}

#[test]
fn groups_that_are_not_there_are_refused() {
    let (x, triangle) = (normal(1, &[ROWS, COLUMNS]), normal(2, &[COLUMNS, COLUMNS]));
    let of = |groups: &[i32], scales: &[i32]| {
        round_columns(Nf4::from(64).scheme(), [&x, &triangle], groups, &[normal(3, scales)])
    };
    assert!(of(&GROUPS, &[2, ROWS]).is_ok());
    for (groups, scales) in [(&GROUPS[..], [1, ROWS]), (&GROUPS[1..], [2, ROWS]), (&[0; 6][..], [2, 4])] {
        let error = of(groups, &scales).expect_err("they do not fit").to_string();
        assert!(error.contains("each column has a group, and each row numbers of all groups"), "{error}");
    }
}
