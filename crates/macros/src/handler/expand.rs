//! The registration that `#[handler]` writes beside the function.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use super::ast::{Handler, Operand};
use super::attr::Args;

/// The type that stands for the handler, and its entry in the registry.
pub(crate) fn expand(handler: &Handler, args: &Args) -> TokenStream {
    let Handler { visibility, ident, primitive, operands, output, deprecated } = handler;
    let name = Literal::string(&ident.unraw().to_string());
    let line = quote_spanned!(ident.span()=> ::core::line!());
    let precedence = args.precedence();
    let patterns = operands.iter().filter_map(pattern);
    // They do not hide a function of the same name.
    let [call, op] = ["call", "op"].map(|name| Ident::new(name, Span::mixed_site()));
    let arguments = operands.iter().enumerate().map(|(i, operand)| argument(&call, i, operand));
    // At the type that the function returns: what is wrong with the answer is said there.
    let mut answering = (*ident).clone();
    answering.set_span(output.span());
    let results =
        quote_spanned!(output.span()=> ::tacit::__private::HandlerResult::results(#answering(#op, #(#arguments),*)));
    quote! {
        // In the namespace of types, so that it does not clash with the function.
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        #visibility enum #ident {}

        #deprecated
        const _: () = {
            impl ::tacit::__private::HandlerDef for #ident {
                const HANDLER: ::tacit::Handler = ::tacit::Handler {
                    site: ::tacit::Site { name: #name, file: ::core::file!(), line: #line },
                    signature: ::tacit::Signature {
                        primitive: <#primitive as ::tacit::__private::HandlerPrimitive>::PATTERN,
                        operands: &[#(#patterns),*],
                    },
                    precedence: #precedence,
                    call: |#call| {
                        <#primitive as ::tacit::__private::HandlerPrimitive>::with(#call.primitive, |#op| #results)
                    },
                };
            }

            ::tacit::__private::inventory::submit! {
                ::tacit::__private::Registration(<#ident as ::tacit::__private::HandlerDef>::HANDLER)
            }
        };
    }
}

fn pattern(operand: &Operand) -> Option<TokenStream> {
    Some(match operand {
        Operand::Type(ty) => quote!(<#ty as ::tacit::__private::HandlerOperand>::PATTERN),
        Operand::Family(ty) => quote_spanned!(ty.span()=> ::tacit::OperandPattern::family::<#ty>(|member| member)),
        Operand::Rest => quote!(::tacit::OperandPattern::Rest),
        Operand::Results => return None,
    })
}

fn argument(call: &Ident, position: usize, operand: &Operand) -> TokenStream {
    let position = Literal::usize_unsuffixed(position);
    match operand {
        Operand::Type(ty) => quote!(::tacit::__private::operand::<#ty>(#call.operands, #position)?),
        Operand::Family(ty) => quote!(::tacit::__private::family_operand::<#ty>(#call.operands, #position)?),
        Operand::Rest => quote!(::tacit::__private::rest_operands(#call.operands, #position)?),
        Operand::Results => quote!(#call.results.avals()?),
    }
}
