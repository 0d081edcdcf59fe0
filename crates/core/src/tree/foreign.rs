//! Types of other crates as trees.

use std::any::TypeId;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::{Arguments, Labels, Leaf, Node, Reader, Static, Tree, Visitor};
use crate::{Error, Result, Value};

/// A value of a type that [`register_node!`](crate::register_node) registered, as a tree.
///
/// The wrapper is there because a crate cannot implement [`Tree`] for a type of another crate.
///
/// ```
/// # extern crate tacit_core as tacit;
/// use mlx_rs::Array;
/// use mlx_rs::random::RandomState;
/// use tacit::tree::{self, Foreign, Open};
/// use tacit::{Result, Value, register_node};
///
/// register_node!(
///     RandomState,
///     |state: &RandomState| (vec![state.as_array().into()], ()),
///     |leaves: Vec<Value>, ()| Ok(RandomState::from_key(leaves[0].dense()?)),
/// );
///
/// # fn main() -> Result<()> {
/// let state = Foreign(RandomState::with_seed(7)?);
/// let (leaves, def) = tree::flatten(&state, Open::Closed)?;
/// let again: Foreign<RandomState> = tree::unflatten(&def, leaves)?;
/// assert_eq!(again.as_array().as_slice::<u32>(), state.as_array().as_slice::<u32>());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Foreign<T>(pub T);

impl<T> Deref for Foreign<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Foreign<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Registers a type of another crate, so that [`tree::Foreign`](crate::tree::Foreign) of it is a tree.
///
/// It takes the type, a function that gives the leaves and the static part of a value (anything that is
/// `Clone + Debug + Eq + Hash + 'static`, `()` if there is none), and one that makes a value of these. See
/// [`tree::Foreign`](crate::tree::Foreign) for an example.
#[macro_export]
macro_rules! register_node {
    ($ty:ty, $flatten:expr, $unflatten:expr $(,)?) => {
        const _: () = {
            $crate::__private::inventory::submit! {
                $crate::__private::ForeignNode::new::<$ty>(
                    |value| $crate::__private::flatten_foreign(value, $flatten),
                    |leaves, fixed| $crate::__private::unflatten_foreign(leaves, fixed, $unflatten),
                )
            }
        };
    };
}

type FlattenForeign = fn(&dyn std::any::Any) -> Option<(Vec<Value>, Rc<dyn Static>)>;
type UnflattenForeign = fn(Vec<Value>, &dyn Static) -> Option<Result<Box<dyn std::any::Any>>>;

/// What is registered for a type.
pub struct ForeignNode {
    ty: fn() -> TypeId,
    name: fn() -> &'static str,
    flatten: FlattenForeign,
    unflatten: UnflattenForeign,
}

inventory::collect!(ForeignNode);

impl ForeignNode {
    /// An entry; see [`register_node!`](crate::register_node).
    #[doc(hidden)]
    #[must_use]
    pub const fn new<T: 'static>(flatten: FlattenForeign, unflatten: UnflattenForeign) -> Self {
        Self { ty: TypeId::of::<T>, name: std::any::type_name::<T>, flatten, unflatten }
    }

    fn of<T: 'static>() -> Result<&'static Self> {
        let mut entries = inventory::iter::<Self>.into_iter().filter(|entry| (entry.ty)() == TypeId::of::<T>());
        let name = std::any::type_name::<T>();
        match (entries.next(), entries.next()) {
            (Some(entry), None) => Ok(entry),
            (Some(_), Some(_)) => Err(Error::invalid(
                format!("{name} is registered as a node twice"),
                "keep one `register_node!` of it in the program",
            )),
            (None, _) => Err(Error::invalid(
                format!("{name} is not registered as a node"),
                format!("write `register_node!({name}, flatten, unflatten)` in any module"),
            )),
        }
    }
}

/// The leaves and the static part of a value whose type only the registration knows.
#[doc(hidden)]
pub fn flatten_foreign<T: 'static, S: Static>(
    value: &dyn std::any::Any,
    flatten: impl FnOnce(&T) -> (Vec<Value>, S),
) -> Option<(Vec<Value>, Rc<dyn Static>)> {
    let (leaves, fixed) = flatten(value.downcast_ref()?);
    Some((leaves, fixed.shared()))
}

/// A value whose type only the registration knows.
#[doc(hidden)]
pub fn unflatten_foreign<T: 'static, S: Clone + 'static>(
    leaves: Vec<Value>,
    fixed: &dyn Static,
    unflatten: impl FnOnce(Vec<Value>, S) -> Result<T>,
) -> Option<Result<Box<dyn std::any::Any>>> {
    let fixed = fixed.as_any().downcast_ref::<S>()?.clone();
    Some(unflatten(leaves, fixed).map(|value| Box::new(value) as Box<dyn std::any::Any>))
}

impl<T: 'static> Arguments for Foreign<T> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        let entry = ForeignNode::of::<T>()?;
        let Some((leaves, fixed)) = (entry.flatten)(&self.0) else { return Err(of_another_type(entry)) };
        let labels = Labels::Positions(leaves.len());
        visitor.node(&Node::new((entry.name)(), labels).with_statics(&[("aux", &*fixed)]));
        for leaf in leaves {
            visitor.made(leaf);
        }
        Ok(())
    }
}

impl<T: 'static> Tree for Foreign<T> {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let entry = ForeignNode::of::<T>()?;
        let entered = reader.enter((entry.name)())?;
        let fixed = entered.static_value("aux").ok_or_else(|| of_another_type(entry))?;
        let leaves = (0..entered.len()).map(|_| reader.value()).collect::<Result<_>>()?;
        let made = (entry.unflatten)(leaves, fixed).ok_or_else(|| of_another_type(entry))??;
        made.downcast().map(|value| Self(*value)).map_err(|_| of_another_type(entry))
    }
}

fn of_another_type(entry: &ForeignNode) -> Error {
    Error::invalid(
        format!("the functions registered for {} are of another type", (entry.name)()),
        "let `flatten` take a reference to that type, and `unflatten` what `flatten` gives",
    )
}
