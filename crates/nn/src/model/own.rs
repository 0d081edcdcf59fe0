//! The module of a model, and the parameters that it listed last.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::ops::{Deref, DerefMut};

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;

use crate::places::Places;

/// A module that lists its parameters once, until somebody may change it.
///
/// mlx-rs makes a tree of hash maps for each list, which costs a step of decoding as much as all of its small kernels.
#[derive(Debug)]
pub(super) struct Own<M> {
    module: M,
    listed: OnceCell<Listed>,
}

/// The parameters of a module.
#[derive(Debug)]
pub(super) struct Listed {
    /// Where they lie, if some came or went since they were found.
    pub(super) found: Option<Places>,
    /// In the order of the places.
    pub(super) arrays: Vec<Array>,
    /// Those that are not frozen, if some are.
    unfrozen: Option<HashSet<String>>,
}

impl Listed {
    fn of(module: &impl ModuleParameters, places: &Places) -> Self {
        let sorted = |places: &Places| places.sorted(module.parameters());
        let known = sorted(places);
        let found = known.is_none().then(|| Places::of(module));
        let places = found.as_ref().unwrap_or(places);
        let arrays = known.or_else(|| sorted(places));
        let arrays = arrays.unwrap_or_else(|| unreachable!("the places are those of the module"));
        let arrays: Vec<Array> = arrays.into_iter().cloned().collect();
        let all = places.sorted(module.trainable_parameters()).is_some();
        let unfrozen =
            (!all).then(|| module.trainable_parameters().flatten().into_keys().map(|path| path.to_string()).collect());
        Self { found, arrays, unfrozen }
    }

    /// Whether the parameter of this path is not frozen.
    pub(super) fn is_unfrozen(&self, path: &str) -> bool {
        self.unfrozen.as_ref().is_none_or(|unfrozen| unfrozen.contains(path))
    }
}

impl<M> Own<M> {
    pub(super) fn new(module: M) -> Self {
        Self { module, listed: OnceCell::new() }
    }
}

impl<M: ModuleParameters> Own<M> {
    /// The parameters, whose places were these when they were found last.
    pub(super) fn listed(&self, places: &Places) -> &Listed {
        self.listed.get_or_init(|| Listed::of(&self.module, places))
    }
}

impl<M: Clone> Clone for Own<M> {
    fn clone(&self) -> Self {
        Self::new(self.module.clone())
    }
}

impl<M> Deref for Own<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.module
    }
}

impl<M> DerefMut for Own<M> {
    fn deref_mut(&mut self) -> &mut M {
        self.listed.take();
        &mut self.module
    }
}
