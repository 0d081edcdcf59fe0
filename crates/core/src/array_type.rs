//! The description of an implicit type, without a value of it: its names, its families, how it is dispatched.

use std::any::{Any, TypeId, type_name};
use std::hash::{Hash, Hasher};

use serde::de::DeserializeOwned;

use crate::{DefaultHandler, ImplicitArray, Policy};

/// What is known of an implicit type without a value of it; `derive(ImplicitArray)` makes one.
#[derive(Debug)]
pub struct ArrayType {
    /// The type itself.
    pub id: TypeId,
    /// The name that it is saved under, `tacit.Nf4`.
    pub saved_as: &'static str,
    /// Its name in Rust.
    pub name: fn() -> &'static str,
    /// The families whose handlers it joins.
    pub families: &'static [Membership],
    /// The handler for every primitive that has no other, if it has one.
    pub default: Option<DefaultHandler>,
    /// Whether a commutative primitive may be tried with its operands swapped.
    pub commutes: bool,
    /// What happens when it is to be materialized, where no [guard](crate::Policy::scope) says it.
    pub policy: Option<Policy>,
    /// Whether it is the result of an op that has not run yet: see [`Materialize::DEFERRED`](crate::Materialize::DEFERRED).
    pub deferred: bool,
}

impl ArrayType {
    /// Whether the type joins the family `F`, such as `dyn Packed`.
    #[must_use]
    pub fn joins<F: ?Sized + 'static>(&self) -> bool {
        self.is_of(TypeId::of::<F>())
    }

    pub(crate) fn is_of(&self, family: TypeId) -> bool {
        self.families.iter().any(|membership| membership.family == family)
    }
}

impl PartialEq for ArrayType {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for ArrayType {}

impl Hash for ArrayType {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// An implicit type with what is known of it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an implicit array",
    label = "not an implicit array",
    note = "an implicit array is a struct with `#[derive(ImplicitArray)]`"
)]
pub trait StaticType: ImplicitArray {
    /// What is known of the type.
    const TYPE: &'static ArrayType;
}

/// How an array is seen as a member of the family `F`.
pub type FamilyCast<F> = fn(&dyn Any) -> Option<&F>;

/// That a type joins a family.
#[derive(Clone, Copy)]
pub struct Membership {
    family: TypeId,
    name: fn() -> &'static str,
    /// A [`FamilyCast`] to the family.
    cast: &'static (dyn Any + Send + Sync),
}

impl Membership {
    /// The membership in the family `F`, such as `dyn Packed`.
    #[must_use]
    pub const fn new<F: ?Sized + 'static>(cast: &'static FamilyCast<F>) -> Self {
        Self { family: TypeId::of::<F>(), name: type_name::<F>, cast }
    }

    /// The family's name in Rust.
    #[must_use]
    pub fn name(&self) -> &'static str {
        last_segment((self.name)())
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of a type without the modules before it.
pub(crate) fn last_segment(path: &str) -> &str {
    let plain = path.split('<').next().unwrap_or(path);
    plain.rsplit("::").next().map_or(path, |last| &path[plain.len() - last.len()..])
}

impl dyn ImplicitArray {
    /// The array as a member of the family `F`, such as `dyn Packed`, if its type joins it.
    #[must_use]
    pub fn family<F: ?Sized + 'static>(&self) -> Option<&F> {
        let membership = self.array_type().families.iter().find(|membership| membership.family == TypeId::of::<F>())?;
        membership.cast.downcast_ref::<FamilyCast<F>>()?(self.as_any())
    }
}

/// The entry that the derive submits.
pub struct TypeEntry(pub &'static ArrayType);

inventory::collect!(TypeEntry);

/// How an array is read once its type is known, as typetag keeps it.
pub type Load = fn(&mut dyn erased_serde::Deserializer<'_>) -> Loaded;

type Loaded = Result<Box<dyn ImplicitArray + Send>, erased_serde::Error>;

/// The [`Load`] of `T`.
///
/// # Errors
///
/// The input is not of this type.
pub fn load<T: ImplicitArray + DeserializeOwned>(deserializer: &mut dyn erased_serde::Deserializer<'_>) -> Loaded {
    Ok(Box::new(erased_serde::deserialize::<T>(deserializer)?))
}

/// Registers a generic implicit array with the parameters that it is used with, so that it is saved and listed.
///
/// `derive(ImplicitArray)` registers a type that is not generic by itself. One that is takes its name from its parameters:
///
/// ```
/// # extern crate tacit_core as tacit;
/// use std::marker::PhantomData;
///
/// use mlx_rs::Array;
/// use tacit::{ImplicitArray, Materialize, Result, Value, register_array};
///
/// trait Unit: Clone + std::fmt::Debug + Send + 'static {
///     const NAME: &'static str;
///     const FACTOR: f32;
/// }
///
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = U::NAME)]
/// struct Many<U: Unit> {
///     count: Array,
///     #[implicit(aux)]
///     unit: PhantomData<U>,
/// }
///
/// impl<U: Unit> Materialize for Many<U> {
///     fn materialize(&self) -> Result<Value> {
///         Ok(self.count.multiply(Array::from_f32(U::FACTOR))?.into())
///     }
/// }
///
/// #[derive(Clone, Debug)]
/// struct Dozen;
///
/// impl Unit for Dozen {
///     const NAME: &'static str = "docs.Dozens";
///     const FACTOR: f32 = 12.0;
/// }
///
/// register_array!(Many<Dozen>);
/// # fn main() {
/// assert!(tacit::array_types().iter().any(|ty| ty.saved_as == "docs.Dozens"));
/// # }
/// ```
#[macro_export]
macro_rules! register_array {
    ($($array:ty),+ $(,)?) => {$(
        const _: () = {
            $crate::__private::inventory::submit! {
                $crate::__private::TypeEntry(<$array as $crate::StaticType>::TYPE)
            }
            $crate::__private::inventory::submit! {
                <dyn $crate::ImplicitArray>::typetag_register(
                    <$array as $crate::StaticType>::TYPE.saved_as,
                    $crate::__private::load::<$array> as $crate::__private::Load,
                )
            }
        };
    )+};
}

/// How many types of this program are registered under a name; one that is registered twice counts twice.
pub(crate) fn count_saved_as(name: &str) -> usize {
    inventory::iter::<TypeEntry>().filter(|entry| entry.0.saved_as == name).count()
}

/// Every implicit type of this program, by the name that it is saved under.
#[must_use]
pub fn array_types() -> Vec<&'static ArrayType> {
    let mut types: Vec<_> = inventory::iter::<TypeEntry>().map(|entry| entry.0).collect();
    types.sort_by_key(|ty| (ty.saved_as, (ty.name)()));
    types
}
