//! Handlers of families and of classes of primitives, and what the contract says when none takes a call.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use tacit::primitives::{AddMM, AsType, Exp, Matmul, Moving, Multiply, Negative, Transpose, Unary};
use tacit::{
    Aval, Counters, Error, ImplicitArray, Materialize, Policy, Primitive, Registry, Result, Value, array_types,
    explain, handler, implicit, materialize,
};

use crate::types::{Left, aval, dense, error, matrix, message, takers, vector, with_handlers, without_lines};

/// A family of one's own.
trait Twofold: ImplicitArray {
    fn half(&self) -> &Array;

    fn with(&self, half: Array) -> Value;
}

macro_rules! twofold {
    ($($ty:ident $name:literal)+) => {$(
        #[derive(ImplicitArray, Clone, Debug)]
        #[implicit(name = $name, family(Twofold))]
        struct $ty {
            half: Array,
        }

        impl Twofold for $ty {
            fn half(&self) -> &Array {
                &self.half
            }

            fn with(&self, half: Array) -> Value {
                Self { half }.into()
            }
        }

        impl Materialize for $ty {
            fn materialize(&self) -> Result<Value> {
                Ok(self.half.add(&self.half)?.into())
            }
        }
    )+};
}

twofold! { Double "test.Double" Pair "test.Pair" }

#[handler]
fn negate_twofold(_: &Negative, x: &dyn Twofold) -> Result<Value> {
    Ok(x.with(x.half().negative()?))
}

#[handler]
fn negate_pair(_: &Negative, x: &Pair) -> Result<Value> {
    negate_twofold(&Negative, x)
}

#[handler]
fn negate_any(_: &Negative, x: &dyn ImplicitArray) -> Result<Value> {
    materialize(x)
}

#[handler]
fn move_twofold(op: &Moving, x: &dyn Twofold, rest: &[&Value], results: &[Aval]) -> Result<Vec<Value>> {
    if results.len() != 1 || !rest.is_empty() {
        return Err(Error::decline(format!("{} moves more than one array", op.name())));
    }
    Ok(op.emit(std::slice::from_ref(x.half()))?.into_iter().map(|half| x.with(half)).collect())
}

#[handler]
fn unary_twofold(op: &Unary, x: &dyn Twofold) -> Result<Value> {
    Err(Error::decline(format!("{} of a sum is no sum", op.name()))).or_else(|error| match op.name() {
        "Negative" => Ok(x.with(x.half().negative()?)),
        _ => Err(error),
    })
}

#[handler]
fn any_twofold(op: &Primitive, _x: &dyn Twofold) -> Result<Value> {
    Err(Error::decline(format!("{} is nothing for it", op.name())))
}

type Op = fn(&Array) -> Result<Array, Exception>;

fn double() -> Value {
    Double { half: matrix(2, 3) }.into()
}

fn pair() -> Value {
    Pair { half: matrix(2, 3) }.into()
}

fn negated(mut arrays: Vec<Array>) -> Result<Vec<Array>, Exception> {
    Ok(vec![arrays.remove(0).negative()?])
}

fn took(registry: Registry, f: fn(Vec<Array>) -> Result<Vec<Array>, Exception>, args: Vec<Value>) -> String {
    takers(registry, f, args).expect("runs").remove(0)
}

#[test]
fn a_handler_of_a_family_takes_every_member() {
    let registry = || Registry::new().with::<negate_twofold>();
    assert_eq!(took(registry(), negated, vec![double()]), "negate_twofold");
    assert_eq!(took(registry(), negated, vec![pair()]), "negate_twofold");
    assert_eq!(took(registry(), negated, vec![Left::of(&vector(&[1.0]))]), "materialized");
    let member = double();
    let family: &dyn Twofold = member.family().expect("joins it");
    assert_eq!(family.half().shape(), [2, 3]);
    assert!(Left::of(&vector(&[1.0])).family::<dyn Twofold>().is_none());
}

#[test]
fn a_type_goes_before_its_family_and_that_before_any_implicit() {
    let registry = || Registry::new().with::<negate_any>().with::<negate_twofold>().with::<negate_pair>();
    assert_eq!(took(registry(), negated, vec![pair()]), "negate_pair");
    assert_eq!(took(registry(), negated, vec![double()]), "negate_twofold");
    assert_eq!(took(registry(), negated, vec![Left::of(&vector(&[1.0]))]), "negate_any");
}

#[test]
fn a_primitive_goes_before_its_class_and_that_before_any() {
    let registry = || Registry::new().with::<any_twofold>().with::<unary_twofold>();
    assert_eq!(took(registry(), negated, vec![double()]), "unary_twofold");
    assert_eq!(took(registry().with::<negate_twofold>(), negated, vec![double()]), "negate_twofold");
    assert!(registry().with::<negate_twofold>().with::<move_twofold>().check().is_ok());
}

#[test]
fn a_type_goes_before_a_family_whatever_the_primitive() {
    #[handler]
    fn anything(op: &Primitive, x: &Double) -> Result<Value> {
        Ok(op.emit(&[x.half.add(&x.half)?])?.swap_remove(0).into())
    }
    let registry = Registry::new().with::<negate_twofold>().with::<anything>();
    assert_eq!(took(registry, negated, vec![double()]), "anything");
}

#[test]
fn a_class_of_primitives_has_one_handler_that_knows_what_is_made() {
    let _scopes = with_handlers(Registry::new().with::<move_twofold>());
    let _policy = Policy::Deny.scope();
    let calls: [Op; 3] = [|x| Ok(x.t()), |x| x.reshape(&[3, 2]), |x| ops::broadcast_to(x, &[4, 2, 3])];
    for f in calls {
        let value = implicit(double(), move |x| f(&x)).expect("is handled");
        let expected = f(&ops::multiply(matrix(2, 3), Array::from_f32(2.0)).expect("builds")).expect("builds");
        let _allow = Policy::Allow.scope();
        assert!(value.is_implicit());
        assert!(value.dense().expect("dense").eq_exact(&expected).expect("compares"));
    }
}

#[test]
fn families_are_known_of_types() {
    let double = array_types().into_iter().find(|ty| ty.saved_as == "test.Double").expect("is registered");
    assert!(double.joins::<dyn Twofold>() && !double.joins::<dyn ImplicitArray>());
    assert_eq!(format!("{:?}", double.families), "[Twofold]");
}

trait Other: ImplicitArray {}

/// A member of two families.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Both", family(Twofold, Other))]
struct Both {
    half: Array,
}

impl Twofold for Both {
    fn half(&self) -> &Array {
        &self.half
    }

    fn with(&self, half: Array) -> Value {
        Self { half }.into()
    }
}

impl Other for Both {}

impl Materialize for Both {
    fn materialize(&self) -> Result<Value> {
        Ok(self.half.add(&self.half)?.into())
    }
}

#[handler]
fn negate_other(_: &Negative, x: &dyn Other) -> Result<Value> {
    materialize(x)
}

trait Empty: ImplicitArray {}

#[handler]
fn negate_empty(_: &Negative, x: &dyn Empty) -> Result<Value> {
    materialize(x)
}

#[test]
fn families_of_one_type_tie_and_those_without_a_common_type_do_not() {
    let found = Registry::new().with::<negate_twofold>().with::<negate_other>().check().err().unwrap_or_default();
    assert!(matches!(found.as_slice(), [Error::Ambiguous { .. }]), "{found:?}");
    assert!(Registry::new().with::<negate_twofold>().with::<negate_empty>().check().is_ok());
}

#[handler]
fn product(_: &AddMM, _a: &Array, _b: &Double, _c: &Array) -> Result<Value> {
    Ok(ops::zeros::<f32>(&[4, 3])?.into())
}

#[test]
fn the_operand_of_fewest_bytes_is_materialized_first() {
    let run = || {
        let _scopes = with_handlers(Registry::new().with::<product>());
        // `c` is as large as the result, and smaller than the weight.
        let (w, c) = (Double { half: matrix(64, 3) }, Left::of(&matrix(4, 3)));
        implicit((matrix(4, 64), w, c), |(x, w, c)| ops::addmm(&c, &x, &w, None, None))
    };
    let (value, counters) = Counters::during(run);
    assert!(value.is_ok());
    assert_eq!((counters.handled, counters.materialized, counters.materialized_bytes), (1, 1, 4 * 3 * 4));
}

#[handler]
fn shy_product(_: &Matmul, _x: &Array, _w: &Double) -> Result<Value> {
    Err(Error::decline("only whole rows are taken"))
}

#[allow(clippy::needless_pass_by_value, reason = "a traced function takes its arrays")]
fn matmul(arrays: Vec<Array>) -> Result<Vec<Array>, Exception> {
    Ok(vec![arrays[0].matmul(&arrays[1])?])
}

#[test]
fn what_declined_is_told_with_its_reason_and_is_not_near() {
    let args = || vec![matrix(4, 2).into(), double()];
    let registry = || Registry::new().with::<shy_product>().with::<negate_twofold>();
    let explanation = {
        let _scopes = with_handlers(registry());
        explain(args(), matmul).expect("runs")
    };
    assert_eq!(explanation.equations[0].declined[0].reason, "only whole rows are taken");
    expect_test::expect![[r#"
        { lambda a:f32[4,2] b:Double(f32[2,3]) .
            c:f32[4,3] = matmul a b   materialized
                declined: shy_product: only whole rows are taken
            in (c) }   1 ops, 0 handled, 1 materialized (24 B)"#]]
    .assert_eq(&without_lines(&explanation.to_string()));
    let (_registry, _policy) = (std::sync::Arc::new(registry()).scope(), Policy::Deny.scope());
    let denied = error(implicit(args(), matmul));
    expect_test::expect![[r#"
        matmul of f32[4,2], Double(f32[2,3]) needs Double materialized, which the policy forbids
        declined: shy_product: only whole rows are taken
        near: negate_twofold (crates/core/tests/it/families.rs:LINE) takes negative of any Twofold
        help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`"#]]
    .assert_eq(&message(&denied));
}

/// A view that a handler of its own type wraps again.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Endless")]
struct Endless {
    inner: Value,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Endless {
    fn materialize(&self) -> Result<Value> {
        Ok(ops::zeros::<f32>(&self.aval.shape)?.into())
    }
}

#[handler]
fn endless_astype(_: &AsType, x: &Endless) -> Result<Value> {
    implicit(x, |x| x.exp()?.as_dtype(Dtype::Float16))
}

#[handler]
fn endless_exp(_: &Exp, x: &Endless) -> Result<Value> {
    implicit(x, |x| x.as_dtype(Dtype::Float16)?.as_dtype(Dtype::Float32))
}

#[test]
fn handlers_that_call_each_other_without_end_are_an_error_that_names_them() {
    let _scopes = with_handlers(Registry::new().with::<endless_astype>().with::<endless_exp>());
    let endless = Endless { inner: vector(&[1.0]).into(), aval: aval(&[1]) };
    let found = error(implicit(&endless, |x| x.exp()));
    assert!(matches!(&found, Error::Cycle { handlers, .. } if handlers.len() == 2), "{found}");
    expect_test::expect![[r#"
        handlers call each other without end: endless_astype (crates/core/tests/it/families.rs:LINE), endless_exp (crates/core/tests/it/families.rs:LINE), for exp of Endless(f32[1])
        help: let one of them decline, or take apart what it is given before it dispatches again"#]]
    .assert_eq(&message(&found));
    // What comes after it is as if it had not been.
    assert_eq!(dense(&implicit(endless, |x| x.abs()).expect("is materialized")), [0.0]);
}

#[handler]
fn wrong_shapes(_: &Transpose, x: &Double) -> Result<Value> {
    Ok(x.half.matmul(&x.half)?.into())
}

#[handler]
fn scaled_double(_: &Multiply, x: &Double, y: &Array) -> Result<Value> {
    Ok(Double { half: x.half.multiply(y)? }.into())
}

#[test]
fn an_error_of_mlx_inside_a_handler_names_the_handler() {
    let _scopes = with_handlers(Registry::new().with::<wrong_shapes>().with::<scaled_double>());
    let found = error(implicit(double(), |x| Ok::<_, Error>(x.t())));
    assert!(matches!(&found, Error::Handler { handler, .. } if handler.name == "wrong_shapes"), "{found}");
    assert!(found.to_string().contains("which was given transpose[axes=(1,0)] of Double(f32[2,3])"), "{found}");
}

#[test]
fn printing_a_traced_array_is_the_error_of_evaluating_it() {
    let _scopes = with_handlers(Registry::new());
    let printed = implicit(double(), |x| {
        let text = x.to_string();
        x.add(Array::from_f32(text.len() as f32))
    });
    assert!(matches!(error(printed), Error::EvalInTrace));
}

#[test]
fn an_error_reads_the_same_when_it_is_debugged() {
    let found = Error::invalid("the block size 7 is odd", "use 64");
    assert_eq!(format!("{found:?}"), "the block size 7 is odd\nhelp: use 64");
}

mod names {
    #![deny(trivial_casts, reason = "the derive casts")]

    use mlx_rs::Array as Dense;
    use tacit::primitives::Add;

    use super::*;

    #[derive(ImplicitArray, Clone, Debug)]
    #[implicit(name = "test.Array")]
    struct Array {
        inner: Dense,
    }

    impl Materialize for Array {
        fn materialize(&self) -> Result<Value> {
            Ok(self.inner.clone().into())
        }
    }

    /// A struct with the derive, which is not written where its fields are.
    macro_rules! implicit_array {
        ($name:ident $saved_as:literal { $($(#[$attribute:meta])* $field:ident: $ty:ty),+ }) => {
            #[derive(ImplicitArray, Clone, Debug)]
            #[implicit(name = $saved_as, family(Twofold))]
            struct $name {
                $($(#[$attribute])* $field: $ty),+
            }
        };
    }

    implicit_array! { Given "test.Given" { half: Dense, #[implicit(aux)] aval: Aval } }

    impl Twofold for Given {
        fn half(&self) -> &Dense {
            &self.half
        }

        fn with(&self, half: Dense) -> Value {
            Self { half, aval: self.aval.clone() }.into()
        }
    }

    impl Materialize for Given {
        fn materialize(&self) -> Result<Value> {
            Ok(self.half.add(&self.half)?.into())
        }
    }

    #[test]
    fn a_macro_may_write_the_derive_around_fields() {
        let given = Given { half: vector(&[1.0]), aval: aval(&[1]) };
        assert_eq!(Value::from(given.clone()).aval().expect("declares it"), given.aval);
        let taken =
            takers(Registry::new().with::<negate_twofold>(), |x| Ok(vec![x[0].negative()?]), vec![given.into()]);
        assert_eq!(taken.expect("runs"), ["negate_twofold"]);
    }

    #[handler]
    fn add_dense(_: &Add, x: &Array, y: &Dense) -> Result<Dense> {
        Ok(x.inner.add(y)?)
    }

    #[test]
    fn an_operand_is_of_its_type_whatever_that_is_called() {
        let args = vec![Array { inner: vector(&[1.0]) }.into(), vector(&[2.0]).into()];
        let taken = takers(Registry::new().with::<add_dense>(), |x| Ok(vec![x[0].add(&x[1])?]), args);
        assert_eq!(taken.expect("runs"), ["add_dense"]);
    }
}
