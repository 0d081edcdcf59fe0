//! What `derive(ImplicitArray)` makes of a struct.

extern crate tacit_core as tacit;

use std::hash::{DefaultHasher, Hasher};

use mlx_rs::{Array, Dtype};
use tacit::store;
use tacit::{Aval, Error, ImplicitArray, Materialize, Primitive, Result, Value};

/// A child of every kind and a static field beside the aval.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Scaled", default = as_it_is, no_commute)]
struct Scaled {
    packed: Array,
    scale: Value,
    shift: Option<Array>,
    parts: Vec<Value>,
    #[implicit(aux)]
    block_size: usize,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Scaled {
    fn materialize(&self) -> Result<Value> {
        Ok((&self.packed * &self.scale.dense()?).into())
    }
}

fn as_it_is(_primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Value>> {
    Ok(operands.iter().map(|&operand| operand.clone()).collect())
}

/// Without an aval: it is that of the dense array.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Plain")]
struct Plain {
    array: Array,
}

impl Materialize for Plain {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

/// Refuses, and has no aval either.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Opaque")]
struct Opaque {}

impl Materialize for Opaque {
    fn materialize(&self) -> Result<Value> {
        Err(Error::refuse("there is nothing in it"))
    }
}

fn floats(values: &[f32]) -> Array {
    Array::from_slice(values, &[i32::try_from(values.len()).expect("short")])
}

fn scaled() -> Scaled {
    Scaled {
        packed: floats(&[1.0, 2.0]),
        scale: Plain { array: floats(&[3.0, 4.0]) }.into(),
        shift: None,
        parts: vec![floats(&[5.0]).into(), Plain { array: floats(&[6.0]) }.into()],
        block_size: 64,
        aval: Aval::new(&[2], Dtype::Float32),
    }
}

fn hash(array: &dyn ImplicitArray) -> u64 {
    let mut hasher = DefaultHasher::new();
    array.aux_hash(&mut hasher);
    hasher.finish()
}

fn dense(value: &Value) -> Vec<f32> {
    let array = value.dense().expect("materializes");
    array.eval().expect("evaluates");
    array.as_slice::<f32>().to_vec()
}

#[test]
fn the_aval_is_the_field_or_inferred() {
    assert_eq!(scaled().aval().expect("given").to_string(), "f32[2]");
    assert_eq!(Plain { array: floats(&[1.0; 3]) }.aval().expect("inferred").to_string(), "f32[3]");
}

#[test]
fn an_aval_that_cannot_be_inferred_names_the_type_and_the_field_to_add() {
    expect_test::expect![[r"
        test.Opaque has no aval: there is nothing in it
        help: give the struct a field `#[implicit(aux)] aval: Aval`"]]
    .assert_eq(&Opaque {}.aval().expect_err("refuses").to_string());
}

#[test]
fn children_come_in_the_order_of_the_fields() {
    let names: Vec<_> = scaled().children().into_iter().map(|(name, child)| format!("{name}: {child}")).collect();
    assert_eq!(names, ["packed: f32[2]", "scale: Plain(f32[2])", "parts.0: f32[1]", "parts.1: Plain(f32[1])"]);
}

#[test]
fn other_children_keep_the_static_fields() {
    let children = [7.0, 8.0, 9.0, 10.0].map(|x| floats(&[x, x]).into()).to_vec();
    let array = scaled().with_children(children).expect("four children");
    assert!(array.aux_eq(&scaled()));
    assert_eq!(dense(&array.into()), [56.0, 56.0]);
}

#[test]
fn a_wrong_number_of_children_is_an_error() {
    let children = |count| vec![Value::from(floats(&[1.0])); count];
    let message = |count| scaled().with_children(children(count)).expect_err("wrong").to_string();
    expect_test::expect![[r"
        there is no child for the field parts
        help: give one value for each child"]]
    .assert_eq(&message(3));
    expect_test::expect![[r"
        test.Scaled has 4 children and was given 5
        help: give one value for each child"]]
    .assert_eq(&message(5));
}

#[test]
fn a_dense_child_does_not_take_an_implicit_one() {
    let children = vec![Plain { array: floats(&[1.0]) }.into()];
    expect_test::expect![[r"
        the child array is dense and was given Plain(f32[1])
        help: declare the field as a `Value` to let it be implicit"]]
    .assert_eq(&Plain { array: floats(&[1.0]) }.with_children(children).expect_err("implicit").to_string());
}

#[test]
fn static_fields_and_the_type_are_compared_and_hashed() {
    let other = Scaled { block_size: 32, ..scaled() };
    let same = Scaled { packed: floats(&[0.0; 9]), ..scaled() };
    assert!(!scaled().aux_eq(&other) && hash(&scaled()) != hash(&other));
    assert!(scaled().aux_eq(&same) && hash(&scaled()) == hash(&same));
    let plain = Plain { array: floats(&[1.0]) };
    assert!(!plain.aux_eq(&Opaque {}) && hash(&plain) != hash(&Opaque {}));
}

#[test]
fn the_default_handler_and_commuting_are_what_the_attribute_says() {
    let ty = scaled().array_type();
    assert!(ty.default.is_some() && !ty.commutes);
    let plain = Plain { array: floats(&[1.0]) };
    let ty = plain.array_type();
    assert!(ty.default.is_none() && ty.commutes);
}

#[test]
fn structure_goes_through_serde_and_arrays_through_the_store() {
    let value: Box<dyn ImplicitArray> = Box::new(scaled());
    let (json, arrays) = store::collect(|| serde_json::to_string_pretty(&value));
    let json = json.expect("serializes");
    expect_test::expect![[r#"
        {
          "type": "test.Scaled",
          "packed": "packed",
          "scale": {
            "implicit": {
              "type": "test.Plain",
              "array": "scale.array"
            }
          },
          "shift": null,
          "parts": [
            {
              "array": "parts.0"
            },
            {
              "implicit": {
                "type": "test.Plain",
                "array": "parts.1.array"
              }
            }
          ],
          "block_size": 64,
          "aval": "f32[2]"
        }"#]]
    .assert_eq(&json);

    let back: Box<dyn ImplicitArray> = store::provide(arrays, || serde_json::from_str(&json)).expect("deserializes");
    assert!(back.aux_eq(&scaled()));
    let (children, originals) = (back.children(), scaled().children());
    for ((name, child), (original_name, original)) in children.iter().zip(&originals) {
        assert_eq!((name, dense(child)), (original_name, dense(original)));
    }
    assert_eq!(children.len(), originals.len());
}

#[test]
fn outside_a_store_there_is_nowhere_for_the_arrays() {
    let array = Plain { array: floats(&[1.0]) };
    let help = "help: serialize it inside `store::collect` and read it inside `store::provide`, which carry them";
    let error = serde_json::to_string(&array).expect_err("outside").to_string();
    assert!(error.contains(help), "{error}");
    let error = serde_json::from_str::<Plain>(r#"{"array": "0"}"#).expect_err("outside").to_string();
    assert!(error.contains(help), "{error}");
}

/// Names that what the derive writes could have as well: of the parameters of serde's functions, and of a type.
mod names_of_the_users {
    use std::marker::PhantomData;

    use mlx_rs::Array;
    use serde::{Deserialize, Serialize};
    use tacit::{ImplicitArray, Materialize, Result, Value};

    pub(crate) trait Unit: Clone + std::fmt::Debug + Send + 'static {
        const NAME: &'static str;
    }

    #[derive(Clone, Debug)]
    pub(crate) struct Dozen;

    impl Unit for Dozen {
        const NAME: &'static str = "test.Dozens";
    }

    #[derive(ImplicitArray, Clone, Debug)]
    #[implicit(name = S::NAME)]
    pub(crate) struct Many<S: Unit, D: Unit> {
        pub(crate) count: Array,
        #[implicit(aux)]
        pub(crate) units: PhantomData<(S, D)>,
    }

    impl<S: Unit, D: Unit> Materialize for Many<S, D> {
        fn materialize(&self) -> Result<Value> {
            Ok(self.count.clone().into())
        }
    }

    tacit::register_array!(Many<Dozen, Dozen>);

    /// A constant is a parameter that has no constants: the name is the type's own.
    #[derive(ImplicitArray, Clone, Debug)]
    #[implicit(name = Self::NAME)]
    pub(crate) struct Coded<const BITS: usize> {
        pub(crate) codes: Array,
    }

    impl<const BITS: usize> Coded<BITS> {
        const NAME: &'static str = if BITS == 1 { "test.Coded1" } else { "test.Coded2" };
    }

    impl<const BITS: usize> Materialize for Coded<BITS> {
        fn materialize(&self) -> Result<Value> {
            Ok(self.codes.clone().into())
        }
    }

    tacit::register_array!(Coded<1>, Coded<2>);

    #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub(crate) struct StoredWeight(pub(crate) u8);

    #[derive(ImplicitArray, Clone, Debug)]
    #[implicit(name = "test.Weight")]
    pub(crate) struct Weight {
        pub(crate) array: Array,
        #[implicit(aux)]
        pub(crate) how: StoredWeight,
    }

    impl Materialize for Weight {
        fn materialize(&self) -> Result<Value> {
            Ok(self.array.clone().into())
        }
    }
}

#[test]
fn names_of_the_users_are_not_hidden() {
    use names_of_the_users::{Coded, Dozen, Many, StoredWeight, Weight};
    let many = Many::<Dozen, Dozen> { count: floats(&[1.0]), units: std::marker::PhantomData };
    let weight = Weight { array: floats(&[2.0]), how: StoredWeight(3) };
    let coded = Coded::<1> { codes: floats(&[3.0]) };
    let wider = Coded::<2> { codes: floats(&[4.0]) };
    let arrays: [Box<dyn ImplicitArray>; 4] = [Box::new(many), Box::new(weight), Box::new(coded), Box::new(wider)];
    for array in arrays {
        let (json, arrays) = store::collect(|| serde_json::to_string(&array));
        let json = json.expect("serializes");
        let back: Box<dyn ImplicitArray> = store::provide(arrays, || serde_json::from_str(&json)).expect(&json);
        assert!(back.aux_eq(&*array), "{json}");
        assert_eq!(dense(&back.into()), dense(&array.into()));
    }
}

#[test]
fn a_structure_that_does_not_fit_is_an_error() {
    let load = |json: &str| {
        let arrays = store::Arrays::from([("0".to_owned(), floats(&[1.0]))]);
        store::provide(arrays, || serde_json::from_str::<Box<dyn ImplicitArray>>(json)).err().map(|e| e.to_string())
    };
    assert_eq!(load(r#"{"type": "test.Plain", "array": "0"}"#), None);
    for (json, message) in [
        (r#"{"type": "test.Plain", "array": "9"}"#, "there is no array for the key \"9\""),
        (r#"{"type": "test.Plain"}"#, "missing field `array`"),
        (r#"{"type": "test.Plain", "array": "0", "extra": 1}"#, "unknown field `extra`"),
        (r#"{"type": "test.Missing"}"#, "unknown variant `test.Missing`"),
    ] {
        let error = load(json).expect("an error");
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_store_ends_with_its_function_and_gives_way_to_an_inner_one() {
    let array = Plain { array: floats(&[1.0]) };
    let ((), outer) = store::collect(|| {
        serde_json::to_string(&array).expect("outer");
        let (_, inner) = store::collect(|| serde_json::to_string(&array).expect("inner"));
        assert_eq!(inner.len(), 1);
        serde_json::to_string(&array).expect("outer again");
    });
    assert_eq!(outer.len(), 2);
    let panic = std::panic::catch_unwind(|| store::collect(|| panic!("inside")));
    assert!(panic.is_err() && serde_json::to_string(&array).is_err());
}
