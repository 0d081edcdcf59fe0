//! `#[handler]`.

mod ast;
mod attr;
mod expand;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, ItemFn, Result};

/// The function and its registration; with a mistake in it, the function and the errors.
pub(crate) fn expand(args: TokenStream, item: &TokenStream) -> TokenStream {
    let function: ItemFn = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let message = format!("a handler is a function with a body: move `#[handler]` to one ({error})");
            let refused = Error::new(error.span(), message).into_compile_error();
            return quote!(#item #refused);
        }
    };
    let registration = registration(args, &function).unwrap_or_else(Error::into_compile_error);
    quote! {
        #function
        #registration
    }
}

fn registration(args: TokenStream, function: &ItemFn) -> Result<TokenStream> {
    let args: attr::Args = syn::parse2(args)?;
    ast::Handler::new(function).map(|handler| expand::expand(&handler, &args))
}
