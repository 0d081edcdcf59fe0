//! What rewriting a graph asks: equal nodes, known scalars, where nodes run.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::transforms::{async_eval, eval};
use mlx_rs::{Array, Dtype, ops};
use tacit_bridge::{Aval, Scope, array_id, cse, runs_here, scalar_value};

use crate::growth::assert_linear;
use crate::turns;

#[test]
fn equal_nodes_on_equal_constants_become_one() {
    let scope = Scope::new().unwrap();
    let x = scope.placeholder(&Aval::new(&[4], Dtype::Float32)).unwrap();
    let scaled = |factor: f32| x.multiply(Array::from_f32(factor)).unwrap().exp().unwrap();
    let outputs = [scaled(2.0), scaled(2.0), scaled(3.0), scaled(2.0).log().unwrap()];
    let (left, removed) = cse(&outputs, std::slice::from_ref(&x)).unwrap();
    let ids: Vec<usize> = left.iter().map(array_id).collect();
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0], ids[2]);
    // A product and an exponential, twice.
    assert_eq!(removed, 4);
}

#[test]
fn parameters_and_operands_tell_nodes_apart() {
    let scope = Scope::new().unwrap();
    let x = scope.placeholder(&Aval::new(&[4, 3], Dtype::Float32)).unwrap();
    let outputs = [
        x.sum_axes(&[0], true).unwrap(),
        x.sum_axes(&[1], true).unwrap(),
        x.max_axes(&[1], true).unwrap(),
        x.as_dtype(Dtype::Float16).unwrap(),
        x.as_dtype(Dtype::Bfloat16).unwrap(),
    ];
    let (left, removed) = cse(&outputs, std::slice::from_ref(&x)).unwrap();
    assert_eq!(removed, 0);
    assert!(left.iter().zip(&outputs).all(|(left, output)| array_id(left) == array_id(output)));
}

#[test]
fn the_parts_of_a_split_are_merged_in_their_places() {
    let scope = Scope::new().unwrap();
    let x = scope.placeholder(&Aval::new(&[6], Dtype::Float32)).unwrap();
    let (one, two) = (x.split_equal(3, 0).unwrap(), x.split_equal(3, 0).unwrap());
    let sum = one[0].add(&two[2]).unwrap();
    let outputs = [sum, one[1].clone(), two[1].clone()];
    let (left, removed) = cse(&outputs, std::slice::from_ref(&x)).unwrap();
    assert_eq!((removed, array_id(&left[1])), (1, array_id(&left[2])));
}

#[test]
fn scalars_are_known_where_their_data_is() {
    let known = |array: &Array| scalar_value(array).unwrap();
    assert_eq!(known(&Array::from_f32(0.5)), Some(0.5));
    assert_eq!(known(&Array::from_int(-3)), Some(-3.0));
    assert_eq!(known(&Array::from_slice(&[1.0_f32, 2.0], &[2])), None);
    let sum = Array::from_f32(1.0).add(Array::from_f32(1.0)).unwrap();
    assert_eq!(known(&sum), None);
    assert!(runs_here(&sum).unwrap());
    assert!(!runs_here(&Array::from_f32(1.0)).unwrap());
    assert!(runs_here(&ops::exp(&sum).unwrap()).unwrap());
}

/// A number that takes a while, and is under way.
fn in_flight(seed: u64) -> Array {
    let key = mlx_rs::random::key(seed).unwrap();
    let x = mlx_rs::random::normal::<f32>(&[700, 700], None, None, &key).unwrap();
    let number = x.matmul(&x).unwrap().matmul(&x).unwrap().abs().unwrap().max(None).unwrap();
    async_eval([&number]).unwrap();
    number
}

#[test]
fn a_scalar_that_is_still_computed_is_waited_for() {
    let _turn = turns::of_memory();
    for seed in 0..5 {
        let number = in_flight(seed);
        let known = scalar_value(&number).unwrap();
        assert_eq!(known, Some(f64::from(number.try_item_exact::<f32>().unwrap())));
    }
}

#[test]
fn scalars_that_are_still_computed_are_told_apart() {
    let _turn = turns::of_memory();
    let scope = Scope::new().unwrap();
    let x = scope.placeholder(&Aval::new(&[4], Dtype::Float32)).unwrap();
    let numbers = [0, 1].map(in_flight);
    let outputs = numbers.each_ref().map(|number| x.multiply(number).unwrap());
    let (left, removed) = cse(&outputs, std::slice::from_ref(&x)).unwrap();
    assert_eq!(removed, 0);
    assert_ne!(array_id(&left[0]), array_id(&left[1]));
    // Their turn ends with them.
    eval(&numbers).unwrap();
}

#[test]
fn the_slices_of_one_array_take_time_by_their_number() {
    assert_linear(1000, |count| {
        let scope = Scope::new().unwrap();
        let extent = count as i32;
        let x = scope.placeholder(&Aval::new(&[extent], Dtype::Float32)).unwrap();
        let outputs: Vec<Array> = (0..extent).map(|at| x.try_index(at..at + 1).unwrap()).collect();
        let (_, removed) = cse(&outputs, std::slice::from_ref(&x)).unwrap();
        assert_eq!(removed, 0);
    });
}
