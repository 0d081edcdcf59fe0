//! Steps of every optimizer of mlx-rs on leaves of every float type.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use expect_test::expect;
use mlx_rs::error::StateProjectionError;
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::optimizers::{
    AdaDelta, AdaGrad, Adafactor, Adam, AdamW, Adamax, Lion, Optimizer, RmsProp, Sgd, SgdBuilder,
};
use mlx_rs::utils::{StateProjection, Updatable};
use mlx_rs::{Array, Dtype, builder::Builder, error::Exception, nn, ops, random};
use tacit_arrays::format::Affine;
use tacit_core::Result;
use tacit_nn::{Apollo, LoraConfig, Missing, Model, ParameterFilter, Parameters, QuantizedState, Rules, Stateful};

use crate::log::Log;
use crate::types::{error, normal, numbers, said_of};

const AFFINE: Affine = Affine { bits: 4, group: 32 };

type Layers = nn::Sequential;

fn dense(dtype: Dtype) -> Result<Model<Layers>> {
    random::seed(5)?;
    let layers =
        nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Relu).append(nn::Linear::new(64, 8)?);
    let mut model = Model::new(layers)?;
    model.replace("*", |_, value| Ok(Some(value.dense()?.as_dtype(dtype)?.into())))?;
    Ok(model)
}

/// Every form that leaves of half floats have.
fn forms(dtype: Dtype) -> Result<[(&'static str, Model<Layers>); 3]> {
    let mut adapted = dense(dtype)?.lora("*.weight", LoraConfig::default())?;
    let narrow = |(path, array): (String, &Array)| Ok((path, array.as_dtype(dtype)?));
    let factors = adapted.leaves(&ParameterFilter::Lora).into_iter().map(narrow).collect::<Result<Vec<_>>>()?;
    let factor = |name: &str| factors.iter().find(|(path, _)| path == name).map(|(_, array)| array.clone());
    adapted.replace("*.weight", |path, value| {
        let lora = value.downcast::<tacit_arrays::Lora>();
        let base = lora.map(|lora| tacit_arrays::Adapter::base(lora).clone());
        let parts = (base, factor(&format!("{path}.a")), factor(&format!("{path}.b")));
        let (Some(base), Some(a), Some(b)) = parts else { return Ok(None) };
        Ok(Some(tacit_arrays::Lora::new(base, a, b, 8.0)?.into()))
    })?;
    Ok([("dense", dense(dtype)?), ("prepared", dense(dtype)?.prepare("*.weight", AFFINE)?), ("adapted", adapted)])
}

fn gradients(model: &mut Model<Layers>, dtype: Dtype) -> Result<FlattenedModuleParam> {
    let x = normal(1, &[4, 64]).as_dtype(dtype)?;
    let loss = |m: &mut Model<Layers>, x: Array| m.forward(&x)?.square()?.mean(None);
    Ok(model.value_and_grad(ParameterFilter::default(), x, loss)?.1)
}

fn steps<O: Optimizer>(name: &str, optimizer: impl Fn() -> O) -> Result<()> {
    for dtype in [Dtype::Bfloat16, Dtype::Float16, Dtype::Float32] {
        for (form, mut model) in forms(dtype)? {
            let case = format!("{name} {form} {dtype:?}");
            let mut own = optimizer();
            let avals: Vec<String> = avals(&model);
            let before = gradients(&mut model, dtype)?;
            for _ in 0..3 {
                let gradients = gradients(&mut model, dtype)?;
                model.update(&mut own, gradients)?;
            }
            assert_eq!(avals, self::avals(&model), "{case}");
            let after = gradients(&mut model, dtype)?;
            let changed = |path: &std::rc::Rc<str>| {
                let wide = |array: &Array| {
                    numbers(&array.as_dtype(Dtype::Float32).and_then(|array| array.contiguous()).expect("casts"))
                };
                wide(&before[path]) != wide(&after[path])
            };
            assert!(before.keys().any(changed), "{case} moves");
        }
    }
    Ok(())
}

fn avals(model: &Model<Layers>) -> Vec<String> {
    let aval = |(path, array): (String, &Array)| format!("{path} {}", tacit_core::Aval::from(array));
    model.leaves(&ParameterFilter::All).into_iter().map(aval).collect()
}

#[test]
fn leaves_keep_their_dtypes_under_every_optimizer() -> Result<()> {
    steps("sgd", || Sgd::new(0.1))?;
    steps("momentum", || SgdBuilder::new(0.1).momentum(0.9).build().expect("builds"))?;
    steps("adam", || Adam::new(1e-2))?;
    steps("adamw", || AdamW::new(1e-2))?;
    steps("adamax", || Adamax::new(1e-2))?;
    steps("adagrad", || AdaGrad::new(1e-2))?;
    steps("adadelta", || AdaDelta::new(1e-1).expect("builds"))?;
    steps("adafactor", || Adafactor::new().expect("builds"))?;
    steps("lion", || Lion::new(1e-2))?;
    steps("rmsprop", || RmsProp::new(1e-2).expect("builds"))
}

/// What is rounded is what the optimizer alone makes of gradients in `f32`.
#[test]
fn a_step_is_the_optimizers_own_rounded() -> Result<()> {
    let (mut ours, mut theirs) = (dense(Dtype::Bfloat16)?, dense(Dtype::Bfloat16)?);
    let made = gradients(&mut ours, Dtype::Bfloat16)?;
    ours.update(&mut Adam::new(1e-2), &made)?;
    let wide = made.into_iter().map(|(path, array)| Ok((path, array.as_dtype(Dtype::Float32)?)));
    Adam::new(1e-2).update(&mut theirs, wide.collect::<Result<FlattenedModuleParam>>()?)?;
    for ((path, ours), (_, theirs)) in
        ours.leaves(&ParameterFilter::All).into_iter().zip(theirs.leaves(&ParameterFilter::All))
    {
        assert!(ours.eq_exact(theirs.as_dtype(Dtype::Bfloat16)?)?, "{path}");
    }
    Ok(())
}

/// Its square is zero in `f16`: the step was divided by the epsilon alone, and was thirty times as long.
#[test]
fn a_small_gradient_of_half_floats_makes_the_step_of_single_precision() -> Result<()> {
    for dtype in [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32] {
        let mut model = dense(dtype)?;
        let wide = |model: &Model<Layers>| -> Result<Array> {
            Ok(model.get("layers.2.bias")?.dense()?.as_dtype(Dtype::Float32)?)
        };
        let before = wide(&model)?;
        let gradient = ops::full::<f32>(&[8], Array::from_f32(1e-5))?.as_dtype(dtype)?;
        model.update(&mut Adam::new(1e-2), FlattenedModuleParam::from([("layers.2.bias".into(), gradient)]))?;
        let step = wide(&model)?.subtract(before)?.abs()?.max(None)?.item_exact::<f32>();
        // A tenth of the gradient over the root of a thousandth of its square, times the rate.
        assert!((step - 0.0306).abs() < 1e-3, "{step} in {dtype:?}");
    }
    Ok(())
}

/// An optimizer that is called by itself leaves `f32`, which is not silent.
#[test]
fn leaves_that_an_optimizer_widened_are_told_of() -> Result<()> {
    let [(_, mut dense), (_, mut prepared), _] = forms(Dtype::Bfloat16)?;
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let alone = |model: &mut Model<Layers>| -> Result<()> {
        let made = gradients(model, Dtype::Bfloat16)?;
        Ok(Adam::new(1e-2).update(model, &made)?)
    };
    for _ in 0..3 {
        alone(&mut dense)?;
    }
    expect![[r#"
        half floats became f32 since the latest gradient: layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight; step by `Model::update`, which keeps dtypes, or replace them by f32 with `Model::replace` first"#]]
    .assert_eq(&log.lines().join("\n"));
    alone(&mut prepared)?;
    expect![[r#"
        half floats became f32 since the latest gradient: layers.0.bias, layers.0.weight.master, layers.2.bias, layers.2.weight.master
        help: step by `Model::update`, which keeps dtypes: the optimizers of mlx-rs return f32"#]]
    .assert_eq(&error(alone(&mut prepared)).to_string());
    // Whoever tries again is told again.
    let again = gradients(&mut prepared, Dtype::Bfloat16).expect_err("they are still wide").to_string();
    assert!(again.starts_with("half floats became f32 since the latest gradient: "), "{again}");

    // So is one whose gradient failed before the step.
    let [_, (_, mut prepared), _] = forms(Dtype::Bfloat16)?;
    let made = gradients(&mut prepared, Dtype::Bfloat16)?;
    let fails = |_: &mut Model<Layers>, ()| Err::<Array, _>(Exception::custom("not now"));
    assert!(prepared.value_and_grad(ParameterFilter::default(), (), fails).is_err());
    Adam::new(1e-2).update(&mut prepared, &made)?;
    let said = gradients(&mut prepared, Dtype::Bfloat16).expect_err("they are wide").to_string();
    assert!(said.starts_with("half floats became f32 since the latest gradient: "), "{said}");

    // What somebody puts there is no doing of an optimizer.
    let [(_, mut dense), ..] = forms(Dtype::Bfloat16)?;
    let told = log.lines().len();
    gradients(&mut dense, Dtype::Bfloat16)?;
    dense.replace("*", |_, value| Ok(Some(value.dense()?.as_dtype(Dtype::Float32)?.into())))?;
    gradients(&mut dense, Dtype::Float32)?;
    assert_eq!(log.lines().len(), told);
    Ok(())
}

#[test]
fn gradients_of_what_takes_none_are_refused() -> Result<()> {
    let mut model = dense(Dtype::Float32)?.quantize("*.weight", AFFINE)?;
    let before: Vec<String> = avals(&model);
    let mut step = |path: &str, shape: &[i32]| {
        let good = ("layers.0.bias".into(), normal(1, &[64]));
        let bad = (path.into(), normal(1, shape));
        model.update(&mut Adam::new(1.0), FlattenedModuleParam::from([good, bad]))
    };
    let said = [
        said_of(step("layers.0.weight.codes", &[64, 32])),
        said_of(step("layers.0.weight", &[64, 64])),
        said_of(step("layers.2.bias", &[4])),
    ]
    .concat();
    expect![[r#"
        there is a gradient f32[64,32] of the leaf layers.0.weight.codes, and its codes u32[64,8] are not trained
        help: take gradients by `Model::value_and_grad`, which has those of float leaves alone
        the model has no leaf layers.0.weight
        help: its parameters are layers.0.bias, layers.0.weight.biases, layers.0.weight.codes, layers.0.weight.scales, layers.2.bias, layers.2.weight.biases, layers.2.weight.codes, layers.2.weight.scales
        the leaf layers.2.bias is f32[8], and its gradient is f32[4]
        help: give a gradient of the leaf's own shape
    "#]]
    .assert_eq(&said);
    assert_eq!(before, avals(&model));
    Ok(())
}

/// Steps of an optimizer, of which only the first ones are good.
struct Failing<O> {
    own: O,
    good: usize,
    panics: bool,
}

impl<O> Failing<O> {
    fn after(good: usize, own: O) -> Self {
        Self { own, good, panics: false }
    }
}

impl<O: Optimizer> Updatable for Failing<O> {
    fn state_projection(&mut self) -> Result<StateProjection<'_>, StateProjectionError> {
        Updatable::state_projection(&mut self.own)
    }
}

impl<O: Optimizer> Optimizer for Failing<O> {
    type State = O::State;

    fn state(&self) -> &Self::State {
        self.own.state()
    }

    fn state_mut(&mut self) -> &mut Self::State {
        self.own.state_mut()
    }

    fn update_single(&mut self, key: &Rc<str>, gradient: &Array, parameter: &mut Array) -> Result<(), Exception> {
        assert!(self.good > 0 || !self.panics, "it panics by design");
        self.good = self.good.checked_sub(1).ok_or_else(|| Exception::custom("it fails by design"))?;
        self.own.update_single(key, gradient, parameter)
    }
}

fn owned(model: &Model<Layers>) -> Vec<(String, Array)> {
    model.leaves(&ParameterFilter::All).into_iter().map(|(path, array)| (path, array.clone())).collect()
}

fn assert_same(found: &[(String, Array)], expected: &[(String, Array)], what: &str) -> Result<()> {
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((path, found), (other, expected)) in found.iter().zip(expected) {
        assert!(path == other && found.dtype() == expected.dtype(), "{what} {path}");
        assert!(found.eq_exact(expected)?, "{what} {path}");
    }
    Ok(())
}

#[test]
fn after_an_error_of_the_optimizer_the_leaves_are_what_they_were() -> Result<()> {
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        for (form, mut model) in forms(dtype)? {
            let before = owned(&model);
            let gradients = gradients(&mut model, dtype)?;
            let mut sgd = Sgd::new(0.1);
            sgd.momentum = 0.5;
            let mut failing = Failing::after(1, sgd);
            let error = model.update(&mut failing, &gradients);
            assert!(failing.own.state().is_empty());
            assert!(error.expect_err("it fails").to_string().contains("by design"));
            assert_same(&owned(&model), &before, &format!("{form} {dtype:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn after_an_error_of_the_optimizer_its_moments_are_what_they_were() -> Result<()> {
    let mut model = dense(Dtype::Float32)?;
    let gradients = gradients(&mut model, Dtype::Float32)?;
    let mut sgd = Sgd::new(0.1);
    sgd.momentum = 0.5;
    let mut failing = Failing::after(gradients.len() + 2, sgd);
    model.update(&mut failing, &gradients)?;
    let before = failing.own.state().clone();
    assert!(before.len() == gradients.len() && model.update(&mut failing, &gradients).is_err());
    for (path, moment) in &before {
        // Moments of transposed gradients lie as those do.
        let [now, before] = [&failing.own.state()[path], moment].map(|moment| moment.reshape(&[-1]));
        assert_eq!(numbers(&now?), numbers(&before?), "{path}");
    }
    Ok(())
}

/// mlx-rs reads moments of Adafactor back by the last name of their paths alone.
#[test]
fn after_an_error_moments_of_new_parameters_begin_anew_and_the_others_go_on() -> Result<()> {
    let (mut failed, mut whole) = (dense(Dtype::Float32)?, dense(Dtype::Float32)?);
    let all = gradients(&mut whole, Dtype::Float32)?;
    let first: FlattenedModuleParam = all
        .iter()
        .filter(|(path, _)| path.starts_with("layers.0"))
        .map(|(path, x)| (path.clone(), x.clone()))
        .collect();
    assert_eq!((all.len(), first.len()), (4, 2));
    let mut failing = Failing::after(5, Adafactor::new().expect("builds"));
    let mut adafactor = Adafactor::new().expect("builds");
    failed.update(&mut failing, &first)?;
    whole.update(&mut adafactor, &first)?;
    // Three of the four, one of which is new at least.
    assert!(failed.update(&mut failing, &all).is_err());
    assert_same(&owned(&failed), &owned(&whole), "after the error")?;
    failing.good = 4;
    failed.update(&mut failing, &all)?;
    whole.update(&mut adafactor, &all)?;
    assert_same(&owned(&failed), &owned(&whole), "after the next step")
}

#[test]
fn after_a_panic_of_the_optimizer_all_is_what_it_was() -> Result<()> {
    for (form, mut model) in forms(Dtype::Float32)? {
        let (before, gradients) = (owned(&model), gradients(&mut model, Dtype::Float32)?);
        let mut failing = Failing { panics: true, ..Failing::after(1, Adam::new(1e-2)) };
        let panicked = catch_unwind(AssertUnwindSafe(|| model.update(&mut failing, &gradients)));
        assert!(panicked.is_err() && failing.own.state().is_empty(), "{form}");
        assert_same(&owned(&model), &before, form)?;
    }
    Ok(())
}

/// The moments of the bias had moved by then, and stayed.
#[test]
fn after_a_panic_of_an_optimizer_that_is_asked_for_its_rate_there_is_no_moment() -> Result<()> {
    let mut model = dense(Dtype::Float32)?;
    let (gradients, before) = (gradients(&mut model, Dtype::Float32)?, owned(&model));
    // The bias is stepped, and for the weight the optimizer is asked for its rate first.
    let failing = Failing { panics: true, ..Failing::after(1, Adam::new(1e-2)) };
    let mut optimizer = QuantizedState::new(failing, &Rules::new())?.apollo("*", Apollo::new(4))?;
    let said = error(model.update(&mut optimizer, &gradients)).to_string();
    assert!(said.contains("by design"), "{said}");
    assert_eq!(optimizer.nbytes(), 0);
    assert_same(&owned(&model), &before, "a panic")
}

#[test]
fn an_optimizer_of_a_tree_that_fails_steps_nothing() -> Result<()> {
    let mut model = dense(Dtype::Float32)?;
    let (before, gradients) = (owned(&model), gradients(&mut model, Dtype::Float32)?);
    let mut failing = Stateful(Failing::after(1, Adam::new(1e-2)));
    assert!(failing.update(&mut model, &gradients).is_err() && failing.own.state().is_empty());
    assert_same(&owned(&model), &before, "alone")
}

/// MLX spreads a vector over the rows of moments, and the vector would be a matrix.
#[test]
fn moments_of_another_shape_do_not_reach_a_leaf() -> Result<()> {
    let mut model = dense(Dtype::Float32)?;
    let before = owned(&model);
    let mut adam = Adam::new(1e-2);
    let moment = ops::zeros::<f32>(&[4, 8])?;
    adam.state_mut().insert("layers.2.bias".into(), (moment.clone(), moment));
    expect![[r"
        the optimizer makes f32[4,8] of the leaf layers.2.bias, which is f32[8]
        help: restore the moments of a model of the same shapes, or begin with a new optimizer"]]
    .assert_eq(
        &error(model.update(&mut adam, FlattenedModuleParam::from([("layers.2.bias".into(), normal(1, &[8]))])))
            .to_string(),
    );
    assert_eq!(adam.state()["layers.2.bias"].0.shape(), [4, 8]);
    assert_same(&owned(&model), &before, "refused")
}

/// Codes that were read without their scales are no weights.
#[test]
fn what_is_no_float_is_refused_for_a_float_parameter() -> Result<()> {
    let mut model = dense(Dtype::Float32)?;
    for dtype in [Dtype::Int32, Dtype::Uint8, Dtype::Bool, Dtype::Int8, Dtype::Uint32] {
        let codes = normal(1, &[8]).as_dtype(dtype)?;
        assert!(model.set("layers.2.bias", codes.clone()).is_err(), "{dtype:?}");
        let given = Parameters::from([("layers.2.bias".to_owned(), codes.into())]);
        assert!(model.assign(given, Missing::Keep).is_err(), "{dtype:?}");
    }
    expect![[r#"
        the parameter layers.2.bias is f32[8] and was given i32[8]
        help: give floats for floats: codes of a checkpoint are read with their scales, by the reader of its format"#]]
    .assert_eq(&error(model.set("layers.2.bias", normal(1, &[8]).as_dtype(Dtype::Int32)?)).to_string());
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        model.set("layers.2.bias", normal(1, &[8]).as_dtype(dtype)?)?;
    }
    Ok(())
}
