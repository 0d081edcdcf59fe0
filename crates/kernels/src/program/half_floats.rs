//! Elementary functions of half floats, to the bit as MLX computes them on a CPU of x86-64.
//!
//! There are 65,536 half floats, so a function of one is a table, made by the scalar function when a program first asks for
//! it. MLX converts to `f32`, computes by formulas of its own or by the C library, and rounds at the end; its reciprocal
//! square root and its logistic function round in the middle as well.

use std::sync::OnceLock;

use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::{
    Op, Precision,
    math::{ERF_INV_FAR, ERF_INV_NEAR, ERF_INV_NEAR_LOG},
};

/// What a function makes of each half float, by its bits.
type Table = [u16; 1 << 16];

/// Numbers that are converted at a time.
const CHUNK: usize = 64;

/// The functions that are looked up.
const FUNCTIONS: [Op; 11] =
    [Op::Cos, Op::Erf, Op::ErfInv, Op::Exp, Op::Expm1, Op::Log, Op::Log1p, Op::Rsqrt, Op::Sigmoid, Op::Sin, Op::Tanh];

impl Op {
    /// Its number among the functions that are looked up in half precision.
    fn function(self) -> Option<usize> {
        FUNCTIONS.iter().position(|&function| function == self)
    }
}

/// Writes what `op` makes of the half floats in `a`, if it is a function that is looked up.
#[inline(always)]
pub(super) fn look_up(op: Op, precision: Precision, out: &mut [f32], a: &[f32]) -> bool {
    let Some(function) = op.function() else { return false };
    match precision {
        Precision::Single => return false,
        Precision::F16 => {
            let table = table(function, precision);
            let mut halves = [f16::ZERO; CHUNK];
            for (out, a) in out.chunks_mut(CHUNK).zip(a.chunks(CHUNK)) {
                let halves = &mut halves[..a.len()];
                halves.convert_from_f32_slice(a);
                for half in &mut *halves {
                    *half = f16::from_bits(table[usize::from(half.to_bits())]);
                }
                halves.convert_to_f32_slice(out);
            }
        }
        Precision::Bf16 => {
            let table = table(function, precision);
            for (out, a) in out.iter_mut().zip(a) {
                *out = f32::from_bits(u32::from(table[usize::from((a.to_bits() >> 16) as u16)]) << 16);
            }
        }
    }
    true
}

fn table(function: usize, precision: Precision) -> &'static Table {
    static TABLES: [[OnceLock<Box<Table>>; 2]; FUNCTIONS.len()] =
        [const { [const { OnceLock::new() }; 2] }; FUNCTIONS.len()];
    let op = FUNCTIONS[function];
    let is_f16 = precision == Precision::F16;
    let widen = if is_f16 { |bits| f16::from_bits(bits).to_f32() } else { |bits| bf16::from_bits(bits).to_f32() };
    let narrow = if is_f16 { |x| f16::from_f32(x).to_bits() } else { |x| bf16::from_f32(x).to_bits() };
    TABLES[function][usize::from(is_f16)].get_or_init(|| {
        let value = |bits| narrow(of_one(op, widen(bits), |x| widen(narrow(x))));
        let table: Vec<u16> = (0..=u16::MAX).map(value).collect();
        table.try_into().expect("65,536 half floats")
    })
}

/// The function of one number, before it is rounded at the end; `round` rounds to the half type.
fn of_one(op: Op, x: f32, round: impl Fn(f32) -> f32) -> f32 {
    match op {
        Op::Cos => angle(x, false),
        Op::Erf => erf(x, round),
        Op::ErfInv => {
            let log = x.mul_add(-x, 1.0).ln();
            x * if log.abs() > ERF_INV_NEAR_LOG { polynomial(log, ERF_INV_FAR) } else { polynomial(log, ERF_INV_NEAR) }
        }
        Op::Exp => exp(x),
        Op::Expm1 => x.exp_m1(),
        Op::Log => x.ln(),
        Op::Log1p => x.ln_1p(),
        Op::Rsqrt => 1.0 / round(x.sqrt()),
        Op::Sigmoid => {
            let y = 1.0 / (1.0 + round(exp(x.abs())));
            if x < 0.0 { y } else { 1.0 - y }
        }
        Op::Sin => angle(x, true),
        Op::Tanh => x.tanh(),
        _ => unreachable!("no function that is looked up"),
    }
}

/// The terms with the highest power first, each step rounded once.
fn polynomial<const N: usize>(x: f32, terms: [f32; N]) -> f32 {
    terms[1..].iter().fold(terms[0], |sum, &term| sum.mul_add(x, term))
}

fn exp(x: f32) -> f32 {
    const TERMS: [f32; 7] =
        [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1, 1.0];
    // MLX's constant, which has fewer digits than there are.
    #[allow(clippy::approx_constant)]
    let scaled = x * 1.442_695_f32;
    // MLX adds a `double`.
    let whole = (f64::from(scaled) + 0.5).floor() as f32;
    let value = f32::from_bits(((whole as i32).wrapping_add(127) as u32) << 23) * polynomial(scaled - whole, TERMS);
    match () {
        () if x.is_nan() => x,
        () if x > 88.0 => f32::INFINITY,
        () if x < -88.0 => 0.0,
        () => value,
    }
}

fn erf(x: f32, round: impl Fn(f32) -> f32) -> f32 {
    let t = 1.0 / 0.327_591_1_f32.mul_add(x.abs(), 1.0);
    let r = polynomial(t, [1.061_405_4, -1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6]);
    let value = round((-exp(-x * x) * t).mul_add(r, 1.0));
    if x > 0.0 { value } else { -value }
}

/// The sine, or the cosine.
fn angle(x: f32, sine: bool) -> f32 {
    if x.abs() > 8_388_608.0 {
        return if sine { x.sin() } else { x.cos() };
    }
    let magnitude = x.abs();
    let octant = ((magnitude * 1.273_239_5) as u32).wrapping_add(1) & !1;
    let y = octant as f32;
    let r = y.mul_add(-0.785_156_25, magnitude);
    let r = y.mul_add(-2.418_756_5e-4, r);
    let r = y.mul_add(-3.774_895e-8, r);
    let z = r * r;
    let cosine = polynomial(z, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]) * z * z;
    let cosine = z.mul_add(-0.5, cosine) + 1.0;
    let sine_of = r.mul_add(polynomial(z, [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]) * z, r);
    let swapped = octant & 2 != 0;
    if sine {
        let value = if swapped { cosine } else { sine_of };
        if (x < 0.0) == (octant & 4 != 0) { value } else { -value }
    } else {
        let value = if swapped { sine_of } else { cosine };
        if octant.wrapping_sub(2) & 4 != 0 { value } else { -value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every half float, and what the table makes of it.
    fn all(op: Op, precision: Precision) -> Vec<(f32, f32)> {
        let of = |bits| match precision {
            Precision::F16 => f16::from_bits(bits).to_f32(),
            _ => bf16::from_bits(bits).to_f32(),
        };
        let x: Vec<f32> = (0..=u16::MAX).map(of).collect();
        let mut y = vec![0.0; x.len()];
        assert!(look_up(op, precision, &mut y, &x), "{op:?} is looked up");
        x.into_iter().zip(y).collect()
    }

    #[test]
    fn tables_are_within_the_last_place_of_the_functions() {
        type Function = fn(f64) -> f64;
        let tests: [(Op, Function); 7] = [
            (Op::Exp, f64::exp),
            (Op::Log, f64::ln),
            (Op::Tanh, f64::tanh),
            (Op::Rsqrt, |x| 1.0 / x.sqrt()),
            (Op::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
            (Op::Sin, f64::sin),
            (Op::Cos, f64::cos),
        ];
        for (op, function) in tests {
            for (precision, epsilon) in [(Precision::F16, 9.8e-4), (Precision::Bf16, 7.9e-3)] {
                for (x, y) in all(op, precision) {
                    let expected = function(f64::from(x));
                    let y = f64::from(y);
                    // What is subnormal has fewer digits, and so have sines near zero; MLX's logistic function loses some
                    // where it takes a number near one from one.
                    let least = if matches!(op, Op::Sin | Op::Cos | Op::Sigmoid) { 1.0 } else { 6.2e-5 };
                    let close = (y - expected).abs() <= 1.5 * epsilon * expected.abs().max(least);
                    let same = y.is_nan() && expected.is_nan() || close || y.is_infinite() && expected.abs() > 65_504.0;
                    assert!(same, "{op:?} of {x} in {precision:?} is {y}, not {expected}");
                }
            }
        }
    }
}
