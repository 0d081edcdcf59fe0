//! `derive(Tree)`.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::collections::BTreeMap;

use expect_test::expect;
use mlx_rs::Array;
use tacit::tree::{self, Leaf, Open};
use tacit::{Arguments, Result, Tree, Value, explain, implicit};

use crate::trees::{a, def, difference, hash, leaves, number, paths};
use crate::trees_foreign::{Scale, ScaleNode};
use crate::types::{Left, Outer, dense, numbers, vector, without_handlers};

#[derive(Tree, Clone, Debug)]
struct Layer<L = Array> {
    weight: L,
    bias: Option<L>,
    #[tree(static)]
    transposed: bool,
}

#[derive(Tree, Clone, Debug)]
struct Params<L = Array> {
    #[tree(static)]
    name: String,
    layers: Vec<Layer<L>>,
    heads: [L; 2],
}

/// Of arrays only.
#[derive(Tree, Clone, Debug)]
struct Fixed {
    scale: Array,
    table: BTreeMap<String, Array>,
}

#[derive(Tree, Clone, Debug, PartialEq)]
struct Unit;

#[derive(Tree, Clone, Debug)]
struct Pair<L>(L, #[tree(static)] u8, L);

#[derive(Tree, Clone, Debug)]
struct Newtype<L>(L);

/// Is named as the derive names another leaf.
#[derive(Tree, Clone, Debug)]
struct OtherL<L>(L);

#[derive(Tree, Clone, Debug)]
struct Banks<L: Clone, const N: usize>
where
    L: std::fmt::Debug,
{
    banks: [L; N],
}

/// Has fields named like what the derive writes.
#[derive(Tree, Clone, Debug)]
struct Shadowing<L> {
    visitor: L,
    reader: L,
    #[tree(static)]
    entered: u8,
    r#type: L,
}

#[derive(Tree, Clone, Debug)]
enum Rule<L = Array> {
    Frozen,
    Scaled(L, #[tree(static)] u8),
    Moving { visitor: L, reader: Box<Self> },
}

#[allow(dead_code, reason = "a type of the same name as another")]
mod elsewhere {
    #[derive(tacit::Tree)]
    pub(super) struct Unit;
}

fn layer(value: f32, transposed: bool) -> Layer {
    Layer { weight: vector(&[value]), bias: None, transposed }
}

fn params() -> Params {
    let last = Layer { bias: Some(a()), ..layer(2.0, true) };
    Params { name: "small".to_owned(), layers: vec![layer(1.0, false), last], heads: [a(), a()] }
}

#[test]
fn a_struct_comes_back_with_its_static_fields() {
    let (leaves, def) = tree::flatten(&params(), Open::Closed).expect("flattens");
    expect![[r#"Params{layers: [Layer{weight: *, bias: None, transposed=false}, Layer{weight: *, bias: *, transposed=true}], heads: [*, *], name="small"}"#]].assert_eq(&def.to_string());
    assert_eq!(paths(&def), ["layers.0.weight", "layers.1.weight", "layers.1.bias", "heads.0", "heads.1"]);
    let back: Params = tree::unflatten(&def, leaves).expect("fits");
    assert_eq!(back.name, "small");
    assert_eq!(back.layers.iter().map(|layer| layer.transposed).collect::<Vec<_>>(), [false, true]);
    assert_eq!(number(&back.layers[1].weight), 2.0);
}

#[test]
fn a_generic_struct_has_one_structure_whatever_its_leaves_are() {
    let (leaves, of_arrays) = tree::flatten(&params(), Open::Closed).expect("flattens");
    let values: Params<Value> = tree::unflatten(&of_arrays, leaves).expect("fits");
    assert_eq!(def(&values), of_arrays);
    assert_eq!(hash(&def(&values)), hash(&of_arrays));
}

#[test]
fn static_fields_are_compared_and_named() {
    assert_eq!(difference(&layer(1.0, false), &layer(1.0, true)), "static transposed false -> true at the root");
    let mut other = params();
    "large".clone_into(&mut other.name);
    assert_eq!(difference(&params(), &other), r#"static name "small" -> "large" at the root"#);
    let mut other = params();
    other.layers[1].transposed = false;
    assert_eq!(difference(&params(), &other), "static transposed true -> false at `layers.1`");
    assert_eq!(difference(&Pair(a(), 1, a()), &Pair(a(), 2, a())), "static 1 1 -> 2 at the root");
}

#[test]
fn a_struct_without_a_parameter_keeps_its_type() {
    fn with<L: Leaf, T: Tree<With<L> = T>>(_: &T) {}
    let fixed = Fixed { scale: a(), table: BTreeMap::from([("b".to_owned(), a())]) };
    with::<Value, _>(&fixed);
    with::<Value, _>(&Unit);
    assert_eq!(def(&fixed).to_string(), "Fixed{scale: *, table: {b: *}}");
}

#[test]
fn every_form_of_struct_comes_back() {
    fn back<T: Tree>(tree: &T) -> (String, Vec<String>, T) {
        let (leaves, def) = tree::flatten(tree, Open::Closed).expect("flattens");
        (def.to_string(), paths(&def), tree::unflatten(&def, leaves).expect("fits"))
    }
    let (printed, _, unit) = back(&Unit);
    assert_eq!((&*printed, unit), ("Unit", Unit));
    let (printed, places, pair) = back(&Pair(vector(&[1.0]), 7, vector(&[2.0])));
    assert_eq!((number(&pair.0), pair.1, number(&pair.2)), (1.0, 7, 2.0));
    assert_eq!((&*printed, places), ("Pair{0: *, 2: *, 1=7}", vec!["0".to_owned(), "2".to_owned()]));
    let (printed, places, newtype) = back(&Newtype(Value::from(a())));
    assert_eq!((&*printed, places, newtype.0.is_implicit()), ("Newtype(*)", vec!["0".to_owned()], false));
    let (printed, _, banks) = back(&Banks { banks: [vector(&[1.0]), vector(&[2.0])] });
    assert_eq!((&*printed, number(&banks.banks[1])), ("Banks{banks: [*, *]}", 2.0));
    let (printed, ..) = back(&OtherL(a()));
    assert_eq!(printed, "OtherL(*)");
    let shadowing = Shadowing { visitor: vector(&[1.0]), reader: vector(&[2.0]), entered: 3, r#type: a() };
    let (printed, _, shadowing) = back(&shadowing);
    assert_eq!(printed, "Shadowing{visitor: *, reader: *, type: *, entered=3}");
    assert_eq!((number(&shadowing.visitor), number(&shadowing.reader)), (1.0, 2.0));
}

#[test]
fn types_of_one_name_in_two_modules_differ() {
    assert_eq!(
        difference(&Unit, &elsewhere::Unit),
        "it::trees_derive::Unit -> it::trees_derive::elsewhere::Unit at the root"
    );
    assert!(tree::unflatten::<elsewhere::Unit>(&def(&Unit), Vec::new()).is_err());
}

fn rules() -> [Rule; 4] {
    let moving = |next| Rule::Moving { visitor: vector(&[3.0]), reader: Box::new(next) };
    [Rule::Frozen, Rule::Scaled(vector(&[1.0]), 2), moving(Rule::Frozen), moving(Rule::Scaled(a(), 3))]
}

#[test]
fn every_variant_comes_back_and_is_part_of_the_structure() {
    let rules = rules();
    let printed = rules.each_ref().map(|rule| def(rule).to_string());
    expect![[r#"
        Rule::Frozen
        Rule::Scaled(*, 1=2)
        Rule::Moving{visitor: *, reader: Rule::Frozen}
        Rule::Moving{visitor: *, reader: Rule::Scaled(*, 1=3)}"#]]
    .assert_eq(&printed.join("\n"));
    for (i, rule) in rules.iter().enumerate() {
        let (leaves, own) = tree::flatten(rule, Open::Closed).expect("flattens");
        let back: Rule<Value> = tree::unflatten(&own, leaves).expect("fits");
        assert_eq!(def(&back), own);
        rules[..i].iter().for_each(|other| assert_ne!(def(other), own));
    }
    assert_eq!(difference(&rules[0], &rules[1]), "Rule::Frozen -> Rule::Scaled of 1 at the root");
    assert_eq!(difference(&rules[2], &rules[3]), "Rule::Frozen -> Rule::Scaled of 1 at `reader`");
    assert_eq!(difference(&rules[1], &Rule::Scaled(a(), 9)), "static 1 2 -> 9 at the root");
}

#[test]
fn any_variant_becomes_any_other() {
    for target in &rules() {
        let (leaves, target) = tree::flatten(target, Open::Closed).expect("flattens");
        for mut rule in rules() {
            tree::assign(&mut rule, &target, leaves.clone()).expect("fits");
            assert_eq!(def(&rule), target);
        }
    }
}

#[test]
fn a_struct_is_assigned_field_by_field() {
    let mut target = params();
    target.layers.truncate(1);
    "other".clone_into(&mut target.name);
    let mut own = params();
    tree::assign(&mut own, &def(&target), leaves(&[5.0, 6.0, 7.0])).expect("fits");
    assert_eq!((&*own.name, own.layers.len(), number(&own.heads[1])), ("other", 1, 7.0));
    tree::assign(&mut own, &def(&params()), leaves(&[1.0, 2.0, 3.0, 4.0, 5.0])).expect("fits");
    assert_eq!((&*own.name, number(own.layers[1].bias.as_ref().expect("has one"))), ("small", 3.0));
}

#[test]
fn an_assignment_reaches_what_is_no_part_of_the_tree() {
    /// Keeps what it had.
    #[derive(Debug, PartialEq)]
    struct Counting(Vec<f32>);
    impl Arguments for Counting {
        type Arrays = Self;
        fn flatten<'a>(&'a self, visitor: &mut dyn tree::Visitor<'a>) -> Result<()> {
            visitor.made(a().into(), false);
            Ok(())
        }
    }
    impl Tree for Counting {
        type With<L: Leaf> = L::Fixed<Self>;
        fn unflatten(reader: &mut tree::Reader<'_>) -> Result<Self> {
            Ok(Self(vec![number(&reader.array()?)]))
        }
        fn assign(&mut self, reader: &mut tree::Reader<'_>) -> Result<()> {
            self.0.push(number(&reader.array()?));
            Ok(())
        }
    }
    #[derive(Tree)]
    struct Named {
        field: Counting,
    }
    #[derive(Tree)]
    enum Any {
        Only(Counting),
        #[allow(dead_code, reason = "so that there are two")]
        Other,
    }
    let mut tree =
        (Named { field: Counting(vec![1.0]) }, Any::Only(Counting(vec![1.0])), vec![Some(Counting(vec![1.0]))]);
    let own = def(&tree);
    tree::assign(&mut tree, &own, leaves(&[2.0, 2.0, 2.0])).expect("fits");
    let both = Counting(vec![1.0, 2.0]);
    assert_eq!(tree.0.field, both);
    assert!(matches!(&tree.1, Any::Only(own) if *own == both));
    assert_eq!(tree.2, [Some(both)]);
}

#[test]
fn a_function_of_structs_takes_them_with_implicit_leaves() {
    let _scopes = without_handlers();
    let of = |value: f32, bias| Layer { weight: Outer::of(Left::of(&vector(&[value]))), bias, transposed: true };
    let params = Params {
        name: "two".to_owned(),
        layers: vec![of(2.0, None), of(3.0, Some(Left::of(&vector(&[5.0]))))],
        heads: [Left::of(&a()), a().into()],
    };
    let rule = Rule::Scaled(Left::of(&vector(&[10.0])), 2);
    let result = implicit((rule, params, vector(&[4.0])), |(rule, mut params, x)| -> Result<Params> {
        for layer in &mut params.layers {
            layer.weight = layer.weight.multiply(&x)?;
            if let (Some(bias), Rule::Scaled(by, times)) = (&mut layer.bias, &rule) {
                *bias = bias.multiply(by)?.multiply(Array::from_f32(f32::from(*times)))?;
            }
        }
        Ok(params)
    });
    let result = result.expect("runs");
    assert_eq!((&*result.name, result.layers[0].transposed), ("two", true));
    assert_eq!((dense(&result.layers[0].weight), dense(&result.layers[1].weight)), (vec![8.0], vec![12.0]));
    assert_eq!(dense(result.layers[1].bias.as_ref().expect("has one")), [100.0]);
    assert!(result.heads[0].is_implicit(), "what the function only passes on stays implicit");
}

#[test]
fn an_explanation_takes_structs_too() {
    let _scopes = without_handlers();
    let layer = Layer { weight: Left::of(&a()), bias: Some(a().into()), transposed: false };
    let explanation = explain(layer, |layer| layer.weight.add(layer.bias.as_ref().unwrap_or(&layer.weight)));
    let explanation = explanation.expect("runs");
    assert_eq!(explanation.inputs.iter().map(|input| &*input.form).collect::<Vec<_>>(), ["Left(f32[1])", "f32[1]"]);
    assert_eq!(explanation.equations.len(), 1);
}

#[test]
fn a_registered_type_is_a_field() {
    #[derive(Tree)]
    struct Sampler<L> {
        temperature: L,
        random: ScaleNode,
    }
    let sampler = Sampler { temperature: Value::from(a()), random: ScaleNode(Scale::of(2.0, 3)) };
    let (leaves, def) = tree::flatten(&sampler, Open::Fully).expect("flattens");
    assert_eq!(paths(&def), ["temperature", "random.by"]);
    let back: Sampler<Array> = tree::unflatten(&def, leaves).expect("fits");
    assert_eq!((numbers(&back.random.by), back.random.bits), (vec![2.0], 3));
    assert_eq!(number(&back.temperature), 1.0);
}
