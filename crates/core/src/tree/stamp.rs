//! The stamp of a tree: it stays the same while the tree does.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Says that a tree is what it was: whoever shows the same stamp has the same nodes, static fields and arrays.
///
/// A type that is large and seldom changes, such as a model, keeps one and shows it by [`Visitor::stamped`]. It drops the stamp
/// before anybody may change it, and makes another when it is asked for one again. A step that leaves the tree alone then costs
/// as little as if there were no tree.
///
/// The type asks [`Reader::skip_unchanged`] first when it is assigned.
///
/// [`Visitor::stamped`]: super::Visitor::stamped
/// [`Reader::skip_unchanged`]: super::Reader::skip_unchanged
#[derive(Debug)]
pub struct Stamp {
    /// No other stamp of this process has or will have it.
    pub(crate) number: u64,
    /// What others know of the tree, each as long as its owner lives: it holds the tree's arrays, and goes with the stamp.
    kept: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    owner: Weak<()>,
    _what: Arc<dyn Any + Send + Sync>,
}

impl Stamp {
    /// A stamp that no other is equal to.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), kept: Mutex::default() }
    }

    /// Keeps something until the stamp goes, or until something is kept after its owner went.
    pub(crate) fn keep(&self, owner: &Arc<()>, what: Arc<dyn Any + Send + Sync>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| kept.owner.strong_count() > 0);
        kept.push(Kept { owner: Arc::downgrade(owner), _what: what });
    }
}

impl Default for Stamp {
    fn default() -> Self {
        Self::new()
    }
}

/// A part of a tree that has a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its first entry, and how many there are.
    pub(crate) entries: (usize, usize),
    /// Its first array, and how many there are.
    pub(crate) arrays: (usize, usize),
    pub(crate) stamp: u64,
}

impl Part {
    pub(crate) fn has_entry(&self, entry: usize) -> bool {
        (self.entries.0..self.entries.0 + self.entries.1).contains(&entry)
    }
}
