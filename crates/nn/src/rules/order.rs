//! Which of many rules is the first that names a parameter.

use std::collections::HashMap;

use tacit_core::Aval;

use crate::Pattern;

/// The places of patterns in a list, in which the first that names a parameter is found without asking those of other paths.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// The numbers of patterns that name one path, by that path.
    by_path: HashMap<String, Vec<usize>>,
    /// The numbers of all others.
    others: Vec<usize>,
}

impl Order {
    pub(super) fn from_patterns<'p>(patterns: impl Iterator<Item = &'p Pattern>) -> Self {
        let mut order = Self::default();
        for (place, pattern) in patterns.enumerate() {
            order.add(place, pattern);
        }
        order
    }

    /// Adds a pattern behind all others.
    pub(super) fn add(&mut self, place: usize, pattern: &Pattern) {
        match pattern.path() {
            Some(path) => self.by_path.entry(path.to_owned()).or_default().push(place),
            None => self.others.push(place),
        }
    }

    /// The first place whose pattern, which `at` gives, names a parameter by one of its paths.
    pub(super) fn first<'p>(&self, paths: &[&str], aval: &Aval, at: impl Fn(usize) -> &'p Pattern) -> Option<usize> {
        let names = |&place: &usize| at(place).names(paths, aval);
        let of_paths = paths.iter().filter_map(|path| self.by_path.get(*path)).flatten().copied();
        let exact = of_paths.filter(names).min();
        let mut before = self.others.iter().copied().take_while(|&place| exact.is_none_or(|exact| place < exact));
        before.find(names).or(exact)
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::Dtype;
    use tacit_core::Result;

    use super::*;

    /// Whatever the order of the patterns, and by several paths.
    #[test]
    fn the_first_pattern_is_the_one_of_all_that_are_asked_in_turn() -> Result<()> {
        let [matrix, vector] = [&[8, 8][..], &[8]].map(|shape| Aval::new(shape, Dtype::Float32));
        let is_matrix = Pattern::when(|_, aval| aval.shape.len() == 2);
        let all = [
            Pattern::exact("a.weight"),
            "a.*".parse()?,
            Pattern::exact("b.weight"),
            Pattern::exact("a.weight").and(&is_matrix),
            is_matrix,
            "b.*".parse::<Pattern>()?.and(&Pattern::exact("a.weight")),
            "re:.*\\.bias".parse()?,
            "*".parse()?,
        ];
        let paths = [
            &["a.weight"][..],
            &["b.weight"],
            &["a.weight", "b.weight"],
            &["b.weight", "a.weight"],
            &["a.bias"],
            &["c"],
            &[],
        ];
        for turn in 0..all.len() {
            for step in [1, 3, 5, 7] {
                // Without the last ones, too, so that nothing may match.
                let order: Vec<&Pattern> =
                    (0..all.len() - turn).map(|at| &all[(turn + at * step) % all.len()]).collect();
                let found = Order::from_patterns(order.iter().copied());
                for (paths, aval) in paths.iter().flat_map(|paths| [(paths, &matrix), (paths, &vector)]) {
                    let first = order.iter().position(|pattern| pattern.names(paths, aval));
                    assert_eq!(found.first(paths, aval, |at| order[at]), first, "{paths:?} of {order:?}");
                }
            }
        }
        Ok(())
    }
}
