//! `#[handler]`.

mod ast;
mod attr;
mod expand;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{ItemFn, Result};

/// The function and its registration; with a mistake in it, the function and the errors.
pub(crate) fn expand(args: TokenStream, function: &ItemFn) -> TokenStream {
    let registration = registration(args, function).unwrap_or_else(syn::Error::into_compile_error);
    quote! {
        #function
        #registration
    }
}

fn registration(args: TokenStream, function: &ItemFn) -> Result<TokenStream> {
    let args: attr::Args = syn::parse2(args)?;
    ast::Handler::new(function).map(|handler| expand::expand(&handler, &args))
}
