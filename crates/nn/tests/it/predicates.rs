//! Rules that have no text.

use std::fmt;

use expect_test::expect;
use mlx_rs::{Array, Dtype};
use tacit_arrays::format::{Nf4, Quantizer};
use tacit_core::{Aval, Result, Value};
use tacit_nn::{Pattern, Rules};

/// A format that is not registered.
#[derive(Debug)]
struct Unread;

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unread")
    }
}

impl Quantizer for Unread {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Nf4 { block: 64, double: false }.quantize(x)
    }
}

#[test]
fn rules_whose_format_could_not_be_read_again_are_no_text() -> Result<()> {
    let rules = Rules::new().skip("a")?.quantize("*", Unread)?;
    expect![[r#"
        the rules have no text: the format unread could not be read again: no format is named unread
        help: implement `TextForm` so that it reads what it writes, and add `register_format!` once"#]]
    .assert_eq(&rules.to_text().expect_err("nobody reads it").to_string());
    Ok(())
}

/// "The rules as text, by which they are known again."
#[test]
fn rules_that_text_does_not_say_are_no_text() -> Result<()> {
    let aval = Aval::new(&[64, 64], Dtype::Float32);
    let format = |rules: &Rules, path: &str| rules.format(path, &aval).map(ToString::to_string);
    let of = |last: &'static str| Rules::new().quantize(Pattern::when(move |path, _| path.ends_with(last)), "nf4:64");
    let (first, second) = (of("weight")?, of("bias")?);
    let error = first.to_text().expect_err("a predicate is code").to_string();
    assert!(error.contains("a predicate cannot be written as text"), "{error}");
    // A compiled function takes a `QuantizedState` of the one for one of the other by this text.
    assert_ne!(format(&first, "bias"), format(&second, "bias"));
    assert_ne!(first, second);
    Ok(())
}
