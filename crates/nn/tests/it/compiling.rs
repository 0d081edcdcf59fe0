//! Modules and optimizers as the state of a compiled function.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::cell::Cell;
use std::collections::BTreeMap;

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::module::{Module as _, Parameter};
use mlx_rs::nn::Sequential;
use mlx_rs::optimizers::{Optimizer, Sgd};
use mlx_rs::random::RandomState;
use mlx_rs::{Array, nn, random, transforms};
use tacit_core::{Error, Result, compile_with_state};
use tacit_nn::{Module, Stateful};

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
    let mut compiled = compile_with_state(step, denied());
    for i in 0..4 {
        let x = ones(&[3]).multiply(Array::from_f32(0.1 * i as f32))?;
        step(&mut eager, x.clone())?;
        compiled.call(&mut state, &x.into())?;
    }
    assert_eq!(state.0.as_slice::<f32>(), eager.0.as_slice::<f32>());
    assert_eq!(compiled.stats().traces, 2);
    Ok(())
}

#[test]
fn a_random_key_in_the_state_moves_on() -> Result<()> {
    let mut draw = compile_with_state(
        |random: &mut Stateful<RandomState>, (): ()| random::uniform::<_, f32>(0.0, 1.0, &[2], &random.next_key()?),
        denied(),
    );
    let mut compiled = Stateful(RandomState::with_seed(7)?);
    let mut eager = RandomState::with_seed(7)?;
    for _ in 0..3 {
        let made = draw.call(&mut compiled, &())?.dense()?;
        let expected = random::uniform::<_, f32>(0.0, 1.0, &[2], &eager.next_key()?)?;
        // MLX writes seven digits of a scalar into the source of a fused kernel.
        for (a, b) in made.as_slice::<f32>().iter().zip(expected.as_slice::<f32>()) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
    }
    assert_eq!(draw.stats().traces, 1);
    Ok(())
}

#[test]
fn modules_in_a_map_are_a_state_and_keep_their_other_fields() -> Result<()> {
    let mut f = compile_with_state(
        |modules: &mut BTreeMap<String, Module<Sequential>>, x: Array| {
            let layers = modules.get_mut("layers").ok_or_else(|| Error::invalid("no layers", "add them"))?;
            Ok::<_, Error>(layers.forward(&x)?)
        },
        denied(),
    );
    let layers = Sequential::new().append(nn::Linear::new(2, 3)?);
    let mut state = BTreeMap::from([("layers".to_owned(), Module::in_place(layers))]);
    for _ in 0..2 {
        let made = f.call(&mut state, &row(&[1.0, 2.0]).into())?.dense()?;
        let expected = state.get_mut("layers").expect("it is there").forward(&row(&[1.0, 2.0]))?;
        assert!(made.all_close(&expected, None, None, None)?);
    }
    assert_eq!(f.stats().traces, 1);
    Ok(())
}

#[test]
fn a_bias_that_appears_is_taken_back_where_the_function_fails() -> Result<()> {
    let fails = Cell::new(true);
    let mut f = compile_with_state(
        |linear: &mut Module<nn::Linear>, x: Array| {
            linear.bias.value = Some(x.clone());
            if fails.get() { Err(Error::invalid("not now", "try again")) } else { Ok(linear.forward(&x)?) }
        },
        denied(),
    );
    let unbiased =
        || -> Result<Module<nn::Linear>> { Ok(Module::new(nn::LinearBuilder::new(2, 2).bias(false).build()?)) };
    let mut linear = unbiased()?;
    assert!(f.call(&mut linear, &row(&[1.0, 2.0]).into()).is_err());
    assert!(linear.bias.value.is_none());
    fails.set(false);
    for _ in 0..2 {
        let mut linear = unbiased()?;
        f.call(&mut linear, &row(&[1.0, 2.0]).into())?;
        assert_eq!(linear.bias.value.as_ref().map(Array::as_slice::<f32>), Some(&[1.0, 2.0][..]));
    }
    assert_eq!(f.stats().traces, 1);
    Ok(())
}

#[test]
fn freezing_after_a_trace_is_another_trace() -> Result<()> {
    let mut f = compile_with_state(|linear: &mut Module<nn::Linear>, x: Array| linear.forward(&x), denied());
    let mut linear = Module::new(nn::Linear::new(2, 2)?);
    f.call(&mut linear, &row(&[1.0, 2.0]).into())?;
    linear.weight.freeze(true);
    f.call(&mut linear, &row(&[1.0, 2.0]).into())?;
    assert_eq!(f.stats().retraces().collect::<Vec<_>>(), ["an array -> a frozen array at `state.weight`"]);
    Ok(())
}
