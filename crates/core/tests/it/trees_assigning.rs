//! Trees assigned in place.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::collections::{BTreeMap, HashMap};

use mlx_rs::Array;
use tacit::transform::grad_wrt;
use tacit::tree::{self, Gradient, Open};
use tacit::{Tree, Value};

use crate::trees::{a, def, leaves, number};
use crate::types::{Left, Outer, dense, error, numbers, vector};

fn assigned<T: Tree>(mut tree: T, like: &T, values: &[f32]) -> T {
    tree::assign(&mut tree, &def(like), leaves(values)).expect("fits");
    assert_eq!(def(&tree), def(like));
    tree
}

#[test]
fn a_list_grows_and_shrinks() {
    let grown = assigned(vec![a()], &vec![a(), a(), a()], &[1.0, 2.0, 3.0]);
    assert_eq!(grown.iter().map(number).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
    let shrunk = assigned(grown, &vec![a()], &[4.0]);
    assert_eq!(shrunk.iter().map(number).collect::<Vec<_>>(), [4.0]);
    assert!(assigned(shrunk, &Vec::new(), &[]).is_empty());
}

#[test]
fn an_option_appears_stays_and_goes() {
    let some = assigned(None, &Some(a()), &[1.0]);
    assert_eq!(number(some.as_ref().expect("appeared")), 1.0);
    let some = assigned(some, &Some(a()), &[2.0]);
    assert_eq!(number(some.as_ref().expect("stayed")), 2.0);
    assert!(assigned(some, &None, &[]).is_none());
}

#[test]
fn tuples_arrays_boxes_and_maps_are_assigned() {
    let map = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), a())).collect::<HashMap<_, _>>();
    let tree = || ((a(), Box::new([a(), a()])), map(&["b", "a"]));
    let own = assigned(tree(), &tree(), &[1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!((number(&own.0.0), own.0.1.each_ref().map(number)), (1.0, [2.0, 3.0]));
    assert_eq!((number(&own.1["a"]), number(&own.1["b"])), (4.0, 5.0));
    let own = assigned(own.1, &map(&["c"]), &[6.0]);
    assert_eq!((own.len(), number(&own["c"])), (1, 6.0));
    let sorted = assigned(BTreeMap::from([("x".to_owned(), a())]), &BTreeMap::from([("y".to_owned(), a())]), &[7.0]);
    assert_eq!(number(&sorted["y"]), 7.0);
}

#[test]
fn a_map_of_many_entries_is_assigned_in_time_by_their_number() {
    let map = |count: usize| -> BTreeMap<String, Array> { (0..count).map(|i| (format!("{i:06}"), a())).collect() };
    let begun = std::time::Instant::now();
    let shorter = assigned(map(40_001), &map(40_000), &vec![1.0; 40_000]);
    assert_eq!(shorter.len(), 40_000);
    // Some tenths of a second, and minutes if each key is compared with all others.
    assert!(begun.elapsed() < std::time::Duration::from_mins(1), "{:?}", begun.elapsed());
}

#[test]
fn another_kind_of_node_or_another_number_of_elements_is_refused() {
    let mut pair = (a(), a());
    assert!(tree::assign(&mut pair, &def(&[a(), a()]), leaves(&[1.0, 2.0])).is_err());
    assert!(tree::assign(&mut pair, &def(&(a(),)), leaves(&[1.0])).is_err());
    let mut array = [a(), a()];
    assert!(tree::assign(&mut array, &def(&[a()]), leaves(&[1.0])).is_err());
    assert!(tree::unflatten::<[Array; 2]>(&def(&[a(), a(), a()]), leaves(&[1.0, 2.0, 3.0])).is_err());
    assert!(tree::unflatten::<(Array,)>(&def(&(a(), a())), leaves(&[1.0, 2.0])).is_err());
}

#[test]
fn an_update_reaches_every_array_with_a_gradient() {
    let dense_gradient = |value| Gradient::Dense(vector(&[value]));
    let mut tree = (
        vec![Value::from(vector(&[1.0])), Outer::of(Left::of(&vector(&[2.0])))],
        Some(Value::from(vector(&[3.0]))),
        Value::from(Array::from_slice(&[4i32], &[1])),
    );
    let inner = Gradient::Node { name: "test.Left", children: vec![("array".to_owned(), dense_gradient(0.25))] };
    let outer = Gradient::Node { name: "test.Outer", children: vec![("inner".to_owned(), inner)] };
    let gradients = (vec![dense_gradient(0.5), outer], Some(Gradient::Nothing), Gradient::Nothing);
    let mut seen = Vec::new();
    tree::update(&mut tree, &gradients, |path, array, gradient| {
        seen.push(path.to_string());
        Ok(array.subtract(gradient)?)
    })
    .expect("fits");
    assert_eq!(seen, ["0.0", "0.1.inner.array"]);
    assert_eq!(dense(&tree.0[0]), [0.5]);
    let outer = tree.0[1].downcast::<Outer>().expect("is still one");
    assert_eq!(numbers(&outer.inner.downcast::<Left>().expect("is still one").array), [1.75]);
    assert_eq!(dense(tree.1.as_ref().expect("has one")), [3.0]);
    assert_eq!(number(&tree.2.dense().and_then(|array| Ok(array.as_type::<f32>()?)).expect("runs")), 4.0);
}

#[test]
fn an_update_reaches_into_a_registered_type() {
    use crate::trees_foreign::{Scale, ScaleNode, ScaleTree};
    let mut own = (ScaleNode(Scale::of(2.0, 1)), a());
    let children = vec![("by".to_owned(), Gradient::Dense(vector(&[0.5])))];
    let name = std::any::type_name::<ScaleTree>();
    let gradients = (Gradient::Node { name, children }, Gradient::Nothing);
    tree::update(&mut own, &gradients, |_, array, gradient| Ok(array.subtract(gradient)?)).expect("fits");
    assert_eq!((number(&own.0.by), number(&own.1)), (1.5, 1.0));
}

#[test]
fn what_has_no_gradient_stays_to_the_bit() {
    /// Its leaves are arrays and nothing else.
    #[derive(Tree)]
    struct Fixed {
        weight: Array,
        step: Array,
        shift: Option<Array>,
    }
    let step = Array::from_slice(&[7i32], &[1]);
    let mut own = (Fixed { weight: vector(&[2.0]), step, shift: Some(vector(&[1.0])) }, vector(&[3.0]));
    let loss = |(own, _): (Fixed, Array)| own.weight.square()?.add(own.shift.unwrap_or(own.weight))?.sum(None);
    let given = (Fixed { weight: own.0.weight.clone(), step: own.0.step.clone(), shift: own.0.shift.clone() }, &own.1);
    let gradient = grad_wrt([0], loss).call(given).expect("runs");
    assert!(gradient.0.child("step").is_nothing() && gradient.1.is_nothing());
    // Weight decay moves whatever it is called for.
    let decayed = |_: &tree::Path, array: &Array, gradient: &Array| {
        Ok(array.multiply(Array::from_f32(0.5))?.subtract(gradient)?)
    };
    tree::update(&mut own, &gradient, decayed).expect("fits");
    assert_eq!((number(&own.0.weight), number(own.0.shift.as_ref().expect("has one"))), (-3.0, -0.5));
    assert_eq!((own.0.step.as_slice::<i32>(), number(&own.1)), (&[7][..], 3.0));
    tree::update(&mut own, &Gradient::Nothing, decayed).expect("nothing stands for a whole tree");
    assert_eq!(number(&own.0.weight), -3.0);
}

#[test]
fn an_update_that_fails_leaves_the_tree() {
    let mut tree = vec![vector(&[1.0]), vector(&[2.0])];
    let gradients = vec![Gradient::Dense(vector(&[1.0])), Gradient::Dense(vector(&[1.0]))];
    let failed = tree::update(&mut tree, &gradients, |path, array, _| match &**path {
        "0" => Ok(array.negative()?),
        _ => Err(tacit::Error::invalid("no", "yes")),
    });
    assert_eq!(error(failed).to_string(), "no\nhelp: yes");
    assert_eq!(tree.iter().map(number).collect::<Vec<_>>(), [1.0, 2.0]);
    assert_eq!(tree::leaves(&tree, Open::Closed).expect("flattens").len(), 2);
}
