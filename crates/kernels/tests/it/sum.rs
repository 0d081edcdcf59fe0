//! Sums of a matrix and a thin product, by pieces.

use half::{bf16, f16};
use tacit_kernels::{
    Base, BlockScales, Codes, Floats, KernelError, Matrix, Order, Scales, Sum, dequantize, half_floats, nf4, nvfp4,
    threads,
};

fn numbers(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 + seed) * 0.731).sin()).collect()
}

/// Rows that straddle blocks, pieces that straddle rows.
const N: usize = 37;
const K: usize = 301;

struct Case {
    codes: Vec<u8>,
    scales: Vec<f32>,
    left: Vec<f32>,
    right: Vec<f32>,
    factors: Vec<f32>,
}

fn case(rank: usize) -> Case {
    let x = numbers(N * K, 1.0);
    let (mut codes, mut scales) = (vec![0; (N * K).div_ceil(2)], vec![0.0; (N * K).div_ceil(64)]);
    nf4::encoder(64).quantize(&x, &mut codes, BlockScales::Floats(&mut scales)).expect("quantizes");
    Case { codes, scales, left: numbers(N * rank, 2.0), right: numbers(rank * K, 3.0), factors: numbers(N, 4.0) }
}

impl Case {
    fn matrix(&self) -> Matrix<'_> {
        let codes = Codes::Table { bytes: &self.codes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
        Matrix { n: N, k: K, codes, scales: Scales::F32(&self.scales), biases: None, block: 64 }
    }

    fn sum<'a>(&'a self, base: Base<'a>, rank: usize) -> Sum<'a> {
        Sum { n: N, k: K, base, rank, left: &self.left, right: &self.right, factors: Some(&self.factors) }
    }
}

fn pieces(sum: &Sum, each: usize) -> Vec<f32> {
    let mut out = vec![0.0; N * K];
    sum.for_each_piece(each, out.chunks_mut(each), &|piece, out: &mut [f32]| {
        out.copy_from_slice(piece);
        Ok(())
    })
    .expect("fits");
    out
}

#[test]
fn the_sum_of_each_base_in_pieces_of_any_length() {
    for rank in [0, 1, 3, 4, 9] {
        let case = case(rank);
        let mut base = vec![0.0; N * K];
        dequantize(&case.matrix(), &mut base[..]).expect("fits");
        let expected: Vec<f32> = (0..N * K)
            .map(|e| {
                let (i, j) = (e / K, e % K);
                let product = (0..rank).fold(0.0, |sum, r| sum + case.left[i * rank + r] * case.right[r * K + j]);
                (base[e] + product) * case.factors[i]
            })
            .collect();
        let halves: Vec<bf16> = base.iter().map(|x| bf16::from_f32(*x)).collect();
        for each in [64, 1000, 1 << 20] {
            let whole = threads::with_count(1, || pieces(&case.sum(Base::Stored(case.matrix()), rank), each));
            assert!(whole == expected, "rank {rank}, pieces of {each}");
            let dense = Base::Dense(Floats::F32(&base));
            assert!(threads::with_count(3, || pieces(&case.sum(dense, rank), each)) == expected);
        }
        let near = pieces(&case.sum(Base::Dense(Floats::Bf16(&halves)), rank), 4096);
        assert!(near.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-2), "rank {rank}");
        let (mut norms, mut most) = (vec![0.0; N], vec![0.0; N]);
        case.sum(Base::Stored(case.matrix()), rank).norms(&mut norms).expect("fits");
        case.sum(Base::Stored(case.matrix()), rank).absmax(&mut most).expect("fits");
        for (i, row) in expected.chunks(K).enumerate() {
            let norm = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            assert!((f64::from(norms[i]) - norm).abs() <= 1e-6 * norm, "row {i}");
            assert!(row.iter().fold(0.0_f32, |most, x| most.max(x.abs())).to_bits() == most[i].to_bits());
        }
    }
}

#[test]
fn what_no_code_holds_is_counted_through_the_whole_sum() {
    let mut case = case(2);
    case.left[2 * 20] = f32::INFINITY;
    let sum = case.sum(Base::Stored(case.matrix()), 2);
    let (mut codes, mut scales) = (vec![0; (N * K).div_ceil(2)], vec![0.0; (N * K).div_ceil(64)]);
    let each = 640;
    let found = sum.for_each_piece(each, codes.chunks_mut(each / 2).zip(scales.chunks_mut(each / 64)), &|x, (c, s)| {
        nf4::encoder(64).quantize(x, c, BlockScales::Floats(s))
    });
    assert!(matches!(found, Err(KernelError::NonFinite { index, .. }) if index == 20 * K), "{found:?}");
}

#[test]
fn what_a_half_is_too_small_for_is_counted_through_the_whole_sum() {
    let mut case = case(0);
    case.factors[20] = 1e6;
    let sum = case.sum(Base::Stored(case.matrix()), 0);
    let mut codes = vec![f16::ZERO; N * K];
    let found = sum.for_each_piece(640, codes.chunks_mut(640), &|x, codes| half_floats::to_f16(x, codes));
    let row = 20 * K..21 * K;
    assert!(matches!(found, Err(KernelError::TooLarge { index, .. }) if row.contains(&index)), "{found:?}");
}

/// A global scale that is NaN fails every piece; what is named is the element that made it so.
#[test]
fn a_number_that_no_code_holds_is_named_before_the_scale_of_all() {
    let mut case = case(2);
    case.left[2 * 20] = f32::NAN;
    let sum = case.sum(Base::Stored(case.matrix()), 2);
    let (mut codes, mut scales) = (vec![0; (N * K).div_ceil(2)], vec![0; (N * K).div_ceil(16)]);
    let parts = codes.chunks_mut(320).zip(scales.chunks_mut(40));
    let found = sum
        .for_each_piece(640, parts, &|x, (c, s)| nvfp4::encoder(Some(f32::NAN)).quantize(x, c, BlockScales::Bytes(s)));
    assert!(matches!(found, Err(KernelError::NonFinite { index, .. }) if index == 20 * K), "{found:?}");
}

#[test]
fn lengths_that_do_not_fit() {
    let case = case(2);
    let short = |change: &dyn Fn(&mut Sum)| {
        let mut sum = case.sum(Base::Stored(case.matrix()), 2);
        change(&mut sum);
        sum.norms(&mut [0.0; N])
    };
    let name = |found: Result<(), KernelError>| match found {
        Err(KernelError::Length { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(name(short(&|sum| sum.left = &sum.left[1..])), "left");
    assert_eq!(name(short(&|sum| sum.right = &sum.right[1..])), "right");
    assert_eq!(name(short(&|sum| sum.factors = Some(&[]))), "factors");
    assert_eq!(name(short(&|sum| sum.base = Base::Dense(Floats::F32(&[])))), "base");
    assert_eq!(name(case.sum(Base::Stored(case.matrix()), 2).norms(&mut [])), "out");
}
