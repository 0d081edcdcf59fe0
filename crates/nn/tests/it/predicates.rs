//! The text of rules whose patterns are predicates.

use mlx_rs::Dtype;
use tacit_core::{Aval, Result};
use tacit_nn::{Pattern, Rules};

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
