//! Compiled functions where nothing is compiled; both are decided once for a process, so this is a binary of its own.

#![allow(clippy::float_cmp, reason = "the values are exact")]

extern crate tacit_core as tacit;

use std::cell::Cell;
use std::process::Command;

use mlx_rs::Array;
use tacit::compile::{COMPILE_VARIABLE, CompileOptions, MLX_VARIABLE, disable, enable, is_enabled};
use tacit::{Result, compile, compile_with, compile_with_state};

/// Says to the process that it is the child of a test.
const CHILD: &str = "TACIT_TEST_CHILD";

/// Runs the named test of this binary in a process of its own, with these variables.
fn in_a_child(test: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().expect("the test knows its path"))
        .args(["--exact", test, "--nocapture"])
        .envs(variables.iter().copied())
        .env(CHILD, "1")
        .output()
        .expect("the child starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{text}");
    text
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Calls a function twice; how often it ran, and how often it was inlined.
fn twice() -> Result<(u32, u64)> {
    let runs = Cell::new(0);
    let mut f = compile(|x: Array| {
        runs.set(runs.get() + 1);
        x.exp()
    });
    for _ in 0..2 {
        assert_eq!(f.call(Array::from_f32(0.0))?.dense()?.item_exact::<f32>(), 1.0);
    }
    Ok((runs.get(), f.stats().inlined))
}

#[test]
fn a_switch_runs_functions_as_they_are() -> Result<()> {
    if !is_child() {
        in_a_child("a_switch_runs_functions_as_they_are", &[]);
        return Ok(());
    }
    assert!(is_enabled());
    assert_eq!(twice()?, (1, 0));
    disable();
    assert_eq!(twice()?, (2, 2));
    enable();
    assert_eq!(twice()?, (1, 0));
    Ok(())
}

#[test]
fn a_variable_runs_functions_as_they_are() -> Result<()> {
    if !is_child() {
        in_a_child("a_variable_runs_functions_as_they_are", &[(COMPILE_VARIABLE, "off")]);
        return Ok(());
    }
    assert!(!is_enabled());
    assert_eq!(twice()?, (2, 2));
    Ok(())
}

#[test]
fn a_variable_with_another_word_is_said_and_functions_are_compiled() -> Result<()> {
    const TEST: &str = "a_variable_with_another_word_is_said_and_functions_are_compiled";
    if !is_child() {
        let said = in_a_child(TEST, &[(COMPILE_VARIABLE, "of")]);
        let expected = "TACIT_COMPILE=of is not one of on, off, 1, 0, true and false; on is in force";
        assert!(said.contains(expected), "{said}");
        let said = in_a_child(TEST, &[(COMPILE_VARIABLE, "")]);
        assert!(!said.contains(COMPILE_VARIABLE), "{said}");
        return Ok(());
    }
    assert!(is_enabled());
    assert_eq!(twice()?, (1, 0));
    Ok(())
}

/// MLX's documentation names the variable; MLX then hands functions back as they are.
#[test]
fn the_variable_of_mlx_is_honored_and_nothing_enables_against_it() -> Result<()> {
    if !is_child() {
        in_a_child("the_variable_of_mlx_is_honored_and_nothing_enables_against_it", &[(MLX_VARIABLE, "1")]);
        return Ok(());
    }
    assert!(!is_enabled());
    assert_eq!(twice()?, (2, 2));
    enable();
    assert!(!is_enabled());
    assert_eq!(twice()?, (2, 2));
    Ok(())
}

/// What `compile` returns has the traces. That is said once of a place whose functions are called once each, and not of one
/// that is kept.
#[test]
fn functions_that_are_compiled_in_a_loop_are_warned_of_once() -> Result<()> {
    const TEST: &str = "functions_that_are_compiled_in_a_loop_are_warned_of_once";
    if !is_child() {
        let said = in_a_child(TEST, &[]);
        let warning = "the function was compiled 32 times at";
        assert_eq!(said.matches(warning).count(), 1, "{said}");
        let expected = "each compiled function was called once: each traces anew\n\
                        help: compile once, outside the loop, and keep what `compile` returns";
        assert!(said.contains(expected) && said.contains("compiling_switched_off.rs:"), "{said}");
        return Ok(());
    }
    let x = Array::from_f32(0.0);
    for _ in 0..100 {
        compile(|x: Array| x.exp()).call(&x)?;
    }
    let mut kept = compile(|x: Array| x.exp());
    for _ in 0..100 {
        kept.call(&x)?;
    }
    // Another function of the same text is another place; each of these is called twice.
    for _ in 0..100 {
        let mut twice = compile(|x: Array| x.exp());
        twice.call(&x)?;
        twice.call(&x)?;
    }
    Ok(())
}

#[test]
fn without_a_compiler_graphs_are_replayed_and_that_is_said_once() -> Result<()> {
    if !is_child() {
        let said = in_a_child("without_a_compiler_graphs_are_replayed_and_that_is_said_once", &[("PATH", "")]);
        assert_eq!(said.matches("no g++ is in the search path").count(), 1, "{said}");
        return Ok(());
    }
    assert_eq!(twice()?, (1, 0));
    // State, two shapes, and an op that would be fused.
    let mut f = compile_with_state(CompileOptions::default(), |total: &mut Array, x: Array| {
        *total = total.add(x.sum(None)?)?;
        x.exp()?.multiply(&*total)
    });
    let mut total = Array::from_f32(0.0);
    for (x, expected) in [([0.0, 0.0], 0.0), ([1.0, 1.0], 2.0), ([2.0, 2.0], 6.0)] {
        let result = f.call(&mut total, Array::from_slice(&x, &[2]))?.dense()?;
        assert_eq!(total.item_exact::<f32>(), expected);
        let first: f32 = x[0];
        assert!((result.as_slice::<f32>()[0] - first.exp() * expected).abs() < 1e-4);
    }
    assert_eq!(f.stats().traces, 1);
    // One trace for each shape, where there is none for all of them.
    let mut f = compile_with(CompileOptions { shapeless: true, ..CompileOptions::default() }, |x: Array| x.sum(None));
    for size in [2, 3, 2] {
        let x = mlx_rs::ops::ones::<f32>(&[size])?;
        assert_eq!(f.call(&x)?.dense()?.item_exact::<f32>(), size as f32);
    }
    assert_eq!(f.stats().traces, 2);
    Ok(())
}
