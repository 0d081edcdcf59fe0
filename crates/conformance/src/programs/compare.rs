//! One program in every way of running it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_rs::Array;
use tacit_core::compile::{CompileOptions, Constants, compile_with, compile_with_state};
use tacit_core::kernel;
use tacit_core::pass::{Pass, Passes};
use tacit_core::{Policy, Result, Value, extra_ops, implicit};

use super::erred::{Erred, Granted};
use super::kind;
use super::nearness::{avals, same};
use super::perturbed::Class;
use super::program::{Around, Input, Program, Role, State};
use super::run::{Failing, Function, dense, fitted};
use super::tripwire::Tripwire;
use crate::call::{self, bytes, text};
use crate::subject::Subject;

/// What a run gave: evaluated arrays, or the error of the graph or of its eval.
pub(super) type Outcome = Result<Vec<Array>, String>;

/// What a call makes of a state and arguments.
type Step = Rc<dyn Fn(&mut Vec<Array>, Vec<Array>) -> Result<Vec<Array>>>;

/// A program with the subjects that its implicit inputs are of.
pub(crate) struct Scene<'a> {
    pub(crate) program: &'a Program,
    pub(crate) subjects: &'a [Subject],
}

impl Scene<'_> {
    /// Runs the program in every way.
    pub(crate) fn check(&self) -> Result<(), String> {
        let _allow = Policy::Allow.scope();
        let eager = [self.eager(0, false)?, self.eager(1, false)?];
        let off = self.compiled(Passes::Off, &SALTS)?;
        let Ok(results) = &eager[0] else {
            let compiled = self.compiled(Passes::All, &SALTS)?;
            Self::compare_each("compiled without passes", &off, &eager, |_, _, _| Ok(()))?;
            return Self::compare_each("compiled", &compiled, &eager, |_, _, _| Ok(()));
        };
        let erred = self.erred()?;
        let near = |least| Granted { least, units: 8.0, rounded_zeros: false };
        Self::compare_each("compiled without passes", &off, &eager, |found, expected, salt| {
            // A branch that is not chosen has a gradient of zeros where its predicate is traced, and none where it is read.
            if self.program.differentiates_a_branch() {
                return erred.near(salt, found, expected, near(Class::Near));
            }
            same(found, expected)
        })?;
        let off = [off[0].clone(), off[2].clone()];
        let alone = Pass::all().iter().map(|pass| pass.name).filter(|&name| name != "perturbed");
        let alone = alone.map(|name| Passes::Only(vec![name.to_owned()]));
        for passes in alone.chain([Passes::All]) {
            let name = format!("with {passes:?}");
            let outcomes = self.compiled(passes, &SALTS)?;
            Self::compare_each(&name, &outcomes, &off, |found, expected, salt| {
                erred.near(salt, found, expected, near(Class::Exact))
            })?;
        }
        Self::compare_each("called thrice before an eval", &self.overlapping()?, &off, |found, expected, salt| {
            erred.near(salt, found, expected, near(Class::Exact))
        })?;
        self.reference(results, &erred)?;
        self.implicit_as_dense(results)?;
        self.other_shapes(&erred.classes)?;
        self.with_state(&erred.classes)?;
        self.tripped()
    }

    pub(super) fn compare_each(
        name: &str,
        found: &[Outcome],
        expected: &[Outcome; 2],
        compare: impl Fn(&[Array], &[Array], usize) -> Result<(), String>,
    ) -> Result<(), String> {
        for (call, found) in found.iter().enumerate() {
            let salt = SALTS[call];
            let compared = match (found, &expected[salt as usize]) {
                (Ok(found), Ok(expected)) => compare(found, expected, salt as usize),
                (Err(_), Err(_)) => Ok(()),
                (Ok(_), Err(error)) => Err(format!("what it is compared with fails: {error}")),
                (Err(error), Ok(_)) => Err(format!("what it is compared with does not fail: {error}")),
            };
            compared.map_err(|what| format!("{name}, call {call}: {what}"))?;
        }
        Ok(())
    }

    /// The inputs of a role, made anew.
    pub(super) fn inputs(&self, captured: bool, salt: u64) -> Result<Vec<Value>, String> {
        let inputs = self.program.inputs.iter().filter(|input| (input.role == Role::Captured) == captured);
        let mut values: Vec<Value> = Vec::new();
        let mut before: Option<&Input> = None;
        for input in inputs {
            let like = before.is_some_and(|before| before.aval == input.aval && before.subject == input.subject);
            before = Some(input);
            if input.state == State::Shared
                && like
                && let Some(shared) = values.last().cloned()
            {
                values.push(shared);
                continue;
            }
            let array = input.array(salt).map_err(|error| error.to_string())?;
            values.push(match &input.subject {
                Some(kind) => kind::build(kind, self.subjects, &array)?,
                None => array.into(),
            });
        }
        Ok(values)
    }

    pub(super) fn function(&self, plain: bool) -> Result<Function, String> {
        Ok(self.program.function(self.program.body(self.inputs(true, 0)?, Failing::default()), plain))
    }

    /// Run as it is; `plain` without the transforms that plain code can stand for.
    pub(super) fn eager(&self, salt: u64, plain: bool) -> Result<Outcome, String> {
        let arguments = self.inputs(false, salt)?;
        let f = self.function(plain)?;
        untouched(&arguments, || evaluated(called(&f, &arguments)))
    }

    /// Compiled once and called for each salt.
    pub(super) fn compiled(&self, passes: Passes, salts: &[u64]) -> Result<Vec<Outcome>, String> {
        let mut compiled = compiling(self.function(false)?, options(passes));
        salts
            .iter()
            .map(|&salt| {
                let arguments = self.inputs(false, salt)?;
                if salt == 1 {
                    let results = compiled(&arguments);
                    // Buffers that nobody holds any more are written into.
                    drop(arguments);
                    return Ok(evaluated(results));
                }
                untouched(&arguments, || evaluated(compiled(&arguments)))
            })
            .collect()
    }

    /// Compiled with all passes and called for each salt before anything is evaluated, which is the last call first and each result
    /// by itself.
    fn overlapping(&self) -> Result<Vec<Outcome>, String> {
        let mut compiled = compiling(self.function(false)?, options(Passes::All));
        let calls = SALTS.map(|salt| Ok::<_, String>(compiled(&self.inputs(false, salt)?)));
        let mut outcomes = Vec::new();
        for results in calls.into_iter().rev() {
            let each = |results: Vec<Array>| -> Outcome {
                results.iter().rev().try_for_each(|result| result.eval().map_err(text))?;
                Ok(results)
            };
            outcomes.push(results?.map_err(text).and_then(each));
        }
        outcomes.reverse();
        Ok(outcomes)
    }

    /// Compiled with all passes and called with arguments of one row more in between.
    fn other_shapes(&self, classes: &[Class]) -> Result<(), String> {
        let Some(longer) = self.program.longer() else { return Ok(()) };
        let other = Scene { program: &longer, subjects: self.subjects };
        let mut compiled = compiling(self.function(false)?, options(Passes::All));
        let exact = classes.iter().all(|&class| class == Class::Exact) && !self.program.differentiates_a_branch();
        let mut first = None;
        for (call, scene) in [self, &other, self].into_iter().enumerate() {
            let f = self.function(false)?;
            let expected = evaluated(called(&f, &scene.inputs(false, 0)?));
            let results = compiled(&scene.inputs(false, 0)?);
            let results = evaluated(results);
            if let (2, Ok(first), Ok(results)) = (call, first.get_or_insert_with(|| results.clone()), &results) {
                same(results, first).map_err(|what| format!("called again after other shapes: {what}"))?;
            }
            match (results, expected) {
                (Ok(results), Ok(expected)) if exact => same(&results, &expected),
                (Ok(results), Ok(expected)) => avals(&results, &expected),
                (Err(_), Err(_)) => Ok(()),
                (Ok(_), Err(error)) => Err(format!("eager fails: {error}")),
                (Err(error), Ok(_)) => Err(format!("eager does not fail: {error}")),
            }
            .map_err(|what| format!("with other shapes, call {call}: {what}"))?;
        }
        Ok(())
    }

    /// Runs with errors, for each salt.
    fn erred(&self) -> Result<Erred<'_>, String> {
        Erred::of(Box::new(|| self.compiled(only_perturbed(), &SALTS[1..])))
    }

    /// Plain code in the place of transforms gives the same.
    fn reference(&self, results: &[Array], erred: &Erred<'_>) -> Result<(), String> {
        let around = &self.program.around;
        if around.iter().all(|around| matches!(around, Around::Grad | Around::Jvp)) {
            return Ok(());
        }
        let Ok(plain) = self.eager(0, true)? else { return Ok(()) };
        // The order of the terms of a gradient, and the loops behind a mapped op, are others.
        let reordered = around.iter().any(|around| matches!(around, Around::Grad | Around::Jvp | Around::Vmap));
        let least = if reordered { Class::Near } else { Class::Exact };
        erred
            .near(0, results, &plain, Granted { least, units: 64.0, rounded_zeros: reordered })
            .map_err(|what| format!("with {around:?} in plain code: {what}"))
    }

    /// Implicit inputs are what they materialize to.
    fn implicit_as_dense(&self, results: &[Array]) -> Result<(), String> {
        // The gradient of an implicit array has the structure of the array.
        let gradients = self.program.around.contains(&Around::Grad);
        if gradients || self.program.inputs.iter().all(|input| input.subject.is_none()) {
            return Ok(());
        }
        let dense_ones = |values: Vec<Value>| -> Result<Vec<Value>, String> {
            values.iter().map(|value| Ok(call::dense(value)?.into())).collect()
        };
        let body = self.program.body(dense_ones(self.inputs(true, 0)?)?, Failing::default());
        let f = self.program.function(body, false);
        let arguments = dense_ones(self.inputs(false, 0)?)?;
        let Ok(expected) = evaluated(called(&f, &arguments)) else { return Ok(()) };
        let erred =
            Erred::of(Box::new(|| Ok(vec![evaluated(compiling(f.clone(), options(only_perturbed()))(&arguments))])))?;
        erred
            .near(0, results, &expected, Granted { least: Class::Near, units: 256.0, rounded_zeros: true })
            .map_err(|what| format!("with dense arrays in the place of implicit ones: {what}"))
    }

    /// A state goes from call to call, and an error leaves it as it was.
    fn with_state(&self, classes: &[Class]) -> Result<(), String> {
        let implicit = self.program.inputs.iter().any(|input| input.subject.is_some());
        if implicit || !self.program.inputs.iter().any(|input| input.role == Role::State) {
            return Ok(());
        }
        let failing = Failing::default();
        let held = self.inputs(true, 0)?;
        let roles: Vec<Role> =
            self.program.inputs.iter().map(|input| input.role).filter(|&role| role != Role::Captured).collect();
        let values = dense(&self.inputs(false, 0)?).map_err(text)?;
        let inputs_with = |is_state: bool| -> Vec<Array> {
            let chosen = values.iter().zip(&roles).filter(|(_, role)| (**role == Role::State) == is_state);
            chosen.map(|(array, _)| array.clone()).collect()
        };
        let (first, arguments) = (inputs_with(true), inputs_with(false));
        let f = self.program.function(self.program.body(held, failing.clone()), false);
        let step = move |state: &mut Vec<Array>, arguments: Vec<Array>| -> Result<Vec<Array>> {
            let (mut of_state, mut others) = (state.iter(), arguments.iter());
            let inputs = roles.iter().filter_map(|role| {
                let from = if *role == Role::State { &mut of_state } else { &mut others };
                from.next().cloned()
            });
            let results = f(inputs.collect())?;
            for (at, array) in state.iter_mut().enumerate() {
                if let Some(result) = results.get(at % results.len().max(1))
                    && result.size() > 0
                    && !result.dtype().is_complex()
                {
                    *array = fitted(result, array.shape())?.as_dtype(array.dtype())?;
                }
            }
            Ok(results)
        };
        let step: Step = Rc::new(step);
        let exact = classes.iter().all(|&class| class == Class::Exact);
        let plainly = step.clone();
        let mut expected = first.clone();
        let mut steps = Vec::new();
        for _ in 0..2 {
            let Ok(results) = evaluated(plainly(&mut expected, arguments.clone())) else { return Ok(()) };
            let Ok(state) = evaluated(Ok(expected.clone())) else { return Ok(()) };
            steps.push((results, state));
        }
        let mut compiled =
            compile_with_state(options(Passes::All), move |state: &mut Vec<Array>, arguments: Vec<Array>| {
                step(state, arguments)
            });
        let mut state = first.clone();
        let values: Vec<Value> = arguments.iter().map(Value::from).collect();
        for (call, (results, next)) in steps.iter().enumerate() {
            let before = state.iter().map(bytes).collect::<Result<Vec<_>, _>>()?;
            if call == 1 {
                compiled.clear();
                failing.set(Some(self.program.steps.len() - 1));
                if compiled.call(&mut state, &values).is_ok() {
                    return Err("with a state: the function fails and the call does not, expected its error".to_owned());
                }
                failing.set(None);
                if state.iter().map(bytes).collect::<Result<Vec<_>, _>>()? != before {
                    return Err("with a state: after an error it is not what it was".to_owned());
                }
            }
            let found = compiled.call(&mut state, &values).and_then(|found| dense(&found));
            let found = evaluated(found).map_err(|what| format!("with a state, call {call}: {what}"))?;
            let now =
                evaluated(Ok(state.clone())).map_err(|what| format!("with a state, after call {call}: {what}"))?;
            if exact {
                same(&found, results).map_err(|what| format!("with a state, call {call}: {what}"))?;
                same(&now, next).map_err(|what| format!("with a state, after call {call}: {what}"))?;
            } else {
                avals(&found, results).and_then(|()| avals(&now, next))?;
            }
        }
        // A state that somebody holds stays; one that nobody else holds may be written over, and becomes the same.
        let mut run = |state: &mut Vec<Array>| -> Outcome {
            let found = evaluated(compiled.call(state, &values).and_then(|found| dense(&found)))?;
            Ok([found, evaluated(Ok(state.clone()))?].concat())
        };
        let held = copied(&first)?;
        let beside = untouched(&held.iter().map(Value::from).collect::<Vec<_>>(), || run(&mut held.clone()))??;
        let over = run(&mut copied(&first)?)?;
        same(&over, &beside).map_err(|what| format!("with a state that nobody else holds: {what}"))?;
        tripped_with_state(plainly, &first, &values)
            .map_err(|what| format!("with a state beside a node that fails: {what}"))
    }

    /// A node that fails when it is evaluated, and a call after that.
    pub(super) fn tripped(&self) -> Result<(), String> {
        let first = self.program.inputs.iter().find(|input| input.role != Role::Captured);
        if first.is_none_or(|input| input.subject.is_some()) {
            return Ok(());
        }
        let wire = Arc::new(AtomicBool::new(false));
        let (f, own) = (self.function(false)?, wire.clone());
        let tripping: Function = Rc::new(move |mut args: Vec<Array>| {
            args[0] = kernel::apply(Tripwire(own.clone()), &args[..1])?.swap_remove(0);
            f(args)
        });
        let on = || -> Outcome { evaluated(called(&tripping, &self.inputs(false, 0)?)) };
        let expected = on();
        let mut compiled = compiling(tripping.clone(), options(Passes::All));
        let mut first = None;
        for (call, trips) in [false, true, false].into_iter().enumerate() {
            wire.store(trips, Ordering::Relaxed);
            let eager = if trips { on() } else { expected.clone() };
            let found = compiled(&self.inputs(false, 0)?);
            let place =
                |what| format!("with a node that {}, call {call}: {what}", if trips { "fails" } else { "failed" });
            match (evaluated(found), eager) {
                // A compiled function may need less than the eager one: what it gives then is what it gave.
                (Ok(found), _) => same(&found, first.get_or_insert_with(|| found.clone())).map_err(place)?,
                (Err(_), Err(_)) => {}
                // What no failed node is needed for is computed with the rest.
                (Err(_), Ok(_)) if trips => {}
                (Err(error), Ok(_)) => return Err(place(error)),
            }
        }
        Ok(())
    }
}

/// The inputs of the calls of a compiled function: traced, replayed, and with other numbers.
pub(super) const SALTS: [u64; 3] = [0, 0, 1];

pub(super) fn only_perturbed() -> Passes {
    Passes::Only(vec!["perturbed".to_owned()])
}

pub(super) fn options(passes: Passes) -> CompileOptions {
    CompileOptions { passes, constants: Constants::Allow, ..CompileOptions::default() }
}

/// The function compiled: what a call of it gives. Its caller evaluates that, while it holds the inputs or once it does not.
pub(super) fn compiling(f: Function, options: CompileOptions) -> impl FnMut(&[Value]) -> Result<Vec<Array>> {
    let mut compiled = compile_with(options, move |args: Vec<Array>| f(args));
    move |arguments| compiled.call(arguments).and_then(|results| dense(&results))
}

pub(super) fn called(f: &Function, arguments: &[Value]) -> Result<Vec<Array>> {
    let f = f.clone();
    if arguments.iter().all(|value| !value.is_implicit()) {
        return f(dense(arguments)?);
    }
    dense(&implicit(arguments.to_vec(), move |args: Vec<Array>| f(args))?)
}

pub(super) fn evaluated(results: Result<Vec<Array>>) -> Outcome {
    call::evaluated(results.map_err(text)?)
}

fn copied(arrays: &[Array]) -> Outcome {
    evaluated(arrays.iter().map(extra_ops::copied).collect())
}

/// Calls a step after which the last array of the state comes of a node that fails: whoever holds the state has it as it was, what else
/// the call leaves is right or an error, and the next call gives what the first one gave.
fn tripped_with_state(step: Step, first: &[Array], arguments: &[Value]) -> Result<(), String> {
    let wire = Arc::new(AtomicBool::new(false));
    let tripped_by = wire.clone();
    let wired = move |state: &mut Vec<Array>, arguments: Vec<Array>| -> Result<Vec<Array>> {
        let before = state.last().cloned();
        let results = step(state, arguments)?;
        if let (Some(last), Some(before)) = (state.last_mut(), before) {
            // Of what was there before as well: a node of no input is computed once, before it fails.
            *last = kernel::apply(Tripwire(tripped_by.clone()), &[last.clone(), before])?.swap_remove(0);
        }
        Ok(results)
    };
    let mut compiled = compile_with_state(options(Passes::All), wired);
    let mut run = |state: &mut Vec<Array>| -> Outcome {
        let results = compiled.call(state, arguments).and_then(|results| dense(&results)).map_err(text)?;
        Ok([&results[..], &state[..]].concat())
    };
    let expected = evaluated(Ok(run(&mut copied(first)?)?))?;
    wire.store(true, Ordering::Relaxed);
    let held = copied(first)?;
    for mut state in [held.clone(), copied(first)?] {
        let checked = untouched(&held.iter().map(Value::from).collect::<Vec<_>>(), || match run(&mut state) {
            Ok(results) => right_or_failed(&results, &expected),
            Err(_) => same(&state, first),
        });
        checked??;
    }
    wire.store(false, Ordering::Relaxed);
    same(&evaluated(Ok(run(&mut held.clone())?))?, &expected)
}

/// Checks what a call left: each array is right or an error, and the last one, which comes of what failed, an error.
fn right_or_failed(found: &[Array], expected: &[Array]) -> Result<(), String> {
    for (found, expected) in found.iter().zip(expected) {
        if let Ok(found) = evaluated(Ok(vec![found.clone()])) {
            same(&found, std::slice::from_ref(expected))?;
        }
    }
    match found.last() {
        Some(last) if last.size() > 0 && last.eval().is_ok() => {
            Err("what comes of the node is a result, expected its error".to_owned())
        }
        _ => Ok(()),
    }
}

/// What `run` gives, which leaves the bytes of the dense values as they are.
fn untouched<R>(values: &[Value], run: impl FnOnce() -> R) -> Result<R, String> {
    let read = || values.iter().filter_map(Value::as_dense).map(bytes).collect::<Result<Vec<_>, _>>();
    let before = read()?;
    let result = run();
    if read()? != before {
        return Err("an input has other bytes, expected those of before".to_owned());
    }
    Ok(result)
}
