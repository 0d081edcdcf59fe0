//! Recording and rewiring graphs of every form.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};
use tacit::primitives::{DivMod, Negative, Split};
use tacit::{Counters, Primitive, Registry, Result, Value, handler, implicit};

use crate::types::{Left, Outer, dense, matrix, numbers, takers, vector, with_handlers, without_handlers};

#[handler]
fn divmod_left(_: &DivMod, x: &Left, y: &Array) -> Result<Vec<Value>> {
    let (quotient, rest) = ops::divmod(&x.array, y)?;
    Ok(vec![Left::of(&quotient), rest.into()])
}

#[handler]
fn split_left(op: &Primitive, x: &Left) -> Result<Vec<Value>> {
    let split: Split = op.view()?;
    assert_eq!((split.indices, split.axis), (vec![1], 1));
    Ok(op.emit(std::slice::from_ref(&x.array))?.iter().map(Left::of).collect())
}

#[handler]
fn negate_left(_: &Negative, x: &Left) -> Result<Value> {
    Ok(Left::of(&x.array.negative()?))
}

fn left(values: &[f32]) -> Value {
    Left::of(&vector(values))
}

#[test]
fn a_primitive_with_several_results_is_emitted_again() {
    let _scopes = without_handlers();
    let results = implicit((left(&[7.0, 9.0]), vector(&[2.0, 4.0])), |(x, y)| -> Result<[Array; 3], Exception> {
        let (quotient, rest) = ops::divmod(&x, &y)?;
        Ok([quotient.add(&rest)?, rest, quotient])
    })
    .expect("runs");
    assert_eq!(results.each_ref().map(dense), [[4.0, 3.0], [1.0, 1.0], [3.0, 2.0]]);
}

#[test]
fn siblings_are_rewired_also_when_only_one_is_used() {
    let _scopes = without_handlers();
    for part in 0..3 {
        let f = |x| Ok::<_, Exception>(ops::split_equal(&x, 3, 1)?[part].clone());
        let value = implicit(Left::of(&matrix(2, 3)), f).expect("runs");
        assert_eq!(dense(&value), [1.0, 4.0].map(|first| first + part as f32));
    }
}

#[test]
fn a_handler_gives_several_results_some_of_them_implicit() {
    let registry = || Registry::new().with::<divmod_left>().with::<negate_left>();
    let f = |x: Vec<Array>| {
        let (quotient, rest) = ops::divmod(&x[0], &x[1])?;
        Ok(vec![quotient.negative()?, rest.negative()?])
    };
    let args = || vec![left(&[7.0, 9.0]), vector(&[2.0, 4.0]).into()];
    assert_eq!(takers(registry(), f, args()).expect("runs"), ["divmod_left", "negate_left", "dense"]);
    let _scopes = with_handlers(registry());
    let results = implicit(args(), f).expect("runs");
    assert_eq!(numbers(&results[0].downcast::<Left>().expect("implicit").array), [-3.0, -2.0]);
    assert_eq!(dense(&results[1]), [-1.0, -1.0]);
}

#[test]
fn a_handler_of_a_split_gives_every_part() {
    let _scopes = with_handlers(Registry::new().with::<split_left>());
    let parts = implicit(Left::of(&matrix(2, 3)), |x| ops::split_at_indices(&x, &[1], 1)).expect("runs");
    let numbers = parts.iter().map(|part| numbers(&part.downcast::<Left>().expect("implicit").array));
    assert_eq!(numbers.collect::<Vec<_>>(), [vec![1.0, 4.0], vec![2.0, 3.0, 5.0, 6.0]]);
}

#[test]
fn an_argument_that_is_returned_stays_what_it_was() {
    let (y, x) = implicit((left(&[1.0]), vector(&[2.0])), |(x, y)| Ok::<_, Exception>((y, x))).expect("runs");
    assert!(x.downcast::<Left>().is_some());
    assert_eq!(dense(&y), [2.0]);
}

#[test]
fn an_argument_may_be_returned_twice_and_results_may_repeat() {
    let _scopes = without_handlers();
    let [x, y, again, same] = implicit(left(&[1.0]), |x| {
        let y = x.negative()?;
        Ok::<_, Exception>([x.clone(), y.clone(), x, y])
    })
    .expect("runs");
    assert!(x.downcast::<Left>().is_some() && again.downcast::<Left>().is_some());
    assert_eq!((dense(&y), dense(&same)), (vec![-1.0], vec![-1.0]));
}

#[test]
fn unused_arguments_and_no_results_are_no_errors() {
    let args = (left(&[1.0]), vector(&[2.0]), Outer::of(left(&[3.0])));
    let (value, counters) = Counters::during(|| implicit(args, |(_, y, _)| y.negative()));
    assert_eq!(dense(&value.expect("runs")), [-2.0]);
    assert_eq!(counters, Counters::default());
    assert!(implicit(vec![left(&[1.0])], |_| Ok::<Vec<Array>, Exception>(vec![])).expect("runs").is_empty());
}

#[test]
fn one_array_may_be_both_operands_and_several_arguments() {
    let _scopes = without_handlers();
    let x = left(&[1.0, 2.0]);
    assert_eq!(dense(&implicit((&x, &x), |(x, y)| x.add(&x)?.multiply(&y)).expect("runs")), [2.0, 8.0]);
}

#[test]
fn nodes_on_constants_are_not_touched() {
    let captured = vector(&[1.0, 2.0]);
    let _scopes = without_handlers();
    let (value, counters) = Counters::during(|| {
        implicit(left(&[10.0, 20.0]), |x| {
            let constant = captured.exp()?.log()?;
            x.add(constant.add(&captured)?)
        })
    });
    assert_eq!(counters.seen, 1);
    assert_eq!(dense(&value.expect("runs")), [12.0, 24.0]);
}

#[test]
fn a_function_may_be_called_again() {
    let _scopes = without_handlers();
    let f = |x: Array| x.negative();
    for number in [1.0, 2.0, 3.0] {
        assert_eq!(dense(&implicit(left(&[number]), f).expect("runs")), [-number]);
    }
    assert_eq!(dense(&implicit(vector(&[4.0]), f).expect("runs")), [-4.0]);
}

#[test]
fn a_chain_of_a_hundred_thousand_nodes_is_neither_recursion_nor_wrong() {
    let _scopes = without_handlers();
    let one = vector(&[1.0]);
    let (value, counters) = Counters::during(|| {
        implicit((left(&[0.5]), left(&[2.0])), |(x, y)| {
            let mut sum = x;
            for i in 0..100_000 {
                // Every node sees the implicit operand in one half of the chain, and none of them in the other.
                sum = sum.add(if i % 2 == 0 { &y } else { &one })?;
            }
            Ok::<_, Exception>(sum)
        })
    });
    assert_eq!(dense(&value.expect("runs")), [150_000.5]);
    assert_eq!((counters.seen, counters.materialized), (50_000, 2));
}

#[test]
fn a_chain_on_which_every_node_is_handled_is_as_deep() {
    let _scopes = with_handlers(Registry::new().with::<negate_left>());
    let (value, counters) =
        Counters::during(|| implicit(left(&[3.0]), |x| (0..100_001).try_fold(x, |x, _| x.negative())).expect("runs"));
    assert_eq!((counters.seen, counters.handled), (100_001, 100_001));
    assert_eq!(numbers(&value.downcast::<Left>().expect("implicit").array), [-3.0]);
}

#[test]
fn a_graph_that_is_wide_and_shared_is_walked_once() {
    let _scopes = without_handlers();
    let (value, counters) = Counters::during(|| {
        implicit(left(&[1.0, 2.0]), |x| {
            let parts = (0..1000).map(|i| x.multiply(Array::from_f32(i as f32))).collect::<Result<Vec<_>, _>>()?;
            let mut total = ops::stack(&parts, 0)?.sum_axis(0, None)?;
            for _ in 0..60 {
                // As a tree this has 2^60 leaves.
                total = total.add(&total)?.multiply(Array::from_f32(0.5))?;
            }
            Ok::<_, Exception>(total)
        })
    });
    assert_eq!(dense(&value.expect("runs")), [499_500.0, 999_000.0]);
    assert_eq!((counters.seen, counters.materialized), (1000, 1));
}
