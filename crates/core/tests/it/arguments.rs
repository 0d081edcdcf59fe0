//! What `implicit` and `explain` take: each kind of argument, and what of the call the compiler infers.

use std::collections::{BTreeMap, HashMap};

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};
use tacit::transform::grad;
use tacit::tree::Gradient;
use tacit::{Arguments, Error, ImplicitArray, Result, Tree, Value, explain, implicit};

use crate::types::{Left, Outer, Refusing, aval, dense, error, vector, without_handlers};

fn one() -> Array {
    vector(&[1.0])
}

fn left() -> Left {
    Left::of(&one()).downcast::<Left>().expect("of this type").clone()
}

/// What the function is given is `Array`, and nothing else, for everything that stands for one array.
fn negated<A: Arguments<Arrays = Array>>(args: A) -> Vec<f32> {
    dense(&implicit(args, |x| x.negative()).expect("runs"))
}

#[test]
fn whatever_stands_for_an_array_is_an_argument() {
    let _scopes = without_handlers();
    let boxed: Box<dyn ImplicitArray> = Box::new(left());
    let (array, value, own, implicit_value) = (one(), Value::from(one()), left(), Value::from(left()));
    let by_reference =
        [negated(&array), negated(&value), negated(&implicit_value), negated(&own), negated(&boxed), negated(&*boxed)];
    let by_value = [negated(array), negated(value), negated(implicit_value), negated(own), negated(boxed)];
    assert!(by_reference.iter().chain(&by_value).all(|found| *found == [-1.0]));
}

#[test]
fn kinds_may_be_mixed() {
    let _scopes = without_handlers();
    let (x, w) = (one(), left());
    let sum = implicit((&x, &w, Outer::of(w.clone().into()), x.clone()), |(a, b, c, d)| a.add(b)?.add(c)?.add(d));
    assert_eq!(dense(&sum.expect("runs")), [4.0]);
    // They were only lent.
    let sum = implicit([&Value::from(x), &w.into()], |[x, w]| x.add(w));
    assert_eq!(dense(&sum.expect("runs")), [2.0]);
}

#[test]
fn containers_of_arguments_are_arguments() -> Result<()> {
    let _scopes = without_handlers();
    let (x, w) = (one(), left());
    let values = vec![Value::from(&x), w.clone().into()];
    let total = |arrays: Vec<Array>| ops::stack(&arrays, 0)?.sum(None);
    assert_eq!(dense(&implicit(&values, total)?), [2.0]);
    assert_eq!(dense(&implicit(&values[..1], total)?), [1.0]);
    assert_eq!(dense(&implicit(vec![&w, &w, &w], total)?), [3.0]);
    assert_eq!(dense(&implicit(values, total)?), [2.0]);

    let sum = |(x, y): (Array, Option<Array>)| y.map_or(Ok(x.clone()), |y| x.add(y));
    assert_eq!(dense(&implicit((&x, Some(&w)), sum)?), [2.0]);
    assert_eq!(dense(&implicit((&x, None::<Value>), sum)?), [1.0]);

    let sorted = BTreeMap::from([("a".to_owned(), &w)]);
    assert_eq!(dense(&implicit(&sorted, |map| map["a"].negative())?), [-1.0]);
    let hashed = HashMap::<_, _>::from_iter(sorted);
    assert_eq!(dense(&implicit((hashed, &x), |(map, x)| map["a"].add(x))?), [2.0]);

    let nested = implicit(([(&x, vec![&w])], Box::new(&x)), |([(x, list)], boxed)| x.add(&list[0])?.add(*boxed));
    assert_eq!(dense(&nested?), [3.0]);
    implicit((), |()| Ok::<_, Exception>(()))
}

#[derive(Tree, Clone)]
struct Affine<L = Array> {
    weight: L,
    biases: Vec<Option<L>>,
    #[tree(static)]
    negated: bool,
}

#[derive(Tree, Clone)]
enum Layer<L = Array> {
    Nothing,
    One(Affine<L>),
}

#[derive(Tree)]
struct Fixed {
    scale: Array,
    kept: Value,
}

fn applied(layer: Layer) -> Result<Array, Exception> {
    let Layer::One(layer) = layer else { return Ok(one()) };
    let y = layer.biases.into_iter().flatten().try_fold(layer.weight, |y, bias| y.add(bias))?;
    if layer.negated { y.negative() } else { Ok(y) }
}

#[test]
fn a_tree_is_an_argument_whatever_its_leaves_are() -> Result<()> {
    let _scopes = without_handlers();
    let biases = vec![None, Some(Value::from(one()))];
    let of_values = Layer::One(Affine { weight: left().into(), biases, negated: true });
    assert_eq!(dense(&implicit(&of_values, applied)?), [-2.0]);
    assert_eq!(dense(&implicit((of_values, &one()), |(layer, x)| applied(layer)?.add(x))?), [-1.0]);
    let (w, x) = (left(), one());
    let of_arrays = Layer::One(Affine { weight: &x, biases: vec![], negated: false });
    assert_eq!(dense(&implicit(&of_arrays, applied)?), [1.0]);
    let of_implicit = Layer::One(Affine { weight: &w, biases: vec![Some(&w); 2], negated: true });
    assert_eq!(dense(&implicit(of_implicit, applied)?), [-3.0]);
    assert_eq!(dense(&implicit(Layer::<Value>::Nothing, applied)?), [1.0]);
    Ok(())
}

#[test]
fn a_tree_of_fixed_leaves_is_an_argument() -> Result<()> {
    let _scopes = without_handlers();
    let fixed = Fixed { scale: vector(&[3.0]), kept: one().into() };
    let result = implicit((&fixed, left()), |(fixed, x)| -> Result<Array> {
        Ok(fixed.scale.multiply(fixed.kept.dense()?)?.add(x)?)
    });
    assert_eq!(dense(&result?), [4.0]);
    Ok(())
}

#[test]
fn a_gradient_is_an_argument_where_there_is_one() -> Result<()> {
    let x = Affine { weight: vector(&[3.0]), biases: vec![Some(one())], negated: false };
    let gradients = grad(|x: Affine| x.weight.square()?.sum(None)).call(x.clone())?;
    let step = implicit((x, &gradients), |(x, gradients)| x.weight.subtract(gradients.weight))?;
    assert_eq!(dense(&step), [-3.0]);
    expect![[r"
        the structure holds nothing where a value is expected
        help: use the definition of a tree of this very type"]]
    .assert_eq(&error(implicit(Gradient::Nothing, |x| x.negative())).to_string());
    Ok(())
}

#[test]
fn results_are_trees_of_values() -> Result<()> {
    let _scopes = without_handlers();
    let w = left();
    let (same, layer) = implicit((&w, one()), |(w, x)| {
        let y = w.add(&x)?;
        Ok::<_, Exception>((w, Affine { weight: y, biases: vec![Some(x)], negated: false }))
    })?;
    assert!(same.downcast::<Left>().is_some());
    assert_eq!((dense(&layer.weight), dense(layer.biases[0].as_ref().expect("has one"))), (vec![2.0], vec![1.0]));
    Ok(())
}

#[test]
fn the_function_runs_once_and_may_take_what_it_captures() {
    let _scopes = without_handlers();
    let (mut runs, owned) = (0, vec![one()]);
    let taken = implicit(left(), |x| {
        runs += 1;
        let [own]: [Array; 1] = owned.try_into().expect("has one");
        x.add(own)
    });
    assert_eq!((dense(&taken.expect("runs")), runs), (vec![2.0], 1));
}

#[test]
fn an_explanation_takes_the_same_arguments() {
    let _scopes = without_handlers();
    let (x, w) = (one(), left());
    let layer = Layer::One(Affine { weight: &w, biases: vec![], negated: true });
    let told = explain((&x, &layer), |(x, layer)| applied(layer)?.add(x)).expect("runs");
    assert_eq!((told.inputs.len(), told.counters.materialized), (2, 1));
    let refused = explain(Refusing { aval: aval(&[2]) }, |x| x.negative());
    assert!(matches!(error(refused), Error::Refused { .. }));
}
