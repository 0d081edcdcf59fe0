//! Codes of any table, by the definition.

use tacit_kernels::{BlockScales, Codes, Matrix, Order, Scales, code_bytes, dequantize, nearest::Table};

use crate::random::Random;

/// The code and the scale of each element and block, written as plainly as they can be.
fn by_definition(values: &[f32], x: &[f32], block: usize) -> (Vec<u8>, Vec<f32>) {
    let magnitude = |x: &[f32]| x.iter().filter(|x| x.is_finite()).fold(0.0_f32, |most, x| most.max(x.abs()));
    let mut sorted: Vec<usize> = (0..values.len()).filter(|&code| values[code].is_finite()).collect();
    sorted.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for x in x.chunks(block) {
        let scale = magnitude(x) / magnitude(values);
        scales.push(scale);
        for x in x {
            let scaled = x * (1.0 / scale.max(1e-38));
            let above = |pair: &&[usize]| scaled > f32::midpoint(values[pair[0]], values[pair[1]]);
            codes.push(sorted[sorted.windows(2).filter(above).count()] as u8);
        }
    }
    (codes, scales)
}

#[test]
fn codes_and_scales_are_those_of_the_definition_and_read_back_as_their_values() {
    let mut random = Random::new(7);
    for bits in [1, 2, 3, 4, 8] {
        let mut values = random.normal(1 << bits);
        if bits == 8 {
            [values[3], values[200], values[255]] = [f32::INFINITY, f32::NAN, f32::NEG_INFINITY];
        }
        let table = Table::new(&values).unwrap();
        for (elements, block) in [(1, 1), (7, 3), (64, 64), (1000, 64), (4099, 100), (200_000, 128)] {
            let mut x = random.normal(elements);
            x[elements / 2] = 0.0;
            let (expected, expected_scales) = by_definition(&values, &x, block);
            let mut codes = vec![0xaa; code_bytes(elements, bits)];
            let mut scales = vec![f32::NAN; elements.div_ceil(block)];
            table.encoder(block).quantize(&x, &mut codes, BlockScales::Floats(&mut scales)).unwrap();
            assert_eq!(scales, expected_scales, "{bits} bits, {elements} in blocks of {block}");
            let mut short = [0.0; 16];
            let mut long = [0.0; 256];
            let read = if bits == 8 {
                long.copy_from_slice(&values);
                Codes::Bytes { bytes: &codes, values: &long }
            } else {
                short[..values.len()].copy_from_slice(&values);
                Codes::Table { bytes: &codes, bits, order: Order::LowFirst, values: &short }
            };
            let matrix = Matrix { n: 1, k: elements, codes: read, scales: Scales::F32(&scales), biases: None, block };
            let mut out = vec![f32::NAN; elements];
            dequantize(&matrix, &mut out[..]).unwrap();
            for (at, (out, code)) in out.iter().zip(&expected).enumerate() {
                let value = values[usize::from(*code)] * scales[at / block];
                assert_eq!(out.to_bits(), value.to_bits(), "{bits} bits, element {at}");
            }
        }
    }
}

#[test]
fn an_element_that_is_not_finite_is_refused() {
    let table = Table::new(&[-1.0, 1.0]).unwrap();
    let refused = table.encoder(8).quantize(&[1.0, f32::NAN], &mut [0], BlockScales::Floats(&mut [0.0])).unwrap_err();
    assert!(refused.to_string().starts_with("element 1 is NaN"), "{refused}");
}
