//! Modules whose parameters are replaced, for a call or for good.

use expect_test::expect;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::{Array, Dtype, nn, ops};
use tacit_arrays::format::Affine;
use tacit_arrays::{AffineArray, Nf4Array};
use tacit_core::{Error, Policy, Result, Value};
use tacit_nn::{Missing, Model, Parameters, quantized, straight_through, with_parameters};

use crate::types::{Hidden, error, normal, numbers, said_of};

fn weight(path: &str, w: &Array) -> Result<Option<Value>> {
    Ok(if path.ends_with("weight") { Some(Nf4Array::quantize(w, 64)?.into()) } else { None })
}

fn model<M: ModuleParameters>(module: M, rule: impl Fn(&str, &Array) -> Result<Option<Value>>) -> Model<M> {
    let mut model = Model::new(module).expect("a model");
    model.replace("*", |path, value| rule(path, &value.dense()?)).expect("replaces");
    model
}

fn linear() -> nn::Linear {
    nn::Linear::new(64, 32).expect("builds")
}

#[test]
fn forward_is_that_of_the_quantized_module() {
    let _deny = Policy::Deny.scope();
    let mut plain = linear();
    let mut implicit = model(plain.clone(), weight);
    let x = normal(1, &[3, 64]);
    let found = implicit.forward(&x).expect("runs");
    let parameters = quantized(&plain, weight).expect("quantizes");
    let expected = with_parameters(&mut plain, &parameters, |linear| linear.forward(&x)).expect("runs");
    assert!(found.eq_exact(expected.as_dense().expect("dense")).expect("evaluates"));
}

#[test]
fn forward_runs_again_and_again() {
    let mut implicit = model(linear(), weight);
    let x = normal(1, &[3, 64]);
    let first = implicit.forward(&x).expect("runs");
    for _ in 0..3 {
        assert!(implicit.forward(&x).expect("runs").eq_exact(&first).expect("evaluates"));
    }
}

#[test]
fn bytes_are_those_of_the_packed_weight_and_the_dense_bias() {
    let implicit = model(linear(), weight);
    assert_eq!(implicit.nbytes(), 64 * 32 / 2 + 64 * 32 / 64 * 4 + 32 * 4);
    assert!(
        implicit.get("weight").expect("there").is_implicit() && !implicit.get("bias").expect("there").is_implicit()
    );
}

#[test]
fn explain_names_the_handlers() {
    let mut implicit = model(linear(), weight);
    let x = normal(1, &[3, 64]);
    let text = implicit.explain(|linear| linear.forward(&x)).expect("runs").to_string();
    // The handlers' lines move with the source.
    let lines: Vec<&str> = text.lines().map(|line| line.split(".rs:").next().unwrap_or(line)).collect();
    expect![[r#"
        { lambda weight:Nf4(f32[32,64]) .
            a:Nf4(f32[64,32]) = transpose[axes=(1,0)] weight                  linear_transpose   crates/arrays/src/views/of_linear
            b:f32[3,32]       = addmm[alpha=1,beta=1] f32[3,64] a f32[3,32]   linear_addmm   crates/arrays/src/families/linear
            in (b) }   2 ops, 2 handled, 0 materialized (0 B)"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn a_path_that_the_module_does_not_have() {
    let parameters = Parameters::from([("scale".to_owned(), ops::zeros::<f32>(&[32]).expect("zeros").into())]);
    let said = [
        said_of(Model::new(linear()).and_then(|mut model| model.assign(parameters.clone(), Missing::Keep))),
        said_of(with_parameters(&mut linear(), &parameters, |linear| linear.forward(&normal(1, &[3, 64])))),
    ]
    .concat();
    expect![[r#"
        the module has no parameter scale
        help: its parameters are bias, weight
        the module has no parameter scale
        help: its parameters are bias, weight
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_value_of_another_shape_or_dtype() {
    let small = Value::from(Nf4Array::quantize(&normal(1, &[32, 32]), 64).expect("quantizes"));
    let half = normal(1, &[32, 64]).as_dtype(Dtype::Float16).expect("f16");
    let half = Value::from(AffineArray::quantize(&half, Affine { bits: 4, group: 64 }).expect("quantizes"));
    let x = normal(2, &[3, 64]);
    let said = [&small, &half].map(|value| {
        let parameters = Parameters::from([("weight".to_owned(), value.clone())]);
        said_of(with_parameters(&mut linear(), &parameters, |linear| linear.forward(&x)))
    });
    expect![[r#"
        the parameter weight is f32[32,64] and was given Nf4(f32[32,32])
        help: give a value of the parameter's own shape and dtype
        the parameter weight is f32[32,64] and was given Affine(f16[32,64])
        help: give a value of the parameter's own shape and dtype
    "#]]
    .assert_eq(&said.concat());
    let mut model = Model::new(linear()).expect("a model");
    expect![[r#"
        the parameter weight is f32[32,64] and was given Nf4(f32[32,32])
        help: give a value of the parameter's own shape; its float type and format may be others"#]]
    .assert_eq(&error(model.set("weight", small)).to_string());
    model.set("weight", half).expect("another dtype");
    assert_eq!(model.forward(&x).expect("runs").dtype(), Dtype::Float32);
}

#[test]
fn a_rule_that_fails() {
    fn groups_too_wide(path: &str, w: &Array) -> Result<Option<Value>> {
        Ok(if path == "weight" { Some(AffineArray::quantize(w, Affine { bits: 4, group: 128 })?.into()) } else { None })
    }
    let said = [
        said_of(quantized(&linear(), groups_too_wide)),
        said_of(straight_through(&linear(), |_, w| Ok(Some(Nf4Array::quantize(w, 63)?.into())))),
    ]
    .concat();
    expect![[r#"
        the last axis of f32[32,64] is not whole groups of 128, as affine has them
        help: use a smaller group size, or an array type whose blocks may straddle rows
        the nf4 block size 63 is not a power of two from 32 to 4096
        help: use 64, the usual choice
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_rule_that_chooses_nothing_is_an_error() {
    let mut deep = nn::Sequential::new();
    for _ in 0..10 {
        deep = deep.append(nn::Linear::new(1, 1).expect("builds"));
    }
    let said = [
        said_of(quantized(&linear(), |_, _| Ok(None))),
        said_of(straight_through(&linear(), |_, _| Ok(None))),
        said_of(quantized(&deep, |_, _| Ok(None))),
        said_of(quantized(&nn::Relu, |_, _| Ok(None))),
    ]
    .concat();
    expect![[r#"
        the rule chose no parameter of the module
        help: its parameters are bias, weight
        the rule chose no parameter of the module
        help: its parameters are bias, weight
        the rule chose no parameter of the module
        help: its parameters are layers.0.bias, layers.0.weight, layers.1.bias, layers.1.weight, layers.2.bias, layers.2.weight, layers.3.bias, layers.3.weight, layers.4.bias, layers.4.weight, layers.5.bias, layers.5.weight, layers.6.bias, layers.6.weight, layers.7.bias, layers.7.weight and 4 more
        the rule chose no parameter of the module
        help: it has none at all
    "#]]
    .assert_eq(&said);
}

/// Statistics are assigned in each forward pass: they must neither fail the trace nor keep its graph.
#[test]
fn a_module_in_training_mode_keeps_its_statistics() {
    let _allow = Policy::Allow.scope();
    let norm = nn::BatchNorm::new(8).expect("builds");
    let module = nn::Sequential::new().append(nn::Linear::new(64, 8).expect("builds")).append(norm);
    let chosen = |path: &str, w: &Array| match path {
        "layers.0.weight" => weight(path, w),
        // An implicit statistic becomes what it is assigned.
        "layers.1.running_var" => Ok(Some(Hidden::of(w))),
        _ => Ok(None),
    };
    let mut model = model(module, chosen);
    let mut mean = ops::zeros::<f32>(&[8]).expect("zeros");
    for seed in 0..3 {
        let x = normal(seed, &[16, 64]);
        let before = model
            .run(|model| model.parameters().flatten()["layers.1.running_mean"].add(Array::from_f32(0.0)))
            .expect("runs");
        assert_eq!(numbers(&before), numbers(&mean));
        let failed = model.run(|model| {
            model.forward(&x)?;
            Err::<Array, _>(Error::invalid("no", "none"))
        });
        assert!(failed.is_err());
        model.forward(&x).expect("runs");
        mean = model
            .run(|model| model.parameters().flatten()["layers.1.running_mean"].add(Array::from_f32(0.0)))
            .expect("runs");
    }
    assert_ne!(numbers(&mean), [0.0; 8]);
    let implicit = model.values().expect("values").into_iter().filter(|(_, value)| value.is_implicit());
    assert_eq!(implicit.map(|(path, _)| path).collect::<Vec<_>>(), ["layers.0.weight"]);
}

/// The walk of the graph ends at the inputs, or the last of many layers would walk all of the others' graphs.
#[test]
fn a_long_graph_before_the_input_is_not_walked() {
    let mut implicit = model(linear(), weight);
    let one = Array::from_f32(1.0);
    let short = normal(1, &[1, 64]);
    let long = (0..50_000).try_fold(short.clone(), |x, _| x.add(&one)).expect("builds");
    // The shortest of several turns is nearest to what a call takes where the machine does nothing else; where it does much else,
    // there are more of them.
    let mut least = [std::time::Duration::MAX; 2];
    // Every node of the long graph would take some 20 ns at least.
    let is_as_short = |[short, long]: [std::time::Duration; 2]| long < 5 * short + std::time::Duration::from_millis(1);
    for turn in 0..500 {
        if turn >= 20 && is_as_short(least) {
            break;
        }
        for (least, x) in least.iter_mut().zip([&short, &long]) {
            let start = std::time::Instant::now();
            implicit.forward(x).expect("runs");
            *least = start.elapsed().min(*least);
        }
    }
    assert!(is_as_short(least), "{least:?}");
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
    let panicked = with_parameters(&mut plain, &parameters, |_| -> Result<Array> { panic!("in the middle") });
    assert!(panicked.is_err());
    let after = plain.parameters().flatten();
    for (path, w) in before {
        assert!(after[&path].eq_exact(&w).expect("evaluates"), "{path}");
    }
    assert!(plain.forward(&normal(1, &[3, 64])).expect("runs").eval().is_ok());
}
