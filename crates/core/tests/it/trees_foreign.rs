//! Types of other crates: registered nodes, mlx-rs modules and what mlx-rs can update.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::rc::Rc;

use expect_test::expect;
use mlx_rs::builder::Builder;
use mlx_rs::module::{Module as _, ModuleParameters};
use mlx_rs::optimizers::{Optimizer, Sgd, SgdBuilder};
use mlx_rs::{Array, nn};
use tacit::tree::{self, Foreign, Module, Open, Stateful};
use tacit::{Value, implicit, register_node};

use crate::trees::{a, def, difference, leaves, number, paths};
use crate::types::{dense, error, matrix, numbers, vector, without_handlers};

/// Stands for a type of another crate.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    pub(crate) by: Array,
    pub(crate) bits: u8,
}

impl Scale {
    pub(crate) fn of(by: f32, bits: u8) -> Self {
        Self { by: vector(&[by]), bits }
    }
}

register_node!(Scale, |scale: &Scale| (vec![Value::from(&scale.by)], scale.bits), |leaves: Vec<Value>, bits| Ok(
    Scale { by: leaves[0].dense()?, bits }
),);

#[test]
fn a_registered_type_is_a_node() {
    let scale = Foreign(Scale::of(2.0, 3));
    let (leaves, own) = tree::flatten(&(a(), scale.clone()), Open::Closed).expect("flattens");
    expect!["(*, Scale(*, aux=3))"].assert_eq(&own.to_string());
    let (_, back): (Array, Foreign<Scale>) = tree::unflatten(&own, leaves).expect("fits");
    assert_eq!((number(&back.by), back.bits), (2.0, 3));
    assert_eq!(difference(&scale, &Foreign(Scale::of(2.0, 4))), "static aux 3 -> 4 at the root");
    let mut other = Foreign(Scale::of(5.0, 6));
    tree::assign(&mut other, &def(&scale), crate::trees::leaves(&[7.0])).expect("fits");
    assert_eq!((number(&other.by), other.bits), (7.0, 3));
}

#[test]
fn a_traced_function_takes_a_registered_type() {
    let _scopes = without_handlers();
    let mut scaled = implicit(|(x, scale): (Array, Foreign<Scale>)| x.multiply(&scale.by));
    assert_eq!(dense(&scaled((vector(&[3.0]).into(), Foreign(Scale::of(2.0, 0)))).expect("runs")), [6.0]);
}

fn linear() -> Module<nn::Linear> {
    let mut linear = nn::Linear::new(2, 3).expect("builds");
    linear.weight.value = matrix(3, 2);
    linear.bias.value = Some(vector(&[0.5, 0.5, 0.5]));
    Module(linear)
}

#[test]
fn a_module_comes_back_with_its_parameters() {
    let linear = linear();
    let (leaves, def) = tree::flatten(&linear, Open::Closed).expect("flattens");
    expect!["Module{bias: *, weight: *, of=Linear}"].assert_eq(&def.to_string());
    assert_eq!(paths(&def), ["bias", "weight"]);
    let mut back: Module<nn::Linear> = tree::unflatten(&def, leaves).expect("fits");
    let x = vector(&[1.0, 1.0]).reshape(&[1, 2]).expect("builds");
    assert_eq!(numbers(&back.forward(&x).expect("runs")), [3.5, 7.5, 11.5]);
    assert_eq!(numbers(&linear.weight), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "the original has its own");
}

#[test]
fn modules_of_two_types_or_forms_differ() {
    let without = Module(nn::LinearBuilder::new(2, 3).bias(false).build().expect("builds"));
    assert_eq!(
        difference(&linear(), &without),
        "Module with the keys bias, weight -> Module with the keys weight at the root"
    );
    let norm = Module(nn::LayerNorm::new(3).expect("builds"));
    assert_eq!(paths(&def(&norm)), ["bias", "weight"]);
    assert_eq!(difference(&linear(), &norm), "static of Linear -> LayerNorm at the root");
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
    let mut dropout = Module(nn::Dropout::new());
    let def = def(&dropout);
    dropout.training_mode(false);
    tree::assign(&mut dropout, &def, Vec::new()).expect("fits");
    let x = vector(&[1.0; 64]);
    assert_eq!(numbers(&dropout.forward(&x).expect("runs")), [1.0; 64], "it is still not training");
}

#[test]
fn nested_modules_are_leaves_by_path() {
    let model = nn::Sequential::new().append(linear().0).append(nn::Relu).append(linear().0);
    let parameters = model.parameters().flatten().len();
    let def = def(&Module(nn::Linear::new(2, 2).expect("builds")));
    assert_eq!((parameters, def.leaves()), (4, 2));
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
    assert_eq!((empty.leaves(), empty.to_string()), (0, "Stateful{of=Sgd}".to_owned()));
    assert_eq!(step(&mut stepped, 1.0), 0.5);
    let (moments, own) = tree::flatten(&stepped, Open::Closed).expect("flattens");
    assert_eq!((paths(&own), own.to_string()), (vec!["w".to_owned()], "Stateful{w: *, of=Sgd}".to_owned()));
    assert_eq!(
        empty.difference(&own).expect("they differ").to_string(),
        "Stateful without keys -> Stateful with the keys w at the root"
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

#[test]
fn a_structure_of_another_type_is_refused() {
    let failed = tree::unflatten::<Module<nn::LayerNorm>>(&def(&linear()), leaves(&[1.0, 2.0]));
    expect![[r#"
        the structure holds another Module than mlx_rs::nn::normalization::LayerNorm
        help: use the definition of a tree of this very type"#]]
    .assert_eq(&error(failed).to_string());
}
