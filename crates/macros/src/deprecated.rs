//! Deprecated items: the output of a macro uses the item, and must not warn its author of that.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, Data, DeriveInput};

/// The `allow` before code that uses an item with these attributes, if one of them deprecates it.
pub(crate) fn allowed<'a>(attributes: impl IntoIterator<Item = &'a Attribute>) -> Option<TokenStream> {
    let mut attributes = attributes.into_iter();
    attributes.any(|attribute| attribute.path().is_ident("deprecated")).then(|| quote!(#[allow(deprecated)]))
}

/// As [`allowed`], of a type, its variants and its fields.
pub(crate) fn allowed_of(input: &DeriveInput) -> Option<TokenStream> {
    let parts: Vec<&Attribute> = match &input.data {
        Data::Struct(data) => data.fields.iter().flat_map(|field| &field.attrs).collect(),
        Data::Enum(data) => {
            let fields = data.variants.iter().flat_map(|variant| &variant.fields).flat_map(|field| &field.attrs);
            data.variants.iter().flat_map(|variant| &variant.attrs).chain(fields).collect()
        }
        Data::Union(_) => Vec::new(),
    };
    allowed(input.attrs.iter().chain(parts))
}
