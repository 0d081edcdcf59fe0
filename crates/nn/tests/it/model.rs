//! Models: surgery, leaves, gradients.

mod by_rules;

use std::collections::BTreeMap;

use expect_test::expect;
use mlx_rs::losses::CrossEntropyBuilder;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, Dtype, builder::Builder, error::Exception, nn, ops};
use tacit_arrays::Lora;
use tacit_arrays::format::Nf4;
use tacit_core::{Counters, Error, Policy, Result, Value};
use tacit_nn::{Missing, Model, ParameterFilter, Pattern, Rules, Stateful};

use crate::types::{Hidden, normal, numbers, said_of};

const NF4: Nf4 = Nf4 { block: 64, double: true };

fn layers() -> nn::Sequential {
    // The same parameters in every run: those of mlx-rs depend on what other tests draw.
    let linear = |seed, inputs, outputs| {
        let eighth = |shape: &[i32]| normal(seed, shape).divide(Array::from_f32(8.0)).expect("divides");
        let mut linear = nn::Linear::new(inputs, outputs).expect("builds");
        *linear.weight = eighth(&[outputs, inputs]);
        *linear.bias = Some(eighth(&[outputs]));
        linear
    };
    nn::Sequential::new().append(linear(5, 64, 64)).append(nn::Relu).append(linear(6, 64, 10))
}

fn adapted() -> Model<nn::Sequential> {
    let mut model = Model::new(layers()).and_then(|m| m.quantize("*.weight", NF4)).expect("quantizes");
    model.replace("*.weight", |_, base| lora(base)).expect("adapts");
    model
}

fn lora(base: Value) -> Result<Option<Value>> {
    let shape = base.aval()?.shape;
    let (a, b) = (normal(7, &[4, shape[1]]), ops::zeros::<f32>(&[shape[0], 4])?);
    Ok(Some(Lora::new(base, a, b, 8.0)?.into()))
}

fn snapshot(model: &Model<nn::Sequential>) -> BTreeMap<String, Vec<u8>> {
    let bytes = |array: &Array| {
        let array = array.reshape(&[-1]).and_then(|flat| flat.view_dtype(Dtype::Uint8)).expect("bytes");
        array.eval().expect("evaluates");
        array.as_slice::<u8>().to_vec()
    };
    model.leaves(&ParameterFilter::All).into_iter().map(|(path, array)| (path, bytes(array))).collect()
}

#[test]
fn a_dense_model_is_its_module() {
    let mut module = layers();
    let x = normal(1, &[3, 64]);
    let expected = module.forward(&x).expect("runs");
    let paths: BTreeMap<_, _> = module.parameters().flatten().into_iter().map(|(path, w)| (path, w.clone())).collect();
    let mut model = Model::new(module).expect("a model");
    assert!(model.forward(&x).expect("runs").eq_exact(&expected).expect("evaluates"));
    assert_eq!(model.parameters().flatten().keys().collect::<std::collections::BTreeSet<_>>(), paths.keys().collect());
}

#[test]
fn leaves_are_parameters_of_mlx_rs() {
    let model = adapted();
    let paths: Vec<String> = model.leaves(&ParameterFilter::All).into_iter().map(|(path, _)| path).collect();
    assert_eq!(
        paths[..7],
        [
            "layers.0.bias",
            "layers.0.weight.a",
            "layers.0.weight.b",
            "layers.0.weight.base.codes",
            "layers.0.weight.base.scales.absmax",
            "layers.0.weight.base.scales.codes",
            "layers.0.weight.base.scales.offset",
        ]
    );
    assert_eq!(model.num_parameters(), 14);
    let of = |only: ParameterFilter| model.leaves(&only).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    let factors = ["layers.0.weight.a", "layers.0.weight.b", "layers.2.weight.a", "layers.2.weight.b"];
    assert_eq!(of(ParameterFilter::Lora), factors);
    assert_eq!(of(ParameterFilter::Dense), ["layers.0.bias", "layers.2.bias"]);
    assert_eq!(of(ParameterFilter::Scales).len(), 6);
    let named = ParameterFilter::Paths("layers.2.*".parse::<Pattern>().expect("a glob"));
    assert_eq!(of(named).len(), 7);
    let mut trainable: Vec<_> = model.trainable_parameters().flatten().into_keys().collect();
    trainable.sort();
    assert_eq!(
        trainable.iter().map(|path| &**path).collect::<Vec<_>>(),
        [&["layers.0.bias"], &factors[..2], &["layers.2.bias"], &factors[2..]].concat()
    );
    assert_eq!(model.any_frozen(), Some(true));
}

/// Adam sees the factors alone, and nothing else of the model changes by a bit.
#[test]
fn an_optimizer_of_mlx_rs_trains_the_factors_alone() {
    let _deny = Policy::Deny.scope();
    let mut model = adapted();
    let (x, y) = (normal(1, &[16, 64]), Array::from_slice(&[1u32, 2, 3, 4].repeat(4), &[16]));
    let cross_entropy = CrossEntropyBuilder::new().build().expect("builds");
    let mut optimizer = Adam::new(1e-3);
    let before = snapshot(&model);
    let mut losses = Vec::new();
    for _ in 0..8 {
        let (loss, gradients) = model
            .value_and_grad(ParameterFilter::Lora, (&x, &y), |model, (x, y): (&Array, &Array)| {
                cross_entropy.apply(&model.forward(x)?, y)?.mean(None)
            })
            .expect("differentiates");
        assert_eq!(gradients.len(), 4);
        optimizer.update(&mut model, &gradients).expect("updates");
        model.eval().expect("evaluates");
        losses.push(loss.item_exact::<f32>());
    }
    assert!(losses[7] < 0.8 * losses[0], "{losses:?}");
    for (path, bytes) in snapshot(&model) {
        assert_eq!(
            bytes == before[&path],
            !path.contains("weight.a") && !path.contains("weight.b") || path.contains("base"),
            "{path}"
        );
    }
}

/// mlx-rs's own `value_and_grad` knows nothing of implicit arrays.
#[test]
fn value_and_grad_of_mlx_rs_agrees() {
    let _deny = Policy::Deny.scope();
    let x = normal(1, &[5, 64]);
    let (mut ours, mut theirs) = (adapted(), adapted().training(ParameterFilter::Lora));
    for (path, array) in
        ours.leaves(&ParameterFilter::All).into_iter().map(|(path, array)| (path, array.clone())).collect::<Vec<_>>()
    {
        theirs.set_leaves([(path, array)]).expect("the same leaves");
    }
    let (loss, gradients) = ours
        .value_and_grad(ParameterFilter::Lora, &x, |model, x: &Array| model.forward(x)?.square()?.mean(None))
        .expect("differentiates");
    let mut step =
        nn::value_and_grad(|model: &mut Model<nn::Sequential>, x: Array| model.forward(&x)?.square()?.mean(None));
    let (expected, expected_gradients) = step(&mut theirs, x).expect("differentiates");
    assert_eq!(numbers(&loss), numbers(&expected));
    assert_eq!(gradients.len(), expected_gradients.len());
    for (path, gradient) in gradients {
        assert!(gradient.eq_exact(&expected_gradients[&path]).expect("evaluates"), "{path}");
    }
}

#[test]
fn a_failing_loss_leaves_the_model_as_it_was() {
    let mut model = adapted();
    let before = snapshot(&model);
    let x = normal(1, &[5, 64]);
    let mut said = said_of(model.value_and_grad(ParameterFilter::Lora, &x, |model, x: &Array| {
        model.forward(x)?;
        Err::<Array, _>(Error::invalid("no", "none"))
    }));
    assert_eq!(snapshot(&model), before);
    said += &said_of(model.value_and_grad(ParameterFilter::Lora, &x, |model, x: &Array| model.forward(x)));
    assert_eq!(snapshot(&model), before);
    let panicked =
        model.value_and_grad(ParameterFilter::Lora, &x, |_, _: &Array| -> Result<Array> { panic!("in the middle") });
    assert!(panicked.is_err());
    assert_eq!(snapshot(&model), before);
    said += &said_of(model.value_and_grad(ParameterFilter::Masters, &x, |model, x: &Array| model.forward(x)));
    expect![[r#"
        no
        help: none
        the loss is f32[5,10], which is not one float element
        help: sum or average it, or use `vjp` with a cotangent of its shape
        the model has no float leaf to train in Masters
        help: its parameters are layers.0.bias, layers.0.weight.a, layers.0.weight.b, layers.0.weight.base.scales.absmax, layers.0.weight.base.scales.offset, layers.2.bias, layers.2.weight.a, layers.2.weight.b, layers.2.weight.base.scales.absmax, layers.2.weight.base.scales.offset
    "#]]
    .assert_eq(&said);
}

/// A model in a module that was written before Tacit.
#[test]
fn a_model_nests_in_modules() {
    #[derive(Debug, ModuleParameters)]
    #[module(root = mlx_rs)]
    struct Residual {
        #[param]
        inner: Model<nn::Linear>,
        #[param]
        scale: mlx_rs::module::Param<Array>,
    }

    impl Module<&Array> for Residual {
        type Output = Array;
        type Error = Exception;

        fn forward(&mut self, x: &Array) -> Result<Array, Exception> {
            self.inner.forward(x)?.multiply(&*self.scale)?.add(x)
        }

        fn training_mode(&mut self, mode: bool) {
            Module::<&Array>::training_mode(&mut self.inner, mode);
        }
    }

    let inner = Model::new(nn::Linear::new(64, 64).expect("builds")).and_then(|m| m.quantize("weight", NF4));
    let residual =
        Residual { inner: inner.expect("quantizes"), scale: mlx_rs::module::Param::new(Array::from_f32(2.0)) };
    let mut stack = nn::Sequential::new().append(residual).append(nn::Relu);
    let paths: std::collections::BTreeSet<_> = stack.parameters().flatten().into_keys().collect();
    assert!(paths.contains("layers.0.inner.weight.codes") && paths.contains("layers.0.scale"), "{paths:?}");
    let x = normal(1, &[2, 64]);
    let _deny = Policy::Deny.scope();
    assert_eq!(stack.forward(&x).expect("runs").shape(), [2, 64]);
    // And the whole stack may be a model again.
    let mut whole = Model::new(stack).expect("a model");
    assert_eq!(whole.forward(&x).expect("runs").shape(), [2, 64]);
}

#[test]
fn what_fails_changes_nothing() {
    let mut model = Model::new(layers()).expect("a model");
    let before = snapshot(&model);
    let mut said = [
        said_of(model.replace("*.scale", |_, _| Ok(None)).map(drop)),
        said_of(
            model
                .replace("*", |path, value| match path {
                    "layers.2.weight" => Err(Error::invalid("no", "none")),
                    _ => Ok(Some(Hidden::of(value))),
                })
                .map(drop),
        ),
        said_of(model.assign([("layers.0.bias".to_owned(), normal(1, &[64]).into())].into(), Missing::Refuse)),
    ]
    .concat();
    let values =
        [("layers.0.bias".to_owned(), normal(1, &[64]).into()), ("layers.2.bias".to_owned(), normal(1, &[9]).into())];
    said += &[
        said_of(model.assign(values.into(), Missing::Keep)),
        said_of(model.get("layers.1.weight").map(drop)),
        said_of(model.set_leaves([("layers.0.weight.a".to_owned(), normal(1, &[64]))])),
        said_of(model.set_leaves([("layers.0.bias".to_owned(), normal(1, &[4]))])),
    ]
    .concat();
    expect![[r#"
        the pattern *.scale names no parameter of the model
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight
        no
        help: none
        parameters of the model are not given: layers.0.weight, layers.2.bias, layers.2.weight
        help: give them under the paths of the model, or let them be as they are with `Missing::Keep`
        the parameter layers.2.bias is f32[10] and was given f32[9]
        help: give a value of the parameter's own shape; its float type and format may be others
        the module has no parameter layers.1.weight
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight
        the model has no leaf layers.0.weight.a
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight
        the leaf layers.0.bias is f32[64] and was given f32[4]
        help: give an array of the leaf's own shape and dtype, or set the whole parameter
    "#]]
    .assert_eq(&said);
    assert_eq!(snapshot(&model), before);
}

#[test]
fn what_cannot_be_quantized_is_named() {
    let mut model = Model::new(layers()).expect("a model");
    let mut said = [
        said_of(Model::new(layers()).expect("a model").quantize("*", &Rules::new())),
        said_of(Model::new(layers()).expect("a model").quantize("layers.0.*", "affine:4:128")),
    ]
    .concat();

    let mut broken = normal(1, &[10, 64]);
    broken = ops::select(broken.gt(Array::from_f32(2.0)).expect("compares"), Array::from_f32(f32::NAN), &broken)
        .expect("a NaN");
    model.set("layers.2.weight", broken).expect("fits");
    said += &said_of(model.quantize("*.weight", NF4));
    expect![[r#"
        the rules quantize no parameter of the model
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight
        the rules quantize no parameter of the model: layers.0.bias: it has one axis; layers.0.weight: the last axis of f32[64,64] is not whole groups of 128, as affine has them
        help: name other parameters or another format: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight; what has one axis is quantized where a rule names its very path
        kernel Nf4Quantize failed: the parameter layers.2.weight: element 34 is NaN, which no code can hold
        help: replace NaN and infinities before quantizing
    "#]]
    .assert_eq(&said);
}

/// Half floats refuse what they cannot hold as every other format does, of whatever type the parameter is.
#[test]
fn a_half_format_is_given_what_it_can_hold() {
    let refused = |number: f32, dtype: Dtype| {
        let mut model = Model::new(nn::Linear::new(4, 2).expect("builds")).expect("a model");
        let weight = Array::from_slice(&[1.0, 2.0, 3.0, number, 5.0, 6.0, 7.0, 8.0], &[2, 4]);
        model.set("weight", weight.as_dtype(dtype).expect("casts")).expect("fits");
        model.quantize("weight", tacit_arrays::format::F16).map(drop).expect_err("it is refused").to_string()
    };
    expect![[r#"
        kernel F16Quantize failed: the parameter weight: element 3 is 1000000, and the greatest number of the format is 65504
        help: take a format with a scale, or one with the range of `f32` such as `bf16`"#]]
    .assert_eq(&refused(1e6, Dtype::Float32));
    expect![[r#"
        kernel F16Quantize failed: the parameter weight: element 3 is NaN, which no code can hold
        help: replace NaN and infinities before quantizing"#]]
    .assert_eq(&refused(f32::NAN, Dtype::Float32));
    // What is of the type already is stored as it is, and looked at here.
    expect![[r#"
        the parameter weight: F16(f16[2,4]) has an element that is not finite
        help: replace NaN and infinities before quantizing"#]]
    .assert_eq(&refused(f32::INFINITY, Dtype::Float16));
}

/// Optimizer state goes by the leaves' paths, and comes back from a tree.
#[test]
fn a_model_and_its_optimizer_are_one_state() {
    use tacit_core::compile_with_state;

    let x = normal(1, &[5, 64]);
    let (eager, mut compiled) = (adapted(), adapted());
    for (path, array) in
        eager.leaves(&ParameterFilter::All).into_iter().map(|(path, array)| (path, array.clone())).collect::<Vec<_>>()
    {
        compiled.set_leaves([(path, array)]).expect("the same leaves");
    }
    let step = |(model, optimizer): &mut (Model<nn::Sequential>, Stateful<Adam>), x: Array| -> Result<Array> {
        let (loss, gradients) = model
            .value_and_grad(ParameterFilter::Lora, &x, |model, x: &Array| model.forward(x)?.square()?.mean(None))?;
        optimizer.update(model, &gradients)?;
        Ok(loss)
    };
    let mut state = (eager, Stateful(Adam::new(1e-3)));
    let mut expected = Vec::new();
    for _ in 0..4 {
        expected.push(numbers(&step(&mut state, x.clone()).expect("steps"))[0]);
    }
    let mut state = (compiled, Stateful(Adam::new(1e-3)));
    let (result, counters) = Counters::during(|| -> Result<Vec<f32>> {
        let mut run = compile_with_state(tacit_core::compile::CompileOptions::default(), step);
        (0..4).map(|_| Ok(numbers(&run.call(&mut state, x.clone())?.dense()?)[0])).collect()
    });
    let found = result.expect("compiles");
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-5 * expected.abs(), "{found} {expected}");
    }
    assert_eq!(counters.materialized_bytes, 0);
}

/// Experts in three axes, as a mixture's layer of plain ops holds them, and a convolution's kernel.
#[test]
fn experts_and_kernels_take_formats_too() {
    #[derive(Debug, ModuleParameters)]
    #[module(root = mlx_rs)]
    struct Experts {
        #[param]
        weight: mlx_rs::module::Param<Array>,
    }

    let (x, chosen) = (normal(2, &[6, 1, 64]), Array::from_slice(&[2u32, 0, 1, 1, 2, 0], &[6]));
    let forward =
        |m: &mut Experts| ops::gather_mm(&x, m.weight.swap_axes(-1, -2)?, None::<&Array>, &chosen, None::<bool>);
    let weight = normal(1, &[3, 32, 64]);
    for format in ["nf4:64", "affine:4:64", "int8"] {
        let rules = Rules::from_json(&format!("{{\"weight\": {format:?}}}")).expect("rules");
        let model = Model::new(Experts { weight: mlx_rs::module::Param::new(weight.clone()) });
        let mut model = model.and_then(|model| model.quantize("*", &rules)).expect("quantizes");
        let dense = model.get("weight").expect("there").dense().expect("dense");
        let expected =
            ops::gather_mm(&x, dense.swap_axes(-1, -2).expect("turns"), None::<&Array>, &chosen, None::<bool>);
        let found = {
            let _deny = Policy::Deny.scope();
            model.run(forward).expect("runs")
        };
        assert!(found.all_close(expected.expect("multiplies"), 1e-5, 1e-5, false).expect("compares"));
    }

    let convolution = nn::Conv2d::new(16, 8, 2).expect("builds");
    let mut model = Model::new(convolution).and_then(|m| m.quantize("weight", NF4)).expect("quantizes");
    // No handler takes a convolution: the kernel is built for it, which the policy may forbid.
    let x = normal(3, &[1, 4, 4, 16]);
    assert_eq!(model.forward(&x).expect("runs").shape(), [1, 3, 3, 8]);
    let _deny = Policy::Deny.scope();
    assert!(matches!(model.forward(&x).map_err(Error::from), Err(Error::MaterializationDenied { .. })));
}

#[test]
fn a_quantized_model_goes_to_another_thread() {
    let x = normal(1, &[3, 64]);
    let linear = nn::Linear::new(64, 10).expect("builds");
    let mut model = Model::new(linear).and_then(|m| m.quantize("weight", NF4)).expect("quantizes");
    let there = std::thread::spawn(move || -> Result<Vec<f32>> {
        let _allow = Policy::Allow.scope();
        let y = model.forward(&x)?;
        y.eval()?;
        Ok(numbers(&y))
    });
    assert_eq!(there.join().expect("it does not panic").expect("it was evaluated").len(), 30);
}
