//! The handlers that a program has by linking Tacit.

use expect_test::expect;
use tacit::Registry;

#[test]
fn no_call_is_ambiguous_and_no_handler_is_there_twice() {
    let findings = Registry::global().check().err().unwrap_or_default();
    assert!(findings.is_empty(), "{}", findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

/// A crate that is linked but never named registers nothing, and then its handlers are missing here.
#[test]
fn every_handler_is_registered() {
    let registry = Registry::global();
    let mut lines: Vec<String> =
        registry.handlers().iter().map(|handler| format!("{}: {}\n", handler.site.name, handler.signature)).collect();
    lines.sort();
    expect![[r#"
        affine_addmm: addmm of dense, AffineArray, dense
        affine_addmm_left: addmm of AffineArray, dense, dense
        affine_astype: as_type of AffineArray
        affine_gather: gather of AffineArray, dense
        affine_matmul: matmul of dense, AffineArray
        affine_matmul_left: matmul of AffineArray, dense
        affine_transpose: transpose of AffineArray
        copy: copy of any implicit
        nf4_addmm: addmm of dense, Nf4Array, dense
        nf4_addmm_left: addmm of Nf4Array, dense, dense
        nf4_astype: as_type of Nf4Array
        nf4_gather: gather of Nf4Array, dense
        nf4_matmul: matmul of dense, Nf4Array
        nf4_matmul_left: matmul of Nf4Array, dense
        nf4_transpose: transpose of Nf4Array
        ste_stop_gradient: stop_gradient of Ste
        stop_gradient: stop_gradient of any implicit
    "#]]
    .assert_eq(&lines.concat());
}
