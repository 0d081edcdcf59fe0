//! Sums that observed weights share, and those that they do not.

use expect_test::expect;
use mlx_rs::{Array, ops};
use tacit_arrays::{Observation, Observed};
use tacit_conformance::oracle::floats;
use tacit_core::{array_id, implicit};

use super::{close, gram};
use crate::messages::check;
use crate::operands::normal;

/// The sums are the very array where all that was met is the same, and to the bit those of a weight that is observed by itself.
#[test]
fn weights_that_meet_the_same_share_their_sums() {
    let first = Observed::new(normal(1, &[32, 64])).expect("a weight");
    let [second, third] = [2, 3].map(|seed| first.beside(normal(seed, &[16, 64])).expect("a weight"));
    let [a, b, c] = [4, 5, 6].map(|seed| normal(seed, &[2, 5, 64]));
    let meet = |observed: &Observed, x: &Array| {
        implicit((x, observed), |(x, w)| x.matmul(w.t())).expect("runs");
    };
    for (x, other) in [(&a, &a), (&b, &c), (&c, &c)] {
        // Of a batch, each product has a flattened array of its own.
        for (observed, x) in [(&first, x), (&second, x), (&third, other)] {
            meet(observed, x);
        }
    }
    let alone = |batches: &[&Array]| {
        let observed = Observed::new(normal(1, &[32, 64])).expect("a weight");
        for x in batches {
            meet(&observed, x);
        }
        floats(observed.finish().expect("products").gram().expect("products")).expect("floats")
    };
    let [first, second, third] = [first, second, third].map(|observed| observed.finish().expect("products"));
    assert_eq!(array_id(first.gram().expect("products")), array_id(second.gram().expect("products")));
    assert_ne!(array_id(first.gram().expect("products")), array_id(third.gram().expect("products")));
    assert_eq!(floats(second.gram().expect("products")).expect("floats"), alone(&[&a, &b, &c]));
    assert_eq!(floats(third.gram().expect("products")).expect("floats"), alone(&[&a, &c, &c]));
    assert_eq!((first.rows(), third.rows()), (&[30][..], &[30][..]));
}

/// Gates of experts meet the same rows, if the same of them are chosen.
#[test]
fn experts_share_their_sums_where_they_are_chosen_alike() {
    let first = Observed::new(normal(1, &[4, 32, 64])).expect("a weight");
    let [second, third] = [2, 3].map(|seed| first.beside(normal(seed, &[4, 32, 64])).expect("a weight"));
    let x = normal(4, &[5, 2, 64]);
    let [chosen, others] = [[2u32, 0, 2, 3, 0], [1, 0, 2, 3, 0]].map(|chosen| Array::from_slice(&chosen, &[5]));
    let seen = [(first, &chosen), (second, &chosen), (third, &others)].map(|(observed, chosen)| {
        implicit((&x, &observed), |(x, w)| ops::gather_mm(x, w.swap_axes(1, 2)?, None, chosen, None)).expect("runs");
        observed
    });
    let [first, second, third] = seen.map(|observed| observed.finish().expect("products"));
    assert_eq!(array_id(first.gram().expect("products")), array_id(second.gram().expect("products")));
    assert_eq!((first.rows(), third.rows()), (&[4, 0, 4, 2][..], &[4, 2, 2, 2][..]));
}

#[test]
fn a_weight_that_meets_rows_twice_counts_them_twice() {
    let observed = Observed::new(normal(1, &[32, 64])).expect("a weight");
    let other = observed.beside(normal(2, &[32, 64])).expect("a weight");
    let x = normal(3, &[6, 64]);
    for observed in [&observed, &observed, &other] {
        implicit((&x, observed), |(x, w)| x.matmul(w.t())).expect("runs");
    }
    let [twice, once] = [observed, other].map(|observed| observed.finish().expect("products"));
    assert_eq!((twice.rows(), once.rows()), (&[12][..], &[6][..]));
    close(twice.gram().expect("products"), &gram(&x).multiply(Array::from_f32(2.0)).expect("twice"));
    close(once.gram().expect("products"), &gram(&x));
}

#[test]
fn squares_of_a_stack_are_not_added_to_products_of_one_shape_with_them() {
    let x = normal(1, &[2, 3, 2]);
    let stack = Observed::of_squares(normal(2, &[2, 4, 2])).expect("a weight");
    implicit((&x, &stack), |(x, w)| x.matmul(w.swap_axes(1, 2)?)).expect("runs");
    let (products, squares) = (Observation::from_inputs(&x).expect("finite"), stack.finish().expect("products"));
    check(
        products.plus(&squares),
        expect![[r#"
        products f32[2,2] and squares f32[2,2] are of different inputs
        help: add what was seen of one weight"#]],
    );
}
