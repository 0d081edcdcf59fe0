//! Directional derivatives and vmap: what must agree with the dense function beside values and gradients.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_core::transform::{jvp, vmap};
use tacit_core::tree::Gradient;
use tacit_core::{Policy, Result, Value};

use super::{Function, OnLeaves, Oracle, Side, Structure, densified, floats, under, with_chosen};
use crate::ops::weights;

impl Oracle {
    /// Compares the derivative in one direction of all float leaves with that of the dense function, and with the gradients.
    pub(super) fn directional(&self, structure: &Structure, f: &Function, gradients: &[Array]) -> Result<(), String> {
        let derive = |side: Side| {
            let on_leaves = structure.side(f, side);
            derivative(&on_leaves, &structure.leaves, &structure.float_leaves())
        };
        let expected = under(Policy::Allow, "dense jvp", || derive(Side::Dense))?;
        let found = under(self.policy, "jvp", || derive(Side::Intercepted))?;
        self.all("derivative", &found, &expected)?;
        self.adjoint(&found, gradients, structure, &structure.float_leaves())
    }

    /// The weighted sum of the derivatives is the sum of the gradients times the direction.
    fn adjoint(
        &self,
        derivatives: &[Array],
        gradients: &[Array],
        structure: &Structure,
        chosen: &[i32],
    ) -> Result<(), String> {
        let whole = structure.float_operands();
        let (mut forward, mut backward, mut parts, mut scale) = (0f64, 0f64, 0f64, self.least);
        for derivative in derivatives {
            for (change, weight) in numbers(derivative)?.into_iter().zip(weights(derivative.size())) {
                let term = f64::from(change) * f64::from(weight);
                (forward, scale) = (forward + term, scale + term.abs());
            }
        }
        for (gradient, &leaf) in gradients.iter().zip(chosen) {
            let direction = direction(&structure.leaves[leaf as usize], leaf).map_err(|error| error.to_string())?;
            let sum = if whole.contains(&leaf) { &mut backward } else { &mut parts };
            for (slope, step) in numbers(gradient)?.into_iter().zip(numbers(&direction)?) {
                let term = f64::from(slope) * f64::from(step);
                (*sum, scale) = (*sum + term, scale + term.abs());
            }
        }
        backward += self.over_ranks.map_or(parts, |sum| sum(parts));
        let bound = 10.0 * self.tolerance * scale;
        if !scale.is_finite() || (forward - backward).abs() <= bound {
            return Ok(());
        }
        Err(format!("the derivative in a direction is {forward:.6e}, expected {backward:.6e} by the gradient"))
    }

    /// Compares the function mapped over two examples of its dense operands with the function of each.
    ///
    /// Float operands are mapped, and where there are none integers.
    pub(super) fn mapped(&self, operands: &[Value], f: &Function) -> Result<(), String> {
        let Some(axes) = mapped_axes(operands) else { return Ok(()) };
        let examples = || -> Result<[Vec<Value>; 2]> {
            let second = operands.iter().zip(&axes).map(|(operand, axis)| match (operand, axis) {
                (Value::Dense(array), Some(_)) => Ok(another(array)?.into()),
                _ => Ok(operand.clone()),
            });
            Ok([operands.to_vec(), second.collect::<Result<_>>()?])
        };
        let map = |[first, second]: &[Vec<Value>; 2]| -> Result<Vec<Array>, Exception> {
            let stacked =
                first.iter().zip(second).zip(&axes).map(|((first, second), axis)| match (first, second, axis) {
                    (Value::Dense(first), Value::Dense(second), Some(_)) => Ok(ops::stack(&[first, second], 0)?.into()),
                    _ => Ok(first.clone()),
                });
            let stacked = stacked.collect::<Result<Vec<_>>>()?;
            let f = f.clone();
            let results = vmap(axes.clone(), 0, move |arrays: Vec<Array>| f(arrays)).call(stacked)?;
            let results = results.iter().map(densified).collect::<Result<Vec<_>>>()?;
            transforms::eval(&results)?;
            Ok(results)
        };
        let examples = examples().map_err(|error| error.to_string())?;
        let plain = || -> Result<[Vec<Value>; 2]> {
            let dense = |values: &Vec<Value>| -> Result<Vec<Value>> {
                values.iter().map(|value| Ok(densified(value)?.into())).collect()
            };
            Ok([dense(&examples[0])?, dense(&examples[1])?])
        };
        let plain = plain().map_err(|error| error.to_string())?;
        let expected = under(Policy::Allow, "dense vmap", || map(&plain))?;
        let stacked = under(Policy::Allow, "dense", || {
            let results_of = |values: &Vec<Value>| f(values.iter().map(densified).collect::<Result<_>>()?);
            let [first, second] = [results_of(&plain[0])?, results_of(&plain[1])?];
            first
                .iter()
                .zip(&second)
                .map(|(first, second)| ops::stack(&[first, second], 0))
                .collect::<Result<Vec<_>, _>>()
        })?;
        self.all("dense mapped output", &expected, &stacked)?;
        let found = under(self.policy, "vmap", || map(&examples))?;
        self.all("mapped output", &found, &stacked).map(drop)
    }
}

/// The axis of each operand that is mapped; `None` where there is none at all.
fn mapped_axes(operands: &[Value]) -> Option<Vec<Option<i32>>> {
    let axes_of = |chosen: fn(Dtype) -> bool| -> Vec<Option<i32>> {
        operands.iter().map(|operand| operand.as_dense().filter(|array| chosen(array.dtype())).map(|_| 0)).collect()
    };
    [axes_of(|dtype| dtype.is_float()), axes_of(|dtype| !dtype.is_inexact() && dtype != Dtype::Bool)]
        .into_iter()
        .find(|axes| axes.iter().any(Option::is_some))
}

/// Another example of an operand: other numbers, or the index 0.
fn another(array: &Array) -> Result<Array, Exception> {
    if !array.dtype().is_float() {
        return ops::zeros_like(array);
    }
    let number = |number: f32| Array::from_f32(number).as_dtype(array.dtype());
    array.multiply(number(-0.5)?)?.add(number(0.25)?)
}

/// The derivatives of the float results in the direction of the chosen leaves.
fn derivative(f: &OnLeaves, leaves: &[Array], chosen: &[i32]) -> Result<Vec<Array>, Exception> {
    let primals: Vec<Array> = chosen.iter().map(|&leaf| leaves[leaf as usize].clone()).collect();
    let directions =
        primals.iter().zip(chosen).map(|(primal, &leaf)| direction(primal, leaf)).collect::<Result<Vec<_>, _>>()?;
    let function = |replaced: Vec<Array>| -> Result<Vec<Array>> {
        let leaves = with_chosen(leaves, chosen, replaced);
        Ok(f(&leaves)?.into_iter().filter(|output| output.dtype().is_float()).collect())
    };
    let directions: Vec<Gradient> = directions.into_iter().map(Gradient::Dense).collect();
    let (_, changes) = jvp(&primals, directions, function)?;
    let changes = changes.iter().map(Value::dense).collect::<Result<Vec<_>>>()?;
    transforms::eval(&changes)?;
    Ok(changes)
}

/// A direction that tells the elements and the leaves apart.
fn direction(leaf: &Array, salt: i32) -> Result<Array, Exception> {
    let elements: Vec<f32> = (0..leaf.size()).map(|i| (i as f32 * 1.7 + salt as f32).cos()).collect();
    Array::from_slice(&elements, leaf.shape()).as_dtype(leaf.dtype())
}

fn numbers(array: &Array) -> Result<Vec<f32>, String> {
    floats(array).map_err(|error| error.to_string())
}
