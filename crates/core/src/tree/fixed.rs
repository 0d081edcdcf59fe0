//! Numbers and strings that are static leaves.

use std::fmt::{self, Debug};

use super::reader::mismatch;
use super::{Arguments, Labels, Leaf, Node, NodeKind, Reader, StaticField, Tree, Visitor};
use crate::Result;

/// A number, a truth value, a character or a string in a tuple, a list or a map: part of the structure and no array.
///
/// A compiled function is traced anew for another one. A float is compared by its bits. In a struct a static field is
/// `#[tree(static)]` instead.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::tree::{self, Static};
///
/// let layer = |rate: f32| (Array::from_f32(1.0), vec![Static(4), Static(8)], Static("relu"), Static(rate));
/// let def = tree::structure(&layer(0.5))?;
/// assert_eq!(def.to_string(), r#"(*, [4, 8], "relu", 0.5)"#);
/// let other = tree::structure(&layer(0.25))?;
/// assert_eq!(def.difference(&other).expect("the rate").to_string(), "static value 0.5 -> 0.25 at `3`");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Static<T>(pub T);

/// What may stand in a [`Static`]: integers, floats, `bool`, `char`, `String`, `&'static str`, and any type that gives what
/// it is compared by.
pub trait StaticLeaf: Sized {
    /// What it is compared, hashed and printed by.
    type Key: StaticField + Clone;

    /// What this value is compared by.
    fn key(&self) -> Self::Key;

    /// The value of a key.
    fn from_key(key: Self::Key) -> Self;
}

macro_rules! compared_as_they_are {
    ($($ty:ty),*) => {$(
        impl StaticLeaf for $ty {
            type Key = Self;

            fn key(&self) -> Self {
                self.clone()
            }

            fn from_key(key: Self) -> Self {
                key
            }
        }
    )*};
}

compared_as_they_are!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, bool, char, String, &'static str);

macro_rules! compared_by_bits {
    ($($ty:ident $bits:ident $name:ident),*) => {$(
        /// A float by its bits, which prints as the float.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name($bits);

        impl Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $ty::from_bits(self.0).fmt(f)
            }
        }

        impl StaticLeaf for $ty {
            type Key = $name;

            fn key(&self) -> $name {
                $name(self.to_bits())
            }

            fn from_key(key: $name) -> Self {
                Self::from_bits(key.0)
            }
        }
    )*};
}

compared_by_bits!(f32 u32 Bits32, f64 u64 Bits64);

impl<T: StaticLeaf> Arguments for Static<T> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        visitor.node(&Node::new(NodeKind::Static, Labels::Positions(0)).with_statics(&[("value", &self.0.key())]));
        Ok(())
    }
}

impl<T: StaticLeaf> Tree for Static<T> {
    type With<L: Leaf> = Self;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let entered = reader.enter(NodeKind::Static)?;
        let found = entered.static_value("value");
        match found.and_then(|value| value.as_any().downcast_ref::<T::Key>()) {
            Some(key) => Ok(Self(T::from_key(key.clone()))),
            None => Err(mismatch(
                &format!("a static {}", std::any::type_name::<T>()),
                &found.map_or_else(|| "nothing".to_owned(), |value| format!("the static {value:?}")),
            )),
        }
    }
}
