//! Models that a step leaves alone and does not look at, and all that may happen to them between two calls.

use std::thread;

use mlx_rs::module::{Module as _, ModuleParameters as _};
use mlx_rs::optimizers::Sgd;
use mlx_rs::{Array, Dtype, memory, nn, ops, random};
use tacit_arrays::format::Nf4;
use tacit_core::compile::{CompileOptions, CompiledWithState, Constants};
use tacit_core::extra_ops::checked_indices;
use tacit_core::transform::value_and_grad;
use tacit_core::tree::{self, Gradient, Open};
use tacit_core::{Error, Result, compile_with_state};
use tacit_nn::{KvCache, Missing, Model, ParameterFilter};

use crate::turns;

/// A model that a step only reads, and what it changes.
type State = (Model<nn::Linear>, Array);

/// A function may hold no arrays.
pub(crate) fn denied() -> CompileOptions {
    CompileOptions { constants: Constants::Deny, ..CompileOptions::default() }
}

fn normal(shape: &[i32], seed: u64) -> Array {
    let array = random::normal::<f32>(shape, None, None, &random::key(seed).expect("a key")).expect("numbers");
    array.eval().expect("an eval");
    array
}

pub(crate) fn numbers(array: &Array) -> Vec<f32> {
    array.eval().expect("an eval");
    array.as_slice::<f32>().to_vec()
}

fn model(seed: u64) -> Result<Model<nn::Linear>> {
    let mut model = Model::new(nn::Linear::new(64, 64)?)?;
    let parameters = [("weight", normal(&[64, 64], seed)), ("bias", normal(&[64], seed + 1))];
    model.assign(parameters.map(|(path, array)| (path.to_owned(), array.into())).into(), Missing::Refuse)?;
    model.quantize("weight", Nf4 { block: 64, double: false })
}

fn state(seed: u64) -> Result<State> {
    Ok((model(seed)?, normal(&[2, 64], 3)))
}

#[allow(clippy::needless_pass_by_value, reason = "a compiled function owns its arguments")]
fn step((model, sum): &mut State, x: Array) -> Result<Array> {
    let y = model.forward(&x)?.abs()?.multiply(Array::from_f32(0.25))?;
    *sum = sum.add(&y)?.multiply(Array::from_f32(0.5))?;
    Ok(y.max(None)?)
}

type Step = CompiledWithState<'static, State, Array, Array>;

fn compiled() -> Step {
    compile_with_state(denied(), step)
}

/// Calls both and compares what they make.
#[track_caller]
fn compare(compiled: &mut Step, state: &mut State, eager: &mut State, seed: u64) {
    let x = normal(&[2, 64], seed);
    let found = compiled.call(state, &x).expect("a call").dense().expect("an array");
    let expected = step(eager, x).expect("it runs");
    assert_eq!(numbers(&found), numbers(&expected), "seed {seed}");
    assert_eq!(numbers(&state.1), numbers(&eager.1), "seed {seed}");
}

/// A state that the step does not look at any more, and its twin.
fn warm(compiled: &mut Step, seed: u64) -> Result<(State, State)> {
    let (mut own, mut eager) = (state(seed)?, state(seed)?);
    for i in 0..4 {
        compare(compiled, &mut own, &mut eager, i);
    }
    assert!(compiled.stats().steady > 0, "{:?}", compiled.stats());
    Ok((own, eager))
}

#[test]
fn a_model_is_not_looked_at_from_the_fourth_call_on() -> Result<()> {
    let (mut compiled, mut own, mut eager) = (compiled(), state(5)?, state(5)?);
    for (call, steady) in [0, 0, 0, 1, 2, 3].into_iter().enumerate() {
        compare(&mut compiled, &mut own, &mut eager, call as u64);
        assert_eq!(compiled.stats().steady, steady, "call {call}");
    }
    assert_eq!(compiled.stats().traces, 1);
    Ok(())
}

type Change = fn(&mut Model<nn::Linear>) -> Result<()>;

/// What may happen to a model, by every way in which it can be changed.
const CHANGES: [(&str, Change); 14] = [
    ("nothing", |_| Ok(())),
    ("leaves are set", |model| model.set_leaves([("bias".to_owned(), normal(&[64], 20))])),
    ("mlx-rs has its slots", |model| {
        for (path, slot) in model.parameters_mut().flatten() {
            if &*path == "bias" {
                *slot = normal(&[64], 21);
            }
        }
        Ok(())
    }),
    ("a parameter is replaced", |model| {
        model.replace("bias", |_, bias| Ok(Some(bias.dense()?.negative()?.into()))).map(drop)
    }),
    ("the codes are replaced", |model| {
        let codes = tacit_arrays::format::parse("affine:8:64")?.quantize(&normal(&[64, 64], 22))?;
        model.replace("weight", |_, _| Ok(Some(codes.clone()))).map(drop)
    }),
    ("values are assigned", |model| {
        let values = [("bias".to_owned(), normal(&[64], 23).into())].into();
        model.assign(values, Missing::Keep).map(drop)
    }),
    ("the module is run", |model| {
        model.run(|linear| {
            *linear.bias = Some(normal(&[64], 24));
            Ok::<_, Error>(())
        })
    }),
    ("a run fails", |model| {
        let run = model.run(|linear| {
            *linear.bias = Some(normal(&[64], 25));
            Err::<(), _>(Error::invalid("no", "none"))
        });
        assert!(run.is_err());
        Ok(())
    }),
    ("an optimizer steps", |model| {
        let x = normal(&[2, 64], 26);
        let (_, gradients) = model
            .value_and_grad(ParameterFilter::Dense, x, |m, x| Ok::<_, Error>(m.forward(&x)?.square()?.mean(None)?))?;
        model.update(&mut Sgd::new(0.1), &gradients)
    }),
    ("a gradient fails", |model| {
        let failed = model.value_and_grad(ParameterFilter::Dense, (), |m, ()| {
            m.set_leaves([("bias".to_owned(), normal(&[64], 27))])?;
            Err::<Array, _>(Error::invalid("no", "none"))
        });
        assert!(failed.is_err());
        Ok(())
    }),
    ("it is frozen", |model| {
        model.freeze_parameters(true);
        Ok(())
    }),
    ("it is evaluated by itself", |model| {
        model.training_mode(false);
        Ok(())
    }),
    ("it is another model", |model| {
        *model = self::model(30)?;
        Ok(())
    }),
    ("it is its clone", |model| {
        let clone = model.clone();
        *model = clone;
        Ok(())
    }),
];

#[test]
fn a_model_that_changed_is_the_new_one() -> Result<()> {
    for (name, change) in CHANGES {
        let mut compiled = compiled();
        let (mut own, mut eager) = warm(&mut compiled, 7)?;
        change(&mut own.0)?;
        change(&mut eager.0)?;
        let before = compiled.stats().steady;
        for seed in 40..46 {
            compare(&mut compiled, &mut own, &mut eager, seed);
        }
        assert!(compiled.stats().steady > before, "{name}: {:?}", compiled.stats());
    }
    Ok(())
}

/// Changes in every order, with a few calls between.
#[test]
fn changes_in_any_order_are_seen() -> Result<()> {
    let (mut compiled, mut other) = (compiled(), compiled());
    let (mut own, mut eager) = warm(&mut compiled, 9)?;
    let (mut second, mut second_eager) = (state(11)?, state(11)?);
    let mut random = 12_345_u64;
    let mut drawn = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for round in 0..120 {
        match drawn(4) {
            0 => {
                let (_, change) = CHANGES[drawn(CHANGES.len() as u64) as usize];
                change(&mut own.0)?;
                change(&mut eager.0)?;
            }
            1 => {
                std::mem::swap(&mut own.0, &mut second.0);
                std::mem::swap(&mut eager.0, &mut second_eager.0);
            }
            2 => compare(&mut other, &mut own, &mut eager, 1_000 + round),
            _ => compare(&mut compiled, &mut second, &mut second_eager, 2_000 + round),
        }
        for call in 0..drawn(5) {
            compare(&mut compiled, &mut own, &mut eager, 10 * round + call);
        }
    }
    assert!(compiled.stats().steady > 20, "{:?}", compiled.stats());
    Ok(())
}

#[test]
fn two_models_of_a_state_are_each_known_or_not() -> Result<()> {
    type Both = (Model<nn::Linear>, Array, Model<nn::Linear>);
    let run = |(first, sum, second): &mut Both, x: Array| {
        let y = second.forward(&first.forward(&x)?.abs()?)?;
        *sum = sum.add(&y)?;
        Ok::<_, Error>(y.negative()?)
    };
    let start = || -> Result<Both> { Ok((model(1)?, normal(&[2, 64], 2), model(3)?)) };
    let (mut own, mut eager) = (start()?, start()?);
    let mut compiled = compile_with_state(denied(), run);
    for i in 0..40_u64 {
        for both in [&mut own, &mut eager] {
            let bias = |seed| [("bias".to_owned(), normal(&[64], seed))];
            match i {
                8 | 16..20 => both.0.set_leaves(bias(i))?,
                9 | 24..28 => both.2.set_leaves(bias(i))?,
                30 => std::mem::swap(&mut both.0, &mut both.2),
                _ => {}
            }
        }
        let x = normal(&[2, 64], i);
        let found = compiled.call(&mut own, &x)?.dense()?;
        assert_eq!(numbers(&found), numbers(&run(&mut eager, x)?), "call {i}");
        assert_eq!(numbers(&own.1), numbers(&eager.1), "call {i}");
    }
    assert!(compiled.stats().steady > 20, "{:?}", compiled.stats());
    Ok(())
}

/// The step itself changes the model, in some calls nothing of it.
#[test]
fn a_model_that_the_step_changes_is_looked_at() -> Result<()> {
    let train = |(model, sum): &mut State, x: Array| {
        let (loss, gradients) = model
            .value_and_grad(ParameterFilter::Dense, x, |m, x| Ok::<_, Error>(m.forward(&x)?.square()?.mean(None)?))?;
        model.update(&mut Sgd::new(0.01), &gradients)?;
        *sum = sum.add(&loss)?;
        Ok::<_, Error>(loss)
    };
    let (mut own, mut eager) = (state(5)?, state(5)?);
    let mut compiled = compile_with_state(denied(), train);
    for i in 0..6 {
        let x = normal(&[2, 64], i);
        let found = numbers(&compiled.call(&mut own, &x)?.dense()?)[0];
        let expected = numbers(&train(&mut eager, x)?)[0];
        assert!((found - expected).abs() <= 1e-5 * expected.abs(), "call {i}: {found} and {expected}");
    }
    assert_eq!((compiled.stats().traces, compiled.stats().steady), (1, 0));
    Ok(())
}

#[test]
fn a_state_that_cannot_be_taken_is_what_it_was() -> Result<()> {
    type Cached = (Model<nn::Linear>, Vec<KvCache>);
    let run = |(model, caches): &mut Cached, x: Array| {
        let y = model.forward(&x)?;
        let token = y.reshape(&[1, 1, 2, 64])?;
        for cache in caches.iter_mut() {
            cache.update(&token, &token)?;
        }
        Ok::<_, Error>(y.exp()?)
    };
    let cache = |capacity| KvCache::new([1, 1, 64], Dtype::Float32)?.with_capacity(capacity);
    // The second is full in the middle of a step, once the first is written.
    let start = || -> Result<Cached> { Ok((model(5)?, vec![cache(64)?, cache(11)?])) };
    let mut own = start()?;
    let mut compiled = compile_with_state(denied(), run);
    let x = normal(&[2, 64], 1);
    for _ in 0..5 {
        compiled.call(&mut own, &x)?.dense()?.eval()?;
    }
    assert!(compiled.stats().steady > 0, "{:?}", compiled.stats());
    let before: Vec<Vec<f32>> = arrays(&own.1)?;
    for _ in 0..3 {
        let error = compiled.call(&mut own, &x).expect_err("there is no room");
        assert!(error.to_string().starts_with("2 tokens are written behind 10"), "{error}");
        assert_eq!(own.1.iter().map(KvCache::len).collect::<Vec<_>>(), [10, 10]);
        assert_eq!(arrays(&own.1)?, before);
        assert_eq!(numbers(&own.0.forward(&x)?), numbers(&model(5)?.forward(&x)?));
    }
    own.1[1] = start()?.1.swap_remove(0);
    own.1[0] = start()?.1.swap_remove(0);
    for i in 1..6 {
        compiled.call(&mut own, &x)?.dense()?.eval()?;
        assert_eq!(own.1.iter().map(KvCache::len).collect::<Vec<_>>(), [2 * i, 2 * i]);
    }
    Ok(())
}

fn arrays(caches: &Vec<KvCache>) -> Result<Vec<Vec<f32>>> {
    let leaves = tree::leaves(caches, Open::Fully)?.into_iter();
    leaves.map(|leaf| Ok(numbers(&leaf.dense()?.as_dtype(Dtype::Float32)?))).collect()
}

/// While MLX differentiates, everything is an input of the call.
#[test]
fn a_gradient_through_a_call_is_that_of_the_function() -> Result<()> {
    let mut compiled = compiled();
    let (own, eager) = warm(&mut compiled, 13)?;
    let x = normal(&[2, 64], 1);
    let (mut first, mut second) = (own.clone(), eager);
    let (_, found) = value_and_grad(|x: Array| compiled.call(&mut first, &x)?.dense()).call(&x)?;
    let (_, expected) = value_and_grad(|x: Array| step(&mut second, x)).call(&x)?;
    let close = |found: &Array, expected: &Array| {
        numbers(found).iter().zip(numbers(expected)).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs().max(1.0))
    };
    let (Gradient::Dense(found), Gradient::Dense(expected)) = (found, expected) else { panic!("gradients are arrays") };
    assert!(close(&found, &expected));
    Ok(())
}

#[test]
fn a_failed_kernel_is_told_of_and_does_not_spoil_later_calls() -> Result<()> {
    type Table = (Model<nn::Embedding>, Array);
    let look = |(model, sum): &mut Table, rows: Array| {
        let rows = checked_indices(&rows, 8)?;
        let y = model.forward(&rows)?;
        *sum = sum.add(y.sum(None)?)?;
        Ok::<_, Error>(y)
    };
    let table = || Model::new(nn::Embedding::new(8, 64)?)?.quantize("weight", Nf4 { block: 64, double: false });
    let mut own = (table()?, Array::from_f32(0.0));
    let eager = own.0.clone();
    let mut compiled = compile_with_state(denied(), look);
    let rows = |row: u32| Array::from_slice(&[row, 1], &[2]);
    for i in 0..12 {
        let sum = own.1.clone();
        let y = compiled.call(&mut own, rows(i))?.dense()?;
        if i < 8 {
            assert_eq!(numbers(&y), numbers(&eager.clone().forward(&rows(i))?), "call {i}");
        } else {
            assert!(y.eval().is_err(), "call {i}");
            own.1 = sum;
        }
        let good = compiled.call(&mut own, rows(i % 8))?.dense()?;
        assert_eq!(numbers(&good), numbers(&eager.clone().forward(&rows(i % 8))?), "call {i}");
    }
    assert!(compiled.stats().steady > 8, "{:?}", compiled.stats());
    Ok(())
}

/// The compiled function outlives models that it knew.
#[test]
fn a_model_that_is_gone_or_changed_is_held_by_nobody() -> Result<()> {
    let _turn = turns::of_memory();
    let big = || Model::new(nn::Linear::new(1024, 1024)?)?.quantize("weight", "affine:8:64");
    let mut compiled = compile_with_state(denied(), |(model, sum): &mut (Model<nn::Linear>, Array), x: Array| {
        let y = model.forward(&x)?;
        *sum = sum.add(&y)?;
        Ok::<_, Error>(y.exp()?)
    });
    let x = ops::ones::<f32>(&[1, 1024])?;
    let mut held = Vec::new();
    for round in 0..5 {
        let mut state = (big()?, ops::zeros::<f32>(&[1, 1024])?);
        for _ in 0..5 {
            compiled.call(&mut state, &x)?.dense()?.eval()?;
        }
        assert_eq!(compiled.stats().steady, 3 * (round + 1) - 1);
        if round % 2 == 0 {
            state.0.replace("weight", |_, _| Ok(Some(ops::zeros::<f32>(&[1024, 1024])?.into())))?;
        }
        drop(state);
        memory::clear_cache()?;
        held.push(memory::active_memory()?);
    }
    let (first, last) = (held[0], held[4]);
    assert!(last < first + 500_000, "{held:?}");
    Ok(())
}

/// What a stamp keeps goes with it, on whichever thread that is.
#[test]
fn a_model_goes_to_another_thread_and_comes_back() -> Result<()> {
    let mut compiled = compiled();
    let (own, mut eager) = warm(&mut compiled, 17)?;
    own.1.eval()?;
    let mut own = thread::spawn(move || {
        let mut own = own;
        let mut there = self::compiled();
        for seed in 0..5 {
            let y = there.call(&mut own, normal(&[2, 64], seed)).and_then(|y| y.dense()).expect("a call");
            y.eval().expect("an eval");
        }
        assert!(there.stats().steady > 0);
        own.1.eval().expect("an eval");
        own
    })
    .join()
    .expect("the thread");
    for seed in 0..5 {
        step(&mut eager, normal(&[2, 64], seed))?;
    }
    for seed in 50..56 {
        compare(&mut compiled, &mut own, &mut eager, seed);
    }
    thread::spawn(move || drop(own)).join().expect("the thread");
    Ok(())
}
