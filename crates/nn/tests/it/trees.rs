//! Modules, optimizers and random states as trees.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::rc::Rc;

use expect_test::expect;
use mlx_rs::builder::Builder;
use mlx_rs::error::StateProjectionError;
use mlx_rs::module::{Module as _, ModuleParameters, Parameter};
use mlx_rs::optimizers::{Optimizer, Sgd, SgdBuilder};
use mlx_rs::utils::{StateProjection, Updatable};
use mlx_rs::{Array, nn};
use tacit_core::transform::{grad_wrt, value_and_grad_wrt};
use tacit_core::tree::{self, Gradient, Open};
use tacit_core::{Error, Result, Tree, Value};
use tacit_nn::{Module, Stateful};

use crate::types::{def, error, matrix, normal, numbers, paths, said_of, vector};

fn a() -> Array {
    vector(&[1.0])
}

fn leaves(values: &[f32]) -> Vec<Value> {
    values.iter().map(|value| vector(&[*value]).into()).collect()
}

fn number(array: &Array) -> f32 {
    numbers(array)[0]
}

fn difference(first: &impl Tree, second: &impl Tree) -> String {
    def(first).difference(&def(second)).expect("they differ").to_string()
}

fn linear() -> Module<nn::Linear> {
    let mut linear = nn::Linear::new(2, 3).expect("builds");
    linear.weight.value = matrix(3, 2);
    linear.bias.value = Some(vector(&[0.5, 0.5, 0.5]));
    Module::new(linear)
}

#[test]
fn a_module_comes_back_with_its_parameters() {
    let linear = linear();
    let (leaves, def) = tree::flatten(&linear, Open::Closed).expect("flattens");
    expect!["Linear{bias: *, weight: *}"].assert_eq(&def.to_string());
    assert_eq!(paths(&def), ["bias", "weight"]);
    let mut back: Module<nn::Linear> = tree::unflatten(&def, leaves).expect("fits");
    let x = vector(&[1.0, 1.0]).reshape(&[1, 2]).expect("builds");
    assert_eq!(numbers(&back.forward(&x).expect("runs")), [3.5, 7.5, 11.5]);
    assert_eq!(numbers(&linear.weight), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "the original has its own");
}

#[test]
fn modules_of_two_types_or_forms_differ() {
    let without = Module::new(nn::LinearBuilder::new(2, 3).bias(false).build().expect("builds"));
    assert_eq!(
        difference(&linear(), &without),
        "Linear with the keys bias, weight -> Linear with the keys weight at the root"
    );
    let norm = Module::new(nn::LayerNorm::new(3).expect("builds"));
    assert_eq!(paths(&def(&norm)), ["bias", "weight"]);
    assert_eq!(
        difference(&linear(), &norm),
        "Linear with the keys bias, weight -> LayerNorm with the keys bias, weight at the root"
    );
}

#[test]
fn a_module_is_assigned_in_place() {
    let mut own = linear();
    let def = def(&own);
    tree::assign(&mut own, &def, vec![vector(&[1.0; 3]).into(), matrix(3, 2).negative().expect("builds").into()])
        .expect("fits");
    assert_eq!(numbers(&own.weight), [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
    assert_eq!(numbers(own.bias.value.as_ref().expect("has one")), [1.0; 3]);
}

#[test]
fn a_module_keeps_what_is_no_parameter_when_it_is_assigned() {
    let mut dropout = Module::new(nn::Dropout::new());
    let def = def(&dropout);
    dropout.training_mode(false);
    tree::assign(&mut dropout, &def, Vec::new()).expect("fits");
    let x = vector(&[1.0; 64]);
    assert_eq!(numbers(&dropout.forward(&x).expect("runs")), [1.0; 64], "it is still not training");
}

#[test]
fn nested_modules_are_leaves_by_path() {
    let model = nn::Sequential::new().append((*linear()).clone()).append(nn::Relu).append((*linear()).clone());
    let parameters = model.parameters().flatten().len();
    let def = def(&Module::new(nn::Linear::new(2, 2).expect("builds")));
    assert_eq!((parameters, def.leaves()), (4, 2));
}

#[test]
fn a_module_of_which_a_part_is_frozen_has_that_part_frozen() {
    let [mut first, mut second] = [(); 2].map(|()| (*linear()).clone());
    first.freeze_parameters(true);
    second.bias.freeze(true);
    let def = def(&Module::in_place(nn::Sequential::new().append(first).append(second)));
    assert_eq!(paths(&def), ["layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"]);
    assert_eq!(def.frozen(), [true, true, true, false]);
}

fn sgd() -> Stateful<Sgd> {
    Stateful(SgdBuilder::new(0.5).momentum(0.5).build().expect("builds"))
}

fn step(optimizer: &mut Stateful<Sgd>, parameter: f32) -> f32 {
    let mut parameter = vector(&[parameter]);
    optimizer.update_single(&Rc::from("w"), &vector(&[1.0]), &mut parameter).expect("steps");
    number(&parameter)
}

#[test]
fn the_moments_of_an_optimizer_appear_with_its_first_step() {
    let mut stepped = sgd();
    let empty = def(&stepped);
    assert_eq!((empty.leaves(), empty.to_string()), (0, "Sgd{}".to_owned()));
    assert_eq!(step(&mut stepped, 1.0), 0.5);
    let (moments, own) = tree::flatten(&stepped, Open::Closed).expect("flattens");
    assert_eq!((paths(&own), own.to_string()), (vec!["w".to_owned()], "Sgd{w: *}".to_owned()));
    assert_eq!(
        empty.difference(&own).expect("they differ").to_string(),
        "Sgd without keys -> Sgd with the keys w at the root"
    );

    // One that has no moment yet takes it, and goes on as the other would.
    let mut other = sgd();
    tree::assign(&mut other, &own, moments.clone()).expect("fits");
    assert_eq!(step(&mut other, 1.0), step(&mut stepped, 1.0));
    let mut back: Stateful<Sgd> = tree::unflatten(&own, moments).expect("fits");
    assert_eq!(step(&mut back, 1.0), 0.25, "0.5 (0.5 1 + 1) less");

    // One that has it takes the new one, and one that has to lose it does.
    tree::assign(&mut other, &own, leaves(&[0.0])).expect("fits");
    assert_eq!(step(&mut other, 1.0), 0.5);
    tree::assign(&mut other, &empty, Vec::new()).expect("fits");
    assert_eq!(def(&other), empty);
}

#[test]
fn a_module_and_its_optimizer_are_one_tree() {
    let state = (linear(), sgd());
    let (leaves, def) = tree::flatten(&state, Open::Fully).expect("flattens");
    let (module, _): (Module<nn::Linear>, Stateful<Sgd>) = tree::unflatten(&def, leaves).expect("fits");
    assert_eq!(numbers(&module.weight), numbers(&state.0.weight));
}

/// Gives two entries one key.
#[derive(Clone, Debug)]
struct Colliding(Array, Array);

impl Updatable for Colliding {
    fn state_projection(&mut self) -> Result<StateProjection<'_>, StateProjectionError> {
        let mut projection = StateProjection::new();
        projection.required("w", &mut self.0)?;
        projection.required("w", &mut self.1)?;
        Ok(projection)
    }
}

#[test]
fn what_mlx_rs_lists() {
    let linear = || nn::Linear::new(2, 3).expect("builds");
    let mut without = Module::in_place(nn::LinearBuilder::new(2, 3).bias(false).build().expect("builds"));
    let with = def(&Module::in_place(linear()));
    let said = [
        said_of(tree::assign(&mut without, &with, vec![a().into(), matrix(3, 2).into()])),
        said_of(tree::unflatten::<Module<nn::Linear>>(&with, vec![a().into(), matrix(3, 2).into()])),
        said_of(tree::unflatten::<Module<nn::LayerNorm>>(&def(&Module::new(linear())), leaves(&[1.0, 2.0]))),
        said_of(tree::structure(&Stateful(Colliding(a(), a())))),
    ]
    .concat();
    expect![[r#"
        the module has no parameter bias, which the structure has
        help: leave the parameters in place, or make the state a `Module` that can be copied: only such a state may gain or lose one
        mlx_rs::nn::linear::Linear cannot be made of its parameters alone
        help: make it the state of `compile_with_state`, or assign to it with `tree::assign`
        the structure holds mlx_rs::nn::linear::Linear where mlx_rs::nn::normalization::LayerNorm is expected
        help: use the definition of a tree of this very type
        mlx-rs cannot list the state: duplicate state key w
        help: give each entry its own key
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_module_is_differentiated_whole() {
    let layer = Module::new(nn::Linear::new(2, 1).expect("is made"));
    let mut step = value_and_grad_wrt([0], |(mut layer, x): (Module<nn::Linear>, Array)| layer.forward(&x)?.sum(None));
    let (_, (gradient, dx)) = step.call((layer, mlx_rs::ops::ones::<f32>(&[3, 2]).expect("ones"))).expect("runs");
    assert_eq!(numbers(gradient.child("weight").array().expect("has one")), [3.0, 3.0]);
    assert!(dx.is_nothing());
}

/// What an optimizer with momentum and weight decay does to every parameter that it gets.
fn decay(_: &tree::Path, array: &Array, gradient: &Array) -> Result<Array> {
    let step = gradient.add(array.multiply(Array::from_f32(0.1))?)?.add(Array::from_f32(1.0))?;
    Ok(array.subtract(step)?)
}

#[test]
fn a_frozen_parameter_and_a_statistic_have_no_gradient_and_stay_to_the_bit() {
    let mut linear = nn::Linear::new(4, 3).expect("builds");
    linear.weight.freeze(true);
    let mut model = (Module::new(linear), Module::new(nn::BatchNorm::new(3).expect("builds")));
    let before = tree::leaves(&model, Open::Closed).expect("flattens");
    let before: Vec<_> = before.iter().map(|leaf| numbers(leaf.as_dense().expect("dense"))).collect();
    assert_eq!(paths(&def(&model)), ["0.bias", "0.weight", "1.bias", "1.running_mean", "1.running_var", "1.weight"]);
    assert_eq!(def(&model).frozen(), [false, true, false, true, true, false]);
    for training in [true, false] {
        model.1.training_mode(training);
        let mut gradient = grad_wrt(
            [0, 1],
            |(mut linear, mut norm, x): (Module<nn::Linear>, Module<nn::BatchNorm>, Array)| -> Result<Array> {
                let y = norm.forward(&linear.forward(&x)?)?;
                Ok(y.multiply(&y)?.multiply(&y)?.sum(None)?)
            },
        );
        let (of_linear, of_norm, dx) =
            gradient.call((model.0.clone(), model.1.clone(), normal(1, &[8, 4]))).expect("runs");
        expect!["mlx_rs::nn::linear::Linear{bias: f32[3], weight: nothing}"].assert_eq(&of_linear.to_string());
        expect!["mlx_rs::nn::normalization::BatchNorm{bias: f32[3], running_mean: nothing, running_var: nothing, weight: f32[3]}"]
            .assert_eq(&of_norm.to_string());
        assert!(dx.is_nothing());
        tree::update(&mut model, &(of_linear, of_norm), decay).expect("fits");
    }
    let after = tree::leaves(&model, Open::Closed).expect("flattens");
    let moved: Vec<bool> =
        after.iter().zip(before).map(|(leaf, before)| numbers(leaf.as_dense().expect("dense")) != before).collect();
    assert_eq!(moved, [true, false, true, false, false, true]);
    // Nor does an array that is given for one.
    let dense = Gradient::Node {
        name: "mlx_rs::nn::linear::Linear",
        children: vec![("bias".into(), Gradient::Nothing), ("weight".into(), matrix(3, 4).into())],
    };
    tree::update(&mut model.0, &dense, |_, _, _| Err(Error::invalid("nothing is updated", "none"))).expect("stays");
}

#[test]
fn freezing_is_part_of_the_structure() {
    let mut frozen = linear();
    frozen.weight.freeze(true);
    assert_eq!(difference(&linear(), &frozen), "an array -> a frozen array at `weight`");
    let mut wholly = linear();
    wholly.freeze_parameters(true);
    let gradient = grad_wrt([0], |(mut layer, x): (Module<nn::Linear>, Array)| layer.forward(&x)?.sum(None));
    expect![[r#"
        no float array is among the leaves to differentiate with respect to: `0.bias` f32[3], `0.weight` f32[3,2]
        help: choose a float leaf that is not frozen; integers and packed codes have no gradient"#]]
    .assert_eq(&error({ gradient }.call((wholly, matrix(1, 2)))).to_string());
}
