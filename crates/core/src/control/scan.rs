//! A loop over the rows of arrays, which collects what each step makes.

use mlx_rs::{Array, ops};

use super::carry::Carry;
use super::structure::Structure;
use crate::tree::Arguments;
use crate::values::{Values, arrays_of, never_called};
use crate::{Error, Result, Tree, Value, trace, tree};

/// The carry that [`scan`] ends with, and the results of all steps.
pub type Scanned<C, Y> = (<<C as Arguments>::Arrays as Tree>::With<Value>, <Y as Tree>::With<Value>);

/// Goes along axis 0 of `xs` with a carry, and returns the last carry and the results of the steps, stacked along a new axis 0.
///
/// `f` takes the carry and, of each array of `xs`, one row: `f32[5]` of an `f32[3,5]`. An implicit array gives its rows
/// through its handler for `Gather`, or is materialized once. The results of the steps are stacked dense. The number of steps
/// is the extent of axis 0, which all arrays of `xs` share, or `length` where there are none. The loop is unrolled, as
/// [`fori_loop`](super::fori_loop) is. With no steps the last carry is `init`, and the results have 0 rows: `f` is
/// called once, on zeros that are never computed, to learn their shapes.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::Error;
/// use tacit_core::control::scan;
///
/// let xs = Array::from_slice(&[1f32, 2.0, 3.0], &[3]);
/// let (total, sums) = scan(Array::from_f32(0.0), &xs, None, |total, x| {
///     let total = total.add(x)?;
///     Ok::<_, Error>((total.clone(), total))
/// })?;
/// assert_eq!(total.dense()?.item_exact::<f32>(), 6.0);
/// assert_eq!(sums.dense()?.as_slice::<f32>(), [1.0, 3.0, 6.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// An array of `xs` has no axis 0; the extents differ from each other or from `length`; `length` is negative, or missing where
/// `xs` holds no array; `f` fails, or changes the structure, a shape or a dtype of the carry or, from step to step, of its result;
/// and as for [`implicit`](crate::implicit()).
pub fn scan<C: Arguments, X: Arguments, Y: Tree, E: Into<Error>>(
    init: C,
    xs: X,
    length: Option<i32>,
    mut f: impl FnMut(C::Arrays, X::Arrays) -> Result<(C::Arrays, Y), E>,
) -> Result<Scanned<C, Y>> {
    let mut carry = Carry::new(&init)?;
    let leaves = Values::from_arguments(&xs)?;
    drop((init, xs));
    let length = steps(&leaves, length)?;
    if length == 0 {
        let row = empty_rows(&leaves)?;
        let (next, y) = step(&mut f, &carry, &leaves, row)?;
        let init = carry.now.clone();
        carry.advance(next)?;
        return Ok((init.into_tree()?, Rows::new(&y)?.none()?));
    }
    let mut rows = sliced(&leaves.values, length)?.into_iter();
    let mut results: Option<Rows> = None;
    for i in 0..length {
        let (next, y) = step(&mut f, &carry, &leaves, rows.by_ref().take(leaves.values.len()).collect())?;
        carry.advance(next)?;
        match &mut results {
            None => results = Some(Rows::new(&y)?),
            Some(results) => results.push(i, &y)?,
        }
    }
    Ok((carry.now.into_tree()?, results.ok_or_else(never_called)?.stacked()?))
}

/// One step: the next carry and the row of results.
fn step<C: Tree, X: Tree, Y: Tree, E: Into<Error>>(
    f: &mut impl FnMut(C, X) -> Result<(C, Y), E>,
    carry: &Carry,
    xs: &Values,
    row: Vec<Value>,
) -> Result<(Values, Values)> {
    let mut args = carry.now.values.clone();
    args.extend(row);
    let (mut carry_def, mut y_def) = (None, None);
    let mut values = trace::run(&args, |mut arrays| {
        let row = arrays.split_off(carry.now.values.len());
        let (next, y) = f(carry.now.with(arrays)?, xs.with(row)?).map_err(Into::into)?;
        let mut results = arrays_of(|visitor| next.flatten(visitor), &mut carry_def)?;
        results.extend(arrays_of(|visitor| y.flatten(visitor), &mut y_def)?);
        Ok(results)
    })?;
    let (carry_def, y_def) = (carry_def.ok_or_else(never_called)?, y_def.ok_or_else(never_called)?);
    let y = values.split_off(carry_def.leaves());
    Ok((Values { values, def: carry_def }, Values { values: y, def: y_def }))
}

fn steps(xs: &Values, length: Option<i32>) -> Result<i32> {
    let mut known = length.map(|length| (length, "`length`".to_owned()));
    if let Some((length @ ..0, _)) = &known {
        return Err(Error::invalid(format!("`length` is {length}"), "give the number of steps"));
    }
    for (value, path) in xs.values.iter().zip(xs.def.paths()) {
        let path = format!("xs at {}", path.shown());
        let Some(extent) = value.aval()?.shape.first().copied() else {
            return Err(Error::invalid(
                format!("{path} is {value}, which has no axis to go along"),
                "give every array of `xs` an axis 0 of one row for each step, or capture it",
            ));
        };
        match &known {
            Some((steps, from)) if *steps != extent => {
                return Err(Error::invalid(
                    format!("{path} is {value}, of {extent} rows, and {from} says {steps}"),
                    "give every array of `xs` one row for each step",
                ));
            }
            Some(_) => {}
            None => known = Some((extent, path)),
        }
    }
    known.map(|(steps, _)| steps).ok_or_else(|| {
        Error::invalid("`xs` holds no array, so the number of steps is not known", "give it as `length`")
    })
}

/// The rows of all values, those of the first step first.
fn sliced(values: &[Value], length: i32) -> Result<Vec<Value>> {
    trace::run(values, |arrays| {
        let mut rows = Vec::with_capacity(arrays.len() * length as usize);
        for i in 0..length {
            let i = Array::from_int(i);
            for array in &arrays {
                rows.push(array.take_axis(&i, 0)?);
            }
        }
        Ok(rows)
    })
}

/// The rows that a loop is recorded on where the arrays have none: zeros.
fn empty_rows(xs: &Values) -> Result<Vec<Value>> {
    let zeros = |value: &Value| {
        let aval = value.aval()?;
        Ok(ops::zeros_dtype(&aval.shape[1..], aval.dtype)?.into())
    };
    xs.values.iter().map(zeros).collect()
}

/// The results of the steps, for each leaf an array of each step.
struct Rows {
    structure: Structure,
    leaves: Vec<Vec<Array>>,
}

impl Rows {
    /// Begins with the results of the first step.
    fn new(result: &Values) -> Result<Self> {
        let (arrays, structure) = dense(result)?;
        Ok(Self { structure, leaves: arrays.into_iter().map(|array| vec![array]).collect() })
    }

    fn push(&mut self, step: i32, result: &Values) -> Result<()> {
        let (arrays, structure) = dense(result)?;
        if let Some(change) = self.structure.change(&structure) {
            return Err(Error::invalid(
                format!(
                    "step {step} of the scan makes {} where step 0 made {}{}",
                    change.to, change.from, change.place
                ),
                "let every step make the same structure, shapes and dtypes",
            ));
        }
        for (leaf, array) in self.leaves.iter_mut().zip(arrays) {
            leaf.push(array);
        }
        Ok(())
    }

    fn stacked<T: Tree>(self) -> Result<T> {
        let stacked = |rows: Vec<Array>| Ok(ops::stack(&rows, 0)?.into());
        let leaves = self.leaves.into_iter().map(stacked).collect::<Result<_>>()?;
        tree::unflatten(&self.structure.def, leaves)
    }

    /// The same without a row.
    fn none<T: Tree>(&self) -> Result<T> {
        let empty = |aval: &crate::Aval| {
            let shape: Vec<i32> = std::iter::once(0).chain(aval.shape.iter().copied()).collect();
            Ok(ops::zeros_dtype(&shape, aval.dtype)?.into())
        };
        let leaves = self.structure.avals.iter().map(empty).collect::<Result<_>>()?;
        tree::unflatten(&self.structure.def, leaves)
    }
}

fn dense(result: &Values) -> Result<(Vec<Array>, Structure)> {
    let values = result.values.iter().map(|value| value.dense().map(Value::from)).collect::<Result<_>>()?;
    Structure::from_values(&result.def, values)
}
