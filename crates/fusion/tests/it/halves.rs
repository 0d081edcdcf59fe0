//! Half floats in programs, to the last bit as the plain ops compute them.

use mlx_rs::{Array, Dtype, ops};
use proptest::prelude::*;
use tacit_core::Result;
use tacit_core::compile::{CompileOptions, compile_with_state};
use tacit_core::pass::Passes;

use crate::same::{Function, assert_close, compiled, nodes, normal};

const HALVES: [Dtype; 2] = [Dtype::Float16, Dtype::Bfloat16];

/// The bits of each element; one pattern for all that are no number.
fn bits(array: &Array) -> Vec<u32> {
    let wide = array.as_dtype(Dtype::Float32).expect("a float type").flatten(None, None).expect("flat");
    // Whatever its strides.
    let wide = wide.multiply(Array::from_f32(1.0)).expect("a copy");
    wide.eval().expect("an eval");
    let value = |value: &f32| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
    wide.as_slice::<f32>().iter().map(value).collect()
}

/// Checks a function with all passes against itself as it is, bit for bit; gives the nodes that programs stand for.
#[track_caller]
fn check(f: Function<'_>, inputs: &[Array]) -> usize {
    let eager = f(inputs).expect("the function runs");
    let (found, done) = compiled(f, inputs, Passes::All).expect("it compiles");
    assert_eq!(found.len(), eager.len());
    for (i, (found, eager)) in found.iter().zip(&eager).enumerate() {
        assert_eq!((found.shape(), found.dtype()), (eager.shape(), eager.dtype()));
        for (at, (found, eager)) in bits(found).into_iter().zip(bits(eager)).enumerate() {
            let (value, expected) = (f32::from_bits(found), f32::from_bits(eager));
            assert_eq!(found, eager, "{value:e} at {at} of result {i}, not {expected:e}");
        }
    }
    nodes(&done, "programs")
}

/// Every number of a half type.
fn all(dtype: Dtype) -> Array {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    Array::from_slice(&bits, &[bits.len() as i32]).view_dtype(dtype).expect("as many bits")
}

fn scalar(value: f32, dtype: Dtype) -> Array {
    Array::from_f32(value).as_dtype(dtype).expect("a float type")
}

type Unary = fn(&Array) -> Result<Array>;

const FUNCTIONS: [(&str, Unary); 25] = [
    ("abs", |x| Ok(x.abs()?)),
    ("ceil", |x| Ok(ops::ceil(x)?)),
    ("cos", |x| Ok(ops::cos(x)?)),
    ("erf", |x| Ok(ops::erf(x)?)),
    ("erfinv", |x| Ok(ops::erfinv(x)?)),
    ("exp", |x| Ok(x.exp()?)),
    ("expm1", |x| Ok(ops::expm1(x)?)),
    ("floor", |x| Ok(ops::floor(x)?)),
    ("log", |x| Ok(x.log()?)),
    ("log1p", |x| Ok(ops::log1p(x)?)),
    ("negative", |x| Ok(x.negative()?)),
    ("round", |x| Ok(ops::round(x, None)?)),
    ("rsqrt", |x| Ok(x.rsqrt()?)),
    ("sigmoid", |x| Ok(ops::sigmoid(x)?)),
    ("sign", |x| Ok(ops::sign(x)?)),
    ("sin", |x| Ok(ops::sin(x)?)),
    ("sqrt", |x| Ok(x.sqrt()?)),
    ("square", |x| Ok(x.square()?)),
    ("tanh", |x| Ok(ops::tanh(x)?)),
    ("square as a power", |x| Ok(ops::power(x, scalar(2.0, x.dtype()))?)),
    ("cube", |x| Ok(ops::power(x, scalar(3.0, x.dtype()))?)),
    ("other power", |x| Ok(ops::power(x, scalar(-1.5, x.dtype()))?)),
    ("reciprocal", |x| Ok(scalar(1.0, x.dtype()).divide(x)?)),
    ("other half", |x| Ok(x.as_dtype(if x.dtype() == Dtype::Float16 { Dtype::Bfloat16 } else { Dtype::Float16 })?)),
    ("truth", |x| Ok(x.as_dtype(Dtype::Bool)?.as_dtype(x.dtype())?)),
];

#[test]
fn functions_of_every_half_float_are_mlx_s() {
    for dtype in HALVES {
        let x = all(dtype);
        for (name, function) in FUNCTIONS {
            println!("{name} of {dtype:?}");
            assert!(check(&|inputs| Ok(vec![function(&inputs[0])?]), std::slice::from_ref(&x)) > 0);
        }
    }
}

#[test]
fn what_overflows_between_two_ops_is_infinite() {
    let inputs = [scalar(300.0, Dtype::Float16), scalar(2048.0, Dtype::Float16)];
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let product = inputs[0].square()?;
        let one = scalar(1.0, Dtype::Float16);
        Ok(vec![
            product.as_dtype(Dtype::Float32)?,
            product.as_dtype(Dtype::Bfloat16)?,
            product.divide(&inputs[0])?,
            product.lt(scalar(f32::INFINITY, Dtype::Float16))?,
            inputs[1].add(&one)?.subtract(&inputs[1])?,
        ])
    };
    assert!(check(&f, &inputs) >= 7);
    let (found, _) = compiled(&f, &inputs, Passes::All).expect("it compiles");
    assert!(found[0].try_item_cast::<f32>().expect("one number").is_infinite());
    assert_eq!(found[4].try_item_cast::<f32>().expect("one number").to_bits(), 0);
}

/// One step of training with a loss scaler: the weights, and whether the scaled gradient is finite.
fn scaled(w: &Array, gradient: &Array, scale: &Array) -> Result<(Array, Array)> {
    let large = gradient.multiply(scale)?;
    let finite = large.abs()?.max(None)?.lt(scalar(f32::INFINITY, w.dtype()))?;
    let step = large.divide(scale)?.multiply(scalar(0.5, w.dtype()))?;
    Ok((ops::select(&finite, &w.subtract(step)?, w)?, finite))
}

#[test]
fn a_loss_scaler_sees_what_overflows() {
    for scale in [4.0, 32768.0] {
        let w = normal(&[64], 1).as_dtype(Dtype::Float16).expect("a cast");
        let gradient = normal(&[64], 2).as_dtype(Dtype::Float16).expect("a cast");
        let inputs = [w, gradient, scalar(scale, Dtype::Float16)];
        let f = |inputs: &[Array]| -> Result<Vec<Array>> {
            let (w, finite) = scaled(&inputs[0], &inputs[1], &inputs[2])?;
            Ok(vec![w, finite])
        };
        assert!(check(&f, &inputs) > 3);
        let (found, _) = compiled(&f, &inputs, Passes::All).expect("it compiles");
        assert_eq!(found[1].try_item_exact::<bool>().expect("a truth"), scale < 5.0);
    }
}

#[test]
fn a_compensated_sum_keeps_its_compensation() {
    let mut add =
        compile_with_state(CompileOptions::default(), |(sum, lost): &mut (Array, Array), x: Array| -> Result<Array> {
            let y = x.subtract(&*lost)?;
            let next = sum.add(&y)?;
            *lost = next.subtract(&*sum)?.subtract(&y)?;
            *sum = next;
            Ok(sum.clone())
        });
    tacit_core::compile::disable_fusion();
    let dtype = Dtype::Bfloat16;
    let mut state = (scalar(1.0, dtype), scalar(0.0, dtype));
    let x = scalar(0.001, dtype);
    for _ in 0..1000 {
        add.call(&mut state, &x).expect("it adds");
        mlx_rs::transforms::eval([&state.0, &state.1]).expect("an eval");
    }
    assert!(nodes(&add.stats().rewritten, "programs") >= 4);
    assert_eq!(state.0.try_item_cast::<f32>().expect("one number").to_bits(), 2f32.to_bits());
}

#[test]
fn sums_of_half_floats_are_rounded_once() {
    for dtype in HALVES {
        let inputs = [normal(&[3, 16384], 1).as_dtype(dtype).expect("a cast")];
        let f = |inputs: &[Array]| -> Result<Vec<Array>> {
            let x = &inputs[0];
            Ok(vec![
                x.abs()?.sum_axes(&[-1], true)?.add(x)?,
                ops::softmax_axis(x, -1, None)?,
                x.logsumexp_axes(&[-1], true)?,
            ])
        };
        let (found, done) = compiled(&f, &inputs, Passes::All).expect("it compiles");
        assert!(nodes(&done, "programs") >= 5, "{done:?}");
        // What the same gives in single precision, rounded at the end.
        let wide = [inputs[0].as_dtype(Dtype::Float32).expect("a cast")];
        let epsilon = if dtype == Dtype::Float16 { 1e-3 } else { 8e-3 };
        for (found, expected) in found.iter().zip(f(&wide).expect("it runs")) {
            assert_eq!(found.dtype(), dtype);
            assert_close(&found.as_dtype(Dtype::Float32).expect("a cast"), &expected, epsilon);
        }
    }
}

/// An op on what was made before, by position from the end.
#[derive(Clone, Debug)]
enum Step {
    Function(usize, usize),
    Binary(u8, usize, usize),
    Scalar(u8, f32, usize),
    Reduce(bool, usize),
    Where(usize, usize, usize),
    Cast(u8, usize),
    Flat(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..6_usize;
    let number = prop_oneof![Just(0.1_f32), Just(3.0), Just(-1e-4), Just(700.0), Just(1.0), Just(-65504.0)];
    prop_oneof![
        4 => (0..FUNCTIONS.len(), at()).prop_map(|(op, a)| Step::Function(op, a)),
        6 => (0..6_u8, at(), at()).prop_map(|(op, a, b)| Step::Binary(op, a, b)),
        4 => (0..4_u8, number, at()).prop_map(|(op, value, a)| Step::Scalar(op, value, a)),
        1 => (any::<bool>(), at()).prop_map(|(most, a)| Step::Reduce(most, a)),
        2 => (at(), at(), at()).prop_map(|(c, a, b)| Step::Where(c, a, b)),
        2 => (0..3_u8, at()).prop_map(|(to, a)| Step::Cast(to, a)),
        1 => at().prop_map(Step::Flat),
    ]
}

/// Without sums, whose order is a program's own, and without functions of `f32`, which are its own as well.
fn run(steps: &[Step], inputs: &[Array]) -> Result<Vec<Array>> {
    let mut results = inputs.to_vec();
    let ndim = inputs[0].ndim();
    for step in steps {
        let get = |at: &usize| results[results.len() - 1 - at % results.len()].clone();
        let value = match step {
            Step::Function(op, a) => {
                let a = get(a);
                if a.dtype() == Dtype::Float32 {
                    continue;
                }
                FUNCTIONS[*op].1(&a)?
            }
            Step::Binary(op, a, b) => binary(*op, &get(a), &get(b))?,
            Step::Scalar(op, value, a) => {
                let a = get(a);
                binary(*op, &a, &scalar(*value, a.dtype()))?
            }
            Step::Reduce(most, a) => {
                // Which of two zeros is the greater one is left open: there is one of them.
                let a = get(a);
                let a = a.add(scalar(0.0, a.dtype()))?;
                if a.ndim() != ndim {
                    continue;
                }
                if *most { a.max_axes(&[-1], true)? } else { a.min_axes(&[-1], true)? }
            }
            Step::Where(c, a, b) => {
                let c = get(c);
                ops::select(&c.gt(scalar(0.25, c.dtype()))?, get(a), get(b))?
            }
            Step::Cast(to, a) => {
                get(a).as_dtype([Dtype::Float16, Dtype::Bfloat16, Dtype::Float32][usize::from(*to)])?
            }
            Step::Flat(a) => {
                let a = get(a);
                a.reshape(&[-1])?.reshape(a.shape())?
            }
        };
        results.push(value);
    }
    Ok(results.split_off(results.len().saturating_sub(3)))
}

fn binary(op: u8, a: &Array, b: &Array) -> Result<Array> {
    Ok(match op {
        0 => a.add(b)?,
        1 => a.subtract(b)?,
        2 => a.multiply(b)?,
        3 => a.divide(b)?,
        4 => ops::maximum(a, b)?,
        _ => ops::minimum(a, b)?,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_round_as_plain_ops_do(
        steps in prop::collection::vec(step(), 1..16),
        (rows, columns) in prop_oneof![Just((1, 1)), Just((3, 7)), Just((4, 64)), Just((2, 1500)), Just((37, 20))],
        dtypes in prop::array::uniform4(0..2_usize),
        seed in 0..1000_u64,
    ) {
        let shapes: [&[i32]; 4] = [&[rows, columns], &[columns], &[rows, 1], &[]];
        let inputs: Vec<Array> = (seed..)
            .zip(shapes)
            .zip(dtypes)
            .map(|((seed, shape), dtype)| normal(shape, seed).as_dtype(HALVES[dtype]).expect("a cast"))
            .collect();
        check(&|inputs| run(&steps, inputs), &inputs);
    }
}
