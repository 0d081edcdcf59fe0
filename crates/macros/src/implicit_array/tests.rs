use expect_test::{Expect, ExpectFile, expect, expect_file};
use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Result};

fn derived(input: TokenStream) -> Result<String> {
    let input: DeriveInput = syn::parse2(input)?;
    Ok(prettyplease::unparse(&syn::parse2(super::derive(&input)?)?))
}

fn check(input: TokenStream, expected: &ExpectFile) {
    expected.assert_eq(&derived(input).expect("an implicit array"));
}

fn check_errors(input: TokenStream, expected: &Expect) {
    let error = derived(input).expect_err("not an implicit array");
    let lines: Vec<String> = error.into_iter().map(|error| error.to_string()).collect();
    expected.assert_eq(&lines.join("\n"));
}

#[test]
fn a_struct_of_children_and_static_fields() {
    check(
        quote! {
            #[implicit(name = "test.Weight", default = crate::take, no_commute)]
            pub struct Weight {
                packed: Array,
                #[implicit(aux)]
                aval: Aval,
            }
        },
        &expect_file!["weight.expanded.rs"],
    );
}

#[test]
fn an_aval_that_is_no_field_is_inferred() {
    let output = derived(quote! {
        #[implicit(name = "test.Weight")]
        struct Weight {
            #[implicit(aux)]
            bits: u8,
        }
    });
    assert!(output.expect("an implicit array").contains("::tacit::__private::inferred_aval(self)"));
}

#[test]
fn a_getter_has_the_documentation_of_its_field() {
    let output = derived(quote! {
        #[implicit(name = "test.Weight")]
        struct Weight {
            /// The codes.
            #[implicit(get)]
            packed: Array,
            #[implicit(get)]
            biases: Option<Array>,
            #[implicit(aux, get)]
            places: Vec<i64>,
            #[implicit(aux, get)]
            bits: u8,
            #[implicit(aux)]
            transposed: bool,
        }
    });
    let output = output.expect("an implicit array");
    for method in [
        "packed(&self) -> &Array {",
        "biases(&self) -> ::core::option::Option<&Array> {",
        "places(&self) -> &[i64] {",
        "bits(&self) -> u8 {",
    ] {
        assert!(output.contains(&format!("    #[must_use]\n    pub fn {method}")), "{output}");
    }
    assert_eq!((output.matches("The codes.").count(), output.matches("pub fn").count()), (1, 4), "{output}");
}

#[test]
fn a_deprecated_field_is_used_without_a_warning() {
    let output = derived(quote! {
        #[implicit(name = "test.Weight")]
        struct Weight {
            #[implicit(get)]
            #[deprecated]
            packed: Array,
        }
    });
    let output = output.expect("an implicit array");
    for code in ["impl Weight {", "const _: () = {"] {
        assert!(output.contains(&format!("#[allow(deprecated)]\n{code}")), "{output}");
    }
}

/// A macro that is given a type hands it on in a group that is not seen.
#[test]
fn a_getter_of_a_type_that_a_macro_was_given_is_as_any() {
    let [places, bits] =
        [quote!(Vec<i64>), quote!(u128)].map(|ty| proc_macro2::Group::new(proc_macro2::Delimiter::None, ty));
    let output = derived(quote! {
        #[implicit(name = "test.Weight")]
        struct Weight {
            #[implicit(aux, get)]
            places: #places,
            #[implicit(aux, get)]
            bits: #bits,
        }
    });
    let output = output.expect("an implicit array");
    assert!(output.contains("places(&self) -> &[i64] {") && output.contains("bits(&self) -> u128 {"), "{output}");
}

#[test]
fn raw_names_are_stored_plain() {
    let output = derived(quote! {
        #[implicit(name = "test.Weight")]
        struct Weight {
            r#ref: Value,
        }
    });
    let output = output.expect("an implicit array");
    assert!(output.contains(r#""ref""#) && !output.contains("\"r#ref"), "{output}");
}

/// A structure in JSON has a key once: of the array's type and a field of this name only one would be saved.
#[test]
fn no_field_is_called_as_the_type_is_saved() {
    for field in [quote!(r#type: Value), quote!(#[implicit(aux)] r#type: String)] {
        let output = derived(quote! {
            #[implicit(name = "test.Weight")]
            struct Weight {
                #field
            }
        });
        let error = output.expect_err("the name is taken").to_string();
        assert!(error.starts_with("what type an array has is saved as `type`"), "{error}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    check_errors(
        quote! {
            #[implicit(no_commute, no_commute)]
            struct Weight<T> {
                #[implicit(name = "a.b")]
                array: Array,
                #[implicit(skip)]
                tag: T,
            }
        },
        &expect![[r#"
            `no_commute` is there twice: remove one of them
            expected `aux` or `get`: a field is a child, or static with `#[implicit(aux)]`
            expected `aux` or `get`: a field is a child, or static with `#[implicit(aux)]`
            a generic array is saved under a name of its parameters: give a constant of theirs, `name = T::NAME`, and register each type that it is used with"#]],
    );
}

#[test]
fn an_array_that_borrows_is_not_asked_for_another_name() {
    check_errors(
        quote! {
            #[implicit(name = "test.Weight")]
            struct Weight<'a> {
                array: &'a Array,
            }
        },
        &expect!["an implicit array owns its arrays: hold them by value, they are shared and cheap to clone"],
    );
}

#[test]
fn a_generic_array_is_saved_under_any_constant_of_its_parameters() {
    for (name, text) in [
        (quote!(T::NAME), "T::NAME"),
        (quote!(Self::NAME), "Self::NAME"),
        (quote!(<T as Named>::NAME), "<T as Named>::NAME"),
        (quote!(crate::name_of::<T>()), "crate::name_of::<T>()"),
        (quote!(super::NAME), "super::NAME"),
    ] {
        let output = derived(quote! {
            #[implicit(name = #name)]
            struct Weight<T: Named> {
                array: Array,
                #[implicit(aux)]
                tag: PhantomData<T>,
            }
        });
        let output = output.expect("an implicit array");
        assert!(output.contains(&format!("saved_as: {text},")), "{output}");
    }
}

#[test]
fn a_namespace_is_a_word_before_a_dot() {
    for name in ["", "Weight", ".Weight", "crate.", "a..b"] {
        let output = derived(quote! {
            #[implicit(name = #name)]
            struct Weight {
                array: Array,
            }
        });
        let error = output.expect_err(name).to_string();
        assert!(error.starts_with("the name has no namespace"), "{error}");
    }
}

#[test]
fn a_family_may_have_parameters() {
    let output = derived(quote! {
        #[implicit(name = "test.Weight", family(Coded<u8>, crate::Packed))]
        struct Weight {
            array: Array,
        }
    });
    let output = output.expect("an implicit array");
    assert!(output.contains("dyn Coded<u8>") && output.contains("dyn crate::Packed"), "{output}");
}

#[test]
fn a_policy_is_one_of_three_words() {
    let derived_with = |attribute: TokenStream| {
        derived(quote! {
            #[implicit(name = "test.Weight", #attribute)]
            struct Weight {
                array: Array,
            }
        })
    };
    for (word, variant) in [("allow", "Allow"), ("warn", "Warn"), ("deny", "Deny")] {
        let output = derived_with(quote!(materialize = #word)).expect("an implicit array");
        assert!(
            output.contains(&format!("policy: ::core::option::Option::Some(::tacit::Policy::{variant})")),
            "{output}"
        );
    }
    for wrong in [quote!(materialize = "never"), quote!(materialize = deny)] {
        let wrong = derived_with(wrong).expect_err("no policy").to_string();
        assert_eq!(wrong, r#"expected `materialize = "allow"`, `"warn"` or `"deny"`"#);
    }
    let twice = derived_with(quote!(materialize = "deny", materialize = "warn")).expect_err("two").to_string();
    assert_eq!(twice, "two policies: keep one of them");
}
