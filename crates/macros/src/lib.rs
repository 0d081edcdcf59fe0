//! `derive(ImplicitArray)` and `#[handler]`.
//!
//! Both are documented and re-exported by the crate whose library name is `tacit`; what they write refers to it by
//! absolute path. Each macro is a folder: `attr` reads its arguments, `ast` reads and checks the item, `expand` writes
//! the output. What the output does is in ordinary functions behind `tacit::__private`.

mod handler;
mod implicit_array;

use proc_macro::TokenStream;
use syn::{DeriveInput, ItemFn, parse_macro_input};

/// Implements `ImplicitArray` for a struct from its fields.
///
/// ```
/// # extern crate tacit_core as tacit;
/// # use mlx_rs::Array;
/// use tacit::{Aval, ImplicitArray, Materialize, Result, Value};
///
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = "docs.Doubled")]
/// struct Doubled {
///     half: Value,
///     #[implicit(aux)]
///     aval: Aval,
/// }
///
/// impl Materialize for Doubled {
///     fn materialize(&self) -> Result<Value> {
///         let half = self.half.dense()?;
///         Ok((&half + &half).into())
///     }
/// }
/// ```
///
/// A field is a child (`Array`, `Value`, and `Option` and `Vec` of these) or static, marked `#[implicit(aux)]`: then its
/// type is `Clone + Debug + Eq + Hash` and goes through serde. A static field named `aval` gives the aval; without one it
/// is inferred from `materialize`. On the struct, `#[implicit(..)]` takes
///
/// - `name = "yourcrate.Type"`, required: the name that the type is saved under;
/// - `default = path`, a `DefaultHandler` for every primitive that has no other handler;
/// - `no_commute`, so that a commutative primitive is not tried with its operands swapped.
#[proc_macro_derive(ImplicitArray, attributes(implicit))]
pub fn derive_implicit_array(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    implicit_array::derive(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Registers a function as the handler of the primitive and the operands in its signature.
///
/// ```
/// # extern crate tacit_core as tacit;
/// # use mlx_rs::Array;
/// use tacit::op::Negative;
/// use tacit::{Aval, ImplicitArray, Materialize, Result, Value, handler};
///
/// # #[derive(ImplicitArray, Clone, Debug)]
/// # #[implicit(name = "docs.Doubled")]
/// # struct Doubled { half: Array }
/// # impl Materialize for Doubled {
/// #     fn materialize(&self) -> Result<Value> { Ok((&self.half + &self.half).into()) }
/// # }
/// #[handler]
/// fn negate_doubled(_op: &Negative, x: &Doubled) -> Result<Value> {
///     Ok(Doubled { half: -&x.half }.into())
/// }
/// ```
///
/// The first parameter is the primitive, a type of `tacit::op`, or `&Primitive` for any primitive. Then come the operands:
///
/// | Parameter | Operand |
/// |---|---|
/// | `&Array` | dense |
/// | `&T` | the implicit type `T` |
/// | `&dyn ImplicitArray` | any implicit type |
/// | `&Value` | anything |
/// | `&[&Value]`, last | the rest of them, whatever they are |
///
/// `#[handler(precedence = 10)]` decides between handlers that match equally well: the higher wins. Beside the function
/// stands a type of the same name that implements `HandlerDef`, for a registry built by hand.
#[proc_macro_attribute]
pub fn handler(args: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    handler::expand(args.into(), &function).into()
}
