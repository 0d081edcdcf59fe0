//! Codes, absmax and values, to the bit.

use tacit_kernels::{BlockScales, Codes, Isa, Matrix, Order, Scales, nf4, threads};

use crate::random::Random;

pub(crate) const BLOCKS: [usize; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];

pub(crate) fn quantize(isa: Isa, x: &[f32], block: usize) -> (Vec<u8>, Vec<f32>) {
    let mut packed = vec![0xaa; x.len().div_ceil(2)];
    let mut absmax = vec![f32::NAN; x.len().div_ceil(block)];
    isa.with(|| nf4::encoder(block).quantize(x, &mut packed, BlockScales::Floats(&mut absmax))).unwrap();
    (packed, absmax)
}

fn dequantize(isa: Isa, packed: &[u8], absmax: &[f32], block: usize, n: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; n];
    let codes = Codes::Table { bytes: packed, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
    let matrix = Matrix { n: 1, k: n, codes, scales: Scales::F32(absmax), biases: None, block };
    isa.with(|| tacit_kernels::dequantize(&matrix, &mut out[..])).unwrap();
    out
}

/// The definition, written as plainly as it can be.
fn by_definition(x: &[f32], block: usize) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let (mut codes, mut absmax, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for block in x.chunks(block) {
        let most = block.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
        let scale = 1.0 / most.max(1e-38);
        for value in block {
            let scaled = (value * scale).clamp(-1.0, 1.0);
            let code = nf4::THRESHOLDS.iter().filter(|threshold| scaled > **threshold).count();
            codes.push(code as u8);
            values.push(nf4::CODEBOOK[code] * most);
        }
        absmax.push(most);
    }
    codes.resize(codes.len().next_multiple_of(2), 7);
    (codes.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect(), absmax, values)
}

#[test]
fn every_threshold_takes_the_lower_code() {
    // Absmax 1 makes the scale 1, so that the values are the scaled ones.
    let mut x = vec![1.0];
    let mut expected = vec![15];
    for (i, threshold) in nf4::THRESHOLDS.into_iter().enumerate() {
        x.extend([threshold.next_down(), threshold, threshold.next_up()]);
        expected.extend([i as u8, i as u8, i as u8 + 1]);
    }
    x.extend([-1.0, 0.0, -0.0, f32::MIN_POSITIVE, -f32::MIN_POSITIVE]);
    expected.extend([0, 7, 7, 7, 7]);
    x.resize(64, 0.0);
    expected.resize(64, 7);
    for isa in Isa::available() {
        let (packed, absmax) = quantize(isa, &x, 64);
        let codes: Vec<u8> = packed.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect();
        assert_eq!(codes, expected, "{isa:?}");
        assert_eq!(absmax, [1.0], "{isa:?}");
    }
}

#[test]
fn codebook_values_come_back_exactly() {
    for isa in Isa::available() {
        for absmax in [1.0_f32, 0.5, 1024.0] {
            let x: Vec<f32> = (0..128).map(|i| nf4::CODEBOOK[i * 7 % 16] * absmax).collect();
            let (packed, scales) = quantize(isa, &x, 64);
            assert_eq!(dequantize(isa, &packed, &scales, 64, x.len()), x, "{isa:?}");
        }
    }
}

#[test]
fn all_blocks_and_ragged_tails_follow_the_definition() {
    let mut random = Random::new(1);
    for block in BLOCKS {
        for len in [0, 1, 2, 15, 17, block - 1, block, block + 1, 3 * block + 31, 70_000] {
            let x = random.normal(len);
            let (packed, absmax, values) = by_definition(&x, block);
            for isa in Isa::available() {
                let ours = quantize(isa, &x, block);
                assert_eq!(ours.1, absmax, "{isa:?} {block} {len}");
                assert!(ours.0 == packed, "{isa:?} {block} {len}");
                assert!(dequantize(isa, &packed, &absmax, block, len) == values, "{isa:?} {block} {len}");
            }
        }
    }
}

#[test]
fn extreme_blocks_follow_the_definition() {
    let mut random = Random::new(2);
    let base = random.normal(64);
    for factor in [0.0, 1e-45, 1e-40, 1e-38, 1e-30, 1e30, f32::MAX / 8.0] {
        let mut x: Vec<f32> = base.iter().map(|v| v * factor).collect();
        x[5] = -x[5].abs();
        let (packed, absmax, values) = by_definition(&x, 32);
        for isa in Isa::available() {
            assert_eq!(quantize(isa, &x, 32), (packed.clone(), absmax.clone()), "{isa:?} {factor}");
            assert_eq!(dequantize(isa, &packed, &absmax, 32, 64), values, "{isa:?} {factor}");
        }
    }
    for value in [3.5, -3.5] {
        let x = [value; 96];
        let (packed, absmax) = quantize(Isa::detect(), &x, 64);
        assert_eq!(dequantize(Isa::detect(), &packed, &absmax, 64, 96), x);
    }
}

#[test]
fn errors_on_normal_data_are_those_of_bitsandbytes() {
    let means = [0.067_746, 0.072_798, 0.076_831, 0.080_337, 0.083_547, 0.086_610, 0.089_592, 0.092_547];
    let x = Random::new(3).normal(1 << 20);
    for (block, mean) in BLOCKS.into_iter().zip(means) {
        let (packed, absmax) = quantize(Isa::detect(), &x, block);
        let y = dequantize(Isa::detect(), &packed, &absmax, block, x.len());
        let total: f64 = x.iter().zip(&y).map(|(x, y)| f64::from((x - y).abs())).sum();
        let ours = total / x.len() as f64;
        // sigma is 7e-5 at block 64 and falls with the number of independent blocks.
        let sigma = 7e-5 * (block as f64 / 64.0).sqrt().max(1.0);
        assert!((ours - mean).abs() < 7.0 * sigma, "block {block}: {ours} against {mean}");
        if block == 64 {
            let relative = x.iter().zip(&y).map(|(x, y)| f64::from(((x - y) / x).abs())).sum::<f64>();
            assert!((relative / x.len() as f64 - 0.203_339).abs() < 7.0 * 3e-4);
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let x = Random::new(5).normal(300_001);
    let one = threads::with_count(1, || quantize(Isa::detect(), &x, 128));
    for threads in [2, 3, 8] {
        let many = threads::with_count(threads, || {
            assert_eq!(threads::count(), threads);
            quantize(Isa::detect(), &x, 128)
        });
        assert_eq!(one, many);
        let decode = |count| threads::with_count(count, || dequantize(Isa::detect(), &one.0, &one.1, 128, x.len()));
        assert_eq!(decode(1), decode(threads));
    }
}
