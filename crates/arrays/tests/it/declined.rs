//! Why handlers decline calls, in words: where operands may be built an explanation tells it, and where they may not the error.

mod packed;
mod scores;
mod structured;
mod views;

use mlx_rs::Array;
use tacit_arrays::{Linear, Product};
use tacit_core::compile::{CompileOptions, Constants, disable_fusion};
use tacit_core::{Policy, Result, Value, compile_with, explain, implicit};

use crate::messages::said_of;
use crate::operands::normal;

/// A call, what it is given, and its name.
type Case = (&'static str, Vec<Value>, fn(&[Array]) -> Result<Array>);

/// The name of each call, and below it everybody who declined it.
fn declined(cases: &[Case]) -> String {
    let told = |(name, operands, f): &Case| {
        let lines: Vec<String> = reasons(operands, *f).iter().map(|reason| format!("    {reason}\n")).collect();
        format!("{name}\n{}", lines.concat())
    };
    cases.iter().map(told).collect()
}

/// Those that decline it in a trace, and those that do so inside a handler, which only an error tells.
fn reasons(operands: &[Value], f: fn(&[Array]) -> Result<Array>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut add = |reason: String| {
        if !found.contains(&reason) {
            found.push(reason);
        }
    };
    {
        let _allow = Policy::Allow.scope();
        match explain(operands.to_vec(), |arrays: Vec<Array>| f(&arrays)) {
            Ok(told) => {
                for decline in told.equations.iter().flat_map(|equation| &equation.declined) {
                    add(decline.to_string());
                }
            }
            Err(error) => add(error.clause()),
        }
    }
    let _deny = Policy::Deny.scope();
    if let Err(error) = implicit(operands.to_vec(), |arrays: Vec<Array>| f(&arrays)) {
        for line in error.to_string().lines().filter(|line| line.starts_with("declined: ")) {
            add(line.to_owned());
        }
    }
    found
}

/// Those that decline a call in a function without shapes, in which MLX broadcasts operands against each other; what it makes, if
/// nothing has to be built.
fn without_shapes(x: Value, w: Value, f: fn((Array, Array)) -> Result<Array>) -> String {
    // Each kernel of MLX's would cost a run of the C++ compiler.
    disable_fusion();
    let _deny = Policy::Deny.scope();
    let options = CompileOptions { shapeless: true, constants: Constants::Deny, ..CompileOptions::default() };
    let told = match compile_with(options, f).call((x, w)) {
        Ok(made) => made.to_string(),
        Err(error) => error.to_string(),
    };
    // The handlers' lines move with the source.
    told.lines().filter(|line| !line.starts_with("near: ")).map(|line| format!("{line}\n")).collect::<Vec<_>>().concat()
}

/// What a matrix says that is asked for a product itself, as a handler of the caller's own would ask it.
fn product(w: impl Into<Value>, product: Product, x: impl Into<Value>) -> String {
    let w = w.into();
    said_of(w.family::<dyn Linear>().expect("has products").product(product, &x.into()))
}

/// Numbers of rows.
fn rows() -> Array {
    Array::from_slice(&[1u32, 0], &[2])
}

fn x(shape: &[i32]) -> Value {
    normal(5, shape).into()
}
