//! `SavedForm`: parts of one trace whose activations are held together.

use std::cell::RefCell;
use std::rc::Rc;

use mlx_rs::{Array, nn, random};
use tacit::transform::{SavedForm, grad};
use tacit::{Aval, Result, Value, compile, implicit};

use crate::types::{Left, numbers, vector};

fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::key(seed).expect("a key");
    let array = random::normal::<f32>(shape, None, None, &key).expect("numbers");
    array.eval().expect("evaluates");
    array
}

/// `x W`, as a part of the graph.
fn product(form: &SavedForm, x: &Array, w: &Array) -> Result<Array> {
    let results = form.run(&[x.into()], |x| Ok(vec![x[0].dense()?.matmul(w)?.into()]))?;
    results[0].dense()
}

/// The sum of what `f` makes in a trace, which an implicit argument makes one.
fn traced(x: &Array, f: impl FnOnce(Array) -> Result<Array>) -> Result<Array> {
    Ok(implicit((Left::of(&vector(&[1.0])), x), |(_, x)| f(x))?.dense()?.sum(None)?)
}

/// What is encoded while the gradient of a weight is taken.
fn encoded(f: impl Fn(&SavedForm, &Array, &Array) -> Result<Array>) -> Vec<String> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let told = Rc::clone(&seen);
    let form = SavedForm::new(move |x: &Array| -> Result<Value> {
        told.borrow_mut().push(Aval::from(x).to_string());
        Ok(x.into())
    });
    let x = normal(1, &[2, 8]);
    let mut gradient = grad(|w: Array| traced(&x, |x| f(&form, &x, &w)));
    gradient.call(normal(2, &[8, 8])).expect("differentiates");
    let mut seen = seen.take();
    seen.sort();
    seen
}

#[test]
fn what_several_parts_read_is_encoded_once_in_any_shape() {
    let found = encoded(|form, x, w| {
        let wide = product(form, &x.reshape(&[1, 2, 8])?, w)?.reshape(&[2, 8])?;
        Ok(product(form, x, w)?.add(wide)?.add(product(form, x, w)?)?)
    });
    assert_eq!(found, ["f32[2,8]"]);
}

#[test]
fn what_lies_between_parts_is_in_the_form_up_to_the_next_part_of_any() {
    // Of the first product the input, then what the square and the exponential read, of which the second product reads one, too.
    let between = |form: &SavedForm, x: &Array, w: &Array| -> Result<Array> {
        product(form, &product(form, x, w)?.square()?.exp()?, w)
    };
    assert_eq!(encoded(between), ["f32[2,8]"; 3]);
    let plain = |form: &SavedForm, x: &Array, w: &Array| -> Result<Array> {
        let square = |y: &[Value]| -> Result<Vec<Value>> { Ok(vec![y[0].dense()?.square()?.into()]) };
        let squared = SavedForm::plain().run(&[product(form, x, w)?.into()], square)?;
        product(form, &squared[0].dense()?.exp()?, w)
    };
    assert_eq!(encoded(plain), ["f32[2,8]"; 2], "the inputs of the products alone");
    let after = |form: &SavedForm, x: &Array, w: &Array| -> Result<Array> { Ok(product(form, x, w)?.exp()?) };
    assert_eq!(encoded(after), ["f32[2,8]"], "no part comes after it");
}

#[test]
fn a_form_that_loses_nothing_changes_no_bit() {
    fn layers(form: &SavedForm, x: &Array, w: &Array) -> Result<Array> {
        let (up, gate) = (product(form, x, w)?, nn::silu(product(form, x, w)?)?);
        let y = product(form, &up.multiply(gate)?, w)?.add(x)?;
        product(form, &nn::relu(y)?, w)
    }
    let (x, w) = (normal(1, &[2, 8]), normal(2, &[8, 8]));
    let gradient = |form: &SavedForm| {
        let mut gradient = grad(|w: Array| traced(&x, |x| layers(form, &x, &w)));
        numbers(gradient.call(&w).expect("differentiates").array().expect("dense"))
    };
    let plain = gradient(&SavedForm::plain());
    let form = SavedForm::new(|x: &Array| -> Result<Value> { Ok(x.into()) });
    assert_eq!(gradient(&form), plain);

    let mut compiled = compile(move |(x, w): (Array, Array)| -> Result<Array> {
        let mut gradient = grad(|w: Array| traced(&x, |x| layers(&form, &x, &w)));
        Ok(gradient.call(w)?.array()?.clone())
    });
    for _ in 0..2 {
        let found = numbers(&compiled.call((&x, &w)).and_then(|found| found.dense()).expect("compiles"));
        let most = plain.iter().fold(1f32, |most, x| most.max(x.abs()));
        assert!(found.iter().zip(&plain).all(|(a, b)| (a - b).abs() <= 1e-5 * most), "{found:?} and not {plain:?}");
    }
}

#[test]
fn a_part_that_fails_leaves_the_next_trace_alone() {
    let form = SavedForm::new(|x: &Array| -> Result<Value> { Ok(x.round(None)?.into()) });
    let mut gradient = grad(|x: Array| -> Result<Array> {
        traced(&x, |x| {
            let results = form.run(&[(&x).into()], |x| Ok(vec![x[0].dense()?.square()?.into()]))?;
            if x.ndim() == 1 { results[0].dense() } else { Err(tacit::Error::refuse("of its own")) }
        })
    });
    assert!(gradient.call(normal(1, &[2, 2])).is_err());
    let found = gradient.call(vector(&[1.25, 2.75])).expect("differentiates");
    assert_eq!(numbers(found.array().expect("dense")), [2.0, 6.0]);
}
