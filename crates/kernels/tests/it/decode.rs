//! Codes to floats, to the bit.

use half::{bf16, f16};
use tacit_kernels::{Isa, dequantize, e4m3, e8m0, gather_rows, threads};

use crate::stored::{KINDS, Kind, SCALINGS, Scaling, Stored};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn check(stored: &Stored) {
    let expected = stored.elements();
    let rows: Vec<u32> = [2, 0, 0, 1, 5].iter().map(|row| row % stored.n as u32).collect();
    let gathered: Vec<f32> =
        rows.iter().flat_map(|&row| expected[row as usize * stored.k..][..stored.k].to_vec()).collect();
    for isa in Isa::available() {
        let mut out = vec![f32::NAN; expected.len()];
        isa.with(|| dequantize(&stored.matrix(), &mut out[..])).unwrap();
        assert!(bits(&out) == bits(&expected), "{isa:?} {}", stored.describe());
        let mut out = vec![f32::NAN; gathered.len()];
        isa.with(|| gather_rows(&stored.matrix(), &rows, &mut out[..])).unwrap();
        assert!(bits(&out) == bits(&gathered), "{isa:?} rows of {}", stored.describe());
    }
}

#[test]
fn every_code_with_every_scale_follows_the_definition() {
    for kind in KINDS {
        for scaling in SCALINGS {
            for biased in [false, true] {
                check(&Stored::new(kind, scaling, biased, 32, 6, 96));
            }
        }
    }
}

#[test]
fn every_block_and_shape_follows_the_definition() {
    for kind in KINDS {
        for (n, k) in [(1, 1), (3, 7), (5, 33), (7, 96), (9, 1000), (3, 4099)] {
            for block in [1, 3, 8, 16, 64, 128, 1024, k, 2 * k, usize::MAX] {
                check(&Stored::new(kind, Scaling::F32, block % 2 == 0, block, n, k));
                check(&Stored::new(kind, Scaling::Nested, false, block, n, k));
            }
        }
    }
}

#[test]
fn every_byte_of_e4m3_and_e8m0_has_its_value() {
    // The definition: a sign, four bits of exponent with bias 7, three of mantissa; all ones are NaN.
    for byte in 0..=255_u8 {
        let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
        let magnitude = match exponent {
            15 if byte & 7 == 7 => f64::NAN,
            0 => mantissa / 8.0 * 2_f64.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2_f64.powi(exponent - 7),
        };
        let value = if byte & 128 == 0 { magnitude } else { -magnitude };
        let ours = e4m3(byte);
        assert!(f64::from(ours).to_bits() == value.to_bits() || (ours.is_nan() && value.is_nan()), "{byte:#x}: {ours}");
        assert_eq!(ours.is_sign_negative(), byte & 128 != 0, "{byte:#x}");
        let power = if byte == 255 { f64::NAN } else { 2_f64.powi(i32::from(byte) - 127) };
        assert!(
            f64::from(e8m0(byte)).to_bits() == power.to_bits() || (byte == 255 && e8m0(byte).is_nan()),
            "{byte:#x}"
        );
    }
    // The vectors, which have their own way to do it; NaN included.
    let bytes: Vec<u8> = (0..=255).collect();
    let scales = [1.0];
    let matrix = tacit_kernels::Matrix {
        n: 1,
        k: 256,
        codes: tacit_kernels::Codes::E4m3 { bytes: &bytes },
        scales: tacit_kernels::Scales::F32(&scales),
        biases: None,
        block: 256,
    };
    for isa in Isa::available() {
        let mut out = [0.0_f32; 256];
        isa.with(|| dequantize(&matrix, &mut out[..])).unwrap();
        for (byte, value) in bytes.iter().zip(out) {
            let same = value.to_bits() == e4m3(*byte).to_bits() || (value.is_nan() && e4m3(*byte).is_nan());
            assert!(same, "{isa:?} {byte:#x}: {value}");
        }
    }
}

#[test]
fn half_outputs_are_rounded_once() {
    for kind in [KINDS[0], Kind::Unsigned(6), Kind::E4m3] {
        let stored = Stored::new(kind, Scaling::Bf16, true, 64, 5, 1000);
        let expected = stored.elements();
        for isa in Isa::available() {
            let mut out = vec![f16::NAN; expected.len()];
            isa.with(|| dequantize(&stored.matrix(), &mut out[..])).unwrap();
            assert!(out.iter().zip(&expected).all(|(out, value)| *out == f16::from_f32(*value)), "{isa:?} {kind:?}");
            let mut out = vec![bf16::NAN; 1000];
            isa.with(|| gather_rows(&stored.matrix(), &[3], &mut out[..])).unwrap();
            let row = &expected[3000..4000];
            assert!(out.iter().zip(row).all(|(out, value)| *out == bf16::from_f32(*value)), "{isa:?} {kind:?}");
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let stored = Stored::new(KINDS[0], Scaling::F16, true, 64, 300, 1001);
    let expected = stored.elements();
    for threads in [1, 2, 3] {
        let mut out = vec![f32::NAN; expected.len()];
        threads::with_count(threads, || dequantize(&stored.matrix(), &mut out[..]).unwrap());
        assert!(bits(&out) == bits(&expected), "{threads} threads");
    }
}
