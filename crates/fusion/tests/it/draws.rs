//! Random numbers in plans: those of MLX, of every size and in every call.

use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::Result;
use tacit_core::compile::{CompileOptions, Constants, compile_with, compile_with_state};

use crate::same::{assert_close, check, floats};

fn options() -> CompileOptions {
    CompileOptions { constants: Constants::Allow, ..CompileOptions::default() }
}

fn zeros(shape: &[i32]) -> Array {
    ops::zeros::<f32>(shape).expect("zeros")
}

fn key(seed: u64) -> Array {
    random::key(seed).expect("a key")
}

/// Numbers of every kind, and of 8, 16 and 32 bits, of the shape of `x`.
fn drawn(x: &Array, key: &Array) -> Result<Vec<Array>> {
    let shape = x.shape();
    let (one, other) = random::split(key, 2)?;
    let numbers = [
        random::uniform::<_, f32>(0.0, 1.0, shape, &one)?,
        random::uniform::<_, half::f16>(0.0, 1.0, shape, &one)?,
        random::uniform::<_, half::bf16>(0.0, 1.0, shape, &other)?,
        random::bernoulli(&Array::from_f32(0.3), shape, &other)?,
        random::randint::<_, i32>(-5, 50, shape, &one)?,
        random::randint::<_, u8>(0, 50, shape, &one)?,
        random::gumbel::<f32>(shape, &other)?,
        random::normal::<f32>(shape, None, None, &one)?,
        random::truncated_normal::<_, f32>(-1.0, 1.0, shape, &one)?,
        random::split(key, 5)?.0,
    ];
    numbers.iter().map(|array| Ok(array.as_dtype(Dtype::Float32)?.add(Array::from_f32(1.0))?)).collect()
}

#[test]
fn numbers_of_every_size_are_those_of_mlx() {
    let f = |inputs: &[Array]| drawn(&inputs[0].add(Array::from_f32(1.0))?, &inputs[1]);
    for size in [0, 1, 2, 3, 5, 6, 7, 9, 15, 33] {
        for shape in [vec![size], vec![size, 3], vec![2, size]] {
            check(&f, &[zeros(&shape), key(size as u64)], 1e-5);
        }
    }
}

#[test]
fn calls_of_other_shapes_and_keys_draw_as_eager_ones_do() {
    let mut compiled = compile_with(options(), |(x, key): (Array, Array)| drawn(&x, &key));
    for round in 0..2 {
        for size in [3, 4, 7, 8, 1, 3] {
            let (x, key) = (zeros(&[2, size]), key(100 * round + size as u64));
            let results = compiled.call((&x, &key)).expect("a call");
            for (result, expected) in results.iter().zip(drawn(&x, &key).expect("runs")) {
                assert_close(&result.dense().expect("an array"), &expected, 1e-5);
            }
        }
    }
    assert_eq!(compiled.stats().traces, 5);
}

/// A key in the state goes on, and two functions draw from it, one of them twice from the same.
#[test]
fn two_functions_draw_from_one_key() {
    let step = |key: &mut Array, x: Array| -> Result<(Array, Array)> {
        let (next, own) = random::split(&*key, 2)?;
        *key = next;
        let draw = || random::uniform::<_, f32>(0.0, 1.0, x.shape(), &own);
        Ok((draw()?.add(&x)?, draw()?.add(&x)?))
    };
    let other = |key: &mut Array, x: Array| -> Result<(Array, Array)> {
        let numbers = random::normal::<f32>(x.shape(), None, None, &*key)?;
        Ok((numbers.clone(), numbers.add(&x)?))
    };
    let (mut eager, mut state) = (key(7), key(7));
    let (mut one, mut two) = (compile_with_state(options(), step), compile_with_state(options(), other));
    for call in 0..12 {
        let x = zeros(&[[3, 5, 3, 8][call % 4]]);
        let (expected, result) = if call % 3 == 2 {
            (other(&mut eager, x.clone()).expect("runs"), two.call(&mut state, &x).expect("a call"))
        } else {
            (step(&mut eager, x.clone()).expect("runs"), one.call(&mut state, &x).expect("a call"))
        };
        for (result, expected) in [(&result.0, &expected.0), (&result.1, &expected.1)] {
            assert_close(&result.dense().expect("an array"), expected, 1e-5);
        }
    }
}

/// Without a key: other numbers in each call, place and function, and the same again from the same seed.
#[test]
fn the_state_of_the_thread_gives_each_draw_its_own_numbers() {
    let f = |x: Array| -> Result<Vec<Array>> {
        let draw = || random::uniform::<_, f32>(0.0, 1.0, x.shape(), None);
        Ok(vec![draw()?.add(&x)?, draw()?.add(&x)?])
    };
    let (mut one, mut two) = (compile_with(options(), f), compile_with(options(), f));
    let mut run = || {
        let mut all = Vec::new();
        for size in [5, 7, 5, 7, 5, 16] {
            for result in [one.call(zeros(&[size])), two.call(zeros(&[size]))] {
                all.extend(result.expect("a call").iter().map(|result| floats(&result.dense().expect("an array"))));
            }
        }
        all
    };
    run();
    random::seed(3).expect("seeds");
    let first = run();
    random::seed(3).expect("seeds");
    assert_eq!(run(), first);
    for (at, numbers) in first.iter().enumerate() {
        assert!(first[..at].iter().all(|before| before[..5] != numbers[..5]), "{at}");
    }
}
