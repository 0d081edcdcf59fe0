//! What the kernels refuse, and in which words.

use tacit_kernels::{
    Isa, KernelError,
    nf4::{self, Orientation, Weight},
};

fn message(result: Result<(), KernelError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn block_sizes_outside_the_format_are_refused() {
    for block in [0, 16, 48, 8192] {
        let result = nf4::quantize(&[0.0; 64], block, &mut [0; 32], &mut [0.0; 1]);
        assert_eq!(result, Err(KernelError::BlockSize { block }));
    }
    assert_eq!(
        message(nf4::dequantize(&[0; 32], &[0.0], 65, 64, &mut [0.0; 64])),
        "block size 65 is not a power of two from 32 to 4096\nhelp: use 64, the usual choice"
    );
}

#[test]
fn wrong_lengths_are_named() {
    let x = [0.0; 65];
    assert_eq!(
        message(nf4::quantize(&x, 64, &mut [0; 32], &mut [0.0; 2])),
        "`packed` holds 32 elements where 33 are needed\nhelp: two elements share a byte"
    );
    assert_eq!(
        message(nf4::quantize(&x, 64, &mut [0; 33], &mut [0.0; 1])),
        "`absmax` holds 1 elements where 2 are needed\nhelp: each block of elements has one"
    );
    assert_eq!(
        message(nf4::dequantize(&[0; 33], &[0.0; 2], 64, 65, &mut [0.0; 64])),
        "`out` holds 64 elements where 65 are needed\nhelp: one for each code"
    );
    let weight = Weight { packed: &[0; 64], absmax: &[0.0; 2], block: 64, n: 2, k: 64 };
    assert_eq!(
        message(nf4::matmul(&[0.0; 64], 2, &weight, Orientation::Transposed, &mut [0.0; 4])),
        "`x` holds 64 elements where 128 are needed\nhelp: `m` rows as long as the side of the weight that is summed over"
    );
    assert_eq!(
        message(nf4::matmul(&[0.0; 4], 2, &weight, Orientation::Plain, &mut [0.0; 4])),
        "`out` holds 4 elements where 128 are needed\nhelp: `m` rows as long as the side of the weight that remains"
    );
    let weight = Weight { n: 3, ..weight };
    assert!(nf4::matmul(&[0.0; 64], 1, &weight, Orientation::Transposed, &mut [0.0; 3]).is_err());
    assert!(nf4::gather_rows(&weight, &[], &mut []).is_err());
}

#[test]
fn rows_outside_the_matrix_are_named() {
    let weight = Weight { packed: &[0; 64], absmax: &[0.0; 2], block: 64, n: 2, k: 64 };
    assert_eq!(
        message(nf4::gather_rows(&weight, &[1, 2], &mut [0.0; 128])),
        "row 2 (entry 1) is outside a matrix of 2 rows\nhelp: rows count from 0 to 2 - 1"
    );
}

#[test]
fn sizes_that_overflow_are_refused() {
    let weight = Weight { packed: &[], absmax: &[], block: 64, n: usize::MAX, k: 2 };
    assert!(matches!(nf4::gather_rows(&weight, &[], &mut []), Err(KernelError::Overflow { .. })));
    let weight = Weight { packed: &[], absmax: &[], block: 64, n: 0, k: 2 };
    let result = nf4::matmul(&[], usize::MAX, &weight, Orientation::Transposed, &mut []);
    assert!(matches!(result, Err(KernelError::Overflow { .. })));
    assert!(nf4::dequantize(&[], &[], 64, usize::MAX, &mut []).is_err());
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            for index in [0, 63, 64, 70_000, 199_999] {
                let mut x = vec![1.0; 200_001];
                x[index] = bad;
                x[200_000] = f32::NAN;
                let mut absmax = vec![0.0; nf4::absmax_len(x.len(), 64)];
                let result = nf4::quantize_with(isa, &x, 64, &mut vec![0; 100_001], &mut absmax);
                let Err(KernelError::NonFinite { index: named, .. }) = result else { panic!("{result:?}") };
                assert_eq!(named, index, "{isa:?}");
            }
        }
    }
    let mut x = [0.0; 32];
    x[3] = f32::NAN;
    assert_eq!(
        message(nf4::quantize(&x, 32, &mut [0; 16], &mut [0.0])),
        "element 3 is NaN, which no code can hold\nhelp: replace NaN and infinities before quantizing"
    );
}

#[test]
fn foreign_instruction_sets_are_refused() {
    for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
        let result = nf4::quantize_with(isa, &[], 64, &mut [], &mut []);
        assert_eq!(result.is_ok(), isa.is_supported());
    }
    assert!(Isa::available().contains(&Isa::detect()));
}
