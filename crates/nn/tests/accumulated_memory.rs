//! What the gradients of many layers hold while they are computed: this is the only test of its program, as MLX counts the bytes of
//! a whole one.

mod peak;

// Dense products are those of a program with the facade.
use tacit_blas as _;

use std::collections::BTreeMap;

use mlx_rs::module::FlattenedModuleParam;
use mlx_rs::{Array, memory, ops, random, transforms};
use tacit_core::Result;
use tacit_core::transform::{checkpoint, value_and_grad};
use tacit_nn::training::Accumulated;

use peak::peak;

const LAYERS: usize = 24;
const TOKENS: i32 = 4096;
const WIDTH: i32 = 32;
const INNER: i32 = 256;

/// The weights into a layer and out of it.
fn weights() -> Vec<Array> {
    let of = |number: usize| {
        let shape = if number.is_multiple_of(2) { [WIDTH, INNER] } else { [INNER, WIDTH] };
        random::normal::<f32>(&shape, None, Some(0.1), &random::key(number as u64).expect("a key")).expect("numbers")
    };
    (0..2 * LAYERS).map(of).collect()
}

/// The gradients of all layers, which are computed again, not evaluated yet.
fn gradients(weights: &[Array], x: &Array) -> FlattenedModuleParam {
    let mut step = value_and_grad(|weights: Vec<Array>| -> Result<Array> {
        let layer = |(x, into, out): (Array, Array, Array)| x.add(x.matmul(into)?.sin()?.matmul(out)?);
        let last = weights
            .chunks_exact(2)
            .try_fold(x.clone(), |x, own| checkpoint(layer).call((x, own[0].clone(), own[1].clone()))?.dense());
        Ok(last?.square()?.mean(None)?)
    });
    let (_, gradients) = step.call(weights.to_vec()).expect("differentiates");
    let path =
        |number: usize| format!("layers.{}.{}", number / 2, if number.is_multiple_of(2) { "into" } else { "out" });
    let gradients = gradients.iter().enumerate();
    gradients.map(|(number, gradient)| (path(number).into(), gradient.array().expect("dense").clone())).collect()
}

/// Arrays of a batch, and the bytes of each.
const ARRAYS: usize = 16;
const BYTES: usize = 4 << 20;

/// Gradients that take memory where they are computed.
fn batch() -> FlattenedModuleParam {
    let of = |number: usize| {
        let numbers = ops::arange::<_, f32>(None, (BYTES / 4) as i32, None).expect("numbers");
        (format!("layers.{number}.weight").into(), numbers)
    };
    (0..ARRAYS).map(of).collect()
}

/// What a second batch takes beside the sums of the first.
fn a_batch_that_is_given_away_lies_in_the_new_sums() {
    let mut accumulated = Accumulated::default();
    accumulated.add(batch()).expect("adds");
    let given = peak(|| accumulated.add(batch()).expect("adds"));
    let batch = batch();
    let held = peak(|| accumulated.add(&batch).expect("adds"));
    println!("{given} bytes for a batch that is given away, and {held} for one that is held");
    assert!(given < ARRAYS * BYTES * 5 / 4, "{given} bytes");
    assert!(held > ARRAYS * BYTES * 7 / 4, "{held} bytes");
}

#[test]
fn gradients_go_as_they_are_added() {
    // MLX then queues few tasks ahead, whose results would be counted.
    memory::set_memory_limit(0).expect("sets a limit");
    let weights = weights();
    let x = random::normal::<f32>(&[TOKENS, WIDTH], None, None, &random::key(99).expect("a key")).expect("numbers");
    transforms::eval(weights.iter().chain([&x])).expect("evaluates");
    let added = peak(|| Accumulated::default().add(gradients(&weights, &x)).expect("adds"));
    let at_once = peak(|| {
        let sorted: BTreeMap<_, _> = gradients(&weights, &x).into_iter().collect();
        transforms::eval(sorted.values()).expect("evaluates");
    });
    println!("{added} bytes, and {at_once} where all gradients are evaluated at once");
    assert!(3 * added < 2 * at_once, "{added} bytes, and {at_once} where all gradients are evaluated at once");
    a_batch_that_is_given_away_lies_in_the_new_sums();
}
