//! `derive(Tree)`.

mod ast;
mod attr;
mod expand;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use syn::{DeriveInput, Result};

/// The implementation for a struct or an enum, or what is wrong with it.
pub(crate) fn derive(input: &DeriveInput) -> Result<TokenStream> {
    ast::Input::new(input).map(|input| expand::expand(&input))
}
