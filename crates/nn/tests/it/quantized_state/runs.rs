//! Runs that are long, and runs that go on in another format or from a file.

use expect_test::expect;
use mlx_rs::module::Module;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::optimizers::{Adam, Optimizer, OptimizerState};
use mlx_rs::{Array, Dtype, nn, ops, random};
use tacit_core::compile::{CompileOptions, compile_with_state};
use tacit_core::{Error, Policy, Result, Tree, tree};
use tacit_nn::{Model, ParameterFilter, QuantizedState, SavedMoments, Stateful};

use super::{gradients, losses, model};
use crate::types::{error, normal, numbers};

/// Moments that an optimizer has are quantized, and those of other formats are coded again by the next step.
#[test]
fn a_run_goes_on_in_fewer_bits() {
    let _allow = Policy::Allow.scope();
    let mut float = Stateful(Adam::new(1e-3));
    losses(&mut float, 2);
    let own = float.0.state.flatten().expect("lists").into_iter().map(|(key, array)| (key, array.clone()));
    let own: std::collections::BTreeMap<_, _> = own.collect();
    let mut optimizer = QuantizedState::eight_bits(float.0).expect("formats");
    let values = optimizer.values().expect("values");
    assert_eq!(values["weight.1"].to_string(), "Dynamic(f32[64,96])");
    let [a, b] = [values["weight.1"].dense().expect("dense"), own["weight.1"].clone()];
    let largest = b.max(None).expect("the largest").item_exact::<f32>();
    assert!(a.all_close(&b, 0.0, f64::from(0.01 * largest), None).expect("compares"));
    let (mut model, key) = (model(), "weight.1");
    *optimizer.state_mut() =
        SavedMoments::of_values(&[(key.to_owned(), b.into())].into()).expect("lists").expect("moments");
    let (_, gradients) = gradients(&mut model, 10).expect("differentiates");
    // One of two moments is none that mlx-rs takes.
    expect![[r#"
        mlx-rs does not take the moments: Expecting next (key, value) pair, found none
        help: restore the moments of an optimizer of the same kind"#]]
    .assert_eq(&error(model.update(&mut optimizer, &gradients)).to_string());
}

/// mlx-rs's own way to save is that of arrays.
#[test]
fn arrays_are_saved_and_loaded_into_moments_that_there_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("moments.safetensors");
    let mut optimizer = QuantizedState::eight_bits(Adam::new(1e-3)).expect("formats");
    losses(&mut optimizer, 2);
    optimizer.state_mut().save_safetensors(&path).expect("saves");
    let mut other = QuantizedState::eight_bits(Adam::new(1e-3)).expect("formats");
    assert!(other.state_mut().load_safetensors(&path).is_err());
    assert_eq!(other.nbytes(), 0);
    losses(&mut other, 1);
    other.state_mut().load_safetensors(&path).expect("loads");
    let arrays = |own: &QuantizedState<Adam>| {
        let floats = |array: &Array| numbers(&array.as_dtype(Dtype::Float32).expect("casts"));
        tree::arrays(own).expect("arrays").iter().map(floats).collect::<Vec<_>>()
    };
    assert_eq!(arrays(&other), arrays(&optimizer));
}

/// Inputs whose columns have magnitudes from a millionth to a hundred, most of them zero in any step: what an 8-bit state without
/// small codes divides by zero for.
fn spread(step: u64) -> Array {
    let exponents = ops::arange::<_, f32>(None, 96, None).and_then(|i| i.multiply(Array::from_f32(8.0 / 95.0)));
    let magnitudes = exponents.and_then(|e| ops::power(Array::from_f32(10.0), e.subtract(Array::from_f32(6.0))?));
    let key = random::key(1_000_000 + step).expect("a key");
    let seen = random::bernoulli(&Array::from_f32(0.1), &[32, 96], &key).expect("draws");
    normal(step, &[32, 96]).multiply(magnitudes.expect("powers")).and_then(|x| x.multiply(seen)).expect("multiplies")
}

/// The losses of a compiled training, the mean of each hundred steps.
fn long_run<S: Tree, O: Optimizer>(optimizer: S, own: fn(&mut S) -> &mut O, steps: u64) -> Vec<f32> {
    let mut state = (model(), optimizer);
    let step = |(model, optimizer): &mut (Model<nn::Linear>, S), x: Array| {
        let trained = ParameterFilter::default();
        let (loss, gradients) = model.value_and_grad(trained, &x, |m, x: &Array| {
            let y = m.forward(x)?.subtract(x.try_index((.., ..64))?)?;
            y.square()?.mean(None)
        })?;
        model.update(own(optimizer), &gradients)?;
        Ok::<_, Error>(loss)
    };
    let mut function = compile_with_state(CompileOptions::default(), step);
    let mut hundred = |from: u64| {
        let losses = (from..from + 100).map(|step| function.call(&mut state, spread(step))?.dense());
        let losses = losses.collect::<Result<Vec<_>>>().expect("runs");
        let mean = ops::stack(&losses, 0).and_then(|losses| losses.mean(None)).expect("a mean").item_exact::<f32>();
        for (path, leaf) in state.0.leaves(&ParameterFilter::All) {
            let finite = leaf.is_finite().and_then(|finite| finite.all(None)).expect("compares");
            assert!(finite.item_exact::<bool>(), "{path} is not finite after step {}", from + 100);
        }
        mean
    };
    (0..steps / 100).map(|at| hundred(100 * at)).collect()
}

/// A thousand steps, or as many hundreds as `TACIT_STEPS` says.
#[test]
fn a_long_run_on_inputs_of_all_magnitudes_stays_finite() {
    let steps = std::env::var("TACIT_STEPS").map_or(1000, |steps| steps.parse().expect("a number of steps"));
    let _deny = Policy::Deny.scope();
    let adam = || Adam::new(1e-3);
    let float = long_run(Stateful(adam()), |adam| &mut adam.0, steps);
    let eight = long_run(QuantizedState::eight_bits(adam()).expect("formats"), |adam| adam, steps);
    let four = long_run(QuantizedState::four_bits(adam()).expect("formats"), |adam| adam, steps);
    let [float, eight, four] = [float, eight, four].map(|losses| losses[losses.len() - 1]);
    println!("{steps} steps: {float} with floats, {eight} in 8 bits, {four} in 4");
    assert!((eight - float).abs() < 0.05 * float, "{eight} and {float}");
    assert!(four < 2.0 * float, "{four} and {float}");
}
