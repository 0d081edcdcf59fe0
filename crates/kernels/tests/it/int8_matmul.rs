//! Products with 8-bit activations, against the contract that they document and against the float product.

#![allow(clippy::float_cmp, reason = "the results are exact")]

use half::{bf16, f16};
use tacit_kernels::{
    BlockScales, Codes, E2M1, Isa, KernelError, Matrix, Order, Orientation, Scales, affine, fp4, int8_matmul, matmul,
    nf4, threads,
};

use crate::{
    random::Random,
    stored::{Kind, SCALINGS, Stored},
};

/// A matrix's parts, drawn at random.
struct Parts {
    n: usize,
    k: usize,
    block: usize,
    bytes: Vec<u8>,
    signed: Vec<i8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Parts {
    fn new(n: usize, k: usize, block: usize) -> Self {
        let mut random = Random::new((n * k + block) as u64);
        let bytes: Vec<u8> = (0..n * k).map(|_| random.bits() as u8).collect();
        let signed = bytes.iter().map(|byte| byte.cast_signed()).collect();
        let scales = random.normal((n * k).div_ceil(block)).iter().map(|x| x.abs() + 0.1).collect();
        let biases = random.normal((n * k).div_ceil(block)).iter().map(|x| 30.0 * x).collect();
        Self { n, k, block, bytes, signed, scales, biases }
    }

    fn tables(&self) -> Vec<Codes<'_>> {
        let bytes = &self.bytes[..(self.n * self.k).div_ceil(2)];
        let table = |order, values| Codes::Table { bytes, bits: 4, order, values };
        vec![
            table(Order::HighFirst, &nf4::CODEBOOK),
            table(Order::HighFirst, &fp4::CODEBOOK),
            table(Order::LowFirst, &E2M1),
        ]
    }

    fn integers(&self) -> Vec<Codes<'_>> {
        let unsigned =
            |bits: u32| Codes::Unsigned { bytes: &self.bytes[..(self.n * self.k * bits as usize).div_ceil(8)], bits };
        let offset = |codes| match codes {
            Codes::Unsigned { bytes, bits } => Codes::Offset { bytes, bits },
            other => other,
        };
        let both = (2..=8).map(unsigned).flat_map(|codes| [codes, offset(codes)]);
        std::iter::once(Codes::Signed { codes: &self.signed }).chain(both).collect()
    }

    fn matrix<'a>(&'a self, codes: Codes<'a>) -> Matrix<'a> {
        let Self { n, k, block, .. } = *self;
        Matrix { n, k, codes, scales: Scales::F32(&self.scales), biases: None, block }
    }

    fn biased<'a>(&'a self, codes: Codes<'a>) -> Matrix<'a> {
        Matrix { biases: Some(Scales::F32(&self.biases)), ..self.matrix(codes) }
    }

    /// All that have products.
    fn matrices(&self) -> Vec<Matrix<'_>> {
        let (plain, integers) = ([self.tables(), self.integers()].concat(), self.integers());
        let plain = plain.into_iter().map(|codes| self.matrix(codes));
        plain.chain(integers.into_iter().map(|codes| self.biased(codes))).collect()
    }
}

/// The integer of each code, and what it is worth.
fn integers(codes: &Codes, elements: usize) -> (Vec<i64>, f64) {
    match *codes {
        Codes::Signed { codes } => (codes.iter().map(|code| i64::from(*code)).collect(), 1.0),
        Codes::Offset { bytes, bits } => {
            let (codes, unit) = integers(&Codes::Unsigned { bytes, bits }, elements);
            (codes.into_iter().map(|code| code - (1 << (bits - 1))).collect(), unit)
        }
        Codes::Unsigned { bytes, bits } => {
            let bit = |at: usize| i64::from(bytes[at / 8] >> (at % 8) & 1);
            let code = |e: usize| (0..bits as usize).map(|i| bit(e * bits as usize + i) << i).sum();
            ((0..elements).map(code).collect(), 1.0)
        }
        Codes::Table { bytes, order, values, .. } => {
            let top = f64::from(values.iter().fold(0.0_f32, |top, value| top.max(value.abs())));
            let mut best = (f64::INFINITY, [0_i64; 16], 0.0);
            for steps in 64..=127 {
                let unit = top / f64::from(steps);
                let integers = values.map(|value| (f64::from(value) / unit).round_ties_even() as i64);
                let errors = values.iter().zip(integers).map(|(value, i)| (f64::from(*value) / top, i));
                let error = errors.map(|(value, i)| (value - i as f64 / f64::from(steps)).powi(2)).sum::<f64>();
                if error < best.0 {
                    best = (error, integers, unit);
                }
            }
            let (_, integers, unit) = best;
            let code = |e: usize| {
                let high = e.is_multiple_of(2) == (order == Order::HighFirst);
                usize::from(if high { bytes[e / 2] >> 4 } else { bytes[e / 2] & 15 })
            };
            ((0..elements).map(|e| integers[code(e)]).collect(), unit)
        }
        _ => unreachable!(),
    }
}

/// The contract, with exact integers and sums in `f64`.
fn by_contract(x: &[f32], m: usize, matrix: &Matrix) -> Vec<f64> {
    let (n, k) = (matrix.n, matrix.k);
    let (weights, unit) = integers(&matrix.codes, n * k);
    let Scales::F32(scales) = matrix.scales else { unreachable!() };
    let bias = |block: usize| match matrix.biases {
        Some(Scales::F32(biases)) => f64::from(biases[block]),
        _ => 0.0,
    };
    let mut out = Vec::new();
    for i in 0..m {
        let x = &x[i * k..(i + 1) * k];
        let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let factor = if most == 0.0 { 0.0 } else { 127.0 / most };
        let x: Vec<i64> = x.iter().map(|x| (x * factor).round_ties_even() as i64).collect();
        for j in 0..n {
            let term = |d: usize| {
                let block = (j * k + d) / matrix.block;
                x[d] as f64 * (weights[j * k + d] as f64 * unit * f64::from(scales[block]) + bias(block))
            };
            out.push((0..k).map(term).sum::<f64>() * f64::from(most) / 127.0);
        }
    }
    out
}

/// Layouts that the tile takes, and others.
const LAYOUTS: [(usize, usize, usize); 16] = [
    (64, 512, 64),
    (33, 1024, 32),
    (40, 1536, 512),
    (31, 2048, 1024),
    (32, 520, 520),
    (70, 1000, 8),
    (5, 4096, 4096),
    (65, 64, 128),
    (17, 96, 16),
    (100, 1544, 193 * 8),
    (3, 7, 64),
    (9, 33, 32),
    (2, 1, 1),
    (6, 1030, 64),
    (4, 784, 64),
    (12, 600, 24),
];

#[test]
fn the_contract_is_kept_on_every_instruction_set() {
    for (n, k, block) in LAYOUTS {
        let parts = Parts::new(n, k, block);
        for (matrix, m) in parts.matrices().into_iter().zip([1, 5, 14, 27].into_iter().cycle()) {
            for m in [m, 3] {
                check(&Random::new(m as u64).normal(m * k), m, &matrix);
            }
        }
    }
}

/// Compares a product with the contract, and its bits on all instruction sets.
fn check(x: &[f32], m: usize, matrix: &Matrix) {
    let Matrix { n, k, block, .. } = *matrix;
    let codes = match matrix.codes {
        Codes::Table { .. } => "a table".to_owned(),
        Codes::Unsigned { bits, .. } => format!("{bits} unsigned bits"),
        Codes::Offset { bits, .. } => format!("{bits} bits in offset binary"),
        _ => "signed bytes".to_owned(),
    };
    let what = format!("{codes}, biases: {}, {n} {k} {block} {m}", matrix.biases.is_some());
    let expected = by_contract(x, m, matrix);
    let most = expected.iter().fold(0.0_f64, |most, y| most.max(y.abs()));
    let mut first = None;
    for isa in Isa::available() {
        let mut out = vec![f32::NAN; m * n];
        isa.with(|| int8_matmul(x, m, matrix, Orientation::Transposed, &mut out[..])).unwrap();
        for (y, expected) in out.iter().zip(&expected) {
            assert!((f64::from(*y) - expected).abs() <= 1e-6 * most, "{isa:?} {what}: {y} {expected}");
        }
        let bits: Vec<u32> = out.iter().map(|y| y.to_bits()).collect();
        assert!(*first.get_or_insert_with(|| bits.clone()) == bits, "{isa:?} {what}");
    }
}

#[test]
fn groups_with_biases_are_products_for_every_number_of_rows() {
    for block in [32, 64, 128] {
        // Whole vectors of codes, halves of them, and less.
        for (n, k) in [(19, 3 * block), (33, 512 + block), (16, 1024)] {
            let parts = Parts::new(n, k, block);
            let x = Random::new(26).normal(40 * k);
            for codes in parts.integers() {
                for m in 0..=40 {
                    check(&x[..m * k], m, &parts.biased(codes));
                }
                check(&vec![0.0; 2 * k], 2, &parts.biased(codes));
            }
        }
    }
}

#[test]
fn the_largest_integers_are_summed_exactly() {
    let (n, k) = (17, 1024);
    for (byte, x) in [(255, 1.0), (255, -1.0), (128, 1.0), (0, -1.0)] {
        let parts =
            Parts { bytes: vec![byte; n * k], signed: vec![byte.cast_signed(); n * k], ..Parts::new(n, k, 512) };
        for codes in parts.integers() {
            check(&vec![x; 3 * k], 3, &parts.biased(codes));
        }
    }
}

#[test]
fn scales_of_every_type_are_those_that_they_stand_for() {
    let (n, k, block, m) = (37, 256, 16, 5);
    let parts = Parts::new(n, k, block);
    let x = Random::new(25).normal(m * k);
    for scaling in SCALINGS {
        let stored = Stored::new(Kind::Signed, scaling, false, block, n, k);
        let widened: Vec<f32> = (0..n * k / block).map(|at| stored.scales.value(scaling, at)).collect();
        for matrix in parts.matrices() {
            let product = |scales| {
                let mut out = vec![f32::NAN; m * n];
                let matrix = Matrix { scales, biases: matrix.biases.map(|_| scales), ..matrix };
                int8_matmul(&x[..], m, &matrix, Orientation::Transposed, &mut out[..]).unwrap();
                out
            };
            assert!(product(stored.matrix().scales) == product(Scales::F32(&widened)), "{scaling:?}");
        }
    }
}

#[test]
fn the_result_is_near_that_of_floats() {
    let (n, k, m) = (128, 1024, 9);
    let (w, x) = (Random::new(21).normal(n * k), Random::new(22).normal(m * k));
    for block in [64, 1024] {
        let (mut packed, mut absmax) = (vec![0; n * k / 2], vec![0.0; n * k / block]);
        nf4::encoder(block).quantize(&w, &mut packed, BlockScales::Floats(&mut absmax)).unwrap();
        let codes = Codes::Table { bytes: &packed, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
        let matrix = Matrix { n, k, codes, scales: Scales::F32(&absmax), biases: None, block };
        let (mut ours, mut floats) = (vec![0.0; m * n], vec![0.0; m * n]);
        int8_matmul(&x[..], m, &matrix, Orientation::Transposed, &mut ours[..]).unwrap();
        matmul(&x[..], m, &matrix, Orientation::Transposed, &mut floats[..]).unwrap();
        let most = floats.iter().fold(0.0_f32, |most, y| most.max(y.abs()));
        let errors = ours.iter().zip(&floats).map(|(a, b)| (a - b).abs() / most);
        let worst = errors.clone().max_by(f32::total_cmp).unwrap();
        let mean_square = errors.map(|error| error * error).sum::<f32>() / ours.len() as f32;
        // Longer blocks have a larger absmax, and with it coarser integers.
        assert!(worst <= if block == 64 { 1e-2 } else { 1.5e-2 }, "{block}: {worst}");
        assert!(mean_square.sqrt() <= 4e-3, "{block}: {}", mean_square.sqrt());
        // It is not the float product under another name.
        assert!(worst > 1e-4, "{block}: {worst}");
    }
}

#[test]
fn the_result_of_groups_with_biases_is_near_that_of_floats() {
    let (n, k, m) = (128, 1024, 9);
    let (w, x) = (Random::new(21).normal(n * k), Random::new(22).normal(m * k));
    for (bits, group) in [(4, 32), (4, 64), (8, 64)] {
        let (mut bytes, mut scales, mut biases) =
            (vec![0; n * k * bits / 8], vec![0.0; n * k / group], vec![0.0; n * k / group]);
        let numbers = BlockScales::Biased(&mut scales[..], &mut biases[..]);
        affine::encoder(group, bits as u32).quantize(&w, &mut bytes, numbers).unwrap();
        let codes = Codes::Unsigned { bytes: &bytes, bits: bits as u32 };
        let (scales, biases) = (Scales::F32(&scales), Some(Scales::F32(&biases)));
        let matrix = Matrix { n, k, codes, scales, biases, block: group };
        let (mut ours, mut floats) = (vec![0.0; m * n], vec![0.0; m * n]);
        int8_matmul(&x[..], m, &matrix, Orientation::Transposed, &mut ours[..]).unwrap();
        matmul(&x[..], m, &matrix, Orientation::Transposed, &mut floats[..]).unwrap();
        let most = floats.iter().fold(0.0_f32, |most, y| most.max(y.abs()));
        let worst = ours.iter().zip(&floats).map(|(a, b)| (a - b).abs() / most).max_by(f32::total_cmp).unwrap();
        // The integers of the matrix are not rounded, those of the activations are.
        assert!((1e-4..1e-2).contains(&worst), "{bits} {group}: {worst}");
    }
}

#[test]
fn many_rows_and_threads_change_nothing() {
    let parts = Parts::new(96, 576, 64);
    let m = 1100;
    let x = Random::new(23).normal(m * 576);
    for matrix in parts.matrices() {
        let product = |count, x: &[f32], m| {
            threads::with_count(count, || {
                let mut out = vec![f32::NAN; m * 96];
                int8_matmul(x, m, &matrix, Orientation::Transposed, &mut out[..]).unwrap();
                out
            })
        };
        let all = product(1, &x, m);
        assert!(all == product(2, &x, m) && all == product(3, &x, m));
        // Each row is what it is alone.
        for i in [0, 503, 504, 1099] {
            assert!(all[i * 96..(i + 1) * 96] == product(2, &x[i * 576..(i + 1) * 576], 1));
        }
    }
}

#[test]
fn half_precision_is_rounded_once_and_bad_rows_stay_alone() {
    let parts = Parts::new(40, 256, 64);
    let matrices = parts.matrices();
    matrices.iter().for_each(check_rows);
}

fn check_rows(matrix: &Matrix) {
    let x: Vec<f32> = Random::new(24).normal(3 * 256).iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
    let product = |x: &[f32]| {
        let mut out = vec![0.0; 120];
        int8_matmul(x, 3, matrix, Orientation::Transposed, &mut out[..]).unwrap();
        out
    };
    let floats = product(&x);
    let narrow: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    let mut out = vec![bf16::ZERO; 120];
    int8_matmul(&narrow[..], 3, matrix, Orientation::Transposed, &mut out[..]).unwrap();
    assert!(out.iter().zip(&floats).all(|(y, float)| *y == bf16::from_f32(*float)));
    let narrow: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let widened: Vec<f32> = narrow.iter().map(|x| x.to_f32()).collect();
    let mut out = vec![f16::ZERO; 120];
    int8_matmul(&narrow[..], 3, matrix, Orientation::Transposed, &mut out[..]).unwrap();
    assert!(out.iter().zip(product(&widened)).all(|(y, float)| *y == f16::from_f32(float)));

    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = x.clone();
        x[256 + 7] = bad;
        let out = product(&x);
        assert!(out[..40] == floats[..40] && out[80..] == floats[80..]);
        assert!(out[40..80].iter().all(|y| y.is_nan()));
    }
}

/// 127 over the magnitude of such rows is no float.
#[test]
fn rows_of_tiny_activations_are_rounded_as_others_are() {
    let matrix = Matrix {
        n: 1,
        k: 4,
        codes: Codes::Signed { codes: &[127; 4] },
        scales: Scales::F32(&[1.0]),
        biases: None,
        block: 4,
    };
    for isa in Isa::available() {
        for tiny in [1e-30, 7.7e-34, 3e-37, 1e-37, 1e-38, 1e-39] {
            let (x, mut y) = ([tiny, 0.5 * tiny, -tiny, tiny], [0.0]);
            isa.with(|| int8_matmul(&x[..], 1, &matrix, Orientation::Transposed, &mut y[..])).expect("fits");
            let exact = 127.0 * x.iter().map(|x| f64::from(*x)).sum::<f64>();
            let bound = 508.0 * f64::from(tiny) * (1.0 / 254.0 + 1e-3);
            assert!((f64::from(y[0]) - exact).abs() <= bound, "{isa:?} {tiny}: {} for {exact}", y[0]);
        }
    }
}

#[test]
fn what_is_not_taken_is_named() {
    let parts = Parts::new(2, 64, 64);
    let (x, mut out) = ([0.0; 64], [0.0; 2]);
    let mut message = |matrix: &Matrix, orientation| {
        int8_matmul(&x[..], 1, matrix, orientation, &mut out[..]).map_err(|error| error.to_string()).unwrap_err()
    };
    let matrix = parts.matrix(parts.tables()[0]);
    assert_eq!(
        message(&matrix, Orientation::Plain),
        "int8 activations do not take the plain orientation\n\
         help: use `matmul`, which multiplies every matrix both ways round"
    );
    let biased = Matrix { biases: Some(matrix.scales), ..matrix };
    assert!(message(&biased, Orientation::Transposed).contains("do not take biases of a table\n"));
    let values = &nf4::CODEBOOK;
    for (codes, what) in [
        (Codes::Unsigned { bytes: &parts.bytes[..16], bits: 1 }, "integers of one bit"),
        (
            Codes::Table {
                bytes: &parts.bytes[..64],
                bits: 4,
                order: Order::LowFirst,
                values: &std::array::from_fn(|code| if code == 3 { f32::NAN } else { code as f32 }),
            },
            "tables with values that are not finite",
        ),
        (Codes::E4m3 { bytes: &parts.bytes }, "E4M3 codes"),
        (Codes::F16 { codes: &[half::f16::ZERO; 128] }, "half floats"),
        (Codes::Bytes { bytes: &parts.bytes, values: &[0.0; 256] }, "tables of 256 values"),
        (
            Codes::Table { bytes: &parts.bytes[..32], bits: 2, order: Order::LowFirst, values },
            "tables of fewer than 4 bits",
        ),
    ] {
        let text = message(&Matrix { codes, ..matrix }, Orientation::Transposed);
        assert!(text.starts_with(&format!("int8 activations do not take {what}\n")), "{text}");
    }
    let result = int8_matmul(&x[..63], 1, &matrix, Orientation::Transposed, &mut out[..]);
    assert!(matches!(result, Err(KernelError::Length { name: "x", expected: 64, actual: 63, .. })));
    let result = int8_matmul(&x[..], 1, &matrix, Orientation::Transposed, &mut out[..1]);
    assert!(matches!(result, Err(KernelError::Length { name: "out", expected: 2, actual: 1, .. })));
    let empty = Matrix { n: 2, k: 0, codes: Codes::Signed { codes: &[] }, scales: Scales::F32(&[]), ..matrix };
    int8_matmul(&[][..] as &[f32], 1, &empty, Orientation::Transposed, &mut out[..]).unwrap();
    assert_eq!(out, [0.0; 2]);
}
