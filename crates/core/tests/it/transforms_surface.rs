//! The whole op surface mapped, differentiated, and both in either order: as one example after the other.

use std::collections::BTreeSet;

use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexOp};
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit::transform::{grad, jvp, vmap};
use tacit::tree::Gradient;
use tacit::{Error, Result, Value};
use tacit_conformance::ops::{Op, all as surface};
use tacit_conformance::oracle::relative_error;

/// How many examples are mapped over.
const EXAMPLES: usize = 3;

/// The largest relative error: sums in another order.
const TOLERANCE: f64 = 2e-5;

/// The same where tangents or gradients go through a half type.
const HALF_TOLERANCE: f64 = 4e-3;

/// An op, and examples of its operands.
struct Subject {
    op: Op,
    examples: Vec<Vec<Array>>,
    /// The gradients of the loss of each example.
    gradients: Vec<Vec<Array>>,
}

/// Which operands are mapped, and over which axis of each.
type Mapped = Vec<Option<i32>>;

impl Subject {
    /// The other examples have the elements of the first one in another order, so that they are in the op's domain.
    fn of(op: Op) -> Result<Self> {
        let first = (op.operands)()?;
        let reversed = first.iter().map(reversed).collect::<Result<Vec<_>>>()?;
        let examples = vec![first.clone(), reversed, first];
        for example in &examples {
            transforms::eval(&(op.run)(example)?)?;
        }
        let mut subject = Self { op, examples, gradients: Vec::new() };
        for example in &subject.examples {
            let gradients = if op.differentiable.is_empty() { Vec::new() } else { subject.gradient(example)? };
            transforms::eval(&gradients)?;
            subject.gradients.push(gradients);
        }
        Ok(subject)
    }

    /// The gradients of the loss by the differentiable operands.
    fn gradient(&self, operands: &[Array]) -> Result<Vec<Array>> {
        let loss = |chosen: Vec<Array>| Ok::<_, Error>(self.op.loss(&self.with(operands, &chosen))?);
        let found = grad(loss).call(self.chosen(operands))?;
        found.iter().map(|gradient| Ok(gradient.array()?.clone())).collect()
    }

    fn chosen(&self, operands: &[Array]) -> Vec<Array> {
        self.op.differentiable.iter().map(|&i| operands[i].clone()).collect()
    }

    /// The operands with others at the differentiable places.
    fn with(&self, operands: &[Array], chosen: &[Array]) -> Vec<Array> {
        let mut operands = operands.to_vec();
        for (&i, array) in self.op.differentiable.iter().zip(chosen) {
            operands[i] = array.clone();
        }
        operands
    }

    /// Every choice of operands to map, each over its first axis, its last one, and alternately.
    fn mappings(&self) -> Vec<Mapped> {
        let ranks: Vec<i32> = self.examples[0].iter().map(|operand| operand.ndim() as i32).collect();
        let mut mappings = BTreeSet::new();
        for chosen in 1..1_u32 << ranks.len() {
            for places in 0..4_usize {
                let axis = |i: usize, rank: i32| {
                    let last = [false, true, i.is_multiple_of(2), !i.is_multiple_of(2)][places];
                    (chosen >> i & 1 == 1).then_some(if last { rank } else { 0 })
                };
                mappings.insert(ranks.iter().enumerate().map(|(i, &rank)| axis(i, rank)).collect::<Mapped>());
            }
        }
        mappings.into_iter().collect()
    }

    /// The operands of one example where `mapped` maps some: the others are those of the first.
    fn example(&self, mapped: &Mapped, example: usize) -> Vec<Array> {
        let of = |(i, axis): (usize, &Option<i32>)| self.examples[if axis.is_some() { example } else { 0 }][i].clone();
        mapped.iter().enumerate().map(of).collect()
    }

    /// The operands with all examples of those that are mapped.
    fn stacked(&self, mapped: &Mapped) -> Result<Vec<Array>> {
        let each: Vec<Vec<Array>> = (0..EXAMPLES).map(|example| self.example(mapped, example)).collect();
        mapped
            .iter()
            .enumerate()
            .map(|(i, axis)| match axis {
                Some(axis) => Ok(ops::stack(&each.iter().map(|operands| &operands[i]).collect::<Vec<_>>(), *axis)?),
                None => Ok(each[0][i].clone()),
            })
            .collect()
    }

    /// The results of each example, stacked.
    fn values(&self, mapped: &Mapped) -> Result<Vec<Array>> {
        let each = (0..EXAMPLES).map(|example| (self.op.run)(&self.example(mapped, example)));
        in_front(&each.collect::<Result<Vec<_>, _>>()?)
    }

    fn mapped_values(&self, mapped: &Mapped) -> Result<Vec<Array>> {
        let run = self.op.run;
        dense(&vmap(mapped.clone(), 0, move |operands: Vec<Array>| run(&operands)).call(self.stacked(mapped)?)?)
    }

    /// The gradients of each example.
    fn each_gradient(&self, mapped: &Mapped) -> Result<Vec<Vec<Array>>> {
        (0..EXAMPLES).map(|example| self.gradient(&self.example(mapped, example))).collect()
    }

    /// The gradients of each example, mapped.
    fn mapped_gradients(&self, mapped: &Mapped) -> Result<Vec<Array>> {
        let gradient = |operands: Vec<Array>| self.gradient(&operands);
        dense(&vmap(mapped.clone(), 0, gradient).call(self.stacked(mapped)?)?)
    }

    /// The sum of the losses of all examples.
    fn whole_loss(&self, mapped: &Mapped, stacked: &[Array], chosen: &[Array]) -> Result<Array> {
        let loss = |operands: Vec<Array>| self.op.loss(&operands);
        Ok(vmap(mapped.clone(), 0, loss).call(self.with(stacked, chosen))?.dense()?.sum(None)?)
    }

    /// The gradients of the sum of the mapped losses.
    fn gradients_of_mapped(&self, mapped: &Mapped) -> Result<Vec<Array>> {
        let stacked = self.stacked(mapped)?;
        let found =
            grad(|chosen: Vec<Array>| self.whole_loss(mapped, &stacked, &chosen)).call(self.chosen(&stacked))?;
        found.iter().map(|gradient| Ok(gradient.array()?.clone())).collect()
    }

    /// What these gradients are: those of each example where its operand is mapped, and their sum where it is not.
    fn gathered(&self, mapped: &Mapped, each: &[Vec<Array>]) -> Result<Vec<Array>> {
        let of = |(position, &operand): (usize, &usize)| -> Result<Array> {
            let parts: Vec<&Array> = each.iter().map(|gradients| &gradients[position]).collect();
            Ok(match mapped[operand] {
                Some(axis) => ops::stack(&parts, axis)?,
                None => ops::stack(&parts, 0)?.sum_axis(0, None)?,
            })
        };
        self.op.differentiable.iter().enumerate().map(of).collect()
    }

    /// The derivative of the loss in a direction, and what the gradients say that it is.
    fn derivative(&self) -> Result<[Vec<Array>; 2]> {
        let operands = &self.examples[0];
        let loss = |chosen: Vec<Array>| Ok(self.op.loss(&self.with(operands, &chosen))?);
        derivative(&self.chosen(operands), &self.gradients[0], loss)
    }

    /// The same of the mapped losses.
    fn derivative_of_mapped(&self, mapped: &Mapped, gathered: &[Array]) -> Result<[Vec<Array>; 2]> {
        let stacked = self.stacked(mapped)?;
        let loss = |chosen: Vec<Array>| self.whole_loss(mapped, &stacked, &chosen);
        derivative(&self.chosen(&stacked), gathered, loss)
    }
}

/// The derivative of a loss in a direction, and the sum of the gradients times the direction, relative to that of the terms.
fn derivative(
    primals: &[Array],
    gradients: &[Array],
    loss: impl FnMut(Vec<Array>) -> Result<Array>,
) -> Result<[Vec<Array>; 2]> {
    let directions = directions(primals)?;
    let tangents: Vec<Gradient> = directions.iter().cloned().map(Gradient::Dense).collect();
    let (_, found) = jvp(primals, tangents, loss)?;
    let (mut sum, mut scale) = (Array::from_f32(0.0), Array::from_f32(1e-3));
    for (gradient, direction) in gradients.iter().zip(&directions) {
        let terms = gradient.as_dtype(Dtype::Float32)?.multiply(direction)?;
        sum = sum.add(terms.sum(None)?)?;
        scale = scale.add(terms.abs()?.sum(None)?)?;
    }
    let relative =
        |derivative: Array| Ok::<_, Error>(vec![ops::stack(&[derivative.divide(&scale)?, Array::from_f32(1.0)], 0)?]);
    Ok([relative(found.dense()?)?, relative(sum)?])
}

fn reversed(array: &Array) -> Result<Array> {
    let mut reversed = array.clone();
    for axis in 0..array.ndim() as i32 {
        let moved = ops::move_axis(&reversed, axis, 0)?;
        reversed = ops::move_axis(moved.try_index((..).stride_by(-1))?, 0, axis)?;
    }
    // So a triangular matrix stays one of the same triangle, and a symmetric one as it is.
    if array.ndim() == 2 && array.dim(0) == array.dim(1) {
        reversed = reversed.t();
    }
    Ok(reversed.contiguous()?)
}

fn dense(values: &[Value]) -> Result<Vec<Array>> {
    values.iter().map(Value::dense).collect()
}

/// Lists of one length as one list of arrays with an axis for the lists.
fn in_front(each: &[Vec<Array>]) -> Result<Vec<Array>> {
    let of = |result: usize| Ok(ops::stack(&each.iter().map(|results| &results[result]).collect::<Vec<_>>(), 0)?);
    (0..each[0].len()).map(of).collect()
}

fn directions(primals: &[Array]) -> Result<Vec<Array>> {
    let of = |(salt, primal): (usize, &Array)| {
        let elements: Vec<f32> = (0..primal.size()).map(|i| (i as f32 * 1.7 + salt as f32).cos()).collect();
        Ok(Array::from_slice(&elements, primal.shape()).as_dtype(primal.dtype())?)
    };
    primals.iter().enumerate().map(of).collect()
}

/// What differs, if something does.
fn difference(found: &[Array], expected: &[Array], tolerance: f64) -> Result<Option<String>> {
    transforms::eval(found)?;
    transforms::eval(expected)?;
    if found.len() != expected.len() {
        return Ok(Some(format!("there are {} results and not {}", found.len(), expected.len())));
    }
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        if found.shape() != expected.shape() || found.dtype() != expected.dtype() {
            let avals = [found, expected].map(tacit::Aval::from);
            return Ok(Some(format!("result {i} is {} and not {}", avals[0], avals[1])));
        }
        let error = match found.dtype() {
            Dtype::Complex64 => {
                relative_error(&found.view_dtype(Dtype::Float32)?, &expected.view_dtype(Dtype::Float32)?)?
            }
            _ => relative_error(found, expected)?,
        };
        if error.is_nan() || error > tolerance {
            return Ok(Some(format!("result {i} is off by {error:.1e}: {found:?} and not {expected:?}")));
        }
    }
    Ok(None)
}

/// What the transforms gave that is not as it should be.
#[derive(Default)]
struct Findings {
    wrong: Vec<String>,
    compared: usize,
}

impl Findings {
    fn see(&mut self, op: &Op, what: &str, outcome: Result<[Vec<Array>; 2]>) {
        let tolerance = if op.name.ends_with("float16]") { HALF_TOLERANCE } else { TOLERANCE };
        match outcome.and_then(|[found, expected]| difference(&found, &expected, tolerance)) {
            Ok(None) => self.compared += 1,
            Ok(Some(difference)) => self.wrong.push(format!("{}, {what}: {difference}", op.name)),
            Err(error) => self.wrong.push(format!("{}, {what}: {error}", op.name)),
        }
    }
}

#[test]
fn every_op_is_as_one_example_after_the_other() {
    let mut findings = Findings::default();
    for op in surface() {
        let subject = Subject::of(op).unwrap_or_else(|error| panic!("{}: {error}", op.name));
        let differentiable = !op.differentiable.is_empty();
        // The gradient of a complex number is the conjugate of what a tangent is multiplied by.
        let is_complex = |operand: &Array| operand.dtype() == Dtype::Complex64;
        let has_tangents = differentiable && !subject.examples[0].iter().any(is_complex);
        if has_tangents {
            findings.see(&op, "jvp", subject.derivative());
        }
        for mapped in subject.mappings() {
            let what = |transform: &str| format!("{transform} {mapped:?}");
            let values = subject.mapped_values(&mapped).and_then(|found| Ok([found, subject.values(&mapped)?]));
            findings.see(&op, &what("vmap"), values);
            if !differentiable {
                continue;
            }
            let each = subject.each_gradient(&mapped).unwrap_or_else(|error| panic!("{}: {error}", op.name));
            let outcome = subject.mapped_gradients(&mapped).and_then(|found| Ok([found, in_front(&each)?]));
            findings.see(&op, &what("vmap(grad)"), outcome);
            let gathered = subject.gathered(&mapped, &each).expect("gradients of one shape");
            let outcome = subject.gradients_of_mapped(&mapped).map(|found| [found, gathered.clone()]);
            findings.see(&op, &what("grad(vmap)"), outcome);
            if has_tangents {
                findings.see(&op, &what("jvp(vmap)"), subject.derivative_of_mapped(&mapped, &gathered));
            }
        }
    }
    println!("{} comparisons", findings.compared);
    assert!(findings.compared > 8000, "{}", findings.compared);
    assert!(findings.wrong.is_empty(), "{}", findings.wrong.join("\n"));
}
