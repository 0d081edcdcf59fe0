//! Types of other crates as trees.

use mlx_rs::Array;

use super::{Labels, Node, Reader, Tree, Visitor};
use crate::{ImplicitArray, Result, Value};

/// Makes a tree of a type of another crate: a wrapper of it, and the tree that stands for it.
///
/// A crate cannot implement [`Tree`](trait@crate::Tree) for a type of another one, so this declares a wrapper, which is
/// dereferenced to the type. It takes the wrapper's name, the type and the tree, and two functions: what stands for a value,
/// and the value that a tree stands for. The tree may be any, so that its fields are in paths, its static fields in the
/// structure, and other such wrappers inside it. The wrapper may be generic.
///
/// ```
/// # extern crate tacit_core as tacit;
/// use mlx_rs::Array;
/// use mlx_rs::random::RandomState;
/// use tacit::tree::{self, Open};
/// use tacit::{Result, Tree, register_node};
///
/// #[derive(Tree)]
/// struct Key<L = Array> {
///     key: L,
/// }
///
/// register_node!(
///     /// A random state as a tree.
///     RandomNode(RandomState) as Key,
///     |state| Key { key: state.as_array().clone() },
///     |tree| Ok(RandomState::from_key(tree.key)),
/// );
///
/// # fn main() -> Result<()> {
/// let state = (RandomNode(RandomState::with_seed(7)?), Array::from_f32(1.0));
/// let (leaves, def) = tree::flatten(&state, Open::Closed)?;
/// assert_eq!(def.paths()[0].to_string(), "0.key");
/// let again: (RandomNode, Array) = tree::unflatten(&def, leaves)?;
/// assert_eq!(again.0.as_array().as_slice::<u32>(), state.0.as_array().as_slice::<u32>());
/// # Ok(())
/// # }
/// ```
///
/// Bounds are paths without parameters: `PairNode<T: Tree + Clone>(Pair<T>) as (T, T)`.
#[macro_export]
macro_rules! register_node {
    (
        $(#[$attribute:meta])*
        $visibility:vis $name:ident
        $(<$($parameter:ident: $($bound:ident)::+ $(+ $($more:ident)::+)*),+ $(,)?>)?
        ($ty:ty) as $tree:ty,
        $flatten:expr,
        $unflatten:expr $(,)?
    ) => {
        $(#[$attribute])*
        $visibility struct $name $(<$($parameter: $($bound)::+ $(+ $($more)::+)*),+>)? ($visibility $ty);

        impl $(<$($parameter: $($bound)::+ $(+ $($more)::+)*),+>)? ::core::ops::Deref for $name $(<$($parameter),+>)? {
            type Target = $ty;

            fn deref(&self) -> &$ty {
                &self.0
            }
        }

        impl $(<$($parameter: $($bound)::+ $(+ $($more)::+)*),+>)? ::core::ops::DerefMut for $name $(<$($parameter),+>)? {
            fn deref_mut(&mut self) -> &mut $ty {
                &mut self.0
            }
        }

        impl $(<$($parameter: $($bound)::+ $(+ $($more)::+)*),+>)? $crate::tree::Arguments for $name $(<$($parameter),+>)? {
            type Arrays = Self;

            fn flatten<'a>(&'a self, visitor: &mut dyn $crate::tree::Visitor<'a>) -> $crate::Result<()> {
                let flatten: fn(&$ty) -> $tree = $flatten;
                $crate::__private::flatten_node(::core::any::type_name::<$ty>(), &flatten(&self.0), visitor)
            }
        }

        impl $(<$($parameter: $($bound)::+ $(+ $($more)::+)*),+>)? $crate::Tree for $name $(<$($parameter),+>)? {
            type With<OtherLeaf: $crate::tree::Leaf> = OtherLeaf::Fixed<Self>;

            fn unflatten(reader: &mut $crate::tree::Reader<'_>) -> $crate::Result<Self> {
                let unflatten: fn($tree) -> $crate::Result<$ty> = $unflatten;
                let tree = $crate::__private::unflatten_node(::core::any::type_name::<$ty>(), reader)?;
                unflatten(tree).map(Self)
            }
        }
    };
}

/// Shows the tree that stands for a value of the type `name`.
///
/// # Errors
///
/// The tree cannot be listed.
#[doc(hidden)]
pub fn flatten_node(name: &'static str, tree: &impl Tree, visitor: &mut dyn Visitor<'_>) -> Result<()> {
    visitor.node(&Node::new(name, Labels::Inner));
    tree.flatten(&mut Made(visitor))
}

/// The tree that stands for a value of the type `name`.
///
/// # Errors
///
/// The reader holds another structure.
#[doc(hidden)]
pub fn unflatten_node<T: Tree>(name: &'static str, reader: &mut Reader<'_>) -> Result<T> {
    reader.enter(name)?;
    T::unflatten(reader)
}

/// Shows a tree that was made for the visit.
struct Made<'v, 'a>(&'v mut dyn Visitor<'a>);

impl<'t> Visitor<'t> for Made<'_, '_> {
    fn array(&mut self, array: &'t Array) {
        self.0.made(array.into(), false);
    }

    fn frozen(&mut self, array: &'t Array) {
        self.0.made(array.into(), true);
    }

    fn implicit(&mut self, array: &'t dyn ImplicitArray) {
        self.0.made(dyn_clone::clone_box(array).into(), false);
    }

    fn made(&mut self, value: Value, frozen: bool) {
        self.0.made(value, frozen);
    }

    fn node(&mut self, node: &Node<'_>) {
        self.0.node(node);
    }
}
