//! Parameters and moments that a compiled step writes where they lie.

use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_core::Result;
use tacit_core::compile::{CompileOptions, Constants, compile_with_state};
use tacit_core::pass::Passes;

use crate::same::{assert_close, floats, normal, number, of};

/// A parameter with its two moments.
type State = [Array; 3];

/// A step of Adam on the mean square of a product.
#[allow(clippy::needless_pass_by_value, reason = "a compiled function owns its arguments")]
fn step([w, first, second]: &mut State, x: Array) -> Result<Array> {
    let loss = |w: &Array| x.matmul(w)?.square()?.mean(None);
    let gradient = transforms::grad(loss)(&*w)?;
    let mean = |moment: &Array, new: &Array, kept: f32| -> Result<Array> {
        Ok(moment.multiply(number(w, kept))?.add(new.multiply(number(w, 1.0 - kept))?)?)
    };
    let (new_first, new_second) = (mean(first, &gradient, 0.9)?, mean(second, &gradient.square()?, 0.99)?);
    let change = new_first.divide(new_second.sqrt()?.add(number(w, 1e-2))?)?;
    let new = w.subtract(change.multiply(number(w, 0.1))?)?;
    (*w, *first, *second) = (new, new_first, new_second);
    Ok(x.matmul(&*w)?.abs()?.max(None)?)
}

fn start(dtype: Dtype) -> State {
    let zeros = || of(dtype, &normal(&[24, 50], 1).abs().expect("numbers"));
    [of(dtype, &normal(&[24, 50], 0)), zeros(), zeros()]
}

/// Where the arrays lie, in the order of the addresses: one may take the memory of another one.
fn places(state: &State) -> Vec<usize> {
    let place = |array: &Array| match array.dtype() {
        Dtype::Float32 => array.as_slice::<f32>().as_ptr().addr(),
        Dtype::Float16 => array.as_slice::<half::f16>().as_ptr().addr(),
        _ => array.as_slice::<half::bf16>().as_ptr().addr(),
    };
    let mut places: Vec<usize> = state.iter().map(place).collect();
    places.sort_unstable();
    places
}

#[test]
fn a_step_of_an_optimizer_needs_no_second_memory_for_its_state() {
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        let options = |passes| CompileOptions { passes, constants: Constants::Allow, ..CompileOptions::default() };
        let mut compiled = compile_with_state(options(Passes::All), step);
        let mut beside = compile_with_state(options(Passes::All), step);
        let mut plain = compile_with_state(options(Passes::Off), step);
        let (mut own, mut held, mut expected) = (start(dtype), start(dtype), start(dtype));
        for call in 0..5 {
            let x = of(dtype, &normal(&[8, 24], 10 + call));
            let before = places(&own);
            let kept = held.clone();
            let numbers = kept.each_ref().map(floats);
            let result = compiled.call(&mut own, &x).expect("a step").dense().expect("an array");
            transforms::eval(own.iter().chain([&result])).expect("an eval");
            if call > 0 {
                assert_eq!(places(&own), before, "{dtype:?} in call {call}: no other memory was taken");
            }
            // Who holds a state keeps it, and the step has the same bits.
            let made_beside = beside.call(&mut held, &x).expect("a step").dense().expect("an array");
            transforms::eval(held.iter().chain([&made_beside])).expect("an eval");
            assert_eq!(kept.each_ref().map(floats), numbers);
            assert_eq!(own.each_ref().map(floats), held.each_ref().map(floats), "{dtype:?} in call {call}");
            assert_eq!(floats(&result), floats(&made_beside));
            plain.call(&mut expected, &x).expect("a step");
            let relative = if dtype == Dtype::Float32 { 1e-4 } else { 0.1 };
            own.iter().zip(&expected).for_each(|(own, expected)| assert_close(own, expected, relative));
        }
        assert!(compiled.stats().nodes.contains_key("Plan"), "{dtype:?}");
    }
}

/// An array that a step reads once more after its update is made is not written over.
#[test]
fn what_a_step_reads_later_is_what_it_was() {
    let later = |[a, b, c]: &mut State, x: Array| -> Result<Array> {
        let new = ops::tanh(a.multiply(&*b)?.add(&*c)?)?;
        let read = x.matmul(&*a)?.matmul(new.swap_axes(0, 1)?)?.abs()?;
        let last = new.subtract(&*a)?.mean_axes(&[0], true)?;
        (*b, *c) = (new.clone(), b.add(&last)?);
        *a = a.subtract(new)?;
        Ok(read.max(None)?)
    };
    let mut compiled = compile_with_state(CompileOptions::default(), later);
    let small = || start(Dtype::Float32).map(|array| array.multiply(Array::from_f32(0.1)).expect("numbers"));
    let (mut own, mut eager) = (small(), small());
    transforms::eval(own.iter().chain(&eager)).expect("an eval");
    for call in 0..4 {
        let x = normal(&[8, 24], call);
        let result = compiled.call(&mut own, &x).expect("a step").dense().expect("an array");
        let expected = later(&mut eager, x).expect("it runs");
        transforms::eval(own.iter().chain(&eager).chain([&result, &expected])).expect("an eval");
        assert_close(&result, &expected, 1e-4);
        own.iter().zip(&eager).for_each(|(own, eager)| assert_close(own, eager, 1e-4));
    }
}
