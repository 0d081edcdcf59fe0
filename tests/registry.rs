//! The handlers that a program has by linking Tacit.

use expect_test::expect;
use tacit::dispatch::{OperandPattern, Registry};

#[test]
fn no_call_is_ambiguous_and_no_handler_is_there_twice() {
    let findings = Registry::global().check().err().unwrap_or_default();
    assert!(findings.is_empty(), "{}", findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

/// A crate that is linked but never named registers nothing, and then its handlers are missing: those of types and families on
/// the book's page of types, which the test `reference` compares, and the others here.
#[test]
fn every_handler_of_no_type_or_family_is_registered() {
    let of_types = |pattern: &OperandPattern| matches!(pattern, OperandPattern::Type(_) | OperandPattern::Family(..));
    let registry = Registry::global();
    let others = registry.handlers().iter().filter(|handler| !handler.signature.operands.iter().any(of_types));
    let mut lines: Vec<String> =
        others.map(|handler| format!("{}: {}\n", handler.site.name, handler.signature)).collect();
    lines.sort();
    expect![[r#"
        broadcast_axes_beside: broadcast_axes of any, any, ..
        broadcast_beside: broadcast of any, any, ..
        checkpointed: any graph primitive of ..
        copy: copy of any implicit
        linear_astype: as_type of any implicit
        linear_concatenate: concatenate of ..
        linear_divide: divide of any implicit, dense
        linear_multiply: multiply of any implicit, dense
        linear_negative: negative of any implicit
        linear_slice: slice of any implicit
        linear_transpose: transpose of any implicit
        stop_gradient: stop_gradient of any implicit
        stored_attention: scaled_dot_product_attention of dense, ..
    "#]]
    .assert_eq(&lines.concat());
}
