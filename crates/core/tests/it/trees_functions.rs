//! Functions of whole trees, on generated ones too.

use std::collections::BTreeMap;

use expect_test::expect;
use mlx_rs::Array;
use tacit::tree::{self, Open, Static};
use tacit::{Error, Result, Tree, Value};

use crate::trees::{a, def, difference, number};
use crate::types::{Left, Outer, dense, error, vector};

/// A tree of any form.
#[derive(Tree, Clone, Debug)]
enum Any<L = Array> {
    Leaf(L),
    Nothing,
    Pair(Box<Any<L>>, Box<Any<L>>),
    List(Vec<Any<L>>),
    Maybe(Option<Box<Any<L>>>),
    Map(BTreeMap<String, Any<L>>),
    Tagged {
        #[tree(static)]
        tag: u64,
        item: Box<Any<L>>,
    },
}

/// Numbers that look random and are the same in every run.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn any(&mut self, depth: usize) -> Any {
        let boxed = |own: &mut Self| Box::new(own.any(depth - 1));
        match if depth == 0 { self.below(2) } else { self.below(9) } {
            0 => Any::Leaf(vector(&[self.below(1000) as f32])),
            1 => Any::Nothing,
            2 | 3 => Any::Pair(boxed(self), boxed(self)),
            4 | 5 => Any::List((0..self.below(4)).map(|_| self.any(depth - 1)).collect()),
            6 => Any::Maybe((self.below(2) == 0).then(|| boxed(self))),
            7 => Any::Map((0..self.below(4)).map(|_| (self.below(9).to_string(), self.any(depth - 1))).collect()),
            _ => Any::Tagged { tag: self.below(3), item: boxed(self) },
        }
    }
}

/// The tree in words, without the help of its structure.
fn shown(tree: &Any) -> String {
    let all = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(" ");
    match tree {
        Any::Leaf(array) => number(array).to_string(),
        Any::Nothing => "nothing".to_owned(),
        Any::Pair(a, b) => format!("<{} {}>", shown(a), shown(b)),
        Any::List(items) => format!("[{}]", all(&mut items.iter().map(shown))),
        Any::Maybe(item) => format!("?{}", item.as_deref().map(shown).unwrap_or_default()),
        Any::Map(items) => {
            format!("{{{}}}", all(&mut items.iter().map(|(key, item)| format!("{key}:{}", shown(item)))))
        }
        Any::Tagged { tag, item } => format!("#{tag} {}", shown(item)),
    }
}

#[test]
fn a_generated_tree_comes_back_from_its_leaves_and_structure() {
    let mut seeded = Seeded(1);
    let trees: Vec<Any> = (0..200).map(|_| seeded.any(6)).collect();
    let (mut largest, mut pairs) = (0, 0);
    for (i, tree) in trees.iter().enumerate() {
        let (leaves, own) = tree::flatten(tree, Open::Closed).expect("flattens");
        largest = largest.max(leaves.len());
        assert_eq!(own.paths().len(), leaves.len());
        let back: Any = tree::unflatten(&own, leaves.clone()).expect("fits");
        assert_eq!(shown(&back), shown(tree));
        let mut other = trees[(i + 1) % trees.len()].clone();
        tree::assign(&mut other, &own, leaves).expect("fits");
        assert_eq!(shown(&other), shown(tree));
        for other in &trees[..i] {
            let other = def(other);
            assert_eq!(own == other, own.to_string() == other.to_string(), "{own} {other}");
            assert_eq!(own == other, own.difference(&other).is_none());
            pairs += usize::from(own == other);
        }
    }
    assert!(largest > 10 && pairs > 5, "{largest} {pairs}");
}

#[test]
fn a_map_changes_leaves_and_nothing_else() {
    let tree = (vec![vector(&[1.0])], Some(vector(&[2.0])), Any::Tagged { tag: 1, item: Box::new(Any::Leaf(a())) });
    let negated = tree::map(&tree, Open::Closed, |leaf| Ok(leaf.dense()?.negative()?.into())).expect("maps");
    assert_eq!(def(&negated), def(&tree));
    assert_eq!((number(&negated.0[0]), number(negated.1.as_ref().expect("has one"))), (-1.0, -2.0));
    assert_eq!(shown(&negated.2), "#1 -1");
}

#[test]
fn a_map_reaches_as_deep_as_it_is_opened() {
    let tree = vec![Outer::of(Left::of(&vector(&[1.0])))];
    let of = |open| {
        let mut seen = Vec::new();
        let mapped = tree::map_with_path(&tree, open, |path, leaf| {
            seen.push(format!("{path} {leaf}"));
            Ok(leaf)
        });
        assert!(mapped.expect("maps")[0].downcast::<Outer>().is_some());
        seen.concat()
    };
    assert_eq!(of(Open::Closed), "0 Outer(f32[1])");
    assert_eq!(of(Open::OneLayer), "0.inner Left(f32[1])");
    assert_eq!(of(Open::Fully), "0.inner.array f32[1]");
    let replaced = tree::map(&tree, Open::Closed, |_| Ok(vector(&[5.0]).into())).expect("maps");
    assert_eq!(dense(&replaced[0]), [5.0]);
}

#[test]
fn a_map_that_fails_says_so() {
    let failed: Result<Vec<Array>> = tree::map(&vec![a()], Open::Closed, |_| Err(tacit::Error::invalid("no", "yes")));
    assert_eq!(error(failed).to_string(), "no\nhelp: yes");
}

#[test]
fn a_zip_pairs_leaves_by_path() {
    let tree = |value: f32| (vec![vector(&[value]), vector(&[value + 1.0])], Some(vector(&[value + 2.0])));
    let pairs = tree::zip(&tree(1.0), &tree(10.0), Open::Closed).expect("zips");
    let pairs: Vec<_> = pairs.iter().map(|(path, a, b)| (&**path, dense(a)[0], dense(b)[0])).collect();
    assert_eq!(pairs, [("0.0", 1.0, 10.0), ("0.1", 2.0, 11.0), ("1", 3.0, 12.0)]);
}

#[test]
fn a_zip_of_two_structures_names_the_first_place() {
    let tree = |tag, other: Option<Array>| (a(), [Any::Tagged { tag, item: Box::new(Any::Leaf(a())) }], other);
    let failed = tree::zip(&tree(1, None), &tree(2, Some(a())), Open::Closed);
    expect![[r#"
        the trees differ: static tag 1 -> 2 at `1.0`
        help: give two trees of one structure"#]]
    .assert_eq(&error(failed).to_string());
    let failed = tree::zip(&tree(1, None), &tree(1, Some(a())), Open::Closed);
    expect![[r#"
        the trees differ: None -> Some at `2`
        help: give two trees of one structure"#]]
    .assert_eq(&error(failed).to_string());
    let (closed, opened) = (vec![Left::of(&a())], vec![Value::from(a())]);
    assert!(tree::zip(&closed, &opened, Open::Closed).is_ok());
    expect![[r#"
        the trees differ: Left -> an array at `0`
        help: give two trees of one structure"#]]
    .assert_eq(&error(tree::zip(&closed, &opened, Open::Fully)).to_string());
}

/// The trace around a compiled call counts its time.
#[test]
fn no_time_is_told_twice() -> Result<()> {
    let mut inner = tacit::compile(|x: Array| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        x.exp()
    });
    let mut outer = tacit::compile(move |x: Array| inner.call(&x)?.dense());
    let start = std::time::Instant::now();
    let (called, spent) = tacit::compile::Phases::during(|| outer.call(Array::from_f32(1.0)));
    called?;
    assert!(spent.trace + spent.build <= start.elapsed(), "{spent:?}");
    Ok(())
}

/// As by MLX's own eval, a loss may look at what it computes.
#[test]
fn a_tree_is_evaluated_inside_a_gradient() -> Result<()> {
    let mut gradient = tacit::transform::grad(|x: Array| -> Result<Array> {
        let y = x.square()?;
        tree::eval(&y)?;
        assert_eq!(y.as_slice::<f32>(), [9.0]);
        Ok(y)
    });
    assert_eq!(gradient.call(Array::from_f32(3.0))?.array()?.as_slice::<f32>(), [6.0]);
    Ok(())
}

/// Everything that a state holds is computed by one call, whatever it is a tree of.
#[test]
fn a_tree_is_evaluated_as_a_whole_and_its_time_is_told_by_phase() -> Result<()> {
    let lazy = |value: f32| Array::from_f32(value).add(Array::from_f32(1.0));
    let state = (vec![lazy(1.0)?, lazy(2.0)?], Some(Value::from(lazy(3.0)?)));
    let loss = lazy(4.0)?;
    let computed = |array: &Array| tacit_bridge::Primitive::making(array).map(|making| making.is_none());
    let all = || -> Result<bool> {
        let mut all = computed(&loss)?;
        for leaf in tree::leaves(&state, Open::Fully)? {
            all &= computed(&leaf.dense()?)?;
        }
        Ok(all)
    };
    assert!(!all()?);
    let (evaluated, spent) = tacit::compile::Phases::during(|| tree::eval(&(&state, &loss)));
    evaluated?;
    assert!(all()?);
    assert!(!spent.encode.is_zero() && spent.trace.is_zero() && spent.build.is_zero());
    assert_eq!(spent.compute(), spent.encode + spent.wait);
    let begun = lazy(5.0)?;
    let (started, spent) = tacit::compile::Phases::during(|| tree::async_eval(&begun));
    started?;
    assert!(spent.wait.is_zero() && !spent.encode.is_zero());
    assert_eq!(begun.as_slice::<f32>(), [6.0]);
    // In a trace there is nothing to compute.
    let traced = tacit::compile(|x: Array| tree::eval(&x.exp()?).map(|()| x)).call(lazy(1.0)?);
    assert!(matches!(traced, Err(Error::EvalInTrace)), "{traced:?}");
    Ok(())
}

/// The time of a compiled call is told where it went: the first one traces, the others build.
#[test]
fn a_compiled_call_tells_its_time_by_phase() -> Result<()> {
    let mut f = tacit::compile(|x: Array| x.exp());
    let x = Value::from(Array::from_f32(0.0));
    f.call(&x)?;
    let traced = f.stats().phases;
    assert!(!traced.trace.is_zero() && traced.build.is_zero());
    let (called, spent) = tacit::compile::Phases::during(|| f.call(&x).and_then(|y| tree::eval(&y)));
    called?;
    assert_eq!((f.stats().phases.trace, f.stats().phases.build), (traced.trace, spent.build));
    assert!(!spent.build.is_zero() && spent.trace.is_zero() && !spent.encode.is_zero());
    Ok(())
}

#[test]
fn a_map_of_two_trees_takes_leaves_pair_by_pair() {
    let own = (vec![vector(&[1.0]), vector(&[2.0])], Some(vector(&[3.0])), Static("x"));
    let other: (Vec<Value>, Option<Value>, Static<&str>) =
        (vec![Left::of(&vector(&[10.0])), vector(&[20.0]).into()], Some(vector(&[30.0]).into()), Static("x"));
    let sum = tree::map2(&own, &other, Open::Closed, |a, b| {
        let b = match b.downcast::<Left>() {
            Some(left) => left.array.clone(),
            None => b.dense()?,
        };
        Ok(a.dense()?.add(b)?.into())
    });
    let (list, option, _) = sum.expect("maps");
    assert_eq!((number(&list[0]), number(&list[1]), number(&option.expect("has one"))), (11.0, 22.0, 33.0));
}

#[test]
fn a_map_of_two_structures_names_the_first_place() {
    let own = (vec![vector(&[1.0])], Static(4));
    let other = (vec![vector(&[1.0])], Static(5));
    let failed = tree::map2(&own, &other, Open::Closed, |a, _| Ok(a));
    expect_test::expect![[r#"
        the trees differ: static value 4 -> 5 at `1`
        help: give two trees of one structure"#]]
    .assert_eq(&error(failed).to_string());
}

#[test]
fn numbers_and_strings_stand_in_tuples_lists_and_maps_as_static_leaves() {
    let tree = |rate: f64| {
        let widths = BTreeMap::from([("a".to_owned(), Static(4u8)), ("b".to_owned(), Static(8))]);
        (a(), vec![Static("up".to_owned())], widths, [Static(rate)], Static('c'), Some(Static(-1i64)), Static(true))
    };
    let (leaves, def) = tree::flatten(&tree(0.1), Open::Closed).expect("flattens");
    assert_eq!(leaves.len(), 1);
    expect_test::expect![[r#"(*, ["up"], {a: 4, b: 8}, [0.1], 'c', -1, true)"#]].assert_eq(&def.to_string());
    let mut back = tree(7.0);
    tree::assign(&mut back, &def, leaves).expect("fits");
    assert_eq!((back.3[0], back.1[0].0.as_str(), back.2["b"]), (Static(0.1), "up", Static(8)));
    assert_eq!(difference(&tree(0.1), &tree(0.2)), "static value 0.1 -> 0.2 at `3.0`");
}

#[test]
fn static_floats_are_compared_by_their_bits() {
    assert_eq!(def(&Static(f32::NAN)), def(&Static(f32::NAN)));
    assert_ne!(def(&Static(0.0f32)), def(&Static(-0.0f32)));
    assert_ne!(def(&Static(0.0f32)), def(&Static(0.0f64)));
    assert_ne!(def(&Static(1i32)), def(&Static(1i64)));
    let negative: Static<f32> = tree::unflatten(&def(&Static(-0.0f32)), Vec::new()).expect("fits");
    assert!(negative.0.is_sign_negative());
}

#[test]
fn a_static_leaf_reaches_a_compiled_function_and_has_a_trace_of_its_own() {
    let mut scaled = tacit::compile(|(x, by): (Array, Static<f32>)| x.multiply(Array::from_f32(by.0)));
    for (by, traces) in [(2.0, 1), (3.0, 2), (2.0, 2)] {
        let y = scaled.call((vector(&[5.0]), Static(by))).expect("runs");
        assert_eq!((dense(&y), scaled.stats().traces), (vec![5.0 * by], traces));
    }
    assert_eq!(scaled.stats().retraces().collect::<Vec<_>>(), ["static value 2.0 -> 3.0 at `args.1`"]);
    let mut gradient =
        tacit::transform::grad(|(x, by): (Array, Static<f32>)| x.multiply(Array::from_f32(by.0))?.sum(None));
    let (dx, by) = gradient.call((vector(&[5.0]), Static(2.0))).expect("runs");
    assert_eq!((number(dx.array().expect("float")), by), (2.0, Static(2.0)));
}
