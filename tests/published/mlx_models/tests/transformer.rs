//! The published decoders of mlx-models for Llama, Mistral and Qwen2 with quantized weights, next to themselves with the dense
//! weights that those stand for.
//!
//! Nothing of the model is written for Tacit. Its attention takes any cache: its own, and one of ours, with keys and values of 8 bits.

use mlx_models::cache::{ConcatKeyValueCache, KeyValueCache};
use mlx_models::transformer::{Model as Transformer, ModelArgs};
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::IndexOp as _;
use mlx_rs::{Array, Dtype, random};
use tacit::format::{Affine, Nf4};
use tacit::model::KvCache;
use tacit::prelude::*;

#[path = "../../shared.rs"]
mod shared;

use shared::{assert_handled, dequantized, distance, likeliest, quantize};

const PROMPT: [u32; 7] = [3, 141, 59, 26, 5, 35, 89];
const STEPS: usize = 12;

fn decoder(model_type: &str, tied: bool) -> Transformer {
    random::seed(7).expect("seeds");
    let args = serde_json::json!({
        "model_type": model_type, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": tied,
    });
    let args: ModelArgs = serde_json::from_value(args).expect("the arguments of the model");
    Transformer::new(args).expect("builds")
}

/// Tacit's cache as the model's own.
struct Packed<'c> {
    cache: &'c mut KvCache,
    offset: i32,
}

impl KeyValueCache for Packed<'_> {
    fn offset(&self) -> i32 {
        self.offset
    }

    fn max_size(&self) -> Option<i32> {
        None
    }

    fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<(Array, Array), Exception> {
        Ok(self.cache.update(&keys, &values)?)
    }
}

/// The mask that such a model is given by those who call it.
fn causal(tokens: usize, before: usize) -> Array {
    let rows = (0..tokens).flat_map(|row| (0..before + tokens).map(move |column| column <= before + row));
    Array::from_iter(rows, &[tokens as i32, (before + tokens) as i32])
}

#[test]
fn decoders_of_other_people_generate_from_codes() {
    for model_type in ["llama", "mistral", "qwen2"] {
        generates(model_type, false, Nf4 { block: 64, double: false });
        generates(model_type, true, Affine { bits: 4, group: 64 });
    }
}

fn generates(model_type: &str, tied: bool, format: impl Quantizer + Clone + 'static) {
    let plain = decoder(model_type, tied);
    let mut model = quantize(&plain, format.clone());
    let mut dense = dequantized(&plain, &model);
    let fresh = || vec![Some(ConcatKeyValueCache::new()); 2];
    let (mut own, mut expected_cache) = (fresh(), fresh());
    let kv = |dtype| KvCache::new([1, 2, 32], dtype).expect("a cache");
    let mut floats = vec![kv(Dtype::Float32), kv(Dtype::Float32)];
    let packed = || kv(Dtype::Float32).quantized(Affine { bits: 8, group: 32 }, Affine { bits: 8, group: 32 });
    let mut few_bits = vec![packed().expect("a format"), packed().expect("a format")];
    let mut tokens = PROMPT.to_vec();
    let mut fed = 0;
    let mut furthest = [0f32; 3];
    for _ in 0..STEPS {
        let inputs = Array::from_slice(&tokens[fed..], &[1, (tokens.len() - fed) as i32]);
        let mask = causal(tokens.len() - fed, fed);
        let expected = dense.forward(&inputs, Some(&mask), &mut expected_cache).expect("runs").index((.., -1, ..));

        let _deny = Policy::Deny.scope();
        let run = || {
            model.run(|model| Ok::<_, Exception>(model.forward(&inputs, Some(&mask), &mut own)?.index((.., -1, ..))))
        };
        let (logits, counted) = Counters::during(run);
        let logits = logits.expect("runs");
        // Seven products in each of two layers, the head, and the rows of the embedding.
        assert_handled(&counted, 16);
        furthest[0] = furthest[0].max(distance(&logits, &expected));
        assert_eq!(likeliest(&logits), likeliest(&expected), "token {fed}");

        for (caches, furthest) in [&mut floats, &mut few_bits].into_iter().zip(&mut furthest[1..]) {
            let offset = fed as i32;
            for cache in caches.iter_mut() {
                cache.reserve(inputs.dim(1)).expect("room");
            }
            let (logits, counted) = Counters::during(|| {
                model.run_with(caches, |model, caches| {
                    let mask = caches[0].mask(inputs.dim(1))?;
                    let mut own: Vec<_> = caches.iter_mut().map(|cache| Some(Packed { cache, offset })).collect();
                    Ok::<_, Error>(model.forward(&inputs, Some(&mask), &mut own)?.index((.., -1, ..)))
                })
            });
            let logits = logits.expect("runs");
            assert_handled(&counted, 16);
            *furthest = furthest.max(distance(&logits, &expected));
        }
        fed = tokens.len();
        tokens.push(likeliest(&logits));
    }
    let [own, floats, few_bits] = furthest;
    println!(
        "{model_type}, {format}, tied {tied}: {STEPS} tokens, from the dense logits at most {own:.1e} with its own cache, \
         {floats:.1e} with one of floats, {few_bits:.1e} with one of 8 bits"
    );
    assert!(own < 1e-4 && floats < 1e-4 && few_bits < 0.05, "{model_type}, {format}: {furthest:?}");
}
