//! Functions mapped over an axis of their arguments.

use mlx_rs::Array;

use super::Transformed;
use crate::tree::{self, Path, TreeDef};
use crate::values::never_called;
use crate::{Aval, Error, Result, Tree, Value};

/// Which axis of each leaf is mapped; a negative one counts from the last.
///
/// It is made of one axis for all leaves, as `0`, or of one for each leaf in order, as `[Some(0), None]`. A leaf without
/// an axis goes to every example whole. An implicit array must be such a leaf: it has no axis to map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Axes {
    /// The same for all leaves.
    All(Option<i32>),
    /// One for each leaf.
    Each(Vec<Option<i32>>),
}

impl From<i32> for Axes {
    fn from(axis: i32) -> Self {
        Self::All(Some(axis))
    }
}

impl From<Option<i32>> for Axes {
    fn from(axis: Option<i32>) -> Self {
        Self::All(axis)
    }
}

impl From<Vec<Option<i32>>> for Axes {
    fn from(axes: Vec<Option<i32>>) -> Self {
        Self::Each(axes)
    }
}

impl<const N: usize> From<[Option<i32>; N]> for Axes {
    fn from(axes: [Option<i32>; N]) -> Self {
        Self::Each(axes.to_vec())
    }
}

impl<const N: usize> From<[i32; N]> for Axes {
    fn from(axes: [i32; N]) -> Self {
        Self::Each(axes.into_iter().map(Some).collect())
    }
}

/// Maps `f`, written for one example, over an axis of its arguments.
///
/// `in_axes` tells which axis of each leaf of the arguments is mapped, `out_axes` where the mapped axis goes in each leaf
/// of the results; see [`Axes`]. Every result has one. A primitive that MLX cannot map is computed for one example after the
/// other. An implicit result is materialized.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_core::transform::vmap;
///
/// let (x, w) = (ops::ones::<f32>(&[4, 3])?, ops::ones::<f32>(&[3, 2])?);
/// let mut rows = vmap([Some(0), None], 0, |(x, w): (Array, Array)| x.matmul(w));
/// assert_eq!(rows.call((&x, &w))?.to_string(), "f32[4,2]");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A call fails where `f` fails, where no leaf of the arguments or not every result has an axis, where the axes do not fit the
/// leaves, where mapped axes differ in length, and where an implicit array has an axis.
pub fn vmap<'f, A: Tree, O: Tree, E: Into<Error>>(
    in_axes: impl Into<Axes>,
    out_axes: impl Into<Axes>,
    mut f: impl FnMut(A) -> Result<O, E> + 'f,
) -> Transformed<'f, A, O::With<Value>> {
    let (in_axes, out_axes) = (in_axes.into(), out_axes.into());
    Transformed::new(move |arguments| {
        let mapped = in_axes.mapped(&arguments.values, &arguments.def)?;
        let inputs: Vec<Array> =
            mapped.iter().filter_map(|&(position, _)| arguments.values[position].as_dense().cloned()).collect();
        let axes: Vec<Option<i32>> = mapped.iter().map(|&(_, axis)| Some(axis)).collect();
        let mut structure = None;
        let mut example = |arrays: Vec<Array>| -> Result<Vec<Array>> {
            let mut arguments = arguments.clone();
            for (&(position, _), array) in mapped.iter().zip(arrays) {
                arguments.values[position] = array.into();
            }
            let results = arguments.run(&mut f)?;
            let dense = results.dense()?;
            out_axes.check_results(&dense, &results.def)?;
            structure = Some(results.def);
            Ok(dense)
        };
        let places = |count| (0..count).map(|leaf| out_axes.axis_for(leaf).unwrap_or_default()).collect();
        let results = tacit_bridge::vmap(&inputs, &axes, places, &mut |arrays| Ok(example(arrays)?))?;
        tree::unflatten(&structure.ok_or_else(never_called)?, results.into_iter().map(Value::from).collect())
    })
}

impl Axes {
    fn axis_for(&self, leaf: usize) -> Option<i32> {
        match self {
            Self::All(axis) => *axis,
            Self::Each(axes) => axes[leaf],
        }
    }

    fn check_count(&self, def: &TreeDef, what: &str) -> Result<()> {
        match self {
            Self::Each(axes) if axes.len() != def.leaves() => Err(Error::invalid(
                format!("{} axes do not fit the {what} {def}, whose leaves are {}", axes.len(), def.leaves()),
                "give one axis for each `*`, `None` for a leaf that is not mapped, or one axis for all",
            )),
            _ => Ok(()),
        }
    }

    /// The leaves of the arguments that are mapped, with the axis of each.
    fn mapped(&self, values: &[Value], def: &TreeDef) -> Result<Vec<(usize, i32)>> {
        self.check_count(def, "arguments")?;
        let paths = def.paths();
        let mut mapped = Vec::new();
        let mut first: Option<(i32, &Path)> = None;
        for (leaf, value) in values.iter().enumerate() {
            let Some(axis) = self.axis_for(leaf) else { continue };
            let path = &paths[leaf];
            let Value::Dense(array) = value else {
                return Err(Error::invalid(
                    format!("axis {axis} of {} is to be mapped, and {value} is implicit", path.shown()),
                    "give it no axis, as in `[Some(0), None]`: it goes to every example whole",
                ));
            };
            let aval = Aval::from(array);
            let place = in_range(axis, aval.shape.len()).ok_or_else(|| out_of_range(axis, path, &aval, 0))?;
            let extent = aval.shape[place];
            match first {
                Some((other, other_path)) if other != extent => {
                    return Err(Error::invalid(
                        format!(
                            "axis {axis} of {}, which is {aval}, has the length {extent}, and the mapped axis of {} {other}",
                            path.shown(),
                            other_path.shown(),
                        ),
                        "map over axes of one length",
                    ));
                }
                _ => first = Some((extent, path)),
            }
            mapped.push((leaf, axis));
        }
        if mapped.is_empty() {
            return Err(Error::invalid(
                "no argument is mapped",
                "give at least one leaf an axis, or call the function itself",
            ));
        }
        Ok(mapped)
    }

    fn check_results(&self, results: &[Array], def: &TreeDef) -> Result<()> {
        self.check_count(def, "results")?;
        for (leaf, (path, result)) in def.paths().iter().zip(results).enumerate() {
            let aval = Aval::from(result);
            match self.axis_for(leaf) {
                Some(axis) if in_range(axis, aval.shape.len() + 1).is_some() => {}
                Some(axis) => return Err(out_of_range(axis, path, &aval, 1)),
                None => {
                    return Err(Error::invalid(
                        format!("the result at {}, {aval} of each example, has no axis to go to", path.shown()),
                        "give every result an axis, as in `0`",
                    ));
                }
            }
        }
        Ok(())
    }
}

fn in_range(axis: i32, rank: usize) -> Option<usize> {
    let rank = rank as i32;
    (-rank..rank).contains(&axis).then(|| axis.rem_euclid(rank) as usize)
}

/// The error of an axis that an array does not have, once it has `more` axes.
fn out_of_range(axis: i32, path: &Path, aval: &Aval, more: usize) -> Error {
    let rank = aval.shape.len() + more;
    let (what, of_each) = if more == 0 { ("argument", "") } else { ("result", " of each example") };
    Error::invalid(
        format!("axis {axis} is out of range for the {what} at {}, {aval}{of_each}", path.shown()),
        match rank {
            0 => "give it no axis: a scalar has none".to_owned(),
            _ => format!("choose an axis from {} to {}", -(rank as i64), rank - 1),
        },
    )
}
