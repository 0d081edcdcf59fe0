//! What a compiled step gives back of its state as it was given, between what it changes.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use mlx_rs::builder::Builder as _;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module as _, ModuleParameters as _, Param};
use mlx_rs::{Array, nn, ops};
use tacit_arrays::Lora;
use tacit_arrays::format::Nf4;
use tacit_core::{Result, Value, array_id, compile_with_state};
use tacit_nn::{Model, ParameterFilter};

use crate::traced::{denied, ones};
use crate::types::{numbers, vector};

/// Two parameters of one shape.
#[derive(Debug, Clone, ModuleParameters)]
struct Pair {
    #[param]
    first: Param<Array>,
    #[param]
    second: Param<Array>,
}

fn pair() -> Result<Model<Pair>> {
    Model::new(Pair { first: Param::new(vector(&[1.0, 2.0])), second: Param::new(vector(&[3.0, 4.0])) })
}

fn held(model: &Model<Pair>) -> Vec<Vec<f32>> {
    model.leaves(&ParameterFilter::All).into_iter().map(|(_, array)| numbers(array)).collect()
}

fn leaf(model: &Model<Pair>, at: usize) -> Array {
    model.leaves(&ParameterFilter::All)[at].1.clone()
}

/// Gives both parameters these arrays.
fn put(model: &mut Model<Pair>, first: Array, second: Array) -> Result<()> {
    model.set_leaves([("first".to_owned(), first), ("second".to_owned(), second)])
}

#[test]
fn a_model_that_a_step_only_reads_keeps_its_arrays() -> Result<()> {
    let model = Model::new(nn::Linear::new(64, 64)?)?.quantize("weight", Nf4 { block: 64, double: false })?;
    let ids = |model: &Model<nn::Linear>| -> Vec<usize> {
        model.leaves(&ParameterFilter::All).into_iter().map(|(_, array)| array_id(array)).collect()
    };
    let step = |(model, sum): &mut (Model<nn::Linear>, Value), x: Array| {
        let y = model.forward(&x)?;
        *sum = sum.dense()?.add(&y)?.into();
        Ok::<_, tacit_core::Error>(y)
    };
    let start = || -> Result<Value> { Ok(ops::zeros::<f32>(&[1, 64])?.into()) };
    let (mut eager, mut state) = ((model.clone(), start()?), (model, start()?));
    let own = ids(&state.0);
    let mut compiled = compile_with_state(denied(), step);
    for i in 0..4 {
        let x = ones(&[1, 64]).multiply(Array::from_f32(i as f32))?;
        let expected = step(&mut eager, x.clone())?;
        assert_eq!(numbers(&compiled.call(&mut state, &x)?.dense()?), numbers(&expected));
        assert_eq!(numbers(&state.1.dense()?), numbers(&eager.1.dense()?));
        assert_eq!(ids(&state.0), own);
    }
    assert_eq!(compiled.stats().traces, 1);
    Ok(())
}

/// The leaves are those that were given, in other places.
#[test]
fn parameters_that_change_places_do() -> Result<()> {
    let mut state = (pair()?, vector(&[0.0]));
    let mut compiled = compile_with_state(denied(), |(model, count): &mut (Model<Pair>, Array), (): ()| {
        *count = count.add(Array::from_f32(1.0))?;
        let (first, second) = (leaf(model, 0), leaf(model, 1));
        put(model, second, first)
    });
    for i in 0..3 {
        compiled.call(&mut state, ())?;
        let expected = if i % 2 == 0 { [[3.0, 4.0], [1.0, 2.0]] } else { [[1.0, 2.0], [3.0, 4.0]] };
        assert_eq!(held(&state.0), expected);
        assert_eq!(numbers(&state.1), [i as f32 + 1.0]);
    }
    Ok(())
}

/// Each parameter becomes what stood before it, the first one what stood outside of the model.
#[test]
fn parameters_that_move_up_by_one_do() -> Result<()> {
    let mut state = (Some(vector(&[5.0, 6.0])), pair()?, vector(&[0.0]));
    let mut compiled =
        compile_with_state(denied(), |(spare, model, count): &mut (Option<Array>, Model<Pair>, Array), (): ()| {
            *count = count.add(Array::from_f32(1.0))?;
            if let Some(spare) = spare.take() {
                let first = leaf(model, 0);
                put(model, spare, first)?;
            }
            Ok::<_, tacit_core::Error>(())
        });
    for expected in [[[5.0, 6.0], [1.0, 2.0]]; 3] {
        compiled.call(&mut state, ())?;
        assert!(state.0.is_none());
        assert_eq!(held(&state.1), expected);
    }
    Ok(())
}

/// The arrays are those that were given; what they are made into is not.
#[test]
fn another_form_of_the_same_leaves_is_put_in_place() -> Result<()> {
    let mut model = Model::new(nn::LinearBuilder::new(2, 2).bias(false).build()?)?;
    let (a, b) = (ones(&[1, 2]), ones(&[2, 1]));
    let base = ops::zeros::<f32>(&[2, 2])?;
    model.replace("weight", |_, _| Ok(Some(Lora::new(base.clone(), a.clone(), b.clone(), 1.0)?.into())))?;
    let mut compiled = compile_with_state(denied(), |model: &mut Model<nn::Linear>, x: Array| {
        let y = model.forward(&x)?;
        model.replace("weight", |_, weight| {
            let Some(lora) = weight.downcast::<Lora>() else { return Ok(None) };
            let twice = Lora::new(lora.base().clone(), lora.a().clone(), lora.b().clone(), 2.0 * lora.scale())?;
            Ok(Some(twice.into()))
        })?;
        Ok::<_, tacit_core::Error>(y)
    });
    for factor in [1.0, 2.0, 4.0] {
        let y = compiled.call(&mut model, ones(&[1, 2]))?.dense()?;
        assert_eq!(numbers(&y), [2.0 * factor; 2]);
    }
    Ok(())
}

/// By each way in which a module's own parameters change between two calls.
#[test]
fn parameters_that_changed_since_the_last_call_are_the_new_ones() -> Result<()> {
    let mut model = pair()?;
    let mut compiled = compile_with_state(denied(), |model: &mut Model<Pair>, x: Array| {
        model.run(|pair| pair.first.multiply(&x)?.add(&*pair.second))
    });
    let mut call =
        |model: &mut Model<Pair>| -> Result<Vec<f32>> { Ok(numbers(&compiled.call(model, ones(&[2]))?.dense()?)) };
    assert_eq!(call(&mut model)?, [4.0, 6.0]);
    put(&mut model, vector(&[0.0, 0.0]), vector(&[3.0, 4.0]))?;
    assert_eq!(call(&mut model)?, [3.0, 4.0]);
    for (path, array) in model.parameters_mut().flatten() {
        *array = vector(if &*path == "first" { &[7.0, 7.0] } else { &[1.0, 1.0] });
    }
    assert_eq!(call(&mut model)?, [8.0, 8.0]);
    model.run(|pair| {
        pair.second = Param::new(vector(&[2.0, 2.0]));
        Ok::<_, tacit_core::Error>(())
    })?;
    assert_eq!(call(&mut model)?, [9.0, 9.0]);
    model.replace("first", |_, _| Ok(Some(vector(&[0.0, 1.0]).into())))?;
    assert_eq!(call(&mut model)?, [2.0, 3.0]);
    let mut other = model.clone();
    put(&mut other, vector(&[1.0, 1.0]), vector(&[0.0, 0.0]))?;
    assert_eq!((call(&mut other)?, call(&mut model)?), (vec![1.0, 1.0], vec![2.0, 3.0]));
    model.freeze_parameters(true);
    assert_eq!(call(&mut model)?, [2.0, 3.0]);
    assert_eq!(compiled.stats().traces, 2, "frozen parameters are another structure");
    Ok(())
}
