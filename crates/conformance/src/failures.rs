//! The state that an error in the middle of a call leaves behind.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mlx_rs::{Array, Dtype, transforms};
use tacit_core::kernel;
use tacit_core::transform::intercept;
use tacit_core::{DeviceFallback, Error, Policy, Value};

use crate::call::{Call, bits_equal, bytes, dense, text, transposed};
use crate::case::Case;
use crate::device::is_gpu;
use crate::elements::floats;
use crate::oracle::Structure;
use crate::programs::Tripwire;
use crate::report::Report;
use crate::shape::Shapes;
use crate::subject::{Subject, normal};

/// Lets something fail beside the subject: a kernel in the same eval, the function that is traced, an op under
/// [`Policy::Deny`].
///
/// Afterwards the subject's arrays have the bytes that they had, and a product of it is what it was. What could not be
/// computed stays an error, or NaN: so does a subject that refuses a NaN when it is evaluated.
#[must_use]
pub fn failures(subject: &Subject) -> Report {
    let mut report = Report::new(format!("failures of {}", subject.name()));
    let Some(shapes) = report.shapes(subject) else { return report };
    let case = Case::plain(&shapes);
    let Some(w) = subject.normal(&case.aval, case.seed) else { return report };
    let x = case.array(&[3, case.aval.shape.last().copied().unwrap_or(1)], 1);
    let product = Call::new("product", vec![x.into(), w.clone()], |arrays| arrays[0].matmul(transposed(&arrays[1])?));
    let checks: [(&str, Failure); 3] =
        [("a kernel", kernel_fails), ("the function", function_fails), ("an op that is denied", op_is_denied)];
    for (name, fails) in checks {
        report.compare(format_args!("after {name} failed"), || unchanged(&w, &product, fails));
    }
    report.compare("what a failed kernel should have filled", unfilled);
    report.compare("made of a NaN and read twice", || read_twice(subject, &shapes));
    report
}

/// Lets something fail beside the product of a subject.
type Failure = fn(&Call) -> Result<(), String>;

/// The subject and its product before and after something fails.
fn unchanged(w: &Value, product: &Call, fails: Failure) -> Result<(), String> {
    let state =
        || Structure::from_operands(slice::from_ref(w)).leaves.iter().map(bytes).collect::<Result<Vec<_>, String>>();
    let (before, expected) = (state()?, product.intercepted()?);
    fails(product)?;
    if state()? != before {
        return Err("its arrays have other bytes, expected those of before".to_owned());
    }
    product.intercepted()?.iter().zip(&expected).try_for_each(|(found, expected)| bits_equal(found, expected))
}

fn failed_array() -> Result<Array, String> {
    // A kernel can fail on the CPU alone.
    let _cpu = DeviceFallback::Cpu.scope();
    let failing = Tripwire(Arc::new(AtomicBool::new(true)));
    kernel::apply(failing, &[Array::from_slice(&[1f32, 2.0], &[2])])
        .map(|mut results| results.swap_remove(0))
        .map_err(text)
}

fn kernel_fails(product: &Call) -> Result<(), String> {
    let _allow = Policy::Allow.scope();
    let run = product.run.clone();
    let results = intercept(&product.operands, |arrays| Ok(run(&arrays)?)).map_err(text)?;
    let mut together = results.iter().map(Value::dense).collect::<tacit_core::Result<Vec<_>>>().map_err(text)?;
    together.push(failed_array()?);
    match transforms::eval(&together) {
        Err(_) => Ok(()),
        Ok(()) => Err("a kernel fails and the eval does not, expected its error".to_owned()),
    }
}

/// The traced function uses the subject and then fails.
fn function_fails(product: &Call) -> Result<(), String> {
    let _allow = Policy::Allow.scope();
    let run = product.run.clone();
    let failed = intercept(&product.operands, |arrays| {
        run(&arrays)?;
        Err(Error::invalid("it fails by design", "expect it"))
    });
    if failed.is_err() {
        Ok(())
    } else {
        Err("the function fails and the call does not, expected its error".to_owned())
    }
}

/// A sort of the subject, for which types have no handler, under `Deny`; one that has is no failure.
fn op_is_denied(product: &Call) -> Result<(), String> {
    let _deny = Policy::Deny.scope();
    drop(intercept(&product.operands, |arrays| Ok(vec![mlx_rs::ops::sort_axis(&arrays[1], -1)?, arrays[0].clone()])));
    Ok(())
}

/// Is an error or NaN each time that it is read.
fn unfilled() -> Result<(), String> {
    let array = failed_array()?;
    if array.eval().is_ok() {
        return Err("a kernel fails and the eval does not, expected its error".to_owned());
    }
    no_number(&array)?;
    no_number(&array)
}

fn no_number(array: &Array) -> Result<(), String> {
    match array.try_as_slice::<f32>() {
        Ok(read) if !read.iter().all(|element| element.is_nan()) => Err(format!(
            "after its kernel failed it reads as {:?}, expected NaN or an error",
            &read[..read.len().min(4)]
        )),
        _ => Ok(()),
    }
}

/// A subject that refuses NaN only when it is evaluated refuses it again, or is NaN.
fn read_twice(subject: &Subject, shapes: &Shapes) -> Result<(), String> {
    // What a GPU encodes cannot fail.
    if !subject.refuses_non_finite || is_gpu() {
        return Ok(());
    }
    let x = normal(1, &shapes.plain(), Dtype::Float32);
    let nan = Array::from_f32(f32::NAN);
    let x = mlx_rs::ops::select(x.eq(x.max(None).map_err(text)?).map_err(text)?, nan, &x).map_err(text)?;
    let Ok(value) = subject.make(&x) else { return Ok(()) };
    let _allow = Policy::Allow.scope();
    let dense_array = value.dense().map_err(text)?;
    if dense_array.eval().is_ok() {
        return Err("it is not refused, expected an error".to_owned());
    }
    // The same array, and one that is made of the same children.
    for (which, again) in [("the same array", Ok(dense_array)), ("a second one", value.dense())] {
        let read = again
            .map_err(text)
            .and_then(|again| again.eval().map_err(text).and_then(|()| floats(&again).map_err(text)));
        if let Ok(read) = read
            && !read.iter().all(|element| element.is_nan())
        {
            let read = &read[..read.len().min(4)];
            return Err(format!("after its eval failed {which} reads as {read:?}, expected NaN or an error"));
        }
    }
    let again = dense(&value);
    if again.is_ok_and(|again| floats(&again).is_ok_and(|read| read.iter().all(|element| element.is_finite()))) {
        return Err("after its eval failed its dense array is finite, expected NaN or an error".to_owned());
    }
    Ok(())
}
