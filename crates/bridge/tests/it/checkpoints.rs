//! Functions of which nothing is kept for the backward pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_rs::error::Exception;
use mlx_rs::transforms::{fallible_jvp, fallible_vjp};
use mlx_rs::{Array, ops};
use tacit_bridge::{BoxError, checkpoint, vmap};

use crate::arrays::{numbers, vector};

type Made = Result<Vec<Array>, BoxError>;

fn twice(calls: &Arc<AtomicUsize>, args: &[Array]) -> Result<Vec<Array>, Exception> {
    let calls = Arc::clone(calls);
    let f = move |args: &[Array]| -> Made {
        calls.fetch_add(1, Ordering::Relaxed);
        Ok(vec![args[0].square()?.multiply(&args[1])?, args[0].add(&args[1])?])
    };
    checkpoint(f, args).map_err(|error| Exception::custom(error.to_string()))
}

#[test]
fn it_is_called_again_for_the_gradient() {
    let calls = Arc::new(AtomicUsize::new(0));
    let primals = [vector(&[3.0]), vector(&[5.0])];
    let results = twice(&calls, &primals).expect("runs");
    assert_eq!(results.iter().map(numbers).collect::<Vec<_>>(), [[45.0], [8.0]]);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let cotangents = [vector(&[1.0]), vector(&[100.0])];
    let (_, gradients) = fallible_vjp(|args: &[Array]| twice(&calls, args), &primals, &cotangents).expect("works");
    assert_eq!(gradients.iter().map(numbers).collect::<Vec<_>>(), [[130.0], [109.0]]);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[test]
fn operands_without_a_gradient_are_passed_by() {
    let (codes, scales, biases) = ops::quantize(Array::from_slice(&[0.5_f32; 64], &[2, 32]), 32, 4).expect("quantizes");
    let f = |args: &[Array]| {
        let all = [args[0].clone(), codes.clone(), scales.clone(), biases.clone()];
        let product = |args: &[Array]| -> Made {
            Ok(vec![ops::quantized_matmul(&args[0], &args[1], &args[2], &args[3], true, 32, 4)?])
        };
        checkpoint(product, &all).map_err(|error| Exception::custom(error.to_string()))
    };
    let ones = ops::ones::<f32>(&[1, 2]).expect("builds");
    let x = ops::ones::<f32>(&[1, 32]).expect("builds");
    let (_, gradients) = fallible_vjp(f, &[x], &[ones]).expect("differentiates");
    assert!(numbers(&gradients[0]).iter().all(|g| (g - 1.0).abs() < 1e-3));
}

#[test]
fn its_errors_come_back_and_it_lives_as_long_as_its_graph() {
    let error = checkpoint(|_| Err("own words".into()), &[vector(&[1.0])]).expect_err("fails");
    assert_eq!(error.to_string(), "own words");
    let count = Arc::new(());
    let held = Arc::clone(&count);
    let f = move |args: &[Array]| -> Made {
        let _ = &held;
        Ok(vec![args[0].exp()?])
    };
    let result = checkpoint(f, &[vector(&[1.0])]).expect("runs");
    assert_eq!(Arc::strong_count(&count), 2);
    std::thread::spawn(move || drop(result)).join().expect("drops");
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn it_is_mapped_and_differentiated_either_way_around() {
    let calls = Arc::new(AtomicUsize::new(0));
    let mut one = |args: Vec<Array>| -> Made { Ok(twice(&calls, &args)?) };
    let mut mapped = |args: &[Array]| {
        let result = vmap(args, &[Some(0), None], |n| vec![0; n], &mut one);
        result.map_err(|error| Exception::custom(error.to_string()))
    };
    let primals = [Array::from_slice(&[3.0_f32, 4.0], &[2, 1]), vector(&[5.0])];
    let ones = || [(); 2].map(|()| ops::ones::<f32>(&[2, 1]).expect("builds"));
    let (_, gradients) = fallible_vjp(&mut mapped, &primals, &ones()).expect("differentiates");
    assert_eq!(gradients.iter().map(numbers).collect::<Vec<_>>(), [vec![31.0, 41.0], vec![27.0]]);
    let tangents = [ops::ones::<f32>(&[2, 1]).expect("builds"), vector(&[0.0])];
    let (_, changes) = fallible_jvp(&mut mapped, &primals, &tangents).expect("differentiates");
    assert_eq!(changes.iter().map(numbers).collect::<Vec<_>>(), [[30.0, 40.0], [1.0, 1.0]]);
}
