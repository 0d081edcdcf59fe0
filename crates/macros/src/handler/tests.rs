use expect_test::{Expect, expect};
use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemFn;

fn registration(args: TokenStream, function: TokenStream) -> syn::Result<String> {
    let function: ItemFn = syn::parse2(function)?;
    Ok(prettyplease::unparse(&syn::parse2(super::registration(args, &function)?)?))
}

fn check(args: TokenStream, function: TokenStream, expected: &Expect) {
    expected.assert_eq(&registration(args, function).expect("a handler"));
}

#[test]
fn every_kind_of_operand() {
    check(
        quote!(precedence = 10),
        quote! {
            pub(crate) fn select(
                _: &primitives::Select,
                condition: &Array,
                (x): &lora::Delta<Nf4>,
                y: &(dyn ImplicitArray),
                z: &tacit::Value,
                rest: &[&Value],
            ) -> Result<Vec<Value>> {
                todo!()
            }
        },
        &expect![[r##"
            #[doc(hidden)]
            #[allow(non_camel_case_types)]
            pub(crate) enum select {}
            const _: () = {
                impl ::tacit::__private::HandlerDef for select {
                    const HANDLER: ::tacit::Handler = ::tacit::Handler {
                        site: ::tacit::Site {
                            name: "select",
                            file: ::core::file!(),
                            line: ::core::line!(),
                        },
                        signature: ::tacit::Signature {
                            primitive: <primitives::Select as ::tacit::__private::HandlerPrimitive>::PATTERN,
                            operands: &[
                                <Array as ::tacit::__private::HandlerOperand>::PATTERN,
                                <lora::Delta<Nf4> as ::tacit::__private::HandlerOperand>::PATTERN,
                                <dyn ImplicitArray as ::tacit::__private::HandlerOperand>::PATTERN,
                                <tacit::Value as ::tacit::__private::HandlerOperand>::PATTERN,
                                ::tacit::OperandPattern::Rest,
                            ],
                        },
                        precedence: 10,
                        call: |call| {
                            <primitives::Select as ::tacit::__private::HandlerPrimitive>::with(
                                call.primitive,
                                |op| ::tacit::__private::HandlerResult::results(
                                    select(
                                        op,
                                        ::tacit::__private::operand::<Array>(call.operands, 0)?,
                                        ::tacit::__private::operand::<
                                            lora::Delta<Nf4>,
                                        >(call.operands, 1)?,
                                        ::tacit::__private::operand::<
                                            dyn ImplicitArray,
                                        >(call.operands, 2)?,
                                        ::tacit::__private::operand::<
                                            tacit::Value,
                                        >(call.operands, 3)?,
                                        ::tacit::__private::rest_operands(call.operands, 4)?,
                                    ),
                                ),
                            )
                        },
                    };
                }
                ::tacit::__private::inventory::submit! {
                    ::tacit::__private::Registration(< select as ::tacit::__private::HandlerDef >
                    ::HANDLER)
                }
            };
        "##]],
    );
}

#[test]
fn a_primitive_without_operands() {
    let output = registration(
        quote!(),
        quote!(
            fn zero(op: &Primitive) -> Result<Value> {
                todo!()
            }
        ),
    );
    let output = output.expect("a handler");
    assert!(output.contains("operands: &[],") && output.contains("precedence: 0,"), "{output}");
}

#[test]
fn a_deprecated_handler_is_called_without_a_warning() {
    let output = registration(
        quote!(),
        quote!(
            #[deprecated]
            fn zero(op: &Primitive) -> Result<Value> {
                todo!()
            }
        ),
    );
    let output = output.expect("a handler");
    assert!(output.contains("#[allow(deprecated)]\nconst _: () = {"), "{output}");
}

#[test]
fn a_precedence_may_be_negative() {
    let output = registration(
        quote!(precedence = -3,),
        quote!(
            fn zero(op: &Primitive) -> Result<Value> {
                todo!()
            }
        ),
    );
    assert!(output.expect("a handler").contains("precedence: -3,"));
}

#[test]
fn a_precedence_that_does_not_fit_is_an_error() {
    let function = quote!(
        fn zero(op: &Primitive) -> Result<Value> {
            todo!()
        }
    );
    assert!(registration(quote!(precedence = 3_000_000_000), function).is_err());
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let output = registration(
        quote!(),
        quote! {
            const async fn wrong<T>(op: Matmul, x: &mut Array, rest: &[&Value], y: &T) {}
        },
    );
    let lines: Vec<String> = output.expect_err("wrong").into_iter().map(|error| error.to_string()).collect();
    expect![[r#"
        a handler cannot be `const`: remove it
        a handler cannot be `async`: it builds a graph, which is evaluated later anyway
        a handler cannot be generic, because its signature is its registration: take a family `&dyn Family`, `&dyn ImplicitArray` or `&Value`
        a handler returns a result: add `-> Result<Value>`
        the primitive is borrowed: write `&` before the type
        operands are borrowed and never changed: write `&` without `mut`
        `&[&Value]` takes the rest of the operands: move it to the end"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn operands_that_no_handler_has_are_named() {
    let output = registration(
        quote!(),
        quote! {
            fn wrong(op: &Matmul, results: &[Aval], x: &(dyn Family + Other), y: &Array) -> Result<Value> {
                todo!()
            }
        },
    );
    let lines: Vec<String> = output.expect_err("wrong").into_iter().map(|error| error.to_string()).collect();
    expect![[r#"
        `&[Aval]` is what the results are: move it to the end
        a family is one trait: write `&dyn Family`"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn a_function_with_a_mistake_is_kept() {
    let function = quote!(
        fn wrong() {}
    );
    let output = super::expand(quote!(), &function).to_string();
    assert!(output.starts_with("fn wrong () { }") && output.contains("compile_error"), "{output}");
}

#[test]
fn what_is_no_function_is_kept_too() {
    let item = quote!(
        struct Double;
    );
    let output = super::expand(quote!(), &item).to_string();
    assert!(output.starts_with("struct Double ;") && output.contains("a handler is a function"), "{output}");
}
