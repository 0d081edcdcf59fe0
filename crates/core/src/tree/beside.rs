//! A tree beside its gradients or tangents.

use std::slice::Iter;

use mlx_rs::Array;

use super::entry::{Entry, OwnLabels, OwnNode};
use super::{Arguments, Difference, Flattened, NodeKind, Open, Path, TreeDef, print};
use crate::{Aval, Error, Result, Value};

/// What `others` holds for each dense leaf of a tree whose implicit arrays are open: an array, or nothing.
///
/// `others` has the structure of the tree's gradients, and nothing may stand for a whole subtree. Where it has another
/// structure the error is `misfit` with the first place, and where an array is of another aval than its leaf it speaks of
/// `what`.
pub(crate) fn beside<G: Arguments>(
    (leaves, def): (&[Value], &TreeDef),
    others: &G,
    [misfit, what, help]: [&str; 3],
) -> Result<Vec<Option<Array>>> {
    let (values, other) = Flattened::flatten(others, Open::Fully)?;
    let mut walk = Walk {
        entries: def.entries.iter(),
        other: other.entries.iter(),
        values: values.into_iter(),
        arrays: Vec::with_capacity(leaves.len()),
    };
    walk.subtree(&Path::default()).map_err(|at| Error::invalid(format!("{misfit}: {at}"), help))?;
    let arrays = walk.arrays;
    for ((path, leaf), array) in def.paths().iter().zip(leaves).zip(&arrays) {
        if let Some(array) = array {
            check_aval(what, path, &leaf.aval()?, array, help)?;
        }
    }
    Ok(arrays)
}

/// The error of an array of another aval than it must have.
pub(crate) fn check_aval(what: &str, path: &Path, expected: &Aval, found: &Array, help: &str) -> Result<()> {
    let found = Aval::from(found);
    if *expected == found {
        return Ok(());
    }
    Err(Error::invalid(format!("the {what} of {} is {found}, and the array {expected}", path.shown()), help))
}

struct Walk<'d, 'o> {
    entries: Iter<'d, Entry>,
    other: Iter<'o, Entry>,
    values: std::vec::IntoIter<Value>,
    arrays: Vec<Option<Array>>,
}

impl Walk<'_, '_> {
    fn subtree(&mut self, path: &Path) -> Result<(), Difference> {
        let (Some(entry), Some(other)) = (self.entries.next(), self.other.as_slice().first()) else { return Ok(()) };
        if matches!(other, Entry::Node(OwnNode { kind: NodeKind::Nothing, .. })) {
            self.other.next();
            self.nothing(entry);
            return Ok(());
        }
        let named = entry.name() == other.name();
        if !named && matches!(entry, Entry::Node(OwnNode { labels: OwnLabels::Inner, .. })) {
            return self.subtree(path);
        }
        let fits = named && entry.len() == other.len() && (0..entry.len()).all(|i| entry.label(i) == other.label(i));
        if !fits {
            return Err(Difference { path: path.clone(), what: print::difference(entry, other) });
        }
        self.other.next();
        if matches!(entry, Entry::Leaf { .. }) {
            self.arrays.push(self.values.next().and_then(|value| value.as_dense().cloned()));
        }
        (0..entry.len()).try_for_each(|child| self.subtree(&entry.child(path, child)))
    }

    /// Goes over the rest of a subtree that has nothing.
    fn nothing(&mut self, entry: &Entry) {
        if matches!(entry, Entry::Leaf { .. }) {
            self.arrays.push(None);
        }
        for _ in 0..entry.len() {
            if let Some(child) = self.entries.next() {
                self.nothing(child);
            }
        }
    }
}
