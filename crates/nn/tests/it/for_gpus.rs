//! What a GPU would run: no kernel that has no source for it, and no dense weight.

use expect_test::expect;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Module;
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::{Array, Dtype, builder::Builder, error::Exception, fast, nn, ops, random};
use tacit_arrays::format::{AnyFormat, quantize_by_key};
use tacit_core::kernel::{GpuBackend, trace_for};
use tacit_core::{Counters, Explanation, Policy, Result, explain, implicit};
use tacit_nn::{
    KvCache, LoraConfig, Method, Model, ParameterFilter, Parameters, explain_with_parameters, straight_through,
    with_parameters,
};

use crate::cache::{WINDOWS, attend, cache};
use crate::types::normal;

const FORMATS: [&str; 4] = ["nf4:64", "nf4:64:double", "affine:4:64", "affine:8:32"];

/// What `f` does on a GPU of each kind, where nothing may be built.
fn on_gpus<T>(what: &str, mut f: impl FnMut() -> Result<T>) {
    for backend in [GpuBackend::Cuda, GpuBackend::Metal] {
        let _deny = Policy::Deny.scope();
        let _traced_for = trace_for(backend);
        let (made, counters) = Counters::during(&mut f);
        made.unwrap_or_else(|error| panic!("{what}, {backend:?}: {error}"));
        assert_eq!((counters.decomposed, counters.materialized), (0, 0), "{what}, {backend:?}");
    }
}

fn linear(inputs: i32, outputs: i32) -> nn::Linear {
    nn::LinearBuilder::new(inputs, outputs).bias(false).build().expect("builds")
}

fn sequential() -> nn::Sequential {
    nn::Sequential::new()
        .append(nn::Linear::new(64, 128).expect("builds"))
        .append(nn::Relu)
        .append(nn::Linear::new(128, 64).expect("builds"))
}

fn layers(format: &str) -> Model<nn::Sequential> {
    let format: AnyFormat = format.parse().expect("a format");
    Model::new(sequential()).and_then(|model| model.quantize("*.weight", format)).expect("quantizes")
}

/// The matrices in codes, through which gradients pass straight.
fn aware(layers: &nn::Sequential, format: &AnyFormat) -> Result<Parameters> {
    straight_through(layers, |_, w| (w.ndim() == 2).then(|| format.quantize(w)).transpose())
}

fn loss(model: &mut Model<nn::Sequential>, x: &Array) -> Result<Array, Exception> {
    model.forward(x)?.square()?.mean(None)
}

#[test]
fn quantized_layers_are_called_and_differentiated() {
    for format in FORMATS.into_iter().chain(["rotated:affine:4:64"]) {
        let mut model = layers(format);
        for rows in [1, 9, 200] {
            let x = normal(1, &[rows, 64]);
            on_gpus(format, || Ok(model.forward(&x)?));
            on_gpus(format, || model.value_and_grad(ParameterFilter::Dense, &x, loss));
        }
    }
}

#[test]
fn activations_are_rounded_to_8_bits() {
    for format in ["nf4:64", "nf4:64:double", "affine:4:64", "symmetric:4:32", "int8:64"] {
        let mut model = layers(format);
        model.int8_activations("*").expect("have such products");
        for rows in [1, 9, 200] {
            let x = normal(1, &[rows, 64]);
            on_gpus(format, || Ok(model.forward(&x)?));
            on_gpus(format, || model.value_and_grad(ParameterFilter::Dense, &x, loss));
        }
    }
}

#[test]
fn packed_arrays_are_added_to_dense_ones() {
    let (x, dense) = (normal(1, &[32, 64]), normal(2, &[32, 64]));
    for text in FORMATS {
        let format: AnyFormat = text.parse().expect("a format");
        let packed = format.quantize(&x).expect("quantizes");
        on_gpus(text, || implicit((&packed, &dense), |(packed, dense)| packed.add(dense)));
        on_gpus(text, || {
            implicit((&packed, &dense), |(packed, dense)| packed.multiply(Array::from_f32(0.5))?.add(dense))
        });
    }
}

#[test]
fn scales_are_fitted() {
    let x = normal(1, &[32, 64]);
    for text in ["nf4:64+search", "affine:4:64+hqq", "symmetric:4:32+search"] {
        let format: AnyFormat = text.parse().expect("a format");
        on_gpus(text, || format.quantize(&x));
    }
}

#[test]
fn adapters_are_trained() {
    for (method, format) in [(Method::Lora, "nf4:64"), (Method::QaLora, "affine:4:32")] {
        let config = LoraConfig { method, rank: 4, ..LoraConfig::default() };
        let mut model = layers(format).lora("*.weight", config).expect("adapts");
        let x = normal(1, &[9, 64]);
        on_gpus(format, || model.value_and_grad(ParameterFilter::Lora, &x, loss));
    }
}

#[test]
fn scales_are_trained_with_the_codes_as_they_are() {
    for format in ["nf4:64", "affine:4:64", "symmetric:4:32", "int8:64"] {
        let mut model = layers(format);
        let x = normal(1, &[9, 64]);
        on_gpus(format, || model.value_and_grad(ParameterFilter::Scales, &x, loss));
    }
}

#[test]
fn weights_are_quantized_in_each_step() {
    for text in ["nf4:64", "affine:4:64", "symmetric:4:32", "int8:64"] {
        let format: AnyFormat = text.parse().expect("a format");
        let mut layers = sequential();
        let x = normal(1, &[9, 64]);
        on_gpus(text, || {
            let loss = |layers: &mut nn::Sequential, x: &Array| -> Result<Array, Exception> {
                let weights = aware(layers, &format)?;
                let y = with_parameters(layers, &weights, |layers| layers.forward(x))?.dense()?;
                y.square()?.mean(None)
            };
            Ok(nn::value_and_grad(loss)(&mut layers, &x)?)
        });
    }
}

/// How many ops an explanation has, who took them, and what was built or has no source.
fn summary(explanation: &Explanation) -> String {
    let text = explanation.to_string();
    let end = text.rsplit_once("}   ").map_or("", |(_, end)| end);
    end.lines().next().unwrap_or_default().to_owned()
}

/// The layer of the book's first chapter, a layer in training, an adapter, and keys and values in codes.
#[test]
fn explanations_tell_of_no_plain_op_and_no_dense_weight() {
    let format: AnyFormat = "nf4:64".parse().expect("a format");
    let first = nn::Linear::new(256, 512).expect("builds");
    let mut first = Model::new(first).and_then(|model| model.quantize("weight", format.clone())).expect("quantizes");
    let mut trained = sequential();
    let config = LoraConfig { rank: 4, ..LoraConfig::default() };
    let mut adapted = layers("nf4:64").lora("*.weight", config).expect("adapts");
    let [q, k, v] = [4, 2, 2].map(|heads| normal(1, &[1, heads, 20, 64]));
    let [k, v] = [k, v].map(|x| format.quantize(&x).expect("quantizes"));
    let mask = ops::zeros::<f32>(&[1, 1, 20, 20]).expect("zeros");
    let (x, wide) = (normal(1, &[9, 64]), normal(1, &[2, 256]));

    let mut lines = Vec::new();
    for backend in [GpuBackend::Cuda, GpuBackend::Metal] {
        let _deny = Policy::Deny.scope();
        let _traced_for = trace_for(backend);
        let mut told = |what: &str, explanation: Result<Explanation>| {
            let summary = summary(&explanation.unwrap_or_else(|error| panic!("{what}, {backend:?}: {error}")));
            assert!(summary.ends_with(" 0 materialized (0 B)"), "{what}, {backend:?}: {summary}");
            lines.push(format!("{backend:?}, {what}: {summary}"));
        };
        told("a layer", first.explain(|layer| layer.forward(&wide)));
        let weights = aware(&trained, &format).expect("quantizes");
        told("training", explain_with_parameters(&mut trained, &weights, |layers| layers.forward(&x)));
        told("an adapter", adapted.explain(|layers| layers.forward(&x)));
        let attention = explain((&q, &k, &v), |(q, k, v): (Array, Array, Array)| attend(&q, &k, &v, &mask));
        told("attention over a cache", attention);
    }
    expect![[r#"
        Cuda, a layer: 2 ops, 2 handled, 0 materialized (0 B)
        Cuda, training: 5 ops, 4 handled, 0 materialized (0 B)
        Cuda, an adapter: 5 ops, 4 handled, 0 materialized (0 B)
        Cuda, attention over a cache: 12 ops, 9 handled, 0 materialized (0 B)
        Metal, a layer: 2 ops, 2 handled, 0 materialized (0 B)
        Metal, training: 5 ops, 4 handled, 0 materialized (0 B)
        Metal, an adapter: 5 ops, 4 handled, 0 materialized (0 B)
        Metal, attention over a cache: 12 ops, 9 handled, 0 materialized (0 B)"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn numbers_are_rounded_at_random() {
    let (x, key) = (normal(1, &[32, 64]), random::key(3).expect("a key"));
    for text in ["nf4:64", "affine:4:64", "int8:64", "bf16"] {
        let format: AnyFormat = text.parse().expect("a format");
        on_gpus(text, || quantize_by_key(&format, &x, &key));
    }
}

/// A decoder of one layer.
#[derive(Debug, Clone, ModuleParameters)]
struct Tiny {
    #[param]
    table: nn::Embedding,
    #[param]
    norm: nn::RmsNorm,
    #[param]
    q: nn::Linear,
    #[param]
    k: nn::Linear,
    #[param]
    v: nn::Linear,
    #[param]
    o: nn::Linear,
}

impl Tiny {
    fn new() -> Self {
        random::seed(3).expect("seeds");
        let (table, norm) = (nn::Embedding::new(50, 128).expect("builds"), nn::RmsNorm::new(128).expect("builds"));
        Self { table, norm, q: linear(128, 256), k: linear(128, 128), v: linear(128, 128), o: linear(256, 128) }
    }

    /// The most likely next tokens.
    fn step(&mut self, tokens: &Array, cache: &mut KvCache) -> Result<Array> {
        let x = self.table.forward(tokens)?;
        let y = self.norm.forward(&x)?;
        let [batch, count] = [tokens.dim(0), tokens.dim(1)];
        let heads = |x: Array, heads| x.reshape(&[batch, count, heads, 64])?.transpose_axes(&[0, 2, 1, 3]);
        let (q, k, v) =
            (heads(self.q.forward(&y)?, 4)?, heads(self.k.forward(&y)?, 2)?, heads(self.v.forward(&y)?, 2)?);
        let mask = cache.mask(count)?;
        let (k, v) = cache.update(&k, &v)?;
        let y = fast::scaled_dot_product_attention(&q, &k, &v, 0.125, Some((&mask).into()), None)?;
        let y = self.o.forward(&y.transpose_axes(&[0, 2, 1, 3])?.reshape(&[batch, count, 256])?)?;
        Ok(argmax_axis(self.table.as_linear(&x.add(y)?)?, -1, false)?)
    }
}

#[test]
fn a_step_of_a_decoder_reads_and_writes_quantized_caches() {
    let format: AnyFormat = "nf4:64".parse().expect("a format");
    let mut model = Model::new(Tiny::new()).and_then(|model| model.quantize("*.weight", format)).expect("quantizes");
    for formats in [
        ["dense", "dense"],
        ["affine:8:64", "affine:4:32"],
        ["nf4:64", "int8:64"],
        ["mxfp8", "nf4:32"],
        ["f16", "bf16"],
    ] {
        for window in WINDOWS {
            let mut cache = cache(2, Dtype::Float32, formats, window);
            // A prompt, and then one token after the other.
            for count in [20, 1, 1] {
                let numbers: Vec<u32> = (0..2 * count).map(|at| at * 7 % 50).collect();
                let tokens = Array::from_slice(&numbers, &[2, count as i32]);
                cache.reserve(count as i32).expect("reserves");
                on_gpus(&format!("{formats:?} {window:?} {count}"), || {
                    let mut cache = cache.clone();
                    model.run_with(&mut cache, |model, cache| model.step(&tokens, cache))
                });
                model.run_with(&mut cache, |model, cache| model.step(&tokens, cache)).expect("runs");
            }
        }
    }
}
