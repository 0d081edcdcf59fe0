//! All of a model that a compiled step sees, and what is known of it until somebody may change it.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::{Deref, DerefMut};

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use tacit_arrays::format::AnyFormat;
use tacit_core::tree::Stamp;

use super::ties::Ties;
use crate::ParameterFilter;
use crate::array_leaves::ArrayLeaves;
use crate::places::Places;

/// All that a compiled step sees of a model.
#[derive(Clone, Debug)]
pub(super) struct Parts<M> {
    pub(super) module: M,
    /// Where the module has its parameters.
    pub(super) places: Places,
    /// The implicit parameters; a broadcast zero has each one's place in the module.
    pub(super) implicit: BTreeMap<String, ArrayLeaves>,
    /// Parameters that are another one; a broadcast zero has each one's place in the module.
    pub(super) ties: Ties,
    pub(super) trained: ParameterFilter,
    /// The adapters that mlx-rs's freezing found: the module knows of its own parameters alone.
    pub(super) frozen: BTreeSet<String>,
    /// The formats in which gradients read the activations of parameters.
    pub(super) saved: BTreeMap<String, AnyFormat>,
    /// Whether adapters with dropout drop what their keys say.
    pub(super) training: bool,
    /// How the module is put in a mode, once somebody has put it in one.
    pub(super) switch: Option<fn(&mut M, bool)>,
}

impl<M> Parts<M> {
    /// Puts the whole module in a mode, and tells whether it is known how that is done.
    pub(super) fn switch_to(&mut self, training: bool) -> bool {
        let Some(switch) = self.switch else { return false };
        switch(&mut self.module, training);
        self.training = training;
        true
    }
}

/// Parts of a model that list their parameters once, and have one stamp, until somebody may change them.
///
/// mlx-rs makes a tree of hash maps for each list, which costs a step of decoding as much as all of its small kernels. While the
/// stamp is the same, a compiled step does not even look at what is listed.
#[derive(Debug)]
pub(super) struct Own<P> {
    parts: P,
    listed: OnceCell<Listed>,
    stamp: OnceCell<Stamp>,
}

/// The parameters of a module.
#[derive(Debug)]
pub(super) struct Listed {
    /// Where they lie, if some came or went since they were found.
    pub(super) places_now: Option<Places>,
    /// In the order of the places.
    pub(super) arrays: Vec<Array>,
    /// The paths that are not frozen, if some are.
    pub(super) unfrozen: Option<HashSet<String>>,
}

impl Listed {
    fn new(module: &impl ModuleParameters, places: &Places) -> Self {
        let sorted = |places: &Places| places.sorted(module.parameters());
        let known = sorted(places);
        let places_now = known.is_none().then(|| Places::from_module(module));
        let places = places_now.as_ref().unwrap_or(places);
        let arrays = known.or_else(|| sorted(places));
        let arrays = arrays.unwrap_or_else(|| unreachable!("the places are those of the module"));
        let arrays: Vec<Array> = arrays.into_iter().cloned().collect();
        let all_trained = places.sorted(module.trainable_parameters()).is_some();
        let unfrozen = (!all_trained)
            .then(|| module.trainable_parameters().flatten().into_keys().map(|path| path.to_string()).collect());
        Self { places_now, arrays, unfrozen }
    }
}

impl<P> Own<P> {
    pub(super) fn new(parts: P) -> Self {
        Self { parts, listed: OnceCell::new(), stamp: OnceCell::new() }
    }

    /// The stamp of the parts as they are.
    pub(super) fn stamp(&self) -> &Stamp {
        self.stamp.get_or_init(Stamp::new)
    }
}

impl<M: ModuleParameters> Own<Parts<M>> {
    /// The parameters, wherever they are now.
    pub(super) fn listed(&self) -> &Listed {
        self.listed.get_or_init(|| Listed::new(&self.parts.module, &self.parts.places))
    }
}

/// The clone is changed by itself, and has a stamp of its own.
impl<P: Clone> Clone for Own<P> {
    fn clone(&self) -> Self {
        Self::new(self.parts.clone())
    }
}

impl<P> Deref for Own<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.parts
    }
}

impl<P> DerefMut for Own<P> {
    fn deref_mut(&mut self) -> &mut P {
        self.listed.take();
        self.stamp.take();
        &mut self.parts
    }
}
