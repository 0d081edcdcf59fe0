//! Row programs against plain loops in `f64`.

// Infinities, and what is exact.
#![allow(clippy::float_cmp)]

use half::{bf16, f16};
use tacit_kernels::program::{Columns, Data, DataMut, Kind, Map, Op, Precision, Program, Source, Step};
use tacit_kernels::{Isa, threads};

use crate::random::Random;

fn normal(len: usize, seed: u64) -> Vec<f32> {
    Random::new(seed).normal(len)
}

fn each(rows: usize) -> Source {
    Source { kind: Kind::F32, map: Map { columns: Columns::All, divisor: 1, modulus: rows } }
}

fn step<const N: usize>(op: Op, operands: [usize; N]) -> Step {
    let operands = std::array::from_fn(|i| operands.get(i).copied().unwrap_or(0));
    Step { op, operands, precision: Precision::Single }
}

/// One op on numbers.
fn unary(op: Op, x: &[f32]) -> Vec<f32> {
    let program =
        Program::new([1, x.len()], vec![each(1)], &[], &[step(op, [0])], &[(1, Kind::F32)]).expect("a program");
    let mut y = vec![0.0; x.len()];
    program.run(&[Data::F32(x)], vec![DataMut::F32(&mut y)]).expect("it runs");
    y
}

/// Floats of every magnitude and sign, evenly by their bits.
fn sweep() -> Vec<f32> {
    let mut all: Vec<f32> = (0..=u32::MAX).step_by(40_009).map(f32::from_bits).collect();
    all.extend([0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45, -1e-45]);
    all.extend((-2000..2000).map(|i| i as f32 * 0.0537));
    all
}

/// The greatest distance in units of the last place of what is expected, of `least` where that is nearer to zero.
fn worst(op: Op, expected: impl Fn(f64) -> f64, least: f32, domain: impl Fn(f32) -> bool) -> f64 {
    let x: Vec<f32> = sweep().into_iter().filter(|&x| x.is_nan() || domain(x)).collect();
    let mut worst = 0.0_f64;
    for (x, found) in x.iter().zip(unary(op, &x)) {
        let expected = expected(f64::from(*x));
        let rounded = expected as f32;
        if rounded.is_nan() || rounded.is_infinite() {
            assert!(found.is_nan() && rounded.is_nan() || found == rounded, "{op:?} of {x} is {found}, not {rounded}");
            continue;
        }
        assert!(!found.is_nan(), "{op:?} of {x} is {found}, not {rounded}");
        if found.is_infinite() {
            assert!(rounded.abs() > f32::MAX * 0.999_999, "{op:?} of {x} is {found}, not {rounded}");
            continue;
        }
        let unit = f64::from(rounded.abs().max(least)) * f64::from(f32::EPSILON);
        worst = worst.max((f64::from(found) - expected).abs() / unit);
    }
    worst
}

/// By its series, and by its continued fraction where that converges.
fn erf(x: f64) -> f64 {
    if !x.is_finite() {
        return if x.is_nan() { x } else { x.signum() };
    }
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-18 * sum.abs() {
        n += 1.0;
        term *= -x * x / n;
        let next = sum + term / (2.0 * n + 1.0);
        if next == sum {
            break;
        }
        sum = next;
    }
    // Beyond 3 the terms cancel; what is left is close to one.
    if x.abs() > 3.0 {
        let mut fraction = x.abs();
        for k in (1..60).rev() {
            fraction = x.abs() + f64::from(k) / 2.0 / fraction;
        }
        return x.signum() * (1.0 - (-x * x).exp() / fraction / std::f64::consts::PI.sqrt());
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// By Newton's steps from an approximation that is within a hundredth.
fn erf_inv(x: f64) -> f64 {
    if x == 0.0 || x.abs() == 1.0 || x.is_nan() {
        return if x == 0.0 { x } else { x * f64::INFINITY };
    }
    let log = (-x * x).ln_1p();
    let term = 2.0 / (std::f64::consts::PI * 0.147) + log / 2.0;
    let near = x * std::f64::consts::PI.sqrt() / 2.0;
    let mut y = if x.abs() < 0.01 { near } else { ((term * term - log / 0.147).sqrt() - term).sqrt().copysign(x) };
    for _ in 0..4 {
        y -= (erf(y) - x) * std::f64::consts::PI.sqrt() / 2.0 * (y * y).exp();
    }
    y
}

#[test]
fn elementary_functions_are_within_a_few_units_of_the_last_place() {
    let least = f32::MIN_POSITIVE;
    let all = |_| true;
    let angle = |x: f32| x.abs() < 1e7;
    assert!(worst(Op::Exp, f64::exp, least, all) < 2.0);
    assert!(worst(Op::Log, f64::ln, least, all) < 2.0);
    assert!(worst(Op::Tanh, f64::tanh, least, all) < 3.0);
    assert!(worst(Op::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()), least, |x| x > -88.0) < 3.0);
    assert!(unary(Op::Sigmoid, &[-88.5, -89.0, -1e30]).iter().all(|y| (0.0..f32::MIN_POSITIVE).contains(y)));
    // Its first product loses digits of what is nearly subnormal.
    assert!(worst(Op::Erf, erf, 64.0 * least, all) < 6.0);
    assert!(worst(Op::ErfInv, erf_inv, least, |x| x.abs() <= 1.0) < 8.0);
    assert!(unary(Op::ErfInv, &[1.5, -2.0, f32::INFINITY]).iter().all(|y| y.is_nan()));
    assert!(worst(Op::Sin, f64::sin, 1.0, angle) < 1.0);
    assert!(worst(Op::Cos, f64::cos, 1.0, angle) < 1.0);
    assert!(worst(Op::Sqrt, f64::sqrt, least, all) <= 0.5);
    assert!(worst(Op::Rsqrt, |x| 1.0 / x.sqrt(), least, |x| x != 0.0) < 1.5);
    assert!(worst(Op::Expm1, f64::exp_m1, least, all) < 2.0);
    assert!(worst(Op::Log1p, f64::ln_1p, least, all) < 2.0);
}

/// A normalization with weights, residual and a half result: every kind of map and extent.
fn norm([rows, columns]: [usize; 2]) -> Program {
    let weights = Source { kind: Kind::F32, map: Map { columns: Columns::All, divisor: 1, modulus: 1 } };
    let scalar = Source { kind: Kind::F32, map: Map { columns: Columns::One, divisor: 1, modulus: 1 } };
    let groups = Source { kind: Kind::F16, map: Map { columns: Columns::One, divisor: 2, modulus: rows.div_ceil(2) } };
    let steps = [
        step(Op::Square, [0]),
        step(Op::Sum, [6]),
        step(Op::Multiply, [7, 5]),
        step(Op::Add, [8, 2]),
        step(Op::Rsqrt, [9]),
        step(Op::Multiply, [0, 10]),
        step(Op::Multiply, [11, 1]),
        step(Op::Add, [12, 3]),
        step(Op::Subtract, [13, 4]),
        step(Op::Max, [14]),
    ];
    let sources = vec![each(rows), weights, scalar, groups, each(rows)];
    let results = [(14, Kind::F32), (10, Kind::F32), (14, Kind::Bf16), (15, Kind::F32)];
    Program::new([rows, columns], sources, &[1.0 / columns as f32], &steps, &results).expect("a program")
}

type Normed = (Vec<u32>, Vec<u32>, Vec<u16>, Vec<u32>);

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn normed([rows, columns]: [usize; 2]) -> Normed {
    let (x, w, residual) = (normal(rows * columns, 1), normal(columns, 2), normal(rows * columns, 3));
    let groups: Vec<f16> = normal(rows.div_ceil(2), 4).into_iter().map(f16::from_f32).collect();
    let (mut y, mut scale, mut most) = (vec![0.0; x.len()], vec![0.0; rows], vec![0.0; rows]);
    let mut half = vec![bf16::ZERO; x.len()];
    norm([rows, columns])
        .run(
            &[Data::F32(&x), Data::F32(&w), Data::F32(&[1e-5]), Data::F16(&groups), Data::F32(&residual)],
            vec![DataMut::F32(&mut y), DataMut::F32(&mut scale), DataMut::Bf16(&mut half), DataMut::F32(&mut most)],
        )
        .expect("it runs");
    for row in 0..rows {
        let of = row * columns..(row + 1) * columns;
        let mean = x[of.clone()].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / columns as f64;
        let expected_scale = 1.0 / (mean + 1e-5).sqrt();
        assert!((f64::from(scale[row]) - expected_scale).abs() < 1e-5 * expected_scale);
        let mut greatest = f64::NEG_INFINITY;
        for i in of {
            let group = f64::from(groups[row / 2].to_f32());
            let value = f64::from(x[i]) * expected_scale * f64::from(w[i % columns]) + group - f64::from(residual[i]);
            assert!((f64::from(y[i]) - value).abs() < 2e-5, "{} at {i}, not {value}", y[i]);
            assert_eq!(half[i], bf16::from_f32(y[i]));
            greatest = greatest.max(value);
        }
        assert!((f64::from(most[row]) - greatest).abs() < 2e-5);
    }
    (bits(&y), bits(&scale), half.iter().map(|value| value.to_bits()).collect(), bits(&most))
}

#[test]
fn rows_of_every_length_carry_the_same_bits_on_every_machine() {
    for size in [[1, 1], [3, 2], [7, 10], [64, 33], [5, 1024], [300, 130], [2, 5000]] {
        let expected = normed(size);
        for isa in Isa::available() {
            assert_eq!(isa.with(|| threads::with_count(1, || normed(size))), expected, "{isa:?} {size:?}");
        }
        for count in [2, 3, 5] {
            assert_eq!(threads::with_count(count, || normed(size)), expected, "{count} threads {size:?}");
        }
    }
}

#[test]
fn a_program_computes_the_same_whatever_ran_before_it() {
    let size = [3, 2];
    let alone = std::thread::spawn(move || normed(size)).join().expect("no panic");
    for larger in [[5, 1024], [300, 2]] {
        normed(larger);
        assert_eq!(normed(size), alone, "{larger:?}");
    }
}

/// An update of weights and a norm, each step rounded to a half type, in the order in which it is written.
fn halved([rows, columns]: [usize; 2], precision: Precision) -> Vec<u32> {
    let source = |kind| Source { kind, map: Map { columns: Columns::All, divisor: 1, modulus: rows } };
    let half = |op, operands| Step { precision, ..step::<2>(op, operands) };
    let steps = [
        half(Op::Multiply, [0, 2]),
        half(Op::Add, [3, 1]),
        half(Op::Square, [4, 4]),
        half(Op::Sum, [5, 5]),
        half(Op::Rsqrt, [6, 6]),
        half(Op::Multiply, [4, 7]),
        half(Op::Sigmoid, [8, 8]),
        half(Op::Divide, [9, 4]),
        half(Op::Sqrt, [10, 10]),
        half(Op::Power, [9, 2]),
        half(Op::Subtract, [11, 12]),
    ];
    let kind = if precision == Precision::F16 { Kind::F16 } else { Kind::Bf16 };
    let sources = vec![source(kind), source(kind)];
    let results = [(13, Kind::F32), (7, Kind::F32)];
    let program = Program::new([rows, columns], sources, &[0.75], &steps, &results).expect("a program");
    let (x, y) = (normal(rows * columns, 1), normal(rows * columns, 2));
    let (mut made, mut scale) = (vec![0.0; x.len()], vec![0.0; rows]);
    let outputs = vec![DataMut::F32(&mut made), DataMut::F32(&mut scale)];
    if precision == Precision::F16 {
        let [x, y] = [x, y].map(|x| x.into_iter().map(f16::from_f32).collect::<Vec<_>>());
        program.run(&[Data::F16(&x), Data::F16(&y)], outputs).expect("it runs");
        assert!(made.iter().all(|&y| y.is_nan() || f16::from_f32(y).to_f32() == y));
    } else {
        let [x, y] = [x, y].map(|x| x.into_iter().map(bf16::from_f32).collect::<Vec<_>>());
        program.run(&[Data::Bf16(&x), Data::Bf16(&y)], outputs).expect("it runs");
        assert!(made.iter().all(|&y| y.is_nan() || bf16::from_f32(y).to_f32() == y));
    }
    made.iter().chain(&scale).map(|y| if y.is_nan() { u32::MAX } else { y.to_bits() }).collect()
}

#[test]
fn steps_of_half_types_carry_the_same_bits_on_every_machine() {
    for size in [[1, 1], [7, 10], [64, 33], [5, 1024]] {
        for precision in [Precision::F16, Precision::Bf16] {
            let expected = halved(size, precision);
            for isa in Isa::available() {
                assert_eq!(isa.with(|| threads::with_count(1, || halved(size, precision))), expected, "{isa:?}");
            }
        }
    }
}

#[test]
fn what_overflows_a_half_type_is_infinite_for_the_next_step() {
    let source = Source { kind: Kind::F16, map: Map { columns: Columns::All, divisor: 1, modulus: 1 } };
    let half = |op, operands| Step { precision: Precision::F16, ..step::<2>(op, operands) };
    let steps = [half(Op::Square, [0, 0]), half(Op::Divide, [1, 0])];
    let program = Program::new([1, 2], vec![source], &[], &steps, &[(2, Kind::F32)]).expect("a program");
    let mut y = [0.0; 2];
    let x = [f16::from_f32(300.0), f16::from_f32(200.0)];
    program.run(&[Data::F16(&x)], vec![DataMut::F32(&mut y)]).expect("it runs");
    assert_eq!(y, [f32::INFINITY, 200.0]);
}

/// The halves of rows as pairs that are turned by angles, as rotary embeddings turn them; rows of so many `angles` share these.
fn turned([rows, half]: [usize; 2], angles: usize, kind: Kind, [x, cos, sin]: [&[f32]; 3]) -> Vec<u32> {
    let precision = match kind {
        Kind::F16 => Precision::F16,
        Kind::Bf16 => Precision::Bf16,
        _ => Precision::Single,
    };
    let source = |columns, modulus| Source { kind, map: Map { columns, divisor: 1, modulus } };
    let sources = vec![
        source(Columns::Part { first: 0, of: 2 * half }, rows),
        source(Columns::Part { first: half, of: 2 * half }, rows),
        source(Columns::All, angles),
        source(Columns::All, angles),
    ];
    let steps = [
        (Op::Multiply, [0, 2]),
        (Op::Multiply, [1, 3]),
        (Op::Subtract, [4, 5]),
        (Op::Multiply, [0, 3]),
        (Op::Multiply, [1, 2]),
        (Op::Add, [7, 8]),
    ]
    .map(|(op, operands)| Step { precision, ..step(op, operands) });
    let results = [(vec![6, 9], kind), (vec![9], kind)];
    let program = Program::joining([rows, half], sources, &[], &steps, &results).expect("a program");
    macro_rules! run {
        ($data:ident of $float:ty, $from:expr, $to:expr) => {{
            let [x, cos, sin] = [x, cos, sin].map(|from| from.iter().map($from).collect::<Vec<_>>());
            let [mut both, mut second] = [2, 1].map(|halves| vec![<$float>::default(); halves * rows * half]);
            let inputs = [Data::$data(&x), Data::$data(&x), Data::$data(&cos), Data::$data(&sin)];
            let outputs = vec![DataMut::$data(&mut both), DataMut::$data(&mut second)];
            program.run(&inputs, outputs).expect("it runs");
            for (row, second) in both.chunks(2 * half).zip(second.chunks(half)) {
                assert_eq!(&row[half..], second);
            }
            both.into_iter().map($to).collect()
        }};
    }
    match kind {
        Kind::F16 => run!(F16 of f16, |x| f16::from_f32(*x), |y| y.to_f32().to_bits()),
        Kind::Bf16 => run!(Bf16 of bf16, |x| bf16::from_f32(*x), |y| y.to_f32().to_bits()),
        _ => run!(F32 of f32, f32::to_owned, f32::to_bits),
    }
}

#[test]
fn parts_of_rows_are_read_and_written_where_they_lie() {
    for kind in [Kind::F32, Kind::F16, Kind::Bf16] {
        let round = |x: f32| match kind {
            Kind::F16 => f16::from_f32(x).to_f32(),
            Kind::Bf16 => bf16::from_f32(x).to_f32(),
            _ => x,
        };
        let sizes: [[usize; 2]; 8] = [[1, 1], [6, 1], [1, 7], [6, 7], [12, 64], [2, 129], [900, 64], [4, 1500]];
        for (size @ [rows, half], angles) in sizes.into_iter().flat_map(|size| [(size, 1), (size, size[0].div_ceil(2))])
        {
            let lengths = [(1, 2 * rows * half), (2, angles * half), (3, angles * half)];
            let rounded = |(seed, length)| normal(length, seed).into_iter().map(round).collect::<Vec<_>>();
            let [x, cos, sin] = lengths.map(rounded);
            let mut expected = vec![0.0; x.len()];
            for (row, (x, y)) in x.chunks(2 * half).zip(expected.chunks_mut(2 * half)).enumerate() {
                for (at, (a, b)) in x[..half].iter().zip(&x[half..]).enumerate() {
                    let (cos, sin) = (cos[row % angles * half + at], sin[row % angles * half + at]);
                    y[at] = round(round(a * cos) - round(b * sin));
                    y[half + at] = round(round(a * sin) + round(b * cos));
                }
            }
            for isa in Isa::available() {
                for count in [1, 2, 5] {
                    let run = || turned(size, angles, kind, [&x, &cos, &sin]);
                    let found = isa.with(|| threads::with_count(count, run));
                    assert_eq!(found, bits(&expected), "{isa:?} {kind:?} {size:?} on {count} threads");
                }
            }
        }
    }
}

#[test]
fn long_rows_without_reductions_are_cut() {
    let columns = 100_003;
    let x = normal(columns, 1);
    let steps = [step(Op::Multiply, [0, 1]), step(Op::Subtract, [0, 2])];
    let program = Program::new([1, columns], vec![each(1)], &[0.25], &steps, &[(3, Kind::F32)]).expect("a program");
    for count in [1, 2, 3] {
        let mut y = vec![f32::NAN; columns];
        threads::with_count(count, || program.run(&[Data::F32(&x)], vec![DataMut::F32(&mut y)])).expect("it runs");
        assert!(x.iter().zip(&y).all(|(x, y)| *y == x - x * 0.25));
    }
}

#[test]
fn what_is_not_a_number_passes_through_reductions() {
    let x = [1.0, f32::NAN, 3.0, -1.0, 2.0, 0.0];
    let steps = [step(Op::Max, [0]), step(Op::Min, [0]), step(Op::Sum, [0])];
    let results = [(1, Kind::F32), (2, Kind::F32), (3, Kind::F32)];
    let program = Program::new([2, 3], vec![each(2)], &[], &steps, &results).expect("a program");
    let (mut most, mut least, mut sum) = ([0.0; 2], [0.0; 2], [0.0; 2]);
    let out = vec![DataMut::F32(&mut most), DataMut::F32(&mut least), DataMut::F32(&mut sum)];
    program.run(&[Data::F32(&x)], out).expect("it runs");
    assert!(most[0].is_nan() && least[0].is_nan() && sum[0].is_nan());
    assert_eq!((most[1], least[1], sum[1]), (2.0, -1.0, 1.0));
}

#[test]
fn programs_that_cannot_run_are_refused() {
    let says = |steps: &[Step], results: &[(usize, Kind)], source: Source| {
        Program::new([2, 3], vec![source], &[], steps, results).expect_err("no program").to_string()
    };
    let part = |first, of| Source {
        kind: Kind::F32,
        map: Map { columns: Columns::Part { first, of }, divisor: 1, modulus: 2 },
    };
    let messages = [
        says(&[step(Op::Add, [0, 1])], &[], each(2)),
        says(&[], &[(0, Kind::I32)], each(2)),
        says(&[], &[(4, Kind::F32)], each(2)),
        says(&[], &[], each(3)),
        says(&[step(Op::Sum, [0]), step(Op::Sum, [1])], &[], each(2)),
        says(&[step(Op::Spread, [0])], &[], each(2)),
        says(&[], &[], part(4, 6)),
    ];
    let sum = [step(Op::Sum, [0])];
    let joined = Program::joining([2, 3], vec![each(2)], &[], &sum, &[(vec![0, 1], Kind::F32)]);
    let joined = joined.expect_err("no program").to_string();
    let program = Program::new([2, 3], vec![each(2)], &[], &[], &[(0, Kind::F32)]).expect("a program");
    let mut y = [0.0; 6];
    let short = program.run(&[Data::F32(&[0.0; 5])], vec![DataMut::F32(&mut y)]).expect_err("too short").to_string();
    let kind = program.run(&[Data::Bool(&[0; 6])], vec![DataMut::F32(&mut y)]).expect_err("bytes").to_string();
    let all: Vec<String> = messages.into_iter().chain([joined, short, kind]).collect();
    let first: Vec<&str> = all.iter().filter_map(|message| message.lines().next()).collect();
    assert_eq!(
        first,
        [
            "the program has an operand of step 0 that comes later",
            "the program writes integers",
            "the program has no value 4 to write",
            "the program maps 2 rows by 1 and 3 to input 0",
            "the program reduces in step 1 what is no row",
            "the program spreads in step 0 what is no number of a row",
            "the program reads 3 columns from 4 on in rows of 6 of input 0",
            "the program writes side by side what is no row",
            "`an input` holds 5 elements where 6 are needed",
            "the program has F32 where Bool was given",
        ]
    );
}
