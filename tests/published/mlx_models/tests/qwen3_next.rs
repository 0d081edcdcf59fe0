//! The published qwen3_next of mlx-models, whose weights are codes of MLX's own in containers of its own: with adapters of ours, and
//! with keys and values of 8 bits in its own caches.

use mlx_models::cache::{ConcatKeyValueCache, KeyValueCache as _};
use mlx_models::qwen3_next::{ArraysCache, LayerCache, Qwen3NextCausalLM, Qwen3NextModelArgs};
use mlx_rs::error::Exception;
use mlx_rs::module::ModuleParameters as _;
use mlx_rs::ops::indexing::{IndexOp as _, TryIndexOp as _};
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, Dtype, ops, random};
use tacit::model::KvCache;
use tacit::prelude::*;
use tacit::{Aval, Error, ImplicitArray, Materialize, handler, primitives};

#[path = "../../shared.rs"]
mod shared;

use shared::{assert_handled, distance, likeliest};

const PROMPT: [u32; 5] = [3, 41, 59, 26, 5];
const STEPS: usize = 6;
const GROUP: i32 = 64;
const ADAPTERS: usize = 9;

/// Heads of keys and values, and how wide they are.
const HEADS: i32 = 2;
const WIDTH: i32 = 32;
const EIGHT_BITS: Affine = Affine { bits: 8, group: WIDTH as usize };

/// The codes of a matrix, with a change of low rank beside what they stand for. Products know the change; the codes alone do not.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "published.AdaptedCodes")]
struct AdaptedCodes {
    codes: Array,
    a: Array,
    b: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl AdaptedCodes {
    fn new(codes: &Array, a: &Array, b: &Array) -> Self {
        Self { codes: codes.clone(), a: a.clone(), b: b.clone(), aval: Aval::from(codes) }
    }
}

impl Materialize for AdaptedCodes {
    fn materialize(&self) -> Result<Value> {
        Err(Error::invalid("adapted codes are no codes", "multiply with them"))
    }
}

/// The product with the codes, and that with the change.
#[handler]
fn adapted_product(op: &primitives::QuantizedMatmul, x: &Array, w: &AdaptedCodes, rest: &[&Value]) -> Result<Value> {
    let dense = |value: &&Value| value.dense();
    let rest = rest.iter().map(dense).collect::<Result<Vec<_>>>()?;
    let base = ops::quantized_matmul(x, &w.codes, &rest[0], &rest[1], true, op.group_size as i32, op.bits as i32)?;
    let change = x.matmul(w.a.t())?.matmul(w.b.t())?;
    Ok(base.add(change)?.into())
}

fn decoder() -> Qwen3NextCausalLM {
    random::seed(7).expect("seeds");
    let args = serde_json::json!({
        "model_type": "qwen3_next", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6, "vocab_size": 128,
        "max_position_embeddings": 64, "full_attention_interval": 2, "partial_rotary_factor": 0.25,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 64, "moe_intermediate_size": 64, "norm_topk_prob": true,
        "quantization": {"group_size": GROUP, "bits": 4},
    });
    let args: Qwen3NextModelArgs = serde_json::from_value(args).expect("the arguments of the model");
    let mut model = Qwen3NextCausalLM::new(args).expect("builds");
    let shape = |path: &str| -> Vec<i32> {
        let name = path.trim_end_matches(".weight");
        let last = name.rsplit('.').next().unwrap_or(name);
        let two =
            |rows, columns| if name.contains("switch_mlp") { vec![4, rows, columns] } else { vec![rows, columns] };
        match last {
            "q_proj" => vec![256, 128],
            "k_proj" | "v_proj" => vec![64, 128],
            "o_proj" | "out_proj" => vec![128, 128],
            "in_proj_qkvz" => vec![2 * 64 + 2 * 128, 128],
            "in_proj_ba" => vec![8, 128],
            "gate" => vec![4, 128],
            "shared_expert_gate" => vec![1, 128],
            "gate_proj" | "up_proj" => two(64, 128),
            "down_proj" => two(128, 64),
            "embed_tokens" | "lm_head" => vec![128, 128],
            other => panic!("{other} of {path}"),
        }
    };
    let paths: Vec<String> = model.parameters().flatten().keys().map(ToString::to_string).collect();
    for path in paths.iter().filter(|path| path.ends_with(".scales")) {
        let name = path.trim_end_matches(".scales");
        let shape = shape(&format!("{name}.weight"));
        let w = random::normal::<f32>(&shape, None, None, None)
            .expect("draws")
            .multiply(Array::from_f32(0.1))
            .expect("scales");
        let bits = if name.ends_with(".gate") || name.ends_with("shared_expert_gate") { 8 } else { 4 };
        let (codes, scales, biases) = ops::quantize(&w, GROUP, bits).expect("quantizes");
        let mut slots = model.parameters_mut().flatten();
        for (field, array) in [("weight", codes), ("scales", scales), ("biases", biases)] {
            **slots.get_mut(format!("{name}.{field}").as_str()).expect("a parameter") = array;
        }
    }
    model
}

/// Adapters on the products of attention and of the gated delta rule: the paths of their codes.
fn adapted(model: &Model<Qwen3NextCausalLM>) -> Vec<(String, AdaptedCodes)> {
    let names =
        ["q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkvz", "out_proj", "shared_expert.up_proj", "lm_head"];
    let mut made = Vec::new();
    for (path, value) in model.values().expect("values") {
        let name = path.trim_end_matches(".weight");
        if !path.ends_with(".weight") || !names.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        let codes = value.dense().expect("codes");
        let (outputs, inputs) = (codes.dim(0), codes.dim(1) * 8);
        let factor = |shape: &[i32], scale: f32| {
            random::normal::<f32>(shape, None, None, None)
                .and_then(|x| x.multiply(Array::from_f32(scale)))
                .expect("draws")
        };
        made.push((path, AdaptedCodes::new(&codes, &factor(&[2, inputs], 0.1), &factor(&[outputs, 2], 0.3))));
    }
    made
}

fn step(
    model: &mut Qwen3NextCausalLM,
    tokens: &[u32],
    cache: &mut Vec<Option<LayerCache>>,
) -> Result<Array, Exception> {
    let inputs = Array::from_slice(tokens, &[1, tokens.len() as i32]);
    Ok(model.forward(&inputs, None, cache)?.index((.., -1, ..)))
}

fn with_adapters(plain: &Qwen3NextCausalLM) -> Model<Qwen3NextCausalLM> {
    let mut model = Model::new(plain.clone()).expect("a model");
    let adapters = adapted(&model);
    assert_eq!(adapters.len(), ADAPTERS);
    for (path, adapter) in adapters {
        model.set(&path, adapter).expect("is of its shape");
    }
    model
}

/// One pass over the prompt, and then one token a call, with the model's own caches of both kinds.
#[test]
fn adapters_that_change_nothing_give_the_same_tokens() {
    let mut plain = decoder();
    let mut model = with_adapters(&plain);
    let unchanged: Vec<(String, Value)> = model.values().expect("values").into_iter().collect();
    for (path, value) in unchanged {
        if let Some(AdaptedCodes { codes, a, b, .. }) = value.downcast() {
            let none = b.multiply(Array::from_f32(0.0)).expect("multiplies");
            model.set(&path, AdaptedCodes::new(codes, a, &none)).expect("is of its shape");
        }
    }
    let _deny = Policy::Deny.scope();
    let (mut own, mut expected_cache) = (plain.make_cache(), plain.make_cache());
    let mut tokens = PROMPT.to_vec();
    let mut fed = 0;
    for _ in 0..STEPS {
        let (logits, counted) = Counters::during(|| model.run(|model| step(model, &tokens[fed..], &mut own)));
        let logits = logits.expect("runs");
        assert_handled(&counted, ADAPTERS as u64);
        let expected = step(&mut plain, &tokens[fed..], &mut expected_cache).expect("runs");
        assert!(distance(&logits, &expected) < 1e-6, "token {fed}");
        fed = tokens.len();
        tokens.push(likeliest(&logits));
    }
}

/// The model's own cache of a layer, filled with the tokens of ours.
fn lent(kept: &KvCache) -> Result<ConcatKeyValueCache> {
    let mut own = ConcatKeyValueCache::new();
    if !kept.is_empty() {
        let (keys, values) = kept.tokens()?;
        own.update_and_fetch(keys.dense()?, values.dense()?)?;
    }
    Ok(own)
}

/// Writes what a call put behind them into ours. The model's own cache gives all of its tokens to who adds none.
fn given_back(mut own: ConcatKeyValueCache, kept: &mut KvCache) -> Result<()> {
    let (none, first) = (ops::zeros::<f32>(&[1, HEADS, 0, WIDTH])?, kept.len());
    let (keys, values) = own.update_and_fetch(none.clone(), none)?;
    kept.update(&keys.try_index((.., .., first.., ..))?, &values.try_index((.., .., first.., ..))?)?;
    Ok(())
}

fn attention(own: &mut [Option<LayerCache>]) -> impl Iterator<Item = &mut ConcatKeyValueCache> {
    own.iter_mut().filter_map(|cache| match cache {
        Some(LayerCache::KV(cache)) => Some(cache),
        _ => None,
    })
}

/// One call whose keys and values are ours between the calls, in any format.
fn step_with(
    model: &mut Model<Qwen3NextCausalLM>,
    tokens: &[u32],
    own: &mut Vec<Option<LayerCache>>,
    kept: &mut Vec<KvCache>,
) -> Result<Array> {
    kept.iter_mut().try_for_each(|kept| kept.reserve(tokens.len() as i32))?;
    model.run_with(kept, |model, kept| {
        for (own, kept) in attention(own).zip(kept.iter()) {
            *own = lent(kept)?;
        }
        let logits = step(model, tokens, own)?;
        for (own, kept) in attention(own).zip(kept.iter_mut()) {
            given_back(std::mem::take(own), kept)?;
        }
        Ok::<_, Error>(logits)
    })
}

/// The prompt, then two tokens or one: what a call reads of those before it is codes, and nothing is built of them.
#[test]
fn its_own_caches_hold_keys_and_values_of_eight_bits() {
    let plain = decoder();
    let mut model = with_adapters(&plain);
    let kept = KvCache::new([1, HEADS, WIDTH], Dtype::Float32).and_then(|kept| kept.quantized(EIGHT_BITS, EIGHT_BITS));
    let mut codes = vec![kept.expect("a cache")];
    let (mut own, mut floats) = (plain.make_cache(), plain.make_cache());
    let mut tokens = PROMPT.to_vec();
    let (mut fed, mut furthest) = (0, 0f32);
    for next in 1..=STEPS {
        // The same call with the floats that the codes stand for.
        let mut decoded = {
            let _allow = Policy::Allow.scope();
            vec![codes[0].clone().dense().expect("decodes")]
        };
        let expected = step_with(&mut model, &tokens[fed..], &mut own.clone(), &mut decoded).expect("runs");
        let _deny = Policy::Deny.scope();
        let (logits, counted) = Counters::during(|| step_with(&mut model, &tokens[fed..], &mut own, &mut codes));
        let logits = logits.expect("runs");
        assert_handled(&counted, ADAPTERS as u64);
        assert!(distance(&logits, &expected) < 1e-4, "token {fed}: {}", distance(&logits, &expected));
        let unrounded = model.run(|model| step(model, &tokens[fed..], &mut floats)).expect("runs");
        furthest = furthest.max(distance(&logits, &unrounded));
        fed = tokens.len();
        assert_eq!(codes[0].len() as usize, fed);
        tokens.extend((0..1 + next % 2).map(|more| (likeliest(&unrounded) + more as u32) % 128));
    }
    assert_eq!(codes[0].keys().to_string(), "Affine(f32[1,2,256,32])");
    println!("at most {furthest:.1e} from the logits with a cache of floats");
    assert!(furthest > 0.0 && furthest < 0.05, "{furthest}");
}

/// Each token changes the whole state of a gated delta rule, so it stays in floats: codes would be decoded once in each call, by the op
/// that the error names.
#[test]
fn a_state_of_codes_is_named_where_it_is_decoded() {
    let mut plain = decoder();
    let mut own = plain.make_cache();
    step(&mut plain, &PROMPT, &mut own).expect("runs");
    let Some(LayerCache::Arrays(ArraysCache { ssm_state: Some(state), .. })) = &own[0] else { panic!("a state") };
    let codes = Value::from(AffineArray::quantize(state, EIGHT_BITS).expect("quantizes"));
    let mut run = || {
        implicit(&codes, |state| {
            let mut own = own.clone();
            if let Some(LayerCache::Arrays(arrays)) = &mut own[0] {
                arrays.ssm_state = Some(state);
            }
            step(&mut plain, &[7], &mut own)
        })
    };
    {
        let _deny = Policy::Deny.scope();
        let error = run().expect_err("it is decoded").to_string();
        assert!(error.contains("multiply of Affine(f32[1,4,32,32])"), "{error}");
    }
    let _allow = Policy::Allow.scope();
    let (logits, counted) = Counters::during(run);
    logits.expect("runs");
    assert_eq!(counted.materialized, 1);
}

#[test]
fn adapters_learn() {
    let mut model = with_adapters(&decoder());
    let _deny = Policy::Deny.scope();
    let mut optimizer = Adam::new(1e-2);
    let factors = ParameterFilter::Paths("*.{a,b}".parse().expect("a pattern"));
    let inputs = Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32]);
    let mut losses = Vec::new();
    for _ in 0..8 {
        let (loss, gradients) = model
            .value_and_grad(factors.clone(), &inputs, |model, inputs| {
                model.run(|module| {
                    let logits = module.forward(inputs, None, &mut module.make_cache())?;
                    // The text goes on as it began.
                    let wanted =
                        logits.index((.., ..-1, ..)).take_along_axis(inputs.index((.., 1..)).expand_dims(-1)?, -1)?;
                    logits.index((.., ..-1, ..)).logsumexp_axis(-1, true)?.subtract(wanted)?.mean(None)
                })
            })
            .expect("runs");
        assert_eq!(gradients.len(), 2 * ADAPTERS);
        model.update(&mut optimizer, &gradients).expect("updates");
        losses.push(loss.item_exact::<f32>());
    }
    println!("losses {losses:?}");
    assert!(losses[7] < 0.5 * losses[0], "{losses:?}");
}
