//! The moments of an optimizer that are implicit arrays.

use tacit_core::{Error, Result};
use tacit_io::Training;

use super::index::MOMENTS;
use super::pieces::{Named, Piece};
use super::taken::{AllTaken, Taken};
use crate::layout::{Layout, Leaf};

/// The implicit moments of a run, and their arrays: those of a part are the rank's own.
pub(super) fn taken_apart(run: &Training, known: &[Leaf]) -> Result<(AllTaken, Vec<Piece>)> {
    if run.states.contains_key(MOMENTS) {
        let message = format!("a state is named {MOMENTS}, as the moments are");
        return Err(Error::invalid(message, "give it another name"));
    }
    let (mut by_key, mut pieces) = (AllTaken::new(), Vec::new());
    let by_path = Named::new(known, |leaf| &leaf.path);
    for (path, moment) in &run.moments {
        let leaf = by_path.leaf_of(path);
        let key = leaf.map_or_else(|| path.clone(), |(leaf, slot)| format!("{}{slot}", leaf.key));
        let layout = leaf.filter(|(leaf, _)| leaf.layout != Layout::Whole).map(|_| Layout::Own);
        let (taken, arrays) = Taken::from_value(&key, moment)?;
        pieces.extend(arrays.into_iter().map(|(name, array)| {
            let (state, shape) = (MOMENTS.to_owned(), array.shape().to_vec());
            let ranks = leaf.and_then(|(leaf, _)| leaf.ranks.clone());
            Piece { state, key: name, layout, shape, split: None, ranks, of_leaf: leaf.is_some(), array }
        }));
        by_key.insert(key, taken);
    }
    Ok((by_key, pieces))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn no_other_state_has_the_name_of_the_moments() {
        let mut run = Training::new(1);
        run.states.insert("moments".to_owned(), std::collections::BTreeMap::new());
        let error = taken_apart(&run, &[]).err().expect("is refused").to_string();
        expect![[r"
            a state is named moments, as the moments are
            help: give it another name"]]
        .assert_eq(&error);
    }
}
