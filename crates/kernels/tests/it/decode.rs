//! Codes to floats, to the bit.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tacit_kernels::{
    Codes, Isa, KernelError, Matrix, Orientation, Scales, add_dense, dequantize, e4m3, e8m0, gather_rows, half_floats,
    matmul, threads,
};

use crate::stored::{KINDS, Kind, SCALINGS, Scaling, Stored};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Whether numbers are the same, of which a NaN is any.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
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
        for factor in [1.0, 0.9] {
            let x: Vec<f32> = (0..expected.len()).map(|i| i as f32 / 7.0 - 3.0).collect();
            let sums: Vec<f32> = expected.iter().zip(&x).map(|(own, x)| own * factor + x).collect();
            isa.with(|| add_dense(&stored.matrix(), factor, &x[..], &mut out[..])).unwrap();
            assert!(same(&out, &sums), "{isa:?} {factor} times {} and floats", stored.describe());
            let halves: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
            let round = |x: f32| bf16::from_f32(x).to_f32();
            let sums: Vec<f32> =
                expected.iter().zip(&halves).map(|(own, x)| round(round(own * factor) + x.to_f32())).collect();
            let mut rounded = vec![bf16::NAN; expected.len()];
            isa.with(|| add_dense(&stored.matrix(), factor, &halves[..], &mut rounded[..])).unwrap();
            assert!(same(&rounded.to_f32_vec(), &sums), "{isa:?} {factor} times {} and halves", stored.describe());
        }
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
    let codes = Codes::E4m3 { bytes: &bytes };
    let matrix = Matrix { n: 1, k: 256, codes, scales: Scales::F32(&scales), biases: None, block: 256 };
    for isa in Isa::available() {
        let mut out = [0.0_f32; 256];
        isa.with(|| dequantize(&matrix, &mut out[..])).unwrap();
        for (byte, value) in bytes.iter().zip(out) {
            let same = value.to_bits() == e4m3(*byte).to_bits() || (value.is_nan() && e4m3(*byte).is_nan());
            assert!(same, "{isa:?} {byte:#x}: {value}");
        }
    }
}

/// Subnormal numbers, infinities and NaN included, whichever way they are read; and back.
#[test]
fn every_half_has_its_value() {
    let narrow: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let wide: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    // The definition of an f16: a sign, five bits of exponent with bias 15, ten of fraction; all ones are no number.
    let defined = |bits: u16| {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
        let magnitude = match exponent {
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            0 => fraction * 2_f64.powi(-14),
            _ => (1.0 + fraction) * 2_f64.powi(exponent - 15),
        };
        (if bits >> 15 == 0 { magnitude } else { -magnitude }) as f32
    };
    let of_narrow: Vec<f32> = (0..=u16::MAX).map(defined).collect();
    let of_wide: Vec<f32> = (0..=u16::MAX).map(|bits| f32::from_bits(u32::from(bits) << 16)).collect();
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let forms = [(Codes::F16 { codes: &narrow }, &of_narrow), (Codes::Bf16 { codes: &wide }, &of_wide)];
    for (codes, expected) in forms {
        let matrix = Matrix { n: 1 << 13, k: 8, codes, scales: Scales::One, biases: None, block: 1 << 16 };
        for isa in Isa::available() {
            let mut out = vec![0.0; 1 << 16];
            isa.with(|| dequantize(&matrix, &mut out[..])).unwrap();
            let wrong = out.iter().zip(expected).position(|(ours, value)| !same(*ours, *value));
            assert_eq!(wrong, None, "{isa:?}");
            // Each as the only term of a sum, from the codes and from panels.
            let matrix = Matrix { n: 1 << 16, k: 1, ..matrix };
            for m in [1, 9] {
                let mut out = vec![0.0; m << 16];
                isa.with(|| matmul(&vec![1.0; m][..], m, &matrix, Orientation::Transposed, &mut out[..])).unwrap();
                // A sum that starts with zero has no zero with a sign.
                let wrong = out.iter().zip(expected.iter().cycle()).position(|(ours, value)| !same(*ours, value + 0.0));
                assert_eq!(wrong, None, "{isa:?} m {m}");
            }
        }
    }
    let (mut narrowed, mut widened) = (vec![f16::ZERO; 1 << 16], vec![bf16::ZERO; 1 << 16]);
    // What is no number is refused, with the first place.
    let refused = |result, x: &[f32]| {
        let first = x.iter().position(|x| !x.is_finite()).unwrap();
        assert!(matches!(result, Err(KernelError::NonFinite { index, .. }) if index == first), "{result:?}");
    };
    refused(half_floats::to_f16(&of_narrow, &mut narrowed), &of_narrow);
    refused(half_floats::to_bf16(&of_wide, &mut widened), &of_wide);
    let finite = |x: &[f32]| x.iter().map(|&x| if x.is_finite() { x } else { 0.0 }).collect::<Vec<_>>();
    half_floats::to_f16(&finite(&of_narrow), &mut narrowed).unwrap();
    half_floats::to_bf16(&finite(&of_wide), &mut widened).unwrap();
    assert!(narrowed.iter().zip(&narrow).all(|(a, b)| a.to_bits() == b.to_bits() || !b.is_finite()));
    assert!(widened.iter().zip(&wide).all(|(a, b)| a.to_bits() == b.to_bits() || !b.is_finite()));
}

#[test]
fn halves_are_rounded_to_nearest_even() {
    let (mut narrow, mut wide) = ([f16::ZERO; 5], [bf16::ZERO; 5]);
    // Ties of the last bit, the least subnormal's half, and the last number before the first that is too large.
    half_floats::to_f16(&[2049.0, 2051.0, 2_f32.powi(-25), 65519.9, -65519.9], &mut narrow).unwrap();
    assert_eq!(bits(&narrow.map(f16::to_f32)), bits(&[2048.0, 2052.0, 0.0, 65504.0, -65504.0]));
    half_floats::to_bf16(&[257.0, 259.0, 2_f32.powi(-134), 3.39e38, -3.39e38], &mut wide).unwrap();
    let most = bf16::MAX.to_f32();
    assert_eq!(bits(&wide.map(bf16::to_f32)), bits(&[256.0, 260.0, 0.0, most, -most]));
    let error = half_floats::to_f16(&[1.0, -65520.0], &mut narrow[..2]).unwrap_err();
    assert_eq!(error, KernelError::TooLarge { index: 1, value: -65520.0, max: 65504.0 });
    assert_eq!(
        error.to_string(),
        "element 1 is -65520, and the greatest number of the format is 65504\n\
         help: take a format with a scale, or one with the range of `f32` such as `bf16`"
    );
    let error = half_floats::to_bf16(&[3.4e38], &mut wide[..1]).unwrap_err();
    assert_eq!(error, KernelError::TooLarge { index: 0, value: 3.4e38, max: most });
    assert!(error.to_string().ends_with("\nhelp: take a format with a scale such as `int8`"), "{error}");
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
