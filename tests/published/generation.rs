//! The published qwen3 of mlx-lm with quantized weights, next to itself with the dense weights that those stand for.
//!
//! Nothing of the model is written for Tacit. Its own cache keeps keys and values of one call for the next.

use mlx_lm::cache::ConcatKeyValueCache;
use mlx_lm::models::qwen3::{Generate, Model, ModelArgs, ModelInput};
use mlx_rs::module::{Module as _, ModuleParameters as _};
use mlx_rs::ops::indexing::{IndexOp as _, argmax_axis};
use mlx_rs::{Array, random};
use tacit::prelude::*;
use tacit::format;

const PROMPT: [u32; 7] = [3, 141, 59, 26, 5, 35, 89];
const STEPS: usize = 12;

type Cache = Vec<Option<ConcatKeyValueCache>>;

fn model(tied: bool) -> Model {
    random::seed(7).expect("seeds");
    let args = serde_json::json!({
        "model_type": "qwen3", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 320,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 10000.0,
        "tie_word_embeddings": tied, "rope_scaling": null,
    });
    let args: ModelArgs = serde_json::from_value(args).expect("the arguments of the model");
    Model::new(args).expect("builds")
}

/// Every matrix in `format`; the vectors, which are the gains of the norms, stay as they are.
fn quantize(model: &Model, format: &str) -> Parameters {
    let format = format::parse(format).expect("a format");
    quantized(model, |_, array| Ok(if array.ndim() == 2 { Some(format.quantize(array)?) } else { None }))
        .expect("quantizes")
}

/// The same model with the dense arrays that the parameters stand for.
fn dequantized(model: &Model, parameters: &Parameters) -> Model {
    let _allow = Policy::Allow.scope();
    let mut dense = model.clone();
    for (path, slot) in dense.parameters_mut().flatten() {
        if let Some(value) = parameters.get(&*path) {
            *slot = value.dense().expect("materializes");
        }
    }
    dense
}

fn cache(model: &Model) -> Cache {
    vec![Some(ConcatKeyValueCache::new()); model.args.num_hidden_layers as usize]
}

/// One call of the model: the logits after the last of `tokens`.
fn step(model: &mut Model, tokens: &[u32], cache: &mut Cache) -> std::result::Result<Array, mlx_rs::error::Exception> {
    let inputs = Array::from_slice(tokens, &[1, tokens.len() as i32]);
    let logits = model.forward(ModelInput { inputs: &inputs, mask: None, cache })?;
    Ok(logits.index((.., -1, ..)))
}

fn likeliest(logits: &Array) -> u32 {
    argmax_axis(logits, -1, None).expect("an argmax").item_exact::<u32>()
}

/// How far the logits are from each other, in terms of the largest.
fn distance(found: &Array, expected: &Array) -> f32 {
    let largest = |array: Array| array.abs().expect("abs").max(None).expect("max").item_exact::<f32>();
    largest(found.subtract(expected).expect("subtracts")) / largest(expected.clone())
}

#[test]
fn generates_token_by_token_with_its_own_cache() {
    for (tied, format) in [(false, "nf4:64"), (true, "nf4:64"), (false, "affine:4:64"), (true, "affine:4:64")] {
        let plain = model(tied);
        let parameters = quantize(&plain, format);
        assert_eq!(parameters.len(), 2 * 7 + 1 + usize::from(!tied), "{:?}", parameters.keys());
        let mut dense = dequantized(&plain, &parameters);
        let mut model = ImplicitModule::new(plain, parameters).expect("takes the parameters");

        let (mut own, mut expected_cache) = (cache(&dense), cache(&dense));
        let mut tokens = PROMPT.to_vec();
        let mut fed = 0;
        let mut furthest = 0f32;
        for _ in 0..STEPS {
            let _deny = Policy::Deny.scope();
            let run = || model.run(|model| step(model, &tokens[fed..], &mut own));
            let (logits, counted) = Counters::of(run);
            let logits = logits.and_then(|logits| logits.dense()).expect("runs");
            // Seven products in each of two layers, the head, and the rows of the embedding.
            assert!(counted.handled >= 16, "{counted:?}");
            assert_eq!((counted.materialized, counted.materialized_bytes), (0, 0), "{counted:?}");
            let expected = step(&mut dense, &tokens[fed..], &mut expected_cache).expect("runs");
            furthest = furthest.max(distance(&logits, &expected));
            fed = tokens.len();
            assert_eq!(likeliest(&logits), likeliest(&expected), "token {fed}");
            tokens.push(likeliest(&logits));
        }
        println!("{format}, tied {tied}: {STEPS} tokens, at most {furthest:.1e} from the dense logits");
        assert!(furthest < 1e-4, "{format}: {furthest}");

        // What the cache kept is right: the whole sequence at once gives the same last logits.
        let mut fresh = cache(&dense);
        let whole = step(&mut dense, &tokens[..fed], &mut fresh).expect("runs");
        let mut again = cache(&dense);
        let _deny = Policy::Deny.scope();
        let quantized = model.run(|model| step(model, &tokens[..fed], &mut again)).expect("runs");
        assert!(distance(&quantized.dense().expect("dense"), &whole) < 1e-4);
    }
}

#[test]
fn its_own_loop_generates_in_one_trace() {
    let plain = model(true);
    let parameters = quantize(&plain, "nf4:64");
    let mut dense = dequantized(&plain, &parameters);
    let mut model = ImplicitModule::new(plain, parameters).expect("takes the parameters");
    let prompt = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32]);

    fn generate(
        model: &mut Model,
        prompt: &Array,
        cache: &mut Cache,
    ) -> std::result::Result<Vec<Array>, mlx_rs::error::Exception> {
        Generate::new(model, cache, 0.0, prompt).take(STEPS).collect()
    }
    let mut kept = cache(&dense);
    let expected = generate(&mut dense, &prompt, &mut kept).expect("generates");
    let (mut kept, _deny) = (cache(&dense), Policy::Deny.scope());
    let found = model.run(|model| generate(model, &prompt, &mut kept)).expect("generates");
    let numbers = |tokens: &[Array]| tokens.iter().map(|token| token.item_exact::<u32>()).collect::<Vec<_>>();
    let found: Vec<Array> = found.iter().map(|token| token.dense().expect("dense")).collect();
    assert_eq!(numbers(&found), numbers(&expected));
}
