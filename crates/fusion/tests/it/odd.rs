//! Odd widths, empty extents, broadcast scalars, ties, NaN, infinities and both zeros: with passes as without them, bit by bit.

use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis, argmin_axis};
use mlx_rs::{Array, Dtype, ops};
use tacit_core::Result;
use tacit_core::pass::Passes;

use crate::same::{Function, check, compiled, floats, normal, number, of, one};

const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// The bits of all elements; those of a NaN do not count.
fn bits(array: &Array) -> Vec<u64> {
    if array.size() == 0 {
        return Vec::new();
    }
    if matches!(array.dtype(), Dtype::Int32 | Dtype::Uint32) {
        let array = array.view_dtype(Dtype::Uint32).expect("words").flatten(None, None).expect("flat");
        let array = array.add(Array::from_slice(&[0_u32], &[1])).expect("a copy");
        array.eval().expect("an eval");
        return array.as_slice::<u32>().iter().map(|&word| word.into()).collect();
    }
    let ones = ops::ones::<f32>(array.shape()).expect("ones");
    let array = array.as_dtype(Dtype::Float32).and_then(|array| array.multiply(ones)).expect("a copy");
    floats(&array).iter().map(|x| if x.is_nan() { u64::MAX } else { x.to_bits().into() }).collect()
}

/// Numbers of which many are special, and many are equal.
fn special(shape: &[i32], seed: u64) -> Array {
    let some = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.5,
        0.5,
        1.5,
        2.5,
        3.0,
        1e-40,
        1e-6,
        60000.0,
        3e38,
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let of = [4, 3, some.len() as u64][seed as usize % 3];
    let from = if seed % 3 == 1 { 3 } else { 0 };
    let numbers: Vec<f32> =
        (0..shape.iter().product::<i32>()).map(|_| some[from + (next() % of.min(14)) as usize]).collect();
    Array::from_slice(&numbers, shape)
}

fn shapes() -> Vec<Vec<i32>> {
    let each = |width| [vec![width], vec![3, width], vec![2, 3, width]];
    let mut shapes: Vec<Vec<i32>> = [1, 3, 17, 65].into_iter().flat_map(each).collect();
    shapes.extend([vec![1025], vec![2, 1025], vec![1025, 3], vec![0, 3], vec![2, 0, 3]]);
    shapes
}

/// Those with elements: MLX reduces no others.
fn filled() -> impl Iterator<Item = (u64, Vec<i32>)> {
    (0..).zip(shapes()).filter(|(_, shape)| !shape.contains(&0))
}

#[track_caller]
fn exact(f: Function<'_>, inputs: &[Array]) {
    let eager = f(inputs).expect("it runs");
    let (plain, _) = compiled(f, inputs, Passes::Off).expect("it compiles without passes");
    let (results, _) = compiled(f, inputs, Passes::All).expect("it compiles with passes");
    assert_eq!((results.len(), plain.len()), (eager.len(), eager.len()));
    for (at, ((result, plain), eager)) in results.iter().zip(&plain).zip(&eager).enumerate() {
        assert_eq!((result.shape(), result.dtype()), (eager.shape(), eager.dtype()));
        let found = bits(result);
        for (name, expected) in [("without passes", bits(plain)), ("as it is", bits(eager))] {
            let far = found.iter().zip(&expected).position(|(a, b)| a != b);
            assert!(far.is_none(), "result {at} of {inputs:?} is another one {name}, at {far:?}");
        }
    }
}

#[test]
fn elements_of_every_kind_and_shape() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, y] = inputs else { unreachable!() };
        let x = x.multiply(one(x))?;
        let (low, high) = (number(&x, -1.5), number(&x, 2.0));
        let nan = number(&x, f32::NAN);
        let zero = x.subtract(&x)?;
        Ok(vec![
            ops::maximum(&x, y)?,
            ops::minimum(&x, y)?,
            ops::maximum(y, &x)?,
            ops::clip(&x, (&low, &high))?,
            ops::clip(&x, (&high, &low))?,
            ops::clip(&x, (&nan, &high))?,
            ops::sign(&x)?,
            x.round(0)?,
            x.floor()?,
            x.abs()?.negative()?,
            ops::select(&x.gt(y)?, &x, number(&x, 7.0))?,
            ops::select(&x.ne(&x)?, &zero, &x)?,
            ops::maximum(&x, number(&x, 0.0))?,
            ops::maximum(number(&x, -0.0), &x)?,
            x.divide(y)?,
            x.divide(&zero)?,
            x.square()?.sqrt()?,
            x.logical_and(y)?,
            x.as_dtype(Dtype::Bool)?.logical_or(y.gt(&x)?)?,
            x.add(y)?.subtract(y)?,
            x.multiply(y)?.add(&x)?,
            ops::maximum(&x.multiply(y)?, &zero)?.multiply(&x)?,
            x.ge(y)?.as_dtype(x.dtype())?.multiply(&x)?,
        ])
    };
    for dtype in FLOATS {
        for (seed, shape) in shapes().iter().enumerate() {
            let seed = seed as u64;
            let x = of(dtype, &special(shape, seed));
            let mut row = shape.clone();
            row[0] = 1;
            for y in [shape.clone(), vec![], row, vec![*shape.last().expect("an axis")]] {
                let y = of(dtype, &special(&y, seed + 5));
                exact(&f, &[x.clone(), y.clone()]);
                if y.size() == x.size() {
                    exact(&f, &[y, x.clone()]);
                }
            }
        }
    }
}

#[test]
fn the_greatest_the_least_and_the_order_of_odd_rows() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one(&inputs[0]))?;
        let mut results = Vec::new();
        for axis in 0..x.ndim() as i32 {
            results.push(argmax_axis(&x, axis, false)?);
            results.push(argmin_axis(&x, axis, true)?);
            results.push(x.max_axes(&[axis], false)?);
            results.push(x.min_axes(&[axis], true)?.add(&x)?);
            results.push(ops::sort_axis(&x, axis)?);
            results.push(ops::argsort_axis(&x, axis)?);
            results.push(x.cumsum(axis, false, true)?);
            results.push(x.subtract(x.max_axes(&[axis], true)?)?);
        }
        results.push(x.max(None)?);
        results.push(x.min(None)?);
        results.push(ops::indexing::argmax(&x, false)?);
        Ok(results)
    };
    for dtype in FLOATS {
        for (seed, shape) in filled() {
            for more in 0..3 {
                exact(&f, &[of(dtype, &special(&shape, seed + more))]);
            }
        }
    }
}

#[test]
fn norms_of_odd_rows() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one(&inputs[0]))?;
        let weight = x.try_index(0)?.flatten(None, None)?;
        let weight = if x.ndim() == 1 { x.clone() } else { weight.try_index(..x.dim(-1))? };
        let mean = x.mean_axes(&[-1], true)?;
        let centered = x.subtract(&mean)?;
        let variance = centered.square()?.mean_axes(&[-1], true)?;
        let mut results = vec![
            ops::softmax_axis(&x, -1, None)?,
            ops::softmax_axis(&x, -1, true)?,
            ops::logsumexp_axis(&x, -1, true)?,
            x.subtract(ops::logsumexp_axis(&x, -1, true)?)?,
            centered.multiply(variance.add(number(&x, 1e-3))?.rsqrt()?)?,
            x.multiply(x.square()?.mean_axes(&[-1], true)?.add(number(&x, 1e-3))?.rsqrt()?)?,
            mlx_rs::fast::rms_norm(&x, Some(&weight), 1e-3)?,
            mlx_rs::fast::layer_norm(&x, &weight, &weight, 1e-3)?,
            ops::softmax_axis(&x.multiply(number(&x, 3.0))?, 0, None)?,
            x.sum_axes(&[-1], true)?,
        ];
        if x.ndim() == 3 {
            results.push(ops::softmax_axes(&x, &[1, 2], None)?);
            results.push(x.sum_axes(&[0, 2], false)?);
        }
        Ok(results)
    };
    for (dtype, relative) in [(Dtype::Float32, 1e-5), (Dtype::Float16, 4e-3), (Dtype::Bfloat16, 3e-2)] {
        for (seed, shape) in filled() {
            // MLX sums half floats in their own type, of which long rows have too few digits.
            if dtype != Dtype::Float32 && shape.iter().any(|&extent| extent > 17) {
                continue;
            }
            let infinite = ops::full::<f32>(&shape, Array::from_f32(f32::NEG_INFINITY)).expect("an array");
            let zeros = ops::zeros::<f32>(&shape).expect("zeros");
            for x in [normal(&shape, seed), zeros, special(&shape, 3 * seed), infinite] {
                check(&f, &[of(dtype, &x)], relative);
            }
        }
    }
}

#[test]
fn whole_numbers_at_their_ends() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, y] = inputs else { unreachable!() };
        let x = x.add(one(x))?;
        let y = y.subtract(one(y))?;
        Ok(vec![
            x.multiply(&y)?,
            ops::maximum(&x, &y)?,
            x.abs()?,
            ops::sign(&x)?,
            x.negative()?,
            x.gt(&y)?.as_dtype(x.dtype())?,
            x.as_dtype(Dtype::Float32)?.multiply(Array::from_f32(1.0))?,
            x.as_dtype(Dtype::Float16)?.multiply(of(Dtype::Float16, &Array::from_f32(1.0)))?,
            x.as_dtype(Dtype::Bfloat16)?.multiply(of(Dtype::Bfloat16, &Array::from_f32(1.0)))?,
            x.divide(&y)?,
            x.square()?,
            x.max(None)?,
            x.sum(None)?,
            ops::sort_axis(&x, -1)?,
            ops::argsort_axis(&x, -1)?,
            argmax_axis(&x, -1, false)?,
            x.cumsum(0, true, false)?,
        ])
    };
    for dtype in [Dtype::Int32, Dtype::Uint32] {
        let numbers = [i32::MIN, i32::MAX, 0, 1, -1, 7, -7, 16_777_217, 2049, 65519, 65520, 3, 3, -1];
        for shift in 0..numbers.len() {
            let mut other = numbers;
            other.rotate_left(shift);
            let array = |numbers: &[i32]| Array::from_slice(numbers, &[2, 7]).view_dtype(dtype).expect("words");
            exact(&f, &[array(&numbers), array(&other)]);
        }
    }
}

/// MLX ends the process where a divisor is 0, and where it is -1 for `i32::MIN`.
#[test]
fn remainders_have_the_sign_of_the_divisor() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, y] = inputs else { unreachable!() };
        let x = x.add(one(x))?;
        Ok(vec![ops::remainder(&x, y)?.add(one(&x))?, ops::floor_divide(&x, y)?.add(one(&x))?])
    };
    let numbers = [i32::MAX - 1, 0, 1, -1, 7, -7, 16_777_217, 2049, 65519, 65520, 3, 3, -2, 5];
    let divisors = [i32::MIN, i32::MAX, 1, -1, 7, -7, 3, -3, 2, -2, 16, 10, -10, 9];
    for dtype in [Dtype::Int32, Dtype::Uint32] {
        for shift in 0..numbers.len() {
            let mut other = divisors;
            other.rotate_left(shift);
            let array = |numbers: &[i32]| Array::from_slice(numbers, &[2, 7]).view_dtype(dtype).expect("words");
            exact(&f, &[array(&numbers), array(&other)]);
        }
    }
    for dtype in FLOATS {
        for seed in 0..6 {
            let inputs = [of(dtype, &special(&[3, 17], seed)), of(dtype, &special(&[3, 17], seed + 1))];
            exact(&f, &inputs);
        }
    }
}

#[test]
fn casts_in_range_and_out_of_it() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one(&inputs[0]))?;
        let mut results = Vec::new();
        for dtype in [
            Dtype::Int32,
            Dtype::Int8,
            Dtype::Int16,
            Dtype::Int64,
            Dtype::Float16,
            Dtype::Bfloat16,
            Dtype::Float32,
            Dtype::Bool,
        ] {
            results.push(x.as_dtype(dtype)?.as_dtype(Dtype::Float32)?.multiply(Array::from_f32(1.0))?);
        }
        results.push(x.add(number(&x, 1e-3))?.multiply(number(&x, 3.0))?.subtract(&x)?.divide(number(&x, 7.0))?);
        Ok(results)
    };
    for dtype in FLOATS {
        for seed in 0..10 {
            exact(&f, &[of(dtype, &normal(&[3, 17], seed).multiply(Array::from_f32(40.0)).expect("numbers"))]);
        }
    }
    let wide = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one(&inputs[0]))?;
        let mut results = Vec::new();
        for dtype in [Dtype::Int32, Dtype::Uint32, Dtype::Int64] {
            results.push(x.as_dtype(dtype)?.as_dtype(Dtype::Float32)?.multiply(Array::from_f32(1.0))?);
        }
        Ok(results)
    };
    for dtype in FLOATS {
        for seed in 0..6 {
            exact(&wide, &[of(dtype, &special(&[5, 65], seed))]);
        }
    }
}

#[test]
fn parts_of_reversed_and_broadcast_arrays() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, row] = inputs else { unreachable!() };
        let reversed = x.flip(mlx_rs::Axes::Axis(-1))?;
        let broadcast = ops::broadcast_to(row, x.shape())?;
        let mut results = Vec::new();
        for whole in [x.clone(), reversed, broadcast, x.swap_axes(0, 1)?.reshape(x.shape())?] {
            for of in [whole.clone(), whole.add(one(&whole))?] {
                for part in ops::split_equal(&of, 3, 1)? {
                    results.push(part.multiply(one(&part))?);
                }
                results.push(of.try_index((.., 2..5))?.abs()?);
                results.push(ops::split_equal(&of, 2, 0)?[1].square()?);
            }
        }
        Ok(results)
    };
    for dtype in FLOATS {
        exact(&f, &[of(dtype, &normal(&[4, 6], 1)), of(dtype, &normal(&[1, 6], 2))]);
    }
}

#[test]
fn gradients_of_what_is_not_chosen() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let g = |x: &Array| -> std::result::Result<Array, mlx_rs::error::Exception> {
            let positive = x.gt(number(x, 0.0))?;
            let safe = ops::select(&positive, x, one(x))?;
            let inner = ops::select(&positive, &safe.sqrt()?, number(x, 0.0))?;
            let unsafe_one = ops::select(&positive, &x.sqrt()?, number(x, 0.0))?;
            inner
                .add(&unsafe_one)?
                .add(ops::maximum(x, number(x, 0.0))?)?
                .add(x.abs()?)?
                .add(ops::clip(x, (number(x, -1.0), number(x, 1.0)))?)?
                .sum(None)
        };
        let gradient = mlx_rs::transforms::grad(|x: &Array| g(x))(&inputs[0])?;
        let m = mlx_rs::transforms::grad(|x: &Array| x.max_axes(&[-1], false)?.sum(None))(&inputs[0])?;
        let s = mlx_rs::transforms::grad(|x: &Array| ops::sort_axis(x, -1)?.multiply(x)?.sum(None))(&inputs[0])?;
        Ok(vec![gradient, m, s])
    };
    for dtype in FLOATS {
        for (seed, shape) in filled() {
            exact(&f, &[of(dtype, &special(&shape, seed))]);
        }
    }
}
