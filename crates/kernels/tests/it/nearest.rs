//! Codes of any table, by the definition.

use tacit_kernels::{
    BlockScales, Codes, E2M1, Encoder, Matrix, Order, Scales, code_bytes, dequantize, dynamic8, nearest::Table,
};

use crate::random::Random;

/// The least and the greatest finite number and zero.
fn ends(x: &[f32]) -> (f32, f32) {
    let finite = x.iter().filter(|x| x.is_finite());
    finite.fold((0.0, 0.0), |(low, high): (f32, f32), x| (low.min(*x), high.max(*x)))
}

/// The scale of a block, and that which reaches both of its ends.
fn scales_of(values: &[f32], x: &[f32]) -> [f32; 2] {
    let ((least, greatest), (low, high)) = (ends(values), ends(x));
    let own = high.max(-low) / greatest.max(-least);
    [own, if least < 0.0 && greatest > 0.0 { (high / greatest).max(low / least) } else { own }]
}

/// The code and the scale of each element and block, written as plainly as they can be.
fn by_definition(values: &[f32], x: &[f32], block: usize, reaches: bool) -> (Vec<u8>, Vec<f32>) {
    let mut sorted: Vec<usize> = (0..values.len()).filter(|&code| values[code].is_finite()).collect();
    sorted.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for x in x.chunks(block) {
        let scale = scales_of(values, x)[usize::from(reaches)];
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
            for (table, reaches) in [(table.clone(), false), (table.clone().reaching(), true)] {
                let (expected, expected_scales) = by_definition(&values, &x, block, reaches);
                let mut codes = vec![0xaa; code_bytes(elements, bits)];
                let mut scales = vec![f32::NAN; elements.div_ceil(block)];
                table.encoder(block).quantize(&x, &mut codes, BlockScales::Floats(&mut scales)).unwrap();
                assert_eq!(scales, expected_scales, "{bits} bits, {elements} in blocks of {block}, {reaches}");
                let mut short = [0.0; 16];
                let mut long = [0.0; 256];
                let read = if bits == 8 {
                    long.copy_from_slice(&values);
                    Codes::Bytes { bytes: &codes, values: &long }
                } else {
                    short[..values.len()].copy_from_slice(&values);
                    Codes::Table { bytes: &codes, bits, order: Order::LowFirst, values: &short }
                };
                let matrix =
                    Matrix { n: 1, k: elements, codes: read, scales: Scales::F32(&scales), biases: None, block };
                let mut out = vec![f32::NAN; elements];
                dequantize(&matrix, &mut out[..]).unwrap();
                for (at, (out, code)) in out.iter().zip(&expected).enumerate() {
                    let value = values[usize::from(*code)] * scales[at / block];
                    assert_eq!(out.to_bits(), value.to_bits(), "{bits} bits, element {at}");
                }
            }
        }
    }
}

/// But for the rounding of a scale, of what is divided by it and of what is read.
#[test]
fn by_scales_that_reach_nothing_is_cut_off_and_one_end_of_each_block_stays() {
    let mut random = Random::new(8);
    let tables: [&[f32]; 3] = [&dynamic8::map()[..], &[-0.75, -0.1, 0.0, 1.0], &[-3.0, -1.0, 0.5, 2.9]];
    for values in tables {
        let (bits, table) = (values.len().ilog2(), Table::new(values).unwrap());
        let (least, greatest) = ends(values);
        let [own, reaching] = [table.clone(), table.reaching()].map(|table| table.encoder(64));
        let mut alike = 0;
        for _ in 0..200 {
            let x = random.normal(64);
            let quantized = |encoder: &Encoder| {
                let (mut codes, mut scales) = (vec![0; code_bytes(64, bits)], [0.0]);
                encoder.quantize(&x, &mut codes, BlockScales::Floats(&mut scales)).unwrap();
                (codes, scales[0])
            };
            let (codes, scale) = quantized(&reaching);
            let mut stays = false;
            for (at, x) in x.iter().enumerate() {
                let bit = at * bits as usize;
                let value = values[usize::from(codes[bit / 8] >> (bit % 8)) & (values.len() - 1)];
                let (units, slack) = (x / scale, 4.0 * f32::EPSILON * greatest);
                assert!((least - slack..=greatest + slack).contains(&units), "{x} by {scale}");
                let near = values.iter().map(|value| (value - units).abs()).fold(f32::INFINITY, f32::min);
                assert!((value - units).abs() <= near + slack, "{x} by {scale} is {value}");
                stays |= [least, greatest].contains(&value) && (value * scale - x).abs() <= f32::EPSILON * x.abs();
            }
            assert!(stays, "{scale}");
            let (low, high) = ends(&x);
            let (own_codes, own_scale) = quantized(&own);
            if low >= least * own_scale && high <= greatest * own_scale {
                assert_eq!((codes, scale), (own_codes, own_scale));
                alike += 1;
            }
        }
        assert!((5..195).contains(&alike), "of {alike} of 200 blocks nothing is cut off");
    }
}

#[test]
fn what_rounds_to_zero_takes_the_positive_one_of_two_zeros() {
    let (mut codes, mut scales) = ([0xaa; 4], [0.0]);
    let x = [6.0, 0.0, -0.0, 0.1, -0.1, -0.5, 0.5, -6.0];
    let table = Table::new(&E2M1).unwrap();
    table.encoder(8).quantize(&x, &mut codes, BlockScales::Floats(&mut scales)).unwrap();
    assert_eq!((codes, scales), ([0x07, 0x00, 0x90, 0xf1], [1.0]));
    // A single zero is chosen whatever its sign is.
    let table = Table::new(&[-1.0, -0.0, 1.0, 2.0]).unwrap();
    assert_eq!((table.by_rank(), table.thresholds()), (&[0, 1, 2, 3][..], &[-0.5, 0.5, 1.5][..]));
}

#[test]
fn an_element_that_is_not_finite_is_refused() {
    let table = Table::new(&[-1.0, 1.0]).unwrap();
    let refused = table.encoder(8).quantize(&[1.0, f32::NAN], &mut [0], BlockScales::Floats(&mut [0.0])).unwrap_err();
    assert!(refused.to_string().starts_with("element 1 is NaN"), "{refused}");
}
