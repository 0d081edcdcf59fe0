//! Operands: the same numbers at each call, and every format of a matrix.

use mlx_rs::{Array, Dtype, random};
use tacit_arrays::{AffineArray, Nf4Array};
use tacit_core::Value;
use tacit_testing::oracle::Oracle;

/// What a comparison in a dtype asks for: 1e-5 in f32; in the half types a few roundings of the result and of the
/// dense weight, which the packed one does not have.
pub(crate) fn oracle(dtype: Dtype) -> Oracle {
    Oracle::new(match dtype {
        Dtype::Bfloat16 => 3e-2,
        Dtype::Float16 => 5e-3,
        _ => 1e-5,
    })
}

/// Normal numbers of a seed.
pub(crate) fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::key(seed).expect("a key");
    let array = random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers");
    array.eval().expect("evaluates");
    array
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
    AffineArray::quantize(x, group_size, bits).expect("quantizes").into()
}

/// Normal numbers in both types; the last axis is a multiple of 32.
pub(crate) fn both(dtype: Dtype, seed: u64, shape: &[i32]) -> [Value; 2] {
    let x = normal_of(dtype, seed, shape);
    [nf4(&x, 64), affine(&x, 32, 4)]
}

pub(crate) const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16];
