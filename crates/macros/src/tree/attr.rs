//! The `#[tree(..)]` attributes.

use syn::meta::ParseNestedMeta;
use syn::{Attribute, Result};

pub(crate) fn is_static(attributes: &[Attribute]) -> Result<bool> {
    let mut fixed = false;
    for_each_meta(attributes, |meta| {
        if !meta.path.is_ident("static") {
            return Err(meta.error("expected `static`: a field is a tree, or static with `#[tree(static)]`"));
        }
        if fixed {
            return Err(meta.error("`static` is there twice: remove one of them"));
        }
        fixed = true;
        Ok(())
    })?;
    Ok(fixed)
}

/// Refuses what stands on the item or on a variant.
pub(crate) fn refuse(attributes: &[Attribute]) -> Result<()> {
    for_each_meta(attributes, |meta| {
        let message = if meta.path.is_ident("static") {
            "`static` marks a field: move it to the field"
        } else {
            "only a field has an argument: `#[tree(static)]`"
        };
        Err(meta.error(message))
    })
}

fn for_each_meta(attributes: &[Attribute], mut read: impl FnMut(ParseNestedMeta) -> Result<()>) -> Result<()> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("tree"))
        .try_for_each(|attribute| attribute.parse_nested_meta(&mut read))
}
