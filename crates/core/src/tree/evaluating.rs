//! The evaluation of whole trees.

use std::time::Instant;

use mlx_rs::{Array, transforms};
use tacit_bridge::Spent;

use super::{Arguments, Listed, Node, Visitor};
use crate::phases::Phases;
use crate::{ChildRef, ImplicitArray, Result, Value};

/// Evaluates every array of a tree together, those of implicit arrays included.
///
/// The tree is whatever a function can be called with: a state of models, optimizers, caches and random states, a value, or
/// references to several of these.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::tree;
///
/// let sums = vec![Array::from_f32(1.0).add(Array::from_f32(2.0))?];
/// let loss = sums[0].square()?;
/// tree::eval(&(&sums, &loss))?;
/// assert_eq!(loss.item_exact::<f32>(), 9.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// An array cannot be computed, or is one that a trace is recorded on.
pub fn eval(tree: &(impl Arguments + ?Sized)) -> Result<()> {
    let arrays = listed(tree)?;
    if arrays.is_empty() {
        return Ok(());
    }
    let Spent { encode, wait } = tacit_bridge::eval(arrays.iter().map(Listed::array))?;
    Phases { encode, wait, ..Phases::default() }.add();
    Ok(())
}

/// Begins to evaluate every array of a tree, as [`eval`] does, and does not wait for them.
///
/// # Errors
///
/// As for [`eval`]; what fails while it is computed is an error to whoever reads it.
pub fn async_eval(tree: &(impl Arguments + ?Sized)) -> Result<()> {
    let arrays = listed(tree)?;
    if arrays.is_empty() {
        return Ok(());
    }
    let start = Instant::now();
    transforms::async_eval(arrays.iter().map(Listed::array))?;
    Phases { encode: start.elapsed(), ..Phases::default() }.add();
    Ok(())
}

/// The dense arrays of a tree, those of implicit arrays included, without its structure.
///
/// # Errors
///
/// A part of the tree cannot be taken apart.
pub fn arrays(tree: &(impl Arguments + ?Sized)) -> Result<Vec<Array>> {
    Ok(listed(tree)?.into_iter().map(Listed::into_array).collect())
}

/// The same, those that the tree holds where they are held: each token of a decoder evaluates all of its caches.
fn listed(tree: &(impl Arguments + ?Sized)) -> Result<Vec<Listed<'_>>> {
    let mut arrays = Arrays(Vec::new());
    tree.flatten(&mut arrays)?;
    Ok(arrays.0)
}

/// The arrays of a tree, without its structure.
struct Arrays<'a>(Vec<Listed<'a>>);

impl<'a> Visitor<'a> for Arrays<'a> {
    fn array(&mut self, array: &'a Array) {
        self.0.push(Listed::Held(array));
    }

    fn frozen(&mut self, array: &'a Array) {
        self.array(array);
    }

    fn implicit(&mut self, array: &'a dyn ImplicitArray) {
        array.visit_children(&mut |_, child| match child {
            ChildRef::Dense(array) => self.array(array),
            ChildRef::Implicit(array) => self.implicit(array),
        });
    }

    fn made(&mut self, value: Value, _: bool) {
        match value {
            Value::Dense(array) => self.0.push(Listed::Made(array)),
            Value::Implicit(array) => array.children().into_iter().for_each(|(_, child)| self.made(child, false)),
        }
    }

    fn node(&mut self, _: &Node<'_>) {}
}
