//! The implementation that the derive writes.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::{GenericParam, Generics, Member, TypeParamBound, parse_quote};

use super::ast::{Field, Input, Shape, Variant};
use crate::spans::at;

/// The `Tree` and `Arguments` of a struct or an enum.
pub(crate) fn expand(input: &Input) -> TokenStream {
    let Input { ident, deprecated, .. } = input;
    let leaves = bounded(input, &parse_quote!(::tacit::tree::Leaf));
    let (parameters, arguments, bounds) = leaves.split_for_impl();
    let arrays_impl = bounded(input, &parse_quote!(::tacit::tree::Arguments<Arrays = ::tacit::__private::Array>));
    let (arrays_impl, ..) = arrays_impl.split_for_impl();
    let arrays = input.leaf.map_or_else(|| quote!(Self), |_| of_leaf(input, &quote!(::tacit::__private::Array)));
    let other = other_leaf(input);
    let with = input.leaf.map_or_else(|| quote!(#other::Fixed<Self>), |_| of_leaf(input, &other));
    let (flatten, unflatten, assign) = match &input.shape {
        Shape::Struct(fields) => of_struct(input, fields),
        Shape::Enum(variants) => of_enum(input, variants),
    };
    quote! {
        #[automatically_derived]
        #deprecated
        impl #parameters ::tacit::Tree for #ident #arguments #bounds {
            type With<#other: ::tacit::tree::Leaf> = #with;

            fn unflatten(reader: &mut ::tacit::tree::Reader<'_>) -> ::tacit::Result<Self> {
                #unflatten
            }

            fn assign(&mut self, reader: &mut ::tacit::tree::Reader<'_>) -> ::tacit::Result<()> {
                #assign
                ::tacit::Result::Ok(())
            }
        }

        #[automatically_derived]
        #deprecated
        impl #arrays_impl ::tacit::tree::Arguments for #ident #arguments #bounds {
            type Arrays = #arrays;

            fn flatten<'a>(&'a self, visitor: &mut dyn ::tacit::tree::Visitor<'a>) -> ::tacit::Result<()> {
                #flatten
                ::tacit::Result::Ok(())
            }
        }
    }
}

/// A name for another leaf, which neither the item nor one of its parameters has.
fn other_leaf(input: &Input) -> Ident {
    let is_taken = |name: &Ident| {
        let parameters = input.generics.params.iter().map(|parameter| match parameter {
            GenericParam::Const(constant) => &constant.ident,
            GenericParam::Type(leaf) => &leaf.ident,
            GenericParam::Lifetime(lifetime) => &lifetime.lifetime.ident,
        });
        std::iter::once(input.ident).chain(parameters).any(|known| known.unraw() == *name)
    };
    let mut other = input.leaf.map_or_else(|| format_ident!("Other"), |leaf| format_ident!("Other{}", leaf.unraw()));
    while is_taken(&other) {
        other = format_ident!("Other{other}");
    }
    other
}

/// The item's generics with a bound on its leaf.
fn bounded(input: &Input, bound: &TypeParamBound) -> Generics {
    let mut generics = input.generics.clone();
    generics.type_params_mut().for_each(|leaf| leaf.bounds.push(bound.clone()));
    generics
}

/// The type with `other` as its leaf.
fn of_leaf(input: &Input, other: &impl ToTokens) -> TokenStream {
    let ident = input.ident;
    let arguments = input.generics.params.iter().map(|parameter| match parameter {
        GenericParam::Const(constant) => constant.ident.to_token_stream(),
        GenericParam::Type(_) | GenericParam::Lifetime(_) => other.to_token_stream(),
    });
    quote!(#ident<#(#arguments),*>)
}

fn of_struct(input: &Input, fields: &Variant) -> (TokenStream, TokenStream, TokenStream) {
    let name = node_name(&input.ident.unraw().to_string());
    let place = |field: &Field| {
        let member = &field.member;
        quote!(self.#member)
    };
    let node = node(&name, fields, |field| {
        let access = place(field);
        at_type(field, &quote!(&#access))
    });
    let flatten = flattened(fields, |field| {
        let access = place(field);
        quote!(&#access)
    });
    let enter = enter(&name, fields);
    let value = constructed(&quote!(Self), fields);
    let assign = assigned(
        fields,
        |field| {
            let access = place(field);
            quote!(&mut #access)
        },
        place,
    );
    (quote!(#node #flatten), quote!(#enter ::tacit::Result::Ok(#value)), quote!(#enter #assign))
}

fn of_enum(input: &Input, variants: &[Variant]) -> (TokenStream, TokenStream, TokenStream) {
    let cases: Vec<Case> = variants.iter().map(|variant| Case::new(input.ident, variant)).collect();
    let names = cases.iter().map(|case| &case.name);
    let flatten = cases.iter().map(|case| {
        let pattern = &case.pattern;
        let node = node(&case.name, case.variant, |field| at_type(field, &bound(field)));
        let flatten = flattened(case.variant, |field| bound(field).into_token_stream());
        quote!(#pattern => { #node #flatten })
    });
    let last = cases.len().saturating_sub(1);
    let unflatten = cases.iter().enumerate().map(|(place, case)| {
        // A reader enters no other node than one of the names.
        let which = if place == last { quote!(_) } else { Literal::usize_unsuffixed(place).into_token_stream() };
        let (count, path) = (case.variant.children().count(), &case.path);
        let value = constructed(path, case.variant);
        let entered = if case.variant.statics().next().is_some() {
            quote!(let entered = entered.of_len(#count)?;)
        } else {
            quote!(entered.of_len(#count)?;)
        };
        quote!((#which, entered) => { #entered ::tacit::Result::Ok(#value) })
    });
    let assign = cases.iter().map(|case| {
        let Case { name, pattern, variant, .. } = case;
        let enter = enter(name, variant);
        let assign = assigned(
            variant,
            |field| bound(field).into_token_stream(),
            |field| {
                let access = bound(field);
                quote!(*#access)
            },
        );
        quote!(#pattern if reader.is_at(#name) => { #enter #assign })
    });
    (
        quote!(match self { #(#flatten)* }),
        quote!(match reader.enter_any(&[#(#names),*])? { #(#unflatten)* }),
        quote!(match self { #(#assign)* _ => *self = Self::unflatten(reader)?, }),
    )
}

/// A variant with what is written for it more than once.
struct Case<'a> {
    variant: &'a Variant<'a>,
    name: TokenStream,
    path: TokenStream,
    pattern: TokenStream,
}

impl<'a> Case<'a> {
    fn new(item: &Ident, variant: &'a Variant<'a>) -> Self {
        let ident = variant.ident;
        let variant_name = ident.map(IdentExt::unraw).map(|name| name.to_string()).unwrap_or_default();
        let fields = variant.fields.iter().map(|field| {
            let (member, bound) = (&field.member, bound(field));
            quote!(#member: #bound)
        });
        Self {
            variant,
            name: node_name(&format!("{}::{variant_name}", item.unraw())),
            path: quote!(Self::#ident),
            pattern: quote!(Self::#ident { #(#fields),* }),
        }
    }
}

/// What a pattern calls a field: never like the parameters of the function it stands in.
fn bound(field: &Field) -> Ident {
    format_ident!("its_{}", label_text(field))
}

/// The name without type arguments: a structure is read with other leaves than it was taken from.
fn node_name(name: &str) -> TokenStream {
    let name = format!("::{name}");
    quote!(::core::concat!(::core::module_path!(), #name))
}

fn node(name: &TokenStream, fields: &Variant, value: impl Fn(&Field) -> TokenStream) -> TokenStream {
    let labels = if fields.positional() {
        let count = fields.children().count();
        quote!(::tacit::tree::Labels::Positions(#count))
    } else {
        let labels = fields.children().map(label);
        quote!(::tacit::tree::Labels::Fields(&[#(#labels),*]))
    };
    let statics: Vec<TokenStream> = fields
        .statics()
        .map(|field| {
            let (name, value) = (label(field), value(field));
            quote!((#name, #value))
        })
        .collect();
    let node = quote!(::tacit::tree::Node::new(#name, #labels));
    if statics.is_empty() {
        quote!(visitor.node(&#node);)
    } else {
        quote!(visitor.node(&#node.with_statics(&[#(#statics),*]));)
    }
}

/// The tokens where the field's type stands, so that an error about the type is shown there.
fn at_type(field: &Field, tokens: &impl ToTokens) -> TokenStream {
    let span = at(field.ty);
    let placed = tokens.to_token_stream().into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    placed.collect()
}

fn flattened(fields: &Variant, value: impl Fn(&Field) -> TokenStream) -> TokenStream {
    let calls = fields.children().map(|field| {
        let (ty, value) = (field.ty, value(field));
        if field.of_leaf {
            quote!(<#ty as ::tacit::tree::Arguments>::flatten(#value, visitor)?;)
        } else {
            // It is read as a `Tree`, too: a type that is no tree is then one error and not two.
            quote!(<#ty as ::tacit::Tree>::flatten_tree(#value, visitor)?;)
        }
    });
    calls.collect()
}

fn enter(name: &TokenStream, fields: &Variant) -> TokenStream {
    let count = fields.children().count();
    let enter = quote!(reader.enter(#name)?.of_len(#count)?;);
    if fields.statics().next().is_some() { quote!(let entered = #enter) } else { enter }
}

fn constructed(path: &TokenStream, fields: &Variant) -> TokenStream {
    let fields = fields.fields.iter().map(|field| {
        let Field { member, ty, fixed, .. } = field;
        if *fixed {
            let name = label(field);
            quote!(#member: entered.static_field(#name)?)
        } else {
            quote!(#member: <#ty as ::tacit::Tree>::unflatten(reader)?)
        }
    });
    quote!(#path { #(#fields),* })
}

fn assigned(
    fields: &Variant,
    borrowed: impl Fn(&Field) -> TokenStream,
    place: impl Fn(&Field) -> TokenStream,
) -> TokenStream {
    let fields = fields.fields.iter().map(|field| {
        let ty = field.ty;
        if field.fixed {
            let (name, place) = (label(field), place(field));
            quote!(#place = entered.static_field(#name)?;)
        } else {
            let value = borrowed(field);
            quote!(<#ty as ::tacit::Tree>::assign(#value, reader)?;)
        }
    });
    fields.collect()
}

fn label(field: &Field) -> Literal {
    Literal::string(&label_text(field))
}

fn label_text(field: &Field) -> String {
    match &field.member {
        Member::Named(ident) => ident.unraw().to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}
