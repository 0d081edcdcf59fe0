//! The part of a replicated array that a rank computes with.

use std::collections::{BTreeMap, BTreeSet};

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::cut;
use tacit_core::tree::{self, Open};
use tacit_core::{Aval, Error, Result, Value, array_id, broadcast_source};

use crate::Group;
use crate::named::named;

/// The float leaves that every rank's part of a whole has at one place, such as the factor of a low-rank sum that is not cut.
#[derive(Default)]
pub(super) struct Shared {
    /// Their numbers in the part, in order.
    pub(super) of_part: Vec<usize>,
    /// Their numbers in the whole.
    pub(super) of_whole: BTreeSet<usize>,
}

/// The own part along `axis` of a replicated array, with the gradients of all ranks.
///
/// What is broadcast along the axis is not cut, but broadcast to less.
pub(crate) fn own_part(array: &Array, axis: usize, group: &Group) -> Result<Array> {
    let (size, rank) = (group.size() as i32, group.rank() as i32);
    let extent = array.shape()[axis];
    if extent % size != 0 {
        return Err(Error::decline(format!("axis {axis} of {} has no equal parts", Aval::from(array))));
    }
    if extent == 0 {
        return group.enter(array);
    }
    let mut shape = array.shape().to_vec();
    shape[axis] = extent / size;
    let source = broadcast_source(array)?;
    let behind = array.ndim() - axis;
    if source.ndim() < behind || source.shape()[source.ndim() - behind] == 1 {
        return Ok(ops::broadcast_to(&group.enter(&source)?, &shape)?);
    }
    let range = rank * shape[axis]..(rank + 1) * shape[axis];
    cut(&group.enter(array)?.into(), axis as i32, range)?.dense()
}

/// As [`own_part`], beside another part of a whole of this shape: what is broadcast is broadcast to that part, of whichever extents
/// it is.
pub(super) fn own_beside(array: &Array, part: &Array, axis: usize, group: &Group) -> Result<Array> {
    let (source, behind) = (broadcast_source(array)?, array.ndim() - axis);
    let is_repeated = source.ndim() < behind || source.shape()[source.ndim() - behind] == 1;
    if !is_repeated || array.shape()[axis] == 0 {
        return own_part(array, axis, group);
    }
    Ok(ops::broadcast_arrays(&[&group.enter(&source)?, part])?.swap_remove(0))
}

/// The identity of a sum over ranks, which a rank that has nothing adds: 0, and of floats -0, as -0 + 0 is 0.
pub(super) fn sum_identity(dtype: Dtype) -> Result<Array> {
    let zero = if dtype.is_float() { Array::from_f32(-0.0) } else { Array::from_int(0) };
    Ok(zero.as_dtype(dtype)?)
}

/// What every rank's part of the whole has at one place. All other float leaves of a part are one rank's alone.
///
/// A leaf is known by its place in the whole, never by its numbers: factors of two experts may both be zeros, and two scales
/// of one shape be of different blocks.
///
/// # Errors
///
/// Several ranks have a leaf, but not all of them, or they have it at different places: no collective of all ranks is the
/// sum of its gradients.
pub(super) fn shared_leaves(whole: &Value, axis: usize, group: &Group) -> Result<Shared> {
    let mut shared = Shared::default();
    if whole.as_dense().is_some() {
        return Ok(shared);
    }
    // Each leaf as an array of its own, whatever stands at two places of the whole.
    let marked = tree::map(whole, Open::Fully, |leaf| match &leaf {
        Value::Dense(array) => Ok(mlx_rs::stop_gradient(array)?.into()),
        Value::Implicit(_) => Ok(leaf),
    })?;
    let leaves = tree::leaves(&marked, Open::Fully)?;
    let numbers = leaves.iter().enumerate().filter_map(|(number, leaf)| Some((array_id(leaf.as_dense()?), number)));
    let numbers: BTreeMap<usize, usize> = numbers.collect();
    let size = group.size();
    let extent = whole.aval()?.shape[axis] / size as i32;
    let part = |rank: i32| tree::flatten(&cut(&marked, axis as i32, rank * extent..(rank + 1) * extent)?, Open::Fully);
    let parts = (0..size as i32).map(part).collect::<Result<Vec<_>>>()?;
    let mut places: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (rank, (leaves, _)) in parts.iter().enumerate() {
        for (number, leaf) in leaves.iter().enumerate() {
            if let Some(array) = leaf.as_dense().filter(|array| array.dtype().is_float()) {
                places.entry(array_id(array)).or_default().push((rank, number));
            }
        }
    }
    let alike = parts.iter().all(|(_, def)| *def == parts[0].1);
    // In one order on all ranks, whose addresses differ. What is not cut is a leaf of the whole still, and has its number.
    let places: BTreeSet<_> = places.into_iter().map(|(id, places)| (places, numbers.get(&id).copied())).collect();
    for (places, of_whole) in places {
        let [(rank, number), others @ ..] = &places[..] else { continue };
        if others.iter().all(|(other, _)| other == rank) {
            continue;
        }
        let of_rank = |rank: usize| places.iter().filter(move |place| place.0 == rank).map(|place| place.1);
        if !alike || !(1..size).all(|rank| of_rank(rank).eq(of_rank(0))) {
            let ranks: BTreeSet<usize> = places.iter().map(|place| place.0).collect();
            let ranks = named(&ranks.into_iter().collect::<Vec<_>>());
            return Err(Error::invalid(
                format!(
                    "along axis {axis} of {whole}, {} of it would be part of {ranks}, and not of every rank at one place",
                    parts[*rank].0[*number].aval()?
                ),
                "split what it is made of one by one, or along another axis",
            ));
        }
        shared.of_part.extend(of_rank(0));
        shared.of_whole.extend(of_whole);
    }
    shared.of_part.sort_unstable();
    Ok(shared)
}
