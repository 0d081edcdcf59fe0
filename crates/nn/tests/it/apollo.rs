//! Optimizers that step by gradients of a low rank.

use expect_test::expect;
use mlx_rs::builder::Builder;
use mlx_rs::module::Module;
use mlx_rs::optimizers::{Adafactor, Adam, AdamW, Lion, Optimizer, Sgd, SgdBuilder};
use mlx_rs::{Array, Dtype, nn, ops};
use tacit_core::compile::compile_with_state;
use tacit_core::{Error, Policy, Result, tree};
use tacit_nn::{Apollo, Model, ParameterFilter, QuantizedState, Rules};

use crate::traced::denied;
use crate::types::{error, normal, numbers, said_of};

type Linear = Model<nn::Linear>;

/// A layer of zeros.
fn model() -> Result<Linear> {
    let mut linear = nn::Linear::new(96, 64)?;
    *linear.weight = ops::zeros::<f32>(&[64, 96])?;
    *linear.bias = Some(ops::zeros::<f32>(&[64])?);
    Model::new(linear)
}

/// Inputs, and outputs of a layer that is to be learned, with noise whose square has a mean of a quarter.
fn batch(seed: u64, rows: i32) -> Result<(Array, Array)> {
    let (x, noise) = (normal(2 * seed, &[rows, 96]), normal(2 * seed + 1, &[rows, 64]));
    let weight = normal(1_000_000, &[96, 64]).divide(Array::from_f32(8.0))?;
    let y = x.matmul(weight)?.add(noise.divide(Array::from_f32(2.0))?)?;
    Ok((x, y))
}

fn loss(model: &mut Linear, (x, y): (Array, Array)) -> Result<Array> {
    Ok(model.forward(&x)?.subtract(y)?.square()?.mean(None)?)
}

fn step<O: Optimizer>(model: &mut Linear, optimizer: &mut O, batch: (Array, Array)) -> Result<Array> {
    let (loss, gradients) = model.value_and_grad(ParameterFilter::default(), batch, loss)?;
    model.update(optimizer, &gradients)?;
    Ok(loss)
}

/// The loss after so many steps, on other inputs.
fn trained<O: Optimizer>(optimizer: &mut O, steps: u64) -> Result<f32> {
    let mut model = model()?;
    for at in 0..steps {
        step(&mut model, optimizer, batch(at, 64)?)?;
        model.eval()?;
    }
    Ok(loss(&mut model, batch(100_000, 1024)?)?.item_exact::<f32>())
}

/// An optimizer with float moments.
fn floats<O: Optimizer>(optimizer: O, apollo: Apollo) -> Result<QuantizedState<O>> {
    QuantizedState::new(optimizer, &Rules::new())?.apollo("*", apollo)
}

#[test]
fn a_run_is_as_good_as_adams_with_a_quarter_of_its_state() -> Result<()> {
    let mut whole = QuantizedState::new(Adam::new(3e-3), &Rules::new())?;
    let expected = trained(&mut whole, 100)?;
    assert!(expected < 0.3, "{expected}");
    // The second is as long a step as Adam's, and its projection is drawn anew after half of the run.
    for apollo in [Apollo::mini(), Apollo { scale: 8f32.sqrt(), period: 50, ..Apollo::new(8) }] {
        let mut low = floats(Adam::new(3e-3), apollo)?;
        let found = trained(&mut low, 100)?;
        assert!(found < 1.02 * expected, "{found} and {expected} with {apollo:?}");
        assert!(4 * low.nbytes() <= whole.nbytes(), "{} and {} bytes", low.nbytes(), whole.nbytes());
        assert_eq!(low.nbytes(), 2 * 4 * (apollo.rank * 96 + 64) + 2 * 4 + 4);
    }
    Ok(())
}

/// An optimizer that goes along the gradient goes as far along it whatever the projection says: the ratio of both norms is the rate.
#[test]
fn a_step_without_moments_is_that_of_the_whole_gradient() -> Result<()> {
    let shapes: [&[i32]; 3] = [&[24, 40], &[40, 24], &[3, 24, 40]];
    for (shape, dtype) in shapes.into_iter().flat_map(|shape| [(shape, Dtype::Float32), (shape, Dtype::Bfloat16)]) {
        for apollo in [Apollo::new(4), Apollo::new(1), Apollo { scale: 0.5, seed: 7, ..Apollo::new(23) }] {
            let (mut w, g) = (normal(1, shape).as_dtype(dtype)?, normal(2, shape).as_dtype(dtype)?);
            let by = |factor: f32, x: &Array| x.as_dtype(Dtype::Float32)?.multiply(Array::from_f32(factor));
            // The decay is that of the parameter, with nothing of the scale.
            let expected = by(0.95, &w)?.subtract(by(0.1 * apollo.scale, &g)?)?;
            let mut sgd = floats(SgdBuilder::new(0.1).weight_decay(0.5).build()?, apollo)?;
            sgd.update_single(&"weight".into(), &g, &mut w)?;
            assert_eq!(w.dtype(), Dtype::Float32);
            assert!(w.all_close(&expected, 1e-4, 1e-4, None)?, "{shape:?} in {dtype:?} with {apollo:?}");
        }
    }
    Ok(())
}

#[test]
fn weight_decay_is_that_of_the_optimizer() -> Result<()> {
    let (w, g) = (normal(1, &[24, 40]), normal(2, &[24, 40]));
    let (mut with, mut without) = (w.clone(), w.clone());
    let mut adamw = AdamW::new(1e-2);
    adamw.weight_decay = Array::from_f32(0.5);
    floats(adamw, Apollo::new(4))?.update_single(&"weight".into(), &g, &mut with)?;
    floats(Adam::new(1e-2), Apollo::new(4))?.update_single(&"weight".into(), &g, &mut without)?;
    let decayed = without.subtract(w.multiply(Array::from_f32(5e-3))?)?;
    assert!(with.all_close(&decayed, 1e-5, 1e-5, None)?);
    Ok(())
}

#[test]
fn an_update_grows_by_a_hundredth_at_most_whatever_the_rate() -> Result<()> {
    let (mut sgd, g) = (floats(Sgd::new(0.0), Apollo::new(4))?, normal(2, &[24, 40]));
    let mut length = |rate: f32, times: f32| -> Result<f32> {
        sgd.lr = rate;
        let mut w = ops::zeros::<f32>(&[24, 40])?;
        sgd.update_single(&"weight".into(), &g.multiply(Array::from_f32(times))?, &mut w)?;
        Ok(w.square()?.sum(None)?.sqrt()?.item_exact::<f32>())
    };
    let near = |found: f32, expected: f32| {
        assert!((found - expected).abs() < 1e-3 * expected, "{found} and {expected}");
    };
    // Steps that move nothing, as a warm-up begins with one, bound no other.
    assert!(length(0.0, 1.0)? < 1e-9);
    let first = length(0.1, 1.0)?;
    assert!(length(0.1, 0.0)? < 1e-9);
    near(length(0.1, 10.0)?, 1.01 * first);
    near(length(0.2, 0.5)?, first);
    near(length(0.2, 1.0)?, 1.01 * first);
    Ok(())
}

#[test]
fn projections_depend_on_the_seed_the_path_and_the_period() -> Result<()> {
    let mean = |path: &str, apollo: Apollo, steps: u32| -> Result<Vec<f32>> {
        let (mut adam, mut w) = (floats(Adam::new(1e-2), apollo)?, normal(1, &[24, 40]));
        for _ in 0..steps {
            adam.update_single(&path.into(), &normal(2, &[24, 40]), &mut w)?;
        }
        Ok(numbers(&adam.values()?[&format!("{path}.0")].dense()?))
    };
    let (new, seeded) = (Apollo::new(4), Apollo { seed: 1, ..Apollo::new(4) });
    assert_eq!(mean("a.weight", new, 1)?, mean("a.weight", new, 1)?);
    assert_ne!(mean("a.weight", new, 1)?, mean("b.weight", new, 1)?);
    assert_ne!(mean("a.weight", new, 1)?, mean("a.weight", seeded, 1)?);
    let each = Apollo { period: 1, ..new };
    assert_eq!(mean("a.weight", each, 1)?, mean("a.weight", new, 1)?);
    assert_ne!(mean("a.weight", each, 2)?, mean("a.weight", new, 2)?);
    Ok(())
}

#[test]
fn a_compiled_step_is_the_eager_one_and_draws_within_its_two_traces() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let apollo = Apollo { period: 2, scale: 2.0, ..Apollo::new(8) };
    let new = || Ok::<_, Error>((model()?, floats(Adam::new(3e-3), apollo)?));
    let (mut eager, mut compiled) = (new()?, new()?);
    let mut function =
        compile_with_state(denied(), |(model, adam): &mut (Linear, QuantizedState<Adam>), batch: (Array, Array)| {
            step(model, adam, batch)
        });
    for at in 0..6 {
        let expected = numbers(&step(&mut eager.0, &mut eager.1, batch(at, 32)?)?)[0];
        let found = numbers(&function.call(&mut compiled, batch(at, 32)?)?.dense()?)[0];
        assert!((expected - found).abs() < 1e-4 * expected, "{expected} and {found} in step {at}");
    }
    assert_eq!(function.stats().traces, 2);
    let [eager, compiled] = [eager.1.values()?, compiled.1.values()?];
    for (key, value) in &eager {
        let [a, b] = [value.dense()?, compiled[key].dense()?];
        assert!(a.all_close(&b, 1e-3, 1e-6, None)?, "{key}");
    }
    let draw = compiled["weight.apollo_draw"].dense()?;
    draw.eval()?;
    assert_eq!(draw.as_slice::<u32>()[1], 6);
    Ok(())
}

/// Before there are moments, the projections alone say what the first step makes.
#[test]
fn a_compiled_step_serves_optimizers_of_other_ranks() -> Result<()> {
    let mut function =
        compile_with_state(denied(), |(model, adam): &mut (Linear, QuantizedState<Adam>), batch: (Array, Array)| {
            step(model, adam, batch)
        });
    for rank in [8, 4] {
        let mut state = (model()?, floats(Adam::new(3e-3), Apollo::new(rank))?);
        function.call(&mut state, batch(0, 32)?)?;
        assert_eq!(state.1.values()?["weight.0"].to_string(), format!("f32[{rank},96]"));
    }
    Ok(())
}

#[test]
fn moments_of_a_low_rank_take_formats() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let apollo = Apollo { scale: 8f32.sqrt(), ..Apollo::new(8) };
    let mut eight = QuantizedState::eight_bits(Adam::new(3e-3))?.from_elements(1).apollo("weight", apollo)?;
    let (found, expected) = (trained(&mut eight, 30)?, trained(&mut floats(Adam::new(3e-3), apollo)?, 30)?);
    assert!((found - expected).abs() < 0.02 * expected, "{found} and {expected}");
    let printed: Vec<String> = eight.values()?.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    expect![[r#"
        bias.0: Dynamic(f32[64])
        bias.1: Dynamic(f32[64])
        weight.0: Dynamic(f32[8,96])
        weight.1: Dynamic(f32[8,96])
        weight.apollo_draw: u32[2]
        weight.apollo_norm: f32[]"#]]
    .assert_eq(&printed.join("\n"));
    // The one moment of an optimizer has the path itself for its key. The first pattern counts, and a vector stays whole.
    let lion = QuantizedState::new(Lion::new(1e-3), &Rules::new())?;
    let mut lion = lion.apollo("bias", Apollo::mini())?.apollo("w*", Apollo::new(2))?.apollo("*", Apollo::new(4))?;
    trained(&mut lion, 2)?;
    let printed: Vec<String> = lion.values()?.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    expect![[r#"
        bias: f32[64]
        weight: f32[2,96]
        weight.apollo_draw: u32[2]
        weight.apollo_norm: f32[]"#]]
    .assert_eq(&printed.join("\n"));
    Ok(())
}

#[test]
fn a_gradient_of_nan_is_not_hidden() -> Result<()> {
    let (nan, path) = (ops::full::<f32>(&[64, 96], Array::from_f32(f32::NAN))?, "weight".into());
    let (mut w, mut adam) = (ops::zeros::<f32>(&[64, 96])?, floats(Adam::new(1e-3), Apollo::new(8))?);
    adam.update_single(&path, &nan, &mut w)?;
    assert!(w.is_nan()?.all(None)?.item_exact::<bool>());
    // A NaN has no code, and says so when it is evaluated.
    let mut codes = QuantizedState::eight_bits(Adam::new(1e-3))?.from_elements(1).apollo("*", Apollo::new(8))?;
    codes.update_single(&path, &nan, &mut w)?;
    expect![[r#"
        kernel DynamicQuantize failed: element 0 is NaN, which no code can hold
        help: replace NaN and infinities before quantizing"#]]
    .assert_eq(&error(tree::eval(&codes)).to_string());
    Ok(())
}

#[test]
fn bad_input() -> Result<()> {
    let new = |apollo| floats(Adam::new(1e-3), apollo);
    let mut said = [said_of(new(Apollo::new(0))), said_of(new(Apollo { period: 0, ..Apollo::new(8) }))].concat();
    for scale in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        assert!(new(Apollo { scale, ..Apollo::new(8) }).is_err());
    }
    said += &said_of(new(Apollo { scale: f32::NAN, ..Apollo::new(8) }));

    let (path, mut w, g) = ("weight".into(), normal(1, &[64, 96]), normal(2, &[64, 96]));
    let mut eight = new(Apollo::new(8))?;
    said += &said_of(eight.update_single(&path, &normal(3, &[63, 96]), &mut w).map_err(Error::from));
    eight.update_single(&path, &g, &mut w)?;
    // Moments of another rank, also of 1, which an optimizer would take for those of each row; and of a whole gradient.
    for other in [Apollo::new(4), Apollo::new(1)] {
        let (mut other, mut of_other) = (new(other)?, new(other)?);
        of_other.update_single(&path, &g, &mut w)?;
        *other.state_mut() = eight.state().clone();
        assert!(other.update_single(&path, &g, &mut w).is_err());
        *other.state_mut() = of_other.state().clone();
        other.update_single(&path, &g, &mut w)?;
        let mut eight = eight.clone();
        *eight.state_mut() = of_other.state().clone();
        assert!(eight.update_single(&path, &g, &mut w).is_err());
    }
    let mut whole = QuantizedState::new(Adam::new(1e-3), &Rules::new())?;
    *whole.state_mut() = eight.state().clone();
    said += &said_of(whole.update_single(&path, &g, &mut w).map_err(Error::from));
    let mut factored = floats(Adafactor::new()?, Apollo::new(8))?;
    assert!(step(&mut model()?, &mut factored, batch(0, 32)?).is_err());
    assert_eq!(factored.nbytes(), 0);
    said += &said_of(factored.update_single(&path, &g, &mut w).map_err(Error::from));
    expect![[r#"
        gradients are not projected to rank 0
        help: give at least 1, which `Apollo::mini` has
        gradients are not projected anew after 0 steps
        help: give at least 1, such as 200
        gradients are not scaled by NaN
        help: give a number above 0, such as 1
        the parameter weight is f32[64,96], and its gradient is f32[63,96]
        help: give a gradient of the parameter's own shape
        the moment weight.0 is f32[8,96], and its gradient is f32[64,96]
        help: take the projections that the moments are of, and an optimizer with a moment for each element
        the moment weight.exp_avg_sq_col is f32[96], and its gradient is f32[8,96]
        help: take the projections that the moments are of, and an optimizer with a moment for each element
    "#]]
    .assert_eq(&said);
    Ok(())
}
