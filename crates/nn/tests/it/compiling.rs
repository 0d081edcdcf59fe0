//! Modules and optimizers as the state of a compiled function.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::cell::Cell;
use std::collections::BTreeMap;

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::module::{Module as _, Parameter};
use mlx_rs::nn::Sequential;
use mlx_rs::optimizers::{Adam, Optimizer, Sgd};
use mlx_rs::random::RandomState;
use mlx_rs::{Array, nn, random, transforms};
use tacit_core::compile::CompiledWithState;
use tacit_core::{Error, Result, compile_with_state};
use tacit_nn::{Model, Module, ParameterFilter, Stateful};

use crate::traced::{denied, ones, row};

#[test]
fn an_optimizers_moments_appear_with_the_first_step() -> Result<()> {
    let step = |(w, optimizer): &mut (Array, Stateful<Sgd>), x: Array| {
        let gradient = transforms::grad(|w: &Array| w.multiply(&x)?.square()?.sum(None))(w)?;
        optimizer.update_single(&"w".into(), &gradient, w)?;
        Ok::<_, Exception>(())
    };
    let sgd = || -> Result<Sgd> {
        let mut sgd = Sgd::new(0.1);
        sgd.momentum = 0.9;
        Ok(sgd)
    };
    let mut eager = (ones(&[3]), Stateful(sgd()?));
    let mut state = (ones(&[3]), Stateful(sgd()?));
    let mut compiled = compile_with_state(denied(), step);
    for i in 0..4 {
        let x = ones(&[3]).multiply(Array::from_f32(0.1 * i as f32))?;
        step(&mut eager, x.clone())?;
        compiled.call(&mut state, &x)?;
    }
    assert_eq!(state.0.as_slice::<f32>(), eager.0.as_slice::<f32>());
    assert_eq!(compiled.stats().traces, 2);
    Ok(())
}

/// A field that is no leaf is what it was, whether a trace goes well or fails.
#[test]
fn a_rate_that_a_trace_assigned_is_not_left_in_the_state() -> Result<()> {
    let step = |(w, optimizer): &mut (Array, Stateful<Adam>), (x, rate): (Array, Array)| -> Result<()> {
        optimizer.lr = rate;
        let gradient = transforms::grad(|w: &Array| w.multiply(&x)?.square()?.sum(None))(w)?;
        optimizer.update_single(&"w".into(), &gradient, w)?;
        Ok(())
    };
    let mut state = (ones(&[3]), Stateful(Adam::new(0.1)));
    let mut compiled = compile_with_state(denied(), step);
    let rate = Array::from_f32(0.25);
    // The first call makes the moments, and takes the other fields of the optimizer that it traced.
    compiled.call(&mut state, (ones(&[3]), &rate))?;
    state.1.lr = Array::from_f32(0.5);
    compiled.call(&mut state, (ones(&[3]), &rate))?;
    assert_eq!(state.1.lr.item_exact::<f32>(), 0.5);
    // MLX refuses the shapes after the rate was assigned.
    assert!(compiled.call(&mut state, (ones(&[2]), &rate)).is_err());
    assert_eq!(state.1.lr.item_exact::<f32>(), 0.5);
    Ok(())
}

#[test]
fn a_random_key_in_the_state_moves_on() -> Result<()> {
    let mut draw = compile_with_state(denied(), |random: &mut Stateful<RandomState>, (): ()| {
        random::uniform::<_, f32>(0.0, 1.0, &[2], &random.next_key()?)
    });
    let mut compiled = Stateful(RandomState::with_seed(7)?);
    let mut eager = RandomState::with_seed(7)?;
    for _ in 0..3 {
        let made = draw.call(&mut compiled, ())?.dense()?;
        let expected = random::uniform::<_, f32>(0.0, 1.0, &[2], &eager.next_key()?)?;
        // MLX writes seven digits of a scalar into the source of a fused kernel.
        for (a, b) in made.as_slice::<f32>().iter().zip(expected.as_slice::<f32>()) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
    }
    assert_eq!(draw.stats().traces, 1);
    Ok(())
}

/// `Dropout` draws from the random state of the thread, as eager steps do.
#[test]
fn dropout_drops_others_in_each_compiled_step() -> Result<()> {
    let layers = Sequential::new()
        .append(nn::Linear::new(8, 64)?)
        .append(nn::DropoutBuilder::new().p(0.5).build().expect("a probability"))
        .append(nn::Relu);
    let step = |model: &mut Model<Sequential>, x: Array| -> Result<(Array, Array)> {
        let (dropped, gradients) =
            model.value_and_grad(ParameterFilter::All, x.clone(), |model, x: Array| model.forward(&x)?.sum(None))?;
        Ok((dropped, gradients["layers.0.bias"].clone()))
    };
    let mut run = compile_with_state(denied(), step);
    let (mut model, x) = (Model::new(layers)?, ones(&[4, 8]));
    let mut calls = |run: &mut CompiledWithState<'_, Model<Sequential>, Array, (Array, Array)>| -> Result<_> {
        let mut masks = Vec::new();
        for _ in 0..3 {
            let (_, gradient) = run.call(&mut model, x.clone())?;
            masks.push(gradient.dense()?.as_slice::<f32>().to_vec());
        }
        Ok(masks)
    };
    calls(&mut run)?;
    random::seed(5)?;
    let first = calls(&mut run)?;
    random::seed(5)?;
    assert_eq!(calls(&mut run)?, first);
    assert!(first[0] != first[1] && first[1] != first[2], "{first:?}");
    // Each element that is kept counts twice, and about half of all of them are.
    let kept = first.iter().flatten().filter(|gradient| **gradient > 0.0).count();
    assert!(first.iter().flatten().all(|gradient| gradient % 2.0 == 0.0) && kept > 40, "{first:?}");
    assert_eq!(run.stats().traces, 1);

    mlx_rs::module::Module::<&Array>::training_mode(&mut model, false);
    let (a, b) = (run.call(&mut model, x.clone())?.0.dense()?, run.call(&mut model, x.clone())?.0.dense()?);
    assert_eq!(a.item_exact::<f32>(), b.item_exact::<f32>());
    assert_eq!(run.stats().retraces().collect::<Vec<_>>(), ["static training true -> false at `state`"]);
    Ok(())
}

#[test]
fn modules_in_a_map_are_a_state_and_keep_their_other_fields() -> Result<()> {
    let mut f = compile_with_state(denied(), |modules: &mut BTreeMap<String, Module<Sequential>>, x: Array| {
        let layers = modules.get_mut("layers").ok_or_else(|| Error::invalid("no layers", "add them"))?;
        Ok::<_, Error>(layers.forward(&x)?)
    });
    let layers = Sequential::new().append(nn::Linear::new(2, 3)?);
    let mut state = BTreeMap::from([("layers".to_owned(), Module::in_place(layers))]);
    for _ in 0..2 {
        let made = f.call(&mut state, row(&[1.0, 2.0]))?.dense()?;
        let expected = state.get_mut("layers").expect("it is there").forward(&row(&[1.0, 2.0]))?;
        assert!(made.all_close(&expected, None, None, None)?);
    }
    assert_eq!(f.stats().traces, 1);
    Ok(())
}

#[test]
fn a_bias_that_appears_is_taken_back_where_the_function_fails() -> Result<()> {
    let fails = Cell::new(true);
    let mut f = compile_with_state(denied(), |linear: &mut Module<nn::Linear>, x: Array| {
        linear.bias.value = Some(x.clone());
        if fails.get() { Err(Error::invalid("not now", "try again")) } else { Ok(linear.forward(&x)?) }
    });
    let unbiased =
        || -> Result<Module<nn::Linear>> { Ok(Module::new(nn::LinearBuilder::new(2, 2).bias(false).build()?)) };
    let mut linear = unbiased()?;
    assert!(f.call(&mut linear, row(&[1.0, 2.0])).is_err());
    assert!(linear.bias.value.is_none());
    fails.set(false);
    for _ in 0..2 {
        let mut linear = unbiased()?;
        f.call(&mut linear, row(&[1.0, 2.0]))?;
        assert_eq!(linear.bias.value.as_ref().map(Array::as_slice::<f32>), Some(&[1.0, 2.0][..]));
    }
    assert_eq!(f.stats().traces, 1);
    Ok(())
}

#[test]
fn freezing_after_a_trace_is_another_trace() -> Result<()> {
    let mut f = compile_with_state(denied(), |linear: &mut Module<nn::Linear>, x: Array| linear.forward(&x));
    let mut linear = Module::new(nn::Linear::new(2, 2)?);
    f.call(&mut linear, row(&[1.0, 2.0]))?;
    linear.weight.freeze(true);
    f.call(&mut linear, row(&[1.0, 2.0]))?;
    assert_eq!(f.stats().retraces().collect::<Vec<_>>(), ["an array -> a frozen array at `state.weight`"]);
    Ok(())
}
