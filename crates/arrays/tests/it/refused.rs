//! What texts, constructors and methods refuse, beside what stands with each type.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{AnyFormat, Format, Nf4, Parts, Scaling, Scheme};
use tacit_arrays::kernel::{Layout, matmul};
use tacit_arrays::{Calibrate, Gptq, Nf4Array, Observation};
use tacit_core::{Aval, Value};
use tacit_kernels::Orientation;

use crate::messages::said_of;
use crate::operands::normal;

#[test]
fn options_that_a_format_does_not_have() {
    let texts = [
        "binary:x",
        "codebook:4:1",
        "dynamic:x:64",
        "k:x",
        "mxfp4:up",
        "mxfp8:up",
        "nvfp4:all",
        "ternary:x",
        "affine:4",
        "symmetric:x:32",
        "int8:x",
        "e4m3:x",
        "e5m2:x",
        "f16:1",
        "bf16:1",
        "nf4:64:triple",
        "fp4:x",
    ];
    expect![[r#"
        the format binary:x has no such options
        help: write binary for rows, binary:columns, or binary:BLOCK
        the format codebook:4:1 has no such options
        help: write codebook:BLOCK:VALUE,VALUE,.. of 2, 4, 8 or 16 values
        the format dynamic:x:64 has no such options
        help: write dynamic:BITS:BLOCK of 4 or 8 bits, or dynamic:BITS:BLOCK:unsigned for what is not negative
        the format k:x has no such options
        help: write k:BITS of 2 to 6 bits
        the format mxfp4:up has no such options
        help: write mxfp4, mxfp4:round or mxfp4:floor
        the format mxfp8:up has no such options
        help: write mxfp8, mxfp8:round or mxfp8:floor
        the format nvfp4:all has no such options
        help: write nvfp4, or nvfp4:global for scales relative to the largest magnitude
        the format ternary:x has no such options
        help: write ternary for rows, ternary:columns, or ternary:BLOCK
        the format affine:4 has no such options
        help: write affine:BITS:GROUP of 2 to 6 or 8 bits, in groups of 32, 64 or 128
        the format symmetric:x:32 has no such options
        help: write symmetric:BITS:GROUP of 2 to 6 or 8 bits, in groups of 32, 64 or 128
        the format int8:x has no such options
        help: write int8 for rows, int8:columns, or int8:BLOCK
        the format e4m3:x has no such options
        help: write e4m3:BLOCK
        the format e5m2:x has no such options
        help: write e5m2:BLOCK
        the format f16:1 has no such options
        help: write f16
        the format bf16:1 has no such options
        help: write bf16
        the format nf4:64:triple has no such options
        help: write nf4 for blocks of 64, nf4:BLOCK, or nf4:BLOCK:double for quantized scales
        the format fp4:x has no such options
        help: write fp4 for blocks of 64, fp4:BLOCK, or fp4:BLOCK:double for quantized scales
    "#]]
    .assert_eq(&texts.map(|text| said_of(text.parse::<AnyFormat>())).concat());
}

#[test]
fn more_elements_than_are_counted() {
    let parts = Parts::new(ops::zeros::<u8>(&[1]).expect("zeros"), ops::zeros::<f32>(&[1]).expect("zeros"));
    let aval = Aval::new(&[65536, 65536], Dtype::Float32);
    expect![[r#"
        f32[65536,65536] has more elements than MLX counts along one axis
        help: split the array and quantize the parts
    "#]]
    .assert_eq(&said_of(Nf4Array::from_parts(parts, 64, aval)));
}

#[test]
fn formats_that_gptq_does_not_code() {
    let of = |text: &str, weight: &Array| {
        let format: AnyFormat = text.parse().expect("a format");
        let inputs = normal(2, &[512, weight.dim(-1)]);
        let seen = Observation::from_inputs(&inputs).expect("finite");
        said_of(Gptq::default().quantize(&format, weight, &seen))
    };
    let said = [
        of("nf4:64", &normal(1, &[24, 96])),
        of("nf4:64:double", &normal(1, &[24, 96])),
        of("codebook:64:-1,1", &normal(1, &[24, 96])),
        of("rotated:nf4:64", &normal(1, &[24, 64])),
    ];
    expect![[r#"
        GPTQ does not code f32[24,96] in nf4:64: its blocks straddle rows
        help: take a format whose blocks lie along the rows and divide them, or another method
        GPTQ does not code f32[24,96] in nf4:64:double: its blocks straddle rows
        help: take a format whose blocks lie along the rows and divide them, or another method
        GPTQ does not code f32[24,96] in codebook:64:-1,1: its blocks straddle rows
        help: take a format whose blocks lie along the rows and divide them, or another method
        GPTQ does not code f32[24,64] in rotated:nf4:64: a rotation makes each element of all inputs
        help: take a format whose blocks lie along the rows and divide them, or another method
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn children_that_a_kernel_does_not_have() {
    let w = Nf4Array::quantize(&normal(1, &[8, 64]), 64).expect("quantizes");
    let (codes, scales) = (w.codes(), w.scales().and_then(Value::as_dense).expect("scales"));
    let layout = |scaling| Layout { scheme: Scheme { scaling, ..Nf4::from(64).scheme() }, n: 8, k: 64, block: 64 };
    let multiplied = |scaling, children: &[&Array]| {
        let children: Vec<Array> = children.iter().map(|&child| child.clone()).collect();
        let made = matmul(&normal(2, &[3, 64]), layout(scaling), &children, Orientation::Transposed);
        said_of(made.and_then(|made| Ok(made.eval()?)))
    };
    let said = [
        multiplied(Scaling::Float, &[]),
        multiplied(Scaling::Float, &[codes]),
        multiplied(Scaling::One, &[codes, scales]),
        multiplied(Scaling::Nested { block: 256 }, &[codes, scales]),
        multiplied(Scaling::Integers { block: 8 }, &[codes, scales]),
    ];
    expect![[r#"
        kernel Nf4Matmul failed: codes are expected
        kernel Nf4Matmul failed: scales are expected
        kernel Nf4Matmul failed: there are no scales
        kernel Nf4Matmul failed: nested scales are three arrays
        kernel Nf4Matmul failed: scales of integers are two arrays, and four with biases
    "#]]
    .assert_eq(&said.concat());
}
