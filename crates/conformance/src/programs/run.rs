//! Running a program: its steps, and what stands around them.

use std::cell::Cell;
use std::rc::Rc;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::compile::{CompileOptions, Constants, compile_with};
use tacit_core::control::{cond, fori_loop, scan};
use tacit_core::transform::{Wrt, checkpoint, intercept, jvp, map_chunks, value_and_grad_wrt, vmap};
use tacit_core::tree::Gradient;
use tacit_core::{Error, Result, Value};

use super::program::{Around, Operand, Program, Role};
use crate::ops::{Op, named, weighted_sum};

/// A function of the arguments of a program.
pub(crate) type Function = Rc<dyn Fn(Vec<Array>) -> Result<Vec<Array>>>;

pub(crate) fn step(op: &Op, operands: &[Operand], values: &[Array]) -> Result<Vec<Array>> {
    let own = if operands.iter().any(|operand| operand.value().is_none()) { (op.operands)()? } else { Vec::new() };
    let operands = operands
        .iter()
        .enumerate()
        .map(|(at, operand)| match operand {
            Operand::Value(value) => Ok(values[*value].clone()),
            Operand::Positive(value) => positive(&values[*value]),
            Operand::Fitted(value, shape) => fitted(&values[*value], shape),
            Operand::Own(dtype) => Ok(own[at].as_dtype(*dtype)?),
        })
        .collect::<Result<Vec<_>>>()?;
    Ok((op.run)(&operands)?)
}

fn positive(x: &Array) -> Result<Array> {
    if !x.dtype().is_float() {
        return Ok(x.clone());
    }
    Ok(x.abs()?.add(Array::from_f32(0.125).as_dtype(x.dtype())?)?)
}

/// The elements in order, from the first again after the last, in another shape.
pub(crate) fn fitted(x: &Array, shape: &[i32]) -> Result<Array> {
    let size: i32 = shape.iter().product();
    let elements = x.size() as i32;
    if elements == size {
        return Ok(x.reshape(shape)?);
    }
    if elements == 0 {
        return Err(Error::invalid("an array without elements fits no other shape", "choose another operand"));
    }
    let mut flat = x.reshape(&[-1])?;
    if elements < size {
        flat = ops::broadcast_to(&flat, &[(size + elements - 1) / elements, elements])?.reshape(&[-1])?;
    }
    Ok(flat.try_index(..size)?.reshape(shape)?)
}

/// Where a run of a function shall fail, if anywhere.
pub(crate) type Failing = Rc<Cell<Option<usize>>>;

impl Program {
    /// The function of the arguments and the state, which holds `held`: values for the other inputs.
    pub(crate) fn body(&self, held: Vec<Value>, failing: Failing) -> Function {
        let program = self.clone();
        Rc::new(move |arguments: Vec<Array>| {
            let argument_count = arguments.len();
            let implicit = held.iter().any(Value::is_implicit);
            if !implicit {
                return program.on(&arguments, &dense(&held)?, &failing);
            }
            let operands: Vec<Value> = arguments.into_iter().map(Value::from).chain(held.iter().cloned()).collect();
            dense(&intercept(&operands, |arrays| {
                program.on(&arrays[..argument_count], &arrays[argument_count..], &failing)
            })?)
        })
    }

    /// The results of the steps on arguments with the state, and on what is held.
    fn on(&self, arguments: &[Array], held: &[Array], failing: &Cell<Option<usize>>) -> Result<Vec<Array>> {
        let (mut arguments, mut held) = (arguments.iter(), held.iter());
        let mut values = Vec::with_capacity(self.values());
        for input in &self.inputs {
            let next = if input.role == Role::Captured { held.next() } else { arguments.next() };
            values.push(next.ok_or_else(|| Error::invalid("an input is missing", "give each"))?.clone());
        }
        for (at, called) in self.steps.iter().enumerate() {
            if failing.get() == Some(at) {
                return Err(Error::invalid("the function fails by design", "expect it"));
            }
            let op = named(called.op).ok_or_else(|| Error::invalid("no such op", "see the surface"))?;
            let results = step(op, &called.operands, &values)?;
            if results.len() != called.results {
                return Err(Error::invalid("another number of results", "draw the program again"));
            }
            values.extend(results);
        }
        Ok(self.results.iter().map(|&result| values[result].clone()).collect())
    }

    /// The body with what stands around it; as plain code where it can be, for a reference.
    pub(crate) fn function(&self, body: Function, plain: bool) -> Function {
        self.around.iter().fold(body, |f, &around| around.wrap(f, plain))
    }
}

impl Around {
    fn wrap(self, f: Function, plain: bool) -> Function {
        match (self, plain) {
            (Self::Checkpoint | Self::Compile, true) => f,
            (Self::Vmap, true) => Rc::new(move |args| one_by_one(&f, &args)),
            (Self::Cond, true) => Rc::new(move |args| {
                let first = args.first().cloned();
                let holds = match first {
                    Some(first) => predicate(&first)?,
                    None => return f(args),
                };
                if holds.try_item_exact::<bool>().map_err(|error| Error::Function(Box::new(error)))? {
                    f(args)
                } else {
                    f(others(&args)?)
                }
            }),
            (Self::Fori, true) => Rc::new(move |mut args| {
                for _ in 0..2 {
                    args = carried(&f, args)?;
                }
                Ok(args)
            }),
            (Self::Scan, true) => Rc::new(move |args| scanned_plainly(&f, &args)),
            (Self::Chunks, true) => Rc::new(move |args| {
                let Some((first, rest)) = args.split_first() else { return f(args) };
                each_row(&scan_rows(first)?, rest, |args| f(args))
            }),
            (Self::Grad, _) => Rc::new(move |args| gradients(&f, args)),
            (Self::Jvp, _) => Rc::new(move |args| derivatives(&f, args)),
            (Self::Checkpoint, false) => Rc::new(move |args| {
                let f = f.clone();
                dense(&checkpoint(move |args: Vec<Array>| f(args)).call(values(args))?)
            }),
            (Self::Compile, false) => Rc::new(move |args| {
                let f = f.clone();
                let options = CompileOptions { constants: Constants::Allow, ..CompileOptions::default() };
                let mut compiled = compile_with(options, move |args: Vec<Array>| f(args));
                dense(&compiled.call(values(args))?)
            }),
            (Self::Vmap, false) => Rc::new(move |args| {
                let examples = others(&args)?;
                let axes: Vec<Option<i32>> = args.iter().enumerate().map(mapped_axis).collect();
                let both = args.iter().zip(&examples).zip(&axes).map(|((a, b), axis)| match axis {
                    Some(axis) => Ok(ops::stack(&[a, b], *axis)?.into()),
                    None => Ok(a.into()),
                });
                let both = both.collect::<Result<Vec<Value>>>()?;
                dense(&vmap(axes, 0, |args: Vec<Array>| f(args)).call(both)?)
            }),
            (Self::Cond, false) => Rc::new(move |args| {
                let Some(first) = args.first() else { return f(args) };
                let holds = predicate(first)?;
                let results: Vec<Value> =
                    cond(&holds, values(args), |args: Vec<Array>| f(args), |args: Vec<Array>| f(others(&args)?))?;
                dense(&results)
            }),
            (Self::Fori, false) => Rc::new(move |args| {
                let results: Vec<Value> = fori_loop(0..2, values(args), |_, args: Vec<Array>| carried(&f, args))?;
                dense(&results)
            }),
            (Self::Scan, false) => Rc::new(move |args| {
                let Some((first, rest)) = args.split_first() else { return f(args) };
                let rows: Value = scan_rows(first)?.into();
                let step = |largest: Array, row: Array| {
                    let results = f([&[row][..], rest].concat())?;
                    Ok::<_, Error>((running(&largest, &results)?, results))
                };
                let (largest, results): (Value, Vec<Value>) = scan(Array::from_f32(0.0), rows, None, step)?;
                dense(&[vec![largest], results].concat())
            }),
            (Self::Chunks, false) => Rc::new(move |args| {
                let Some((first, rest)) = args.split_first() else { return f(args) };
                let f = f.clone();
                let chunk = move |rows: Array, rest: Vec<Array>| each_row(&rows, &rest, |args| f(args));
                let results: Vec<Value> = map_chunks(scan_rows(first)?, values(rest.to_vec()), 2, chunk)?;
                dense(&results)
            }),
        }
    }
}

fn values(args: Vec<Array>) -> Vec<Value> {
    args.into_iter().map(Value::from).collect()
}

pub(crate) fn dense(values: &[Value]) -> Result<Vec<Array>> {
    values.iter().map(Value::dense).collect()
}

/// Other arguments of the same avals: float ones halved and reversed.
fn others(args: &[Array]) -> Result<Vec<Array>> {
    args.iter()
        .map(|array| {
            if !array.dtype().is_float() {
                return Ok(array.clone());
            }
            Ok(array.multiply(Array::from_f32(-0.5).as_dtype(array.dtype())?)?)
        })
        .collect()
}

fn predicate(first: &Array) -> Result<Array> {
    if first.size() == 0 {
        return Ok(Array::from_bool(true));
    }
    let first = if first.dtype().is_complex() { first.real()? } else { first.clone() };
    Ok(first.reshape(&[-1])?.try_index(0)?.as_dtype(Dtype::Float32)?.gt(Array::from_f32(0.0))?)
}

/// The axis over which an argument is mapped: its first, its last or none, by its place among the others.
fn mapped_axis((place, array): (usize, &Array)) -> Option<i32> {
    match place % 3 {
        0 => Some(0),
        1 => Some(array.ndim() as i32),
        _ => None,
    }
}

fn one_by_one(f: &Function, args: &[Array]) -> Result<Vec<Array>> {
    let others = args
        .iter()
        .zip(others(args)?)
        .enumerate()
        .map(|(place, (array, other))| if mapped_axis((place, array)).is_some() { other } else { array.clone() });
    let (first, second) = (f(args.to_vec())?, f(others.collect())?);
    first.iter().zip(&second).map(|(a, b)| Ok(ops::stack(&[a, b], 0)?)).collect()
}

/// The arguments, the first of which holds the function's first result.
fn carried(f: &Function, mut args: Vec<Array>) -> Result<Vec<Array>> {
    let results = f(args.clone())?;
    if let (Some(first), Some(result)) = (args.first_mut(), results.first())
        && result.size() > 0
    {
        *first = fitted(result, first.shape())?.as_dtype(first.dtype())?;
    }
    Ok(args)
}

/// The rows of a scan: the argument and others like it.
fn scan_rows(first: &Array) -> Result<Array> {
    let other = others(std::slice::from_ref(first))?;
    Ok(ops::stack(&[first, &other[0], first], 0)?)
}

/// The largest number of all first results.
fn running(largest: &Array, results: &[Array]) -> Result<Array> {
    match results.first() {
        Some(first) if first.size() > 0 && !first.dtype().is_complex() => {
            Ok(ops::maximum(largest, first.as_dtype(Dtype::Float32)?.max(None)?)?)
        }
        _ => Ok(largest.clone()),
    }
}

fn scanned_plainly(f: &Function, args: &[Array]) -> Result<Vec<Array>> {
    let Some((first, rest)) = args.split_first() else { return f(args.to_vec()) };
    let mut largest = Array::from_f32(0.0);
    let results = each_row(&scan_rows(first)?, rest, |args| {
        let results = f(args)?;
        largest = running(&largest, &results)?;
        Ok(results)
    })?;
    Ok([vec![largest], results].concat())
}

/// What a function makes of each row and the rest, as rows again.
fn each_row(rows: &Array, rest: &[Array], mut f: impl FnMut(Vec<Array>) -> Result<Vec<Array>>) -> Result<Vec<Array>> {
    let mut by_result: Vec<Vec<Array>> = Vec::new();
    for row in 0..rows.dim(0) {
        let row = rows.take_axis(Array::from_int(row), 0)?;
        let results = f([&[row][..], rest].concat())?;
        by_result.resize(results.len(), Vec::new());
        by_result.iter_mut().zip(results).for_each(|(rows, result)| rows.push(result));
    }
    by_result.iter().map(|rows| Ok(ops::stack(rows, 0)?)).collect()
}

/// The float results weighted and summed, the results, and the gradients of the sum.
fn gradients(f: &Function, args: Vec<Array>) -> Result<Vec<Array>> {
    let loss = |args: Vec<Array>| -> Result<(Array, Vec<Array>)> {
        let results = f(args)?;
        let terms = results.iter().filter(|array| array.dtype().is_float()).map(weighted_sum);
        let terms = terms.collect::<Result<Vec<_>, _>>()?;
        let loss = match terms.len() {
            0 => Array::from_f32(0.0),
            _ => ops::sum(ops::stack(&terms, 0)?, None)?,
        };
        Ok((loss, results))
    };
    let ((loss, results), gradients): ((Value, Vec<Value>), Vec<Gradient>) =
        value_and_grad_wrt(Wrt::All, loss).call(values(args))?;
    let gradients = gradients.iter().filter_map(|gradient| gradient.array().ok().cloned());
    Ok(std::iter::once(loss.dense()?).chain(dense(&results)?).chain(gradients).collect())
}

/// The results and their derivatives in one direction.
fn derivatives(f: &Function, args: Vec<Array>) -> Result<Vec<Array>> {
    let tangents = args.iter().enumerate().map(|(at, array)| {
        if !array.dtype().is_float() {
            return Ok(Gradient::Nothing);
        }
        let steps: Vec<f32> = (0..array.size()).map(|i| ((i + at) % 5) as f32 - 1.5).collect();
        Ok(Gradient::Dense(Array::from_slice(&steps, array.shape()).as_dtype(array.dtype())?))
    });
    let tangents = tangents.collect::<Result<Vec<_>>>()?;
    let (results, changes): (Vec<Value>, Vec<Value>) = jvp(values(args), tangents, |args: Vec<Array>| f(args))?;
    dense(&[results, changes].concat())
}
