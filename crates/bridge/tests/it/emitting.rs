//! A recorded primitive, emitted again.

use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexMutOp};
use mlx_rs::{Array, Dtype, ops};
use tacit_bridge::{Aval, BoxError, Primitive, Scope, Tape, vmap};

use crate::arrays::{matrix, numbers, placeholders, vector};

/// The primitive of the last node of a function of placeholders.
fn recorded<const N: usize>(shapes: [&[i32]; N], f: impl FnOnce([Array; N]) -> Array) -> Primitive {
    let scope = Scope::new().expect("memory");
    let placeholders = placeholders(&scope, shapes);
    let out = f(placeholders.clone());
    let tape = Tape::walk(&[out], &placeholders, &[]).expect("memory");
    tape.primitive(tape.len() - 1).expect("memory")
}

#[test]
fn on_operands_of_the_recorded_shapes() {
    let subtract = recorded([&[2], &[2]], |[x, y]| x.subtract(&y).expect("builds"));
    let results = subtract.emit(&[vector(&[5.0, 7.0]), vector(&[1.0, 2.0])]).expect("fits");
    assert_eq!(results.iter().map(numbers).collect::<Vec<_>>(), [[4.0, 5.0]]);
}

#[test]
fn on_operands_of_other_shapes() {
    let matmul = recorded([&[2, 3], &[3, 4]], |[x, y]| x.matmul(&y).expect("builds"));
    let results = matmul.emit(&[matrix(1, 2), matrix(2, 1)]).expect("fits");
    assert_eq!((results[0].shape(), numbers(&results[0])), (&[1, 1][..], vec![5.0]));
    let transpose = recorded([&[2, 3]], |[x]| x.t());
    assert_eq!(numbers(&transpose.emit(&[matrix(3, 2)]).expect("fits")[0]), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
}

#[test]
fn with_several_results() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2, 3]]);
    let parts = ops::split_at_indices(&x, &[1], 1).expect("builds");
    let tape = Tape::walk(&parts, &[x], &[]).expect("memory");
    let results = tape.primitive(0).expect("memory").emit(&[matrix(2, 3)]).expect("fits");
    assert_eq!(results.iter().map(numbers).collect::<Vec<_>>(), [vec![1.0, 4.0], vec![2.0, 3.0, 5.0, 6.0]]);
}

#[test]
fn other_shapes_of_a_primitive_without_a_shape_rule_are_an_error() {
    let slice = recorded([&[4]], |[x]| ops::split_at_indices(&x, &[2], 0).expect("builds").remove(0));
    assert!(slice.emit(&[vector(&[1.0; 6])]).is_err());
}

#[test]
fn shapes_that_do_not_go_together_are_an_error() {
    let add = recorded([&[2], &[2]], |[x, y]| x.add(&y).expect("builds"));
    let error = add.emit(&[vector(&[1.0; 3]), vector(&[1.0])]).expect_err("not broadcast").to_string();
    assert_eq!(error, "the operands of Add were recorded with one shape and are given with several");
    assert!(add.emit(&[vector(&[1.0; 3]), vector(&[2.0; 3])]).is_ok());
    assert!(add.emit(&[matrix(2, 3), matrix(2, 3)]).is_err());
    let matmul = recorded([&[2, 2], &[2, 2]], |[x, y]| x.matmul(&y).expect("builds"));
    let error = matmul.emit(&[matrix(2, 3), matrix(2, 3)]).expect_err("inner extents").to_string();
    assert_eq!(error, "the operands of Matmul have shapes of which no product is made");
    assert!(matmul.emit(&[matrix(5, 3), matrix(3, 1)]).is_ok());
    let addmm = recorded([&[4], &[2, 3], &[3, 4]], |[c, a, b]| ops::addmm(&c, &a, &b, 1.0, 1.0).expect("builds"));
    assert!(addmm.emit(&[matrix(2, 4), matrix(2, 3), matrix(3, 4)]).is_err());
    assert!(addmm.emit(&[matrix(1, 3), matrix(3, 4), matrix(2, 4)]).is_err());
    assert!(addmm.emit(&[matrix(1, 3), matrix(3, 4), matrix(1, 4)]).is_ok());
}

#[test]
fn places_along_an_axis_are_of_the_recorded_extent() {
    let partition = recorded([&[2, 8]], |[x]| ops::partition_axis(&x, 6, 1).expect("builds"));
    let places = recorded([&[2, 8]], |[x]| ops::argpartition_axis(&x, 6, 1).expect("builds"));
    for primitive in [partition, places] {
        let error = primitive.emit(&[matrix(2, 3)]).expect_err("beyond").to_string();
        let expected = "cannot be emitted on operands of other shapes than it was recorded with";
        assert_eq!(error, format!("{} {expected}", primitive.name()));
        assert_eq!(primitive.emit(&[matrix(5, 8)]).expect("fits")[0].shape(), [5, 8]);
    }
}

#[test]
fn a_slice_is_updated_in_arrays_of_the_recorded_extents_alone() {
    let reversed = recorded([&[4], &[4]], |[mut x, y]| {
        x.try_index_mut((..).stride_by(-1), &y).expect("builds");
        x
    });
    let part = recorded([&[4], &[2]], |[mut x, y]| {
        x.try_index_mut(1..3, &y).expect("builds");
        x
    });
    let numbered = |extent: u8| vector(&(1..=extent).map(f32::from).collect::<Vec<_>>());
    let emitted = |update: &Primitive, extents: [u8; 2]| update.emit(&extents.map(numbered));
    assert_eq!(numbers(&emitted(&reversed, [4, 4]).expect("fits")[0]), [4.0, 3.0, 2.0, 1.0]);
    assert_eq!(numbers(&emitted(&part, [4, 2]).expect("fits")[0]), [1.0, 1.0, 2.0, 4.0]);
    for (update, extents) in
        [(&reversed, [3, 3]), (&reversed, [6, 6]), (&part, [2, 2]), (&part, [6, 2]), (&part, [4, 3]), (&part, [4, 1])]
    {
        let error = emitted(update, extents).expect_err("other extents").to_string();
        let expected = "cannot be emitted on operands of other shapes than it was recorded with";
        assert_eq!(error, format!("{} {expected}", update.name()), "{extents:?}");
    }
}

#[test]
fn nodes_of_one_primitive_are_mapped_each_by_itself() {
    type Moving = fn([Array; 1]) -> Array;
    let moving: [Moving; 3] = [
        |[x]| x.t(),
        |[x]| x.reshape(&[3, 2]).expect("builds"),
        |[x]| ops::broadcast_to(x, &[2, 2, 3]).expect("builds"),
    ];
    for f in moving {
        let primitive = recorded([&[2, 3]], f);
        let emit = |x: &Array| Ok::<_, BoxError>(primitive.emit(std::slice::from_ref(x))?.swap_remove(0));
        let mut both = |args: Vec<Array>| Ok(vec![emit(&args[0])?.add(emit(&args[0].square()?)?)?]);
        let examples = [matrix(2, 3), matrix(2, 3).negative().expect("builds")];
        let batch = ops::stack(&examples, 0).expect("builds");
        let mapped = vmap(&[batch], &[Some(0)], |count| vec![0; count], &mut both).expect("maps");
        let each = examples.map(|x| both(vec![x]).expect("builds").swap_remove(0));
        assert_eq!(numbers(&mapped[0]), numbers(&ops::stack(&each, 0).expect("builds")));
    }
}

#[test]
fn another_dtype_or_number_of_operands_is_an_error() {
    let add = recorded([&[2], &[2]], |[x, y]| x.add(&y).expect("builds"));
    let half = vector(&[1.0, 2.0]).as_dtype(Dtype::Float16).expect("casts");
    let error = add.emit(&[vector(&[1.0, 2.0]), half]).expect_err("another dtype").to_string();
    assert_eq!(error, "operand 1 of Add has another dtype than the recorded one");
    let error = add.emit(&[vector(&[1.0, 2.0])]).expect_err("too few").to_string();
    assert_eq!(error, "Add was recorded with 2 operands and was given 1");
    assert!(add.emit(&[]).is_err());
}

#[test]
fn a_primitive_outlives_its_tape_and_prints_its_parameters() {
    let addmm = recorded([&[4], &[2, 3], &[3, 4]], |[c, a, b]| ops::addmm(&c, &a, &b, 0.5, 2.0).expect("builds"));
    assert_eq!(addmm.to_string(), "addmm[alpha=0.5,beta=2]");
    assert_eq!((addmm.name(), format!("{addmm:?}").as_str()), ("AddMM", "Primitive(addmm[alpha=0.5,beta=2])"));
    let results = addmm.emit(&[matrix(2, 3), matrix(3, 4), ops::zeros::<f32>(&[2, 4]).expect("builds")]).expect("fits");
    assert_eq!(Aval::from(&results[0]).to_string(), "f32[2,4]");
    assert_eq!(numbers(&results[0])[..2], [19.0, 22.0]);
}

#[test]
fn it_may_be_emitted_from_another_thread() {
    let negative = recorded([&[2]], |[x]| x.negative().expect("builds"));
    let emitted =
        std::thread::spawn(move || negative.emit(&[vector(&[1.0, 2.0])]).map(|results| results[0].shape().to_vec()));
    assert_eq!(emitted.join().expect("it does not panic").expect("fits"), [2]);
}
