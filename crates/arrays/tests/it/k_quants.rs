//! GGUF's K-quants and codebooks of any table: their parts, what they refuse, and what stays packed.

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Codebook, Fit, Granularity, KQuant, Parts};
use tacit_arrays::{CodebookArray, Int8Array, KQuantArray};
use tacit_conformance::oracle::relative_error;
use tacit_core::{Aval, Error, Policy, Result, Value, implicit, tree};

use crate::messages::{check, said_of};
use crate::operands::{dense, normal};

fn zeros(shape: &[i32], dtype: Dtype) -> Array {
    ops::zeros_dtype(shape, dtype).expect("zeros")
}

/// Scales of `f32[rows, supers, groups]`.
fn integers(shape: [i32; 3]) -> Result<Int8Array> {
    let parts = Parts::new(zeros(&shape, Dtype::Int8), zeros(&[shape[0] * shape[1]], Dtype::Float32));
    Int8Array::from_parts(parts, Granularity::Block(shape[2] as usize), Aval::new(&shape, Dtype::Float32))
}

#[test]
fn an_element_is_its_code_times_two_scales() {
    // One super-block of 6 bits: group g has the integer g - 8, the super-block 0.5.
    let scales: Vec<i8> = (-8..8).collect();
    let parts = Parts::new(Array::from_slice(&scales, &[1, 1, 16]), Array::from_slice(&[0.5_f32 * 127.0], &[1]));
    let scales =
        Int8Array::from_parts(parts, Granularity::Block(16), Aval::new(&[1, 1, 16], Dtype::Float32)).expect("fits");
    // Four codes of 6 bits in three bytes: 1, 2, 3 and 63.
    let codes: Vec<u8> = [1 | 2 << 6, 3 << 4, 63 << 2].repeat(64);
    let codes = Array::from_slice(&codes, &[192]);
    let array =
        KQuantArray::from_parts(Parts::new(codes, scales), KQuant { bits: 6 }, Aval::new(&[2, 128], Dtype::Float32));
    let found = dense(&array.expect("fits").into());
    let expected: Vec<f32> = (0..256)
        .map(|at: i16| 0.5 * f32::from(at / 16 - 8) * ([1.0, 2.0, 3.0, 63.0][at as usize % 4] - 32.0))
        .collect();
    assert!(found.eq_values(Array::from_slice(&expected, &[2, 128])).expect("compares"));
}

#[test]
fn the_error_of_each_number_of_bits_halves() {
    let x = normal(1, &[16, 256]);
    let mut last = f64::INFINITY;
    for bits in 2..=6 {
        let array = KQuantArray::quantize(&x, KQuant { bits }).expect("quantizes");
        let error = relative_error(&dense(&array.into()), &x).expect("floats");
        assert!(error < last * 0.75, "{bits} bits: {error} after {last}");
        last = error;
    }
}

#[test]
fn a_scalar_goes_to_the_scales_of_the_scales() {
    let _deny = Policy::Deny.scope();
    for bits in [4, 6] {
        let w: Value = KQuantArray::quantize(&normal(1, &[4, 256]), KQuant { bits }).expect("quantizes").into();
        let scaled = implicit(&w, |w| w.multiply(Array::from_f32(-2.0))).expect("stays packed");
        assert!(scaled.downcast::<KQuantArray>().is_some());
        let expected = dense(&w).multiply(Array::from_f32(-2.0)).expect("multiplies");
        assert!(dense(&scaled).eq_values(&expected).expect("compares"));
    }
}

#[test]
fn k_quants_of_parts() {
    let aval = || Aval::new(&[2, 256], Dtype::Float32);
    let made = |bits: u32, codes: i32, scales: Result<Int8Array>| {
        let codes = zeros(&[codes], Dtype::Uint8);
        KQuantArray::from_parts(Parts::new(codes, scales.expect("fits")), KQuant { bits }, aval())
    };
    assert!(made(6, 384, integers([1, 2, 16])).is_ok());
    assert!(made(4, 256, integers([2, 2, 8])).is_ok());
    let said = [
        said_of(made(6, 383, integers([1, 2, 16]))),
        said_of(made(6, 384, integers([2, 2, 16]))),
        said_of(made(4, 256, integers([2, 4, 8]))),
    ];
    expect![[r#"
        codes is u8[383], where k:6 of f32[2,256] has u8[384]
        help: take the parts of one array, with its shape and block size
        scales is f32[2,2,16], where k:6 of f32[2,256] has f32[1,2,16]
        help: take the parts of one array, with its shape and block size
        scales is f32[2,4,8], where k:4 of f32[2,256] has f32[2,2,8]
        help: take the parts of one array, with its shape and block size
    "#]]
    .assert_eq(&said.concat());
    let blocks = Parts::new(zeros(&[2, 2, 8], Dtype::Int8), zeros(&[8], Dtype::Float32));
    let blocks = Int8Array::from_parts(blocks, Granularity::Block(4), Aval::new(&[2, 2, 8], Dtype::Float32));
    check(
        made(4, 256, blocks),
        expect![[r#"
        k:4 has scales that are int8 in blocks of 8, and was given scales that are int8 in blocks of 4
        help: name the format of the scales that there are"#]],
    );
    let plain = Parts::new(zeros(&[256], Dtype::Uint8), zeros(&[2, 2, 8], Dtype::Float32));
    check(
        KQuantArray::from_parts(plain, KQuant { bits: 4 }, aval()),
        expect![[r#"
        k:4 has scales that are int8 in blocks of 8, and was given scales that are floats
        help: name the format of the scales that there are"#]],
    );
    check(
        KQuantArray::quantize(&normal(1, &[256]), KQuant { bits: 7 }),
        expect![[r#"
        there is no K-quant of 7 bits
        help: use 2, 3, 4, 5 or 6 bits"#]],
    );
}

#[test]
fn what_has_no_code_is_counted_among_elements() {
    let mut numbers = vec![1.0_f32; 1000];
    (numbers[700], numbers[900]) = (f32::NAN, f32::INFINITY);
    let x = Array::from_slice(&numbers, &[4, 250]);
    for bits in 2..=6 {
        for fit in [Fit::Absmax, Fit::search()] {
            let made: Value = KQuantArray::fitted(&x, KQuant { bits }, fit).expect("is lazy").into();
            let error = tree::eval(&made).expect_err("it has no code").to_string();
            assert!(error.contains("element 700 is NaN, which no code can hold"), "{bits} bits by {fit:?}: {error}");
        }
    }
}

#[test]
fn codebooks_of_what_codes_nothing() {
    let said = [
        said_of(Codebook::new(32, &[0.0, 1.0, 2.0])),
        said_of(Codebook::new(32, &[0.0, f32::NAN])),
        said_of(Codebook::new(32, &[0.0; 4])),
    ];
    expect![[r#"
        a codebook of the 3 values [0.0, 1.0, 2.0] codes nothing
        help: give 2, 4, 8 or 16 finite values, not all of them zero
        a codebook of the 2 values [0.0, NaN] codes nothing
        help: give 2, 4, 8 or 16 finite values, not all of them zero
        a codebook of the 4 values [0.0, 0.0, 0.0, 0.0] codes nothing
        help: give 2, 4, 8 or 16 finite values, not all of them zero
    "#]]
    .assert_eq(&said.concat());
    let zero = Codebook::new(0, &[0.0, 1.0]).expect("a table");
    check(
        CodebookArray::quantize(&normal(1, &[64]), zero),
        expect![[r#"
        the codebook block size 0 is not a number of elements
        help: give the number of elements that share a scale"#]],
    );
}

#[test]
fn whole_super_blocks_are_cut_and_joined_in_their_codes() {
    let _deny = Policy::Deny.scope();
    for bits in 2..=6 {
        let w: Value = KQuantArray::quantize(&normal(1, &[4, 512]), KQuant { bits }).expect("quantizes").into();
        let plain = dense(&w);
        let same = |made: Result<Value>, expected: &Array| {
            let made = made.expect("stays packed");
            assert!(made.downcast::<KQuantArray>().is_some(), "{bits}: {made}");
            assert!(dense(&made).eq_values(expected).expect("compares"), "{bits}");
            made
        };
        let cut = |w: Array| w.try_index((1..3, ..));
        let rows = same(implicit(&w, cut), &cut(plain.clone()).expect("cuts"));
        let cut = |w: Array| w.try_index((.., 256..));
        let columns = same(implicit(&w, cut), &cut(plain.clone()).expect("cuts"));
        let cut = |w: Array| w.try_index((1..4, ..256));
        same(implicit(&w, cut), &cut(plain.clone()).expect("cuts"));
        let cut = |w: Array| w.t().try_index((256.., 2..3));
        same(implicit(&w, cut), &cut(plain.clone()).expect("cuts"));
        let join = |a: &Array, b: &Array, axis| ops::concatenate(&[a, b], axis);
        let all = implicit((&w, &rows), |(a, b)| join(&a, &b, 0));
        same(all, &join(&plain, &dense(&rows), 0).expect("joins"));
        let all = implicit((&w, &columns), |(a, b)| join(&a, &b, 1));
        same(all, &join(&plain, &dense(&columns), 1).expect("joins"));
        let half = |w: Array| w.try_index((.., 128..));
        let made = implicit(&w, half);
        assert!(matches!(made, Err(Error::MaterializationDenied { .. })), "a super-block would be cut: {made:?}");
    }
}
