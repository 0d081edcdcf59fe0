//! The published qwen3 of mlx-lm with quantized weights, next to itself with the dense weights that those stand for.
//!
//! Nothing of the model is written for Tacit. Its own cache keeps keys and values of one call for the next.

use mlx_lm::cache::ConcatKeyValueCache;
use mlx_lm::models::qwen3::{Generate, Model as Qwen3, ModelArgs, ModelInput};
use mlx_rs::error::Exception;
use mlx_rs::module::Module as _;
use mlx_rs::ops::indexing::IndexOp as _;
use mlx_rs::{Array, random};
use tacit::format::{Affine, Nf4};
use tacit::prelude::*;

#[path = "../../shared.rs"]
mod shared;

use shared::{assert_handled, dequantized, distance, likeliest, quantize};

const PROMPT: [u32; 7] = [3, 141, 59, 26, 5, 35, 89];
const STEPS: usize = 12;

type Cache = Vec<Option<ConcatKeyValueCache>>;

fn qwen3(tied: bool) -> Qwen3 {
    random::seed(7).expect("seeds");
    let args = serde_json::json!({
        "model_type": "qwen3", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 320,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 10000.0,
        "tie_word_embeddings": tied, "rope_scaling": null,
    });
    let args: ModelArgs = serde_json::from_value(args).expect("the arguments of the model");
    Qwen3::new(args).expect("builds")
}

fn cache(model: &Qwen3) -> Cache {
    vec![Some(ConcatKeyValueCache::new()); model.args.num_hidden_layers as usize]
}

/// One call of the model: the logits after the last of `tokens`.
fn step(model: &mut Qwen3, tokens: &[u32], cache: &mut Cache) -> Result<Array, Exception> {
    let inputs = Array::from_slice(tokens, &[1, tokens.len() as i32]);
    let logits = model.forward(ModelInput { inputs: &inputs, mask: None, cache })?;
    Ok(logits.index((.., -1, ..)))
}

/// The published loop itself.
fn generate(model: &mut Qwen3, prompt: &Array, cache: &mut Cache) -> Result<Vec<Array>, Exception> {
    Generate::new(model, cache, 0.0, prompt).take(STEPS).collect()
}

#[test]
fn generates_token_by_token_with_its_own_cache() {
    for tied in [false, true] {
        generates(tied, Nf4 { block: 64, double: false });
        generates(tied, Affine { bits: 4, group: 64 });
    }
}

fn generates(tied: bool, format: impl Quantizer + Clone + 'static) {
    let plain = qwen3(tied);
    let mut model = quantize(&plain, format.clone());
    let mut dense = dequantized(&plain, &model);

    let (mut own, mut expected_cache) = (cache(&plain), cache(&plain));
    let mut tokens = PROMPT.to_vec();
    let mut fed = 0;
    let (mut furthest, mut last) = (0f32, None);
    for _ in 0..STEPS {
        let _deny = Policy::Deny.scope();
        let (logits, counted) = Counters::during(|| model.run(|model| step(model, &tokens[fed..], &mut own)));
        let logits = logits.expect("runs");
        // Seven products in each of two layers, the head, and the rows of the embedding.
        assert_handled(&counted, 16);
        let expected = step(&mut dense, &tokens[fed..], &mut expected_cache).expect("runs");
        furthest = furthest.max(distance(&logits, &expected));
        fed = tokens.len();
        assert_eq!(likeliest(&logits), likeliest(&expected), "token {fed}");
        tokens.push(likeliest(&logits));
        last = Some(logits);
    }
    println!("{format}, tied {tied}: {STEPS} tokens, at most {furthest:.1e} from the dense logits");
    assert!(furthest < 1e-4, "{format}: {furthest}");

    // The cache keeps what it should: the whole sequence at once gives the same last logits.
    let whole = model.run(|model| step(model, &tokens[..fed], &mut cache(&plain))).expect("runs");
    let by_steps = last.expect("there was a step");
    assert!(distance(&by_steps, &whole) < 1e-4, "{format}: {}", distance(&by_steps, &whole));
}

#[test]
fn its_own_loop_generates_in_one_trace() {
    let plain = qwen3(true);
    let mut model = quantize(&plain, Nf4 { block: 64, double: false });
    let mut dense = dequantized(&plain, &model);
    let prompt = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32]);
    let expected = generate(&mut dense, &prompt, &mut cache(&plain)).expect("generates");
    let _deny = Policy::Deny.scope();
    let found = model.run(|model| generate(model, &prompt, &mut cache(&plain))).expect("generates");
    let numbers = |tokens: &[Array]| tokens.iter().map(|token| token.item_exact::<u32>()).collect::<Vec<_>>();
    assert_eq!(numbers(&found), numbers(&expected));
}
