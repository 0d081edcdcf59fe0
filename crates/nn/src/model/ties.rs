//! Parameters that are one, under several paths.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use mlx_rs::Array;
use tacit_core::embedding::same_bits;
use tacit_core::{Result, Value, array_id};

use crate::array_leaves::ArrayLeaves;

/// Paths of a module whose parameter is that of another path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ties(BTreeMap<String, String>);

impl Ties {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the parameter of this path is another one.
    pub(super) fn is_tied(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// The path of the parameter that a path stands for.
    pub(super) fn parameter_path<'p>(&'p self, path: &'p str) -> &'p str {
        self.0.get(path).map_or(path, String::as_str)
    }

    /// The other paths of a parameter.
    pub(super) fn others<'p>(&'p self, parameter: &'p str) -> impl Iterator<Item = &'p str> {
        self.iter().filter(move |(_, to)| *to == parameter).map(|(tied, _)| tied)
    }

    /// All paths of a parameter, its own first.
    pub(super) fn paths<'p>(&'p self, parameter: &'p str) -> Vec<&'p str> {
        std::iter::once(parameter).chain(self.others(parameter)).collect()
    }

    /// Each path that is tied, and the one that it is tied to.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(tied, to)| (tied.as_str(), to.as_str()))
    }

    /// The path of a leaf that is named under a tied parameter.
    pub(super) fn leaf(&self, path: &str) -> Option<String> {
        let (tied, to) = self.iter().find(|(tied, _)| is_of(path, tied))?;
        Some(format!("{to}{}", &path[tied.len()..]))
    }

    /// A tied path that has some of these moments, and the one of its parameter, which has none and is moved by these gradients.
    pub(super) fn misplaced<'k>(
        &self,
        moments: &(impl Iterator<Item = &'k str> + Clone),
        gradients: &(impl Iterator<Item = &'k str> + Clone),
    ) -> Option<(&str, &str)> {
        let has = |path: &str| moments.clone().any(|key| is_of(key, path));
        let moves = |path: &str| gradients.clone().any(|leaf| is_of(leaf, path));
        self.iter().find(|&(tied, parameter)| moves(parameter) && has(tied) && !has(parameter))
    }

    /// Ties a parameter with all its paths to another one.
    pub(super) fn tie(&mut self, own: &str, to: &str) {
        self.0.values_mut().filter(|known| *known == own).for_each(|known| to.clone_into(known));
        self.0.insert(own.to_owned(), to.to_owned());
    }
}

/// The paths of parameters that are one array, each group by itself.
pub(super) fn shared(parameters: &[(Rc<str>, &Array)]) -> Vec<Vec<String>> {
    let mut groups: Vec<Vec<String>> = Vec::new();
    let mut known: HashMap<usize, usize> = HashMap::new();
    for (path, array) in parameters {
        let number = *known.entry(array_id(array)).or_insert(groups.len());
        match groups.get_mut(number) {
            Some(group) => group.push(path.to_string()),
            None => groups.push(vec![path.to_string()]),
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// Whether two values are the same array, or equal to the last bit.
pub(super) fn same(a: &Value, b: &Value) -> Result<bool> {
    let (a, b) = (ArrayLeaves::new("", a)?, ArrayLeaves::new("", b)?);
    if a.aval != b.aval || a.form != b.form || a.leaves.len() != b.leaves.len() {
        return Ok(false);
    }
    for (a, b) in a.leaves.iter().zip(&b.leaves) {
        if !same_bits(&a.array, &b.array)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a leaf is one of the parameter of this path.
pub(super) fn is_of(leaf: &str, parameter: &str) -> bool {
    leaf.strip_prefix(parameter).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Takes the leaves of a parameter, or the parameter itself, out of others.
pub(super) fn remove_of<T>(leaves: &mut BTreeMap<String, T>, parameter: &str) {
    leaves.remove(parameter);
    let begin = format!("{parameter}.");
    let under = leaves.range(begin.clone()..).map(|(leaf, _)| leaf).take_while(|leaf| leaf.starts_with(&begin));
    for leaf in under.cloned().collect::<Vec<_>>() {
        leaves.remove(&leaf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leaves_of_a_parameter_are_not_those_of_one_whose_name_begins_alike() {
        let paths = ["weight", "weight-a", "weight.a", "weight.b.c", "weight_a", "weights.a"];
        let mut leaves = BTreeMap::from(paths.map(|path| (path.to_owned(), 0)));
        remove_of(&mut leaves, "weight");
        assert!(leaves.keys().eq(["weight-a", "weight_a", "weights.a"]));
    }
}
