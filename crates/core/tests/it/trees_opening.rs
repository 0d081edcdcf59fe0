//! Implicit arrays in trees: closed, opened by one layer, opened fully.

use std::cell::RefCell;
use std::collections::BTreeMap;

use expect_test::expect;
use mlx_rs::{Array, memory};
use tacit::tree::{self, Branch, Gradient, NodeKind, Open, Path};
use tacit::{Aval, ImplicitArray, Materialize, Result, Value};

use crate::trees::{def, difference, hash, paths};
use crate::turns;
use crate::types::{Left, Outer, Right, aval, matrix, vector};

/// Has children of every form.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Blocks")]
struct Blocks {
    parts: Vec<Value>,
    scale: Option<Array>,
    base: Value,
    #[implicit(aux)]
    block_size: usize,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Blocks {
    fn materialize(&self) -> Result<Value> {
        Ok(self.base.clone())
    }
}

fn blocks(block_size: usize, parts: usize, scale: bool) -> Value {
    let part = Left::of(&vector(&[1.0]));
    let base = Outer::of(Right::of(&matrix(2, 2)));
    let scale = scale.then(|| vector(&[2.0]));
    Blocks { parts: vec![part; parts], scale, base, block_size, aval: aval(&[2, 2]) }.into()
}

fn opened(value: &Value, open: Open<'_>) -> (String, String, Vec<String>) {
    let (leaves, def) = tree::flatten(value, open).expect("flattens");
    assert_eq!(leaves.len(), def.leaves());
    let printed = leaves.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let back: Value = tree::unflatten(&def, leaves).expect("fits");
    assert_eq!(format!("{back:?}"), format!("{value:?}"), "it comes back as it was");
    (def.to_string(), printed, paths(&def))
}

#[test]
fn a_closed_one_is_a_leaf() {
    let (def, leaves, paths) = opened(&blocks(4, 2, true), Open::Closed);
    assert_eq!((&*def, &*leaves, paths), ("*", "Blocks(f32[2,2])", vec![String::new()]));
}

#[test]
fn a_function_chooses_by_path_and_node_which_are_opened() {
    let mut asked = RefCell::new(Vec::new());
    let chosen = ["test.Blocks", "test.Outer"];
    let chooses = |path: &Path, branch: &Branch<'_>| {
        let Branch::Implicit(array) = branch else { return true };
        asked.borrow_mut().push(format!("{path}: {}", array.typetag_name()));
        chosen.contains(&array.typetag_name())
    };
    let (def, leaves, paths) = opened(&blocks(4, 1, false), Open::Where(&chooses));
    expect!["Blocks{parts.0: *, base: Outer{inner: *, aval=f32[2,2]}, block_size=4, aval=f32[2,2]}"].assert_eq(&def);
    assert_eq!(leaves, "Left(f32[1]) Right(f32[2,2])");
    assert_eq!(paths, ["parts.0", "base.inner"]);
    assert_eq!(*asked.get_mut(), [": test.Blocks", "parts.0: test.Left", "base: test.Outer", "base.inner: test.Right"]);
}

#[test]
fn the_opening_stops_at_a_container() {
    let left = || Left::of(&vector(&[1.0]));
    let layers = BTreeMap::from([
        ("first".to_owned(), vec![left(), Outer::of(left())]),
        ("second".to_owned(), vec![left()]),
        ("third".to_owned(), vec![left()]),
    ]);
    let tree = (layers, Some(left()));
    let asked = RefCell::new(Vec::new());
    let chooses = |path: &Path, branch: &Branch<'_>| {
        asked.borrow_mut().push(path.to_string());
        !matches!((branch, &**path), (Branch::Node(node), "0.first" | "0.third") if node.kind == NodeKind::List)
    };
    let (leaves, def) = tree::flatten(&tree, Open::Where(&chooses)).expect("flattens");
    let told: Vec<String> = def.paths().iter().zip(&leaves).map(|(path, leaf)| format!("{path} {leaf}")).collect();
    assert_eq!(
        told,
        [
            "0.first.0 Left(f32[1])",
            "0.first.1 Outer(f32[1])",
            "0.second.0.array f32[1]",
            "0.third.0 Left(f32[1])",
            "1.array f32[1]"
        ]
    );
    // What is below is not asked for.
    assert_eq!(asked.into_inner(), ["", "0", "0.first", "0.second", "0.second.0", "0.third", "1", "1"]);
}

#[test]
fn one_layer_has_implicit_leaves() {
    let (def, leaves, paths) = opened(&blocks(4, 2, true), Open::OneLayer);
    expect!["Blocks{parts.0: *, parts.1: *, scale: *, base: *, block_size=4, aval=f32[2,2]}"].assert_eq(&def);
    assert_eq!(leaves, "Left(f32[1]) Left(f32[1]) f32[1] Outer(f32[2,2])");
    assert_eq!(paths, ["parts.0", "parts.1", "scale", "base"]);
}

#[test]
fn fully_opened_every_leaf_is_dense() {
    let (def, leaves, paths) = opened(&blocks(4, 1, false), Open::Fully);
    expect!["Blocks{parts.0: Left{array: *, aval=f32[1]}, base: Outer{inner: Right{array: *, aval=f32[2,2]}, aval=f32[2,2]}, block_size=4, aval=f32[2,2]}"]
    .assert_eq(&def);
    assert_eq!(leaves, "f32[1] f32[2,2]");
    assert_eq!(paths, ["parts.0.array", "base.inner.array"]);
}

#[test]
fn an_opened_one_inside_a_tree_closes_again_behind_it() {
    let tree = (vec![Outer::of(Left::of(&vector(&[1.0])))], Value::from(vector(&[2.0])), blocks(1, 0, false));
    for open in [Open::Closed, Open::OneLayer, Open::Fully] {
        let (leaves, def) = tree::flatten(&tree, open).expect("flattens");
        let back: (Vec<Value>, Value, Value) = tree::unflatten(&def, leaves).expect("fits");
        assert_eq!(format!("{back:?}"), format!("{tree:?}"));
    }
    let (_, def) = tree::flatten(&tree, Open::OneLayer).expect("flattens");
    assert_eq!(paths(&def), ["0.0.inner", "1", "2.base"]);
}

#[test]
fn static_fields_types_and_children_are_part_of_an_opened_structure() {
    let of = |value: &Value| tree::flatten(value, Open::Fully).expect("flattens").1;
    let differ = |a: &Value, b: &Value| {
        assert_ne!(of(a), of(b));
        of(a).difference(&of(b)).expect("they differ").to_string()
    };
    assert_eq!(of(&blocks(4, 1, true)), of(&blocks(4, 1, true)));
    assert_eq!(hash(&of(&blocks(4, 1, true))), hash(&of(&blocks(4, 1, true))));
    let text = [
        differ(&blocks(64, 1, true), &blocks(32, 1, true)),
        differ(&blocks(4, 1, true), &blocks(4, 2, true)),
        differ(&blocks(4, 1, true), &blocks(4, 1, false)),
        differ(&Left::of(&vector(&[1.0])), &Right::of(&vector(&[1.0]))),
        differ(&Outer::of(Left::of(&vector(&[1.0]))), &Outer::of(Right::of(&vector(&[1.0])))),
        differ(&Left::of(&vector(&[1.0])), &vector(&[1.0]).into()),
        differ(&Outer::of(Left::of(&vector(&[1.0]))), &Outer::of(Left::of(&matrix(1, 1)))),
    ];
    expect![[r#"
        static block_size 64 -> 32 at the root
        Blocks with 3 children -> 4 children at the root
        Blocks with 3 children -> 2 children at the root
        Left -> Right at the root
        Left -> Right at `inner`
        Left -> an array at the root
        static aval f32[1] -> f32[1,1] at the root"#]]
    .assert_eq(&text.join("\n"));
    assert_eq!(
        difference(&vec![blocks(1, 0, false)], &(vec![blocks(2, 0, false)],)),
        "list of 1 -> tuple of 1 at the root"
    );
    assert_eq!(def(&blocks(64, 1, true)), def(&blocks(32, 1, true)), "closed, both are leaves");
}

#[test]
fn the_depth_is_that_of_the_deepest_leaf() {
    let flat = vector(&[1.0]);
    let depth = |value: Value| tree::depth(&vec![Value::from(flat.clone()), value]).expect("has one");
    assert_eq!(depth(flat.clone().into()), 0);
    assert_eq!(depth(Left::of(&flat)), 1);
    assert_eq!(depth(Outer::of(flat.clone().into())), 1);
    assert_eq!(depth(Outer::of(Outer::of(Left::of(&flat)))), 3);
    assert_eq!(depth(blocks(4, 1, true)), 3);
    assert_eq!(tree::depth(&()).expect("has one"), 0);
}

#[test]
fn a_structure_holds_none_of_the_arrays() {
    const MEBIBYTES: i32 = 1 << 20;
    let _turn = turns::of_memory();
    let big = || {
        let array = mlx_rs::ops::zeros::<f32>(&[16 * MEBIBYTES]).and_then(|zeros| zeros.add(Array::from_f32(1.0)));
        let array = array.expect("builds");
        array.eval().expect("evaluates");
        array
    };
    let active = || memory::active_memory().expect("is counted");
    let before = active();
    let tree = (big(), Outer::of(Left::of(&big())));
    let during = active();
    let (leaves, def) = tree::flatten(&tree, Open::Fully).expect("flattens");
    drop((tree, leaves));
    // Other tests run beside this one, with small arrays.
    let half = 32 * MEBIBYTES as usize;
    assert!(during > before + 3 * half, "{before} {during}");
    assert!(active() < before + half, "{before} {} {def}", active());
}

#[test]
fn a_gradient_of_an_opened_one_has_its_structure() {
    let (leaves, def) = tree::flatten(&blocks(4, 1, true), Open::Fully).expect("flattens");
    let gradient: Gradient = tree::unflatten(&def, leaves).expect("fits");
    expect!["test.Blocks{parts.0: test.Left{array: f32[1]}, scale: f32[1], base: test.Outer{inner: test.Right{array: f32[2,2]}}}"].assert_eq(&gradient.to_string());
    let whole = vec![gradient.clone(), Gradient::Nothing];
    let (leaves, def) = tree::flatten(&whole, Open::Closed).expect("flattens");
    let again: Vec<Gradient> = tree::unflatten(&def, leaves).expect("fits");
    assert_eq!(format!("{again:?}"), format!("{whole:?}"), "it is a tree itself");
    assert!(gradient.child("scale").array().is_ok() && gradient.child("nowhere").is_nothing());
    assert!(!gradient.is_nothing() && gradient.child("base").child("inner").child("array").array().is_ok());
}
