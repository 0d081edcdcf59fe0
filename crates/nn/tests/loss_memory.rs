//! What a loss over many classes holds: this is the only test of its program, as MLX counts the bytes of a whole one.

mod peak;

// Dense products are those of a program with the facade.
use tacit_blas as _;

use mlx_rs::{Array, Dtype, random, transforms};
use tacit_arrays::format::AnyFormat;
use tacit_core::transform::value_and_grad;
use tacit_core::{Error, Policy, Result, Value};
use tacit_nn::training::chunked_cross_entropy;

use peak::peak;

const ROWS: i32 = 256;
const WIDTH: i32 = 128;
const CLASSES: i32 = 65_536;
/// Bytes of the logits of a chunk; a gradient has as many beside them.
const CHUNK: usize = 16 << 20;

fn losses(x: &Array, head: &Value, targets: &Array, rows: Option<i32>) -> Result<Array> {
    chunked_cross_entropy(x, head, targets, rows, |x, w| x.matmul(w.t()))
}

/// A step's loss and its gradient of the rows, evaluated together.
fn step(x: &Array, head: &Value, targets: &Array, rows: Option<i32>) {
    let mut step = value_and_grad(|x: Array| Ok::<_, Error>(losses(&x, head, targets, rows)?.mean(None)?));
    let (loss, gradient) = step.call(x.clone()).expect("differentiates");
    transforms::eval([&loss.dense().expect("dense"), gradient.array().expect("dense")]).expect("evaluates");
}

#[test]
fn a_loss_and_its_gradient_hold_one_chunk_of_logits() {
    let _deny = Policy::Deny.scope();
    let key = |seed| random::key(seed).expect("a key");
    let weight = random::normal::<f32>(&[CLASSES, WIDTH], None, None, &key(1)).expect("numbers");
    let targets = random::randint::<_, u32>(0, CLASSES, &[ROWS], &key(2)).expect("classes");
    let all = (ROWS * CLASSES) as usize * 4;
    for (format, dtype) in [("affine:8:64", Dtype::Float32), ("nf4:64", Dtype::Bfloat16), ("dense", Dtype::Float32)] {
        let head: Value = match format {
            "dense" => weight.clone().into(),
            text => text.parse::<AnyFormat>().expect("a format").quantize(&weight).expect("quantizes"),
        };
        let x = random::normal::<f32>(&[ROWS, WIDTH], None, None, &key(3)).and_then(|x| x.as_dtype(dtype));
        let x = x.expect("numbers");
        tacit_core::tree::eval(&(&head, &x, &targets)).expect("evaluates");
        let forward = peak(|| losses(&x, &head, &targets, None).expect("runs").eval().expect("evaluates"));
        let both = peak(|| step(&x, &head, &targets, None));
        let whole = peak(|| step(&x, &head, &targets, Some(ROWS)));
        println!("{format} {dtype:?}: {forward} forward, {both} with the gradient, {whole} in one chunk");
        assert!(2 * forward < 3 * CHUNK, "{format}: {forward} bytes forward");
        assert!(2 * both < 5 * CHUNK, "{format}: {both} bytes with the gradient");
        assert!(whole > 2 * all, "{format}: {whole} bytes where all logits are one chunk");
    }
}
