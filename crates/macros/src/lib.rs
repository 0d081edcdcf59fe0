//! `derive(ImplicitArray)`, `derive(Tree)` and `#[handler]`.
//!
//! All are re-exported, with examples, by the crate whose library name is `tacit`; what they write refers to it by
//! absolute path. Each macro is a folder: `attr` reads its arguments, `ast` reads and checks the item, `expand` writes
//! the output. What the output does is in ordinary functions behind `tacit::__private`.

mod deprecated;
mod errors;
mod handler;
mod implicit_array;
mod spans;
mod tree;
mod types;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Each field is a child, or static and marked `#[implicit(aux)]`.
///
/// A child is an `Array`, a `Value`, or an `Option` or a `Vec` of these, but no `Vec` of `Vec`s. The type of a static field is
/// `Clone + Debug + Eq + Hash + Serialize + Deserialize`. No field is named `type`. A static field named `aval` gives the aval;
/// without one it is inferred from `materialize`. `#[implicit(get)]`, beside `aux` or alone, writes a method that gives the
/// field, with its documentation: by reference, but a number or a flag as it is, a `Vec` as a slice, and an `Option` as one of
/// a reference.
/// On the struct, `#[implicit(..)]` takes
///
/// - `name = "yourcrate.Type"`, required: the name that the type is saved under; of a generic type a constant of its
///   parameters, `name = T::NAME` or `name = Self::NAME`;
/// - `family(Packed, ..)`, the families whose handlers the type joins: object-safe traits that it implements;
/// - `materialize = "allow"`, `"warn"` or `"deny"`, the policy for arrays of the type where no guard says one;
/// - `default = path`, a `DefaultHandler` for every primitive that has no other handler;
/// - `no_commute`, so that a commutative primitive is not tried with its operands swapped.
#[proc_macro_derive(ImplicitArray, attributes(implicit))]
pub fn derive_implicit_array(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    implicit_array::derive(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Each field is a tree, or static and marked `#[tree(static)]`.
///
/// It stands on structs and enums. The type of a static field is `Clone + Debug + Eq + Hash + 'static`, whatever the leaf is; it is
/// part of the structure. One type parameter is allowed, the leaf: `Params<Array>` inside a traced function is `Params<Value>`
/// outside. Constant parameters are allowed too, and fields of the type itself.
#[proc_macro_derive(Tree, attributes(tree))]
pub fn derive_tree(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    tree::derive(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// The first parameter is the primitive, and the others are its operands.
///
/// The primitive is a type of `tacit::primitives`, a class of them such as `&primitives::Unary`, `&Applied<K>` for a kernel `K` of your
/// own, or `&Primitive` for any. The operands are
///
/// | Parameter | Operand |
/// |---|---|
/// | `&Array` | dense |
/// | `&T` | the implicit type `T` |
/// | `&dyn Family` | every implicit type that joins this family |
/// | `&dyn ImplicitArray` | any implicit type |
/// | `&Value` | anything |
/// | `&[&Value]`, last | the rest of them, whatever they are |
/// | `&[Aval]`, last | no operand: what the primitive makes, one aval for each result |
///
/// `#[handler(precedence = 10)]` decides between handlers that match equally well: the higher wins. Beside the function
/// stands a type of the same name that implements `HandlerDef`, for a registry built by hand.
#[proc_macro_attribute]
pub fn handler(args: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(args.into(), &item.into()).into()
}
