//! What a function keeps of its trace, as the cache of a model does: it is right, or an error.

use std::cell::RefCell;

use mlx_rs::{Array, ops};
use tacit::primitives::{Add, Matmul, Negative, Split};
use tacit::{Error, Policy, Registry, Result, Value, explain, handler, implicit};

use crate::types::{Left, Outer, dense, error, matrix, numbers, vector, with_handlers, without_handlers};

#[handler]
fn product(_: &Matmul, x: &Array, w: &Left) -> Result<Value> {
    Ok(x.matmul(&w.array)?.into())
}

#[handler]
fn negate(_: &Negative, x: &Left) -> Result<Value> {
    Ok(Left::of(&x.array.negative()?))
}

#[handler]
fn add(_: &Add, _: &Left, _: &Value) -> Result<Value> {
    Err(Error::invalid("it fails", "never"))
}

#[handler]
fn parts(_: &Split, x: &Left) -> Result<Vec<Value>> {
    Ok(ops::split_equal(&x.array, 2, 0)?.into_iter().map(Value::from).collect())
}

fn x() -> Array {
    matrix(1, 2)
}

fn w() -> Value {
    Left::of(&matrix(2, 2))
}

/// The product of the two: what a cache keeps of each call.
const PRODUCT: [f32; 2] = [7.0, 10.0];

#[test]
fn what_a_handler_made_may_be_kept() {
    let _scopes = with_handlers(Registry::new().with::<product>());
    let _deny = Policy::Deny.scope();
    let kept = RefCell::new(Vec::new());
    let result = implicit((x(), w()), |(x, w)| -> Result<Array> {
        let y = x.matmul(&w)?;
        kept.borrow_mut().push(y.clone());
        Ok(y.negative()?)
    });
    assert_eq!(dense(&result.expect("runs")), [-7.0, -10.0]);
    assert_eq!(numbers(&kept.borrow()[0]), PRODUCT);
}

#[test]
fn what_follows_from_it_may_be_kept_and_need_not_be_returned() {
    let _scopes = with_handlers(Registry::new().with::<product>());
    let kept = RefCell::new(Vec::new());
    let result = implicit((x(), w()), |(x, w)| -> Result<Array> {
        let y = x.matmul(&w)?;
        // The first is on the way to the result, the second is not.
        let [first, second] = [y.reshape(&[2])?, y.exp()?.log()?];
        kept.borrow_mut().extend([first.clone(), second]);
        Ok(first.negative()?)
    });
    assert_eq!(dense(&result.expect("runs")), [-7.0, -10.0]);
    let kept = kept.into_inner();
    assert_eq!(numbers(&kept[0]), PRODUCT);
    let product = x().matmul(matrix(2, 2)).expect("product");
    assert!(kept[1].all_close(&product, 1e-5, None, None).expect("compares"));
}

/// Each call joins what it makes to what the calls before it have kept.
#[test]
fn a_cache_grows_over_several_traces() {
    let _scopes = with_handlers(Registry::new().with::<product>());
    let _deny = Policy::Deny.scope();
    let cache: RefCell<Option<Array>> = RefCell::new(None);
    for step in 1..=4 {
        let x = x().multiply(Array::from_f32(step as f32)).expect("scales");
        let sum = implicit((x, w()), |(x, w)| -> Result<Array> {
            let y = x.matmul(&w)?;
            let joined = match cache.take() {
                Some(before) => ops::concatenate(&[before, y], 0)?,
                None => y,
            };
            cache.replace(Some(joined.clone()));
            Ok(joined.sum_axis(0, None)?)
        });
        let factor = (1..=step).sum::<i32>() as f32;
        assert_eq!(dense(&sum.expect("runs")), PRODUCT.map(|y| y * factor));
    }
    let expected: Vec<f32> = (1..=4).flat_map(|step| PRODUCT.map(|y| y * step as f32)).collect();
    assert_eq!(numbers(&cache.take().expect("is kept")), expected);
}

#[test]
fn what_was_built_for_want_of_a_handler_may_be_kept() {
    let _scopes = without_handlers();
    let kept = RefCell::new(Vec::new());
    let result = implicit((x(), Outer::of(w())), |(x, w)| -> Result<Array> {
        let y = x.matmul(&w)?;
        kept.borrow_mut().push(y.clone());
        Ok(y.negative()?)
    });
    assert_eq!(dense(&result.expect("runs")), [-7.0, -10.0]);
    assert_eq!(numbers(&kept.borrow()[0]), PRODUCT);
}

#[test]
fn each_result_of_several_may_be_kept() {
    let _scopes = with_handlers(Registry::new().with::<parts>());
    let kept = RefCell::new(Vec::new());
    let result = implicit(Left::of(&vector(&[1.0, 2.0, 3.0, 4.0])), |x| -> Result<Array> {
        let mut halves = ops::split_equal(&x, 2, 0)?;
        let last = halves.remove(1);
        kept.borrow_mut().append(&mut halves);
        Ok(last)
    });
    assert_eq!(dense(&result.expect("runs")), [3.0, 4.0]);
    assert_eq!(numbers(&kept.borrow()[0]), [1.0, 2.0]);
}

#[test]
fn what_is_told_of_a_trace_keeps_the_same() {
    let _scopes = with_handlers(Registry::new().with::<product>());
    let kept = RefCell::new(Vec::new());
    let told = explain((x(), w()), |(x, w)| -> Result<Array> {
        let y = x.matmul(&w)?;
        kept.borrow_mut().extend([x, y.clone()]);
        Ok(y.negative()?)
    });
    // Here the dense argument is a placeholder as well, and that one is kept itself.
    assert!(matches!(error(told), Error::PlaceholderLeaked { count: 1, .. }));
    assert_eq!(numbers(&kept.borrow()[1]), PRODUCT);
    assert!(kept.borrow()[0].eval().is_err());
}

#[test]
fn an_implicit_result_cannot_be_kept() {
    let _scopes = with_handlers(Registry::new().with::<negate>());
    let kept = RefCell::new(Vec::new());
    let result = implicit(w(), |w| -> Result<Array> {
        let y = w.negative()?;
        kept.borrow_mut().push(y.clone());
        Ok(y)
    });
    assert!(matches!(error(result), Error::PlaceholderLeaked { .. }));
    assert!(kept.borrow()[0].eval().is_err());
}

/// Unless it was built in the same trace: then what was built is kept.
#[test]
fn an_implicit_result_that_was_built_may_be_kept() {
    let _scopes = with_handlers(Registry::new().with::<negate>());
    let kept = RefCell::new(Vec::new());
    let result = implicit(w(), |w| -> Result<Array> {
        let y = w.negative()?;
        kept.borrow_mut().push(y.clone());
        Ok(y.sum_axis(0, None)?)
    });
    assert_eq!(dense(&result.expect("runs")), [-4.0, -6.0]);
    assert_eq!(numbers(&kept.borrow()[0]), [-1.0, -2.0, -3.0, -4.0]);
}

#[test]
fn what_a_failed_trace_leaves_behind_has_no_data() {
    let _scopes = with_handlers(Registry::new().with::<product>().with::<add>());
    let kept = RefCell::new(Vec::new());
    let result = implicit((x(), w()), |(x, w)| -> Result<Array> {
        let y = x.matmul(&w)?;
        kept.borrow_mut().push(y.clone());
        Ok(w.add(&y)?)
    });
    assert!(matches!(error(result), Error::Invalid { .. }));
    assert!(kept.borrow()[0].eval().is_err(), "an error, and no wrong number");
    let later = implicit((x(), w()), |(x, w)| Ok::<_, Error>(x.matmul(&w)?.add(&kept.borrow()[0])?));
    let later = later.and_then(|value| value.dense()).expect("is recorded");
    assert!(later.eval().is_err(), "nor in a later trace");
}
