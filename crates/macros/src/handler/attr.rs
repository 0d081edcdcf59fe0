//! The arguments of `#[handler(..)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Ident, LitInt, Result, Token};

#[derive(Default)]
pub(crate) struct Args {
    precedence: Option<Integer>,
}

struct Integer(Option<Token![-]>, LitInt);

impl Args {
    /// The precedence as an expression.
    pub(crate) fn precedence(&self) -> TokenStream {
        self.precedence.as_ref().map_or_else(|| quote!(0), |Integer(minus, value)| quote!(#minus #value))
    }
}

impl Parse for Args {
    fn parse(input: ParseStream) -> Result<Self> {
        let mut args = Self::default();
        while !input.is_empty() {
            let name: Ident = input.parse().map_err(|error| Error::new(error.span(), EXPECTED))?;
            if name != "precedence" {
                return Err(Error::new(name.span(), EXPECTED));
            }
            let precedence = integer(input).map_err(|error| Error::new(error.span(), EXPECTED))?;
            if args.precedence.replace(precedence).is_some() {
                return Err(Error::new(name.span(), "two precedences: keep one of them"));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(args)
    }
}

const EXPECTED: &str = "expected an integer precedence: `#[handler(precedence = 10)]`, or nothing: `#[handler]`";

fn integer(input: ParseStream) -> Result<Integer> {
    input.parse::<Token![=]>()?;
    let minus = input.parse()?;
    let value: LitInt = input.parse()?;
    value.base10_parse::<i32>()?;
    Ok(Integer(minus, value))
}
