//! The whole op surface on types without handlers: nothing is built silently, and what is built equals dense.

use std::collections::BTreeSet;
use std::sync::Arc;

use mlx_rs::{Array, Dtype, ops, transforms};
use tacit::{Aval, Error, Policy, Registry, Result, Taker, Value, explain, implicit};
use tacit_conformance::opaque::{Opaque, Refusing};
use tacit_conformance::ops::{Op, all as surface};

/// The least number of ops that each claim is made of.
const OPS: usize = 120;

#[test]
fn a_refusing_operand_is_an_error_that_names_the_primitive() {
    let mut primitives = BTreeSet::new();
    let ops = every_op("refused", |op| {
        let operands = operands(op)?;
        for position in 0..operands.len() {
            let primitive = first_materialized(op, &operands, position)?;
            let refusing = only(&operands, position, |array| Refusing::new(Aval::from(array)).into());
            for policy in [Policy::Allow, Policy::Deny] {
                let _policy = policy.scope();
                let text = match (policy, on_values(op, refusing.clone())) {
                    (Policy::Allow, Err(error @ Error::Refused { .. }))
                    | (Policy::Deny, Err(error @ Error::MaterializationDenied { .. })) => error.to_string(),
                    (_, outcome) => return Err(problem(format!("operand {position} under {policy:?}: {outcome:?}"))),
                };
                if !text.contains(&format!("{primitive} of ")) {
                    return Err(problem(format!("{primitive} is not named in: {text}")));
                }
            }
            primitives.insert(primitive.split('[').next().unwrap_or_default().to_owned());
        }
        Ok(())
    });
    println!("{ops} ops, whose first primitives are {}: {primitives:?}", primitives.len());
    assert!(ops >= OPS, "{ops}");
}

#[test]
fn an_opaque_operand_equals_the_dense_one_bit_for_bit() {
    let ops = every_op("equal", |op| {
        let _policy = Policy::Allow.scope();
        let operands = operands(op)?;
        let expected = (op.run)(&operands)?;
        for (which, values) in choices(&operands) {
            let outputs = on_values(op, values)?;
            if outputs.len() != expected.len() {
                return Err(problem(format!("{which}: {} outputs, not {}", outputs.len(), expected.len())));
            }
            for (output, expected) in outputs.iter().zip(&expected) {
                same_bits(&which, &output.dense()?, expected)?;
            }
        }
        Ok(())
    });
    println!("{ops} ops");
    assert!(ops >= OPS, "{ops}");
}

#[test]
fn gradients_through_an_opaque_operand_equal_the_dense_ones() {
    let mut gradients = 0;
    let ops = every_op("differentiated", |op| {
        if op.differentiable.is_empty() {
            return Err(Skipped.into());
        }
        let _policy = Policy::Allow.scope();
        let operands = operands(op)?;
        for &primal in op.differentiable {
            let expected = gradient(&operands, primal, |operands| Ok(op.loss(operands)?))?;
            for (which, values) in choices(&operands) {
                let found = gradient(&operands, primal, |operands| {
                    let hide = |(value, array): (&Value, &Array)| {
                        if value.is_implicit() { Opaque::new(array.clone()).into() } else { array.into() }
                    };
                    let values: Vec<Value> = values.iter().zip(operands).map(hide).collect();
                    implicit(values, |arrays| op.loss(&arrays))?.dense()
                })?;
                same_bits(&format!("the gradient of operand {primal} with {which} hidden"), &found, &expected)?;
                gradients += 1;
            }
        }
        Ok(())
    });
    println!("{ops} ops, {gradients} gradients");
    assert!(ops >= OPS, "{ops}");
}

/// Runs `check` on every op without any handler and returns how many were not skipped; reports all failures at once.
fn every_op(what: &str, mut check: impl FnMut(&Op) -> Result<()>) -> usize {
    let _registry = Arc::new(Registry::new()).scope();
    let mut failures = Vec::new();
    let mut covered = 0;
    for op in surface() {
        match check(&op) {
            Ok(()) => covered += 1,
            Err(Error::Function(skipped)) if skipped.is::<Skipped>() => {}
            Err(error) => failures.push(format!("{}: {error}", op.name)),
        }
    }
    assert!(failures.is_empty(), "{} ops are not {what}:\n{}", failures.len(), failures.join("\n"));
    covered
}

/// The claim says nothing about this op.
#[derive(Debug)]
struct Skipped;

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("skipped")
    }
}

impl std::error::Error for Skipped {}

impl From<Skipped> for Error {
    fn from(skipped: Skipped) -> Self {
        Self::Function(Box::new(skipped))
    }
}

fn problem(text: String) -> Error {
    Error::Function(text.into())
}

fn operands(op: &Op) -> Result<Vec<Array>> {
    let operands = (op.operands)()?;
    transforms::eval(&operands)?;
    Ok(operands)
}

fn on_values(op: &Op, values: Vec<Value>) -> Result<Vec<Value>> {
    implicit(values, |arrays| (op.run)(&arrays))
}

/// The operands with one of them replaced.
fn only(operands: &[Array], position: usize, replace: impl Fn(&Array) -> Value) -> Vec<Value> {
    operands.iter().enumerate().map(|(i, array)| if i == position { replace(array) } else { array.into() }).collect()
}

/// Each operand alone hidden, and all together.
fn choices(operands: &[Array]) -> Vec<(String, Vec<Value>)> {
    let hide = |array: &Array| Opaque::new(array.clone()).into();
    let alone = (0..operands.len()).map(|i| (format!("operand {i}"), only(operands, i, hide)));
    alone.chain([("all operands".to_owned(), operands.iter().map(hide).collect())]).collect()
}

/// The first primitive that needs the operand at `position`, with its parameters.
fn first_materialized(op: &Op, operands: &[Array], position: usize) -> Result<String> {
    let _policy = Policy::Allow.scope();
    let hidden = only(operands, position, |array| Opaque::new(array.clone()).into());
    let explanation = explain(hidden, |arrays| (op.run)(&arrays))?;
    let mut equations = explanation.equations.into_iter();
    let first = equations.find(|equation| equation.taker == Taker::Materialized);
    Ok(first.ok_or_else(|| problem(format!("no primitive materializes operand {position}")))?.primitive)
}

/// The gradient of `loss` with respect to one operand. One at a time: MLX does not survive all of some ops at once.
fn gradient(operands: &[Array], primal: usize, loss: impl Fn(&[Array]) -> Result<Array>) -> Result<Array> {
    let function = |primals: &[Array]| {
        let mut operands = operands.to_vec();
        operands[primal] = primals[0].clone();
        Ok(vec![loss(&operands)?])
    };
    let (_, mut gradients) = transforms::fallible_vjp(function, &[operands[primal].clone()], &[Array::from_f32(1.0)])?;
    Ok(gradients.remove(0))
}

fn same_bits(which: &str, found: &Array, expected: &Array) -> Result<()> {
    let (aval, expected_aval) = (Aval::from(found), Aval::from(expected));
    if aval != expected_aval {
        return Err(problem(format!("{which}: {aval} is not {expected_aval}")));
    }
    if bytes(found)? != bytes(expected)? {
        return Err(problem(format!("{which}: {found} is not {expected}")));
    }
    Ok(())
}

fn bytes(array: &Array) -> Result<Vec<u8>> {
    let flat = ops::flatten(array, None, None)?.contiguous()?.view_dtype(Dtype::Uint8)?;
    flat.eval()?;
    Ok(flat.as_slice::<u8>().to_vec())
}
