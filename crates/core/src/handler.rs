//! Handlers: functions for one primitive and one operand signature.

use std::cell::OnceCell;

use mlx_rs::Array;
use tacit_bridge::Aval;
use tacit_bridge::typed::TypedPrimitive;

use crate::array_type::StaticType;
use crate::pattern::{OperandPattern, PrimitivePattern, Signature};
use crate::{Error, ImplicitArray, Primitive, Result, Site, Value};

/// The function behind a handler.
pub type HandlerFn = fn(&Call<'_>) -> Result<Vec<Value>>;

/// A call that a handler is asked to take.
pub struct Call<'a> {
    /// The primitive.
    pub primitive: &'a Primitive,
    /// Its operands, in the order of the handler's signature.
    pub operands: &'a [&'a Value],
    /// What the primitive makes of them.
    pub results: &'a Results<'a>,
}

/// The avals of a call's results, found when they are first asked for.
pub struct Results<'a> {
    find: &'a dyn Fn() -> Result<Vec<Aval>>,
    found: OnceCell<Vec<Aval>>,
}

impl<'a> Results<'a> {
    pub(crate) fn new(find: &'a dyn Fn() -> Result<Vec<Aval>>) -> Self {
        Self { find, found: OnceCell::new() }
    }

    /// The avals, one for each result.
    ///
    /// # Errors
    ///
    /// The primitive cannot work them out.
    pub fn avals(&self) -> Result<&[Aval]> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let found = (self.find)()?;
        Ok(self.found.get_or_init(|| found))
    }
}

/// A function for one primitive and one operand signature.
///
/// `#[handler]` makes one of a function and registers it; [`HandlerDef::HANDLER`] is the same for a registry that is
/// built by hand.
#[derive(Clone, Copy, Debug)]
pub struct Handler {
    /// The name and the place.
    pub site: Site,
    /// What it takes.
    pub signature: Signature,
    /// Decides between handlers that match equally well; the higher wins.
    pub precedence: i32,
    /// The function.
    pub call: HandlerFn,
}

/// A type that stands for a handler: `#[handler]` declares one beside the function, under the same name.
pub trait HandlerDef {
    /// The handler.
    const HANDLER: Handler;
}

/// The entry that `#[handler]` submits; a registry collects them.
pub struct Registration(pub Handler);

inventory::collect!(Registration);

/// A type that may stand behind the `&` of a handler's first parameter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an MLX primitive",
    label = "the first parameter of a handler is its primitive",
    note = "take `&primitives::Matmul` or another type of `tacit::primitives`, a class such as `&primitives::Unary`, or `&Primitive` for any",
    note = "take `&Applied<K>` for a kernel `K` of your own that is a `NamedKernel`"
)]
pub trait HandlerPrimitive: Sized {
    /// The primitives that it stands for.
    const PATTERN: PrimitivePattern;

    /// Calls `f` with the view of `primitive`.
    ///
    /// # Errors
    ///
    /// The parameters are not those of this primitive, or `f` fails.
    fn with<R>(primitive: &Primitive, f: impl FnOnce(&Self) -> Result<R>) -> Result<R>;
}

#[diagnostic::do_not_recommend]
impl<T: TypedPrimitive> HandlerPrimitive for T {
    const PATTERN: PrimitivePattern = PrimitivePattern::Named(T::NAME);

    fn with<R>(primitive: &Primitive, f: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        f(&primitive.view()?)
    }
}

impl HandlerPrimitive for Primitive {
    const PATTERN: PrimitivePattern = PrimitivePattern::Any;

    fn with<R>(primitive: &Primitive, f: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        f(primitive)
    }
}

/// What a handler may return.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not a `Result`",
    note = "return `Result<Value>`, `Result<Array>`, or `Result<Vec<Value>>` for a primitive with several results"
)]
pub trait HandlerResult {
    /// The results as the registry takes them.
    ///
    /// # Errors
    ///
    /// That of the handler.
    fn results(self) -> Result<Vec<Value>>;
}

impl<R: IntoResults, E: HandlerError> HandlerResult for Result<R, E> {
    fn results(self) -> Result<Vec<Value>> {
        self.map(IntoResults::into_results).map_err(HandlerError::into_error)
    }
}

/// What a handler may fail with.
#[diagnostic::on_unimplemented(
    message = "a handler cannot fail with `{Self}`",
    label = "not an error that becomes a `tacit::Error`",
    note = "return `tacit::Result`, or implement `From<{Self}>` for `tacit::Error` if the error is your own"
)]
pub trait HandlerError {
    /// The error.
    fn into_error(self) -> Error;
}

#[diagnostic::do_not_recommend]
impl<E: Into<Error>> HandlerError for E {
    fn into_error(self) -> Error {
        self.into()
    }
}

/// What a handler may return inside its `Result`.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `Result<{Self}>`",
    note = "return `Result<Value>`, `Result<Array>`, or `Result<Vec<Value>>` for a primitive with several results"
)]
pub trait IntoResults {
    /// The results as values.
    fn into_results(self) -> Vec<Value>;
}

impl IntoResults for Value {
    fn into_results(self) -> Vec<Value> {
        vec![self]
    }
}

impl IntoResults for Array {
    fn into_results(self) -> Vec<Value> {
        vec![self.into()]
    }
}

impl IntoResults for Vec<Value> {
    fn into_results(self) -> Vec<Value> {
        self
    }
}

/// A type that may stand behind the `&` of a handler's operand; a family is one by [`OperandPattern::family`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an implicit array",
    label = "not an implicit array",
    note = "an operand is `&Array`, a type with `#[derive(ImplicitArray)]`, a family `&dyn Family`, `&dyn ImplicitArray` \
            or `&Value`"
)]
pub trait HandlerOperand: 'static {
    /// The operands that it stands for.
    const PATTERN: OperandPattern;

    /// The operand, if it is one of them.
    fn from_value(operand: &Value) -> Option<&Self>;
}

impl HandlerOperand for Array {
    const PATTERN: OperandPattern = OperandPattern::Dense;

    fn from_value(operand: &Value) -> Option<&Self> {
        operand.as_dense()
    }
}

impl HandlerOperand for Value {
    const PATTERN: OperandPattern = OperandPattern::Any;

    fn from_value(operand: &Value) -> Option<&Self> {
        Some(operand)
    }
}

impl HandlerOperand for dyn ImplicitArray {
    const PATTERN: OperandPattern = OperandPattern::AnyImplicit;

    fn from_value(operand: &Value) -> Option<&Self> {
        if let Value::Implicit(array) = operand { Some(&**array) } else { None }
    }
}

#[diagnostic::do_not_recommend]
impl<T: StaticType> HandlerOperand for T {
    const PATTERN: OperandPattern = OperandPattern::for_type::<T>();

    fn from_value(operand: &Value) -> Option<&Self> {
        operand.downcast()
    }
}

/// The operand at a position, for expanded handlers.
#[doc(hidden)]
pub fn operand<'a, T: HandlerOperand + ?Sized>(operands: &[&'a Value], position: usize) -> Result<&'a T> {
    operands.get(position).and_then(|operand| T::from_value(operand)).ok_or_else(|| mismatch(position))
}

/// The operand of the family `F` at a position, for expanded handlers.
#[doc(hidden)]
pub fn family_operand<'a, F: ?Sized + 'static>(operands: &[&'a Value], position: usize) -> Result<&'a F> {
    operands.get(position).and_then(|value| value.family()).ok_or_else(|| mismatch(position))
}

fn mismatch(position: usize) -> Error {
    Error::invalid(
        format!("operand {position} does not match the handler's signature"),
        "call handlers through a registry",
    )
}
