//! A decoder's step as an executable whose cache stays on the device, checked against the whole prefix each time.

// ANCHOR: use
use std::collections::BTreeMap;
use std::time::Instant;

use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis};
use mlx_rs::{Array, Dtype, nn, ops, random};
use tacit::executable::{Executable, Named};
use tacit::prelude::*;

const WORDS: i32 = 512;
const WIDTH: i32 = 256;
const CAPACITY: i32 = 64;
// ANCHOR_END: use
const STEPS: usize = 48;

/// The matrices by name, held in four bits; each is applied as `x W^T`.
const MATRICES: [(&str, [i32; 2]); 7] = [
    ("query", [WIDTH, WIDTH]),
    ("key", [WIDTH, WIDTH]),
    ("value", [WIDTH, WIDTH]),
    ("mixed", [WIDTH, WIDTH]),
    ("up", [4 * WIDTH, WIDTH]),
    ("down", [WIDTH, 4 * WIDTH]),
    ("head", [WORDS, WIDTH]),
];

pub(crate) type Weights<L> = BTreeMap<String, L>;

pub(crate) fn weights() -> Result<Weights<Value>> {
    random::seed(0)?;
    let normal = |shape: &[i32]| random::normal::<f32>(shape, None, 1.0 / (WIDTH as f32).sqrt(), None);
    let mut weights = Weights::new();
    for (name, shape) in MATRICES {
        weights.insert(name.to_owned(), Nf4Array::quantize(&normal(&shape)?, 64)?.into());
    }
    weights.insert("embedding".to_owned(), normal(&[WORDS, WIDTH])?.into());
    Ok(weights)
}

/// The logits `[t, words]` of positions `x: [t, width]` that attend to what is `seen: bool[t, n]` of `n` keys and values.
fn block<'w>(
    x: &Array,
    [keys, values]: [&Array; 2],
    seen: &Array,
    weight: impl Fn(&str) -> Result<&'w Array>,
) -> Result<Array> {
    let scale = Array::from_f32(1.0 / (WIDTH as f32).sqrt());
    let scores = x.matmul(weight("query")?.t())?.matmul(keys.t())?.multiply(scale)?;
    let scores = ops::softmax_axis(ops::select(seen, scores, Array::from_f32(f32::MIN))?, -1, None)?;
    let x = x.add(scores.matmul(values)?.matmul(weight("mixed")?.t())?)?;
    let x = x.add(nn::relu(x.matmul(weight("up")?.t())?)?.matmul(weight("down")?.t())?)?;
    Ok(x.matmul(weight("head")?.t())?)
}

// ANCHOR: step
/// One token: its row is written into the cache at `position`, and it attends to the rows up to there.
fn step(given: &Named<'_>) -> Result<Vec<Array>> {
    let position = given.get("position")?;
    let x = given.get("embedding")?.take_axis(given.get("token")?, 0)?;
    let slots = ops::arange::<_, i32>(0, CAPACITY, None)?;
    let here = slots.eq(position)?.reshape(&[CAPACITY, 1])?;
    let keys = ops::select(&here, x.matmul(given.get("key")?.t())?, given.get("keys")?)?;
    let values = ops::select(&here, x.matmul(given.get("value")?.t())?, given.get("values")?)?;
    let seen = slots.le(position)?.reshape(&[1, CAPACITY])?;
    let logits = block(&x, [&keys, &values], &seen, |name| given.get(name))?;
    let next = position.add(Array::from_int(1))?;
    Ok(vec![logits, keys, values, next])
}
// ANCHOR_END: step

/// The logits of the last of `tokens`, computed from all of them.
fn without_cache((tokens, weights): (Array, Weights<Array>)) -> Result<Array> {
    let x = weights["embedding"].take_axis(&tokens, 0)?;
    let (keys, values) = (x.matmul(weights["key"].t())?, x.matmul(weights["value"].t())?);
    let positions = ops::arange::<_, i32>(0, tokens.shape()[0], None)?;
    let seen = positions.le(positions.expand_dims(1)?)?;
    let logits = block(&x, [&keys, &values], &seen, |name| Ok(&weights[name]))?;
    Ok(logits.try_index((-1.., ..))?)
}

// ANCHOR: decoder
pub(crate) fn decoder(weights: &Weights<Value>) -> Result<Executable<'static>> {
    let cache = Aval::new(&[CAPACITY, WIDTH], Dtype::Float32);
    let mut builder = Executable::builder("decoder")
        .input("token", Aval::new(&[1], Dtype::Uint32))
        .resident("keys", cache.clone())
        .resident("values", cache.clone())
        .resident("position", Aval::new(&[], Dtype::Int32))
        .output("logits");
    for fed in ["keys", "values", "position"] {
        builder = builder.output(fed).feed(fed, fed);
    }
    for (name, weight) in weights {
        builder = builder.parameter(name, weight.aval()?);
    }
    let mut decoder = builder.build(step)?;
    for (name, weight) in weights {
        decoder.set_parameter(name, weight)?;
    }
    // A scalar is broadcast to what is described.
    decoder.set_input("keys", Array::from_f32(0.0))?;
    decoder.set_input("values", Array::from_f32(0.0))?;
    decoder.set_input("position", Array::from_int(0))?;
    decoder.warm_up()?;
    Ok(decoder)
}
// ANCHOR_END: decoder

pub(crate) fn main() -> Result<()> {
    let weights = weights()?;
    let mut decoder = decoder(&weights)?;

    let (mut tokens, mut made) = (vec![1u32], Vec::new());
    let start = Instant::now();
    for step in 0..STEPS {
        let token = Array::from_slice(&tokens[step..], &[1]);
        let logits = decoder.run(&[("token", &token)])?.get("logits")?.dense()?;
        tokens.push(argmax_axis(&logits, -1, None)?.item_exact::<u32>());
        made.push(logits);
    }
    let rate = STEPS as f64 / start.elapsed().as_secs_f64();

    let mut largest = 0f32;
    for (step, logits) in made.iter().enumerate() {
        let prefix = Array::from_slice(&tokens[..=step], &[step as i32 + 1]);
        let expected = implicit((prefix, &weights), without_cache)?.dense()?;
        let far = logits.subtract(expected)?.abs()?.max(None)?.item_exact::<f32>();
        assert!(far < 1e-3, "the cache gives other logits");
        largest = largest.max(far);
    }
    println!("{STEPS} steps at {rate:.0} a second; at most {largest:.1e} from the whole prefix");
    Ok(())
}
