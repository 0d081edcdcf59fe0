//! Messages of what a trace, a transform, a store and a compiled function tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use expect_test::expect;
use mlx_rs::Array;
use tacit::extra_ops::{checked_indices, checked_numbers};
use tacit::kernel::{GpuBackend, trace_for};
use tacit::primitives::Negative;
use tacit::transform::{custom_jvp, grad, vmap};
use tacit::{DeviceFallback, Error, Registry, Result, Value, compile, handler};

use super::{left, negated, said};
use crate::types::{Left, error, said_of, vector, with_handlers};

#[handler]
fn reshaped_left(_: &Negative, x: &Left) -> Result<Value> {
    Ok(x.array.reshape(&[3])?.into())
}

#[test]
fn mlx_refuses_an_op_of_a_handler() {
    let _scopes = with_handlers(Registry::new().with::<reshaped_left>());
    said(
        &expect![[r#"
        mlx: [reshape] Cannot reshape array of size 2 into shape (3).
        help: compare the operands of this op: `explain` tells the avals of all ops of a function
        in: handler reshaped_left (crates/core/tests/it/messages/told.rs:LINE), which was given negative of Left(f32[2])"#]],
        &error(negated(left())),
    );
}

#[test]
fn the_tangents_of_a_rule_do_not_fit() {
    let mut f = custom_jvp(|x: Array| Ok::<_, Error>(vec![x]), |x: Array, dx: Array| Ok::<_, Error>(vec![x, dx]));
    let sum = move |x: Array| f.call(x)?.swap_remove(0).dense()?.sum(None).map_err(Error::from);
    said(
        &expect![[r#"
        the tangents of a custom jvp do not fit the results: list of 1 -> list of 2 at the root
        help: return the structure of the results with a tangent at each leaf"#]],
        &error(grad(sum).call(vector(&[3.0]))),
    );
}

#[test]
fn a_mapped_function_makes_an_implicit_array() {
    said(
        &expect![[r#"
        the function returns Left(f32[]), and inside it every array is dense
        help: return the implicit array beside the function, or open it with `implicit` inside"#]],
        &error(vmap(0, 0, |x: Array| Ok::<_, Error>(Left::of(&x))).call(vector(&[1.0, 2.0]))),
    );
}

#[test]
fn an_implicit_array_is_serialized_without_its_arrays() {
    let value = left();
    let Value::Implicit(array) = &value else { panic!("it is implicit") };
    expect![[r#"
        the arrays of an implicit array are not part of its structure
        help: serialize it inside `store::collect` and read it inside `store::provide`, which carry them"#]]
    .assert_eq(&serde_json::to_string(array).expect_err("has nowhere to put them").to_string());
}

#[test]
fn a_function_is_traced_again_for_what_is_in_force() -> Result<()> {
    let mut f = compile(|x: Array| x.exp());
    f.call(vector(&[1.0]))?;
    {
        let _cpu = DeviceFallback::Cpu.scope();
        f.call(vector(&[1.0]))?;
    }
    {
        let _gpu = trace_for(GpuBackend::Cuda);
        f.call(vector(&[1.0]))?;
    }
    {
        let _registry = Arc::new(Registry::new()).scope();
        f.call(vector(&[1.0]))?;
    }
    expect![[r#"
        device fallback Dense -> Cpu
        device fallback Cpu -> Dense
        another GPU is traced for"#]]
    .assert_eq(&f.stats().retraces().collect::<Vec<_>>().join("\n"));
    Ok(())
}

#[test]
fn a_function_is_traced_again_for_other_keys() -> Result<()> {
    let mut f = compile(|arrays: BTreeMap<String, Array>| {
        arrays.into_values().next().unwrap_or_else(|| Array::from_f32(0.0)).exp()
    });
    f.call(BTreeMap::<String, Array>::new())?;
    f.call(BTreeMap::from([("a".to_owned(), vector(&[1.0]))]))?;
    expect!["map without keys -> map with the keys a at `args`"]
        .assert_eq(&f.stats().retraces().collect::<Vec<_>>().join("\n"));
    Ok(())
}

#[test]
fn indices_and_numbers_outside() {
    let evaluated = |checked: Result<Array>| checked.and_then(|checked| Ok(checked.eval()?));
    let numbers = |at: &Array| checked_numbers(at, 4, "token", "take the tokenizer of the model");
    let messages = [
        said_of(checked_indices(&vector(&[1.0]), 4)),
        said_of(numbers(&vector(&[1.0]))),
        said_of(evaluated(checked_indices(&Array::from_slice(&[0i32], &[1]), 0))),
        said_of(evaluated(checked_indices(&Array::from_slice(&[4u32], &[1]), 4))),
        said_of(evaluated(checked_indices(&Array::from_slice(&[1i32, -5], &[2]), 4))),
        said_of(evaluated(numbers(&Array::from_slice(&[1i32, -1], &[2])))),
    ];
    expect![[r#"
        the indices are f32[1], which are no integers
        help: give integers, such as those of `argmax`
        the indices are f32[1], which are no integers
        help: give integers, such as those of `argmax`
        kernel Indices failed: index 0 (entry 0) is outside an extent of 0
        help: there is nothing to choose
        kernel Indices failed: index 4 (entry 0) is outside an extent of 4
        help: indices count from 0 to 3
        kernel Indices failed: index -5 (entry 1) is outside an extent of 4
        help: indices count from 0 to 3, or backwards from -1 to -4
        kernel Indices failed: token -1 (entry 1) is not in the range 0 to 3
        help: take the tokenizer of the model
    "#]]
    .assert_eq(&messages.concat());
}
