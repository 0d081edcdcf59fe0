//! The struct that the derive stands on.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Ident, LitStr, Path, Result, Type};

use super::attr::{self, StructAttr};
use crate::errors::Errors;

/// A struct that can be an implicit array.
pub(crate) struct Input<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) name: LitStr,
    pub(crate) default: Option<Path>,
    pub(crate) families: Vec<Path>,
    pub(crate) commutes: bool,
    pub(crate) fields: Vec<Field<'a>>,
}

/// A named field.
pub(crate) struct Field<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) ty: &'a Type,
    pub(crate) aux: bool,
}

impl<'a> Input<'a> {
    /// Checks everything and reports all mistakes at once.
    pub(crate) fn new(input: &'a DeriveInput) -> Result<Self> {
        let named = named_fields(input)?;
        let mut errors = Errors::default();
        if !input.generics.params.is_empty() {
            let message = "an implicit array cannot be generic, because it is saved under one name: \
                           write the struct for each type that it is used with";
            errors.add(Error::new_spanned(&input.generics, message));
        }
        let attr = errors.keep(StructAttr::new(&input.attrs)).unwrap_or_default();
        let fields = named
            .filter_map(|(ident, field)| {
                let aux = errors.keep(attr::is_aux(&field.attrs))?;
                Some(Field { ident, ty: &field.ty, aux })
            })
            .collect();
        let ident = &input.ident;
        let name = attr.name.unwrap_or_else(|| {
            if errors.0.is_none() {
                let message =
                    format!("`{ident}` has no name to be saved under: add `#[implicit(name = \"yourcrate.{ident}\")]`");
                errors.add(Error::new(ident.span(), message));
            }
            LitStr::new("", Span::call_site())
        });
        let read =
            Self { ident, name, default: attr.default, families: attr.families, commutes: !attr.no_commute, fields };
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
