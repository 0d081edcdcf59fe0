//! The trait of implicit arrays.

use std::any::Any;
use std::fmt::{self, Debug};
use std::hash::Hasher;

use dyn_clone::DynClone;
use mlx_rs::Array;
use tacit_bridge::Aval;

use crate::array_type::ArrayType;
use crate::{Error, Primitive, Result, Value};

/// A handler for every primitive, which a type may have as its default.
pub type DefaultHandler = fn(&Primitive, &[&Value]) -> Result<Vec<Value>>;

/// The name of a child: the field's, and `field.0`, `field.1` in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChildName {
    /// The field.
    pub field: &'static str,
    /// The place in the field, if that is a list.
    pub index: Option<usize>,
}

impl ChildName {
    /// The name of a field that holds one child.
    #[must_use]
    pub const fn field(field: &'static str) -> Self {
        Self { field, index: None }
    }
}

impl fmt::Display for ChildName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field)?;
        self.index.map_or(Ok(()), |index| write!(f, ".{index}"))
    }
}

/// A child with its name.
pub type NamedChild = (ChildName, Value);

/// A child where it is held.
#[derive(Clone, Copy, Debug)]
pub enum ChildRef<'a> {
    /// A dense child.
    Dense(&'a Array),
    /// An implicit child.
    Implicit(&'a dyn ImplicitArray),
}

impl From<ChildRef<'_>> for Value {
    fn from(child: ChildRef<'_>) -> Self {
        match child {
            ChildRef::Dense(array) => Self::Dense(array.clone()),
            ChildRef::Implicit(array) => Self::Implicit(dyn_clone::clone_box(array)),
        }
    }
}

/// How to build the dense array of an implicit array: the part that the derive cannot write.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how it is materialized",
    label = "`Materialize` is not implemented",
    note = "add `impl Materialize for {Self}`; a type that must not be built densely returns `Error::refuse` there"
)]
pub trait Materialize {
    /// Whether this is the result of an op that has not run yet, so that building it is that op and no materialization.
    ///
    /// A handler may return such an array where the ops on its result decide how it is computed best: scores that are only
    /// weighted and multiplied need never exist. Handlers are offered every call on it first. Where none takes one it is
    /// computed, once in a trace, and the call is dispatched again; a result of the outermost trace is computed at its end.
    /// No policy is asked of it and nothing is counted, but whatever [`materialize`](Self::materialize) itself materializes is
    /// materialized like everything else.
    const DEFERRED: bool = false;

    /// Builds the next more concrete form, which may itself be implicit.
    ///
    /// Call [`Value::materialize`] or [`materialize`](crate::materialize()) instead: they apply the policy and count. An
    /// array that is a view of another opens that one by [`Value::opened`] here, so that both count once.
    ///
    /// # Errors
    ///
    /// A type that must not be built densely returns [`Error::refuse`].
    fn materialize(&self) -> Result<Value>;

    /// The value that every primitive is applied to in place of this array; `None` where that is the array itself.
    ///
    /// It is asked for at most once in a trace, when the first primitive on the array is dispatched. No policy and no handler is
    /// asked. So a type that is only a recipe for another array, such as a float master that is quantized where it is
    /// used, carries the recipe out once, however many primitives there are, and needs no handlers.
    ///
    /// # Errors
    ///
    /// The recipe fails.
    fn used_as(&self) -> Result<Option<Value>> {
        Ok(None)
    }

    /// Checks that children and static fields belong together.
    ///
    /// Constructors call it, and so does whatever reads an array from storage, where any field may be anything. It must
    /// not panic, and builds nothing. An array that gets other children later, such as gradients, is not checked again.
    ///
    /// # Errors
    ///
    /// A field does not fit the others.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The permission to build a layer, which only this crate can give.
#[derive(Debug)]
pub struct Permit(pub(crate) ());

/// An array that stands for a dense array that does not exist.
///
/// `#[derive(ImplicitArray)]` writes the implementation from the struct's fields: those marked `#[implicit(aux)]` are
/// static, the others are children. What it cannot know is [`Materialize`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an implicit array",
    label = "not an implicit array",
    note = "an implicit array is a struct with `#[derive(ImplicitArray)]`"
)]
#[typetag::serde(tag = "type")]
pub trait ImplicitArray: DynClone + Debug + Send + Any {
    /// The shape and dtype of the array that this stands for.
    ///
    /// # Errors
    ///
    /// The type declares no aval and refuses to be materialized.
    fn aval(&self) -> Result<Aval>;

    /// Builds the next more concrete form without policy or counting, which only this crate may ask for; see
    /// [`materialize`](crate::materialize()) and [`Value::opened`].
    ///
    /// # Errors
    ///
    /// The type refuses.
    #[doc(hidden)]
    fn build(&self, permit: Permit) -> Result<Value>;

    /// The value that primitives are applied to in place of this array: [`Materialize::used_as`].
    ///
    /// # Errors
    ///
    /// It cannot be made.
    #[doc(hidden)]
    fn used_as(&self) -> Result<Option<Value>> {
        Ok(None)
    }

    /// Shows each child in the order of the fields.
    fn visit_children<'a>(&'a self, visit: &mut dyn FnMut(ChildName, ChildRef<'a>));

    /// The children in the order of the fields.
    fn children(&self) -> Vec<NamedChild> {
        let mut children = Vec::new();
        self.visit_children(&mut |name, child| children.push((name, child.into())));
        children
    }

    /// The same array with other children, in the order of [`children`](Self::children).
    ///
    /// # Errors
    ///
    /// The number of children, or the kind of one, does not fit.
    fn with_children(&self, children: Vec<Value>) -> Result<Box<dyn ImplicitArray>>;

    /// Whether `other` is of the same type with equal static fields.
    fn aux_eq(&self, other: &dyn ImplicitArray) -> bool;

    /// Hashes the type and the static fields.
    fn aux_hash(&self, state: &mut dyn Hasher);

    /// The static fields by name, printed.
    fn aux(&self) -> Vec<(&'static str, String)>;

    /// What is known of the type.
    fn array_type(&self) -> &'static ArrayType;

    /// The value as `Any`, for downcasts.
    fn as_any(&self) -> &dyn Any;

    /// The bytes that the children hold.
    fn nbytes(&self) -> usize {
        let mut total = 0;
        self.visit_children(&mut |_, child| {
            total += match child {
                ChildRef::Dense(array) => array.nbytes(),
                ChildRef::Implicit(array) => array.nbytes(),
            };
        });
        total
    }
}

dyn_clone::clone_trait_object!(ImplicitArray);

/// A field type that may hold children of an implicit array.
///
/// A list of lists holds none: its children would have the same names, by which leaves are trained and saved.
///
/// ```compile_fail
/// # extern crate tacit_core as tacit;
/// # use mlx_rs::Array;
/// # use tacit::{ImplicitArray, Materialize, Result, Value};
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = "docs.Grid")]
/// struct Grid {
///     cells: Vec<Vec<Array>>,
/// }
/// # impl Materialize for Grid {
/// #     fn materialize(&self) -> Result<Value> { Ok(self.cells[0][0].clone().into()) }
/// # }
/// # fn main() {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` holds no arrays, so it cannot be a child",
    label = "neither a child nor marked as static",
    note = "mark a static field `#[implicit(aux)]`",
    note = "children are `Array` and `Value`, and `Option` and `Vec` of these"
)]
pub trait ChildField: Sized {
    /// Whether this is a list, which no list holds.
    const IS_LIST: bool = false;

    /// Shows the children in this field.
    fn visit<'a>(&'a self, name: ChildName, visit: &mut dyn FnMut(ChildName, ChildRef<'a>));

    /// Takes as many children as this field has from `children`.
    ///
    /// # Errors
    ///
    /// There are too few, or one is of the wrong kind.
    fn replaced(&self, name: &'static str, children: &mut dyn Iterator<Item = Value>) -> Result<Self>;
}

fn next(name: &str, children: &mut dyn Iterator<Item = Value>) -> Result<Value> {
    children.next().ok_or_else(|| {
        Error::invalid(format!("there is no child for the field {name}"), "give one value for each child")
    })
}

impl ChildField for Value {
    fn visit<'a>(&'a self, name: ChildName, visit: &mut dyn FnMut(ChildName, ChildRef<'a>)) {
        visit(
            name,
            match self {
                Self::Dense(array) => ChildRef::Dense(array),
                Self::Implicit(array) => ChildRef::Implicit(&**array),
            },
        );
    }

    fn replaced(&self, name: &'static str, children: &mut dyn Iterator<Item = Value>) -> Result<Self> {
        next(name, children)
    }
}

impl ChildField for Array {
    fn visit<'a>(&'a self, name: ChildName, visit: &mut dyn FnMut(ChildName, ChildRef<'a>)) {
        visit(name, ChildRef::Dense(self));
    }

    fn replaced(&self, name: &'static str, children: &mut dyn Iterator<Item = Value>) -> Result<Self> {
        match next(name, children)? {
            Value::Dense(array) => Ok(array),
            implicit @ Value::Implicit(_) => Err(Error::invalid(
                format!("the child {name} is dense and was given {implicit}"),
                "declare the field as a `Value` to let it be implicit",
            )),
        }
    }
}

#[diagnostic::do_not_recommend]
impl<T: ChildField> ChildField for Option<T> {
    const IS_LIST: bool = T::IS_LIST;

    fn visit<'a>(&'a self, name: ChildName, visit: &mut dyn FnMut(ChildName, ChildRef<'a>)) {
        if let Some(child) = self {
            child.visit(name, visit);
        }
    }

    fn replaced(&self, name: &'static str, children: &mut dyn Iterator<Item = Value>) -> Result<Self> {
        self.as_ref().map(|child| child.replaced(name, children)).transpose()
    }
}

#[diagnostic::do_not_recommend]
impl<T: ChildField> ChildField for Vec<T> {
    const IS_LIST: bool = true;

    fn visit<'a>(&'a self, name: ChildName, visit: &mut dyn FnMut(ChildName, ChildRef<'a>)) {
        const {
            assert!(
                !T::IS_LIST,
                "a list of children holds no lists, whose children would have one name: write one list"
            );
        };
        for (index, item) in self.iter().enumerate() {
            item.visit(ChildName { index: Some(index), ..name }, visit);
        }
    }

    fn replaced(&self, name: &'static str, children: &mut dyn Iterator<Item = Value>) -> Result<Self> {
        self.iter().map(|item| item.replaced(name, children)).collect()
    }
}
