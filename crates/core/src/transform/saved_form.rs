//! For handlers: parts of a graph whose activations are held in another form.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::{Rc, Weak};

use mlx_rs::Array;
use tacit_bridge::{Ends, apart, array_id, in_transform, reshape_source, reshaped_again};

use super::opened::{Opened, is_differentiable};
use super::saved::{Encode, save};
use crate::values::Values;
use crate::{Result, Value, trace, tree};

/// A form in which gradients read activations: [`saved_as`](super::saved_as) for a handler, which runs a part of the graph.
///
/// The parts of one trace are saved together. What several parts of a form read, in any shape, is held once: the input of three
/// products, say. What plain code makes of the results of such parts is held in the form, too, up to the next part of any form.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::Value;
/// use tacit_core::transform::{SavedForm, grad};
///
/// let rounded = SavedForm::new(|x: &Array| -> tacit_core::Result<Value> { Ok(x.round(None)?.into()) });
/// let mut gradient = grad(move |x: Array| -> tacit_core::Result<Array> {
///     let squared = rounded.run(&[x.into()], |x| Ok(vec![x[0].dense()?.square()?.into()]))?;
///     squared[0].dense()
/// });
/// assert_eq!(gradient.call(Array::from_f32(2.75))?.array()?.item_exact::<f32>(), 6.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SavedForm(Option<Rc<Encode>>);

/// The parts of the trace that goes on, which are saved together where it ends.
#[derive(Default)]
struct Parts {
    /// Arrays by their ids, each with a node of its own that parts read.
    apart: RefCell<HashMap<usize, [Array; 2]>>,
    parts: RefCell<Vec<Part>>,
}

struct Part {
    form: SavedForm,
    inputs: Vec<Array>,
    outputs: Vec<Array>,
}

thread_local! {
    static PARTS: RefCell<Weak<Parts>> = RefCell::default();
}

impl SavedForm {
    /// The form that `encode` gives activations, as [`saved_as`](super::saved_as) says.
    pub fn new(encode: impl Fn(&Array) -> Result<Value> + 'static) -> Self {
        Self(Some(Rc::new(encode)))
    }

    /// The activations as they are. What comes after a part of it is in no form before the next part.
    #[must_use]
    pub fn plain() -> Self {
        Self(None)
    }

    /// Runs `f` on activations, as a part of the graph. A gradient through it reads their float arrays, and those that `f` makes
    /// of them, in this form; what `f` captures stays as it is.
    ///
    /// # Errors
    ///
    /// `f` fails. A gradient fails as [`saved_as`](super::saved_as) says.
    pub fn run(&self, activations: &[Value], f: impl FnOnce(&[Value]) -> Result<Vec<Value>>) -> Result<Vec<Value>> {
        if !in_transform() {
            return f(activations);
        }
        let mut operands = Opened::from_values(&Values::from_arguments(&activations.to_vec())?)?;
        if !operands.leaves.iter().any(is_differentiable) {
            return f(activations);
        }
        let known = PARTS.with_borrow(Weak::upgrade);
        let is_first = known.is_none();
        let parts = known.unwrap_or_default();
        if is_first {
            PARTS.set(Rc::downgrade(&parts));
        }
        let results = self.part(&parts, &mut operands, f)?;
        if is_first {
            // Handlers take nodes of a graph that is plain only once its traces have ended.
            trace::once_plain(move || parts.save())?;
        }
        Ok(results)
    }

    fn part(
        &self,
        parts: &Parts,
        operands: &mut Opened,
        f: impl FnOnce(&[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let mut inputs = Vec::new();
        for leaf in operands.leaves.iter_mut().filter(|leaf| is_differentiable(leaf)) {
            if self.0.is_some() {
                *leaf = parts.stand_in(leaf, &mut inputs)?;
            } else {
                inputs.push(leaf.clone());
            }
        }
        let activations: Vec<Value> =
            tree::unflatten(&operands.def, operands.leaves.iter().map(Value::from).collect())?;
        let mut opened = Opened::from_values(&Values::from_arguments(&f(&activations)?)?)?;
        if self.0.is_some() {
            opened.leaves = apart(&opened.leaves)?;
        }
        let results = tree::unflatten(&opened.def, opened.leaves.iter().map(Value::from).collect())?;
        parts.parts.borrow_mut().push(Part { form: self.clone(), inputs, outputs: opened.leaves });
        Ok(results)
    }
}

impl Parts {
    /// What a part reads in place of an array: what is reshaped to it is one node for all parts, and an input of this one.
    fn stand_in(&self, array: &Array, inputs: &mut Vec<Array>) -> Result<Array> {
        let source = reshape_source(array)?;
        let node = match self.apart.borrow_mut().entry(array_id(&source)) {
            Entry::Occupied(known) => known.get()[1].clone(),
            Entry::Vacant(place) => {
                let node = apart(std::slice::from_ref(&source))?.swap_remove(0);
                place.insert([source, node.clone()]);
                node
            }
        };
        let stand_in = reshaped_again(array, &node)?;
        inputs.push(node);
        Ok(stand_in)
    }

    /// Has gradients read the parts of each form in it, and what lies between them and the next ones.
    fn save(&self) -> Result<()> {
        let parts = self.parts.borrow();
        let mut forms: Vec<&Rc<Encode>> = Vec::new();
        for encode in parts.iter().filter_map(|part| part.form.0.as_ref()) {
            if !forms.iter().any(|form| Rc::ptr_eq(form, encode)) {
                forms.push(encode);
            }
        }
        for encode in forms {
            let (mut ends, mut between) = (Vec::new(), Ends::default());
            for Part { form: of, inputs, outputs } in &*parts {
                between.outputs.extend_from_slice(inputs);
                if of.0.as_ref().is_some_and(|form| Rc::ptr_eq(form, encode)) {
                    between.inputs.extend_from_slice(outputs);
                    ends.push(Ends { inputs: inputs.clone(), outputs: outputs.clone(), ..Ends::default() });
                } else {
                    between.beyond.extend_from_slice(outputs);
                }
            }
            ends.push(between);
            save(encode, &ends)?;
        }
        Ok(())
    }
}
