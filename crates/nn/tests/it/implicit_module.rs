//! A module that holds implicit arrays in place of dense parameters.

use expect_test::{Expect, expect};
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::{Array, Dtype, nn, ops, random};
use tacit_arrays::{AffineArray, Nf4Array};
use tacit_core::{Error, Parameters, Policy, Result, Value, with_parameters};
use tacit_nn::{ImplicitModule, quantized, straight_through};

fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::key(seed).expect("a key");
    random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers")
}

fn weight(path: &str, w: &Array) -> Option<Result<Value>> {
    (path == "weight").then(|| Ok(Nf4Array::quantize(w, 64)?.into()))
}

fn linear() -> nn::Linear {
    nn::Linear::new(64, 32).expect("builds")
}

#[track_caller]
fn check<T>(result: Result<T>, expected: Expect) {
    let Err(error) = result else { panic!("it should fail") };
    expected.assert_eq(&error.to_string());
}

#[test]
fn forward_is_that_of_the_quantized_module() {
    let _deny = Policy::Deny.scope();
    let mut plain = linear();
    let mut implicit = ImplicitModule::quantize(plain.clone(), weight).expect("quantizes");
    let x = normal(1, &[3, 64]);
    let found = implicit.forward(&x).expect("runs");
    let parameters = quantized(&plain, weight).expect("quantizes");
    let expected = with_parameters(&mut plain, &parameters, |linear| linear.forward(&x)).expect("runs");
    assert!(found.eq_exact(expected.as_dense().expect("dense")).expect("evaluates"));
}

#[test]
fn forward_runs_again_and_again() {
    let mut implicit = ImplicitModule::quantize(linear(), weight).expect("quantizes");
    let x = normal(1, &[3, 64]);
    let first = implicit.forward(&x).expect("runs");
    for _ in 0..3 {
        assert!(implicit.forward(&x).expect("runs").eq_exact(&first).expect("evaluates"));
    }
}

#[test]
fn bytes_are_those_of_the_packed_weight_and_the_dense_bias() {
    let implicit = ImplicitModule::quantize(linear(), weight).expect("quantizes");
    assert_eq!(implicit.nbytes(), 64 * 32 / 2 + 64 * 32 / 64 * 4 + 32 * 4);
    assert_eq!(implicit.parameters().keys().collect::<Vec<_>>(), ["weight"]);
}

#[test]
fn explain_names_the_handlers() {
    let mut implicit = ImplicitModule::quantize(linear(), weight).expect("quantizes");
    let x = normal(1, &[3, 64]);
    let text = implicit.explain(|linear| linear.forward(&x)).expect("runs").to_string();
    // The handlers' lines move with the source.
    let lines: Vec<&str> = text.lines().map(|line| line.split(".rs:").next().unwrap_or(line)).collect();
    expect![[r#"
        { lambda a:Nf4(f32[32,64]) .
            b:Nf4(f32[64,32]) = transpose[axes=(1,0)] a                       nf4_transpose   crates/arrays/src/nf4
            c:f32[3,32]       = addmm[alpha=1,beta=1] f32[3,64] b f32[3,32]   nf4_addmm   crates/arrays/src/nf4
            in (c) }   2 ops, 2 handled, 0 materialized (0 B)"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn a_path_that_the_module_does_not_have() {
    let parameters = Parameters::from([("scale".to_owned(), ops::zeros::<f32>(&[32]).expect("zeros").into())]);
    check(
        ImplicitModule::new(linear(), parameters.clone()),
        expect![[r#"
        the module has no parameter scale
        help: its parameters are bias, weight"#]],
    );
    check(
        with_parameters(&mut linear(), &parameters, |linear| linear.forward(&normal(1, &[3, 64]))),
        expect![[r#"
        the module has no parameter scale
        help: its parameters are bias, weight"#]],
    );
}

#[test]
fn a_value_of_another_shape_or_dtype() {
    let small = Value::from(Nf4Array::quantize(&normal(1, &[32, 32]), 64).expect("quantizes"));
    let half = normal(1, &[32, 64]).as_dtype(Dtype::Float16).expect("f16");
    let half = Value::from(AffineArray::quantize(&half, 64, 4).expect("quantizes"));
    for (value, expected) in [
        (
            small,
            expect![[r#"
        the parameter weight is f32[32,64] and was given Nf4(f32[32,32])
        help: give a value of the parameter's own shape and dtype"#]],
        ),
        (
            half,
            expect![[r#"
        the parameter weight is f32[32,64] and was given Affine(f16[32,64])
        help: give a value of the parameter's own shape and dtype"#]],
        ),
    ] {
        let parameters = Parameters::from([("weight".to_owned(), value)]);
        check(ImplicitModule::new(linear(), parameters), expected);
    }
}

#[test]
fn a_rule_that_fails() {
    fn groups_too_wide(path: &str, w: &Array) -> Option<Result<Value>> {
        (path == "weight").then(|| Ok(AffineArray::quantize(w, 128, 4)?.into()))
    }
    check(
        quantized(&linear(), groups_too_wide),
        expect![[r#"
        the last axis of f32[32,64] is not whole groups of 128, as affine has them
        help: use a smaller group size, or an array type whose blocks may straddle rows"#]],
    );
    check(
        ImplicitModule::quantize(linear(), groups_too_wide),
        expect![[r#"
        the last axis of f32[32,64] is not whole groups of 128, as affine has them
        help: use a smaller group size, or an array type whose blocks may straddle rows"#]],
    );
    check(
        straight_through(&linear(), |_, w| Some(Nf4Array::quantize(w, 63).map(Value::from))),
        expect![[r#"
        the nf4 block size 63 is not a power of two from 32 to 4096
        help: use 64, the usual choice"#]],
    );
}

#[test]
fn parameters_are_intact_after_an_error_and_after_a_panic() {
    let mut plain = linear();
    let before: Vec<_> = plain.parameters().flatten().into_iter().map(|(path, w)| (path, w.clone())).collect();
    let parameters = quantized(&plain, weight).expect("quantizes");
    let wrong = normal(1, &[3, 65]);
    assert!(with_parameters(&mut plain, &parameters, |linear| linear.forward(&wrong)).is_err());
    let failed = with_parameters(&mut plain, &parameters, |_| Err::<Array, _>(Error::invalid("no", "none")));
    assert!(failed.is_err());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        with_parameters(&mut plain, &parameters, |_| -> Result<Array> { panic!("in the middle") })
    }));
    assert!(panicked.is_err());
    let after = plain.parameters().flatten();
    for (path, w) in before {
        assert!(after[&path].eq_exact(&w).expect("evaluates"), "{path}");
    }
    assert!(plain.forward(&normal(1, &[3, 64])).expect("runs").eval().is_ok());
}
