//! The book's chapter on caches and generation: attention over keys and values in any format.

// ANCHOR: use
use std::path::Path;

use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Module;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast, nn, ops, random};
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::decoders::{self, Positions};
use tacit::implicit_with_state;
use tacit::model::generate::{self, Lookup, Sampler, generate, speculate};
use tacit::model::{Cache, KvCache, PaddingSide, Window};
use tacit::prelude::*;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 12] = [
    ("step", step),
    ("ordered", ordered),
    ("unequal", unequal),
    ("layer", layer),
    ("formats", formats),
    ("explained", explained),
    ("compiled", compiled),
    ("windowed", windowed),
    ("shared", shared),
    ("generated", generated),
    ("decoder", decoder),
    ("drafted", drafted),
];

const WIDTH: i32 = 64;

// ANCHOR: attend
/// Attention of four query heads over two heads of keys and values, which the cache keeps.
fn attend(cache: &mut KvCache, [q, k, v]: [Array; 3]) -> Result<Array> {
    let mask = cache.mask(q.dim(2))?;
    let (keys, values) = cache.update(&k, &v)?;
    Ok(fast::scaled_dot_product_attention(&q, keys, values, 0.125, Some((&mask).into()), None)?)
}
// ANCHOR_END: attend

/// Queries, keys and values of so many tokens.
fn tokens(count: i32, seed: u64) -> Result<[Array; 3]> {
    random::seed(seed)?;
    let normal = |heads: i32| random::normal::<f32>(&[1, heads, count, WIDTH], None, None, None);
    Ok([normal(4)?, normal(2)?, normal(2)?])
}

// ANCHOR: step
fn step() -> Result<String> {
    let mut cache = KvCache::new([1, 2, WIDTH], Dtype::Float32)?;
    let mut lines = Vec::new();
    for (count, seed) in [(5, 0), (1, 1)] {
        cache.reserve(count)?;
        let y = implicit_with_state(&mut cache, tokens(count, seed)?, attend)?;
        lines.push(format!("{y}, {} tokens in {}", cache.len(), cache.keys()));
    }
    Ok(lines.join("\n"))
}
// ANCHOR_END: step

// ANCHOR: rotated
/// The same with rotary embeddings, which rotate queries and keys by the positions of their tokens.
fn attend_in_order(cache: &mut KvCache, [q, k, v]: [Array; 3]) -> Result<Array> {
    let rotated = |x: &Array| fast::rope_dynamic(x, WIDTH, false, 10_000.0, 1.0, cache.offset(), None);
    let (q, k) = (rotated(&q)?, rotated(&k)?);
    attend(cache, [q, k, v])
}
// ANCHOR_END: rotated

// ANCHOR: ordered
/// Six tokens at once, and the same six in two steps.
fn ordered() -> Result<String> {
    let tokens = tokens(6, 0)?;
    let mut last = Vec::new();
    for steps in [vec![6], vec![5, 1]] {
        let mut cache = KvCache::new([1, 2, WIDTH], Dtype::Float32)?;
        let mut start = 0;
        for step in steps {
            let part = |x: &Array| x.try_index((.., .., start..start + step));
            let [q, k, v] = &tokens;
            cache.reserve(step)?;
            let y = implicit_with_state(&mut cache, [part(q)?, part(k)?, part(v)?], attend_in_order)?.dense()?;
            start += step;
            last.push(y.try_index((.., .., -1))?);
        }
    }
    let same = last[2].all_close(&last[0], 1e-5, 1e-5, None)?;
    Ok(format!("the sixth token sees the same: {same}"))
}
// ANCHOR_END: ordered

// ANCHOR: unequal
/// Prompts of five and of three tokens as one batch, the shorter one padded on the left.
fn unequal() -> Result<String> {
    let (long, short) = (tokens(5, 0)?, tokens(3, 1)?);
    let padded = |x: &Array| ops::pad(x, &[(0, 0), (0, 0), (2, 0), (0, 0)][..], None, None);
    let row = |at: usize| Ok::<_, Error>(ops::concatenate(&[&long[at], &padded(&short[at])?], 0)?);

    let mut cache = KvCache::new([2, 2, WIDTH], Dtype::Float32)?;
    cache.reserve(5)?;
    cache.prepare(5, &[5, 3], PaddingSide::Left)?;
    let both = implicit_with_state(&mut cache, [row(0)?, row(1)?, row(2)?], attend_in_order)?.dense()?;

    let mut alone = KvCache::new([1, 2, WIDTH], Dtype::Float32)?;
    alone.reserve(3)?;
    let expected = implicit_with_state(&mut alone, short, attend_in_order)?.dense()?;
    let same = both.try_index((1.., .., 2..))?.all_close(&expected, 1e-5, 1e-5, None)?;
    Ok(format!("next positions {:?}; the shorter one as if alone: {same}", cache.offset().as_slice::<i32>()))
}
// ANCHOR_END: unequal

// ANCHOR: block
/// Attention as a module: its projections are parameters, and the cache is given with each call.
#[derive(Debug, ModuleParameters)]
struct Attention {
    #[param]
    qkv: nn::Linear,
    #[param]
    out: nn::Linear,
}

impl Attention {
    fn new() -> Result<Self> {
        Ok(Self { qkv: nn::Linear::new(4 * WIDTH, 8 * WIDTH)?, out: nn::Linear::new(4 * WIDTH, 4 * WIDTH)? })
    }

    /// `x: f32[1, tokens, 256]`.
    fn forward(&mut self, x: &Array, cache: &mut KvCache) -> Result<Array> {
        let heads = self.qkv.forward(x)?.reshape(&[1, -1, 8, WIDTH])?.transpose_axes(&[0, 2, 1, 3])?;
        let qkv: [Array; 3] = heads.split_at_indices(&[4, 6], 1)?.try_into().expect("three parts");
        let seen = attend_in_order(cache, qkv)?;
        Ok(self.out.forward(&seen.transpose_axes(&[0, 2, 1, 3])?.reshape(&[1, -1, 4 * WIDTH])?)?)
    }
}
// ANCHOR_END: block

// ANCHOR: layer
fn layer() -> Result<String> {
    random::seed(0)?;
    let mut model = Model::new(Attention::new()?)?.quantize("*.weight", Nf4 { block: 64, double: false })?;
    let mut cache = packed()?;
    let x = random::normal::<f32>(&[1, 5, 4 * WIDTH], None, None, None)?;
    cache.reserve(5)?;
    let _deny = Policy::Deny.scope();
    let y = model.run_with(&mut cache, |attention, cache| attention.forward(&x, cache))?;
    Ok(format!("{}, {} tokens in {}", Aval::from(&y), cache.len(), cache.keys()))
}
// ANCHOR_END: layer

// ANCHOR: formats
/// What the last of 257 tokens sees, and the bytes of the cache.
fn attended(cache: KvCache) -> Result<(Array, usize)> {
    let mut cache = cache;
    let mut seen = None;
    for (count, seed) in [(256, 0), (1, 1)] {
        cache.reserve(count)?;
        let _guard = Policy::Deny.scope();
        seen = Some(implicit_with_state(&mut cache, tokens(count, seed)?, attend)?.dense()?);
    }
    Ok((seen.expect("there were tokens"), cache.nbytes()))
}

fn formats() -> Result<String> {
    let cache = || KvCache::new([1, 2, WIDTH], Dtype::Float32);
    let (exact, bytes) = attended(cache()?)?;
    let mut lines = vec![format!("{:<26} {bytes:>8} bytes", "floats")];
    for (keys, values) in [("affine:8:64", "affine:8:64"), ("affine:8:64", "affine:4:64"), ("nf4:64", "nf4:64")] {
        let packed = cache()?.quantized(keys.parse::<AnyFormat>()?, values.parse::<AnyFormat>()?)?;
        let (seen, bytes) = attended(packed)?;
        let error = 100.0 * relative_error(&seen, &exact)?;
        lines.push(format!("{keys:<12}, {values:<12} {bytes:>8} bytes, {error:.0} % off"));
    }
    Ok(lines.join("\n"))
}
// ANCHOR_END: formats

/// The length of the difference in terms of the length of what was expected.
fn relative_error(y: &Array, expected: &Array) -> Result<f32> {
    let length = |array: &Array| array.square()?.sum(None)?.sqrt();
    Ok(length(&y.subtract(expected)?)?.divide(length(expected)?)?.item_exact::<f32>())
}

// ANCHOR: explained
fn explained() -> Result<String> {
    let mut cache = packed()?;
    let [q, k, v] = tokens(8, 0)?;
    cache.reserve(8)?;
    implicit_with_state(&mut cache, [q, k, v], attend)?;
    let [q, ..] = tokens(1, 1)?;
    let attention = |(q, k, v): (Array, Array, Array)| {
        let scores = q.reshape(&[1, 2, 2, WIDTH])?.matmul(k.swap_axes(-1, -2)?)?.multiply(Array::from_f32(0.125))?;
        ops::softmax_axis(scores, -1, None)?.matmul(v)
    };
    Ok(explain((q, cache.keys(), cache.values()), attention)?.to_string())
}

/// A cache with keys of eight bits and values of four.
fn packed() -> Result<KvCache> {
    let (keys, values) = (Affine { bits: 8, group: 64 }, Affine { bits: 4, group: 64 });
    KvCache::new([1, 2, WIDTH], Dtype::Float32)?.quantized(keys, values)
}
// ANCHOR_END: explained

// ANCHOR: compiled
fn compiled() -> Result<String> {
    let mut cache = packed()?;
    let mut attend = compile_with_state(CompileOptions::default(), attend);
    for seed in 0..200 {
        cache.reserve(1)?;
        let y = attend.call(&mut cache, tokens(1, seed)?.map(Value::from))?.dense()?;
        y.eval()?;
    }
    let stats = attend.stats();
    Ok(format!("{} tokens, {} calls, {} trace", cache.len(), stats.calls, stats.traces))
}
// ANCHOR_END: compiled

// ANCHOR: windowed
fn windowed() -> Result<String> {
    let mut cache = packed()?.with_window(Window::Sliding { size: 128, sinks: 4 })?;
    for seed in 0..40 {
        cache.reserve(16)?;
        let y = implicit_with_state(&mut cache, tokens(16, seed)?, attend)?.dense()?;
        y.eval()?;
    }
    Ok(format!("{} tokens seen, {} slots, {} bytes", cache.len(), cache.capacity(), cache.nbytes()))
}
// ANCHOR_END: windowed

// ANCHOR: shared
fn shared() -> Result<String> {
    let mut prompt = packed()?;
    prompt.reserve(100)?;
    implicit_with_state(&mut prompt, tokens(100, 0)?, attend)?.dense()?.eval()?;

    let mut answers = [prompt.clone(), prompt.clone()];
    for (answer, seed) in answers.iter_mut().zip(1..) {
        answer.reserve(1)?;
        implicit_with_state(answer, tokens(1, seed)?, attend)?.dense()?.eval()?;
    }
    answers[0].trim(1)?;
    Ok(format!("prompt {}, answers {} and {}", prompt.len(), answers[0].len(), answers[1].len()))
}
// ANCHOR_END: shared

// ANCHOR: toy
/// A language model of one layer: random embeddings, attention, and the nearest embedding as the next token.
struct Toy {
    words: Array,
    cache: KvCache,
}

impl Toy {
    fn logits(&self, cache: &mut KvCache, tokens: &Array) -> Result<Array> {
        cache.reserve(tokens.dim(1))?;
        let x = self.words.take_axis(tokens, 0)?;
        let heads = |count: i32| -> Result<Array> {
            let all = x.reshape(&[1, -1, 4, WIDTH])?.transpose_axes(&[0, 2, 1, 3])?;
            Ok(ops::split_at_indices(&all, &[count], 1)?.swap_remove(0))
        };
        let seen = implicit_with_state(cache, [heads(4)?, heads(2)?, heads(2)?], attend)?.dense()?;
        let seen = seen.transpose_axes(&[0, 2, 1, 3])?.reshape(&[1, -1, 4 * WIDTH])?;
        Ok(seen.add(x)?.matmul(self.words.t())?)
    }
}
// ANCHOR_END: toy

fn toy() -> Result<Toy> {
    random::seed(0)?;
    Ok(Toy { words: random::normal::<f32>(&[32, 4 * WIDTH], None, None, None)?, cache: packed()? })
}

// ANCHOR: generated
fn generated() -> Result<String> {
    let toy = toy()?;
    let sampler = Sampler { repetition_penalty: 1.3, ..Sampler::default() };
    let options = generate::GenerateOptions { sampler, max_tokens: 12, ..generate::GenerateOptions::default() };
    let mut cache = toy.cache.clone();
    let step = |tokens: &Array, cache: &mut KvCache| toy.logits(cache, tokens);
    let made = generate(step, &mut cache, &[[3, 14, 15]], &options)?;
    let made = made.map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>()?;
    Ok(format!("{} tokens made, {} in the cache", made.len(), cache.len()))
}
// ANCHOR_END: generated

// ANCHOR: decoder
/// Eight tokens of a decoder from a GGUF file, with its keys and values in a format.
fn decoder() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/golden/gguf/llama.gguf");
    let (config, mut model) = decoders::load(file)?;
    // The heads of this test file are 8 wide. For heads of 64 or more take `affine:4:64`.
    let format: AnyFormat = "int8:8".parse()?;
    let stored = |cache: Cache| cache.stored(Some(format.clone()), Some(format.clone()));
    let caches = decoders::caches(&config, 1, Dtype::Float32)?;
    let mut caches = caches.into_iter().map(stored).collect::<Result<Vec<Cache>>>()?;

    let step = |tokens: &Array, caches: &mut Vec<Cache>| -> Result<Array> {
        caches.iter_mut().try_for_each(|cache| cache.reserve(tokens.dim(1)))?;
        model.run_with(caches, |decoder, caches| decoder.forward(tokens, caches, Positions::Last))
    };
    let options = generate::GenerateOptions { max_tokens: 8, ..generate::GenerateOptions::default() };
    let made = generate(step, &mut caches, &[[1, 2, 3]], &options)?;
    let made = made.map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>()?;
    Ok(format!("{} tokens, {} layers of caches", made.len(), caches.len()))
}
// ANCHOR_END: decoder

fn drafted() -> Result<String> {
    let toy = toy()?;
    let step = |tokens: &Array, cache: &mut KvCache| toy.logits(cache, tokens);
    let prompt = [3, 14, 15, 9, 2, 6];
    let (mut cache, mut other) = (toy.cache.clone(), toy.cache.clone());
    let alone = generate(step, &mut other, &[prompt], &generate::GenerateOptions::default())?;
    let alone = alone.collect::<Result<Vec<_>>>()?;
    // ANCHOR: drafted
    let options = generate::GenerateOptions::default();
    let mut tokens = speculate(step, &mut cache, Lookup::new(7), &prompt, &options)?;
    let made = tokens.by_ref().collect::<Result<Vec<_>>>()?;
    let stats = tokens.stats();
    // ANCHOR_END: drafted
    assert_eq!(made, alone);
    let steps = stats.tokens - stats.accepted;
    Ok(format!(
        "{} tokens in {steps} steps, {} of {} drafted ones accepted",
        stats.tokens, stats.accepted, stats.drafted
    ))
}

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
