//! Codes are the same on every instruction set, and those of quotients where they are reciprocals' products.

use tacit_kernels::{
    BlockScales, E2M1, Isa, ScaleRule, affine, binary, dynamic8, fp4, int8, mx, nearest::Table, nf4, nvfp4, symmetric,
    ternary,
};

use crate::random::Random;

/// All that a format makes of elements.
type Made = (Vec<u8>, Vec<f32>, Vec<f32>, Vec<u8>);

/// Codes into codes, scales, biases, and bytes beside them.
type Run<'a> = dyn Fn(&mut [u8], &mut [f32], &mut [f32], &mut [u8]) + 'a;

/// What each format makes of so many elements in blocks of `block`.
fn formats(x: &[f32], block: usize) -> Vec<(String, Made)> {
    let elements = x.len();
    let (mut random, mut all) = (Random::new(elements as u64), Vec::new());
    let mut add = |name: &str, bits: usize, run: &Run| {
        let zeros = |len: usize| vec![0.0; len];
        let blocks = elements.div_ceil(block);
        let mut made = (vec![0; (elements * bits).div_ceil(8)], zeros(blocks), zeros(blocks), vec![0; blocks]);
        run(&mut made.0, &mut made.1, &mut made.2, &mut made.3);
        all.push((name.to_owned(), made));
    };
    if block.is_power_of_two() && block >= 32 {
        add("nf4", 4, &|codes, scales, _, _| {
            nf4::encoder(block).quantize(x, codes, BlockScales::Floats(scales)).unwrap();
        });
        add("fp4", 4, &|codes, scales, _, _| {
            fp4::encoder(block).quantize(x, codes, BlockScales::Floats(scales)).unwrap();
        });
        add("dynamic8", 8, &|codes, scales, _, _| {
            dynamic8::encoder(block).quantize(x, codes, BlockScales::Floats(scales)).unwrap();
        });
    }
    if block == 32 {
        for rule in [ScaleRule::Ceil, ScaleRule::Round, ScaleRule::Floor] {
            add("mxfp4", 4, &|codes, _, _, bytes| {
                mx::mxfp4(rule).quantize(x, codes, BlockScales::Bytes(bytes)).unwrap();
            });
            add("mxfp8", 8, &|codes, _, _, bytes| {
                mx::mxfp8(rule).quantize(x, codes, BlockScales::Bytes(bytes)).unwrap();
            });
        }
    }
    if block == 16 {
        for global in [None, Some(7.5)] {
            add("nvfp4", 4, &|codes, _, _, bytes| {
                nvfp4::encoder(global).quantize(x, codes, BlockScales::Bytes(bytes)).unwrap();
            });
        }
    }
    add("int8", 8, &|codes, scales, _, _| {
        int8::encoder(block).quantize(x, codes, BlockScales::Floats(scales)).unwrap();
    });
    add("ternary", 2, &|codes, scales, _, _| {
        ternary::encoder(block).quantize(x, codes, BlockScales::Floats(scales)).unwrap();
    });
    add("binary", 1, &|codes, scales, _, _| {
        binary::encoder(block).quantize(x, codes, BlockScales::Floats(scales)).unwrap();
    });
    for bits in [1, 2, 3, 4, 8] {
        let values = random.normal(1 << bits);
        let table = Table::new(&values).unwrap();
        add("table", bits, &|codes, scales, _, _| {
            table.encoder(block).quantize(x, codes, BlockScales::Floats(scales)).unwrap();
        });
        add("table that reaches", bits, &|codes, scales, _, _| {
            table.clone().reaching().encoder(block).quantize(x, codes, BlockScales::Floats(scales)).unwrap();
        });
        let given = vec![0.3; elements.div_ceil(block)];
        add("table by scales", bits, &|codes, _, _, _| {
            table.encoder(block).quantize_by(x, BlockScales::Floats(&given), codes).unwrap();
        });
    }
    for bits in 2..=8 {
        let encoder = symmetric::encoder(block, bits as u32);
        add("symmetric", bits, &|codes, scales, _, _| {
            encoder.quantize(x, codes, BlockScales::Floats(scales)).unwrap();
        });
        let given: Vec<f32> = (0..elements.div_ceil(block)).map(|at| if at % 2 == 0 { 0.3 } else { -0.3 }).collect();
        add("symmetric by scales", bits, &|codes, _, _, _| {
            encoder.quantize_by(x, BlockScales::Floats(&given), codes).unwrap();
        });
    }
    let table = Table::new(&E2M1).unwrap();
    add("E2M1", 4, &|codes, scales, _, _| {
        table.encoder(block).quantize(x, codes, BlockScales::Floats(scales)).unwrap();
    });
    if elements.is_multiple_of(block) {
        for bits in 1..=8 {
            add("affine", bits, &|codes, scales, biases, _| {
                affine::encoder(block, bits as u32).quantize(x, codes, BlockScales::Biased(scales, biases)).unwrap();
            });
        }
    }
    all
}

#[test]
fn every_instruction_set_makes_the_same_codes() {
    let mut random = Random::new(11);
    for (elements, block) in [(1, 1), (37, 5), (64, 32), (100, 16), (300, 32), (640, 64), (1000, 100), (40_000, 128)] {
        for factor in [1.0, 1e-42, 1e-20, 1e30] {
            let mut x: Vec<f32> = random.normal(elements).into_iter().map(|x| x * factor).collect();
            (x[0], x[elements / 2]) = (0.0, -0.0);
            let expected = Isa::Scalar.with(|| formats(&x, block));
            for isa in Isa::available() {
                for ((name, found), (_, expected)) in isa.with(|| formats(&x, block)).iter().zip(&expected) {
                    assert!(found == expected, "{isa:?}, {name}: {elements} in blocks of {block}, {factor}");
                }
            }
        }
    }
}

#[test]
fn affine_codes_are_those_of_quotients_to_the_last_tie() {
    let mut random = Random::new(12);
    for bits in [2, 4, 8] {
        let top = ((1_u32 << bits) - 1) as f32;
        for scale in [0.1, -0.3, 1.0 / 3.0, 7e-8, 0.0, 1e-38, -1e-42, 3e38, f32::INFINITY] {
            for bias in [0.0, 0.7, -1e-3, 1e30] {
                // About halfway between two codes, and anywhere.
                let half = |i: usize| ((i % 300) as f32 - 0.5) * scale + bias;
                let mut x: Vec<f32> = (0..1200).map(half).collect();
                x.iter_mut().skip(1).step_by(3).for_each(|x| *x = x.next_up());
                x.iter_mut().skip(2).step_by(3).for_each(|x| *x = x.next_down());
                x.extend(random.normal(336));
                x.iter_mut().filter(|x| !x.is_finite()).for_each(|x| *x = 1.0);
                let code = |x: &f32| ((x - bias) / scale).clamp(0.0, top).round_ties_even() as u8;
                let expected: Vec<u8> = x.iter().map(code).collect();
                for isa in Isa::available() {
                    let mut codes = vec![0; x.len() * bits as usize / 8];
                    let numbers = [vec![scale; x.len() / 64], vec![bias; x.len() / 64]];
                    isa.with(|| {
                        affine::encoder(64, bits).quantize_by(
                            &x,
                            BlockScales::Biased(&numbers[0], &numbers[1]),
                            &mut codes,
                        )
                    })
                    .unwrap();
                    let found =
                        (0..x.len()).map(|i| codes[i * bits as usize / 8] >> (i * bits as usize % 8) & top as u8);
                    assert!(found.eq(expected.iter().copied()), "{isa:?}, {bits} bits by {scale} and {bias}");
                }
            }
        }
    }
}

#[allow(clippy::float_cmp, reason = "the results are exact")]
/// The largest element is the least integer, zero is zero, and halves go to the even one.
#[test]
fn symmetric_codes_are_the_nearest_integers() {
    let mut random = Random::new(5);
    for bits in 2..=8 {
        let middle = f32::from(1_u8 << (bits - 1));
        for edge in [3.0, -3.0, 1e30, -1e-30] {
            let scale = -edge / middle;
            let halves = (-(middle as i32)..middle as i32 - 1).map(|integer| (integer as f32 + 0.5) * scale);
            let drawn = random.normal(64).into_iter().map(|x| (x / 4.0).clamp(-0.99, 0.99) * edge);
            let x: Vec<f32> = [edge, 0.0, -0.0, -edge * 0.999].into_iter().chain(halves).chain(drawn).collect();
            for isa in Isa::available() {
                let (mut codes, mut scales) = (vec![0; (x.len() * bits).div_ceil(8)], [0.0]);
                let encoder = symmetric::encoder(x.len(), bits as u32);
                isa.with(|| encoder.quantize(&x, &mut codes, BlockScales::Floats(&mut scales))).unwrap();
                assert_eq!(scales, [scale], "{isa:?}");
                for (at, x) in x.iter().enumerate() {
                    let code = (0..bits).fold(0, |code, bit| {
                        let place = at * bits + bit;
                        code | (codes[place / 8] >> (place % 8) & 1) << bit
                    });
                    let expected = (x * (1.0 / scale)).round_ties_even().clamp(-middle, middle - 1.0) + middle;
                    assert_eq!(f32::from(code), expected, "{isa:?}, {bits} bits, {x} in units of {scale}");
                }
            }
        }
    }
    let error = symmetric::encoder(4, 1).quantize(&[1.0; 4], &mut [0], BlockScales::Floats(&mut [0.0])).unwrap_err();
    assert_eq!(error, tacit_kernels::KernelError::Bits { bits: 1 });
}
