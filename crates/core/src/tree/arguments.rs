//! What a function on arrays can be called with.

use mlx_rs::Array;

use super::{Labels, Node, NodeKind, Tree, Visitor};
use crate::{ImplicitArray, Result};

/// Values in a structure, with which a function on arrays is called.
///
/// Arrays, values and implicit arrays are arguments, and so are tuples, fixed arrays, slices, `Vec`, `Option`, maps and
/// `#[derive(Tree)]` structs of them, and a reference to any of these. The function takes the same structure with an
/// [`Array`] for each.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::{Value, implicit};
///
/// let x = Array::from_f32(1.0);
/// let others = [Value::from(Array::from_f32(2.0)), Array::from_f32(3.0).into()];
/// let y = implicit((&x, &others, None::<Array>), |(x, [a, b], _)| x.add(a)?.add(b))?;
/// assert_eq!(y.dense()?.item::<f32>(), 6.0);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument",
    label = "not an array, and not a structure of arrays",
    note = "arguments are `Array`, `Value`, types with `#[derive(ImplicitArray)]`, references to these, and tuples, arrays, \
            `Vec`, `Option`, maps with string keys and types with `#[derive(Tree)]` of them"
)]
pub trait Arguments {
    /// What the function takes: the same structure with arrays as its leaves.
    type Arrays: Tree;

    /// Shows the nodes and leaves to `visitor`, each node before its children.
    ///
    /// # Errors
    ///
    /// The structure cannot be listed.
    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()>;
}

impl<T: Arguments + ?Sized> Arguments for &T {
    type Arrays = T::Arrays;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        (**self).flatten(visitor)
    }
}

impl Arguments for dyn ImplicitArray {
    type Arrays = Array;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        visitor.implicit(self);
        Ok(())
    }
}

impl Arguments for Box<dyn ImplicitArray> {
    type Arrays = Array;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        (**self).flatten(visitor)
    }
}

impl<T: Arguments> Arguments for [T] {
    type Arrays = Vec<T::Arrays>;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        visitor.node(&Node::new(NodeKind::List, Labels::Positions(self.len())));
        self.iter().try_for_each(|item| item.flatten(visitor))
    }
}
