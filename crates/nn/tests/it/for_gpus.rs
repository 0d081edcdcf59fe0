//! What a GPU would run: no kernel that has no source for it, and no dense weight.

use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Module;
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::{Array, Dtype, builder::Builder, error::Exception, fast, nn, random};
use tacit_arrays::format::{AnyFormat, quantize_by_key};
use tacit_core::kernel::{Backend, trace_for};
use tacit_core::{Counters, Policy, Result, implicit};
use tacit_nn::{KvCache, LoraConfig, Method, Model, ParameterFilter};

use crate::cache::{WINDOWS, cache};
use crate::types::normal;

const FORMATS: [&str; 4] = ["nf4:64", "nf4:64:double", "affine:4:64", "affine:8:32"];

/// What `f` does on a GPU of each kind, where nothing may be built.
fn on_gpus<T>(what: &str, mut f: impl FnMut() -> Result<T>) {
    for backend in [Backend::Cuda, Backend::Metal] {
        let _deny = Policy::Deny.scope();
        let _traced_for = trace_for(backend);
        let (made, counters) = Counters::of(&mut f);
        made.unwrap_or_else(|error| panic!("{what}, {backend:?}: {error}"));
        assert_eq!((counters.decomposed, counters.materialized), (0, 0), "{what}, {backend:?}");
    }
}

fn linear(inputs: i32, outputs: i32) -> nn::Linear {
    nn::LinearBuilder::new(inputs, outputs).bias(false).build().expect("builds")
}

fn layers(format: &str) -> Model<nn::Sequential> {
    let layers = nn::Sequential::new()
        .append(nn::Linear::new(64, 128).expect("builds"))
        .append(nn::Relu)
        .append(nn::Linear::new(128, 64).expect("builds"));
    let format: AnyFormat = format.parse().expect("a format");
    Model::new(layers).and_then(|model| model.quantize("*.weight", format)).expect("quantizes")
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
fn numbers_are_rounded_at_random() {
    let (x, key) = (normal(1, &[32, 64]), random::key(3).expect("a key"));
    for text in ["nf4:64", "affine:4:64", "int8:64", "bf16"] {
        let format: AnyFormat = text.parse().expect("a format");
        on_gpus(text, || quantize_by_key(&*format, &x, &key));
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
