//! How the arrays of a model lie over ranks.

use std::collections::BTreeSet;

use mlx_rs::module::ModuleParameters;
use mlx_rs::{Array, ops};
use serde::{Deserialize, Serialize};
use tacit_arrays::shard;
use tacit_core::{Aval, Error, Result, Value};
use tacit_nn::{Model, ParameterFilter};

use crate::fully_sharded::{own_part, whole_of};
use crate::{FullySharded, Group, Sharded};

/// One of the ranks, whether or not there is a group of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

impl From<&Group> for Place {
    fn from(group: &Group) -> Self {
        Self { rank: group.rank(), size: group.size() }
    }
}

/// What of an array a rank has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Layout {
    /// All of it, as every rank.
    Whole,
    /// An equal part of its elements, in their order and filled up with zeros.
    Flat,
    /// An equal part along an axis.
    Axis(usize),
    /// An array of its own on each rank, all of this shape: a part of a stored array, which only the stored arrays of all ranks
    /// make a whole, or an array that differs between ranks.
    Own,
}

impl Layout {
    /// What a rank has of the whole array.
    pub(crate) fn part(self, whole: &Array, place: Place) -> Result<Array> {
        let Place { rank, size } = place;
        match self {
            Self::Whole => Ok(whole.clone()),
            Self::Flat => own_part(whole, rank, size),
            Self::Axis(axis) => shard(&whole.into(), axis as i32, rank, size)?.dense(),
            Self::Own => Err(Error::invalid(
                format!(
                    "{} is a part of a stored array, which is put together of no other ranks' parts",
                    Aval::from(whole)
                ),
                "load it with as many ranks as saved it",
            )),
        }
    }

    /// The shape of what a rank has.
    pub(crate) fn shape(self, whole: &[i32], size: usize) -> Vec<i32> {
        let mut shape = whole.to_vec();
        match self {
            Self::Whole | Self::Own => {}
            Self::Flat => {
                let elements = whole.iter().map(|&extent| extent.max(0) as usize).product::<usize>();
                shape = vec![elements.div_ceil(size) as i32];
            }
            Self::Axis(axis) => {
                if let Some(extent) = shape.get_mut(axis) {
                    *extent /= size as i32;
                }
            }
        }
        shape
    }

    /// The whole of all ranks' parts.
    pub(crate) fn whole(self, parts: &[Array], whole: &Aval) -> Result<Array> {
        match (self, parts) {
            (_, [only]) => whole_of(only, whole),
            (Self::Axis(axis), _) => Ok(ops::concatenate(parts, axis as i32)?),
            _ => whole_of(&ops::concatenate(parts, 0)?, whole),
        }
    }
}

/// Which axis of what shape a stored array is split along. Its leaves may be flat, and say neither.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct StoredSplit {
    pub(crate) axis: usize,
    pub(crate) shape: Vec<i32>,
}

#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub(crate) path: String,
    /// The path that it has however its parameter is split.
    pub(crate) key: String,
    pub(crate) layout: Layout,
    /// The shape of the whole.
    pub(crate) shape: Vec<i32>,
    /// How the stored array is split that it is a part of.
    pub(crate) split: Option<StoredSplit>,
    /// The ranks that it is split over, if it is.
    pub(crate) over: Option<Group>,
    /// The numbers of these in a group that has others too, or has them in another order; nothing where they are all of it.
    pub(crate) ranks: Option<Vec<usize>>,
    /// The path that the stored array has however it is split.
    pub(crate) stored: Option<String>,
    /// Whether every rank has the same of it, as it also has of a factor that is not cut with its sum.
    pub(crate) alike: bool,
}

impl Leaf {
    /// A rank of a group as one of those that have the parts.
    pub(crate) fn place(&self, of_group: Place) -> Place {
        let Some(ranks) = &self.ranks else { return of_group };
        let rank = ranks.iter().position(|&rank| rank == of_group.rank).unwrap_or(0);
        Place { rank, size: ranks.len() }
    }

    /// How many ranks have its parts, of a group of so many.
    pub(crate) fn parts(&self, size: usize) -> usize {
        self.ranks.as_ref().map_or(size, Vec::len)
    }
}

/// The leaves of a model that last, in order: not what adapters drop in a step.
pub(crate) fn leaves<M: ModuleParameters>(model: &Model<M>) -> Result<Vec<Leaf>> {
    let mut leaves = Vec::new();
    for (path, value) in model.values()? {
        list(&path, &path, &value, &mut leaves)?;
    }
    let lasting: BTreeSet<String> =
        model.lasting_leaves(&ParameterFilter::All).into_iter().map(|(path, _)| path).collect();
    leaves.retain(|leaf| lasting.contains(&leaf.path));
    Ok(leaves)
}

/// The leaves of a model that last, with the ranks of the group that have their parts.
///
/// # Errors
///
/// One is split over ranks that are not in the group.
pub(crate) fn leaves_in<M: ModuleParameters>(model: &Model<M>, group: &Group) -> Result<Vec<Leaf>> {
    let mut leaves = leaves(model)?;
    for leaf in &mut leaves {
        let Some(over) = &leaf.over else { continue };
        let ranks = match (over.members(), group.members()) {
            (None, _) => Some(vec![group.rank()]),
            (Some(over), Some(all)) => {
                let number = |rank: &usize| all.part.ranks.iter().position(|own| own == rank);
                over.part.ranks.iter().map(number).collect()
            }
            (Some(_), None) => None,
        };
        let help = "give the group that has all of these ranks, such as the one that was split";
        let ranks = ranks.ok_or_else(|| split_over_others(&leaf.path, over, group, help))?;
        leaf.ranks = Some(ranks).filter(|ranks| !ranks.iter().copied().eq(0..group.size()));
    }
    Ok(leaves)
}

/// An error where one of these is split over other ranks than those of the group.
pub(crate) fn check_over<'l>(leaves: impl IntoIterator<Item = &'l Leaf>, group: &Group) -> Result<()> {
    for Leaf { path, over, .. } in leaves {
        if let Some(over) = over.as_ref().filter(|over| *over != group) {
            let ranks = |of: &Group| of.members().map(|members| members.part.ranks.clone());
            if ranks(over) == ranks(group) {
                return Err(Error::invalid(
                    format!("{path} is split over another group of {}: each split makes one", group.named()),
                    "split once, and give the group that the parameter was split over",
                ));
            }
            let help = "give the group whose ranks each have a batch: a parameter is split over that one, or they have the same part of it";
            return Err(split_over_others(path, over, group, help));
        }
    }
    Ok(())
}

fn split_over_others(path: &str, over: &Group, group: &Group, help: &str) -> Error {
    Error::invalid(format!("{path} is split over {}, and the group has {}", over.named(), group.named()), help)
}

/// Adds the leaves of a value, which may be split itself or have inside what is: an adapter is often beside a split base.
fn list(path: &str, key: &str, value: &Value, leaves: &mut Vec<Leaf>) -> Result<()> {
    let leaf = |path: String, key: String, layout, shape: &[i32], over: Option<&Group>| {
        let (shape, over, alike) = (shape.to_vec(), over.cloned(), layout == Layout::Whole);
        Leaf { path, key, layout, shape, split: None, over, ranks: None, stored: None, alike }
    };
    let array = match value {
        Value::Dense(array) => {
            leaves.push(leaf(path.to_owned(), key.to_owned(), Layout::Whole, array.shape(), None));
            return Ok(());
        }
        Value::Implicit(array) => array,
    };
    if let Some(split) = value.downcast::<FullySharded>() {
        let mut wholes = split.arrays().iter();
        for_each_array(&format!("{path}.local"), key, split.local(), &mut |path, key, _| {
            let whole = wholes.next().map_or(&[][..], |whole| &whole.shape);
            leaves.push(leaf(path, key, Layout::Flat, whole, Some(split.group())));
        });
        return Ok(());
    }
    if let Some(split) = value.downcast::<Sharded>() {
        let dense = split.part().as_dense().is_some();
        let of = StoredSplit { axis: split.axis(), shape: value.aval()?.shape };
        let mut number = 0;
        for_each_array(&format!("{path}.part"), key, split.part(), &mut |path, key_there, array| {
            leaves.push(if dense {
                leaf(path, key_there, Layout::Axis(of.axis), &of.shape, Some(split.group()))
            } else {
                let (stored, alike) = (Some(key.to_owned()), split.is_shared(number));
                let whole = leaf(path, key_there, Layout::Own, array.shape(), Some(split.group()));
                Leaf { split: Some(of.clone()), stored, alike, ..whole }
            });
            number += 1;
        });
        return Ok(());
    }
    for (name, child) in array.children() {
        list(&format!("{path}.{name}"), &format!("{key}.{name}"), &child, leaves)?;
    }
    Ok(())
}

/// Shows each array of a value with its path in the model and that which it has by itself.
fn for_each_array(path: &str, key: &str, value: &Value, leaf: &mut dyn FnMut(String, String, &Array)) {
    match value {
        Value::Dense(array) => leaf(path.to_owned(), key.to_owned(), array),
        Value::Implicit(array) => {
            for (name, child) in array.children() {
                for_each_array(&format!("{path}.{name}"), &format!("{key}.{name}"), &child, leaf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::{nn, random};
    use tacit_nn::LoraConfig;

    use super::*;

    #[test]
    fn what_an_adapter_drops_in_a_step_is_no_leaf_of_a_run() {
        let dropping = LoraConfig { dropout: 0.5, ..LoraConfig::default() };
        let linear = nn::Linear::new(32, 32).expect("builds");
        let mut model = Model::new(linear).and_then(|model| model.lora("weight", dropping)).expect("adapts");
        let paths = |model: &Model<nn::Linear>| {
            leaves(model).expect("lists").into_iter().map(|leaf| leaf.path).collect::<Vec<_>>()
        };
        let lasting = paths(&model);
        model.drop_features(Some(&random::key(1).expect("a key"))).expect("drops");
        assert_eq!(model.leaves(&ParameterFilter::All).len(), lasting.len() + 1);
        assert_eq!(paths(&model), lasting);
    }

    #[test]
    fn a_base_beside_which_an_adapter_is_lies_as_it_would_without() {
        use crate::{FullyShard, Shard, Split};
        let group = Group::alone();
        let adapted = |split: fn(Model<nn::Linear>, &Group) -> Result<Model<nn::Linear>>| -> Result<Vec<_>> {
            let model = split(Model::new(nn::Linear::new(32, 32)?)?, &group)?.lora("weight", LoraConfig::default())?;
            let found = leaves(&model)?.into_iter().filter(|leaf| leaf.path.starts_with("weight.base"));
            Ok(found.map(|leaf| (leaf.path, leaf.key, leaf.layout)).collect())
        };
        let key = "weight.base".to_owned();
        let found = adapted(|model, group| model.fully_shard("weight", group)).expect("lists");
        assert_eq!(found, [("weight.base.local".to_owned(), key.clone(), Layout::Flat)]);
        let found = adapted(|model, group| model.shard("weight", Split::Rows(group))).expect("lists");
        assert_eq!(found, [("weight.base.part".to_owned(), key, Layout::Axis(1))]);
    }
}
