//! Who takes a call: one test or more for each clause of the contract.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};
use tacit::__private::open;
use tacit::primitives::{Add, DivMod, Divide, Multiply, Negative, Subtract};
use tacit::{Counters, Error, ImplicitArray, Primitive, Registry, Result, Value, handler, implicit};

use crate::types::{Eager, Left, Ordered, Outer, Right, Shy, Willing, dense, error, takers, vector, without_handlers};

fn built(array: &dyn ImplicitArray) -> Result<Array> {
    open(array)?.dense()
}

fn opened(value: &Value) -> Result<Array> {
    match value {
        Value::Dense(array) => Ok(array.clone()),
        Value::Implicit(array) => built(&**array),
    }
}

fn negated(mut arrays: Vec<Array>) -> Result<Vec<Array>, Exception> {
    arrays[0] = arrays[0].negative()?;
    arrays.truncate(1);
    Ok(arrays)
}

fn added(mut arrays: Vec<Array>) -> Result<Vec<Array>, Exception> {
    arrays[0] = arrays[0].add(&arrays[1])?;
    arrays.truncate(1);
    Ok(arrays)
}

fn subtracted(mut arrays: Vec<Array>) -> Result<Vec<Array>, Exception> {
    arrays[0] = arrays[0].subtract(&arrays[1])?;
    arrays.truncate(1);
    Ok(arrays)
}

fn left() -> Value {
    Left::of(&vector(&[1.0, 2.0]))
}

fn right() -> Value {
    Right::of(&vector(&[10.0, 20.0]))
}

fn plain() -> Value {
    vector(&[5.0, 6.0]).into()
}

mod clause_1 {
    use super::*;

    #[handler]
    fn exact(_: &Negative, x: &Left) -> Result<Value> {
        Ok(x.array.negative()?.into())
    }

    #[handler]
    fn any_implicit(_: &Negative, x: &dyn ImplicitArray) -> Result<Value> {
        Ok(built(x)?.negative()?.into())
    }

    #[handler]
    fn anything(_: &Negative, x: &Value) -> Result<Value> {
        Ok(opened(x)?.negative()?.into())
    }

    #[handler]
    fn rest(_: &Negative, all: &[&Value]) -> Result<Value> {
        Ok(opened(all[0])?.negative()?.into())
    }

    #[handler(precedence = 100)]
    fn any_primitive(op: &Primitive, x: &Left) -> Result<Vec<Value>> {
        Ok(op.emit(std::slice::from_ref(&x.array))?.into_iter().map(Value::from).collect())
    }

    fn took(registry: Registry) -> String {
        takers(registry, negated, vec![left()]).expect("runs").remove(0)
    }

    #[test]
    fn the_most_specific_operands_win() {
        assert_eq!(took(Registry::new().with::<anything>()), "anything");
        assert_eq!(took(Registry::new().with::<anything>().with::<any_implicit>()), "any_implicit");
        assert_eq!(took(Registry::new().with::<any_implicit>().with::<anything>().with::<exact>()), "exact");
        assert_eq!(took(Registry::new().with::<rest>().with::<any_implicit>()), "any_implicit");
    }

    #[test]
    fn a_named_primitive_goes_before_any_primitive_whatever_the_precedence() {
        assert_eq!(took(Registry::new().with::<any_primitive>()), "any_primitive");
        assert_eq!(took(Registry::new().with::<any_primitive>().with::<exact>()), "exact");
    }

    #[test]
    fn handlers_of_another_primitive_or_type_are_no_candidates() {
        let registry = || Registry::new().with::<exact>();
        assert_eq!(takers(registry(), |x| Ok(vec![x[0].abs()?]), vec![left()]).expect("runs"), ["materialized"]);
        assert_eq!(takers(registry(), negated, vec![right()]).expect("runs"), ["materialized"]);
    }

    #[handler(precedence = 1)]
    fn left_with_anything(_: &Subtract, x: &Left, y: &Value) -> Result<Value> {
        Ok(x.array.subtract(&opened(y)?)?.into())
    }

    #[handler]
    fn anything_with_right(_: &Subtract, x: &Value, y: &Right) -> Result<Value> {
        Ok(opened(x)?.subtract(&y.array)?.into())
    }

    #[test]
    fn precedence_decides_a_tie() {
        let registry = Registry::new().with::<anything_with_right>().with::<left_with_anything>();
        assert_eq!(takers(registry, subtracted, vec![left(), right()]).expect("runs"), ["left_with_anything"]);
    }
}

mod clause_2 {
    use super::*;

    #[handler]
    fn left_with_anything(_: &Subtract, x: &Left, y: &Value) -> Result<Value> {
        Ok(x.array.subtract(&opened(y)?)?.into())
    }

    #[handler]
    fn anything_with_right(_: &Subtract, x: &Value, y: &Right) -> Result<Value> {
        Ok(opened(x)?.subtract(&y.array)?.into())
    }

    #[handler]
    fn both(_: &Subtract, x: &Left, y: &Right) -> Result<Value> {
        Ok(x.array.subtract(&y.array)?.into())
    }

    fn tied() -> Registry {
        Registry::new().with::<left_with_anything>().with::<anything_with_right>()
    }

    #[test]
    fn a_tie_that_nothing_decides_is_an_error_that_names_both() {
        let error = error(takers(tied(), subtracted, vec![left(), right()]));
        let Error::Ambiguous { first, second, .. } = &error else { panic!("{error}") };
        assert_eq!((first.name, second.name), ("left_with_anything", "anything_with_right"));
        assert!(first.file.ends_with("dispatch.rs") && first.line < second.line, "{error}");
    }

    #[test]
    fn only_the_calls_that_both_take_are_tied() {
        assert_eq!(takers(tied(), subtracted, vec![left(), plain()]).expect("runs"), ["left_with_anything"]);
        assert_eq!(takers(tied(), subtracted, vec![plain(), right()]).expect("runs"), ["anything_with_right"]);
    }

    #[test]
    fn a_third_handler_decides_it() {
        let registry = tied().with::<both>();
        assert_eq!(takers(registry, subtracted, vec![left(), right()]).expect("runs"), ["both"]);
    }
}

mod clause_3 {
    use super::*;

    #[handler]
    fn declines(_: &Negative, _x: &Left) -> Result<Value> {
        Err(Error::decline("not today"))
    }

    #[handler]
    fn takes(_: &Negative, x: &dyn ImplicitArray) -> Result<Value> {
        Ok(built(x)?.negative()?.into())
    }

    #[handler]
    fn fails(_: &Negative, _x: &Left) -> Result<Value> {
        Err(Error::invalid("broken", "mend it"))
    }

    #[test]
    fn the_next_candidate_is_tried() {
        let registry = Registry::new().with::<takes>().with::<declines>();
        let (took, counters) = Counters::during(|| takers(registry, negated, vec![left()]));
        assert_eq!(took.expect("runs"), ["takes"]);
        assert_eq!((counters.declined, counters.handled, counters.materialized), (1, 1, 0));
    }

    #[test]
    fn when_all_decline_the_operand_is_materialized() {
        let registry = Registry::new().with::<declines>();
        let (took, counters) = Counters::during(|| takers(registry, negated, vec![left()]));
        assert_eq!(took.expect("runs"), ["materialized"]);
        assert_eq!((counters.declined, counters.handled, counters.materialized), (1, 0, 1));
    }

    #[test]
    fn another_error_than_declining_ends_the_call() {
        let registry = Registry::new().with::<fails>().with::<takes>();
        assert!(error(takers(registry, negated, vec![left()])).to_string().starts_with("broken"));
    }
}

mod clause_4 {
    use super::*;

    #[handler]
    fn add_left(_: &Add, x: &Left, y: &Array) -> Result<Value> {
        Ok(x.array.add(y)?.into())
    }

    #[handler]
    fn add_ordered(_: &Add, x: &Ordered, y: &Array) -> Result<Value> {
        Ok(x.array.add(y)?.into())
    }

    #[handler]
    fn subtract_left(_: &Subtract, x: &Left, y: &Array) -> Result<Value> {
        Ok(x.array.subtract(y)?.into())
    }

    #[handler]
    fn declines(_: &Add, _x: &Array, _y: &dyn ImplicitArray) -> Result<Value> {
        Err(Error::decline("only the other way round"))
    }

    #[test]
    fn a_commutative_primitive_is_tried_with_its_operands_swapped() {
        let registry = || Registry::new().with::<add_left>();
        assert_eq!(takers(registry(), added, vec![left(), plain()]).expect("runs"), ["add_left"]);
        assert_eq!(takers(registry(), added, vec![plain(), left()]).expect("runs"), ["add_left"]);
        let registry = registry().with::<declines>();
        assert_eq!(takers(registry, added, vec![plain(), left()]).expect("runs"), ["add_left"]);
    }

    #[test]
    fn another_primitive_is_not() {
        let registry = Registry::new().with::<subtract_left>();
        assert_eq!(takers(registry, subtracted, vec![plain(), left()]).expect("runs"), ["materialized"]);
    }

    #[test]
    fn a_type_opts_out() {
        let registry = || Registry::new().with::<add_ordered>();
        let ordered = || Ordered::of(&vector(&[1.0, 2.0]));
        assert_eq!(takers(registry(), added, vec![ordered(), plain()]).expect("runs"), ["add_ordered"]);
        assert_eq!(takers(registry(), added, vec![plain(), ordered()]).expect("runs"), ["materialized"]);
    }
}

mod clause_5 {
    use super::*;

    #[handler]
    fn negate(_: &Negative, x: &Willing) -> Result<Value> {
        Ok(x.array.negative()?.into())
    }

    fn willing() -> Value {
        Willing::of(&vector(&[1.0, 2.0]))
    }

    fn took(f: fn(Vec<Array>) -> Result<Vec<Array>, Exception>, args: Vec<Value>) -> Result<Vec<String>> {
        takers(Registry::new().with::<negate>(), f, args)
    }

    #[test]
    fn the_default_takes_what_no_handler_takes() {
        assert_eq!(took(negated, vec![willing()]).expect("runs"), ["negate"]);
        assert_eq!(took(added, vec![plain(), willing()]).expect("runs"), ["default of test.Willing"]);
    }

    #[test]
    fn two_operands_of_the_type_have_one_default() {
        assert_eq!(took(added, vec![willing(), willing()]).expect("runs"), ["default of test.Willing"]);
        assert_eq!(took(added, vec![left(), willing()]).expect("runs"), ["default of test.Willing"]);
    }

    #[test]
    fn the_defaults_of_two_types_are_an_error() {
        let error = error(took(added, vec![willing(), Eager::of(&vector(&[3.0, 4.0]))]));
        assert!(matches!(error, Error::TwoDefaults { first: "test.Willing", second: "test.Eager", .. }), "{error}");
    }

    #[test]
    fn a_default_may_decline() {
        let (took, counters) = Counters::during(|| took(negated, vec![Shy::of(&vector(&[1.0]))]));
        assert_eq!(took.expect("runs"), ["materialized"]);
        assert_eq!(counters.declined, 1);
    }
}

mod clause_6 {
    use super::*;

    #[handler]
    fn negate_left(_: &Negative, x: &Left) -> Result<Value> {
        Ok(x.array.negative()?.into())
    }

    #[test]
    fn one_layer_is_materialized_and_the_call_dispatched_again() {
        let nested = || Outer::of(Outer::of(left()));
        let run = || takers(Registry::new().with::<negate_left>(), negated, vec![nested()]);
        let (took, counters) = Counters::during(run);
        assert_eq!(took.expect("runs"), ["negate_left"]);
        assert_eq!((counters.materialized, counters.handled, counters.seen), (2, 1, 1));
    }

    #[test]
    fn when_none_is_implicit_the_primitive_is_emitted() {
        let _scopes = without_handlers();
        let value = implicit((Outer::of(left()), right()), |(x, y)| x.add(y)).expect("runs");
        assert_eq!(dense(&value), [11.0, 22.0]);
    }

    #[test]
    fn one_array_is_materialized_once_in_a_trace() {
        let _scopes = without_handlers();
        let (value, counters) = Counters::during(|| {
            implicit(Outer::of(left()), |x| -> Result<Array, Exception> {
                let square = x.multiply(&x)?;
                square.add(x.negative()?)?.subtract(x.exp()?)
            })
        });
        value.expect("runs");
        assert_eq!((counters.seen, counters.materialized, counters.materialized_bytes), (3, 2, 16));
    }
}

mod clause_7 {
    use super::*;

    #[handler]
    fn other_shape(_: &Negative, _x: &Left) -> Result<Value> {
        Ok(vector(&[1.0]).into())
    }

    #[handler]
    fn other_dtype(_: &Negative, x: &Right) -> Result<Value> {
        Ok(x.array.as_dtype(mlx_rs::Dtype::Float16)?.into())
    }

    #[handler]
    fn too_few(_: &DivMod, x: &Left, _y: &Array) -> Result<Vec<Value>> {
        Ok(vec![x.array.clone().into()])
    }

    #[handler]
    fn none(_: &Multiply, _x: &Left, _y: &Array) -> Result<Vec<Value>> {
        Ok(vec![])
    }

    #[handler]
    fn implicit_of_another_aval(_: &Divide, _x: &Left, _y: &Array) -> Result<Value> {
        Ok(Right::of(&vector(&[1.0, 2.0, 3.0])))
    }

    fn registry() -> Registry {
        Registry::new()
            .with::<other_shape>()
            .with::<other_dtype>()
            .with::<too_few>()
            .with::<none>()
            .with::<implicit_of_another_aval>()
    }

    fn blamed(f: fn(Vec<Array>) -> Result<Vec<Array>, Exception>, args: Vec<Value>) -> (&'static str, String, String) {
        match error(takers(registry(), f, args)) {
            Error::HandlerAval { handler, expected, found, .. } => (handler.name, expected, found),
            other => panic!("{other}"),
        }
    }

    fn reading(name: &'static str, expected: &str, found: &str) -> (&'static str, String, String) {
        (name, expected.to_owned(), found.to_owned())
    }

    #[test]
    fn a_result_of_another_aval_names_the_handler() {
        assert_eq!(blamed(negated, vec![left()]), reading("other_shape", "f32[2]", "f32[1]"));
        assert_eq!(blamed(negated, vec![right()]), reading("other_dtype", "f32[2]", "f16[2]"));
        let divided = |x: Vec<Array>| Ok(vec![x[0].divide(&x[1])?]);
        assert_eq!(blamed(divided, vec![left(), plain()]), reading("implicit_of_another_aval", "f32[2]", "f32[3]"));
    }

    #[test]
    fn so_does_a_wrong_number_of_results() {
        let divmod = |x: Vec<Array>| ops::divmod(&x[0], &x[1]).map(|(a, b)| vec![a, b]);
        assert_eq!(blamed(divmod, vec![left(), plain()]), reading("too_few", "f32[2], f32[2]", "f32[2]"));
        let multiplied = |x: Vec<Array>| Ok(vec![x[0].multiply(&x[1])?]);
        assert_eq!(blamed(multiplied, vec![left(), plain()]), reading("none", "f32[2]", "nothing"));
    }
}
