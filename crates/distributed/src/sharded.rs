//! An array of which each rank holds a part.

mod along;
mod elementwise;
mod experts;
mod fused;
mod indexing;
mod moving;
mod part;
mod products;

use mlx_rs::Array;
use tacit_arrays::{Distributed, Repeated, shard};
use tacit_core::extra_ops::checked_indices;
use tacit_core::tree::{self, Open};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, array_id, implicit};

use crate::Group;
use crate::placed::check_whole;

use part::Shared;
pub(crate) use part::own_part;

/// An array split along one axis over the ranks of a group: each holds its own part, which may be any value.
///
/// Plain code on it computes on the parts, and the collectives go in where parts meet: a product with a weight that is split
/// by columns needs none, and its result is split; with one that is split by rows it is a sum over the ranks. What stays
/// replicated is the same on every rank, and so are its gradients; a part's gradient is that of the part. Ops that have no
/// rule for parts gather the whole, which is a materialization, and counted as one.
///
/// ```
/// use mlx_rs::ops;
/// use tacit_core::implicit;
/// use tacit_distributed::{Group, Sharded};
///
/// # fn main() -> tacit_core::Result<()> {
/// let group = Group::init()?;
/// let up = Sharded::split(ops::ones::<f32>(&[32, 8])?, 0, &group)?;
/// let down = Sharded::split(ops::ones::<f32>(&[8, 32])?, 1, &group)?;
/// let x = ops::ones::<f32>(&[2, 8])?;
/// // One sum over the ranks, behind the second product.
/// let y = implicit((x, up, down), |(x, up, down)| x.matmul(up.t())?.matmul(down.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [256.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Sharded", family(Distributed))]
pub struct Sharded {
    /// The part of this rank.
    #[implicit(get)]
    part: Value,
    /// The axis along which the array is split.
    #[implicit(aux, get)]
    axis: usize,
    /// Which leaves of the part every rank has, such as the factor of a low-rank sum that is not cut.
    #[implicit(aux)]
    shared: Vec<usize>,
    /// The ranks that hold the parts.
    #[implicit(aux, get)]
    group: Group,
    /// The aval of the whole.
    #[implicit(aux)]
    aval: Aval,
}

impl Sharded {
    /// The whole array, which every rank gives alike, split along `axis`: each rank keeps its part.
    ///
    /// A stored format is cut between its blocks, or so that both sides keep a block's scale: nothing is quantized anew. What
    /// is not cut, such as one factor of a low-rank sum, is the same on every rank and stays so in training: its gradient is
    /// the sum of the ranks'. Where `whole` itself is differentiated, its gradient is the whole one, the same on every rank.
    ///
    /// # Errors
    ///
    /// The axis has no equal part for each rank, or the format cannot be cut there; the value, or something inside it, is split
    /// over ranks already; some ranks would share what others do not have, such as the factor of one of two low-rank sums that
    /// are joined along the axis.
    pub fn split(whole: impl Into<Value>, axis: i32, group: &Group) -> Result<Self> {
        let whole = whole.into();
        check_whole(&whole)?;
        let aval = whole.aval()?;
        let axis = counted(axis, &aval)?;
        if group.size() == 1 {
            return Self::of_checked(whole, axis as i32, group);
        }
        // Says first why the whole cannot be cut, if so.
        shard(&whole, axis as i32, group.rank(), group.size())?;
        let Shared { of_part, of_whole } = part::shared_leaves(&whole, axis, group)?;
        // The whole is the same on every rank, and so is its gradient. What every rank keeps enters where it is computed with.
        let mut number = 0;
        let entered = tree::map(&whole, Open::Fully, |leaf| {
            number += 1;
            match &leaf {
                Value::Dense(array) if !of_whole.contains(&(number - 1)) => Ok(group.enter(array)?.into()),
                _ => Ok(leaf),
            }
        })?;
        let part = shard(&entered, axis as i32, group.rank(), group.size())?;
        Ok(Self { shared: of_part, ..Self::of_checked(part, axis as i32, group)? })
    }

    /// The array whose part on this rank is `part`: the parts of all ranks along `axis`, in the order of the ranks.
    ///
    /// # Errors
    ///
    /// The part has no such axis, or is, or has inside, what is split over ranks itself.
    pub fn from_part(part: impl Into<Value>, axis: i32, group: &Group) -> Result<Self> {
        let part = part.into();
        check_whole(&part)?;
        Self::of_checked(part, axis, group)
    }

    /// As [`from_part`](Self::from_part), of a part that is known to be whole in itself.
    fn of_checked(part: Value, axis: i32, group: &Group) -> Result<Self> {
        let mut aval = part.aval()?;
        let axis = counted(axis, &aval)?;
        aval.shape[axis] = aval.shape[axis].checked_mul(group.size() as i32).ok_or_else(|| {
            Error::invalid(
                format!("{} parts of {part} make an axis longer than MLX has", group.size()),
                "split along another axis",
            )
        })?;
        Ok(Self { part, axis, shared: Vec::new(), group: group.clone(), aval })
    }

    /// Whether every rank has the same leaf of this number.
    pub(crate) fn is_shared(&self, leaf: usize) -> bool {
        self.shared.contains(&leaf)
    }

    /// Which leaves of another part every rank has: the same as here where the structure is the same, and otherwise those
    /// that are the same arrays.
    fn shared_in(&self, part: &Value) -> Result<Vec<usize>> {
        let ((leaves, def), (other, of_other)) =
            (tree::flatten(&self.part, Open::Fully)?, tree::flatten(part, Open::Fully)?);
        if def == of_other {
            return Ok(self.shared.clone());
        }
        let id = |leaf: &Value| leaf.as_dense().map(array_id);
        let shared: Vec<usize> = self.shared.iter().filter_map(|&number| leaves.get(number).and_then(id)).collect();
        Ok((0..other.len()).filter(|&number| id(&other[number]).is_some_and(|leaf| shared.contains(&leaf))).collect())
    }

    /// The part as it is computed with: what every rank has of it enters.
    fn entered_part(&self) -> Result<Value> {
        if self.shared.is_empty() {
            return Ok(self.part.clone());
        }
        let mut number = 0;
        tree::map(&self.part, Open::Fully, |leaf| {
            number += 1;
            match &leaf {
                Value::Dense(array) if self.is_shared(number - 1) => Ok(self.group.enter(array)?.into()),
                _ => Ok(leaf),
            }
        })
    }

    /// The whole, of which plain code makes the part; `axis` is where that is split.
    fn mapped(&self, axis: usize, f: impl FnOnce(Array) -> Result<Array>) -> Result<Value> {
        self.with(implicit(self.entered_part()?, f)?, axis)
    }

    /// The whole of another part.
    fn with(&self, part: Value, axis: usize) -> Result<Value> {
        Ok(Self::of_checked(part, axis as i32, &self.group)?.into())
    }

    /// As [`with`](Self::with), for each result of an op on parts.
    fn with_all(&self, parts: Vec<Value>, axis: usize) -> Result<Vec<Value>> {
        parts.into_iter().map(|part| self.with(part, axis)).collect()
    }

    /// What `value` is on this rank, where it is split along `axis` or replicated.
    fn operand(&self, value: &Value, axis: usize) -> Result<Value> {
        match value {
            Value::Dense(array) => Ok(own_part(array, axis, &self.group)?.into()),
            Value::Implicit(_) => match value.downcast::<Self>() {
                Some(other) if other.group == self.group && other.axis == axis => other.entered_part(),
                Some(other) => Err(Error::decline(format!(
                    "{value} is split along axis {} over {}, and {} along axis {} over {}",
                    other.axis,
                    other.group.named(),
                    self.aval,
                    self.axis,
                    self.group.named()
                ))),
                None => {
                    let entered = tree::map(value, Open::Fully, |leaf| match &leaf {
                        Value::Dense(array) => Ok(self.group.enter(array)?.into()),
                        Value::Implicit(_) => Ok(leaf),
                    })?;
                    shard(&entered, axis as i32, self.group.rank(), self.group.size())
                        .map_err(|error| Error::decline(format!("{value} is whole on every rank: {error}")))
                }
            },
        }
    }

    /// The places along an axis of `extent` that `places` are on this rank: dense ones are checked before they come here, and parts of
    /// what is split are not.
    fn places(&self, places: &Value, extent: i32) -> Result<Value> {
        let part = self.operand(places, self.axis)?;
        Ok(match part.as_dense() {
            Some(part) if places.is_implicit() => checked_indices(part, extent)?.into(),
            _ => part,
        })
    }

    /// The replicated `value` as it goes into a part.
    fn entered(&self, value: &Value) -> Result<Array> {
        let array = value.as_dense().ok_or_else(|| Error::decline(format!("{value} is not dense")))?;
        self.group.enter(array)
    }

    /// The matrix that is split, where there is one for all entries of a batch.
    fn matrix(&self) -> Result<Option<Value>> {
        let Some(repeated) = self.part.downcast::<Repeated>() else { return Ok(None) };
        let Some(axis) = self.axis.checked_sub(self.aval.shape.len() - 2) else { return Ok(None) };
        let matrix = Self::of_checked(repeated.inner().clone(), axis as i32, &self.group)?;
        Ok(Some(Self { shared: self.shared.clone(), ..matrix }.into()))
    }

    /// The axes from the one that is split on: it is counted from the end, as the products of matrices count.
    fn behind(&self) -> usize {
        self.aval.shape.len() - self.axis
    }
}

fn counted(axis: i32, aval: &Aval) -> Result<usize> {
    let rank = aval.shape.len() as i32;
    let counted = if axis < 0 { axis + rank } else { axis };
    usize::try_from(counted)
        .ok()
        .filter(|_| counted < rank)
        .ok_or_else(|| Error::invalid(format!("{aval} has no axis {axis} to split"), "give an axis of the array"))
}

impl Distributed for Sharded {
    fn with_held(&self, f: &mut dyn FnMut(&Value) -> Result<Option<Value>>) -> Result<Option<Value>> {
        let Some(part) = f(&self.part)? else { return Ok(None) };
        let shared = self.shared_in(&part)?;
        Ok(Some(Self { shared, ..Self::of_checked(part, self.axis as i32, &self.group)? }.into()))
    }
}

impl Materialize for Sharded {
    fn materialize(&self) -> Result<Value> {
        if let Some(matrix) = self.matrix()? {
            // It is gathered once, and not for each entry.
            return Ok(Repeated::new(matrix, &self.aval.shape[..self.aval.shape.len() - 2])?.into());
        }
        let part = self.entered_part()?.opened()?;
        let Value::Dense(part) = &part else { return self.with(part, self.axis) };
        Ok(self.group.all_gather(part, self.axis as i32)?.into())
    }

    fn check(&self) -> Result<()> {
        let axis = i32::try_from(self.axis).unwrap_or(i32::MAX);
        let expected = Self::from_part(&self.part, axis, &self.group)?;
        if expected.aval == self.aval {
            let leaves = tree::leaves(&self.part, Open::Fully)?;
            let is_float = |leaf: &Value| leaf.as_dense().is_some_and(|array| array.dtype().is_float());
            if let Some(number) = self.shared.iter().find(|&&number| !leaves.get(number).is_some_and(is_float)) {
                return Err(Error::invalid(
                    format!("{} has no float leaf {number} that every rank would have", self.part),
                    "split the whole by `Sharded::split`",
                ));
            }
            return Ok(());
        }
        Err(Error::invalid(
            format!(
                "{} ranks with parts of {} make {}, not {}",
                self.group.size(),
                self.part,
                expected.aval,
                self.aval
            ),
            "give the part of this rank",
        ))
    }
}

#[cfg(test)]
mod tests;
