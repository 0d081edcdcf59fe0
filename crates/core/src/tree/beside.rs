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
        own: def.entries.iter(),
        other: other.entries.iter(),
        values: values.into_iter(),
        found: Vec::with_capacity(leaves.len()),
    };
    walk.subtree(&Path::default()).map_err(|at| Error::invalid(format!("{misfit}: {at}"), help))?;
    let found = walk.found;
    for ((path, own), found) in def.paths().iter().zip(leaves).zip(&found) {
        if let Some(found) = found {
            check_aval(what, path, &own.aval()?, found, help)?;
        }
    }
    Ok(found)
}

/// The error of an array of another aval than it must have.
pub(crate) fn check_aval(what: &str, path: &Path, own: &Aval, found: &Array, help: &str) -> Result<()> {
    let found = Aval::from(found);
    if *own == found {
        return Ok(());
    }
    Err(Error::invalid(format!("the {what} of {} is {found}, and the array {own}", path.shown()), help))
}

struct Walk<'d, 'o> {
    own: Iter<'d, Entry>,
    other: Iter<'o, Entry>,
    values: std::vec::IntoIter<Value>,
    found: Vec<Option<Array>>,
}

impl Walk<'_, '_> {
    fn subtree(&mut self, path: &Path) -> Result<(), Difference> {
        let (Some(own), Some(other)) = (self.own.next(), self.other.as_slice().first()) else { return Ok(()) };
        if matches!(other, Entry::Node(OwnNode { kind: NodeKind::Nothing, .. })) {
            self.other.next();
            self.nothing(own);
            return Ok(());
        }
        let named = own.name() == other.name();
        if !named && matches!(own, Entry::Node(OwnNode { labels: OwnLabels::Inner, .. })) {
            return self.subtree(path);
        }
        let fits = named && own.len() == other.len() && (0..own.len()).all(|i| own.label(i) == other.label(i));
        if !fits {
            return Err(Difference { path: path.clone(), what: print::difference(own, other) });
        }
        self.other.next();
        if matches!(own, Entry::Leaf { .. }) {
            self.found.push(self.values.next().and_then(|value| value.as_dense().cloned()));
        }
        (0..own.len()).try_for_each(|child| self.subtree(&own.child(path, child)))
    }

    /// Goes over the rest of a subtree that has nothing.
    fn nothing(&mut self, own: &Entry) {
        if matches!(own, Entry::Leaf { .. }) {
            self.found.push(None);
        }
        for _ in 0..own.len() {
            if let Some(child) = self.own.next() {
                self.nothing(child);
            }
        }
    }
}
