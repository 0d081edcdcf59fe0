//! Every array type as a subject: a type joins by its line. A program of tests says what is written of the lines before it names
//! this file.

use mlx_rs::{Array, Dtype, ops, random};
use tacit_arrays::format::{Affine, Bf16, Codebook, Dynamic, F16, Fit, Granularity, KQuant, Nf4, Symmetric};
use tacit_arrays::{
    ActivationGranularity, AffineArray, Bf16Array, BinaryArray, CodebookArray, Constant, DynamicArray, E4m3Array,
    E5m2Array, F16Array, Fp4Array, Int8Array, Int8Inputs, Int8Training, KQuantArray, Mxfp4Array, Mxfp8Array, Nf4Array,
    Nvfp4Array, Prepared, SavedInputs, ScaleRule, SymmetricArray, TernaryArray, TrainedCodes, ste,
};
use tacit_conformance::Subject;
use tacit_core::{Policy, Result};

use crate::structured::{
    as_stored, batched, cast, concat, diagonal, dora, identity, lora, lora_set, low_rank, masked, observed, qa_lora,
    repeated, rotated, scaled, scaled_channels, scores, sliced, sparse24, stacked, transposed,
};

with_lines! {
    straight_through: ste;
    nf4: |x| Nf4Array::quantize(x, 32), within(0.16), exact_zero(), refuses_non_finite(), thresholds(&NF4);
    nf4_double: |x| Nf4Array::quantize(x, Nf4 { block: 64, double: true }), within(0.17), floor(1e-6), refuses_non_finite();
    fp4: |x| Fp4Array::quantize(x, 32), within(0.2), exact_zero(), refuses_non_finite();
    affine_4: |x| AffineArray::quantize(x, Affine { bits: 4, group: 32 }), within(0.14), floor(1e-6), refuses_non_finite(), overflows();
    affine_8: |x| AffineArray::quantize(x, Affine { bits: 8, group: 32 }), within(0.009), floor(1e-6), refuses_non_finite(), overflows();
    symmetric_4: |x| SymmetricArray::quantize(x, Symmetric { bits: 4, group: 32 }), within(0.14), exact_zero(), refuses_non_finite(), overflows();
    symmetric_5: |x| SymmetricArray::quantize(x, Symmetric { bits: 5, group: 32 }), within(0.07), exact_zero(), refuses_non_finite(), overflows();
    symmetric_8: |x| SymmetricArray::quantize(x, Symmetric { bits: 8, group: 32 }), within(0.009), exact_zero(), refuses_non_finite(), overflows();
    int8: |x| Int8Array::quantize(x, 32), within(0.006), exact_zero(), refuses_non_finite(), overflows();
    int8_columns: |x| Int8Array::quantize(x, Granularity::Column), within(0.006), exact_zero(), refuses_non_finite(), overflows();
    mxfp4: |x| Mxfp4Array::quantize(x, ScaleRule::Ceil), within(0.35), exact_zero(), refuses_non_finite(), overflows();
    mxfp8: |x| Mxfp8Array::quantize(x, ScaleRule::Ceil), within(0.07), exact_zero(), refuses_non_finite(), overflows();
    nvfp4: |x| nvfp4(x), within(0.25), exact_zero(), refuses_non_finite(), overflows();
    dynamic_8: |x| DynamicArray::quantize(x, Dynamic { bits: 8, block: 32, unsigned: false }), within(0.04), exact_zero(), refuses_non_finite(), overflows();
    dynamic_4: |x| DynamicArray::quantize(x, Dynamic { bits: 4, block: 32, unsigned: false }), within(0.2), exact_zero(), refuses_non_finite();
    dynamic_reach: |x| DynamicArray::fitted(x, Dynamic { bits: 4, block: 32, unsigned: false }, Fit::Reach), within(0.2), exact_zero(), refuses_non_finite(), overflows();
    dynamic_unsigned: |x| squares(x), ignores_values();
    e4m3: |x| E4m3Array::quantize(x, 32), within(0.07), exact_zero(), refuses_non_finite(), overflows();
    e5m2: |x| E5m2Array::quantize(x, 32), within(0.13), exact_zero(), refuses_non_finite();
    f16: |x| F16Array::quantize(x, F16), within(5e-4), floor(6e-8), exact_zero(), refuses_non_finite(), overflows_from(65504.0);
    bf16: |x| Bf16Array::quantize(x, Bf16), within(4e-3), exact_zero(), refuses_non_finite(), overflows();
    codebook: |x| CodebookArray::quantize(x, Codebook::new(32, &IQ4_NL)?), within(0.12), refuses_non_finite(), overflows();
    k_2: |x| KQuantArray::quantize(x, KQuant { bits: 2 }), within(0.36), floor(1e-6), refuses_non_finite(), overflows();
    k_4: |x| KQuantArray::quantize(x, KQuant { bits: 4 }), within(0.09), floor(1e-6), refuses_non_finite(), overflows();
    k_6: |x| KQuantArray::quantize(x, KQuant { bits: 6 }), within(0.05), floor(1e-6), refuses_non_finite(), overflows();
    ternary: |x| TernaryArray::quantize(x, 32), within(1.0), exact_zero(), refuses_non_finite();
    binary: |x| BinaryArray::quantize(x, 32), within(1.0), refuses_non_finite();
    ste_nf4: |x| ste(x, |x| Nf4Array::quantize(x, 32)), within(0.16), exact_zero(), refuses_non_finite(), passes_straight();
    prepared: |x| prepared(x), elsewhere(&EIGHT_BITS), within(0.16), exact_zero(), refuses_non_finite(), passes_straight();
    trained_codes: |x| TrainedCodes::from_value(&x.into(), "nf4:32+stochastic", &random::key(1)?), within(0.16), exact_zero(), refuses_non_finite(), passes_straight();
    constant: |x| Constant::full(x.shape(), &Array::from_f32(0.5).as_dtype(x.dtype())?), ignores_values(), tolerance(SUM), shared_children();
    identity: |x| identity(x), ignores_values();
    diagonal: |x| diagonal(x), ignores_values();
    low_rank: |x| low_rank(x), ignores_values(), tolerance(SUM), shared_children();
    lora: |x| lora(x), ignores_values();
    dora: |x| dora(x), ignores_values();
    qa_lora: |x| qa_lora(x), ignores_values();
    as_stored: |x| as_stored(x), ignores_values();
    lora_set: |x| lora_set(x), ignores_values();
    masked: |x| masked(x), ignores_values();
    sparse24: |x| sparse24(x), ignores_values();
    transposed: |x| transposed(x), ignores_values();
    scaled: |x| scaled(x), ignores_values(), tolerance(SUM), shared_children();
    concat: |x| concat(x), ignores_values();
    stacked: |x| stacked(x), ignores_values();
    scaled_channels: |x| scaled_channels(x), ignores_values();
    repeated: |x| repeated(x), ignores_values();
    rotated: |x| rotated(x), ignores_values(), tolerance(SUM);
    sliced: |x| sliced(x), ignores_values();
    batched: |x| batched(x), ignores_values(), elsewhere(&BATCHED);
    observed: |x| observed(x), ignores_values();
    cast: |x| cast(x), ignores_values();
}

#[test]
fn every_type_has_a_line() {
    let mut subjects = subjects();
    // What rounds the other side of its products is no matrix in the suite's sense; `tests/it/int8_inputs.rs` compares it
    // with what it is defined by.
    subjects.push(Subject::new("int8_inputs", |x: &Array| Int8Inputs::new(x, ActivationGranularity::Token)));
    // The same in both passes; `tests/it/int8_training.rs`.
    subjects.push(Subject::new("int8_training", |x: &Array| Int8Training::new(x)));
    // What changes no value, and of gradients what they read; `tests/it/saved_inputs.rs` compares it with the weight itself.
    subjects.push(Subject::new("saved_inputs", |x: &Array| SavedInputs::new(x, "affine:8:32")));
    // What is not materialized but computed; `tests/it/attention.rs` compares it with plain ops.
    subjects.push(Subject::new("scores", scores));
    tacit_conformance::types_without_a_subject(&subjects).expect_clean();
}

/// Types whose products round the other side, in `tests/it/int8_inputs.rs` and `tests/it/int8_training.rs`.
const EIGHT_BITS: [&str; 3] = ["int8_inputs_moving", "int8_inputs_product", "int8_training_broadcast"];

/// A master whose codes exist: those of a NaN would fail where they are used.
fn prepared(x: &Array) -> Result<Prepared> {
    let prepared = Prepared::new(x, Nf4 { block: 32, double: false })?;
    let _allow = Policy::Allow.scope();
    prepared.convert()?.dense()?.eval()?;
    Ok(prepared)
}

/// The gradient of a scalar or of a thin factor is a sum over all elements or a whole axis, whose terms cancel; a rotation is
/// a sum over an axis more, whose rounding the gradient of a softmax shows.
const SUM: f64 = 4e-5;

/// Products of three axes, in `tests/it/attention.rs` and `tests/it/shapeless.rs`.
const BATCHED: [&str; 1] = ["scores_of"];

/// The values of GGUF's `IQ4_NL`.
const IQ4_NL: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// Where NF4 changes its code, in units of a block's largest magnitude: some of bitsandbytes' thresholds.
const NF4: [f32; 3] = [-0.848_096_4, 0.039_790_15, 0.642_786_9];

/// What has no negative numbers.
fn squares(x: &Array) -> Result<DynamicArray> {
    let squares = normal(1, x.shape()).square()?.as_dtype(x.dtype())?;
    DynamicArray::quantize(&squares, Dynamic { bits: 8, block: 32, unsigned: true })
}

/// NVFP4 reaches no further than 448 times 6 of its global scale, which is therefore the largest magnitude.
fn nvfp4(x: &Array) -> Result<Nvfp4Array> {
    let most = ops::maximum(x.as_dtype(Dtype::Float32)?.abs()?.max(None)?, Array::from_f32(1e-30))?;
    Nvfp4Array::quantize_relative(x, &most)
}

/// Normal numbers of a seed.
pub(crate) fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::key(seed).expect("a key");
    random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers")
}
