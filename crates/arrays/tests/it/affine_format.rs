//! The bytes of the affine format: MLX's own, and the definition's.

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::AffineArray;
use tacit_arrays::format::{Affine, Parts};
use tacit_conformance::oracle::floats;
use tacit_core::{Aval, ImplicitArray, Value};

use crate::operands::normal;

fn children(array: &AffineArray) -> Vec<Array> {
    array.children().into_iter().map(|(_, child)| child.dense().expect("dense")).collect()
}

/// The definition, group by group: packed words of one row, scales and biases.
fn defined(row: &[f32], group: usize, bits: u32) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    let levels = (1u32 << bits) - 1;
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for group in row.chunks(group) {
        let (least, most) = group.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), &x| (a.min(x), b.max(x)));
        let negative = least.abs() > most.abs();
        let step = ((most - least) / levels as f32).max(1e-7);
        let mut scale = if negative { step } else { -step };
        let edge = if negative { least } else { most };
        let steps = (edge / scale).round_ties_even();
        let bias = if steps == 0.0 { 0.0 } else { edge };
        if steps != 0.0 {
            scale = edge / steps;
        }
        codes.extend(group.iter().map(|x| ((x - bias) / scale).round_ties_even().clamp(0.0, levels as f32) as u32));
        scales.push(scale);
        biases.push(bias);
    }
    let mut words = vec![0u32; codes.len() * bits as usize / 32];
    for (i, code) in codes.iter().enumerate() {
        for bit in 0..bits as usize {
            let at = i * bits as usize + bit;
            words[at / 32] |= (code >> bit & 1) << (at % 32);
        }
    }
    (words, scales, biases)
}

#[test]
fn words_scales_and_biases_are_the_definition_s_bit_for_bit() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            let negative = normal(2, &[1, 256]).abs().expect("abs").negative().expect("negative");
            for x in [normal(1, &[1, 256]), negative, ops::zeros::<f32>(&[1, 256]).expect("zeros")] {
                let array = AffineArray::quantize(&x, Affine { bits: bits as u32, group: group_size as usize })
                    .expect("quantizes");
                let [packed, scales, biases] = children(&array).try_into().expect("three children");
                let row = floats(&x).expect("floats");
                let expected = defined(&row, group_size as usize, bits as u32);
                assert_eq!(packed.try_as_slice::<u32>().expect("words"), expected.0, "{bits} bits, {group_size}");
                assert_eq!(floats(&scales).expect("floats"), expected.1, "{bits} bits, {group_size}");
                assert_eq!(floats(&biases).expect("floats"), expected.2, "{bits} bits, {group_size}");
            }
        }
    }
}

#[test]
fn bytes_are_those_of_mlx_and_so_is_the_array_of_its_parts() {
    for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
        for bits in [2, 3, 4, 5, 6, 8] {
            for group_size in [32, 64, 128] {
                let x = normal(1, &[2, 3, 256]).as_dtype(dtype).expect("a float type");
                let array = AffineArray::quantize(&x, Affine { bits: bits as u32, group: group_size as usize })
                    .expect("quantizes");
                let (packed, scales, biases) = ops::quantize(&x, group_size, bits).expect("mlx quantizes");
                // The value is computed in `f32` and rounded once.
                let [wide, offsets] = [&scales, &biases].map(|child| child.as_dtype(Dtype::Float32).expect("f32"));
                let dense = ops::dequantize(&packed, &wide, &offsets, group_size, bits).expect("mlx dequantizes");
                let dense = dense.as_dtype(dtype).expect("a float type");
                for (found, expected) in children(&array).iter().zip([&packed, &scales, &biases]) {
                    assert!(found.eq_exact(expected).expect("evaluates"));
                }
                let read = AffineArray::from_parts(
                    Parts { biases: Some(biases), ..Parts::new(packed, scales) },
                    Affine { bits: bits as u32, group: group_size as usize },
                    Aval::from(&x),
                )
                .expect("fits");
                for array in [array, read] {
                    let built = Value::from(array).dense().expect("builds");
                    assert!(built.eq_exact(&dense).expect("evaluates"));
                }
            }
        }
    }
}
