//! An optimizer and its moments as a tree.

use std::any::{Any, type_name};
use std::rc::Rc;

use mlx_rs::optimizers::Optimizer;
use tacit_core::tree::{Arguments, Labels, Leaf, Node, Reader, StaticField, Visitor};
use tacit_core::{Result, Tree};

use super::QuantizedState;
use crate::array_leaves::{ArrayLeaf, Form};
use crate::module::empty;
use crate::stateful::of_another_form;

/// The leaves are those of the moments, by their paths; what the moments are made of them is in the structure.
impl<O: Optimizer + Clone + 'static> Arguments for QuantizedState<O> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        let leaves: Vec<&ArrayLeaf> = self.moments.arrays().flat_map(|moment| &moment.leaves).collect();
        let keys: Vec<&str> = leaves.iter().map(|leaf| leaf.path.as_str()).collect();
        let template = || -> Rc<dyn Any> {
            let mut hollow = self.clone();
            hollow.moments.leaves_mut().for_each(|leaf| empty(&mut leaf.array));
            Rc::new(hollow)
        };
        let fields: [(_, &dyn StaticField); 3] =
            [("rules", &self.text), ("from_elements", &self.least), ("seed", &self.seed)];
        // Not copied: each call of a compiled step compares them.
        let forms = self.forms().map(|(_, form)| ("form", form as &dyn StaticField));
        let statics: Vec<_> = fields.into_iter().chain(forms).collect();
        let node = Node::new(type_name::<Self>(), Labels::Keys(&keys)).with_template(&template);
        visitor.node(&node.with_statics(&statics));
        for leaf in leaves {
            visitor.frozen(&leaf.array);
        }
        Ok(())
    }
}

impl<O: Optimizer + Clone + 'static> Tree for QuantizedState<O> {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let entered = reader.enter(type_name::<Self>())?;
        let mut state = entered.template::<Self>().cloned().ok_or_else(of_another_form)?;
        state.take(reader)?;
        Ok(state)
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if reader.skip_unchanged() {
            return Ok(());
        }
        let is_made = reader.is_made();
        let entered = reader.enter(type_name::<Self>())?;
        let template = entered.template::<Self>().ok_or_else(of_another_form)?;
        // Moments appear, and take their formats, with the first step, with the other fields of the optimizer that made them; and
        // what is lent or given back is what it was in these fields, too.
        if !is_made || !self.forms().eq(template.forms()) {
            *self = template.clone();
        }
        self.take(reader)
    }
}

impl<O> QuantizedState<O> {
    /// What the moments are, by their keys.
    fn forms(&self) -> impl Iterator<Item = (&String, &Form)> {
        self.moments.arrays().map(|moment| (&moment.path, &moment.form))
    }

    fn take(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        for leaf in self.moments.leaves_mut() {
            leaf.array = reader.array()?;
        }
        Ok(())
    }
}
