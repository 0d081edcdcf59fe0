//! The oracle of every handler, type and kernel: `f(values)` must equal `f(materialized values)`.
//!
//! Both sides run the same plain code. One is intercepted; the other runs on the dense arrays that the values stand
//! for. Values and gradients are compared, eager and compiled.

use std::fmt;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, transforms};
use tacit_core::kernel::Fallback;
use tacit_core::transform::{grad, intercept};
use tacit_core::{Aval, Error, ImplicitArray, Policy, Result, Value};

use crate::elements::{error_above, worst};
pub use crate::elements::{floats, relative_error};
use crate::ops::weighted_sum;

/// Compares a function on values with the same function on the dense arrays that they stand for.
///
/// A call that no handler takes is an error, unless [`allowing`](Self::allowing) says otherwise. So is a gradient that
/// builds a dense array, except for what a kernel needs to differentiate the children of an implicit operand.
///
/// ```
/// use mlx_rs::Array;
/// use tacit_conformance::oracle::Oracle;
///
/// let x = Array::from_slice(&[1f32, 2.0], &[1, 2]);
/// let reached = Oracle::new(1e-6).check("x x^T", &[(&x).into()], |arrays| Ok(vec![arrays[0].matmul(arrays[0].t())?]));
/// assert!(reached.value <= 1e-6 && reached.gradient <= 1e-6);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Oracle {
    tolerance: f64,
    least: f64,
    policy: Policy,
    gradients: bool,
    compiled: bool,
    transformed: bool,
    over_ranks: Option<fn(f64) -> f64>,
}

/// The largest relative errors that a comparison found, each within the tolerance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// The largest error of the outputs.
    pub value: f64,
    /// The largest error of the gradients.
    pub gradient: f64,
}

/// What differs.
#[derive(Debug)]
pub struct Mismatch {
    name: String,
    operands: String,
    what: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: {}", self.name, self.operands, self.what)
    }
}

pub(crate) type Function = Rc<dyn Fn(Vec<Array>) -> Result<Vec<Array>>>;
pub(crate) type OnLeaves = Rc<dyn Fn(&[Array]) -> Result<Vec<Array>, Exception>>;

impl Oracle {
    /// An oracle that asks for `max|a - b| <= tolerance * max|b|` of each output and gradient.
    #[must_use]
    pub fn new(tolerance: f64) -> Self {
        Self {
            tolerance,
            least: 0.0,
            policy: Policy::Deny,
            gradients: true,
            compiled: true,
            transformed: false,
            over_ranks: None,
        }
    }

    /// Lets calls without a handler materialize their operands.
    #[must_use]
    pub fn allowing(self) -> Self {
        Self { policy: Policy::Allow, ..self }
    }

    /// Grants outputs and gradients that are all smaller than `least` the error of that magnitude.
    ///
    /// A sum whose terms cancel is the rounding of its terms, in an order that the machine chooses: no error is small
    /// relative to it. With terms of magnitude one and a tolerance of 1e-5, `1.0 / 64.0` grants one unit in the last place
    /// of a term.
    #[must_use]
    pub fn least(self, least: f64) -> Self {
        Self { least, ..self }
    }

    /// Compares values only, for functions that have no gradient.
    #[must_use]
    pub fn values_only(self) -> Self {
        Self { gradients: false, ..self }
    }

    /// Leaves out the comparison of compiled functions, each of which may cost a run of the C++ compiler.
    #[must_use]
    pub fn eager_only(self) -> Self {
        Self { compiled: false, ..self }
    }

    /// Also compares directional derivatives, and the function mapped over its dense operands.
    #[must_use]
    pub fn transformed(self) -> Self {
        Self { transformed: true, ..self }
    }

    /// Says that each process holds a part of the implicit operands, and how a number is summed over the processes.
    #[must_use]
    pub fn over_ranks(self, sum: Option<fn(f64) -> f64>) -> Self {
        Self { over_ranks: sum, ..self }
    }

    /// Compares, eager and compiled: avals, values, and the gradients of a weighted sum of the float outputs for
    /// every float operand and every float child of an implicit one.
    ///
    /// # Panics
    ///
    /// Something differs.
    #[track_caller]
    pub fn check(
        &self,
        name: &str,
        operands: &[Value],
        f: impl Fn(Vec<Array>) -> Result<Vec<Array>> + 'static,
    ) -> Reached {
        match self.compare(name, operands, f) {
            Ok(reached) => reached,
            Err(mismatch) => panic!("{mismatch}"),
        }
    }

    /// Compares what [`check`](Self::check) compares, and gives what differs as an error.
    ///
    /// # Errors
    ///
    /// The first difference, or the error of either side.
    pub fn compare(
        &self,
        name: &str,
        operands: &[Value],
        f: impl Fn(Vec<Array>) -> Result<Vec<Array>> + 'static,
    ) -> Result<Reached, Mismatch> {
        self.sides(operands, &(Rc::new(f) as Function)).map_err(|what| {
            let operands: Vec<String> = operands.iter().map(ToString::to_string).collect();
            Mismatch { name: name.to_owned(), operands: operands.join(", "), what }
        })
    }

    fn sides(&self, operands: &[Value], f: &Function) -> Result<Reached, String> {
        let structure = Structure::from_operands(operands);
        let dense = structure.side(f, Side::Dense);
        let intercepted = structure.side(f, Side::Intercepted);
        let leaves = &structure.leaves;
        let mut reached = Reached::default();

        let expected = under(Policy::Allow, "dense", || dense(leaves))?;
        let eager = under(self.policy, "intercepted", || intercepted(leaves))?;
        reached.value = self.all("output", &eager, &expected)?;
        if self.compiled {
            let function = intercepted.clone();
            let compiled = under(self.policy, "compiled", || {
                transforms::compile::compile(move |leaves: &[Array]| function(leaves), None)(leaves)
            })?;
            reached.value = reached.value.max(self.all("compiled output", &compiled, &expected)?);
        }

        if self.transformed {
            self.mapped(operands, f)?;
        }

        let argnums = structure.float_leaves();
        let differentiable = expected.iter().any(|output| output.dtype().is_inexact());
        if !self.gradients || argnums.is_empty() || !differentiable {
            return Ok(reached);
        }
        let expected = under(Policy::Allow, "dense gradient", || gradient(dense, argnums.clone())(leaves))?;
        let (eager, policy) = self.own_gradients(&structure, &intercepted, &argnums)?;
        reached.gradient = self.all("gradient", &eager, &expected)?;
        if self.transformed {
            self.directional(&structure, f, &eager)?;
        }
        if self.compiled {
            let compiled = under(policy, "compiled gradient", || {
                transforms::compile::compile(gradient(intercepted, argnums), None)(leaves)
            })?;
            reached.gradient = reached.gradient.max(self.all("compiled gradient", &compiled, &expected)?);
        }
        Ok(reached)
    }

    /// The gradients of the intercepted function, and the policy under which they are taken: the oracle's, unless it forbids
    /// what stands for a kernel where its children are differentiated. Then the operands alone must do without it.
    fn own_gradients(
        &self,
        structure: &Structure,
        intercepted: &OnLeaves,
        argnums: &[i32],
    ) -> Result<(Vec<Array>, Policy), String> {
        let gradients_for = |argnums: &[i32]| gradient(intercepted.clone(), argnums.to_vec())(&structure.leaves);
        let denied = {
            let _guard = self.policy.scope();
            match gradients_for(argnums).map_err(Error::from) {
                Ok(gradients) => return Ok((gradients, self.policy)),
                Err(error) => error,
            }
        };
        let side = "intercepted gradient";
        if !matches!(denied, Error::FallbackDenied { reason: Fallback::Vjp, .. }) {
            return Err(failed(side, &denied));
        }
        let operands = structure.float_operands();
        if !operands.is_empty() {
            under(self.policy, side, || gradients_for(&operands))?;
        }
        Ok((under(Policy::Allow, side, || gradients_for(argnums))?, Policy::Allow))
    }

    pub(crate) fn all(&self, what: &str, found: &[Array], expected: &[Array]) -> Result<f64, String> {
        if found.len() != expected.len() {
            return Err(format!("{} {what}s, expected {}", found.len(), expected.len()));
        }
        let mut largest = 0.0;
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let (found_aval, expected_aval) = (Aval::from(found), Aval::from(expected));
            if found_aval != expected_aval {
                return Err(format!("{what} {i} is {found_aval}, expected {expected_aval}"));
            }
            let error = error_above(found, expected, self.least).map_err(|error| format!("{what} {i}: {error}"))?;
            if error > self.tolerance {
                let farthest = worst(found, expected).map_err(|error| format!("{what} {i}: {error}"))?;
                let granted = self.tolerance;
                return Err(format!("{what} {i} has the relative error {error:.3e}, above {granted:.1e}: {farthest}"));
            }
            largest = f64::max(largest, error);
        }
        Ok(largest)
    }
}

pub(crate) fn under<R>(policy: Policy, side: &str, f: impl FnOnce() -> Result<R, Exception>) -> Result<R, String> {
    let _guard = policy.scope();
    f().map_err(|error| failed(side, &Error::from(error)))
}

fn failed(side: &str, error: &Error) -> String {
    format!("the {side} side failed: {error}")
}

#[derive(Clone, Copy)]
pub(crate) enum Side {
    Dense,
    Intercepted,
}

/// Operands as a list of arrays and what it takes to put them together again.
pub(crate) struct Structure {
    pub(crate) leaves: Vec<Array>,
    operands: Rc<[Value]>,
}

impl Structure {
    pub(crate) fn from_operands(operands: &[Value]) -> Self {
        let mut leaves = Vec::new();
        for operand in operands {
            flatten(operand, &mut leaves);
        }
        Self { leaves, operands: operands.into() }
    }

    pub(crate) fn float_leaves(&self) -> Vec<i32> {
        self.leaves.iter().zip(0..).filter(|(leaf, _)| leaf.dtype().is_float()).map(|(_, i)| i).collect()
    }

    /// The float leaves that are operands themselves.
    pub(crate) fn float_operands(&self) -> Vec<i32> {
        let mut at = 0;
        let mut argnums = Vec::new();
        for operand in &*self.operands {
            let mut leaves = Vec::new();
            flatten(operand, &mut leaves);
            if let Value::Dense(array) = operand
                && array.dtype().is_float()
            {
                argnums.push(at);
            }
            at += leaves.len() as i32;
        }
        argnums
    }

    /// The operands with other leaves.
    pub(crate) fn values(&self, leaves: &[Array]) -> Result<Vec<Value>> {
        let mut leaves = leaves.iter();
        self.operands.iter().map(|operand| rebuilt(operand, &mut leaves)).collect()
    }

    pub(crate) fn side(&self, f: &Function, side: Side) -> OnLeaves {
        let (structure, f) = (Self { leaves: Vec::new(), operands: self.operands.clone() }, f.clone());
        Rc::new(move |leaves| {
            let operands = structure.values(leaves)?;
            Ok(match side {
                Side::Intercepted => intercept(&operands, |arrays| f(arrays))?.iter().map(densified).collect(),
                Side::Dense => f(operands.iter().map(Value::dense).collect::<Result<_>>()?),
            }?)
        })
    }
}

/// An output that is still implicit is built here, whatever the policy: it was handled.
pub(crate) fn densified(value: &Value) -> Result<Array> {
    let _allow = Policy::Allow.scope();
    value.dense()
}

fn flatten(value: &Value, leaves: &mut Vec<Array>) {
    match value {
        Value::Dense(array) => leaves.push(array.clone()),
        Value::Implicit(array) => array.children().iter().for_each(|(_, child)| flatten(child, leaves)),
    }
}

fn rebuilt(value: &Value, leaves: &mut dyn Iterator<Item = &Array>) -> Result<Value> {
    match value {
        Value::Dense(array) => Ok(leaves.next().unwrap_or(array).into()),
        Value::Implicit(array) => {
            let children = array.children();
            let children = children.iter().map(|(_, child)| rebuilt(child, leaves)).collect::<Result<Vec<_>>>()?;
            let array: Box<dyn ImplicitArray> = array.with_children(children)?;
            Ok(array.into())
        }
    }
}

/// The gradients of the weighted sum of the float outputs; the weights tell the elements apart.
pub(crate) fn gradient(
    f: OnLeaves,
    argnums: Vec<i32>,
) -> impl FnMut(&[Array]) -> Result<Vec<Array>, Exception> + 'static {
    let loss = move |leaves: &[Array]| -> Result<Array> {
        let mut total = Array::from_f32(0.0);
        for output in f(leaves)?.iter().filter(|output| output.dtype().is_float()) {
            total = total.add(weighted_sum(output)?)?;
        }
        Ok(total)
    };
    move |leaves| {
        let chosen: Vec<Array> = argnums.iter().map(|&leaf| leaves[leaf as usize].clone()).collect();
        let gradients = grad(|chosen: Vec<Array>| loss(&with_chosen(leaves, &argnums, chosen))).call(chosen)?;
        Ok(gradients.iter().map(|gradient| gradient.array().cloned()).collect::<Result<_>>()?)
    }
}

/// The leaves with others at the chosen places.
fn with_chosen(leaves: &[Array], chosen: &[i32], others: Vec<Array>) -> Vec<Array> {
    let mut leaves = leaves.to_vec();
    for (&leaf, array) in chosen.iter().zip(others) {
        leaves[leaf as usize] = array;
    }
    leaves
}

mod transformed;

#[cfg(test)]
mod tests;
