//! Rounding at random, by the definition.

use half::{bf16, f16};
use tacit_kernels::{
    E2M1, Isa, KernelError, Order, code_bytes, fp4, half_floats, nf4,
    random::uniform,
    stochastic::{Levels, Stochastic},
    ternary, threads,
};

use crate::random::Random;

const KEY: [u32; 2] = [3, 0xdead_beef];

/// The code of each element, written as plainly as it can be.
fn by_definition(values: &[f32], rounding: &Stochastic<'_>, x: &[f32]) -> Vec<u8> {
    let mut numbers = vec![0.0; x.len()];
    uniform(KEY, x.len(), 0, &mut numbers);
    let levels = rounding.levels;
    let code = |(at, (x, number)): (usize, (&f32, &f32))| {
        let block = at / rounding.block;
        let (scale, bias) = (rounding.scales[block], rounding.biases.map_or(0.0, |biases| biases[block]));
        let value = |code: u8| values[usize::from(code)] * scale + bias;
        let units = (x - bias) / if scale == 0.0 { 1.0 } else { scale };
        let ranks = levels.values();
        let rank = ranks[1..ranks.len() - 1].partition_point(|level| units >= *level);
        let (low, high) = (value(levels.codes()[rank]), value(levels.codes()[rank + 1]));
        levels.codes()[rank + usize::from((x - low) / (high - low) > *number)]
    };
    x.iter().zip(&numbers).enumerate().map(code).collect()
}

fn unpacked(bytes: &[u8], bits: u32, order: Order, count: usize) -> Vec<u8> {
    let code = |at: usize| match order {
        Order::HighFirst => bytes[at / 2] >> (4 - 4 * (at % 2)) & 15,
        Order::LowFirst => {
            let bit = |bit: usize| u32::from(bytes[bit / 8] >> (bit % 8) & 1);
            (0..bits).map(|place| bit(at * bits as usize + place as usize) << place).sum::<u32>() as u8
        }
    };
    (0..count).map(code).collect()
}

fn encoded(rounding: &Stochastic<'_>, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xaa; code_bytes(x.len(), rounding.bits)];
    rounding.encode(x, KEY, &mut bytes).unwrap();
    bytes
}

#[test]
fn codes_are_those_of_the_definition_on_every_instruction_set_and_number_of_threads() {
    let mut random = Random::new(21);
    let integers = |bits: u32| (0..1_u32 << bits).map(|code| code as f32).collect::<Vec<_>>();
    let signed = (0..=u8::MAX).map(|byte| match byte.cast_signed() {
        i8::MIN => f32::NAN,
        code => f32::from(code),
    });
    let mut tables = vec![
        (nf4::CODEBOOK.to_vec(), 4, Order::HighFirst),
        (fp4::CODEBOOK.to_vec(), 4, Order::HighFirst),
        (E2M1.to_vec(), 4, Order::LowFirst),
        (ternary::VALUES[..4].to_vec(), 2, Order::LowFirst),
        (vec![-1.0, 1.0], 1, Order::LowFirst),
        (signed.collect(), 8, Order::LowFirst),
        (random.normal(256), 8, Order::LowFirst),
    ];
    tables.extend([2, 3, 5, 6, 8].map(|bits| (integers(bits), bits, Order::LowFirst)));
    for (values, bits, order) in tables {
        let levels = Levels::new(&values).unwrap();
        for (elements, block) in [(1, 1), (7, 3), (64, 64), (1001, 64), (4099, 100), (20_000, 128), (20_000, 1 << 40)] {
            let mut x = random.normal(elements);
            let blocks = elements.div_ceil(block);
            (x[0], x[elements / 2]) = (0.0, -0.0);
            let mut scales: Vec<f32> = random.normal(blocks).into_iter().map(|scale| scale / 3.0).collect();
            if blocks > 2 {
                scales[blocks / 2] = 0.0;
            }
            let biases = random.normal(blocks);
            for biases in [None, Some(&biases[..])] {
                let rounding = Stochastic { levels: &levels, bits, order, padding: 0, block, scales: &scales, biases };
                let expected = by_definition(&values, &rounding, &x);
                let alone = threads::with_count(1, || Isa::Scalar.with(|| encoded(&rounding, &x)));
                let what = format!("{bits} bits, {elements} in blocks of {block}");
                assert_eq!(unpacked(&alone, bits, order, elements), expected, "{what}");
                for isa in Isa::available() {
                    assert!(isa.with(|| encoded(&rounding, &x)) == alone, "{isa:?}, {what}");
                }
                assert!(threads::with_count(3, || encoded(&rounding, &x)) == alone, "{what}");
            }
        }
    }
}

#[test]
fn values_of_codes_stay_and_those_beyond_take_the_outermost() {
    let levels = Levels::new(&nf4::CODEBOOK).unwrap();
    for scale in [0.3, -0.3, 7e-30, 1.0 / 3.0] {
        let mut x: Vec<f32> = nf4::CODEBOOK.iter().map(|value| value * scale).collect();
        x.extend([2.0 * scale, -2.0 * scale]);
        let order = Order::HighFirst;
        let scales = [scale];
        let rounding =
            Stochastic { levels: &levels, bits: 4, order, padding: 0, block: 32, scales: &scales, biases: None };
        for seed in 0..200 {
            let mut bytes = [0; 9];
            rounding.encode(&x, [seed, 1], &mut bytes).unwrap();
            let codes = unpacked(&bytes, 4, order, x.len());
            assert!(codes[..16].iter().copied().eq(0..16) && codes[16..] == [15, 0], "{codes:?}");
        }
    }
}

#[test]
fn halves_are_rounded_to_the_numbers_around_each_and_to_their_mean() {
    let x = [1.000_1, -1.000_1, 3e-8, -3e-8, 65_504.0, 0.1, -0.0, 2.0];
    let mut sums = [[0.0; 8]; 2];
    let keys = 20_000;
    for seed in 0..keys {
        let (mut short, mut brief) = ([f16::ZERO; 8], [bf16::ZERO; 8]);
        half_floats::to_f16_by_key(&x, [0, seed], &mut short).unwrap();
        half_floats::to_bf16_by_key(&x, [0, seed], &mut brief).unwrap();
        for (at, x) in x.into_iter().enumerate() {
            let values = [short[at].to_f32(), brief[at].to_f32()];
            let gaps = [f32::max(x.abs() / 1024.0, 6e-8), f32::max(x.abs() / 128.0, f32::MIN_POSITIVE)];
            for ((value, gap), sums) in values.into_iter().zip(gaps).zip(&mut sums) {
                assert!((value - x).abs() <= gap, "{value} of {x}");
                sums[at] += f64::from((value - x) / gap);
            }
        }
    }
    for sum in sums.as_flattened() {
        // Half of a step deviates most, and the mean of so many by 0.0036 of one.
        assert!((sum / f64::from(keys)).abs() < 0.018, "{sum}");
    }
    let mut codes = [f16::ZERO];
    let refused = half_floats::to_f16_by_key(&[f32::NAN], KEY, &mut codes).unwrap_err();
    assert!(matches!(refused, KernelError::NonFinite { index: 0, .. }), "{refused}");
}

#[test]
fn what_is_wrong_is_named() {
    let levels = Levels::new(&[0.0, 1.0, 2.0, 3.0]).unwrap();
    let rounding = Stochastic {
        levels: &levels,
        bits: 2,
        order: Order::LowFirst,
        padding: 0,
        block: 4,
        scales: &[1.0],
        biases: None,
    };
    let said = |rounding: Stochastic<'_>, x: &[f32]| rounding.encode(x, KEY, &mut [0]).unwrap_err();
    assert!(matches!(said(rounding, &[0.0, f32::INFINITY]), KernelError::NonFinite { index: 1, .. }));
    assert_eq!(said(Stochastic { block: 0, ..rounding }, &[0.0]), KernelError::EmptyBlock);
    assert_eq!(said(Stochastic { bits: 1, ..rounding }, &[0.0]), KernelError::Bits { bits: 1 });
    assert_eq!(said(Stochastic { bits: 40, ..rounding }, &[0.0]), KernelError::Bits { bits: 40 });
    let long = said(rounding, &[0.0; 5]);
    assert!(matches!(long, KernelError::Length { name: "codes", expected: 2, .. }), "{long}");
    let lacking = said(Stochastic { scales: &[], ..rounding }, &[0.0]);
    assert!(matches!(lacking, KernelError::Length { name: "scales", expected: 1, .. }), "{lacking}");
    let lacking = said(Stochastic { biases: Some(&[]), ..rounding }, &[0.0]);
    assert!(matches!(lacking, KernelError::Length { name: "biases", expected: 1, .. }), "{lacking}");
    assert_eq!(Levels::new(&[1.0, 1.0, f32::NAN]).unwrap_err(), KernelError::Table { values: 3 });
    assert!(Stochastic { scales: &[], ..rounding }.encode(&[], KEY, &mut []).is_ok());
}
