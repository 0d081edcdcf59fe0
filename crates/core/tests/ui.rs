//! Mistakes in the use of the macros, one a file: the error stands at the token that is wrong and names the fix.
//!
//! `TRYBUILD=overwrite cargo test -p tacit-core --test ui` rewrites the expected texts.

#[test]
fn a_mistake_is_an_error_that_names_the_fix() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
