//! The function that `#[handler]` stands on.

use proc_macro2::TokenStream;
use syn::{
    Error, FnArg, Ident, ItemFn, Result, ReturnType, Signature, Type, TypeParamBound, TypeReference, Visibility,
};

use crate::deprecated::allowed;
use crate::errors::Errors;
use crate::types::plain;

/// A function that can be a handler.
pub(crate) struct Handler<'a> {
    pub(crate) visibility: &'a Visibility,
    pub(crate) ident: &'a Ident,
    pub(crate) primitive: &'a Type,
    pub(crate) operands: Vec<Operand<'a>>,
    pub(crate) output: &'a Type,
    /// The `allow` before code that calls the function, if it is deprecated.
    pub(crate) deprecated: Option<TokenStream>,
}

/// What an operand's parameter says that it may be.
pub(crate) enum Operand<'a> {
    /// A dense array, an implicit type, any implicit array or any value, as the type says.
    Type(&'a Type),
    Family(&'a Type),
    Rest,
    /// No operand: the avals of the results.
    Results,
}

impl<'a> Handler<'a> {
    /// Checks everything and reports all mistakes at once.
    pub(crate) fn new(function: &'a ItemFn) -> Result<Self> {
        let signature = &function.sig;
        let mut errors = Errors::default();
        qualifiers(signature, &mut errors);
        let output = errors.keep(output(signature));
        let mut parameters = signature.inputs.iter();
        let primitive = errors.keep(parameters.next().ok_or_else(|| no_primitive(signature)).and_then(primitive));
        // What the results are comes behind all operands.
        let results = usize::from(parameters.clone().next_back().is_some_and(is_results));
        let (count, rest) = (parameters.len(), parameters.len() - results);
        let operands = parameters
            .enumerate()
            .filter_map(|(i, parameter)| errors.keep(operand(parameter, [i + 1 == count, i + 1 == rest])))
            .collect();
        match (errors.0, primitive, output) {
            (None, Some(primitive), Some(output)) => {
                let (visibility, ident, deprecated) = (&function.vis, &signature.ident, allowed(&function.attrs));
                Ok(Self { visibility, ident, primitive, operands, output, deprecated })
            }
            (error, ..) => Err(error.unwrap_or_else(|| Error::new(signature.ident.span(), "not a handler"))),
        }
    }
}

fn qualifiers(signature: &Signature, errors: &mut Errors) {
    let mut refuse = |span, message| errors.add(Error::new(span, message));
    if let Some(token) = &signature.constness {
        refuse(token.span, "a handler cannot be `const`: remove it");
    }
    if let Some(token) = &signature.asyncness {
        refuse(token.span, "a handler cannot be `async`: it builds a graph, which is evaluated later anyway");
    }
    if let Some(token) = &signature.unsafety {
        refuse(token.span, "a handler cannot be `unsafe`: dispatch calls it with any operands of its signature");
    }
    if let Some(abi) = &signature.abi {
        refuse(abi.extern_token.span, "a handler cannot be `extern`: remove it");
    }
    if !signature.generics.params.is_empty() {
        let message = "a handler cannot be generic, because its signature is its registration: \
                       take a family `&dyn Family`, `&dyn ImplicitArray` or `&Value`";
        errors.add(Error::new_spanned(&signature.generics, message));
    }
}

fn output(signature: &Signature) -> Result<&Type> {
    match &signature.output {
        ReturnType::Type(_, ty) => Ok(ty),
        ReturnType::Default => {
            Err(Error::new(signature.paren_token.span.close(), "a handler returns a result: add `-> Result<Value>`"))
        }
    }
}

fn no_primitive(signature: &Signature) -> Error {
    let message =
        "a handler takes its primitive first: `op: &primitives::Matmul`, or `op: &Primitive` for any primitive";
    Error::new(signature.paren_token.span.join(), message)
}

fn primitive(parameter: &FnArg) -> Result<&Type> {
    let ty = reference(parameter, "the primitive is borrowed")?;
    match ty {
        Type::Path(_) => Ok(ty),
        _ => Err(Error::new_spanned(
            ty,
            "the first parameter is the primitive: `&primitives::Matmul`, or `&Primitive` for any",
        )),
    }
}

fn is_results(parameter: &FnArg) -> bool {
    let Ok(Type::Slice(slice)) = reference(parameter, "") else { return false };
    names(&slice.elem, "Aval")
}

fn operand(parameter: &FnArg, [last, last_operand]: [bool; 2]) -> Result<Operand<'_>> {
    let ty = reference(parameter, "operands are borrowed")?;
    match ty {
        Type::Path(_) => Ok(Operand::Type(ty)),
        Type::TraitObject(object) => match object.bounds.iter().collect::<Vec<_>>()[..] {
            [TypeParamBound::Trait(bound)] if ends_in(&bound.path, "ImplicitArray") => Ok(Operand::Type(ty)),
            [TypeParamBound::Trait(_)] => Ok(Operand::Family(ty)),
            _ => Err(Error::new_spanned(ty, "a family is one trait: write `&dyn Family`")),
        },
        Type::ImplTrait(_) => Err(Error::new_spanned(
            ty,
            "a handler cannot be generic: write `&dyn Family`, or `&dyn ImplicitArray` for any implicit array",
        )),
        Type::Slice(slice) => match &*slice.elem {
            Type::Reference(element) if element.mutability.is_none() && names(&element.elem, "Value") => {
                if last_operand {
                    Ok(Operand::Rest)
                } else {
                    Err(Error::new_spanned(ty, "`&[&Value]` takes the rest of the operands: move it to the end"))
                }
            }
            element if names(element, "Aval") => {
                if last {
                    Ok(Operand::Results)
                } else {
                    Err(Error::new_spanned(ty, "`&[Aval]` is what the results are: move it to the end"))
                }
            }
            element => Err(Error::new_spanned(
                element,
                "the rest of the operands are values of any kind, `&[&Value]`, and the results are `&[Aval]`",
            )),
        },
        _ => Err(Error::new_spanned(ty, OPERANDS)),
    }
}

const OPERANDS: &str = "an operand is `&Array`, an implicit type `&T`, a family `&dyn Family`, `&dyn ImplicitArray` or \
                        `&Value`, and the last may be `&[&Value]` or `&[Aval]`";

/// What a parameter's type borrows.
fn reference<'a>(parameter: &'a FnArg, what: &str) -> Result<&'a Type> {
    let parameter = match parameter {
        FnArg::Receiver(receiver) => {
            let message =
                "a handler is a free function: move it out of the `impl` and take `op: &primitives::Matmul` first";
            return Err(Error::new(receiver.self_token.span, message));
        }
        FnArg::Typed(parameter) => parameter,
    };
    match plain(&parameter.ty) {
        Type::Reference(TypeReference { mutability: Some(token), .. }) => {
            Err(Error::new(token.span, format!("{what} and never changed: write `&` without `mut`")))
        }
        Type::Reference(TypeReference { lifetime: Some(lifetime), .. }) if lifetime.ident != "_" => {
            Err(Error::new(lifetime.span(), format!("{what} for the call: remove the lifetime")))
        }
        Type::Reference(reference) => Ok(plain(&reference.elem)),
        ty => Err(Error::new_spanned(ty, format!("{what}: write `&` before the type"))),
    }
}

fn names(ty: &Type, name: &str) -> bool {
    matches!(plain(ty), Type::Path(ty) if ends_in(&ty.path, name))
}

fn ends_in(path: &syn::Path, name: &str) -> bool {
    path.segments.last().is_some_and(|segment| segment.ident == name && segment.arguments.is_none())
}
