//! A model as a tree.

use std::collections::BTreeMap;

use mlx_rs::module::ModuleParameters;
use tacit_arrays::format::AnyFormat;
use tacit_core::tree::{Arguments, Labels, Leaf, Node, Reader, Visitor};
use tacit_core::{Error, Result, Tree};

use super::Model;
use super::ties::Ties;
use crate::array_leaves::{PARAMETER, shown};
use crate::filter::Role;
use crate::moved::Moved;

const MODEL: &str = "Model";
const TRAINING: &str = "training";
const TIES: &str = "ties";
const TRAINED: &str = "trained";
const SAVED: &str = "saved";

impl<M: ModuleParameters> Arguments for Model<M> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        if visitor.stamped(self.parts.stamp()) {
            return Ok(());
        }
        let listed = self.parts.listed();
        // Where parameters came or went since the last call, they were found anew.
        let places = listed.places_now.as_ref().unwrap_or(&self.parts.places);
        let parameters = places.paths.iter().map(String::as_str).zip(&listed.arrays);
        let parameters: Vec<_> = parameters.filter(|(path, _)| !self.parts.ties.is_tied(path)).collect();
        let keys: Vec<&str> = parameters.iter().map(|(key, _)| *key).collect();
        let trained = self.parts.trained.identity();
        visitor.node(&Node::new(MODEL, Labels::Keys(&keys)).with_statics(&[
            (TRAINING, &self.parts.training),
            (TIES, &self.parts.ties),
            (TRAINED, &trained),
            (SAVED, &self.parts.saved),
        ]));
        for (path, array) in parameters {
            // What a step drops is given to it as any other input.
            let unfrozen = |path: &str| listed.unfrozen.as_ref().is_none_or(|unfrozen| unfrozen.contains(path));
            let moves = |role: Role| role == Role::Choice || self.is_trained(role, path, unfrozen);
            let Some(leaves) = self.parts.implicit.get(path) else {
                if moves(Role::of_dense(path)) {
                    visitor.array(array);
                } else {
                    visitor.frozen(array);
                }
                continue;
            };
            leaves.show(moves, visitor);
        }
        Ok(())
    }
}

/// The leaves are the model's leaves by path; what the implicit parameters are made of them is in the structure. It can be a
/// state, and not an argument: a module cannot be made of its parameters alone.
impl<M: ModuleParameters> Tree for Model<M> {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(_: &mut Reader<'_>) -> Result<Self> {
        Err(Error::invalid(
            "a module cannot be made of its parameters alone",
            "pass it as the state of `compile_with_state`, or change it in place",
        ))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if reader.skip_unchanged() {
            return Ok(());
        }
        let (is_made, given_back) = (reader.is_made(), reader.is_given_back());
        let entered = reader.enter(MODEL)?;
        let training = entered.static_field::<bool>(TRAINING)?;
        let switches = (is_made || given_back) && training != self.parts.training;
        if switches && !self.parts.switch_to(training) && is_made {
            // The module has a mode of its own, which is no parameter: the function itself has to change it at first.
            return Err(Error::decline("the call leaves the model in another mode"));
        }
        if is_made || given_back {
            let ties = entered.static_field::<Ties>(TIES)?;
            let saved = entered.static_field::<BTreeMap<String, AnyFormat>>(SAVED)?;
            if ties != self.parts.ties {
                self.set_ties(ties);
            }
            if saved != self.parts.saved {
                self.parts.saved = saved;
            }
        }
        if is_made && entered.static_field::<String>(TRAINED)? != self.parts.trained.identity() {
            return Err(Error::decline("the call leaves the model with another part that is trained"));
        }
        let keys = entered.keys();
        self.refresh();
        let paths = self.parts.places.paths.iter().map(String::as_str).filter(|path| !self.parts.ties.is_tied(path));
        let moved = Moved::find(paths, keys);
        if let Some(moved) = &moved {
            if is_made {
                return Err(moved.error());
            }
            moved.clear(&mut self.parts.module)?;
        }
        let mut values = Vec::new();
        for path in keys {
            let value = if reader.is_at(PARAMETER) {
                let (form, leaves) = shown(reader)?;
                if self.parts.implicit.get_mut(path).is_some_and(|parameter| parameter.refill(&form, &leaves)) {
                    continue;
                }
                form.filled(&mut leaves.iter())?
            } else {
                reader.value()?
            };
            if self.parts.places.find(path).is_some() {
                values.push((path.clone(), value));
            }
        }
        self.put_in_places(values)?;
        moved.map_or(Ok(()), |moved| Err(moved.error()))
    }
}
