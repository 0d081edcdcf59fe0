//! Every kind of mlx-rs layer with implicit weights equals its dense self: value and gradient, eager and compiled.

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::{Array, nn, ops, transforms};
use tacit_arrays::format::Affine;
use tacit_arrays::{AffineArray, Nf4Array};
use tacit_conformance::oracle::{floats, relative_error};
use tacit_core::{Counters, Policy, Value};
use tacit_nn::{Parameters, quantized, with_parameters};

use crate::types::normal;

type Outputs = Result<Vec<Array>, Exception>;
type Forward<M> = fn(&mut M, &[Array]) -> Result<Array, Exception>;
type Rule = fn(&str, &Array) -> Option<Value>;

/// What the values and gradients of a layer have to meet, relative to the largest of each.
const TOLERANCE: f64 = 1e-5;

/// NF4 for every parameter, vectors included.
fn nf4(_: &str, w: &Array) -> Option<Value> {
    Some(Nf4Array::quantize(w, 64).expect("quantizes").into())
}

/// NF4 for matrices.
fn nf4_matrices(path: &str, w: &Array) -> Option<Value> {
    if w.ndim() == 2 { nf4(path, w) } else { None }
}

/// 4-bit affine for whatever has a last axis of whole groups.
fn affine(_: &str, w: &Array) -> Option<Value> {
    let groups = w.ndim() >= 2 && w.dim(-1) % 32 == 0;
    groups.then(|| AffineArray::quantize(w, Affine { bits: 4, group: 32 }).expect("quantizes").into())
}

/// The layer's parameters as normal numbers: zeros and ones would hide an exchange.
fn randomized<M: ModuleParameters>(mut module: M) -> M {
    let mut parameters: Vec<_> = module.parameters_mut().flatten().into_iter().collect();
    parameters.sort_by(|a, b| a.0.cmp(&b.0));
    for (seed, (_, slot)) in parameters.iter_mut().enumerate() {
        let scale = Array::from_f32(1.0 / (slot.dim(-1) as f32).sqrt());
        let made = normal(100 + seed as u64, slot.shape()).multiply(scale).expect("scales");
        made.eval().expect("evaluates");
        **slot = made;
    }
    drop(parameters);
    module
}

/// A scalar whose gradient tells the elements of `y` apart.
fn weighted(y: &Array) -> Result<Array, Exception> {
    let weights: Vec<f32> = (1..=y.size()).map(|i| (i as f32).sin()).collect();
    y.multiply(Array::from_slice(&weights, y.shape()))?.sum(None)
}

/// The output, the gradients for the float inputs, and those for the parameters that `implicit` does not name.
fn outputs<M: ModuleParameters>(
    module: &mut M,
    values: &Parameters,
    implicit: &Parameters,
    forward: Forward<M>,
    inputs: &[Array],
) -> Outputs {
    let mut all = vec![with_parameters(module, values, |module| forward(module, inputs))?.dense()?];
    let loss = |module: &mut M, inputs: &[Array]| -> Result<Array, Exception> {
        weighted(&with_parameters(module, values, |module| forward(module, inputs))?.dense()?)
    };
    let argnums: Vec<i32> =
        (0..).zip(inputs).filter(|(_, input)| input.dtype().is_float()).map(|(argnum, _)| argnum).collect();
    if !argnums.is_empty() {
        let of_inputs = |inputs: &[Array]| -> Outputs { Ok(vec![loss(module, inputs)?]) };
        all.extend(transforms::value_and_grad_with_argnums(of_inputs, argnums.as_slice())(inputs)?.1);
    }
    let before: Vec<_> = module.parameters().flatten().into_iter().map(|(path, array)| (path, array.clone())).collect();
    let (_, gradients) = nn::value_and_grad(loss)(module, inputs)?;
    // mlx-rs leaves the arrays that it traced in the module.
    let mut slots = module.parameters_mut().flatten();
    for (path, array) in before {
        if let Some(slot) = slots.get_mut(&path) {
            **slot = array;
        }
    }
    let mut rest: Vec<_> = gradients.into_iter().filter(|(path, _)| !implicit.contains_key(&**path)).collect();
    rest.sort_by(|a, b| a.0.cmp(&b.0));
    all.extend(rest.into_iter().map(|(_, gradient)| gradient));
    Ok(all)
}

/// Compares a module whose parameters `rule` made implicit with the module that has them built.
#[track_caller]
fn check<M>(module: &M, rule: Rule, policy: Policy, inputs: &[Array], forward: Forward<M>)
where
    M: ModuleParameters + Clone + 'static,
{
    let implicit = quantized(module, |path, w| Ok(rule(path, w))).expect("quantizes");
    let mut dense = module.clone();
    for (path, slot) in dense.parameters_mut().flatten() {
        if let Some(value) = implicit.get(&*path) {
            *slot = value.dense().expect("builds");
        }
    }
    let expected = outputs(&mut dense, &Parameters::new(), &implicit, forward, inputs).expect("the dense module");

    let _guard = policy.scope();
    let mut module = module.clone();
    let eager = outputs(&mut module, &implicit, &implicit, forward, inputs).expect("eager");
    let step = move |inputs: &[Array]| outputs(&mut module, &implicit, &implicit, forward, inputs);
    let compiled = transforms::compile::compile(step, None)(inputs).expect("compiled");
    // Some gradients are zero but for rounding, such as that of a bias of the keys: no error is taken relative to less
    // than a tenth of the largest gradient.
    let size = |array: &Array| f64::from(floats(array).expect("floats").iter().fold(0f32, |most, x| most.max(x.abs())));
    let most = expected[1..].iter().map(size).fold(0.0, f64::max);
    for (form, found) in [("eager", eager), ("compiled", compiled)] {
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()));
            let floor = if i == 0 { 0.0 } else { 0.1 * most };
            let error = relative_error(found, expected).expect("floats") * size(expected) / size(expected).max(floor);
            assert!(
                error <= TOLERANCE,
                "{form}, {}: {error}",
                if i == 0 { "value".into() } else { format!("gradient {i}") }
            );
        }
    }
}

#[test]
fn linear_with_and_without_bias() {
    for bias in [true, false] {
        let linear = randomized(nn::LinearBuilder::new(64, 40).bias(bias).build().expect("builds"));
        for shape in [&[3, 64][..], &[2, 3, 64], &[64]] {
            for rule in [nf4_matrices, affine] {
                check(&linear, rule, Policy::Deny, &[normal(1, shape)], |m, x| m.forward(&x[0]));
            }
            check(&linear, nf4, Policy::Allow, &[normal(1, shape)], |m, x| m.forward(&x[0]));
        }
    }
}

#[test]
fn embedding_and_its_transpose_as_a_linear_layer() {
    let embedding = randomized(nn::Embedding::new(40, 64).expect("builds"));
    let indices = Array::from_slice(&[3i32, 0, 39, 3, -1, 7], &[2, 3]);
    for rule in [nf4, affine] {
        check(&embedding, rule, Policy::Deny, std::slice::from_ref(&indices), |m, x| m.forward(&x[0]));
        check(&embedding, rule, Policy::Deny, &[normal(1, &[3, 64])], |m, x| m.as_linear(&x[0]));
    }
}

#[test]
fn layer_norm_builds_its_vectors_and_counts_them() {
    let norm = randomized(nn::LayerNorm::new(64).expect("builds"));
    check(&norm, nf4, Policy::Allow, &[normal(1, &[2, 3, 64])], |m, x| m.forward(&x[0]));

    let _allow = Policy::Allow.scope();
    let implicit = quantized(&norm, |path, w| Ok(nf4(path, w))).expect("quantizes");
    let x = normal(1, &[2, 64]);
    let (y, counters) = Counters::during(|| with_parameters(&mut norm.clone(), &implicit, |norm| norm.forward(&x)));
    y.expect("falls back");
    assert_eq!((counters.materialized, counters.materialized_bytes), (2, 2 * 64 * 4));
}

#[test]
fn multi_head_attention_with_and_without_bias() {
    for bias in [true, false] {
        let attention = randomized(nn::MultiHeadAttentionBuilder::new(64, 4).bias(bias).build().expect("builds"));
        let inputs = [normal(1, &[2, 5, 64]), normal(2, &[2, 7, 64]), normal(3, &[2, 7, 64])];
        for rule in [nf4_matrices, affine] {
            check(&attention, rule, Policy::Deny, &inputs, |m, x| m.forward((&x[0], &x[1], &x[2])));
        }
    }
}

/// mlx-rs keeps its encoder and decoder layers to itself: one of each inside a `Transformer`.
#[test]
fn transformer_encoder_and_decoder_layers() {
    for norm_first in [true, false] {
        let transformer = nn::TransformerBuilder::new()
            .dimensions(64)
            .num_heads(4)
            .encoder_layer_count(1usize)
            .decoder_layer_count(1usize)
            .norm_first(norm_first)
            .build()
            .expect("builds");
        let mut transformer = randomized(transformer);
        without_dropout(&mut transformer);
        let masks = [
            ops::zeros::<f32>(&[6, 6]).expect("zeros"),
            nn::MultiHeadAttention::create_additive_causal_mask::<f32>(5).expect("a mask"),
            ops::zeros::<f32>(&[5, 6]).expect("zeros"),
        ];
        let inputs = [&[normal(1, &[2, 6, 64]), normal(2, &[2, 5, 64])][..], &masks].concat();
        let forward: Forward<nn::Transformer> = |m, x| m.forward((&x[0], &x[1], &x[2], &x[3], &x[4]));
        for rule in [nf4_matrices, affine] {
            check(&transformer, rule, Policy::Deny, &inputs, forward);
        }
        // The vectors of the layer norms and the biases too.
        check(&transformer, nf4, Policy::Allow, &inputs, forward);
    }
}

fn without_dropout(transformer: &mut nn::Transformer) {
    <nn::Transformer as Module<nn::TransformerInput<'_>>>::training_mode(transformer, false);
}

#[test]
fn convolution_builds_its_weight_and_counts_it() {
    let convolution = randomized(nn::Conv2dBuilder::new(32, 8, 3).padding(1).build().expect("builds"));
    for rule in [nf4, affine] {
        check(&convolution, rule, Policy::Allow, &[normal(1, &[2, 6, 6, 32])], |m, x| m.forward(&x[0]));
    }
    let _allow = Policy::Allow.scope();
    let implicit = quantized(&convolution, |path, w| Ok(affine(path, w))).expect("quantizes");
    let x = normal(1, &[2, 6, 6, 32]);
    let (y, counters) = Counters::during(|| with_parameters(&mut convolution.clone(), &implicit, |m| m.forward(&x)));
    y.expect("falls back");
    assert_eq!((counters.materialized, counters.materialized_bytes), (1, 8 * 3 * 3 * 32 * 4));
}
