//! Products of models that round their activations to 8 bits.

use expect_test::expect;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, Param};
use mlx_rs::{Array, nn};
use tacit_arrays::format::{AnyFormat, Granularity};
use tacit_arrays::{Int8Array, Lora, Nf4Array, Packed, Stacked};
use tacit_core::{Policy, Value};
use tacit_nn::{LoraConfig, Model, Rules};

use crate::types::{error, normal, numbers, said_of};

/// Three layers of 64 features: nf4, bf16 and dense.
fn model() -> Model<nn::Sequential> {
    mlx_rs::random::seed(3).expect("seeds");
    let linear = || nn::Linear::new(64, 64).expect("builds");
    let layers = nn::Sequential::new().append(linear()).append(linear()).append(linear());
    let rules = Rules::from_json(r#"{"layers.0.*": "nf4:64", "layers.1.*": "bf16"}"#).expect("are rules");
    Model::new(layers).and_then(|model| model.quantize("*", &rules)).expect("quantizes")
}

fn forward(model: &mut Model<nn::Sequential>) -> Vec<f32> {
    numbers(&model.forward(&normal(4, &[17, 64])).expect("runs"))
}

/// The largest difference; NaN where there is one.
pub(crate) fn apart(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).expect("numbers")
}

/// The largest difference over the largest magnitude.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    apart(found, expected) / expected.iter().fold(0f32, |largest, x| largest.max(x.abs()))
}

pub(crate) fn rounds(value: &Value) -> bool {
    value.family::<dyn Packed>().is_some_and(Packed::int8_activations)
}

#[test]
fn what_a_pattern_names_rounds_where_its_format_has_such_products() {
    let _deny = Policy::Deny.scope();
    let mut model = model();
    let (report, float) = (model.report(), forward(&mut model));
    let rounded = model.int8_activations("*").expect("rounds");
    expect![[r#"
        1 parameter rounds activations to 8 bits; layers.1.weight: bf16 has no products with activations in 8 bits; layers.2.weight: it is dense"#]]
    .assert_eq(&rounded.to_string());
    assert_eq!(rounded.rounding, ["layers.0.weight"]);
    assert!(rounded.left.keys().eq(["layers.1.weight", "layers.2.weight"]));
    let off = difference(&forward(&mut model), &float);
    assert!((1e-5..5e-2).contains(&off), "{off}");
    // Codes and errors are what they were.
    assert_eq!(model.report(), report);
    let once = forward(&mut model);
    assert_eq!(model.int8_activations("layers.0.weight").expect("rounds").rounding, ["layers.0.weight"]);
    assert_eq!(forward(&mut model), once);
}

#[test]
fn a_model_that_would_round_nothing_is_an_error() {
    let mut model = model();
    let float = forward(&mut model);
    let said = [
        said_of(model.int8_activations("layers.{1,2}.*")),
        said_of(model.int8_activations("layers.0.bias")),
        said_of(model.int8_activations("head.*")),
    ]
    .concat();
    expect![[r#"
        no parameter rounds activations to 8 bits; layers.1.weight: bf16 has no products with activations in 8 bits; layers.2.weight: it is dense
        help: quantize weights first, in a format whose codes are multiplied as integers, such as nf4:64
        no parameter rounds activations to 8 bits; layers.0.bias: it is dense
        help: quantize weights first, in a format whose codes are multiplied as integers, such as nf4:64
        the pattern head.* names no parameter of the model
        help: its parameters are layers.0.bias, layers.0.weight, layers.1.bias, layers.1.weight, layers.2.bias, layers.2.weight
    "#]]
    .assert_eq(&said);
    assert_eq!(forward(&mut model), float);
}

#[test]
fn the_base_of_an_adapter_rounds() {
    let _deny = Policy::Deny.scope();
    let mut model = model().lora("layers.0.weight", LoraConfig::default()).expect("adapts");
    let float = forward(&mut model);
    assert_eq!(model.int8_activations("*").expect("rounds").rounding, ["layers.0.weight"]);
    let value = model.get("layers.0.weight").expect("is there");
    assert!(rounds(value.downcast::<Lora>().expect("an adapter").base()));
    let off = difference(&forward(&mut model), &float);
    assert!((1e-5..5e-2).contains(&off), "{off}");
}

#[derive(Debug, Clone, ModuleParameters)]
struct Experts {
    #[param]
    weight: Param<Array>,
}

#[test]
fn experts_round_one_by_one_and_not_as_one_array() {
    let experts = |value: Value| {
        let mut model = Model::new(Experts { weight: Param::new(normal(1, &[2, 8, 64])) }).expect("a model");
        model.set("weight", value).expect("fits");
        model
    };
    let one = |seed| -> Value { Nf4Array::quantize(&normal(seed, &[8, 64]), 64).expect("quantizes").into() };
    let bf16: AnyFormat = "bf16".parse().expect("a format");
    // One that does not round stays beside one that does.
    let other = bf16.quantize(&normal(3, &[8, 64])).expect("quantizes");
    let mut model = experts(Stacked::new(vec![one(2), other]).expect("stacks").into());
    let rounded = model.int8_activations("weight").expect("rounds");
    assert_eq!((rounded.rounding.len(), rounded.left.len()), (1, 0));
    let value = model.get("weight").expect("is there");
    let experts_of = value.downcast::<Stacked>().expect("a stack").experts();
    assert_eq!([rounds(&experts_of[0]), rounds(&experts_of[1])], [true, false]);

    let stack = Nf4Array::quantize(&normal(4, &[2, 8, 64]), 64).expect("quantizes");
    let mut model = experts(stack.into());
    expect![[r#"
        no parameter rounds activations to 8 bits; weight: f32[2,8,64] in nf4:64 is no matrix, and its products stay in floats
        help: quantize weights first, in a format whose codes are multiplied as integers, such as nf4:64"#]]
    .assert_eq(&error(model.int8_activations("*")).to_string());
}

/// The kernel multiplies rows of codes: what is stored by columns is multiplied in floats.
#[test]
fn a_weight_that_is_stored_by_columns_stays_in_floats() {
    let mut model = model();
    let columns = Int8Array::quantize(&normal(5, &[64, 64]), Granularity::Column).expect("quantizes");
    model.set("layers.2.weight", columns).expect("fits");
    let rounded = model.int8_activations("*").expect("rounds");
    assert_eq!(
        rounded.left["layers.2.weight"],
        "f32[64,64] in int8:64 is stored by columns, and its products stay in floats"
    );
}
