//! The struct or enum that the derive stands on.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Data, DeriveInput, Error, Fields, GenericParam, Generics, Ident, Index, Member, Result, Type};

use super::attr;
use crate::deprecated::allowed_of;
use crate::errors::{Errors, borrows};

/// A type that can be a tree.
pub(crate) struct Input<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) generics: &'a Generics,
    /// The type parameter.
    pub(crate) leaf: Option<&'a Ident>,
    pub(crate) shape: Shape<'a>,
    /// The `allow` before code that uses the type, if it is deprecated.
    pub(crate) deprecated: Option<TokenStream>,
}

/// What kind of item it is.
pub(crate) enum Shape<'a> {
    Struct(Variant<'a>),
    Enum(Vec<Variant<'a>>),
}

/// The fields of a struct, or a variant of an enum with its name.
pub(crate) struct Variant<'a> {
    pub(crate) ident: Option<&'a Ident>,
    pub(crate) named: bool,
    pub(crate) fields: Vec<Field<'a>>,
}

pub(crate) struct Field<'a> {
    pub(crate) member: Member,
    pub(crate) ty: &'a Type,
    pub(crate) fixed: bool,
    /// Whether its type is another one where the leaf is.
    pub(crate) of_leaf: bool,
}

impl<'a> Input<'a> {
    /// Checks everything and reports all mistakes at once.
    pub(crate) fn new(input: &'a DeriveInput) -> Result<Self> {
        let mut errors = Errors::default();
        errors.keep(attr::refuse(&input.attrs));
        let leaf = leaf(&input.generics, &mut errors);
        let shape = match &input.data {
            Data::Struct(data) => Shape::Struct(Variant::new(None, &data.fields, leaf, &mut errors)),
            Data::Enum(data) => {
                if data.variants.is_empty() {
                    let message = "an enum without variants has no value to take apart: add a variant";
                    errors.add(Error::new(input.ident.span(), message));
                }
                let variants = data.variants.iter().map(|variant| {
                    errors.keep(attr::refuse(&variant.attrs));
                    Variant::new(Some(&variant.ident), &variant.fields, leaf, &mut errors)
                });
                Shape::Enum(variants.collect())
            }
            Data::Union(data) => {
                let message = "a tree must know which of its fields is there: write an enum";
                return Err(Error::new(data.union_token.span, message));
            }
        };
        let (ident, generics, deprecated) = (&input.ident, &input.generics, allowed_of(input));
        let read = Self { ident, generics, leaf, shape, deprecated };
        errors.0.map_or(Ok(read), Err)
    }
}

impl<'a> Variant<'a> {
    fn new(ident: Option<&'a Ident>, fields: &'a Fields, leaf: Option<&Ident>, errors: &mut Errors) -> Self {
        let named = matches!(fields, Fields::Named(_));
        let fields = fields.iter().enumerate().filter_map(|(place, field)| {
            let member = field.ident.clone().map_or_else(|| Member::Unnamed(Index::from(place)), Member::Named);
            let fixed = errors.keep(attr::is_static(&field.attrs))?;
            let leaf = leaf.filter(|leaf| mentions(field.ty.to_token_stream(), leaf));
            if let (true, Some(leaf)) = (fixed, leaf) {
                let message =
                    format!("a static field is the same whatever `{leaf}` is: write its type without `{leaf}`");
                errors.add(Error::new_spanned(&field.ty, message));
            }
            Some(Field { member, ty: &field.ty, fixed, of_leaf: leaf.is_some() })
        });
        Self { ident, named, fields: fields.collect() }
    }

    pub(crate) fn children(&self) -> impl Iterator<Item = &Field<'a>> {
        self.fields.iter().filter(|field| !field.fixed)
    }

    pub(crate) fn statics(&self) -> impl Iterator<Item = &Field<'a>> {
        self.fields.iter().filter(|field| field.fixed)
    }

    /// Whether each child is called by its place among the children.
    pub(crate) fn positional(&self) -> bool {
        let in_place = |(place, field): (usize, &Field)| matches!(&field.member, Member::Unnamed(index) if usize::try_from(index.index) == Ok(place));
        !self.named && self.children().enumerate().all(in_place)
    }
}

/// Whether a type has the leaf in it, by its name or in `Self`.
fn mentions(tokens: TokenStream, leaf: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *leaf || ident == "Self",
        TokenTree::Group(group) => mentions(group.stream(), leaf),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// The type parameter, if there is one and nothing else that a tree cannot have.
fn leaf<'a>(generics: &'a Generics, errors: &mut Errors) -> Option<&'a Ident> {
    let mut leaf = None;
    for parameter in &generics.params {
        match parameter {
            GenericParam::Lifetime(lifetime) => errors.add(borrows("a tree", lifetime)),
            GenericParam::Type(ty) if leaf.is_some() => {
                let message = format!(
                    "a tree has one type parameter, its leaf: write the type that `{}` stands for into the field",
                    ty.ident
                );
                errors.add(Error::new(ty.ident.span(), message));
            }
            GenericParam::Type(ty) => leaf = Some(&ty.ident),
            GenericParam::Const(_) => {}
        }
    }
    leaf
}
