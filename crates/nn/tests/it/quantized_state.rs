//! Optimizers whose moments are implicit arrays.

mod runs;

use expect_test::expect;
use mlx_rs::builder::Builder;
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::optimizers::{
    AdaDelta, AdaGrad, Adafactor, AdafactorBuilder, Adam, AdamW, Lion, LionBuilder, Optimizer, RmsProp, Sgd,
};
use mlx_rs::{Array, Dtype, nn, ops};
use tacit_core::compile::{CompileOptions, compile_with_state};
use tacit_core::{Counters, Error, Policy, Result, Value, tree};
use tacit_nn::{Model, ParameterFilter, Parameters, QuantizedState, Rules, SavedMoments};

use crate::types::{error, normal, numbers, said_of};

fn model() -> Model<nn::Linear> {
    let mut linear = nn::Linear::new(96, 64).expect("builds");
    *linear.weight = normal(1, &[64, 96]).divide(Array::from_f32(8.0)).expect("divides");
    *linear.bias = Some(normal(2, &[64]));
    Model::new(linear).expect("a model")
}

/// The gradients of a loss whose least value is at zero.
fn gradients(model: &mut Model<nn::Linear>, seed: u64) -> Result<(Array, FlattenedModuleParam)> {
    let x = normal(seed, &[32, 96]);
    let trained = ParameterFilter::default();
    let (loss, gradients) = model.value_and_grad(trained, &x, |m, x: &Array| m.forward(x)?.square()?.mean(None))?;
    Ok((loss, gradients))
}

/// The losses of so many steps.
fn losses<O: Optimizer>(optimizer: &mut O, steps: u64) -> Vec<f32> {
    let mut model = model();
    let step = |at| {
        let (loss, gradients) = gradients(&mut model, 10 + at).expect("differentiates");
        model.update(optimizer, &gradients).expect("updates");
        model.eval().expect("evaluates");
        loss.item_exact::<f32>()
    };
    (0..steps).map(step).collect()
}

/// The relative distance of the last losses of a run with quantized moments and one with floats.
fn apart<O: Optimizer>(float: O, mut quantized: QuantizedState<O>) -> f32 {
    let mut float = float;
    let (expected, found) = (losses(&mut float, 30), losses(&mut quantized, 30));
    let (expected, found) = (expected[29], found[29]);
    (found - expected).abs() / expected
}

#[test]
fn a_run_is_that_of_floats_within_a_hundredth() {
    let _deny = Policy::Deny.scope();
    let adam = || Adam::new(3e-3);
    assert!(apart(adam(), QuantizedState::eight_bits(adam()).expect("formats")) < 0.01);
    // Sixteen values of a mean of squares, of which the least is a sixteenth of the largest: small steps are smaller here.
    assert!(apart(adam(), QuantizedState::four_bits(adam()).expect("formats")) < 0.15);
    let adamw = || AdamW::new(3e-3);
    assert!(apart(adamw(), QuantizedState::eight_bits(adamw()).expect("formats")) < 0.01);
    let lion = || Lion::new(1e-3);
    assert!(apart(lion(), QuantizedState::eight_bits(lion()).expect("formats")) < 0.01);
    let sgd = || {
        let mut sgd = Sgd::new(1e-1);
        sgd.momentum = 0.9;
        sgd
    };
    assert!(apart(sgd(), QuantizedState::eight_bits(sgd()).expect("formats")) < 0.01);
    let rms = || RmsProp::new(1e-3).expect("builds");
    assert!(apart(rms(), QuantizedState::eight_bits(rms()).expect("formats")) < 0.01);
    let grad = || AdaGrad::new(1e-2);
    assert!(apart(grad(), QuantizedState::eight_bits(grad()).expect("formats")) < 0.01);
}

fn alternating(pair: [f32; 2]) -> Array {
    Array::from_slice(&pair.repeat(2048), &[64, 64])
}

/// What a hundred steps leave of two means in each block that are those of all gradients.
fn kept<O: Optimizer>(mut optimizer: QuantizedState<O>, key: &str, pair: [f32; 2]) -> [f32; 2] {
    let gradient = alternating(pair);
    let squares = gradient.square().expect("squares");
    let moments = [(key.to_owned(), gradient.clone().into()), ("weight.1".to_owned(), squares.into())];
    let moments: Parameters = moments.into_iter().take(if key == "weight" { 1 } else { 2 }).collect();
    *optimizer.state_mut() = SavedMoments::of_values(&moments).expect("lists").expect("of its kind");
    for _ in 0..100 {
        optimizer.update_single(&"weight".into(), &gradient, &mut alternating([0.0, 0.0])).expect("steps");
    }
    let means = numbers(&optimizer.values().expect("values")[key].dense().expect("builds"));
    [means[0], means[1]]
}

/// The signed tables end nearer to zero below it, where absmax cuts off what lies beyond, in each step anew.
#[test]
fn constant_means_are_kept_on_both_sides_of_zero() {
    let _allow = Policy::Allow.scope();
    let lion = || LionBuilder::new(1e-3).betas((0.9, 0.99)).build().expect("builds");
    let adam = || Adam::new(1e-3);
    for pair in [[1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]] {
        for means in [
            kept(QuantizedState::eight_bits(lion()).expect("formats"), "weight", pair),
            kept(QuantizedState::four_bits(lion()).expect("formats"), "weight", pair),
            kept(QuantizedState::eight_bits(adam()).expect("formats"), "weight.0", pair),
            kept(QuantizedState::four_bits(adam()).expect("formats"), "weight.0", pair),
        ] {
            assert!(means.iter().zip(pair).all(|(found, mean)| (found - mean).abs() < 0.01), "{means:?}");
        }
    }
    for (text, lion_keeps, adam_keeps) in [("dynamic:8:256", 0.75, 0.95), ("dynamic:4:128", 0.2, 0.5)] {
        let [found, _] = kept(QuantizedState::new(lion(), text).expect("a format"), "weight", [-1.0, 0.2]);
        assert!(found > -lion_keeps, "{text}: {found}");
        let [found, _] = kept(QuantizedState::new(adam(), text).expect("a format"), "weight.0", [-1.0, 0.2]);
        assert!(found > -adam_keeps, "{text}: {found}");
    }
    let [_, found] = kept(QuantizedState::new(lion(), "dynamic:4:128").expect("a format"), "weight", [1.0, -1.0]);
    assert!(found > -0.9, "{found}");
}

/// The least element of a moment in four bits, after a step by gradients of which some are small.
fn least<O: Optimizer>(optimizer: O, key: &str) -> Result<f32> {
    let mut optimizer = QuantizedState::four_bits(optimizer)?;
    optimizer.update_single(&"weight".into(), &alternating([1.0, -0.03]), &mut alternating([0.0, 0.0]))?;
    assert!(matches!(optimizer.values()?[key], Value::Implicit(_)), "{key}");
    Ok(optimizer.values()?[key].dense()?.min(None)?.item_exact())
}

/// Where it is zero, a step is divided by little more than that.
#[test]
fn a_mean_of_squares_is_never_rounded_to_zero() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let new = || RmsProp::new(1e-3).expect("builds");
    assert!(least(new(), "weight")? > 0.0);
    assert!(least(AdaGrad::new(1e-3), "weight")? > 0.0);
    assert!(least(AdaDelta::new(1.0).expect("builds"), "weight.0")? > 0.0);
    assert!(least(AdaDelta::new(1.0).expect("builds"), "weight.1")? > 0.0);
    assert!(least(Adam::new(1e-3), "weight.1")? > 0.0);
    // Of a matrix its means of rows and of columns, which take codes from 4096 on.
    let mut optimizer = QuantizedState::four_bits(Adafactor::new().expect("builds"))?;
    let gradient = alternating([1.0, -0.03]).reshape(&[4096, 1])?;
    optimizer.update_single(&"weight".into(), &gradient, &mut ops::zeros::<f32>(&[4096, 1])?)?;
    let rows = optimizer.values()?["weight.exp_avg_sq_row"].clone();
    assert!(matches!(rows, Value::Implicit(_)) && rows.dense()?.min(None)?.item_exact::<f32>() > 0.0, "{rows}");
    // What is moved against a gradient is above zero after one below it, and is no mean of squares.
    let sgd = Sgd { momentum: 0.9, dampening: 2.0, ..Sgd::new(1e-3) };
    assert!(least(sgd, "weight")? < 0.0);
    // A mean of gradients keeps its sign, of an optimizer that has moments already as well.
    assert!(least(Adam::new(1e-3), "weight.0")? < 0.0);
    assert!(least(Lion::new(1e-3), "weight")? < 0.0);
    let mut begun = new();
    begun.update_single(&"weight".into(), &alternating([2.0, -2.0]), &mut alternating([0.0, 0.0]))?;
    let before = begun.state()["weight"].clone();
    let after = QuantizedState::eight_bits(begun)?.values()?["weight"].dense()?;
    assert!(after.subtract(&before)?.abs()?.max(None)?.item_exact::<f32>() < 1e-6);
    Ok(())
}

/// Codes by absmax are in the same formats.
#[test]
fn a_run_by_absmax_goes_on_with_scales_that_reach() {
    let rules = Rules::new().quantize("*.1", "dynamic:8:256:unsigned").expect("a format");
    let rules = rules.quantize("*", "dynamic:8:256").expect("a format");
    let mut before = QuantizedState::new(Adam::new(1e-3), &rules).expect("formats");
    losses(&mut before, 2);
    let values = before.values().expect("values");
    let mut after = QuantizedState::eight_bits(Adam::new(1e-3)).expect("formats");
    *after.state_mut() = SavedMoments::of_values(&values).expect("lists").expect("of its kind");
    assert!(after.values().expect("values") == values);
    losses(&mut after, 1);
    assert_eq!(after.nbytes(), before.nbytes());
}

/// A part of a weight that is put together of several: its path ends as the key of a second moment does.
#[test]
fn one_moment_has_a_sign_whatever_its_path() -> Result<()> {
    let (path, mut weight) = ("weight.parts.1".into(), normal(1, &[64, 96]));
    let gradient = normal(2, &[64, 96]).abs()?.negative()?;
    let mut lion = QuantizedState::eight_bits(Lion::new(1e-3))?;
    let mut adam = QuantizedState::eight_bits(Adam::new(1e-3))?;
    lion.update_single(&path, &gradient, &mut weight)?;
    adam.update_single(&path, &gradient, &mut weight)?;
    let below =
        |value: &Value| Ok::<_, Error>(value.dense()?.lt(Array::from_f32(0.0))?.all(None)?.item_exact::<bool>());
    assert!(below(&lion.values()?["weight.parts.1"])?);
    assert!(below(&adam.values()?["weight.parts.1.0"])?);
    assert!(!below(&adam.values()?["weight.parts.1.1"])?);
    // And what is restored is that of the whole path.
    let mut restored = QuantizedState::eight_bits(Lion::new(1e-3))?;
    *restored.state_mut() = SavedMoments::of_values(&lion.values()?)?.expect("of its kind");
    for lion in [&mut lion, &mut restored] {
        lion.update_single(&path, &gradient, &mut weight)?;
    }
    let moment = |lion: &QuantizedState<Lion>| Ok::<_, Error>(numbers(&lion.values()?["weight.parts.1"].dense()?));
    assert_eq!(moment(&restored)?, moment(&lion)?);
    assert_eq!(restored.nbytes(), lion.nbytes());
    Ok(())
}

/// What the optimizer takes roots of before it adds anything, or means, is built, one parameter at a time.
#[test]
fn other_optimizers_build_a_moment_where_the_policy_lets_them() {
    let _allow = Policy::Allow.scope();
    let delta = || AdaDelta::new(1.0).expect("builds");
    assert!(apart(delta(), QuantizedState::eight_bits(delta()).expect("formats")) < 0.02);
    let factor = || -> Adafactor { AdafactorBuilder::new().beta1(0.9).build().expect("builds") };
    let rules = Rules::new().quantize("*.exp_avg", "dynamic:8:256").expect("rules");
    assert!(apart(factor(), QuantizedState::new(factor(), &rules).expect("formats")) < 0.01);
}

/// What a step makes is what the optimizer makes of the dense moments, quantized: to the bit, but for the moment's own factor.
#[test]
fn a_step_is_that_of_the_dense_moments() {
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        let (g, w) = (normal(3, &[64, 96]), normal(4, &[64, 96]).as_dtype(dtype).expect("casts"));
        let mut quantized = QuantizedState::eight_bits(Adam::new(1e-2)).expect("formats");
        let mut dense = Adam::new(1e-2);
        let key = "w".into();
        for step in 0..3 {
            let g = g.multiply(Array::from_f32(1.0 - 0.3 * step as f32)).expect("multiplies");
            let _allow = Policy::Allow.scope();
            // The dense optimizer begins with what the codes stand for.
            let own =
                SavedMoments::of_values(&quantized.values().expect("values")).expect("lists").expect("of its kind");
            *dense.state_mut() = own;
            let (mut a, mut b) = (w.clone(), w.clone());
            let _deny = Policy::Deny.scope();
            let (made, counters) = Counters::during(|| quantized.update_single(&key, &g, &mut a));
            made.expect("steps");
            assert_eq!(counters.materialized, 0);
            dense.update_single(&key, &g, &mut b).expect("steps");
            assert_eq!(a.dtype(), b.dtype());
            assert!(a.all_close(&b, 1e-6, 1e-6, None).expect("compares"), "{dtype:?}");
        }
        let values = quantized.values().expect("values");
        let printed: Vec<String> = values.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        assert_eq!(printed, ["w.0: Dynamic(f32[64,96])", "w.1: Dynamic(f32[64,96])"]);
    }
}

#[test]
fn moments_take_as_many_bytes_as_their_formats_say() {
    let mut optimizer = QuantizedState::eight_bits(Adam::new(1e-3)).expect("formats");
    losses(&mut optimizer, 1);
    // Codes and scales of the weight, and floats of the bias.
    assert_eq!(optimizer.nbytes(), 2 * (64 * 96 + 64 * 96 / 256 * 4) + 2 * 64 * 4);
    let mut optimizer = QuantizedState::four_bits(Adam::new(1e-3)).expect("formats").from_elements(1);
    losses(&mut optimizer, 1);
    assert_eq!(optimizer.nbytes(), 2 * (64 * 96 / 2 + 64 * 96 / 128 * 4) + 2 * (64 / 2 + 4));
    let printed = |value: &Value| value.to_string();
    assert_eq!(optimizer.values().expect("values").values().map(printed).collect::<Vec<_>>()[0], "Dynamic(f32[64])");
}

type State = (Model<nn::Linear>, QuantizedState<Adam>);

fn step((model, adam): &mut State, x: Array) -> Result<Array> {
    let trained = ParameterFilter::default();
    let (loss, gradients) = model.value_and_grad(trained, &x, |m, x: &Array| m.forward(x)?.square()?.mean(None))?;
    model.update(adam, &gradients)?;
    Ok(loss)
}

#[test]
fn a_compiled_step_is_the_eager_one_and_has_two_traces() {
    let _deny = Policy::Deny.scope();
    let new = || (model(), QuantizedState::eight_bits(Adam::new(3e-3)).expect("formats"));
    let (mut eager, mut compiled) = (new(), new());
    let mut function = compile_with_state(CompileOptions::default(), step);
    for at in 0..6 {
        let x = normal(10 + at, &[32, 96]);
        let expected = step(&mut eager, x.clone()).expect("runs");
        let found = function.call(&mut compiled, x).and_then(|loss| loss.dense()).expect("runs");
        let [expected, found] = [numbers(&expected)[0], numbers(&found)[0]];
        assert!((expected - found).abs() < 1e-5 * expected, "{expected} and {found} in step {at}");
    }
    assert_eq!(function.stats().traces, 2);
    // A code beside the middle of two may be another, of one that is as near.
    let values = [&eager, &compiled].map(|(_, adam)| adam.values().expect("values"));
    let _allow = Policy::Allow.scope();
    for (key, value) in &values[0] {
        let [a, b] = [value, &values[1][key]].map(|value| value.dense().expect("builds"));
        let largest = a.abs().and_then(|a| a.max(None)).expect("the largest").item_exact::<f32>();
        assert!(a.all_close(&b, 0.0, f64::from(0.01 * largest), None).expect("compares"), "{key}");
    }
}

/// Before there are moments, the rules alone say what the first step makes.
#[test]
fn a_compiled_step_serves_optimizers_of_other_rules() {
    let adam = || Adam::new(3e-3);
    let [eight, four] = [QuantizedState::eight_bits(adam()), QuantizedState::four_bits(adam())];
    let (eight, four) = (eight.expect("formats"), four.expect("formats"));
    let small = four.clone().from_elements(1);
    let mut function = compile_with_state(CompileOptions::default(), step);
    let bytes = [eight, four, small].map(|adam| {
        let mut state = (model(), adam);
        function.call(&mut state, normal(10, &[32, 96])).expect("runs");
        state.1.nbytes()
    });
    let weight = |bits: usize, block: usize| 2 * (64 * 96 * bits / 8 + 64 * 96 / block * 4);
    assert_eq!(bytes, [weight(8, 256) + 2 * 64 * 4, weight(4, 128) + 2 * 64 * 4, weight(4, 128) + 2 * (64 / 2 + 4)]);
}

#[test]
fn it_is_a_tree_and_a_copy_shares_nothing() {
    let mut optimizer = QuantizedState::eight_bits(Adam::new(1e-3)).expect("formats");
    assert_eq!(tree::structure(&optimizer).expect("a tree").leaves(), 0);
    losses(&mut optimizer, 1);
    let def = tree::structure(&optimizer).expect("a tree");
    let paths: Vec<String> = def.paths().iter().map(ToString::to_string).collect();
    assert_eq!(paths, ["bias.0", "bias.1", "weight.0.codes", "weight.0.scales", "weight.1.codes", "weight.1.scales"]);
    let copied: QuantizedState<Adam> =
        tree::unflatten(&def, tree::leaves(&optimizer, tree::Open::Fully).expect("leaves")).expect("is made again");
    assert_eq!(copied.nbytes(), optimizer.nbytes());
    let before = optimizer.clone();
    losses(&mut optimizer, 1);
    let [old, new] =
        [&before, &optimizer].map(|own| numbers(&own.values().expect("values")["bias.0"].dense().expect("dense")));
    assert_ne!(old, new);
}

/// A failing step, by shapes that do not fit, leaves model and moments.
#[test]
fn what_fails_changes_no_moment() {
    let (mut model, mut optimizer) = (model(), QuantizedState::eight_bits(Adam::new(1e-3)).expect("formats"));
    let (_, gradients) = gradients(&mut model, 10).expect("differentiates");
    model.update(&mut optimizer, &gradients).expect("updates");
    let bytes = |optimizer: &QuantizedState<Adam>| {
        let arrays = tree::arrays(optimizer).expect("arrays");
        arrays.iter().map(|array| numbers(&array.as_dtype(Dtype::Float32).expect("casts"))).collect::<Vec<_>>()
    };
    let bias = |model: &Model<nn::Linear>| numbers(&model.get("bias").and_then(|bias| bias.dense()).expect("is there"));
    let before = (bytes(&optimizer), bias(&model));
    let mut wrong = gradients.clone();
    wrong.insert("weight".into(), normal(3, &[63, 96]));
    // mlx-rs checks no shapes: the bias, which comes first, has been stepped when the weight fails.
    assert!(optimizer.update(&mut model, &wrong).is_err());
    assert_eq!((bytes(&optimizer), bias(&model)), before);
    // Nothing of the failure is left in the optimizer.
    assert!(optimizer.state.is_empty());
    model.update(&mut optimizer, &gradients).expect("updates");
    model.eval().expect("evaluates");
}

/// The first of its moments was kept, and the next step had one of two.
#[test]
fn a_step_of_one_parameter_that_fails_keeps_no_moment() -> Result<()> {
    // 96 is no multiple of 64.
    let rules = Rules::new().quantize("*.1", "affine:4:64")?;
    let mut optimizer = QuantizedState::new(Adam::new(1e-3), &rules)?;
    let mut weight = normal(1, &[64, 96]);
    let before = numbers(&weight);
    assert!(optimizer.update_single(&"weight".into(), &normal(2, &[64, 96]), &mut weight).is_err());
    assert_eq!((optimizer.nbytes(), numbers(&weight)), (0, before));
    Ok(())
}

/// MLX spreads a vector over the rows of moments. Those of the weight took codes in this step, and were lost.
#[test]
fn moments_of_another_shape_do_not_reach_a_leaf_and_the_others_stay() -> Result<()> {
    let mut model = model();
    let (_, gradients) = gradients(&mut model, 10)?;
    let mut optimizer = QuantizedState::eight_bits(Adam::new(1e-3))?;
    let moments = [("bias.0", [4, 64]), ("bias.1", [4, 64]), ("weight.0", [64, 96]), ("weight.1", [64, 96])];
    let moments = moments.into_iter().map(|(key, shape)| Ok((key.to_owned(), ops::ones::<f32>(&shape)?.into())));
    let moments = moments.collect::<Result<Parameters>>()?;
    *optimizer.state_mut() = SavedMoments::of_values(&moments)?.expect("the moments of Adam");
    expect![[r"
        the optimizer makes f32[4,64] of the leaf bias, which is f32[64]
        help: restore the moments of a model of the same shapes, or begin with a new optimizer"]]
    .assert_eq(&error(model.update(&mut optimizer, &gradients)).to_string());
    assert!(optimizer.update(&mut model, &gradients).is_err());
    assert_eq!(model.get("bias")?.to_string(), "f32[64]");
    let kept = optimizer.values()?;
    assert!(kept.keys().eq(moments.keys()));
    assert!(kept["weight.1"].dense()?.eq_exact(&moments["weight.1"].dense()?)?);
    Ok(())
}

#[test]
fn bad_input() {
    let mut said = said_of(QuantizedState::new(Adam::new(1e-3), "dynamic:7:256"));
    let mut optimizer = QuantizedState::new(Adam::new(1e-3), "affine:4:64").expect("a format");
    let mut model = model();
    let (_, gradients) = gradients(&mut model, 10).expect("differentiates");
    // 96 is no multiple of 64.
    said += &said_of(model.update(&mut optimizer, &gradients));
    assert_eq!(optimizer.nbytes(), 0);
    // A NaN has no code, and says so when it is evaluated.
    let mut optimizer = QuantizedState::eight_bits(Adam::new(1e-3)).expect("formats");
    let nan = gradients
        .iter()
        .map(|(path, array)| (path.clone(), array.multiply(Array::from_f32(f32::NAN)).expect("multiplies")));
    model.update(&mut optimizer, nan.collect::<FlattenedModuleParam>()).expect("is lazy");
    said += &said_of(tree::eval(&optimizer));
    expect![[r#"
        there is no dynamic format of 7 bits
        help: use 8 bits, or 4 where memory is scarce
        the moment weight.0: the last axis of f32[64,96] is not whole groups of 64, as affine has them
        help: use a smaller group size, or an array type whose blocks may straddle rows
        kernel DynamicQuantize failed: element 0 is NaN, which no code can hold
        help: replace NaN and infinities before quantizing
    "#]]
    .assert_eq(&said);
}
