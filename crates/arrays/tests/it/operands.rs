//! Operands: the same numbers at each call, and every format of a matrix.

use mlx_rs::{Array, Dtype, random};
use tacit_arrays::format::{Affine, Bf16, Dynamic, F16, Fp4, Granularity, Nf4, Nvfp4, Symmetric};
use tacit_arrays::{
    AffineArray, Bf16Array, BinaryArray, DynamicArray, E4m3Array, E5m2Array, F16Array, Fp4Array, Int8Array, Mxfp4Array,
    Mxfp8Array, Nf4Array, Nvfp4Array, ScaleRule, SymmetricArray, TernaryArray,
};
use tacit_conformance::oracle::Oracle;
use tacit_core::{Policy, Result, Value};

/// What a comparison in a dtype asks for: 1e-5 in f32; in the half types a few roundings of the result and of the
/// dense weight, which the packed one does not have.
pub(crate) fn oracle(dtype: Dtype) -> Oracle {
    Oracle::new(match dtype {
        Dtype::Bfloat16 => 3e-2,
        Dtype::Float16 => 5e-3,
        _ => 1e-5,
    })
}

/// A call that no handler takes: right where the operands are built, and denied where that is forbidden.
#[track_caller]
pub(crate) fn check_built(
    name: &str,
    operands: &[Value],
    f: impl Fn(Vec<Array>) -> Result<Vec<Array>> + Copy + 'static,
) {
    let oracle = oracle(Dtype::Float32);
    oracle.allowing().check(name, operands, f);
    let denied = oracle.compare(name, operands, f).expect_err("an operand is built").to_string();
    assert!(denied.contains("which the policy forbids"), "{denied}");
}

/// Normal numbers of a seed.
pub(crate) fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::key(seed).expect("a key");
    let array = random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers");
    array.eval().expect("evaluates");
    array
}

/// The dense array, whatever the policy.
pub(crate) fn dense(value: &Value) -> Array {
    let _allow = Policy::Allow.scope();
    value.dense().expect("builds")
}

/// Normal numbers of a seed in another float type.
pub(crate) fn normal_of(dtype: Dtype, seed: u64, shape: &[i32]) -> Array {
    let array = normal(seed, shape).as_dtype(dtype).expect("a float type");
    array.eval().expect("evaluates");
    array
}

pub(crate) fn nf4(x: &Array, block_size: usize) -> Value {
    Nf4Array::quantize(x, block_size).expect("quantizes").into()
}

pub(crate) fn affine(x: &Array, group_size: i32, bits: i32) -> Value {
    AffineArray::quantize(x, Affine { bits: bits as u32, group: group_size as usize }).expect("quantizes").into()
}

/// In a type that cannot hold another scale, as its scales are powers of two.
pub(crate) fn mxfp4(x: &Array) -> Value {
    Mxfp4Array::quantize(x, ScaleRule::Ceil).expect("quantizes").into()
}

/// A way to store a matrix.
pub(crate) struct Format {
    /// The prefix of its handlers.
    pub(crate) name: &'static str,
    /// The packed array; the last axis is whole groups of 32.
    pub(crate) of: fn(&Array) -> Result<Value>,
    /// What its scales do not allow.
    pub(crate) scales: Scales,
}

/// What becomes of the scales in structural ops.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scales {
    /// They are cut, joined and scaled.
    Floats,
    /// As floats; a block is a row.
    Rows,
    /// They are packed themselves, and not cut.
    Nested,
    /// They share a factor, and are not joined.
    Factor,
    /// They are bytes or there are none, and they are not scaled.
    Fixed,
}

const fn format(name: &'static str, scales: Scales, of: fn(&Array) -> Result<Value>) -> Format {
    Format { name, of, scales }
}

/// Every packed type, with and without its options.
pub(crate) const FORMATS: [Format; 22] = [
    format("nf4", Scales::Floats, |x| Ok(Nf4Array::quantize(x, 32)?.into())),
    format("nf4", Scales::Nested, |x| Ok(Nf4Array::quantize(x, Nf4 { block: 64, double: true })?.into())),
    format("fp4", Scales::Floats, |x| Ok(Fp4Array::quantize(x, 32)?.into())),
    format("fp4", Scales::Nested, |x| Ok(Fp4Array::quantize(x, Fp4 { block: 64, double: true })?.into())),
    format("affine", Scales::Floats, |x| Ok(AffineArray::quantize(x, Affine { bits: 4, group: 32 })?.into())),
    format("affine", Scales::Floats, |x| Ok(AffineArray::quantize(x, Affine { bits: 3, group: 32 })?.into())),
    format("symmetric", Scales::Floats, |x| Ok(SymmetricArray::quantize(x, Symmetric { bits: 4, group: 32 })?.into())),
    format("symmetric", Scales::Floats, |x| Ok(SymmetricArray::quantize(x, Symmetric { bits: 8, group: 32 })?.into())),
    format("int8", Scales::Rows, |x| Ok(Int8Array::quantize(x, Granularity::Row)?.into())),
    format("int8", Scales::Floats, |x| Ok(Int8Array::quantize(x, 32)?.into())),
    format("mxfp4", Scales::Fixed, |x| Ok(Mxfp4Array::quantize(x, ScaleRule::Ceil)?.into())),
    format("mxfp8", Scales::Fixed, |x| Ok(Mxfp8Array::quantize(x, ScaleRule::Round)?.into())),
    format("nvfp4", Scales::Fixed, |x| Ok(Nvfp4Array::quantize(x, Nvfp4::default())?.into())),
    format("nvfp4", Scales::Factor, |x| Ok(Nvfp4Array::quantize_relative(x, &Array::from_f32(4.5))?.into())),
    format("ternary", Scales::Rows, |x| Ok(TernaryArray::quantize(x, Granularity::Row)?.into())),
    format("f16", Scales::Fixed, |x| Ok(F16Array::quantize(x, F16)?.into())),
    format("bf16", Scales::Fixed, |x| Ok(Bf16Array::quantize(x, Bf16)?.into())),
    format("e4m3", Scales::Floats, |x| Ok(E4m3Array::quantize(x, 32)?.into())),
    format("e5m2", Scales::Floats, |x| Ok(E5m2Array::quantize(x, 32)?.into())),
    format("dynamic", Scales::Floats, |x| Ok(DynamicArray::quantize(x, DYNAMIC_8)?.into())),
    format("dynamic", Scales::Floats, |x| Ok(DynamicArray::quantize(x, Dynamic { bits: 4, ..DYNAMIC_8 })?.into())),
    format("binary", Scales::Floats, |x| Ok(BinaryArray::quantize(x, 32)?.into())),
];

const DYNAMIC_8: Dynamic = Dynamic { bits: 8, block: 32, unsigned: false };

/// Normal numbers in two packed types, for tests of what goes around them; the last axis is a multiple of 32.
pub(crate) fn both(dtype: Dtype, seed: u64, shape: &[i32]) -> [Value; 2] {
    let x = normal_of(dtype, seed, shape);
    [nf4(&x, 64), affine(&x, 32, 4)]
}

/// Normal numbers in every packed type; the last axis is a multiple of 32.
pub(crate) fn every(dtype: Dtype, seed: u64, shape: &[i32]) -> Vec<Value> {
    let x = normal_of(dtype, seed, shape);
    FORMATS.iter().map(|format| (format.of)(&x).expect("quantizes")).collect()
}

pub(crate) const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16];
