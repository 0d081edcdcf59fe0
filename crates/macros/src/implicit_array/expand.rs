//! The implementation that the derive writes.

use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Ident, LitStr, PathArguments, PathSegment, Type, parse_quote};

use super::ast::{Field, Input};
use super::attr::Name;
use crate::spans::at;
use crate::types::plain;

/// The `ImplicitArray`, `Arguments`, `Serialize` and `Deserialize` of a struct, and its getters.
pub(crate) fn expand(input: &Input) -> TokenStream {
    let serde = serde(input);
    let array = implicit_array(input);
    let arguments = arguments(input);
    let getters = getters(input);
    let deprecated = &input.deprecated;
    quote! {
        #getters

        #deprecated
        const _: () = {
            #serde
            #array
            #arguments
        };
    }
}

fn implicit_array(input: &Input) -> TokenStream {
    let Input { ident, generics, name, .. } = input;
    let this = quote_spanned!(ident.span()=> Self);
    let (impl_generics, ty_generics, bounds) = generics.split_for_impl();
    // A generic type is registered with each of its parameters by who uses it.
    let (name, registered) = match name {
        Name::Literal(name) => (quote!(#name), quote!(::tacit::__private::register_array!(#ident);)),
        Name::Constant(name) => (quote!(#name), TokenStream::new()),
    };
    let aval = aval(input);
    let visit = input.children().map(|field| {
        let Field { ident, ty, .. } = field;
        let name = text(ident);
        quote!(<#ty as ::tacit::ChildField>::visit(&self.#ident, ::tacit::ChildName::field(#name), visit);)
    });
    let fields = input.fields.iter().map(|field| {
        let Field { ident, ty, aux, .. } = field;
        let name = text(ident);
        if *aux {
            quote!(#ident: <#ty as ::tacit::__private::Aux>::duplicate(&self.#ident))
        } else {
            quote!(#ident: <#ty as ::tacit::ChildField>::replaced(&self.#ident, #name, children)?)
        }
    });
    let equal = input.statics().map(
        |Field { ident, ty, .. }| quote!(&& <#ty as ::tacit::__private::Aux>::equals(&self.#ident, &other.#ident)),
    );
    let hash = input
        .statics()
        .map(|Field { ident, ty, .. }| quote!(<#ty as ::tacit::__private::Aux>::hash_into(&self.#ident, state);));
    let aux = input.statics().map(|Field { ident, .. }| {
        let name = text(ident);
        quote!((#name, ::std::format!("{:?}", self.#ident)))
    });
    let static_type = static_type(input, &name);
    quote! {
        impl #impl_generics ::tacit::ImplicitArray for #ident #ty_generics #bounds {
            #[doc(hidden)]
            fn typetag_name(&self) -> &'static str {
                #name
            }

            #[doc(hidden)]
            fn typetag_deserialize(&self) {}

            fn aval(&self) -> ::tacit::Result<::tacit::Aval> {
                #aval
            }

            fn build(&self, _: ::tacit::__private::Permit) -> ::tacit::Result<::tacit::Value> {
                <#this as ::tacit::Materialize>::materialize(self)
            }

            fn used_as(&self) -> ::tacit::Result<::core::option::Option<::tacit::Value>> {
                <#this as ::tacit::Materialize>::used_as(self)
            }

            fn visit_children<'a>(
                &'a self,
                visit: &mut dyn ::core::ops::FnMut(::tacit::ChildName, ::tacit::ChildRef<'a>),
            ) {
                #(#visit)*
            }

            fn with_children(
                &self,
                children: ::std::vec::Vec<::tacit::Value>,
            ) -> ::tacit::Result<::std::boxed::Box<dyn ::tacit::ImplicitArray>> {
                ::tacit::__private::rebuilt(children, |children| {
                    ::tacit::Result::Ok(Self { #(#fields,)* })
                })
            }

            fn aux_eq(&self, other: &dyn ::tacit::ImplicitArray) -> bool {
                other.as_any().downcast_ref::<Self>().is_some_and(|other| true #(#equal)*)
            }

            fn aux_hash(&self, state: &mut dyn ::core::hash::Hasher) {
                ::tacit::__private::hash_type::<Self>(state);
                #(#hash)*
            }

            fn aux(&self) -> ::std::vec::Vec<(&'static str, ::std::string::String)> {
                ::std::vec![#(#aux),*]
            }

            fn array_type(&self) -> &'static ::tacit::__private::ArrayType {
                <Self as ::tacit::__private::StaticType>::TYPE
            }

            fn as_any(&self) -> &dyn ::core::any::Any {
                self
            }
        }

        #static_type

        #registered
    }
}

/// What is said of the type and not of an array of it.
fn static_type(input: &Input, name: &TokenStream) -> TokenStream {
    let Input { ident, generics, commutes, families, .. } = input;
    let (impl_generics, ty_generics, bounds) = generics.split_for_impl();
    let default = default_handler(input);
    let policy = if let Some(policy) = &input.policy {
        quote!(::core::option::Option::Some(::tacit::Policy::#policy))
    } else {
        quote!(::core::option::Option::None)
    };
    let families = families.iter().map(|family| {
        quote_spanned! {at(family)=>
            ::tacit::__private::Membership::new::<dyn #family>(
                &((|array| array.downcast_ref::<Self>().map(|array| array as &dyn #family)) as ::tacit::__private::FamilyCast<dyn #family>),
            )
        }
    });
    quote! {
        impl #impl_generics ::tacit::__private::StaticType for #ident #ty_generics #bounds {
            const TYPE: &'static ::tacit::__private::ArrayType = &::tacit::__private::ArrayType {
                id: ::core::any::TypeId::of::<Self>(),
                saved_as: #name,
                name: ::core::any::type_name::<Self>,
                families: &[#(#families),*],
                default: #default,
                commutes: #commutes,
                policy: #policy,
                deferred: <Self as ::tacit::Materialize>::DEFERRED,
            };
        }
    }
}

/// The methods that give fields, where any is asked for.
fn getters(input: &Input) -> Option<TokenStream> {
    let Input { ident, generics, fields, deprecated, .. } = input;
    let (impl_generics, ty_generics, bounds) = generics.split_for_impl();
    let methods: Vec<TokenStream> = fields.iter().filter(|field| field.get).map(getter).collect();
    (!methods.is_empty()).then(|| {
        quote! {
            #deprecated
            impl #impl_generics #ident #ty_generics #bounds {
                #(#methods)*
            }
        }
    })
}

/// The numbers and the flag that a getter gives as they are.
const COPIED: [&str; 15] =
    ["bool", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128", "usize"];

/// The method that gives a field: a number or a flag as it is, a list as a slice, what may be missing as an option of a
/// reference, and anything else by reference.
fn getter(field: &Field<'_>) -> TokenStream {
    let Field { ident, ty, docs, .. } = field;
    let last = if let Type::Path(of) = plain(ty) { of.path.segments.last() } else { None };
    let (result, value) = match last {
        Some(PathSegment { ident: name, arguments: PathArguments::AngleBracketed(of) }) if name == "Vec" => {
            let items = &of.args;
            (quote!(&[#items]), quote!(&self.#ident))
        }
        Some(PathSegment { ident: name, arguments: PathArguments::AngleBracketed(of) }) if name == "Option" => {
            let item = &of.args;
            (quote!(::core::option::Option<&#item>), quote!(self.#ident.as_ref()))
        }
        Some(of) if COPIED.iter().any(|copied| of.ident == copied) => (quote!(#ty), quote!(self.#ident)),
        _ => (quote!(&#ty), quote!(&self.#ident)),
    };
    quote! {
        #(#docs)*
        #[must_use]
        pub fn #ident(&self) -> #result {
            #value
        }
    }
}

fn default_handler(input: &Input) -> TokenStream {
    let Some(default) = &input.default else { return quote!(::core::option::Option::None) };
    quote! {{
        const DEFAULT: ::tacit::DefaultHandler = #default;
        ::core::option::Option::Some(DEFAULT)
    }}
}

fn arguments(input: &Input) -> TokenStream {
    let Input { ident, generics, .. } = input;
    let (impl_generics, ty_generics, bounds) = generics.split_for_impl();
    quote! {
        impl #impl_generics ::tacit::tree::Arguments for #ident #ty_generics #bounds {
            type Arrays = ::tacit::__private::Array;

            fn flatten<'a>(&'a self, visitor: &mut dyn ::tacit::tree::Visitor<'a>) -> ::tacit::Result<()> {
                visitor.implicit(self);
                ::tacit::Result::Ok(())
            }
        }
    }
}

fn aval(input: &Input) -> TokenStream {
    let Some(field) = input.statics().find(|field| field.ident == "aval") else {
        return quote!(::tacit::__private::inferred_aval(self));
    };
    let ty = field.ty;
    quote!(::tacit::Result::Ok(<#ty as ::tacit::__private::DeclaredAval>::declared(&self.aval)))
}

/// `Serialize`, and serde's own derive of `Deserialize` on a copy of the struct that says how each field is stored.
fn serde(input: &Input) -> TokenStream {
    let Input { ident, generics, fields, .. } = input;
    let (impl_generics, ty_generics, bounds) = generics.split_for_impl();
    let mut with_lifetime = syn::Generics::clone(generics);
    with_lifetime.params.insert(0, parse_quote!('de));
    let (with_lifetime, ..) = with_lifetime.split_for_impl();
    let name = LitStr::new(&ident.unraw().to_string(), ident.span());
    // No type or parameter of the user's has such a name: the struct's own are in scope where these stand.
    let copy = format_ident!("__TacitStored{}", ident.unraw());
    let remote = ident.to_string();
    let turbofish = ty_generics.as_turbofish();
    let count = fields.len();
    let serialize = fields.iter().map(|field| {
        let Field { ident, ty, aux, .. } = field;
        let name = text(ident);
        let by = if *aux { quote!(::tacit::__private::Aux) } else { quote!(::tacit::__private::StoredChild) };
        quote!(<#ty as #by>::write(&self.#ident, #name, &mut fields)?;)
    });
    let deserialize = fields.iter().map(|field| {
        let Field { ident, ty, aux, .. } = field;
        let by = if *aux { "::tacit::__private::Aux::restore" } else { "::tacit::__private::StoredChild::restore" };
        let with = LitStr::new(by, ty.span());
        quote!(#[serde(deserialize_with = #with)] #ident: #ty)
    });
    quote! {
        impl #impl_generics ::tacit::__private::serde::Serialize for #ident #ty_generics #bounds {
            fn serialize<__TacitSerializer: ::tacit::__private::serde::Serializer>(
                &self,
                serializer: __TacitSerializer,
            ) -> ::core::result::Result<__TacitSerializer::Ok, __TacitSerializer::Error> {
                use ::tacit::__private::serde::ser::SerializeStruct as _;

                let mut fields = serializer.serialize_struct(#name, #count)?;
                #(#serialize)*
                fields.end()
            }
        }

        #[derive(::tacit::__private::serde::Deserialize)]
        #[serde(crate = "::tacit::__private::serde", remote = #remote, deny_unknown_fields, bound = "")]
        struct #copy #generics #bounds {
            #(#deserialize,)*
        }

        impl #with_lifetime ::tacit::__private::serde::Deserialize<'de> for #ident #ty_generics #bounds {
            fn deserialize<__TacitDeserializer: ::tacit::__private::serde::Deserializer<'de>>(
                deserializer: __TacitDeserializer,
            ) -> ::core::result::Result<Self, __TacitDeserializer::Error> {
                let array = #copy #turbofish::deserialize(deserializer)?;
                ::tacit::Materialize::check(&array)
                    .map_err(<__TacitDeserializer::Error as ::tacit::__private::serde::de::Error>::custom)?;
                ::core::result::Result::Ok(array)
            }
        }
    }
}

fn text(ident: &Ident) -> Literal {
    Literal::string(&ident.unraw().to_string())
}
