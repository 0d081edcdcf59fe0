//! Every message of the array types.

use expect_test::{Expect, expect};
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, Format, Int8Activations, PackedArray, Parts, Scheme, Symmetric, TextForm};
use tacit_arrays::{AffineArray, Batched, Nf4Array, SymmetricArray, register_format, ste};
use tacit_core::{Aval, Error, Policy, Result, Value, implicit};

use crate::operands::{affine, nf4, normal};

/// The message of an error, and a line's end.
#[track_caller]
pub(crate) fn said_of<T>(result: Result<T>) -> String {
    let Err(error) = result else { panic!("it should fail") };
    format!("{error}\n")
}

#[track_caller]
pub(crate) fn check<T>(result: Result<T>, expected: Expect) {
    let Err(error) = result else { panic!("it should fail") };
    expected.assert_eq(&error.to_string());
}

fn integers() -> Array {
    Array::from_slice(&[1i32, 2], &[2])
}

#[test]
fn nf4_of_integers() {
    check(
        Nf4Array::quantize(&integers(), 64),
        expect![[r#"
        i32[2] cannot be nf4
        help: quantize an f32, f16 or bf16 array"#]],
    );
}

#[test]
fn nf4_of_nothing() {
    check(
        Nf4Array::quantize(&ops::zeros::<f32>(&[0, 4]).expect("zeros"), 64),
        expect![[r#"
        f32[0,4] has no elements to quantize
        help: keep an empty array dense"#]],
    );
}

#[test]
fn nf4_block_sizes() {
    let said = [
        said_of(Nf4Array::quantize(&normal(0, &[64]), 48)),
        said_of(Nf4Array::quantize(&normal(0, &[64]), 16)),
        said_of(Nf4Array::quantize(&normal(0, &[64]), 8192)),
        said_of(Nf4Array::quantize(&normal(0, &[64]), 0)),
    ];
    expect![[r#"
        the nf4 block size 48 is not a power of two from 32 to 4096
        help: use 64, the usual choice
        the nf4 block size 16 is not a power of two from 32 to 4096
        help: use 64, the usual choice
        the nf4 block size 8192 is not a power of two from 32 to 4096
        help: use 64, the usual choice
        the nf4 block size 0 is not a power of two from 32 to 4096
        help: use 64, the usual choice
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn nf4_of_a_nan_or_an_infinity_is_an_error_of_the_eval() {
    for (special, expected) in [
        (
            f32::NAN,
            expect![[r#"
        kernel Nf4Quantize failed: element 2 is NaN, which no code can hold
        help: replace NaN and infinities before quantizing"#]],
        ),
        (
            f32::NEG_INFINITY,
            expect![[r#"
        kernel Nf4Quantize failed: element 2 is -inf, which no code can hold
        help: replace NaN and infinities before quantizing"#]],
        ),
    ] {
        let x = Array::from_slice(&[1.0, 2.0, special, 3.0], &[2, 2]);
        let array = Nf4Array::quantize(&x, 64).expect("is lazy");
        check(array.codes().eval().map_err(Error::from), expected);
    }
}

#[test]
fn nf4_of_parts() {
    let parts = |packed: &[i32], absmax: &[i32], dtype, block_size| {
        let packed = ops::zeros::<u8>(packed).expect("zeros");
        let absmax = ops::zeros_dtype(absmax, dtype).expect("zeros");
        Nf4Array::from_parts(Parts::new(packed, absmax), block_size, Aval::new(&[3, 43], Dtype::Float32))
    };
    let f32 = Dtype::Float32;
    assert!(parts(&[65], &[3], f32, 64).is_ok());
    let said = [
        said_of(parts(&[65, 1], &[3], f32, 64)),
        said_of(parts(&[64], &[3], f32, 64)),
        said_of(parts(&[65], &[3], Dtype::Float16, 64)),
        said_of(parts(&[65], &[3], f32, 32)),
    ];
    expect![[r#"
        codes is u8[65,1], where nf4:64 of f32[3,43] has u8[65]
        help: take the parts of one array, with its shape and block size
        codes is u8[64], where nf4:64 of f32[3,43] has u8[65]
        help: take the parts of one array, with its shape and block size
        scales is f16[3], where nf4:64 of f32[3,43] has f32[3]
        help: take the parts of one array, with its shape and block size
        scales is f32[3], where nf4:32 of f32[3,43] has f32[5]
        help: take the parts of one array, with its shape and block size
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn nf4_of_an_aval_with_a_negative_extent() {
    let packed = ops::zeros::<u8>(&[1]).expect("zeros");
    let absmax = ops::zeros::<f32>(&[1]).expect("zeros");
    check(
        Nf4Array::from_parts(Parts::new(packed, absmax), 64, Aval::new(&[-1, 3], Dtype::Float32)),
        expect![[r#"
        f32[-1,3] has no elements to quantize
        help: keep an empty array dense"#]],
    );
}

#[test]
fn a_row_outside_the_matrix_is_an_error_of_the_eval() {
    let w = nf4(&normal(1, &[4, 32]), 32);
    for (row, expected) in [
        (
            4,
            expect![[r#"
        kernel Indices failed: index 4 (entry 0) is outside an extent of 4
        help: indices count from 0 to 3, or backwards from -1 to -4"#]],
        ),
        (
            -5,
            expect![[r#"
        kernel Indices failed: index -5 (entry 0) is outside an extent of 4
        help: indices count from 0 to 3, or backwards from -1 to -4"#]],
        ),
    ] {
        let rows = implicit((&w, Array::from_slice(&[row], &[1])), |(w, i)| w.take_axis(&i, 0));
        check(rows.and_then(|rows| Ok(rows.dense()?.eval()?)), expected);
    }
}

#[test]
fn affine_of_what_has_no_affine_format() {
    let said = [
        said_of(AffineArray::quantize(&integers(), Affine { bits: 4, group: 64 })),
        said_of(AffineArray::quantize(&normal(0, &[2, 96]), Affine { bits: 4, group: 64 })),
        said_of(AffineArray::quantize(&normal(0, &[2, 64]), Affine { bits: 7, group: 64 })),
        said_of(AffineArray::quantize(&normal(0, &[2, 64]), Affine { bits: 4, group: 16 })),
        said_of(AffineArray::quantize(&ops::zeros::<f32>(&[0, 64]).expect("zeros"), Affine { bits: 4, group: 64 })),
    ];
    expect![[r#"
        i32[2] cannot be affine
        help: quantize an f32, f16 or bf16 array
        the last axis of f32[2,96] is not whole groups of 64, as affine has them
        help: use a smaller group size, or an array type whose blocks may straddle rows
        MLX has no affine format of 7 bits in groups of 64
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128
        MLX has no affine format of 4 bits in groups of 16
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128
        f32[0,64] has no elements to quantize
        help: keep an empty array dense
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn affine_of_parts() {
    let (packed, scales, biases) = ops::quantize(normal(0, &[2, 128]), 64, 4).expect("quantizes");
    let parts = |packed: &Array, biases: &Array, group_size, bits| {
        AffineArray::from_parts(
            Parts { biases: Some(biases.clone()), ..Parts::new(packed.clone(), scales.clone()) },
            Affine { bits: bits as u32, group: group_size as usize },
            Aval::new(&[2, 128], Dtype::Float32),
        )
    };
    let said = [
        said_of(parts(&packed, &biases, 64, 8)),
        said_of(parts(&packed, &biases, 32, 4)),
        said_of(parts(&packed, &biases.reshape(&[4]).expect("four"), 64, 4)),
        said_of(parts(&packed, &biases, 0, 4)),
        said_of(parts(&packed, &biases, i32::MAX, 4)),
        said_of(parts(&packed.as_dtype(Dtype::Int32).expect("i32"), &biases, 64, 4)),
    ];
    expect![[r#"
        codes is u32[2,16], where affine:8:64 of f32[2,128] has u32[2,32]
        help: take the parts of one array, with its shape and block size
        scales is f32[2,2], where affine:4:32 of f32[2,128] has f32[2,4]
        help: take the parts of one array, with its shape and block size
        biases is f32[4], where affine:4:64 of f32[2,128] has f32[2,2]
        help: take the parts of one array, with its shape and block size
        MLX has no affine format of 4 bits in groups of 0
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128
        MLX has no affine format of 4 bits in groups of 2147483647
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128
        codes is i32[2,16], where affine:4:64 of f32[2,128] has u32[2,16]
        help: take the parts of one array, with its shape and block size
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn a_denied_fallback_names_the_nearest_handlers() {
    let _deny = Policy::Deny.scope();
    let message = |left: Value, right: Value| {
        let product = implicit((left, right), |(a, b)| a.matmul(&b)).expect_err("is denied").to_string();
        // The handlers' lines move with the source.
        let hidden = |line: &str| match line.split_once(".rs:") {
            Some((before, after)) => {
                format!("{before}.rs:..{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
            }
            None => line.to_owned(),
        };
        product.lines().map(hidden).collect::<Vec<_>>().join("\n")
    };
    let (a, b) = (normal(0, &[64, 64]), normal(1, &[64, 64]));
    expect![[r#"
        matmul of Nf4(f32[64,64]), Affine(f32[64,64]) needs Nf4 materialized, which the policy forbids
        declined: linear_matmul: the other side is Nf4(f32[64,64]), which is not dense
        declined: linear_matmul_left: the other side is Affine(f32[64,64]), which is not dense
        near: scores_matmul (crates/arrays/src/packed/scores.rs:..) takes matmul of Scores, any Linear
        near: scores_of (crates/arrays/src/packed/scores.rs:..) takes matmul of dense, Batched
        near: diagonal_matmul (crates/arrays/src/structured/diagonal.rs:..) takes matmul of Diagonal, Diagonal
        help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`"#]]
    .assert_eq(&message(nf4(&a, 64), affine(&b, 64, 4)));
}

#[test]
fn ste_of_another_shape_or_dtype() {
    let master = normal(0, &[2, 64]);
    check(
        ste(&master, |w| w.reshape(&[64, 2])),
        expect![[r#"
        the function given to ste made f32[64,2] of f32[2,64]
        help: return an array of the master's own shape and dtype"#]],
    );
    check(
        ste(&master, |w| Nf4Array::quantize(&w.as_dtype(Dtype::Float16)?, 64)),
        expect![[r#"
        the function given to ste made Nf4(f16[2,64]) of f32[2,64]
        help: return an array of the master's own shape and dtype"#]],
    );
}

#[test]
fn ste_of_a_function_that_fails() {
    check(
        ste(normal(0, &[2, 64]), |w| AffineArray::quantize(w, Affine { bits: 1, group: 64 })),
        expect![[r#"
        MLX has no affine format of 1 bits in groups of 64
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128"#]],
    );
}

/// A format of a table of few values, which says that it has products with rounded activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Quarters;

impl TextForm for Quarters {
    const NAME: &'static str = "quarters";
    const FORMS: &'static str = "quarters";

    fn options(&self) -> String {
        String::new()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        options.is_empty().then_some(Self)
    }
}

impl Format for Quarters {
    const SAVED_AS: &'static str = "messages.Quarters";

    fn scheme(&self) -> Scheme {
        Scheme::codebook(Self::NAME, &[-1.0, -0.25, 0.25, 1.0])
    }

    fn block(&self) -> usize {
        64
    }
}

impl Int8Activations for Quarters {}

register_format!(Quarters);

#[test]
fn activations_in_8_bits_with_a_table_of_four() {
    check(
        PackedArray::<Quarters>::quantize(&normal(1, &[4, 64]), Quarters).and_then(PackedArray::with_int8_activations),
        expect![[r#"
        quarters has no products with activations in 8 bits
        help: leave `int8_activations` out, or use nf4, fp4, int8, affine, symmetric or k"#]],
    );
}

#[test]
fn batches_and_symmetric_formats_that_there_are_not() {
    check(
        Batched::new(normal(0, &[4, 64]), &[2], vec![0, 0], false),
        expect![[r#"
        f32[4,64] is not stored as several matrices
        help: give a packed array of two axes or more whose blocks end with its matrices"#]],
    );
    check(
        Batched::new(nf4(&normal(0, &[2, 4, 64]), 64), &[3], vec![0, 1], false),
        expect![[r#"
        2 entries of Nf4(f32[2,4,64]) are no batch of shape [3]
        help: number the matrix of each entry, below 2"#]],
    );
    check(
        SymmetricArray::quantize(&normal(0, &[4, 64]), Symmetric { bits: 7, group: 64 }),
        expect![[r#"
        there is no symmetric format of 7 bits in groups of 64
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128"#]],
    );
}
