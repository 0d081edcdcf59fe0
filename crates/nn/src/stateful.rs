//! Optimizers and random states as trees.

use std::any::{Any, type_name};
use std::borrow::Borrow;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::error::{Exception, StateProjectionError};
use mlx_rs::module::{FlattenedModuleParam, ModuleParameters};
use mlx_rs::optimizers::Optimizer;
use mlx_rs::utils::{StateProjection, Updatable};
use tacit_core::tree::{Arguments, Labels, Leaf, Node, Reader, Visitor};
use tacit_core::{Error, Result, Tree};

use crate::module::{Leaves, empty, entered};
use crate::moments_before::MomentsBefore;
use crate::saved_moments::unlisted;

/// Anything that mlx-rs can update as a tree: an optimizer, whose leaves are its moments, or a random state.
///
/// An optional array that is absent is no leaf. As for a [`Module`](crate::Module), other fields are not part of the structure: in a
/// compiled function a learning rate is a constant, and what a trace assigns to it is taken back. An optimizer whose moments appear
/// in a call takes the other fields, too, of the one that was traced.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::random::RandomState;
/// use tacit_core::tree;
/// use tacit_nn::Stateful;
///
/// let random = Stateful(RandomState::with_seed(1)?);
/// assert_eq!(tree::structure(&random)?.leaves(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stateful<U>(pub U);

impl<U> Deref for Stateful<U> {
    type Target = U;

    fn deref(&self) -> &U {
        &self.0
    }
}

impl<U> DerefMut for Stateful<U> {
    fn deref_mut(&mut self) -> &mut U {
        &mut self.0
    }
}

impl<U: Updatable + Clone + 'static> Arguments for Stateful<U> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        // mlx-rs lists the arrays of what it may change only.
        let mut copy = self.0.clone();
        let projection = copy.state_projection().map_err(unlisted)?;
        let present: Vec<(&str, &Array)> = projection.iter().filter_map(|(key, array)| Some((key, array?))).collect();
        let keys: Vec<&str> = present.iter().map(|(key, _)| *key).collect();
        let template = || -> Rc<dyn Any> {
            let mut hollow = self.clone();
            if let Ok(mut projection) = hollow.state_projection() {
                projection.values_mut().for_each(empty);
            }
            Rc::new(hollow)
        };
        visitor.node(&Node::new(type_name::<U>(), Labels::Keys(&keys)).with_template(&template));
        for (_, array) in present {
            visitor.made(array.into(), false);
        }
        Ok(())
    }
}

impl<U: Updatable + Clone + 'static> Tree for Stateful<U> {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let (template, leaves) = entered::<Self>(reader, type_name::<U>())?;
        let mut state = template.cloned().ok_or_else(of_another_form)?;
        state.take(leaves)?;
        Ok(state)
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let is_made = reader.is_made();
        let (template, leaves) = entered::<Self>(reader, type_name::<U>())?;
        // A moment appears with the first step: only a copy that has it has a place for it. And what is lent or given back is
        // what it was in its other fields, too, such as a rate that a trace assigned.
        let same = is_made && {
            let projection = self.0.state_projection().map_err(unlisted)?;
            let keys = projection.iter().filter(|(_, array)| array.is_some()).map(|(key, _)| key);
            keys.eq(leaves.iter().map(|(key, _)| *key))
        };
        if !same {
            *self = template.cloned().ok_or_else(of_another_form)?;
        }
        self.take(leaves)
    }
}

impl<U: Updatable> Updatable for Stateful<U> {
    fn state_projection(&mut self) -> Result<StateProjection<'_>, StateProjectionError> {
        self.0.state_projection()
    }
}

/// An optimizer stays one, so that it updates models and is saved and restored as it is.
impl<O: Optimizer> Optimizer for Stateful<O> {
    type State = O::State;

    fn state(&self) -> &O::State {
        self.0.state()
    }

    fn state_mut(&mut self) -> &mut O::State {
        self.0.state_mut()
    }

    fn update_single(&mut self, key: &Rc<str>, gradient: &Array, parameter: &mut Array) -> Result<(), Exception> {
        self.0.update_single(key, gradient, parameter)
    }

    /// Parameters and moments are what they were where it fails.
    fn update<M: ModuleParameters>(
        &mut self,
        model: &mut M,
        gradients: impl Borrow<FlattenedModuleParam>,
    ) -> Result<(), Exception> {
        let gradients = gradients.borrow();
        let moments = MomentsBefore::new(&mut self.0);
        let moved = model.parameters_mut().flatten().into_iter().filter(|(path, _)| gradients.contains_key(path));
        let before: Vec<(Rc<str>, Array)> = moved.map(|(path, array)| (path, array.clone())).collect();
        let updated = self.0.update(model, gradients);
        if updated.is_err() {
            let mut parameters = model.parameters_mut().flatten();
            for (path, array) in before {
                parameters.entry(path).and_modify(|parameter| **parameter = array);
            }
            moments.give_back(&mut self.0);
        }
        updated
    }
}

impl<U: Updatable> Stateful<U> {
    fn take(&mut self, leaves: Leaves<'_>) -> Result<()> {
        let mut projection = self.0.state_projection().map_err(unlisted)?;
        let mut slots = projection.values_mut();
        for (_, array) in leaves {
            *slots.next().ok_or_else(of_another_form)? = array;
        }
        Ok(())
    }
}

pub(crate) fn of_another_form() -> Error {
    Error::invalid("the structure is that of another state", "use the definition of a state of the same form")
}
