//! What is refused, and what an error leaves.

use std::rc::Rc;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use tacit::transform::{grad, jvp, saved_as, value_and_grad};
use tacit::{Error, Result, Value};

use super::itself;
use crate::transforms_shared::check;
use crate::types::{error, numbers, vector};

#[test]
fn a_gradient_of_a_saved_gradient_is_an_error() {
    let inner = |x: Array| -> Result<Array> {
        let loss = |x: Array| saved_as(itself, |x: Array| x.square()?.sum(None)).call(x)?.dense();
        Ok(grad(loss).call(x)?.array()?.sum(None)?)
    };
    let expected = expect![[r#"
        a derivative is taken of a gradient that read saved activations
        help: take derivatives of gradients without `saved`, whose activations are encoded"#]];
    check(&expected, grad(inner).call(vector(&[1.0, 2.0])));
    check(&expected, jvp(vector(&[1.0, 2.0]), tacit::tree::Gradient::Dense(vector(&[1.0, 2.0])), inner));
    // A value beside the gradient has its own derivative.
    let value = |x: Array| -> Result<Array> {
        let loss = |x: Array| saved_as(itself, |x: Array| x.square()?.sum(None)).call(x)?.dense();
        value_and_grad(loss).call(x)?.0.dense()
    };
    assert_eq!(numbers(grad(value).call(vector(&[1.0, 2.0])).expect("runs").array().expect("dense")), [2.0, 4.0]);
}

#[test]
fn a_value_that_is_not_float_or_has_too_few_elements_is_an_error() {
    let loss = |encode: fn(&Array) -> Result<Value>| {
        grad(move |x: Array| -> Result<Array> {
            Ok(saved_as(encode, |x: Array| x.square()).call(x)?.dense()?.sum(None)?)
        })
        .call(vector(&[1.0, 2.0]))
    };
    check(
        &expect![[r#"
            an activation of f32[2] is saved as i8[2]
            help: return a float value that holds all its elements"#]],
        loss(|x| Ok(x.as_dtype(Dtype::Int8)?.into())),
    );
    check(
        &expect![[r#"
            an activation of f32[2] is saved as f32[1]
            help: return a float value that holds all its elements"#]],
        loss(|x| Ok(x.try_index(..1)?.into())),
    );
    let own = error(loss(|_| Err(Error::refuse("of its own"))));
    assert!(matches!(own, Error::Refused { .. }), "{own:?}");
}

#[test]
fn an_error_of_the_function_comes_out_and_nothing_stays() {
    let held = Rc::new(());
    let inside = Rc::clone(&held);
    let encode = move |x: &Array| -> Result<Value> {
        let _ = &inside;
        Ok(x.into())
    };
    let mut f = saved_as(encode, |x: Array| -> Result<Array> {
        if x.ndim() == 1 { Ok(x.square()?) } else { Err(Error::refuse("of its own")) }
    });
    let failed = error(
        grad(|x: Array| f.call(x)?.dense()?.sum(None).map_err(Error::from))
            .call(vector(&[1.0]).reshape(&[1, 1]).expect("reshapes")),
    );
    assert!(matches!(failed, Error::Refused { .. }), "{failed:?}");
    let dx = grad(|x: Array| f.call(x)?.dense()?.sum(None).map_err(Error::from)).call(vector(&[3.0])).expect("runs");
    assert_eq!(numbers(dx.array().expect("dense")), [6.0]);
    drop((f, dx));
    assert_eq!(Rc::strong_count(&held), 1);
}
