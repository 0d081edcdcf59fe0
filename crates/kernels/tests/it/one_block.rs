//! A block that has no end.

#![allow(clippy::float_cmp, reason = "the results are exact")]

use tacit_kernels::{Codes, Matrix, Orientation, Scales, dequantize, int8_matmul, matmul};

#[test]
fn one_block_for_all_may_have_any_length() {
    let codes = [1_i8; 4 * 32];
    for block in [usize::MAX, usize::MAX / 2 + 1, 1 << 62] {
        let codes = Codes::Signed { codes: &codes };
        let matrix = Matrix { n: 4, k: 32, codes, scales: Scales::F32(&[1.0]), biases: None, block };
        let (mut w, mut y) = ([0.0_f32; 128], [0.0_f32; 4]);
        // These two take it.
        dequantize(&matrix, &mut w[..]).expect("it fits");
        matmul(&[1.0_f32; 32][..], 1, &matrix, Orientation::Transposed, &mut y[..]).expect("it fits");
        int8_matmul(&[1.0_f32; 32][..], 1, &matrix, Orientation::Transposed, &mut y[..]).expect("it fits");
        assert_eq!(y.map(f32::round), [32.0; 4]);
    }
    // The same for a stream of codes that are no bytes.
    let codes = Codes::Unsigned { bytes: &[0; 4 * 32 * 5 / 8], bits: 5 };
    let matrix = Matrix { n: 4, k: 32, codes, scales: Scales::F32(&[1.0]), biases: None, block: usize::MAX };
    let mut y = [9.0_f32; 4];
    int8_matmul(&[1.0_f32; 32][..], 1, &matrix, Orientation::Transposed, &mut y[..]).expect("it fits");
    assert_eq!(y, [0.0; 4]);
}
