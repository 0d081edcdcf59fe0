//! Types of other crates: registered nodes.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use expect_test::expect;
use mlx_rs::Array;
use tacit::transform::grad;
use tacit::tree::{self, Gradient, Leaf, Open, Static};
use tacit::{Tree, Value, compile, implicit, register_node};

use crate::trees::{a, def, difference, number, paths};
use crate::types::{Left, Outer, dense, numbers, vector, without_handlers};

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

#[derive(Tree)]
pub(crate) struct ScaleTree {
    by: Array,
    #[tree(static)]
    bits: u8,
}

register_node!(
    #[derive(Clone, Debug)]
    pub(crate) ScaleNode(Scale) as ScaleTree,
    |scale| ScaleTree { by: scale.by.clone(), bits: scale.bits },
    |tree| Ok(Scale { by: tree.by, bits: tree.bits }),
);

#[test]
fn a_registered_type_is_a_node() {
    let scale = ScaleNode(Scale::of(2.0, 3));
    let (leaves, own) = tree::flatten(&(a(), scale.clone()), Open::Closed).expect("flattens");
    expect!["(*, Scale(ScaleTree{by: *, bits=3}))"].assert_eq(&own.to_string());
    let (_, back): (Array, ScaleNode) = tree::unflatten(&own, leaves).expect("fits");
    assert_eq!((number(&back.by), back.bits), (2.0, 3));
    assert_eq!(difference(&scale, &ScaleNode(Scale::of(2.0, 4))), "static bits 3 -> 4 at the root");
    let mut other = ScaleNode(Scale::of(5.0, 6));
    tree::assign(&mut other, &def(&scale), crate::trees::leaves(&[7.0])).expect("fits");
    assert_eq!((number(&other.by), other.bits), (7.0, 3));
}

#[test]
fn a_traced_function_takes_a_registered_type() {
    let _scopes = without_handlers();
    let args = (vector(&[3.0]), ScaleNode(Scale::of(2.0, 0)));
    let scaled = implicit(args, |(x, scale)| x.multiply(&scale.by)).expect("runs");
    assert_eq!(dense(&scaled), [6.0]);
}

/// Stands for a generic type of another crate, without a word of trees.
struct Pair<T> {
    name: &'static str,
    first: T,
    rest: Vec<T>,
}

/// Its tree: the fields by their names, one of them static.
#[derive(Tree)]
struct PairTree<T> {
    first: T,
    rest: Vec<T>,
    #[tree(static)]
    name: &'static str,
}

register_node!(
    PairNode<T: Tree + Clone>(Pair<T>) as (T, Vec<T>, Static<&'static str>),
    |pair| (pair.first.clone(), pair.rest.clone(), Static(pair.name)),
    |(first, rest, name)| Ok(Pair { name: name.0, first, rest }),
);

/// Stands for a type of another crate that holds others: a quantized value, and the registered types.
#[derive(Clone)]
struct Deep {
    weight: Value,
    scales: Vec<Scale>,
}

#[derive(Tree)]
struct DeepTree {
    weight: Value,
    scales: Vec<ScaleNode>,
}

register_node!(
    #[derive(Clone)]
    DeepNode(Deep) as DeepTree,
    |deep| DeepTree { weight: deep.weight.clone(), scales: deep.scales.iter().cloned().map(ScaleNode).collect() },
    |tree| Ok(Deep { weight: tree.weight, scales: tree.scales.into_iter().map(|scale| scale.0).collect() }),
);

fn deep() -> Deep {
    Deep { weight: Outer::of(Left::of(&vector(&[2.0]))), scales: vec![Scale::of(3.0, 8), Scale::of(4.0, 4)] }
}

#[test]
fn children_may_be_any_tree_with_field_names_in_paths() {
    let node = DeepNode(deep());
    let (leaves, own) = tree::flatten(&node, Open::Fully).expect("flattens");
    assert_eq!(paths(&own), ["weight.inner.array", "scales.0.by", "scales.1.by"]);
    expect!["Deep(DeepTree{weight: Outer{inner: Left{array: *, aval=f32[1]}, aval=f32[1]}, scales: [Scale(ScaleTree{by: *, bits=8}), Scale(ScaleTree{by: *, bits=4})]})"].assert_eq(&own.to_string());
    let back: DeepNode = tree::unflatten(&own, leaves).expect("fits");
    assert!(back.weight.downcast::<Outer>().is_some());
    assert_eq!((number(&back.scales[1].by), back.scales[1].bits), (4.0, 4));
    let mut other = deep();
    other.scales[1].bits = 5;
    assert_eq!(difference(&node, &DeepNode(other)), "static bits 4 -> 5 at `scales.1`");
}

#[test]
fn registered_types_stand_within_registered_types_and_are_generic() {
    let scale = |by| ScaleNode(Scale::of(by, 8));
    let pair = PairNode(Pair { name: "outer", first: scale(1.0), rest: vec![scale(2.0), scale(3.0)] });
    let nested = PairNode(Pair { name: "arrays", first: a(), rest: vec![] });
    let (leaves, own) = tree::flatten(&(pair, nested), Open::Closed).expect("flattens");
    assert_eq!(paths(&own), ["0.0.by", "0.1.0.by", "0.1.1.by", "1.0"]);
    let (pair, nested): (PairNode<ScaleNode>, PairNode<Array>) = tree::unflatten(&own, leaves).expect("fits");
    assert_eq!((pair.name, number(&pair.rest[1].by), nested.name), ("outer", 3.0, "arrays"));
    // Parameters are part of what the type is.
    assert_ne!(
        def(&PairNode(Pair { name: "", first: a(), rest: vec![] })),
        def(&PairNode(Pair { name: "", first: scale(1.0), rest: vec![] })),
    );
}

#[test]
fn a_generic_tree_stands_for_a_generic_type() {
    register_node!(
        Named<T: Leaf>(Pair<T>) as PairTree<T>,
        |pair| PairTree { first: pair.first.clone(), rest: pair.rest.clone(), name: pair.name },
        |tree| Ok(Pair { name: tree.name, first: tree.first, rest: tree.rest }),
    );
    let named = Named(Pair { name: "x", first: Left::of(&vector(&[1.0])), rest: vec![a().into()] });
    let (_, own) = tree::flatten(&named, Open::Fully).expect("flattens");
    assert_eq!(paths(&own), ["first.array", "rest.0"]);
}

#[test]
fn a_compiled_function_takes_registered_types_and_finds_its_trace_again() {
    let _scopes = without_handlers();
    let mut f = compile(|(deep, x): (DeepNode, Array)| -> tacit::Result<Array> {
        let scaled = deep.scales.iter().try_fold(x, |x, scale| x.multiply(&scale.by))?;
        Ok(scaled.multiply(deep.weight.dense()?)?)
    });
    for (bits, traces) in [(8, 1), (8, 1), (6, 2), (8, 2)] {
        let mut deep = deep();
        deep.scales[0].bits = bits;
        assert_eq!(dense(&f.call((DeepNode(deep), vector(&[1.0]))).expect("runs")), [24.0]);
        assert_eq!(f.stats().traces, traces);
    }
    assert_eq!(f.stats().retraces().collect::<Vec<_>>(), ["static bits 8 -> 6 at `args.0.scales.0`"]);
}

#[test]
fn the_gradient_of_a_registered_type_has_its_tree() {
    let _scopes = without_handlers();
    let mut gradient = grad(|(scale, x): (ScaleNode, Array)| scale.by.multiply(x)?.sum(None));
    let (by, _): (Gradient, Gradient) = gradient.call((ScaleNode(Scale::of(2.0, 8)), vector(&[5.0]))).expect("runs");
    assert_eq!(numbers(by.child("by").array().expect("float")), [5.0]);
}
