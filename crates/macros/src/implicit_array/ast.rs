//! The struct that the derive stands on.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Fields, Generics, Ident, LitStr, Path, Result, Type};

use super::attr::{FieldAttr, Name, StructAttr};
use crate::deprecated::allowed_of;
use crate::errors::{Errors, borrows};

/// A struct that can be an implicit array.
pub(crate) struct Input<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) generics: &'a Generics,
    pub(crate) name: Name,
    pub(crate) default: Option<Path>,
    pub(crate) families: Vec<Path>,
    pub(crate) commutes: bool,
    pub(crate) policy: Option<Ident>,
    pub(crate) fields: Vec<Field<'a>>,
    /// The `allow` before code that uses the struct, if it is deprecated.
    pub(crate) deprecated: Option<TokenStream>,
}

pub(crate) struct Field<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) ty: &'a Type,
    pub(crate) aux: bool,
    pub(crate) get: bool,
    pub(crate) docs: Vec<&'a Attribute>,
}

impl<'a> Input<'a> {
    /// Checks everything and reports all mistakes at once.
    pub(crate) fn new(input: &'a DeriveInput) -> Result<Self> {
        let named = named_fields(input)?;
        let mut errors = Errors::default();
        let attr = errors.keep(StructAttr::new(&input.attrs)).unwrap_or_default();
        let fields = named
            .filter_map(|(ident, field)| {
                if ident.unraw() == "type" {
                    let message =
                        "what type an array has is saved as `type`, beside its fields: give this one another name";
                    errors.add(Error::new(ident.span(), message));
                }
                let FieldAttr { aux, get } = errors.keep(FieldAttr::new(&field.attrs))?;
                let docs = field.attrs.iter().filter(|attribute| attribute.path().is_ident("doc")).collect();
                Some(Field { ident, ty: &field.ty, aux, get, docs })
            })
            .collect();
        let (ident, generics) = (&input.ident, &input.generics);
        generics.lifetimes().for_each(|lifetime| errors.add(borrows("an implicit array", lifetime)));
        let generic = generics.params.len() > generics.lifetimes().count();
        let name = attr.name.unwrap_or_else(|| {
            if errors.0.is_none() {
                let message =
                    format!("`{ident}` has no name to be saved under: add `#[implicit(name = \"yourcrate.{ident}\")]`");
                errors.add(Error::new(ident.span(), message));
            }
            Name::Literal(LitStr::new("", Span::call_site()))
        });
        match &name {
            Name::Literal(name) if generic => {
                let message = "a generic array is saved under a name of its parameters: give a constant of theirs, \
                               `name = T::NAME`, and register each type that it is used with";
                errors.add(Error::new(name.span(), message));
            }
            Name::Constant(name) if !generic => {
                errors.add(Error::new_spanned(name, "expected a string literal: `name = \"yourcrate.Type\"`"));
            }
            _ => {}
        }
        let (default, families, commutes, policy) = (attr.default, attr.families, !attr.no_commute, attr.policy);
        let deprecated = allowed_of(input);
        let read = Self { ident, generics, name, default, families, commutes, policy, fields, deprecated };
        errors.0.map_or(Ok(read), Err)
    }

    pub(crate) fn children(&self) -> impl Iterator<Item = &Field<'a>> {
        self.fields.iter().filter(|field| !field.aux)
    }

    pub(crate) fn statics(&self) -> impl Iterator<Item = &Field<'a>> {
        self.fields.iter().filter(|field| field.aux)
    }
}

fn named_fields(input: &DeriveInput) -> Result<impl Iterator<Item = (&Ident, &syn::Field)>> {
    let (span, message) = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => {
                return Ok(fields.named.iter().filter_map(|field| Some((field.ident.as_ref()?, field))));
            }
            Fields::Unnamed(fields) => (
                fields.span(),
                "an implicit array has named fields, because its children are saved by name: write `{ weight: Array }`",
            ),
            Fields::Unit => (input.ident.span(), "an implicit array has named fields: write `struct Name { .. }`"),
        },
        Data::Enum(data) => (
            data.enum_token.span,
            "an implicit array is a struct: write one for each variant, or keep the enum in an `#[implicit(aux)]` field",
        ),
        Data::Union(data) => (data.union_token.span, "an implicit array is a struct with named fields"),
    };
    Err(Error::new(span, message))
}
