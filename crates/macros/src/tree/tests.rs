use expect_test::{Expect, ExpectFile, expect, expect_file};
use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Result};

fn derived(input: TokenStream) -> Result<String> {
    let input: DeriveInput = syn::parse2(input)?;
    Ok(prettyplease::unparse(&syn::parse2(super::derive(&input)?)?))
}

fn check(input: TokenStream, expected: &ExpectFile) {
    expected.assert_eq(&derived(input).expect("a tree"));
}

fn check_errors(input: TokenStream, expected: &Expect) {
    let error = derived(input).expect_err("not a tree");
    let lines: Vec<String> = error.into_iter().map(|error| error.to_string()).collect();
    expected.assert_eq(&lines.join("\n"));
}

#[test]
fn a_struct_that_is_generic_over_its_leaves() {
    let input = quote! {
        pub struct Params<L = Array> {
            weight: L,
            layers: Vec<Layer<L>>,
            #[tree(static)]
            heads: usize,
        }
    };
    let lines = derived(input.clone()).expect("a tree").lines().count();
    assert!(lines <= 50, "{lines} lines");
    check(input, &expect_file!["params.expanded.rs"]);
}

#[test]
fn an_enum_of_all_kinds_of_variants() {
    check(
        quote! {
            enum Rule {
                Frozen,
                Scaled(Array, #[tree(static)] u8),
                Moving { velocity: Array },
            }
        },
        &expect_file!["rule.expanded.rs"],
    );
}

#[test]
fn constants_pass_through_and_bounds_stay() {
    let output = derived(quote! {
        struct Banks<L: Clone, const N: usize>([L; N]) where L: Debug;
    });
    let output = output.expect("a tree");
    for part in [
        "impl<L: Clone + ::tacit::tree::Leaf, const N: usize> ::tacit::Tree for Banks<L, N>",
        "L: Debug",
        "type With<OtherL: ::tacit::tree::Leaf> = Banks<OtherL, N>;",
    ] {
        assert!(output.contains(part), "{output}");
    }
}

#[test]
fn another_leaf_has_no_name_of_the_item_or_its_parameters() {
    let output = derived(quote! {
        struct OtherL<L, const OtherOtherL: usize>([L; OtherOtherL]);
    });
    let output = output.expect("a tree");
    let expected = "type With<OtherOtherOtherL: ::tacit::tree::Leaf> = OtherL<";
    assert!(output.contains(expected), "{output}");
}

#[test]
fn a_child_behind_a_static_field_keeps_its_place_as_its_label() {
    let output = derived(quote! {
        struct Named(#[tree(static)] String, Array);
    });
    assert!(output.expect("a tree").contains(r#"::tacit::tree::Labels::Fields(&["1"])"#));
}

#[test]
fn a_type_within_itself_has_other_leaves_there_too() {
    let output = derived(quote! {
        struct Branch<L> {
            weight: L,
            below: Vec<Self>,
        }
    });
    let output = output.expect("a tree");
    assert!(output.contains("<Vec<Self> as ::tacit::tree::Arguments>::flatten(&self.below, visitor)?;"), "{output}");
}

#[test]
fn a_deprecated_variant_is_used_without_a_warning() {
    let output = derived(quote! {
        enum Rule {
            Frozen,
            #[deprecated]
            Scaled(Array),
        }
    });
    let output = output.expect("a tree");
    assert_eq!(output.matches("#[allow(deprecated)]\nimpl").count(), 2, "{output}");
}

#[test]
fn raw_names_are_labels_without_the_mark() {
    let output = derived(quote! {
        enum r#Type { r#Box { r#type: Array } }
    });
    let output = output.expect("a tree");
    assert!(output.contains(r#"::Type::Box""#) && output.contains(r#"&["type"]"#), "{output}");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    check_errors(
        quote! {
            #[tree(static)]
            struct Params<'a, L, M> {
                #[tree(skip)]
                borrowed: &'a L,
                #[tree(static, static)]
                heads: usize,
                #[tree(static)]
                tag: PhantomData<(u8, L)>,
            }
        },
        &expect![[r#"
            `static` marks a field: move it to the field
            a tree owns its arrays: hold them by value, they are shared and cheap to clone
            a tree has one type parameter, its leaf: write the type that `M` stands for into the field
            expected `static`: a field is a tree, or static with `#[tree(static)]`
            `static` is there twice: remove one of them
            a static field is the same whatever `L` is: write its type without `L`"#]],
    );
}

#[test]
fn an_enum_needs_a_variant_and_a_variant_has_no_argument() {
    check_errors(
        quote!(
            enum Never {}
        ),
        &expect!["an enum without variants has no value to take apart: add a variant"],
    );
    check_errors(
        quote! {
            enum Rule {
                #[tree(skip)]
                Frozen,
            }
        },
        &expect!["only a field has an argument: `#[tree(static)]`"],
    );
}
