//! A compiled step is given models that differ in what is tied, and in what is trained.

use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{ModuleParameters, Param};
use mlx_rs::{Array, nn, ops};
use tacit_core::compile::CompileOptions;
use tacit_core::{Error, Result, compile_with_state};
use tacit_nn::{LoraConfig, Model, ParameterFilter, Pattern};

use crate::types::{numbers, vector};

#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
struct Three {
    #[param]
    a: Param<Array>,
    #[param]
    b: Param<Array>,
    #[param]
    c: Param<Array>,
}

/// Both models have the leaves `a` and `c`: which of them `b` is, the trace has to know.
#[test]
fn a_trace_knows_what_is_tied_to_what() -> Result<()> {
    let model = |to: &str| -> Result<Model<Three>> {
        let of = |number| Param::new(vector(&[number]));
        Model::new(Three { a: of(1.0), b: of(2.0), c: of(3.0) })?.tie("b", to)
    };
    let sum = |model: &mut Model<Three>, (): ()| -> Result<Array> {
        model.run(|m| {
            let b = m.b.value.multiply(Array::from_f32(10.0))?;
            m.a.value.add(b)?.add(m.c.value.multiply(Array::from_f32(100.0))?)
        })
    };
    let mut compiled = compile_with_state(CompileOptions::default(), sum);
    for (to, expected) in [("a", 311.0), ("c", 331.0), ("a", 311.0)] {
        let mut own = model(to)?;
        assert_eq!(numbers(&sum(&mut own, ())?), [expected], "plain, {to}");
        assert_eq!(numbers(&compiled.call(&mut own, ())?.dense()?), [expected], "compiled, {to}");
    }
    Ok(())
}

/// Freezing is another structure; so is another part that is trained, which `trainable_parameters` shows mlx-rs as it shows it
/// what is frozen (`nn::value_and_grad` takes its leaves from there).
#[test]
fn a_trace_knows_what_is_trained() -> Result<()> {
    let mut model =
        Model::new(nn::Linear::new(64, 64)?)?.lora("weight", LoraConfig::default())?.training(ParameterFilter::Lora);
    model.set("bias", ops::ones::<f32>(&[64])?)?;
    let penalty = |model: &mut Model<nn::Linear>, (): ()| -> Result<Array> {
        let mut sum = Array::from_f32(0.0);
        for array in model.trainable_parameters().flatten().into_values() {
            sum = sum.add(array.square()?.sum(None)?)?;
        }
        Ok::<_, Error>(sum)
    };
    let mut compiled = compile_with_state(CompileOptions::default(), penalty);
    compiled.call(&mut model, ())?;
    let mut model = model.training(ParameterFilter::Dense);
    assert_eq!(numbers(&penalty(&mut model, ())?), [64.0]);
    assert_eq!(numbers(&compiled.call(&mut model, ())?.dense()?), [64.0]);
    assert_eq!(compiled.stats().traces, 2);
    Ok(())
}

/// A predicate has no text: what tells it from those that are gone must not be given to another one.
#[test]
fn a_trace_knows_a_predicate_from_those_before() -> Result<()> {
    let of = |number| Param::new(vector(&[number]));
    let mut model = Model::new(Three { a: of(1.0), b: of(10.0), c: of(100.0) })?;
    let sum = |model: &mut Model<Three>, (): ()| -> Result<Array> {
        let mut sum = vector(&[0.0]);
        for array in model.trainable_parameters().flatten().into_values() {
            sum = sum.add(array)?;
        }
        Ok::<_, Error>(sum)
    };
    let mut compiled = compile_with_state(CompileOptions::default(), sum);
    for round in 0..64 {
        let (name, expected) = [("a", 1.0), ("b", 10.0), ("c", 100.0)][round % 3];
        model = model.training(ParameterFilter::Paths(Pattern::when(move |path, _| path == name)));
        assert_eq!(numbers(&compiled.call(&mut model, ())?.dense()?), [expected], "round {round}");
    }
    Ok(())
}
