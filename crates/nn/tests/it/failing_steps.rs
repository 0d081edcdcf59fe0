//! Compiled steps that fail, and what their state is then.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

mod shared;

use expect_test::expect;
use mlx_rs::builder::Builder as _;
use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module as _, ModuleParameters, Param};
use mlx_rs::{Array, Dtype, nn, ops, random};
use tacit_arrays::format::Nf4;
use tacit_core::{Error, Result, compile_with_state, tree};
use tacit_nn::{LoraConfig, Missing, Model, Module, ParameterFilter};

use crate::traced::{denied, ones, row};
use crate::types::numbers;

type Held = Vec<(String, Vec<f32>)>;

fn listed<'a>(arrays: impl IntoIterator<Item = (String, &'a Array)>) -> Held {
    let floats = |array: &Array| numbers(&array.as_dtype(Dtype::Float32).expect("floats"));
    let mut listed: Held = arrays.into_iter().map(|(path, array)| (path, floats(array))).collect();
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    listed
}

fn held<M: ModuleParameters>(model: &Model<M>) -> Held {
    listed(model.leaves(&ParameterFilter::All))
}

fn parameters(module: &impl ModuleParameters) -> Held {
    listed(module.parameters().flatten().into_iter().map(|(path, array)| (path.to_string(), array)))
}

fn without_bias(held: &Held) -> Held {
    held.iter().filter(|(path, _)| path != "bias").cloned().collect()
}

fn linear(bias: bool, quantized: bool) -> Result<Model<nn::Linear>> {
    let model = Model::new(nn::LinearBuilder::new(64, 2).bias(bias).build()?)?;
    if quantized { model.quantize("weight", Nf4 { block: 64, double: false }) } else { Ok(model) }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fails {
    No,
    Error,
    Panic,
    Shape,
    Eval,
}

const WAYS: [Fails; 4] = [Fails::Error, Fails::Panic, Fails::Shape, Fails::Eval];

fn fail(how: Fails, array: &Array) -> Result<()> {
    match how {
        Fails::No => Ok(()),
        Fails::Error => Err(Error::invalid("not now", "try again")),
        Fails::Panic => panic!("in the middle"),
        Fails::Shape => Ok(array.reshape(&[3, 5, 7]).map(drop)?),
        Fails::Eval => Ok(array.eval()?),
    }
}

/// A step that takes the bias out, or gives one.
fn changing(gives: bool, how: Fails) -> impl Fn(&mut Model<nn::Linear>, Array) -> Result<Array> {
    move |model, x| {
        model.run(|linear| {
            linear.bias.value = if gives { Some(x.sum(None)?.reshape(&[1])?) } else { None };
            Ok::<_, Error>(())
        })?;
        let y = model.forward(&x)?;
        fail(how, &y)?;
        Ok(y)
    }
}

/// The weight held the placeholder of the trace.
#[test]
fn a_failing_step_that_moves_a_parameter_leaves_the_others_and_tells_of_it() -> Result<()> {
    for (gives, quantized) in [(false, false), (false, true), (true, false), (true, true)] {
        for how in WAYS {
            let mut model = linear(!gives, quantized)?;
            let before = held(&model);
            let mut step = compile_with_state(denied(), changing(gives, how));
            let error = step.call(&mut model, ones(&[1, 64])).expect_err("it fails");
            assert!(matches!(error, Error::NotGivenBack { .. }), "{error}");
            assert_eq!(without_bias(&held(&model)), without_bias(&before), "{quantized} {how:?}");
            // One that came cannot be taken out; what is left of it does not belong to the trace.
            assert!(held(&model).iter().all(|(path, numbers)| path != "bias" || *numbers == [0.0]));
        }
    }
    let mut step = compile_with_state(denied(), changing(false, Fails::Error));
    let said = step.call(&mut linear(true, false)?, ones(&[1, 64])).expect_err("it fails").to_string();
    expect![[r#"
        not now
        help: try again
        not given back: the module has no parameter bias, which the structure has
        help: leave the parameters in place, or make the state a `Module` that can be copied: only such a state may gain or lose one"#]]
    .assert_eq(&said);
    let mut step = compile_with_state(denied(), changing(true, Fails::Error));
    let said = step.call(&mut linear(false, false)?, ones(&[1, 64])).expect_err("it fails").to_string();
    expect![[r#"
        not now
        help: try again
        not given back: the module has a parameter bias, which the structure has not
        help: leave the parameters in place, or make the state a `Module` that can be copied: only such a state may gain or lose one"#]]
    .assert_eq(&said);
    Ok(())
}

#[test]
fn a_module_that_can_be_copied_has_its_parameters_again() -> Result<()> {
    for (copied, how) in [true, false].into_iter().flat_map(|copied| WAYS.map(|how| (copied, how))) {
        let own = nn::Linear::new(3, 2)?;
        let mut module = if copied { Module::new(own) } else { Module::in_place(own) };
        let before = parameters(&*module);
        let mut step = compile_with_state(denied(), |module: &mut Module<nn::Linear>, x: Array| -> Result<Array> {
            module.bias.value = None;
            let y = module.forward(&x)?;
            fail(how, &y)?;
            Ok(y)
        });
        let error = step.call(&mut module, ones(&[1, 3])).expect_err("it fails");
        assert_eq!(matches!(error, Error::NotGivenBack { .. }), !copied, "{error}");
        let expected = if copied { before } else { without_bias(&before) };
        assert_eq!(parameters(&*module), expected, "{how:?}");
    }
    Ok(())
}

/// A replay left the bias of another model in its place, or was refused.
#[test]
fn a_step_that_moves_a_parameter_does_so_in_each_model() -> Result<()> {
    for (gives, quantized) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut step = compile_with_state(denied(), changing(gives, Fails::No));
        let mut first = linear(!gives, quantized)?;
        for model in [&mut first.clone(), &mut first, &mut linear(!gives, quantized)?] {
            for _ in 0..2 {
                let y = step.call(model, ones(&[1, 64]))?.dense()?;
                assert_eq!(held(model).iter().any(|(path, _)| path == "bias"), gives, "{quantized}");
                assert_eq!(numbers(&y), numbers(&model.forward(&ones(&[1, 64]))?), "{quantized}");
            }
        }
    }
    for copied in [true, false] {
        let module = || -> Result<Module<nn::Linear>> {
            let own = nn::Linear::new(3, 2)?;
            Ok(if copied { Module::new(own) } else { Module::in_place(own) })
        };
        let mut step = compile_with_state(denied(), |module: &mut Module<nn::Linear>, x: Array| {
            module.bias.value = None;
            module.forward(&x)
        });
        for mut module in [module()?, module()?] {
            step.call(&mut module, ones(&[1, 3]))?;
            assert!(module.bias.value.is_none());
        }
    }
    Ok(())
}

/// A replay left the second model in training.
#[test]
fn a_step_that_ends_training_does_so_in_each_model() -> Result<()> {
    let mut step = compile_with_state(denied(), |model: &mut Model<nn::Sequential>, x: Array| {
        model.training_mode(false);
        model.forward(&x)
    });
    let x = ones(&[1, 64]);
    for _ in 0..3 {
        let dropout = nn::DropoutBuilder::new().p(0.5).build().expect("a probability");
        let mut model = Model::new(nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(dropout))?;
        let made = step.call(&mut model, &x)?.dense()?;
        for _ in 0..3 {
            assert_near(&numbers(&model.forward(&x)?), &numbers(&made));
        }
    }
    Ok(())
}

fn dropping() -> Result<Model<nn::Sequential>> {
    let dropout = nn::DropoutBuilder::new().p(0.5).build().expect("a probability");
    Model::new(nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(dropout))
}

fn drops(y: &Array) -> bool {
    numbers(y).contains(&0.0)
}

/// It stayed in evaluation, so that later steps dropped nothing.
#[test]
fn a_step_that_ends_training_and_fails_leaves_it_going() -> Result<()> {
    for how in WAYS {
        let mut step = compile_with_state(denied(), |model: &mut Model<nn::Sequential>, x: Array| -> Result<Array> {
            model.training_mode(false);
            let y = model.forward(&x)?;
            fail(how, &y)?;
            Ok(y)
        });
        let (mut model, x) = (dropping()?, ones(&[1, 64]));
        assert!(step.call(&mut model, &x).is_err());
        assert!(drops(&model.forward(&x)?), "{how:?}");
    }
    Ok(())
}

#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
struct Two {
    #[param]
    first: nn::Linear,
    #[param]
    second: nn::Linear,
}

fn two() -> Result<Model<Two>> {
    Model::new(Two { first: nn::Linear::new(64, 64)?, second: nn::Linear::new(64, 64)? })
}

/// A step that makes the second weight the first one, and saves what their products read in a format.
fn tying(how: Fails) -> impl Fn(&mut Model<Two>, Array) -> Result<Array> {
    move |model, x| {
        *model = model.clone().tie("second.weight", "first.weight")?;
        model.saved_activations("*", "affine:8:64")?;
        let y: Array = model.run(|two| two.second.forward(&two.first.forward(&x)?))?;
        fail(how, &y)?;
        Ok(y)
    }
}

/// The second weight was gone, and gradients read activations in the format that the step had asked for.
#[test]
fn a_step_that_ties_parameters_and_fails_leaves_them_apart() -> Result<()> {
    for how in WAYS {
        let mut model = two()?;
        let (before, structure) = (held(&model), tree::structure(&model)?);
        assert!(compile_with_state(denied(), tying(how)).call(&mut model, ones(&[1, 64])).is_err());
        assert_eq!((held(&model), tree::structure(&model)?), (before, structure), "{how:?}");
    }
    Ok(())
}

#[test]
fn a_step_that_ties_parameters_does_so_in_each_model() -> Result<()> {
    let mut step = compile_with_state(denied(), tying(Fails::No));
    for _ in 0..3 {
        let (mut model, x) = (two()?, ones(&[1, 64]));
        let mut eager = model.clone();
        let found = step.call(&mut model, &x)?.dense()?;
        assert_near(&numbers(&found), &numbers(&tying(Fails::No)(&mut eager, x)?));
        assert_eq!((held(&model), tree::structure(&model)?), (held(&eager), tree::structure(&eager)?));
    }
    assert_eq!(step.stats().traces, 1);
    Ok(())
}

/// It is recorded twice, and the second recording began in evaluation, where the first one had ended.
#[test]
fn a_step_that_draws_and_ends_training_drops_in_each_call() -> Result<()> {
    let mut step =
        compile_with_state(denied(), |model: &mut Model<nn::Sequential>, x: Array| -> Result<(Array, Array)> {
            let dropped = model.forward(&x)?;
            model.training_mode(false);
            Ok((dropped, model.forward(&x)?))
        });
    let (mut model, x) = (dropping()?, ones(&[1, 64]));
    for _ in 0..3 {
        model.training_mode(true);
        let (dropped, whole) = step.call(&mut model, &x)?;
        assert!(drops(&dropped.dense()?) && !drops(&whole.dense()?));
        assert!(!drops(&model.forward(&x)?));
    }
    assert_eq!(step.stats().traces, 1);
    Ok(())
}

/// A step of a module that can be copied, which drops and then ends training.
fn ending(how: Fails) -> impl Fn(&mut Module<nn::Dropout>, Array) -> Result<(Array, Array)> {
    move |module, x| {
        let dropped = module.forward(&x)?;
        module.training_mode(false);
        fail(how, &dropped)?;
        Ok((dropped, module.forward(&x)?))
    }
}

#[test]
fn a_module_that_can_be_copied_has_its_other_fields_again() -> Result<()> {
    let (module, x) = (Module::new(nn::Dropout::new()), ones(&[1, 64]));
    for how in WAYS {
        let mut module = module.clone();
        assert!(compile_with_state(denied(), ending(how)).call(&mut module, &x).is_err());
        assert!(drops(&module.forward(&x)?), "{how:?}");
    }
    let mut module = module;
    let (dropped, whole) = compile_with_state(denied(), ending(Fails::No)).call(&mut module, &x)?;
    assert!(drops(&dropped.dense()?) && !drops(&whole.dense()?));
    assert!(!drops(&module.forward(&x)?));
    Ok(())
}

/// It is recorded twice, and in the second recording the module has another form than in the first.
#[test]
fn a_step_that_moves_a_parameter_and_draws_is_refused() -> Result<()> {
    for gives in [false, true] {
        let mut step = compile_with_state(denied(), |model: &mut Model<nn::Linear>, x: Array| -> Result<Array> {
            let y = changing(gives, Fails::No)(model, x)?;
            Ok(y.add(random::uniform::<_, f32>(0.0, 1.0, &[2], None)?)?)
        });
        let mut model = linear(!gives, false)?;
        let before = held(&model);
        let error = step.call(&mut model, ones(&[1, 64])).expect_err("it is refused");
        assert!(matches!(error, Error::NotGivenBack { .. }), "{error}");
        assert_eq!(without_bias(&held(&model)), without_bias(&before));
    }
    Ok(())
}

/// Outside of a compiled step, too, and without an implicit parameter, where it kept what it was assigned.
#[test]
fn a_function_of_a_model_that_fails_leaves_every_parameter() -> Result<()> {
    for (quantized, how) in [false, true].into_iter().flat_map(|quantized| WAYS.map(|how| (quantized, how))) {
        let mut model = linear(true, quantized)?;
        let before = held(&model);
        let run = |model: &mut Model<nn::Linear>, takes_out: bool| {
            model.run(|linear| {
                linear.bias.value = if takes_out { None } else { Some(row(&[1.0, 2.0])) };
                if how == Fails::Eval { Err(Error::invalid("not now", "try again")) } else { fail(how, &ones(&[1])) }
            })
        };
        let error = run(&mut model, false).expect_err("it fails");
        assert_eq!(how == Fails::Panic, error.to_string() == "panicked: in the middle", "{error}");
        assert_eq!(held(&model), before, "{quantized} {how:?}");
        let error = run(&mut model, true).expect_err("it fails");
        assert!(matches!(error, Error::NotGivenBack { .. }), "{error}");
    }
    Ok(())
}

/// A layer that panics.
#[derive(Debug, Clone, ModuleParameters)]
#[module(root = mlx_rs)]
struct Panicking {
    #[param]
    weight: Param<Array>,
}

impl mlx_rs::module::Module<&Array> for Panicking {
    type Output = Array;
    type Error = Exception;

    fn forward(&mut self, _: &Array) -> Result<Array, Exception> {
        panic!("in the middle")
    }

    fn training_mode(&mut self, _: bool) {}
}

/// Whether the model is dense or not, as in every trace.
#[test]
fn a_panic_of_a_forward_pass_is_an_error() -> Result<()> {
    for quantized in [false, true] {
        let mut model = Model::new(Panicking { weight: Param::new(ones(&[2, 64])) })?;
        if quantized {
            model = model.quantize("weight", Nf4 { block: 64, double: false })?;
        }
        let forward = model.forward(&ones(&[1, 64])).expect_err("it panics").into();
        let run = model.run(|module| module.forward(&ones(&[1, 64]))).expect_err("it panics");
        for error in [forward, run] {
            assert!(matches!(&error, Error::Function(_)), "{error}");
            assert_eq!(error.to_string(), "panicked: in the middle");
        }
    }
    Ok(())
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32]) {
    let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs().max(1.0));
    assert!(near && found.len() == expected.len(), "{found:?} and not {expected:?}");
}

#[test]
fn a_transaction_that_fails_leaves_what_is_frozen_and_what_is_told() -> Result<()> {
    let mut model = Model::new(nn::Linear::new(64, 64)?)?.lora("weight", LoraConfig::default())?;
    model.freeze_parameters(true);
    let told = model.report().to_string();
    let changed = model.transaction(|model| {
        // An adapter that comes to a dense weight is there to be trained.
        let adapter = model.without_adapters()?;
        model.assign(adapter, Missing::Keep)?;
        assert!(!model.trainable_parameters().flatten().is_empty());
        model.set("bias", ops::zeros::<f32>(&[5])?)
    });
    assert!(changed.is_err());
    assert_eq!(model.get("weight")?.to_string(), "Lora(f32[64,64])");
    assert_eq!(model.all_frozen(), Some(true));
    assert_eq!(model.report().to_string(), told);
    Ok(())
}
