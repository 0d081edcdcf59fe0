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
    expect![[""]].assert_eq(&texts.map(|text| said_of(text.parse::<AnyFormat>())).concat());
}

#[test]
fn more_elements_than_are_counted() {
    let parts = Parts::new(ops::zeros::<u8>(&[1]).expect("zeros"), ops::zeros::<f32>(&[1]).expect("zeros"));
    let aval = Aval::new(&[65536, 65536], Dtype::Float32);
    expect![[""]].assert_eq(&said_of(Nf4Array::from_parts(parts, 64, aval)));
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
    expect![[""]].assert_eq(&said.concat());
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
    expect![[""]].assert_eq(&said.concat());
}
