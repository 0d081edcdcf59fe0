//! The message of every error of trees, each really provoked. `UPDATE_EXPECT=1` rewrites them.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use expect_test::{Expect, expect};
use mlx_rs::Array;
use tacit::tree::{self, Gradient, Leaf, NodeKind, Open, Reader, Visitor};
use tacit::{Arguments, Result, Tree, implicit};

use crate::trees::{a, def, leaves};
use crate::types::{Left, Outer, error, matrix, said_of, vector};

fn check<T>(outcome: Result<T>, expected: &Expect) {
    expected.assert_eq(&error(outcome).to_string());
}

#[derive(Tree)]
struct Params<L = Array> {
    weight: L,
}

#[derive(Tree)]
enum Rule {
    Frozen,
    Scaled(Array),
}

/// Reads what its function reads, in whatever structure.
struct Reading<const N: usize>;

impl<const N: usize> Arguments for Reading<N> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, _: &mut dyn Visitor<'a>) -> Result<()> {
        Ok(())
    }
}

impl<const N: usize> Tree for Reading<N> {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        match N {
            0 => drop(reader.enter(NodeKind::Tuple)?.static_field::<u8>("heads")?),
            1 => (0..2).try_for_each(|_| reader.value().map(drop))?,
            2 => drop((reader.value()?, reader.enter(NodeKind::Tuple)?)),
            _ => drop((reader.value()?, Gradient::unflatten(reader)?)),
        }
        Ok(Self)
    }
}

#[test]
fn leaves_that_are_too_few_or_too_many() {
    let def = def(&(vec![a()], a()));
    check(
        tree::unflatten::<(Vec<Array>, Array)>(&def, leaves(&[1.0])),
        &expect![[r#"
        1 leaves do not fit ([*], *), which has 2
        help: give one leaf for each `*`"#]],
    );
    check(
        tree::unflatten::<(Vec<Array>, Array)>(&def, leaves(&[1.0; 3])),
        &expect![[r#"
        3 leaves do not fit ([*], *), which has 2
        help: give one leaf for each `*`"#]],
    );
}

#[test]
fn an_implicit_array_where_a_dense_one_stands() {
    check(
        tree::unflatten::<Params>(&def(&Params { weight: a() }), vec![Left::of(&a())]),
        &expect![[r#"
        Left(f32[1]) stands where the structure holds a dense array
        help: make the struct generic over its leaves, as in `struct Params<L> { weight: L }`, or give the field the type `Value`"#]],
    );
}

#[test]
fn another_structure_than_the_type_has() {
    let said = [
        said_of(tree::unflatten::<Vec<Array>>(&def(&(a(),)), leaves(&[1.0]))),
        said_of(tree::unflatten::<Params>(&def(&a()), leaves(&[1.0]))),
        said_of(tree::unflatten::<Array>(&def(&(a(),)), leaves(&[1.0]))),
        said_of(tree::unflatten::<Rule>(&def(&Some(a())), leaves(&[1.0]))),
    ];
    expect![[r#"
        the structure holds tuple where list is expected
        help: use the definition of a tree of this very type
        the structure holds an array where it::trees_messages::Params is expected
        help: use the definition of a tree of this very type
        the structure holds tuple where a value is expected
        help: use the definition of a tree of this very type
        the structure holds Some where it::trees_messages::Rule::Frozen or it::trees_messages::Rule::Scaled is expected
        help: use the definition of a tree of this very type
    "#]]
    .assert_eq(&said.concat());
    let (leaves, opened) = tree::flatten(&Outer::of(Left::of(&a())), Open::Fully).expect("flattens");
    check(
        tree::unflatten::<Params>(&opened, leaves),
        &expect![[r#"
        the structure holds test.Outer where it::trees_messages::Params is expected
        help: use the definition of a tree of this very type"#]],
    );
    let rules = [Rule::Frozen, Rule::Scaled(a())].map(|rule| def(&rule).to_string());
    assert_eq!(rules, ["Rule::Frozen", "Rule::Scaled(*)"]);
}

#[test]
fn another_number_of_elements() {
    check(
        tree::unflatten::<(Array, Array)>(&def(&(a(),)), leaves(&[1.0])),
        &expect![[r#"
        the structure holds tuple of 1 where tuple of 2 is expected
        help: use the definition of a tree of this very type"#]],
    );
    check(
        tree::unflatten::<[Array; 2]>(&def(&[a()]), leaves(&[1.0])),
        &expect![[r#"
        the structure holds array of 1 where array of 2 is expected
        help: use the definition of a tree of this very type"#]],
    );
}

#[test]
fn a_struct_with_as_many_fields_as_another_of_its_name() {
    fn first() -> tree::TreeDef {
        #[derive(Tree)]
        struct Local {
            weight: Array,
        }
        def(&Local { weight: a() })
    }
    #[derive(Tree)]
    struct Local {
        weight: Array,
        bias: Array,
    }
    let mut own = Local { weight: a(), bias: a() };
    check(
        tree::unflatten::<Local>(&first(), leaves(&[1.0])),
        &expect![[r#"
        the structure holds it::trees_messages::Local of 1 where it::trees_messages::Local of 2 is expected
        help: use the definition of a tree of this very type"#]],
    );
    check(
        tree::assign(&mut own, &first(), leaves(&[1.0])),
        &expect![[r#"
        the structure holds it::trees_messages::Local of 1 where it::trees_messages::Local of 2 is expected
        help: use the definition of a tree of this very type"#]],
    );
}

#[test]
fn a_hand_written_tree_that_reads_something_else() {
    let said = [
        said_of(tree::unflatten::<Reading<0>>(&def(&()), Vec::new())),
        said_of(tree::unflatten::<Reading<1>>(&def(&a()), leaves(&[1.0]))),
        said_of(tree::unflatten::<Reading<2>>(&def(&a()), leaves(&[1.0]))),
        said_of(tree::unflatten::<Reading<3>>(&def(&a()), leaves(&[1.0]))),
    ];
    expect![[r#"
        tuple has no static field heads of the type u8
        help: use the definition of a tree of this very type
        the structure holds nothing more where a value is expected
        help: use the definition of a tree of this very type
        the structure holds nothing more where tuple is expected
        help: use the definition of a tree of this very type
        the structure holds nothing more where a gradient is expected
        help: use the definition of a tree of this very type
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn a_static_leaf_of_another_type() {
    let three = tree::structure(&tree::Static(3)).expect("flattens");
    check(
        tree::unflatten::<tree::Static<f32>>(&three, Vec::new()),
        &expect![[r#"
            the structure holds the static 3 where a static f32 is expected
            help: use the definition of a tree of this very type"#]],
    );
    check(
        tree::unflatten::<Array>(&three, Vec::new()),
        &expect![[r#"
            the structure holds static leaf where a value is expected
            help: use the definition of a tree of this very type"#]],
    );
}

#[test]
fn trees_of_two_structures() {
    check(
        tree::zip(&(a(), [a()]), &(a(), vec![a()]), Open::Closed),
        &expect![[r#"
        the trees differ: array of 1 -> list of 1 at `1`
        help: give two trees of one structure"#]],
    );
}

#[test]
fn gradients_of_another_tree() {
    let update = |gradients: &Vec<Gradient>| {
        tree::update(&mut vec![vector(&[1.0]), vector(&[2.0])], gradients, |_, array, _| Ok(array.clone()))
    };
    check(
        update(&vec![Gradient::Nothing]),
        &expect![[r#"
        the gradients do not fit the tree: list of 2 -> list of 1 at the root
        help: give the gradients of this very tree"#]],
    );
    check(
        update(&vec![Gradient::Nothing, Gradient::Dense(matrix(2, 2))]),
        &expect![[r#"
        the gradient of `1` is f32[2,2], and the array f32[1]
        help: give the gradients of this very tree"#]],
    );
}

#[test]
fn an_update_of_another_aval_leaves_the_tree() {
    let mut tree = vec![vector(&[1.0]), vector(&[2.0])];
    let gradients = vec![Gradient::Dense(vector(&[1.0])); 2];
    check(
        tree::update(&mut tree, &gradients, |path, array, _| match &**path {
            "0" => Ok(array.negative()?),
            _ => Ok(array.reshape(&[1, 1])?),
        }),
        &expect![[r#"
        the update of `1` is f32[1,1], and the array f32[1]
        help: return an array of the array's own shape and dtype"#]],
    );
    assert_eq!(tree.iter().map(crate::trees::number).collect::<Vec<_>>(), [1.0, 2.0]);
}

#[test]
fn a_gradient_that_is_not_one_array() {
    check(
        Gradient::Nothing.array().cloned(),
        &expect![[r#"
        the leaf has no gradient
        help: differentiate with respect to float arrays, and name them if only some are chosen"#]],
    );
    let (leaves, def) = tree::flatten(&Outer::of(Left::of(&a())), Open::Fully).expect("flattens");
    let gradient: Gradient = tree::unflatten(&def, leaves).expect("fits");
    check(
        gradient.array().cloned(),
        &expect![[r#"
        the gradient of test.Outer is not one array
        help: take a child's with `child`: inner"#]],
    );
}

#[test]
fn a_dense_field_that_was_given_an_implicit_array() {
    #[derive(Tree)]
    struct Fixed {
        weight: Array,
    }
    let _scopes = crate::types::without_handlers();
    let fixed = |x: Array| Ok::<_, tacit::Error>(Fixed { weight: x });
    check(
        implicit(Left::of(&a()), fixed),
        &expect![[r#"
        Left(f32[1]) stands where the structure holds a dense array
        help: make the struct generic over its leaves, as in `struct Params<L> { weight: L }`, or give the field the type `Value`"#]],
    );
    let result: Fixed = implicit(a(), fixed).expect("runs");
    assert_eq!(crate::trees::number(&result.weight), 1.0);
}
