//! An optimizer and its moments as a tree.

use std::any::{Any, type_name};
use std::rc::Rc;

use mlx_rs::optimizers::Optimizer;
use tacit_core::tree::{Arguments, Labels, Leaf, Node, Reader, Visitor};
use tacit_core::{Result, Tree};

use super::QuantizedState;
use crate::held::{Held, shown};
use crate::module::empty;
use crate::stateful::of_another_form;

/// The node of an implicit moment.
const MOMENT: &str = "Moment";

impl<O: Optimizer + Clone + 'static> Arguments for QuantizedState<O> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        let listed = self.moments.listed();
        let keys: Vec<&str> = listed.iter().map(|held| held.path.as_str()).collect();
        let template = || -> Rc<dyn Any> {
            let mut hollow = self.clone();
            hollow.moments.leaves_mut().for_each(|leaf| empty(&mut leaf.array));
            Rc::new(hollow)
        };
        let node = Node::new(type_name::<Self>(), Labels::Keys(&keys)).with_template(&template);
        visitor.node(&node.with_statics(&[
            ("rules", &self.text),
            ("from_elements", &self.least),
            ("seed", &self.seed),
        ]));
        for held in listed {
            if held.is_implicit() {
                held.show(MOMENT, |_| false, visitor);
            } else {
                held.leaves.iter().for_each(|leaf| visitor.frozen(&leaf.array));
            }
        }
        Ok(())
    }
}

impl<O: Optimizer + Clone + 'static> Tree for QuantizedState<O> {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let entered = reader.enter(type_name::<Self>())?;
        let mut made = entered.template::<Self>().cloned().ok_or_else(of_another_form)?;
        made.take(reader)?;
        Ok(made)
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if reader.skip_unchanged() {
            return Ok(());
        }
        let made = reader.is_made();
        let entered = reader.enter(type_name::<Self>())?;
        // Moments appear with the first step, with the other fields of the optimizer that made them; and what is lent or given back
        // is what it was in these fields, too.
        if !made || !self.moments.listed().into_iter().map(|held| &held.path).eq(entered.keys()) {
            *self = entered.template::<Self>().cloned().ok_or_else(of_another_form)?;
        }
        self.take(reader)
    }
}

impl<O> QuantizedState<O> {
    /// Takes the moments, of which there are those that are read.
    fn take(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        for held in self.moments.listed_mut() {
            if !reader.is_at(MOMENT) {
                *held = Held::new(&held.path, &reader.array()?.into())?;
                continue;
            }
            let (form, leaves) = shown(MOMENT, reader)?;
            if !held.refill(&form, &leaves) {
                *held = Held::new(&held.path, &form.filled(&mut leaves.iter())?)?;
            }
        }
        Ok(())
    }
}
