//! A model that lives, and what is asked of it again and again.

use std::fmt::Display;

use mlx_rs::Array;
use mlx_rs::module::{Module, ModuleParameters};
use tacit::arrays::{Adapter, AsStored, Dora, ScaledChannels};
use tacit::model::Model;
use tacit::{Error, Policy, Result, Value};

use crate::held::{Held, bytes};
use crate::net::{Net, tokens};

/// A model, and what happened to it.
pub(crate) struct Life {
    pub(crate) model: Model<Net>,
    pub(crate) told: Vec<String>,
    /// Whether its products may round what they are given.
    pub(crate) rounds: bool,
    pub(crate) half: bool,
}

/// What is wrong with a model, or with what happened to it.
pub(crate) type Checked<T = ()> = std::result::Result<T, String>;

/// An error where none may be.
pub(crate) fn never<T>(result: Result<T>) -> Checked<T> {
    result.map_err(|error| format!("never an error: {error}"))
}

pub(crate) fn holds(what: bool, wrong: impl Display) -> Checked {
    if what { Ok(()) } else { Err(wrong.to_string()) }
}

impl Life {
    pub(crate) fn new(tied: bool) -> Result<Self> {
        let mut model = Model::new(Net::new()?)?;
        if tied {
            model = model.tie("head.weight", "embedding.weight")?;
        }
        Ok(Self { model, told: vec![format!("tied: {tied}")], rounds: false, half: false })
    }

    pub(crate) fn told(&self) -> String {
        self.told.join("; ")
    }

    /// What the model computes.
    pub(crate) fn output(&mut self) -> Result<Array> {
        let _policy = policy(&self.model)?.scope();
        let y = self.model.forward(&tokens())?;
        y.eval()?;
        Ok(y)
    }

    /// What a dense model of the same values computes.
    pub(crate) fn mirrored(&self) -> Result<Array> {
        let _allow = Policy::Allow.scope();
        let mut net = Net::new()?;
        for (path, slot) in net.parameters_mut().flatten() {
            *slot = self.model.used(&path)?.dense()?;
        }
        net.forward(&tokens()).map_err(Into::into)
    }

    /// How far two ways to compute the same may be from each other, which is `least` where nothing is rounded.
    pub(crate) fn tolerance(&self, least: f32) -> f32 {
        if self.half || self.rounds { 0.05 } else { least }
    }

    pub(crate) fn become_other(&mut self, f: impl FnOnce(Model<Net>) -> Result<Model<Net>>) -> Result<()> {
        self.model = f(self.model.clone())?;
        Ok(())
    }

    /// That another model is this one, and computes the same.
    pub(crate) fn same(&self, mut other: Model<Net>, y: &Array, how: &str) -> Checked {
        let (own, of) = (never(Held::of(&self.model))?, never(Held::of(&other))?);
        // What is frozen is not in the file.
        let differs = own.holds_other(&of).map(|difference| format!("{how}, it has other {difference}"));
        differs.map_or(Ok(()), Err)?;
        let _policy = never(policy(&other))?.scope();
        let there = never(other.forward(&tokens()).map_err(Into::into).and_then(|y| bytes(&y)))?;
        holds(there == never(bytes(y))?, format!("{how}, it computes something else"))
    }
}

/// No dense array is built but those of vectors, which are repeated along other axes, and of sums of any kind, which are
/// quantized again, or whose rows are measured.
pub(crate) fn policy(model: &Model<Net>) -> Result<Policy> {
    let is_built = |value: &Value| {
        let vector = value.is_implicit() && value.aval()?.shape.len() < 2;
        let measured = value.downcast::<Dora>().is_some_and(|dora| dora.base().downcast::<ScaledChannels>().is_some());
        Ok::<_, Error>(vector || measured || value.downcast::<AsStored>().is_some())
    };
    let built = model.values()?.values().map(is_built).collect::<Result<Vec<_>>>()?;
    Ok(if built.contains(&true) { Policy::Allow } else { Policy::Deny })
}
