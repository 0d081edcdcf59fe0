//! A mask whose tokens do not lie side by side is refused.

use tacit_kernels::{Attention, Codes, Floats, Mask, MaskValues, Matrix, Scales, attention};

#[test]
fn masks_are_read_where_they_say_or_refused() {
    // Two tokens; every second byte of the mask is meant: both are visible.
    let (keys, values) = ([1_i8; 2], [10_i8, 20]);
    let matrix = |codes| Matrix {
        n: 2,
        k: 1,
        codes: Codes::Signed { codes },
        scales: Scales::F32(&[1.0]),
        biases: None,
        block: 2,
    };
    let visible = [1_u8, 0, 1];
    let mask = Mask {
        values: MaskValues::Visible { visible: &visible, hidden: f32::NEG_INFINITY },
        entries: &[0],
        row: 0,
        column: 2,
    };
    let of = Attention {
        q: Floats::F32(&[1.0]),
        queries: 1,
        indices: &[0],
        keys: matrix(&keys),
        values: matrix(&values),
        tokens: 2,
        mask: Some(mask),
    };
    let mut out = [0.0_f32];
    assert!(attention(&of, &mut out[..]).is_err(), "{out:?}");
}
