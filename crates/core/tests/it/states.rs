//! States that hold implicit arrays, and what a function does with them.

use mlx_rs::Array;
use tacit::primitives::Negative;
use tacit::{Error, Policy, Registry, Result, Value, handler, implicit_with_state};

use crate::types::{Left, dense, error, matrix, numbers, vector, with_handlers};

#[handler]
fn negate(_: &Negative, x: &Left) -> Result<Value> {
    Ok(Left::of(&x.array.negative()?))
}

fn left(values: &[f32]) -> Value {
    Left::of(&vector(values))
}

fn held(value: &Value) -> Vec<f32> {
    numbers(&value.downcast::<Left>().unwrap_or_else(|| panic!("{value} is not held")).array)
}

#[test]
fn what_a_handler_makes_is_what_the_state_holds() {
    let _scopes = with_handlers(Registry::new().with::<negate>());
    let _deny = Policy::Deny.scope();
    let mut state = (left(&[1.0, 2.0]), left(&[3.0]), Value::from(vector(&[4.0])));
    let result = implicit_with_state(&mut state, vector(&[5.0]), |(changed, _, summed), x| {
        let negative = changed.dense()?.negative()?;
        *changed = negative.clone().into();
        *summed = summed.dense()?.add(&x)?.into();
        Ok::<_, Error>(negative)
    });
    assert_eq!(held(&result.expect("is handled")), [-1.0, -2.0]);
    assert_eq!((held(&state.0), held(&state.1), dense(&state.2)), (vec![-1.0, -2.0], vec![3.0], vec![9.0]));
}

#[test]
fn implicit_arrays_are_swapped_and_replaced() {
    let _scopes = with_handlers(Registry::new());
    let _deny = Policy::Deny.scope();
    let mut state = (left(&[1.0]), left(&[2.0]));
    implicit_with_state(&mut state, (), |(a, b), ()| {
        std::mem::swap(a, b);
        Ok::<_, Error>(())
    })
    .expect("runs");
    assert_eq!((held(&state.0), held(&state.1)), (vec![2.0], vec![1.0]));
    implicit_with_state(&mut state, vector(&[7.0]), |(a, b), x| {
        *b = a.clone();
        *a = x.into();
        Ok::<_, Error>(())
    })
    .expect("runs");
    assert_eq!((dense(&state.0), held(&state.1)), (vec![7.0], vec![2.0]));
}

#[test]
fn a_state_may_lose_and_gain_arrays() {
    let _scopes = with_handlers(Registry::new());
    let mut state = vec![left(&[1.0]), left(&[2.0])];
    implicit_with_state(&mut state, (), |state, ()| {
        state.remove(0);
        Ok::<_, Error>(())
    })
    .expect("runs");
    assert_eq!(state.iter().map(held).collect::<Vec<_>>(), [[2.0]]);
    implicit_with_state(&mut state, vector(&[3.0]), |state, x| {
        state.push(x.into());
        Ok::<_, Error>(())
    })
    .expect("runs");
    assert_eq!((state.len(), held(&state[0]), dense(&state[1])), (2, vec![2.0], vec![3.0]));
}

#[test]
fn a_function_that_fails_or_panics_leaves_the_state_as_it_was() {
    let _scopes = with_handlers(Registry::new().with::<negate>());
    let mut state = vec![left(&[1.0]), vector(&[2.0]).into()];
    let change = |state: &mut Vec<Value>| -> Result<()> {
        let negative = state[0].dense()?.negative()?;
        state[1] = negative.into();
        state.remove(0);
        Ok(())
    };
    let failed = implicit_with_state(&mut state, (), |state, ()| {
        change(state)?;
        Err::<Array, _>(Error::invalid("not now", "try again"))
    });
    assert!(error(failed).to_string().contains("not now"));
    let panicked = implicit_with_state(&mut state, (), |state, ()| {
        change(state)?;
        assert!(!state.is_empty() && state[0].is_implicit(), "a panic in the middle");
        Ok::<_, Error>(())
    });
    assert!(error(panicked).to_string().contains("a panic in the middle"));
    // An implicit array of the function's own has no place in the graph.
    let own = implicit_with_state(&mut state, (), |state, ()| {
        change(state)?;
        state.push(left(&[9.0]));
        Ok::<_, Error>(())
    });
    assert!(own.is_err());
    // A result that cannot be what the caller takes.
    let _deny = Policy::Deny.scope();
    let denied = implicit_with_state(&mut state, (), |state, ()| {
        let sum = state[0].dense()?.add(vector(&[1.0]))?;
        state[0] = sum.into();
        Ok::<_, Error>(())
    });
    assert!(matches!(error(denied), Error::MaterializationDenied { .. }));
    assert_eq!((state.len(), held(&state[0]), dense(&state[1])), (2, vec![1.0], vec![2.0]));
}

#[test]
fn a_state_without_implicit_arrays_is_run_as_it_is() {
    let mut state = matrix(1, 2);
    let y = implicit_with_state(&mut state, matrix(1, 2), |state, x| {
        *state = state.add(x)?;
        state.square()
    });
    assert_eq!((dense(&y.expect("runs")), numbers(&state)), (vec![4.0, 16.0], vec![2.0, 4.0]));
}
