//! A program of implicit inputs in every way of running it, compared with its run on the dense arrays that they stand for.

use std::cell::Cell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};
use tacit_core::compile::{CompileOptions, compile_with_state};
use tacit_core::pass::Passes;
use tacit_core::{Policy, Value};

use super::compare::{Outcome, SALTS, Scene, called, compiling, evaluated, only_perturbed, options};
use super::draw::Rng;
use super::erred::{Erred, Granted, Outcomes};
use super::perturbed::Class;
use super::run::{Failing, Function, dense};
use crate::call::{self, bits_equal, text};
use crate::elements::unit;

/// How near the results on implicit arrays are to those on dense ones.
const GRANTED: Granted = Granted { least: Class::Near, units: 256.0, rounded_zeros: true };

/// Runs whose implicit arrays err by units in the last place of each element; later ones do by those of the largest.
const RELATIVE: u64 = 2;

impl Scene<'_> {
    /// Compares the program on its implicit inputs with that on dense ones: as it is, compiled without passes and with all,
    /// replayed, with other numbers, with a state, after the function or a node of it failed, and without shapes.
    pub(super) fn meet(&self) -> Result<(), String> {
        if self.program.differentiates_an_implicit() {
            return Ok(());
        }
        let _allow = Policy::Allow.scope();
        let expected = [self.on_dense(0)?, self.on_dense(1)?];
        if expected.iter().any(Result::is_err) {
            return Ok(());
        }
        let first = self.eager(0, false)?;
        if first.as_ref().is_err_and(|error| is_declared(error)) {
            return Ok(());
        }
        let erred = self.erred_on_dense()?;
        let near = |found: &[Array], expected: &[Array], salt: usize| erred.near(salt, found, expected, GRANTED);
        let eager = [first.clone(), first, self.eager(1, false)?];
        Self::compare_each("as it is", &eager, &expected, near)?;
        for passes in [Passes::Off, Passes::All] {
            let name = format!("compiled with {passes:?}");
            Self::compare_each(&name, &self.compiled(passes, &SALTS)?, &expected, near)?;
        }
        Self::compare_each("with a state", &self.with_an_implicit_state()?, &expected, near)?;
        Self::compare_each("after the function failed", &[self.after_an_error()?], &expected, near)?;
        self.tripped()?;
        self.shapeless(&expected[0], &erred)
    }

    /// Run as it is on dense arrays.
    fn on_dense(&self, salt: u64) -> Result<Outcome, String> {
        let f = self.dense_function(None)?;
        Ok(evaluated(called(&f, &self.dense_inputs(false, salt, None)?)))
    }

    fn dense_function(&self, run: Option<u64>) -> Result<Function, String> {
        let body = self.program.body(self.dense_inputs(true, 0, run)?, Failing::default());
        Ok(self.program.function(body, false))
    }

    /// The inputs with dense arrays in the place of implicit ones, which err in a run that has a number.
    fn dense_inputs(&self, captured: bool, salt: u64, run: Option<u64>) -> Result<Vec<Value>, String> {
        let densified = |value: &Value| -> Result<Value, String> {
            if !value.is_implicit() {
                return Ok(value.clone());
            }
            let array = call::dense(value)?;
            Ok(match run {
                Some(run) => erring(&array, run).map_err(text)?.into(),
                None => array.into(),
            })
        };
        self.inputs(captured, salt)?.iter().map(densified).collect()
    }

    /// What the program gives on dense arrays where these and all ops err.
    fn erred_on_dense(&self) -> Result<Erred<'_>, String> {
        let runs = Cell::new(0);
        Erred::of(Box::new(move || {
            runs.set(runs.get() + 1);
            let mut compiled = compiling(self.dense_function(Some(runs.get()))?, options(only_perturbed()));
            let outcomes = [0, 1].map(|salt| -> Result<Outcome, String> {
                Ok(evaluated(compiled(&self.dense_inputs(false, salt, Some(runs.get()))?)))
            });
            outcomes.into_iter().collect::<Result<Outcomes, String>>()
        }))
    }

    /// Compiled with all passes and called twice with the implicit arguments as a state, which the function leaves alone.
    fn with_an_implicit_state(&self) -> Result<Vec<Outcome>, String> {
        let inputs = self.inputs(false, 0)?;
        let implicit: Vec<bool> = inputs.iter().map(Value::is_implicit).collect();
        let (mut state, arguments): (Vec<Value>, Vec<Value>) = inputs.into_iter().partition(Value::is_implicit);
        if state.is_empty() {
            return Ok(Vec::new());
        }
        let before = state.iter().map(call::dense).collect::<Result<Vec<_>, _>>()?;
        let f = self.function(false)?;
        let step = move |state: &mut Vec<Value>, arguments: Vec<Array>| -> tacit_core::Result<Vec<Array>> {
            let (mut of_state, mut others) = (dense(state)?.into_iter(), arguments.into_iter());
            let next = |&implicit: &bool| if implicit { of_state.next() } else { others.next() };
            f(implicit.iter().filter_map(next).collect())
        };
        let mut compiled = compile_with_state(options(Passes::All), step);
        let mut outcomes = Vec::new();
        for _ in 0..2 {
            let results = compiled.call(&mut state, &arguments);
            outcomes.push(evaluated(results.and_then(|results| dense(&results))));
        }
        for (state, before) in state.iter().zip(&before) {
            bits_equal(&call::dense(state)?, before).map_err(|what| format!("a state that was left alone: {what}"))?;
        }
        Ok(outcomes)
    }

    /// Compiled with all passes and called again after a call in which the function fails at its last step.
    fn after_an_error(&self) -> Result<Outcome, String> {
        let failing = Failing::default();
        failing.set(self.program.steps.len().checked_sub(1));
        let f = self.program.function(self.program.body(self.inputs(true, 0)?, failing.clone()), false);
        let mut compiled = compiling(f, options(Passes::All));
        let mut call = || -> Result<Outcome, String> { Ok(evaluated(compiled(&self.inputs(false, 0)?))) };
        if failing.get().is_some() && call()?.is_ok() {
            return Err("the function fails and the call does not, expected its error".to_owned());
        }
        failing.set(None);
        call()
    }

    /// Compiled once for all shapes and called with one row more in between. It may be refused, as the graph of another shape may be
    /// another one; what it gives is right.
    fn shapeless(&self, expected: &Outcome, erred: &Erred<'_>) -> Result<(), String> {
        let Ok(expected) = expected else { return Ok(()) };
        let options = CompileOptions { shapeless: true, ..options(Passes::All) };
        let mut compiled = compiling(self.function(false)?, options);
        let mut run = |arguments: Vec<Value>| evaluated(compiled(&arguments));
        let near = |found: Outcome| match found {
            Ok(found) => erred.near(0, &found, expected, GRANTED).map_err(|what| format!("without shapes: {what}")),
            Err(_) => Ok(()),
        };
        near(run(self.inputs(false, 0)?))?;
        if let Some(longer) = self.program.longer() {
            let other = Scene { program: &longer, subjects: self.subjects };
            if let (Ok(found), Ok(expected)) = (run(other.inputs(false, 0)?), other.on_dense(0)?) {
                let erred = other.erred_on_dense()?;
                let near = erred.near(0, &found, &expected, GRANTED);
                near.map_err(|what| format!("without shapes, with one row more in\n{longer}\n{what}"))?;
            }
        }
        near(run(self.inputs(false, 0)?))
    }
}

/// Whether a type says of itself that there is no such call.
fn is_declared(error: &str) -> bool {
    error.contains("have a default handler for") || error.contains("refuses to be materialized")
}

/// The array with what its elements may be off where they are computed in another way.
fn erring(array: &Array, run: u64) -> Result<Array, Exception> {
    let mut rng = Rng::new(run);
    let signs: Vec<f32> = (0..array.size()).map(|_| if rng.below(2) == 0 { 1.0 } else { -1.0 }).collect();
    let wide = array.as_dtype(Dtype::Float32)?;
    let size = if run <= RELATIVE { wide.abs()? } else { wide.abs()?.max(None)? };
    let error = size.multiply(Array::from_slice(&signs, array.shape()))?;
    let error = error.multiply(Array::from_f32(2.0 * unit(array.dtype())))?;
    wide.add(error)?.as_dtype(array.dtype())
}
