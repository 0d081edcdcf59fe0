//! The quantizers against their formulas, written as plainly as they can be, and against the decoder.

#![allow(clippy::float_cmp, reason = "the results are exact")]

use tacit_kernels::{
    BlockScales, Codes, E2M1, KernelError, Matrix, Order, ScaleRule, Scales, affine, binary, code_bytes, dequantize,
    dynamic8, e4m3, e8m0, fp4, int8, mx, nf4, nvfp4, ternary, threads,
};

use crate::random::Random;

/// What the quantizers wrote: codes, and scales of whichever kind.
#[derive(Debug, Default, PartialEq)]
struct Stored {
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
    bytes: Vec<u8>,
}

/// A format with its parameters.
#[derive(Clone, Copy, Debug)]
enum Case {
    Nf4(usize),
    Fp4(usize),
    Dynamic8(usize),
    Affine(u32, usize),
    Int8(usize),
    Ternary(usize),
    Binary(usize),
    Mxfp4(ScaleRule),
    Mxfp8(ScaleRule),
    Nvfp4(Option<f32>),
}

const RULES: [ScaleRule; 3] = [ScaleRule::Ceil, ScaleRule::Round, ScaleRule::Floor];

/// Each format, with blocks that do and do not start on a byte.
fn cases() -> Vec<Case> {
    let mut cases = vec![Case::Nf4(32), Case::Nf4(64), Case::Nf4(4096), Case::Fp4(64), Case::Dynamic8(256)];
    for bits in 1..=8 {
        cases.extend([16, 32, 64, 128].map(|group| Case::Affine(bits, group)));
    }
    for block in [1, 3, 33, 64, 1000, 70_001] {
        cases.extend([Case::Int8(block), Case::Ternary(block), Case::Binary(block)]);
    }
    for rule in RULES {
        cases.extend([Case::Mxfp4(rule), Case::Mxfp8(rule)]);
    }
    cases.extend([None, Some(4.5), Some(1e-3)].map(Case::Nvfp4));
    cases
}

impl Case {
    fn bits(self) -> u32 {
        match self {
            Self::Nf4(_) | Self::Fp4(_) | Self::Mxfp4(_) | Self::Nvfp4(_) => 4,
            Self::Dynamic8(_) | Self::Int8(_) | Self::Mxfp8(_) => 8,
            Self::Affine(bits, _) => bits,
            Self::Ternary(_) => 2,
            Self::Binary(_) => 1,
        }
    }

    fn block(self) -> usize {
        match self {
            Self::Nf4(block)
            | Self::Fp4(block)
            | Self::Dynamic8(block)
            | Self::Affine(_, block)
            | Self::Int8(block)
            | Self::Ternary(block)
            | Self::Binary(block) => block,
            Self::Mxfp4(_) | Self::Mxfp8(_) => 32,
            Self::Nvfp4(_) => 16,
        }
    }

    fn quantize(self, x: &[f32]) -> Result<Stored, KernelError> {
        let blocks = x.len().div_ceil(self.block());
        // Filled with what a quantizer that forgets an element would leave.
        let (mut codes, mut scales) = (vec![0xa5; code_bytes(x.len(), self.bits())], vec![f32::NAN; blocks]);
        let (mut biases, mut bytes) = (vec![], vec![]);
        let encoder = match self {
            Self::Nf4(block) => nf4::encoder(block),
            Self::Fp4(block) => fp4::encoder(block),
            Self::Dynamic8(block) => dynamic8::encoder(block),
            Self::Affine(bits, group) => affine::encoder(group, bits),
            Self::Int8(block) => int8::encoder(block),
            Self::Ternary(block) => ternary::encoder(block),
            Self::Binary(block) => binary::encoder(block),
            Self::Mxfp4(rule) => mx::mxfp4(rule),
            Self::Mxfp8(rule) => mx::mxfp8(rule),
            Self::Nvfp4(global_scale) => nvfp4::encoder(global_scale),
        };
        let stored = match self {
            Self::Affine(..) => {
                biases = vec![f32::NAN; blocks];
                BlockScales::Biased(&mut scales[..], &mut biases[..])
            }
            Self::Mxfp4(_) | Self::Mxfp8(_) | Self::Nvfp4(_) => {
                scales = vec![];
                bytes = vec![0xa5; blocks];
                BlockScales::Bytes(&mut bytes[..])
            }
            _ => BlockScales::Floats(&mut scales[..]),
        };
        encoder.quantize(x, &mut codes, stored)?;
        Ok(Stored { codes, scales, biases, bytes })
    }

    /// The values of what was stored, by the crate's decoder.
    fn dequantize(self, stored: &Stored, elements: usize) -> Vec<f32> {
        let bytes = &stored.codes[..];
        let table = |order, values| Codes::Table { bytes, bits: self.bits(), order, values };
        let signed: Vec<i8> = bytes.iter().map(|code| code.cast_signed()).collect();
        let units: Vec<f32> = stored.scales.iter().map(|absmax| absmax / 127.0).collect();
        let scales = Scales::F32(&stored.scales);
        let (codes, scales) = match self {
            Self::Nf4(_) => (table(Order::HighFirst, &nf4::CODEBOOK), scales),
            Self::Fp4(_) => (table(Order::HighFirst, &fp4::CODEBOOK), scales),
            // No matrix has these elements; they are the scales of one.
            Self::Dynamic8(block) => {
                let value = |(at, code): (usize, &u8)| dynamic8::map()[usize::from(*code)] * stored.scales[at / block];
                return bytes.iter().enumerate().map(value).collect();
            }
            Self::Affine(bits, _) => (Codes::Unsigned { bytes, bits }, scales),
            Self::Int8(_) => (Codes::Signed { codes: &signed }, Scales::F32(&units)),
            Self::Ternary(_) => (table(Order::LowFirst, &ternary::VALUES), scales),
            Self::Binary(_) => (table(Order::LowFirst, &binary::VALUES), scales),
            Self::Mxfp4(_) => (table(Order::LowFirst, &E2M1), Scales::E8m0(&stored.bytes)),
            Self::Mxfp8(_) => (Codes::E4m3 { bytes }, Scales::E8m0(&stored.bytes)),
            Self::Nvfp4(global_scale) => {
                let scales = Scales::E4m3 { bytes: &stored.bytes, factor: nvfp4::factor(global_scale) };
                (table(Order::LowFirst, &E2M1), scales)
            }
        };
        let biases = matches!(self, Self::Affine(..)).then_some(Scales::F32(&stored.biases));
        let mut out = vec![f32::NAN; elements];
        let matrix = Matrix { n: 1, k: elements, codes, scales, biases, block: self.block() };
        dequantize(&matrix, &mut out[..]).unwrap();
        out
    }

    /// The value of each element, by the format's formula alone.
    fn by_formula(self, x: &[f32]) -> Vec<f32> {
        x.chunks(self.block()).flat_map(|block| self.block_by_formula(block)).collect()
    }

    fn block_by_formula(self, x: &[f32]) -> Vec<f32> {
        let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let each = |f: &dyn Fn(f32) -> f32| x.iter().map(|x| f(*x)).collect();
        match self {
            Self::Nf4(_) | Self::Fp4(_) | Self::Dynamic8(_) => {
                let mut table = match self {
                    Self::Nf4(_) => nf4::CODEBOOK.to_vec(),
                    Self::Fp4(_) => fp4::CODEBOOK.to_vec(),
                    _ => dynamic8::map().to_vec(),
                };
                table.sort_by(f32::total_cmp);
                // Halfway between two values, the lesser.
                let midpoints: Vec<f32> = match self {
                    Self::Nf4(_) => nf4::THRESHOLDS.to_vec(),
                    _ => table.windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect(),
                };
                each(&|x| {
                    let scaled = (x * (1.0 / most.max(1e-38))).clamp(-1.0, 1.0);
                    table[midpoints.iter().filter(|midpoint| scaled > **midpoint).count()] * most
                })
            }
            Self::Affine(bits, _) => {
                let top = (1_u32 << bits) as f32 - 1.0;
                let low = x.iter().copied().fold(f32::INFINITY, f32::min);
                let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut scale = ((high - low) / top).max(1e-7);
                let mut bias = 0.0;
                let edge = if low.abs() > high.abs() {
                    low
                } else {
                    scale = -scale;
                    high
                };
                let steps = (edge / scale).round_ties_even();
                if steps != 0.0 {
                    scale = edge / steps;
                    bias = edge;
                }
                each(&|x| ((x - bias) / scale).round_ties_even().max(0.0).min(top) * scale + bias)
            }
            Self::Int8(_) if most == 0.0 => each(&|_| 0.0),
            Self::Int8(_) => each(&|x| (x * (127.0 / most)).round_ties_even() * (most / 127.0)),
            Self::Ternary(_) | Self::Binary(_) => {
                let mean = x.iter().map(|x| f64::from(x.abs())).sum::<f64>() / x.len() as f64;
                let mean = mean as f32;
                each(&|x| match self {
                    Self::Ternary(_) if mean == 0.0 => 0.0,
                    Self::Ternary(_) => (x / mean).round_ties_even().clamp(-1.0, 1.0) * mean,
                    _ if x >= 0.0 => mean,
                    _ => -mean,
                })
            }
            Self::Mxfp4(_) | Self::Mxfp8(_) if most == 0.0 => each(&|_| 0.0),
            Self::Mxfp4(rule) => {
                let scale = scale_by_formula(rule, most, 6.0);
                each(&|x| nearest(&E2M1[..8], f64::from(x) / scale) * scale as f32)
            }
            Self::Mxfp8(rule) => {
                let scale = scale_by_formula(rule, most, 448.0);
                let values: Vec<f32> = (0..=0x7e).map(e4m3).collect();
                each(&|x| nearest(&values, f64::from(x) / scale) * scale as f32)
            }
            Self::Nvfp4(global_scale) => {
                let values: Vec<f32> = (0..=0x7e).map(e4m3).collect();
                let encode = global_scale.map_or(1.0, |most| 448.0 * 6.0 / most);
                let rounded = nearest(&values, f64::from(most / 6.0 * encode));
                if rounded == 0.0 {
                    return each(&|_| 0.0);
                }
                let unit = rounded * nvfp4::factor(global_scale);
                each(&|x| nearest(&E2M1[..8], f64::from(x / rounded * encode)) * unit)
            }
        }
    }
}

/// The rules as their definitions have them, in `f64`.
fn scale_by_formula(rule: ScaleRule, most: f32, top: f64) -> f64 {
    let most = f64::from(most);
    let exponent = match rule {
        ScaleRule::Ceil => (most / top).log2().ceil(),
        ScaleRule::Round => (most / top).log2().round(),
        ScaleRule::Floor => most.log2().floor() - top.log2().floor(),
    };
    exponent.max(-127.0).exp2()
}

/// Of ascending magnitudes with even codes for the even ones, the nearest to `x`, the even one of two.
fn nearest(magnitudes: &[f32], x: f64) -> f32 {
    // Far above them all, no distance in f64 would tell them apart.
    let most = x.abs().min(f64::from(magnitudes[magnitudes.len() - 1]));
    let distance = |code: usize| (f64::from(magnitudes[code]) - most).abs();
    let mut best = 0;
    for code in 1..magnitudes.len() {
        if distance(code) < distance(best) || (distance(code) == distance(best) && code % 2 == 0) {
            best = code;
        }
    }
    if x < 0.0 { -magnitudes[best] } else { magnitudes[best] }
}

/// Numbers of every kind, in a length that all groups divide.
fn kinds() -> Vec<Vec<f32>> {
    let mut random = Random::new(11);
    let normal = random.normal(70_016);
    let with = |f: &dyn Fn(f32) -> f32| normal[..1024].iter().map(|x| f(*x)).collect::<Vec<f32>>();
    vec![
        vec![],
        with(&|_| 0.0),
        with(&|_| -0.0),
        with(&|_| 3.5),
        with(&|_| -3.5),
        with(&|x| x.abs()),
        with(&|x| -x.abs()),
        with(&|x| x + 1000.0),
        with(&|x| x * 1e-30),
        with(&|x| x * 1e30),
        with(&|x| (4.0 * x).round() / 4.0),
        normal,
    ]
}

#[test]
fn every_format_follows_its_formula() {
    for case in cases() {
        for x in kinds() {
            let stored = case.quantize(&x).unwrap();
            let (values, expected) = (case.dequantize(&stored, x.len()), case.by_formula(&x));
            if let Some(at) = (0..x.len()).find(|&at| values[at] != expected[at]) {
                panic!("{case:?}: element {at}, {}, is {} and not {}", x[at], values[at], expected[at]);
            }
        }
    }
}

#[test]
fn ragged_lengths_are_padded() {
    let normal = Random::new(12).normal(5000);
    for case in cases() {
        if matches!(case, Case::Affine(..)) {
            continue;
        }
        for len in [1, 2, 15, 17, 33, 257, 4097] {
            let x = &normal[..len];
            let stored = case.quantize(x).unwrap();
            assert_eq!(case.dequantize(&stored, len), case.by_formula(x), "{case:?} {len}");
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let x = Random::new(13).normal(300_032);
    for case in cases() {
        let one = threads::with_count(1, || case.quantize(&x).unwrap());
        for count in [2, 3] {
            let many = threads::with_count(count, || case.quantize(&x).unwrap());
            assert!(one == many, "{case:?} on {count} threads");
        }
    }
}

#[test]
fn thresholds_are_where_the_formula_has_them() {
    // A first element that makes the scale 1 lets the others be the scaled values themselves.
    let around = |first: f32, thresholds: &[f32]| {
        let mut x = vec![first];
        x.extend(thresholds.iter().flat_map(|t| [t.next_down(), *t, t.next_up(), -t.next_down(), -t, -t.next_up()]));
        x.resize(x.len().next_multiple_of(4096), 0.0);
        x
    };
    let mut sorted = fp4::CODEBOOK;
    sorted.sort_by(f32::total_cmp);
    let midpoints =
        |values: &[f32]| values.windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect::<Vec<f32>>();
    let e4m3s: Vec<f32> = (0..=0x7e).map(e4m3).collect();
    let halves: Vec<f32> = (0..127).map(|i| i as f32 + 0.5).collect();
    for (case, x) in [
        (Case::Nf4(4096), around(1.0, &nf4::THRESHOLDS)),
        (Case::Fp4(4096), around(1.0, &midpoints(&sorted))),
        (Case::Dynamic8(4096), around(1.0, &midpoints(dynamic8::map()))),
        (Case::Int8(4096), around(127.0, &halves)),
    ] {
        let stored = case.quantize(&x).unwrap();
        assert_eq!(case.dequantize(&stored, x.len()), case.by_formula(&x), "{case:?}");
    }
    // Groups of few elements: each gets its own first.
    let grouped = |group: usize, first: f32, thresholds: &[f32]| {
        let all = around(first, thresholds);
        all[1..].chunks(group - 1).flat_map(|part| [&[first], part].concat()).collect::<Vec<f32>>()
    };
    let mut cases = vec![(Case::Nvfp4(None), grouped(16, 6.0, &midpoints(&E2M1[..8])))];
    for rule in RULES {
        cases.push((Case::Mxfp4(rule), grouped(32, 6.0, &midpoints(&E2M1[..8]))));
        cases.push((Case::Mxfp8(rule), grouped(32, 448.0, &midpoints(&e4m3s))));
    }
    for (case, x) in cases {
        let stored = case.quantize(&x).unwrap();
        assert_eq!(case.dequantize(&stored, x.len()), case.by_formula(&x), "{case:?}");
    }
}

#[test]
fn scale_rules_decide_where_their_definitions_do() {
    for rule in RULES {
        for top in [6.0_f32, 448.0] {
            for power in [-126, -100, -3, 0, 1, 50, 118] {
                for fraction in [1.0_f32, std::f32::consts::FRAC_1_SQRT_2, top / 4.0, top, 0.9, 1.1] {
                    let base = fraction * top * 2f32.powi(power);
                    for most in [base.next_down(), base, base.next_up()].into_iter().filter(|most| most.is_finite()) {
                        let mut scales = [0];
                        let (codes, scale) = (&mut [0; 1], scale_by_formula(rule, most, f64::from(top)));
                        if top == 6.0 {
                            mx::mxfp4(rule).quantize(&[most], codes, BlockScales::Bytes(&mut scales)).unwrap();
                        } else {
                            mx::mxfp8(rule).quantize(&[most], codes, BlockScales::Bytes(&mut scales)).unwrap();
                        }
                        assert_eq!(f64::from(e8m0(scales[0])), scale, "{rule:?} {most:e} {top}");
                    }
                }
            }
        }
    }
    // Subnormal numbers have the least scale that there is.
    let mut scales = [0xff; 1];
    mx::mxfp4(ScaleRule::Ceil).quantize(&[1e-45; 32], &mut [0; 16], BlockScales::Bytes(&mut scales)).unwrap();
    assert_eq!(scales, [0]);
}

#[test]
fn errors_of_fp4_are_those_of_bitsandbytes() {
    let x = Random::new(15).normal(1 << 20);
    let y = Case::Fp4(64).dequantize(&Case::Fp4(64).quantize(&x).unwrap(), x.len());
    let mean = |error: &dyn Fn(f32, f32) -> f32| {
        x.iter().zip(&y).map(|(x, y)| f64::from(error(*x, *y))).sum::<f64>() / x.len() as f64
    };
    assert!((mean(&|x, y| (x - y).abs()) - 0.096_543).abs() < 7.0 * 7e-5);
    assert!((mean(&|x, y| ((x - y) / x).abs()) - 0.260_125).abs() < 7.0 * 3e-4);
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    for case in cases() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for index in [0, 70_000, 131_071] {
                let mut x = vec![1.0; 131_072];
                x[index] = bad;
                x[131_071] = f32::NAN;
                let result = case.quantize(&x).map(drop);
                let Err(KernelError::NonFinite { index: named, .. }) = result else { panic!("{case:?} {result:?}") };
                assert_eq!(named, index, "{case:?}");
            }
        }
    }
}
