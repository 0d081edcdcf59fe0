//! Two steps that share a model, and arrays that a state shares with others.

use std::cell::Cell;

use mlx_rs::module::Module as _;
use mlx_rs::optimizers::{Optimizer as _, Sgd};
use mlx_rs::{Array, nn};
use tacit_core::{Result, compile_with_state};
use tacit_nn::{LoraConfig, Model, ParameterFilter, Stateful};

use super::{Fails, WAYS, assert_near, fail, held, linear};
use crate::traced::{denied, ones, row};
use crate::types::numbers;

type Trained = (Model<nn::Linear>, Stateful<Sgd>);

fn trained() -> Result<Trained> {
    let mut sgd = Sgd::new(0.125);
    sgd.momentum = 0.5;
    Ok((linear(true, true)?.lora("weight", LoraConfig::default())?, Stateful(sgd)))
}

/// In every order of four calls, with one before each that fails, and with a copy of the state that somebody keeps.
#[test]
fn a_step_of_training_and_one_of_evaluation_share_a_model() -> Result<()> {
    let fails = Cell::new(Fails::No);
    let train = |(model, optimizer): &mut Trained, x: Array| -> Result<Array> {
        let (loss, gradients) = model
            .value_and_grad(ParameterFilter::default(), x, |model, x: Array| model.forward(&x)?.square()?.sum(None))?;
        optimizer.update(model, gradients)?;
        fail(fails.get(), &loss)?;
        Ok(loss)
    };
    let evaluate = |(model, _): &mut Trained, x: Array| -> Result<Array> {
        let y = model.forward(&x)?;
        fail(fails.get(), &y)?;
        Ok(y)
    };
    let first = trained()?;
    for order in 0..16 {
        let (mut eager, mut state) = (first.clone(), first.clone());
        let (mut training, mut evaluation) =
            (compile_with_state(denied(), train), compile_with_state(denied(), evaluate));
        for (call, &way) in WAYS.iter().enumerate() {
            let trains = order >> call & 1 == 0;
            let mut called = |state: &mut Trained, x: &Array| {
                if trains { training.call(state, x) } else { evaluation.call(state, x) }
            };
            let (kept, before) = (state.clone(), held(&state.0));
            // Of another number of rows, so that it is traced.
            fails.set(way);
            assert!(called(&mut state, &ones(&[2 + call as i32, 64])).is_err());
            fails.set(Fails::No);
            assert_eq!(held(&state.0), before);
            let x = ones(&[1, 64]).multiply(Array::from_f32(0.25 * (call + 1) as f32))?;
            let found = called(&mut state, &x)?.dense()?;
            let expected = if trains { train(&mut eager, x)? } else { evaluate(&mut eager, x)? };
            assert_near(&numbers(&found), &numbers(&expected));
            for ((_, found), (_, expected)) in held(&state.0).iter().zip(&held(&eager.0)) {
                assert_near(found, expected);
            }
            assert_eq!(held(&kept.0), before);
        }
    }
    Ok(())
}

/// An argument that is in the state, and twice; arrays of the state that somebody else holds.
#[test]
fn arrays_that_are_in_the_state_and_elsewhere_stay() -> Result<()> {
    let mut state = (row(&[1.0, 2.0]), vec![row(&[3.0, 4.0])]);
    for removes in [false, true, false, true] {
        let mut step = compile_with_state(
            denied(),
            |(a, list): &mut (Array, Vec<Array>), (x, y): (Array, Array)| -> Result<Array> {
                let sum = x.add(&y)?.add(&*a)?;
                *a = list[0].clone();
                list[0] = sum.clone();
                list.push(x);
                if removes {
                    list.remove(0);
                }
                Ok(sum)
            },
        );
        let (one, other) = (state.0.clone(), state.1[0].clone());
        let (kept, others) = (numbers(&one), numbers(&other));
        let y = step.call(&mut state, (&one, &one))?.dense()?;
        assert_eq!(numbers(&y), kept.iter().map(|x| 3.0 * x).collect::<Vec<_>>());
        assert_eq!(numbers(&state.0), others);
        assert_eq!((numbers(&one), numbers(&other)), (kept, others));
    }
    Ok(())
}
