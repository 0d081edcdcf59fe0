use mlx_rs::{
    Array, Dtype,
    error::Exception,
    ops,
    transforms::{compile::compile, fallible_vjp},
};

use super::{Op, all};

#[test]
fn names_at_least_130_distinct_ops() {
    let mut names: Vec<&str> = all().iter().map(|op| op.name).collect();
    names.sort_unstable();
    for pair in names.windows(2) {
        assert_ne!(pair[0], pair[1], "a name stands twice");
    }
    assert!(names.len() >= 130, "the surface has {} ops", names.len());
}

#[test]
fn every_op_evaluates_on_its_operands() {
    each_op(|op| {
        let operands = (op.operands)()?;
        for output in (op.run)(&operands)? {
            output.eval()?;
            if output.dtype().is_float() {
                assert_finite(op, "output", &output)?;
            }
        }
        Ok(())
    });
}

#[test]
fn every_op_only_builds_the_graph() {
    // An eval inside a compiled function's trace is an error.
    each_op(|op| compile(op.run, None)(&(op.operands)()?).map(drop));
}

#[test]
fn every_declared_gradient_is_finite() {
    each_op(|op| {
        for &position in op.differentiable {
            let gradient = gradient(op, position)?;
            if gradient.dtype().is_float() {
                assert_finite(op, "gradient", &gradient)?;
            }
        }
        Ok(())
    });
}

#[test]
fn no_gradient_is_left_undeclared() {
    each_op(|op| {
        let operands = (op.operands)()?;
        for (position, operand) in operands.iter().enumerate() {
            // One of the same function may have it.
            let function = |op: &Op| op.name.split('[').next().map(str::to_owned);
            let declares = |other: &Op| function(other) == function(op) && other.differentiable.contains(&position);
            let declared = all().iter().any(declares);
            if operand.dtype().is_inexact() && !declared && gradient(op, position).is_ok() {
                return Err(Exception::custom(format!("operand {position} is differentiable")));
            }
        }
        Ok(())
    });
}

/// Runs `check` on every op and reports all failures at once.
fn each_op(check: impl Fn(&Op) -> Result<(), Exception>) {
    let failures: Vec<String> =
        all().iter().filter_map(|op| check(op).err().map(|error| format!("{}: {}", op.name, error.what()))).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn gradient(op: &Op, position: usize) -> Result<Array, Exception> {
    let operands = (op.operands)()?;
    let primal = operands[position].clone();
    let loss = |primals: &[Array]| {
        let mut operands = operands.clone();
        operands[position] = primals[0].clone();
        Ok(vec![op.loss(&operands)?])
    };
    let (_, mut gradients) = fallible_vjp(loss, &[primal], &[Array::from_f32(1.0)])?;
    let gradient = gradients.remove(0);
    gradient.eval()?;
    Ok(gradient)
}

fn assert_finite(op: &Op, what: &str, array: &Array) -> Result<(), Exception> {
    let finite = ops::all(array.as_dtype(Dtype::Float32)?.is_finite()?, None)?;
    if finite.try_item_exact::<bool>().map_err(|error| Exception::custom(error.to_string()))? {
        return Ok(());
    }
    Err(Exception::custom(format!("the {what} of `{}` is not finite", op.name)))
}
