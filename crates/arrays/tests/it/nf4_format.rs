//! The bytes of NF4: bitsandbytes', and the definition's.

use std::path::Path;

use mlx_rs::{Array, Dtype};
use tacit_arrays::Nf4Array;
use tacit_arrays::format::Parts;
use tacit_conformance::oracle::floats;
use tacit_core::{Aval, Value};

use crate::operands::normal;

#[allow(clippy::excessive_precision, reason = "as the definition prints them")]
pub(crate) const CODEBOOK: [f32; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

#[allow(clippy::excessive_precision, reason = "as the definition prints them")]
const THRESHOLDS: [f32; 15] = [
    -0.848_096_400_499_343_9,
    -0.610_632_926_225_662_2,
    -0.459_995_269_775_390_6,
    -0.339_679_434_895_515_44,
    -0.234_607_405_960_559_84,
    -0.137_911_733_239_889_14,
    -0.045_525_018_125_772_476,
    0.039_790_149_778_127_67,
    0.120_255_250_483_751_3,
    0.203_521_251_678_466_8,
    0.292_013_771_831_989_3,
    0.389_312_535_524_368_3,
    0.501_663_416_624_069_2,
    0.642_786_920_070_648_2,
    0.861_478_417_811_801_1,
];

/// The definition, element by element: packed bytes and scales.
fn defined(x: &[f32], block: usize) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in x.chunks(block) {
        let absmax = block.iter().fold(0f32, |most, x| most.max(x.abs()));
        let reciprocal = 1.0 / absmax.max(1e-38);
        scales.push(absmax);
        for x in block {
            let scaled = (x * reciprocal).clamp(-1.0, 1.0);
            codes.push(THRESHOLDS.iter().filter(|&&threshold| scaled > threshold).count() as u8);
        }
    }
    if codes.len() % 2 == 1 {
        codes.push(7);
    }
    (codes.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect(), scales)
}

fn parts(array: &Nf4Array) -> (Vec<u8>, Vec<f32>) {
    let absmax = array.scales().expect("scales").dense().expect("dense");
    (array.codes().try_as_slice::<u8>().expect("bytes").to_vec(), floats(&absmax).expect("scales"))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[track_caller]
fn is_as_defined(x: &[f32], block: usize) {
    let array = Nf4Array::quantize(&Array::from_slice(x, &[x.len() as i32]), block).expect("quantizes");
    let ((packed, absmax), (expected_packed, expected_absmax)) = (parts(&array), defined(x, block));
    assert_eq!(packed, expected_packed);
    assert_eq!(bits(&absmax), bits(&expected_absmax));
}

#[test]
fn codes_and_scales_are_the_definition_s_bit_for_bit() {
    for block in [32, 64, 128, 256, 512, 1024, 2048, 4096] {
        for size in [1, 2, 31, 32, 33, 63, 64, 100, 4095, 4096, 4097, 10_001] {
            is_as_defined(&floats(&normal(size as u64, &[size])).expect("floats"), block);
        }
    }
}

#[test]
fn around_every_threshold() {
    let mut x = vec![1.0f32];
    for threshold in THRESHOLDS {
        x.extend([threshold.next_down(), threshold, threshold.next_up()]);
    }
    is_as_defined(&x, 64);
    // A scale that is no power of two.
    let scaled: Vec<f32> = x.iter().map(|x| x * 0.37).collect();
    is_as_defined(&scaled, 64);
}

#[test]
fn zeros_tiny_and_huge_numbers() {
    is_as_defined(&[0.0; 65], 64);
    is_as_defined(&[-0.0; 3], 32);
    is_as_defined(&[1e-40, -1e-39, 0.0, 1e-45], 32);
    is_as_defined(&[1e-38, -5e-39], 32);
    is_as_defined(&[f32::MAX, -f32::MAX, 1.0, f32::MIN_POSITIVE], 32);
}

#[test]
fn half_types_are_quantized_as_their_f32_values() {
    for dtype in [Dtype::Bfloat16, Dtype::Float16] {
        let x = normal(1, &[5, 77]).as_dtype(dtype).expect("a float type");
        let array = Nf4Array::quantize(&x, 64).expect("quantizes");
        assert_eq!(parts(&array), defined(&floats(&x).expect("floats"), 64));
        assert_eq!(Value::from(array).dense().expect("builds").dtype(), dtype);
    }
}

#[test]
fn a_view_is_quantized_in_its_own_order() {
    let x = normal(1, &[5, 77]).t();
    let array = Nf4Array::quantize(&x, 64).expect("quantizes");
    assert_eq!(parts(&array), defined(&floats(&x).expect("floats"), 64));
}

#[test]
fn dequantizing_is_codebook_times_scale_bit_for_bit() {
    let x = floats(&normal(1, &[1001])).expect("floats");
    let (packed, absmax) = defined(&x, 64);
    let expected: Vec<f32> = (0..x.len())
        .map(|i| {
            CODEBOOK[usize::from(if i % 2 == 0 { packed[i / 2] >> 4 } else { packed[i / 2] & 15 })] * absmax[i / 64]
        })
        .collect();
    let array = Value::from(Nf4Array::quantize(&Array::from_slice(&x, &[1001]), 64).expect("quantizes"));
    assert_eq!(bits(&floats(&array.dense().expect("builds")).expect("floats")), bits(&expected));
}

#[test]
fn bytes_are_those_of_bitsandbytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nf4_golden.safetensors");
    let golden = Array::load_safetensors(&path).expect("the file that nf4_golden.py wrote");
    let mut compared = 0;
    for (key, packed) in &golden {
        let Some((name, block)) = key.strip_suffix(".packed").and_then(|case| case.split_once('.')) else { continue };
        let x = &golden[&format!("{name}.x")];
        let block_size: usize = block.parse().expect("a block size");
        let array = Nf4Array::quantize(x, block_size).expect("quantizes");
        let (found, absmax) = parts(&array);
        assert_eq!(found, packed.as_slice::<u8>(), "{key}");
        let expected = &golden[&format!("{name}.{block}.absmax")];
        assert_eq!(bits(&absmax), bits(expected.as_slice::<f32>()), "{name}.{block}.absmax");
        if let Some(dequantized) = golden.get(&format!("{name}.{block}.dequantized")) {
            let aval = Aval::from(x);
            let read =
                Nf4Array::from_parts(Parts::new(packed.clone(), expected.clone()), block_size, aval).expect("fits");
            let dense = Value::from(read).dense().expect("builds");
            assert_eq!(bits(&floats(&dense).expect("floats")), bits(&floats(dequantized).expect("floats")), "{key}");
        }
        compared += 1;
    }
    assert_eq!(compared, 12);
}
