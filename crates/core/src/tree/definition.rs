//! The trait of trees: structures with arrays at their leaves.

use super::{Arguments, Leaf, Reader, Visitor};
use crate::Result;

/// A structure with arrays at its leaves.
///
/// `#[derive(Tree)]` implements it for structs and enums: fields are trees, or static and marked `#[tree(static)]`. A
/// struct with one type parameter is generic over its leaves: `Params<Array>` inside a traced function is
/// `Params<Value>` outside.
///
/// ```
/// # extern crate tacit_core as tacit;
/// use mlx_rs::Array;
/// use tacit::{Result, Tree, Value, implicit};
///
/// #[derive(Tree)]
/// struct Affine<L = Array> {
///     weight: L,
///     bias: Option<L>,
///     #[tree(static)]
///     transposed: bool,
/// }
///
/// # fn main() -> Result<()> {
/// let x = Array::from_slice(&[3f32, 4.0], &[1, 2]);
/// let weight: Value = Array::from_slice(&[1f32, 2.0], &[1, 2]).into();
/// let y = implicit((Affine { weight, bias: None, transposed: true }, x), |(layer, x)| {
///     let y = x.matmul(if layer.transposed { layer.weight.t() } else { layer.weight })?;
///     layer.bias.map_or(Ok(y.clone()), |bias| y.add(bias))
/// })?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [11.0]);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tree",
    label = "not a structure of arrays",
    note = "trees are `Array`, `Value`, tuples, arrays, `Vec`, `Option`, maps with string keys, and types with `#[derive(Tree)]`",
    note = "mark a static field `#[tree(static)]`, and declare a wrapper of another crate's type with `register_node!`"
)]
pub trait Tree: Arguments + Sized {
    /// The same structure with other leaves; [`L::Fixed<Self>`](Leaf::Fixed) where its leaves cannot be others.
    type With<L: Leaf>: Tree;

    /// The structure that `reader` holds next.
    ///
    /// # Errors
    ///
    /// The reader holds another structure, or a leaf of another kind.
    fn unflatten(reader: &mut Reader<'_>) -> Result<Self>;

    /// [`Arguments::flatten`] by another name, for the derive.
    #[doc(hidden)]
    fn flatten_tree<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        self.flatten(visitor)
    }

    /// Becomes the structure that `reader` holds next; what is not part of the tree stays.
    ///
    /// # Errors
    ///
    /// As for [`unflatten`](Self::unflatten). A type whose assignment may fail although the form is its own, as that of a full cache, shows
    /// its node by [`Node::that_refuses`](super::Node::that_refuses): only then does a compiled call that fails here give the whole state back.
    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        *self = Self::unflatten(reader)?;
        Ok(())
    }
}
