//! Random expressions over what programs can stand for.

use mlx_rs::{Array, Dtype, ops};
use proptest::prelude::*;
use tacit_core::Result;

use crate::same::{check, check_near, nodes, normal};

/// An op on what was made before, by position from the end.
#[derive(Clone, Debug)]
enum Step {
    Unary(u8, usize),
    Binary(u8, usize, usize),
    Reduce(u8, usize),
    Softmax(usize),
    Where(usize, usize, usize),
    Cast(bool, usize),
    Flat(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..6_usize;
    prop_oneof![
        4 => (0..9_u8, at()).prop_map(|(op, a)| Step::Unary(op, a)),
        6 => (0..6_u8, at(), at()).prop_map(|(op, a, b)| Step::Binary(op, a, b)),
        3 => (0..3_u8, at()).prop_map(|(op, a)| Step::Reduce(op, a)),
        1 => at().prop_map(Step::Softmax),
        2 => (at(), at(), at()).prop_map(|(c, a, b)| Step::Where(c, a, b)),
        1 => (any::<bool>(), at()).prop_map(|(half, a)| Step::Cast(half, a)),
        1 => at().prop_map(Step::Flat),
    ]
}

/// All of it bounded, so that an error does not grow without end.
fn run(steps: &[Step], inputs: &[Array]) -> Result<Vec<Array>> {
    let mut results = inputs.to_vec();
    let shape = inputs[0].shape().to_vec();
    for step in steps {
        let get = |at: &usize| results[results.len() - 1 - at % results.len()].clone();
        let value = match step {
            Step::Unary(op, a) => {
                let a = get(a);
                match op {
                    0 => a.abs()?,
                    1 => ops::tanh(&a)?.exp()?,
                    2 => a.negative()?,
                    3 => ops::sigmoid(&a)?,
                    4 => ops::sin(&a)?,
                    5 => ops::tanh(&a)?.square()?,
                    6 => ops::erf(&a)?,
                    7 => a.abs()?.add(Array::from_f32(1.0))?.log()?,
                    _ => a.abs()?.add(Array::from_f32(0.5))?.rsqrt()?,
                }
            }
            Step::Binary(op, a, b) => {
                let (a, b) = (get(a), get(b));
                match op {
                    0 => a.add(b)?.multiply(Array::from_f32(0.5))?,
                    1 => a.subtract(b)?,
                    2 => ops::tanh(&a)?.multiply(b)?,
                    3 => a.divide(b.abs()?.add(Array::from_f32(1.0))?)?,
                    4 => ops::maximum(a, b)?,
                    _ => ops::minimum(a, b)?,
                }
            }
            Step::Reduce(op, a) => {
                let a = get(a);
                if a.ndim() != shape.len() {
                    continue;
                }
                match op {
                    0 => a.mean_axes(&[-1], true)?,
                    1 => a.max_axes(&[-1], true)?,
                    _ => a.min_axes(&[-1], true)?,
                }
            }
            Step::Softmax(a) if get(a).ndim() == 0 => continue,
            Step::Softmax(a) => ops::softmax_axis(get(a), -1, true)?,
            Step::Where(c, a, b) => ops::select(&get(c).gt(Array::from_f32(0.25))?, get(a), get(b))?,
            Step::Cast(half, a) => {
                let dtype = if *half { Dtype::Float16 } else { Dtype::Bfloat16 };
                get(a).as_dtype(dtype)?.as_dtype(Dtype::Float32)?
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn are_computed_alike(
        steps in prop::collection::vec(step(), 1..14),
        (rows, columns) in prop_oneof![Just((1, 1)), Just((3, 7)), Just((4, 64)), Just((2, 1500)), Just((37, 20))],
        seed in 0..1000_u64,
    ) {
        let inputs = [
            normal(&[rows, columns], seed),
            normal(&[columns], seed + 1),
            normal(&[rows, 1], seed + 2),
            normal(&[], seed + 3),
        ];
        // A cast may round to the neighbor, half a percent away in bf16. Equal numbers may be summed in another order and subtracted:
        // each addition of a row rounds, of 1500 numbers that are one all in the same direction.
        let rounding = f32::EPSILON * columns.max(64) as f32;
        check_near(&|inputs| run(&steps, inputs), &inputs, 2e-2, rounding);
    }
}

#[test]
fn broadcasts_of_every_kind_are_mapped() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let mut sum = inputs[0].clone();
        for other in &inputs[1..] {
            sum = sum.multiply(Array::from_f32(0.5))?.add(other)?;
        }
        Ok(vec![sum])
    };
    let shapes: [&[i32]; 9] =
        [&[2, 3, 4, 5], &[5], &[4, 5], &[4, 1], &[3, 1, 5], &[2, 1, 1, 5], &[2, 1, 1, 1], &[1, 3, 4, 1], &[]];
    let inputs: Vec<Array> = shapes.iter().enumerate().map(|(i, shape)| normal(shape, i as u64)).collect();
    let done = check(&f, &inputs, 0.0);
    assert_eq!(nodes(&done, "programs"), 16);
    // Kept axes that do not lie side by side have no map, and stay with MLX.
    let apart = [normal(&[2, 3, 4, 5], 0), normal(&[2, 1, 4, 1], 1)];
    check(&f, &apart, 0.0);
}

#[test]
fn what_is_exact_keeps_its_bits() {
    let special = [0.0, -0.0, 1.0, -1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, -1e-40, 2.5, 3.5, 1e30];
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for x in special {
        for y in special {
            a.push(x);
            b.push(y);
        }
    }
    let n = a.len() as i32;
    let inputs = [Array::from_slice(&a, &[n]), Array::from_slice(&b, &[n])];
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let one = Array::from_f32(1.0);
        Ok(vec![
            a.add(b)?.multiply(b)?,
            a.subtract(b)?.divide(b)?,
            ops::maximum(a, b)?.negative()?,
            ops::minimum(a, b)?.abs()?,
            ops::select(&a.lt(b)?, a, &one)?.add(&one)?,
            ops::select(&a.ge(b)?.logical_or(a.eq(b)?)?, a, &one)?.add(&one)?,
            ops::sqrt(a)?.add(&one)?,
            ops::rsqrt(a)?.add(&one)?,
            ops::round(a, None)?.add(ops::floor(b)?)?,
            ops::sign(a)?.add(ops::ceil(b)?)?,
            a.ne(b)?.logical_and(a.gt(b)?)?,
        ])
    };
    let done = check(&f, &inputs, 0.0);
    assert!(nodes(&done, "programs") >= 20, "{done:?}");
}
