//! What the kernels refuse, and in which words.

use tacit_kernels::{
    BlockScales, Codes, Isa, KernelError, Matrix, Order, Orientation, ScaleRule, Scales, affine, binary, dequantize,
    dynamic8, fp4, gather_rows, hadamard, int8, matmul, mx, nearest::Table, nf4, nvfp4, ternary,
};

const TABLE: Codes = Codes::Table { bytes: &[0; 64], bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
const MATRIX: Matrix = Matrix { n: 2, k: 64, codes: TABLE, scales: Scales::F32(&[0.0; 2]), biases: None, block: 64 };

fn message(result: Result<(), KernelError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn block_sizes_outside_the_format_are_refused() {
    for block in [0, 16, 48, 8192] {
        let result = nf4::encoder(block).quantize(&[0.0; 64], &mut [0; 32], BlockScales::Floats(&mut [0.0; 1]));
        assert_eq!(result, Err(KernelError::BlockSize { block }));
    }
    assert_eq!(
        message(nf4::encoder(65).quantize(&[0.0; 64], &mut [0; 32], BlockScales::Floats(&mut [0.0]))),
        "block size 65 is not a power of two from 32 to 4096\nhelp: use 64, the usual choice"
    );
    let empty = "a block has no elements\nhelp: give the number of elements that share a scale";
    assert_eq!(message(dequantize(&Matrix { block: 0, ..MATRIX }, &mut [0.0; 128][..])), empty);
    for scales in [
        Scales::Nested { codes: &[0; 2], map: &[0.0; 256], absmax: &[0.0], block: 0, offset: 0.0 },
        Scales::Integers { codes: &[0; 2], units: &[0.0], block: 0 },
    ] {
        assert_eq!(message(dequantize(&Matrix { scales, ..MATRIX }, &mut [0.0; 128][..])), empty);
    }
}

#[test]
fn rows_without_a_transform_are_refused() {
    assert_eq!(
        message(hadamard(&[0f32; 172][..], 172, &mut [0f32; 172][..])),
        "rows of 172 elements have no fast Hadamard transform\n\
         help: those of m 2^k have one, for m = 1, 12, 20, 28, 36, 52 and others of which `hadamard_order` knows"
    );
    assert_eq!(
        message(hadamard(&[0f32; 6][..], 4, &mut [0f32; 6][..])),
        "`x` holds 6 elements where 4 are needed\nhelp: rows are whole"
    );
    assert_eq!(
        message(hadamard(&[0f32; 8][..], 4, &mut [0f32; 4][..])),
        "`out` holds 4 elements where 8 are needed\nhelp: one for each element of `x`"
    );
}

#[test]
fn tables_that_no_codes_stand_for_are_refused() {
    for values in [&[1.0; 3][..], &[1.0; 17], &[1.0; 512], &[0.0; 4], &[f32::NAN; 4], &[]] {
        assert_eq!(
            Table::new(values).unwrap_err().to_string(),
            format!(
                "a table of {} values is no codebook\n\
                 help: give 2, 4, 8, 16 or 256 values, one of them finite and not zero",
                values.len()
            )
        );
    }
}

#[test]
fn widths_that_no_format_has_are_refused() {
    let table = |bits| Codes::Table { bytes: &[0; 64], bits, order: Order::LowFirst, values: &[0.0; 16] };
    let unsigned = |bits| Codes::Unsigned { bytes: &[0; 64], bits };
    for codes in [table(0), table(5), table(8), unsigned(0), unsigned(9)] {
        let (Codes::Table { bits, .. } | Codes::Unsigned { bits, .. }) = codes else { panic!("{codes:?}") };
        assert_eq!(
            message(dequantize(&Matrix { codes, ..MATRIX }, &mut [0.0; 128][..])),
            format!("codes of {bits} bits are in no format\nhelp: tables take 1 to 4 bits, and integers 1 to 8")
        );
    }
    let codes = Codes::Table { bytes: &[0; 48], bits: 3, order: Order::HighFirst, values: &[0.0; 16] };
    assert_eq!(
        message(dequantize(&Matrix { codes, ..MATRIX }, &mut [0.0; 128][..])),
        "codes of 3 bits cannot be packed high first\nhelp: pack them low first, as one stream of bits"
    );
}

#[test]
fn wrong_lengths_are_named() {
    let x = [0.0; 65];
    assert_eq!(
        message(nf4::encoder(64).quantize(&x, &mut [0; 32], BlockScales::Floats(&mut [0.0; 2]))),
        "`codes` holds 32 elements where 33 are needed\nhelp: as many as `x` has elements, in whole bytes"
    );
    assert_eq!(
        message(nf4::encoder(64).quantize(&x, &mut [0; 33], BlockScales::Floats(&mut [0.0; 1]))),
        "`scales` holds 1 elements where 2 are needed\nhelp: each block of elements has one"
    );
    assert_eq!(
        message(dequantize(&MATRIX, &mut [0.0; 64][..])),
        "`out` holds 64 elements where 128 are needed\nhelp: one for each element of the matrix"
    );
    assert_eq!(
        message(matmul(&[0.0; 64][..], 2, &MATRIX, Orientation::Transposed, &mut [0.0; 4][..])),
        "`x` holds 64 elements where 128 are needed\nhelp: `m` rows as long as the side of the matrix that is summed over"
    );
    assert_eq!(
        message(matmul(&[0.0; 4][..], 2, &MATRIX, Orientation::Plain, &mut [0.0; 4][..])),
        "`out` holds 4 elements where 128 are needed\nhelp: `m` rows as long as the side of the matrix that remains"
    );
    assert_eq!(
        message(gather_rows(&MATRIX, &[1], &mut [0.0; 4][..])),
        "`out` holds 4 elements where 64 are needed\nhelp: one row of the matrix for each entry of `rows`"
    );
}

#[test]
fn a_matrix_whose_parts_do_not_fit_is_refused() {
    let refused = |matrix| {
        let messages = [
            message(dequantize(&matrix, &mut [0.0; 128][..])),
            message(gather_rows(&matrix, &[], &mut [0.0; 0][..])),
            message(matmul(&[0.0; 64][..], 1, &matrix, Orientation::Transposed, &mut [0.0; 2][..])),
        ];
        assert!(messages.iter().all(|message| *message == messages[0]), "{messages:?}");
        messages[0].clone()
    };
    let codes = "as many as the matrix has elements, in whole bytes";
    for (held, needed, wrong) in [
        (63, 64, Codes::Table { bytes: &[0; 63], bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK }),
        (64, 48, Codes::Unsigned { bytes: &[0; 64], bits: 3 }),
        (127, 128, Codes::Signed { codes: &[0; 127] }),
        (129, 128, Codes::E4m3 { bytes: &[0; 129] }),
        (127, 128, Codes::F16 { codes: &[half::f16::ZERO; 127] }),
        (129, 128, Codes::Bf16 { codes: &[half::bf16::ZERO; 129] }),
        (127, 128, Codes::Bytes { bytes: &[0; 127], values: &[0.0; 256] }),
    ] {
        assert_eq!(
            refused(Matrix { codes: wrong, ..MATRIX }),
            format!("`codes` holds {held} elements where {needed} are needed\nhelp: {codes}")
        );
    }
    let blocks = "each block of elements has one";
    for wrong in [Scales::F32(&[0.0; 3]), Scales::E8m0(&[0; 3]), Scales::E4m3 { bytes: &[0; 3], factor: 1.0 }] {
        let expected = |name| format!("`{name}` holds 3 elements where 2 are needed\nhelp: {blocks}");
        assert_eq!(refused(Matrix { scales: wrong, ..MATRIX }), expected("scales"));
        assert_eq!(refused(Matrix { biases: Some(wrong), ..MATRIX }), expected("biases"));
    }
    let nested = Scales::Nested { codes: &[0; 2], map: &[0.0; 256], absmax: &[0.0; 1], block: 1, offset: 0.0 };
    assert_eq!(
        refused(Matrix { scales: nested, ..MATRIX }),
        "`absmax` holds 1 elements where 2 are needed\nhelp: each block of nested codes has one"
    );
    assert_eq!(
        refused(Matrix { scales: Scales::Integers { codes: &[0; 2], units: &[0.0], block: 1 }, ..MATRIX }),
        "`units` holds 1 elements where 2 are needed\nhelp: each block of integers has one"
    );
}

#[test]
fn rows_outside_the_matrix_are_named() {
    assert_eq!(
        message(gather_rows(&MATRIX, &[1, 2], &mut [0.0; 128][..])),
        "row 2 (entry 1) is outside a matrix of 2 rows\nhelp: rows count from 0 to 2 - 1"
    );
}

#[test]
fn sizes_that_overflow_are_refused() {
    let codes = Codes::Signed { codes: &[] };
    let empty = Matrix { codes, scales: Scales::F32(&[]), n: 0, ..MATRIX };
    assert_eq!(
        message(gather_rows(&Matrix { n: usize::MAX, k: 2, ..empty }, &[], &mut [0.0; 0][..])),
        format!("{} x 2 elements overflow the address range\nhelp: split the matrix by rows", usize::MAX)
    );
    let result = matmul(&[0.0; 0][..], usize::MAX, &empty, Orientation::Transposed, &mut [0.0; 0][..]);
    assert!(matches!(result, Err(KernelError::Overflow { .. })));
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            for index in [0, 63, 64, 70_000, 199_999] {
                let mut x = vec![1.0; 200_001];
                x[index] = bad;
                x[200_000] = f32::NAN;
                let mut absmax = vec![0.0; x.len().div_ceil(64)];
                let result =
                    isa.with(|| nf4::encoder(64).quantize(&x, &mut vec![0; 100_001], BlockScales::Floats(&mut absmax)));
                let Err(KernelError::NonFinite { index: named, .. }) = result else { panic!("{result:?}") };
                assert_eq!(named, index, "{isa:?}");
            }
        }
    }
    let mut x = [0.0; 32];
    x[3] = f32::NAN;
    assert_eq!(
        message(nf4::encoder(32).quantize(&x, &mut [0; 16], BlockScales::Floats(&mut [0.0]))),
        "element 3 is NaN, which no code can hold\nhelp: replace NaN and infinities before quantizing"
    );
}

#[test]
fn parameters_and_lengths_of_quantizers_are_checked() {
    let x = [0.0; 64];
    assert_eq!(
        fp4::encoder(48).quantize(&x, &mut [0; 32], BlockScales::Floats(&mut [0.0; 2])),
        Err(KernelError::BlockSize { block: 48 })
    );
    assert_eq!(
        dynamic8::encoder(16).quantize(&x, &mut [0; 64], BlockScales::Floats(&mut [0.0; 4])),
        Err(KernelError::BlockSize { block: 16 })
    );
    for result in [
        int8::encoder(0).quantize(&x, int8::as_bytes(&mut [0; 64]), BlockScales::Floats(&mut [])),
        ternary::encoder(0).quantize(&x, &mut [0; 16], BlockScales::Floats(&mut [])),
        binary::encoder(0).quantize(&x, &mut [0; 8], BlockScales::Floats(&mut [])),
        affine::encoder(0, 4).quantize(&x, &mut [0; 32], BlockScales::Biased(&mut [], &mut [])),
    ] {
        assert_eq!(result, Err(KernelError::EmptyBlock));
    }
    for bits in [0, 9] {
        let result =
            affine::encoder(32, bits).quantize(&x, &mut [0; 32], BlockScales::Biased(&mut [0.0; 2], &mut [0.0; 2]));
        assert_eq!(result, Err(KernelError::Bits { bits }));
    }
    let floats = affine::encoder(32, 4).quantize(&x, &mut [0; 32], BlockScales::Floats(&mut [0.0; 2]));
    assert_eq!(message(floats), "the scales are of another type than the format's\nhelp: give `BlockScales::Biased`");
    assert_eq!(
        mx::mxfp4(ScaleRule::Ceil).quantize_by(&x, BlockScales::Floats(&[0.0; 2]), &mut [0; 32]),
        Err(KernelError::ScaleType { needed: "BlockScales::Bytes" })
    );
    assert_eq!(
        nf4::encoder(64).quantize(&x, &mut [0; 32], BlockScales::Bytes(&mut [0])),
        Err(KernelError::ScaleType { needed: "BlockScales::Floats" })
    );
    assert_eq!(
        message(affine::encoder(48, 4).quantize(&x, &mut [0; 32], BlockScales::Biased(&mut [0.0; 2], &mut [0.0; 2]))),
        "64 elements are not whole groups of 48\nhelp: choose a group size that divides their number"
    );
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let result = nvfp4::encoder(Some(value)).quantize(&x, &mut [0; 32], BlockScales::Bytes(&mut [0; 4]));
        assert!(matches!(result, Err(KernelError::GlobalScale { .. })));
    }
    assert_eq!(
        message(nvfp4::encoder(Some(0.0)).quantize(&x, &mut [0; 32], BlockScales::Bytes(&mut [0; 4]))),
        "the global scale is 0\nhelp: give the largest magnitude of the tensor, or `None` if that is zero"
    );
    assert_eq!(
        message(mx::mxfp4(ScaleRule::Ceil).quantize(&x, &mut [0; 31], BlockScales::Bytes(&mut [0; 2]))),
        "`codes` holds 31 elements where 32 are needed\nhelp: as many as `x` has elements, in whole bytes"
    );
    assert_eq!(
        message(mx::mxfp4(ScaleRule::Ceil).quantize(&x, &mut [0; 32], BlockScales::Bytes(&mut [0; 3]))),
        "`scales` holds 3 elements where 2 are needed\nhelp: each block of elements has one"
    );
    assert_eq!(
        message(affine::encoder(32, 4).quantize(&x, &mut [0; 32], BlockScales::Biased(&mut [0.0; 2], &mut [0.0; 1]))),
        "`biases` holds 1 elements where 2 are needed\nhelp: each group of elements has one"
    );
}
