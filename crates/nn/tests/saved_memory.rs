//! What a training step holds whose activations are saved in a format: this is the only test of its program, as MLX counts the
//! bytes of a whole one.

mod peak;

// Dense products are those of a program with the facade.
use tacit_blas as _;

use std::time::Instant;

use mlx_rs::{Array, fast, nn, ops, random, transforms};
use tacit_arrays::{SavedInputs, saved};
use tacit_core::transform::{checkpoint, grad, value_and_grad};
use tacit_core::tree::Gradient;
use tacit_core::{Error, Result, Value, implicit};

use peak::peak;

const TOKENS: i32 = 1024;
const WIDTH: i32 = 128;
const HEADS: i32 = 2;
const LAYERS: usize = 12;
const CLASSES: i32 = 256;

fn key(seed: u64) -> Array {
    random::key(seed).expect("a key")
}

fn weights() -> Vec<Array> {
    let shapes = [
        [WIDTH, WIDTH],
        [WIDTH, WIDTH],
        [WIDTH, WIDTH],
        [WIDTH, WIDTH],
        [4 * WIDTH, WIDTH],
        [4 * WIDTH, WIDTH],
        [WIDTH, 4 * WIDTH],
    ];
    let mut all = Vec::new();
    for layer in 0..LAYERS {
        for (i, shape) in shapes.iter().enumerate() {
            let scale = 1.0 / (shape[1] as f32).sqrt();
            let w = random::normal::<f32>(shape, None, None, &key((layer * 10 + i) as u64)).expect("numbers");
            all.push(w.multiply(Array::from_f32(scale)).expect("scales"));
        }
    }
    all.push(random::normal::<f32>(&[CLASSES, WIDTH], None, Some(0.05), &key(1000)).expect("numbers"));
    all
}

fn normed(x: &Array) -> Result<Array> {
    Ok(fast::rms_norm(x, Some(&ops::ones::<f32>(&[WIDTH])?), 1e-5)?)
}

/// A block of the Llama family.
fn block(x: &Array, w: &[Array]) -> Result<Array> {
    let heads = |y: Array| y.reshape(&[1, TOKENS, HEADS, WIDTH / HEADS])?.transpose_axes(&[0, 2, 1, 3]);
    let y = normed(x)?;
    let (q, k, v) = (heads(y.matmul(w[0].t())?)?, heads(y.matmul(w[1].t())?)?, heads(y.matmul(w[2].t())?)?);
    let scale = 1.0 / ((WIDTH / HEADS) as f32).sqrt();
    let q = fast::rope(q, WIDTH / HEADS, false, 10_000f32, 1.0, 0, None)?;
    let k = fast::rope(k, WIDTH / HEADS, false, 10_000f32, 1.0, 0, None)?;
    let mixed = fast::scaled_dot_product_attention(q, k, v, scale, fast::ScaledDotProductAttentionMask::Causal, None)?;
    let mixed = mixed.transpose_axes(&[0, 2, 1, 3])?.reshape(&[1, TOKENS, WIDTH])?;
    let x = x.add(mixed.matmul(w[3].t())?)?;
    let y = normed(&x)?;
    let wide = nn::silu(y.matmul(w[4].t())?)?.multiply(y.matmul(w[5].t())?)?;
    Ok(x.add(wide.matmul(w[6].t())?)?)
}

#[derive(Clone, Copy, Debug)]
enum Saves {
    Plain,
    Codes(&'static str),
    ByWeights(&'static str),
    Boundaries,
    BoundaryCodes(&'static str),
}

fn blocks(x: Array, w: &[Array], again: bool) -> Result<Array> {
    let mut x = x;
    for layer in 0..LAYERS {
        let own = w[layer * 7..][..7].to_vec();
        x = if again {
            checkpoint(|(x, w): (Array, Vec<Array>)| block(&x, &w)).call((x, own))?.dense()?
        } else {
            block(&x, &own)?
        };
    }
    normed(&x)
}

fn loss(w: &[Array], x: &Array, targets: &Array, saves: Saves) -> Result<Array> {
    let hidden = match saves {
        Saves::Plain => blocks(x.clone(), w, false)?,
        Saves::Boundaries => blocks(x.clone(), w, true)?,
        Saves::Codes(format) => saved(format, |x: Array| blocks(x, w, false))?.call(x)?.dense()?,
        Saves::ByWeights(format) => {
            let saving = |w: &Array| -> Result<Value> { Ok(SavedInputs::new(w, format)?.into()) };
            let w = w.iter().map(saving).collect::<Result<Vec<Value>>>()?;
            implicit((x, w), |(x, w)| blocks(x, &w, false))?.dense()?
        }
        Saves::BoundaryCodes(format) => saved(format, |x: Array| blocks(x, w, true))?.call(x)?.dense()?,
    };
    let logits = hidden.matmul(w[w.len() - 1].t())?;
    let chosen = logits.take_along_axis(targets.reshape(&[1, TOKENS, 1])?, -1)?;
    Ok(logits.logsumexp_axis(-1, true)?.subtract(chosen)?.mean(None)?)
}

fn step(w: &[Array], x: &Array, targets: &Array, saves: Saves) -> (f32, Vec<Array>) {
    let (loss, gradients) = {
        let mut step = value_and_grad(|w: Vec<Array>| loss(&w, x, targets, saves));
        step.call(w.to_vec()).expect("differentiates")
    };
    let gradients: Vec<Array> = gradients.iter().map(|g: &Gradient| g.array().expect("dense").clone()).collect();
    let loss = loss.dense().expect("dense");
    transforms::eval(gradients.iter().chain([&loss])).expect("evaluates");
    (loss.item_exact::<f32>(), gradients)
}

fn relative_error(found: &[Array], expected: &[Array]) -> f32 {
    let square = |x: &Array| x.square().and_then(|x| x.sum(None)).expect("sums").item_exact::<f32>();
    let (mut off, mut all) = (0.0, 0.0);
    for (found, expected) in found.iter().zip(expected) {
        off += square(&found.subtract(expected).expect("one shape"));
        all += square(expected);
    }
    (off / all).sqrt()
}

#[test]
fn a_step_with_saved_activations_holds_less_than_half_of_a_plain_one() {
    let w = weights();
    let x = random::normal::<f32>(&[1, TOKENS, WIDTH], None, None, &key(7)).expect("numbers");
    let targets = random::randint::<_, u32>(0, CLASSES, &[TOKENS], &key(8)).expect("classes");
    transforms::eval(w.iter().chain([&x, &targets])).expect("evaluates");
    let (mut plain, mut expected) = (0, (0.0, Vec::new()));
    for (saves, most, error) in [
        (Saves::Plain, 1.0, 0.0),
        (Saves::Codes("affine:8:64"), 0.5, 1e-2),
        (Saves::Codes("affine:8:32"), 0.5, 1e-2),
        (Saves::ByWeights("affine:8:64"), 0.55, 1e-2),
        (Saves::Boundaries, 0.35, 0.0),
        (Saves::BoundaryCodes("affine:8:32"), 0.35, 1e-2),
    ] {
        let started = Instant::now();
        let mut found = (0.0, Vec::new());
        let held = peak(|| found = step(&w, &x, &targets, saves));
        let took = started.elapsed().as_secs_f64();
        if matches!(saves, Saves::Plain) {
            (plain, expected) = (held, found.clone());
        }
        let (share, off) = (held as f64 / plain as f64, relative_error(&found.1, &expected.1));
        println!("{saves:?}: {held} bytes, {share:.3} of a plain step, {took:.2} s, gradients off by {off:.2e}");
        assert_eq!(found.0.to_bits(), expected.0.to_bits(), "{saves:?}");
        assert!(share <= most, "{saves:?}: {share}");
        assert!(off <= error, "{saves:?}: {off}");
    }
    boundaries();
}

/// Layers of which checkpoints leave nothing but what goes into them.
fn boundaries() {
    const ROWS: i32 = 2048;
    let x = random::normal::<f32>(&[ROWS, 1024], None, None, &key(7)).expect("numbers");
    x.eval().expect("evaluates");
    let layer = |x: Array| x.sin()?.exp()?.sin();
    let layers = |x: Array| (0..LAYERS).try_fold(x, |x, _| checkpoint(layer).call(x)?.dense());
    let held = |f: &dyn Fn(Array) -> Result<Array>| {
        peak(|| {
            let mut step = grad(|x: Array| Ok::<_, Error>(f(x)?.sum(None)?));
            step.call(&x).expect("differentiates").array().expect("dense").eval().expect("evaluates");
        })
    };
    let plain = held(&layers);
    let codes = held(&|x| saved("affine:8:64", layers)?.call(x)?.dense());
    println!("boundaries: {plain} bytes, in codes {codes}");
    let bytes = LAYERS * x.nbytes();
    assert!(plain.saturating_sub(codes) * 10 > 6 * bytes, "of {bytes} bytes {plain} less {codes} are not held");
}
