//! What is told of a model as it is now: the report, explanations and errors by the paths of parameters.

use expect_test::expect;
use mlx_rs::module::Module;
use mlx_rs::{Array, Dtype, nn, ops};
use tacit_arrays::format::{Affine, Nf4, Quantizer as _};
use tacit_core::{Error, Policy, Result};
use tacit_nn::{LoraConfig, Missing, Model, Outcome, Parameters};

use crate::types::normal;

const NF4: Nf4 = Nf4 { block: 64, double: false };

fn layers() -> Result<Model<nn::Sequential>> {
    let mut model =
        Model::new(nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Linear::new(64, 64)?))?;
    for (path, seed) in [("layers.0.weight", 1), ("layers.1.weight", 2)] {
        model.set(path, normal(seed, &[64, 64]))?;
    }
    Ok(model)
}

#[test]
fn the_report_is_of_the_parameters_as_they_are_now() -> Result<()> {
    let mut model = layers()?.quantize("layers.*.weight", NF4)?.lora("layers.0.weight", LoraConfig::default())?;
    expect![[r#"
        parameter        aval        format    bits     error        before         after
        layers.0.bias    f32[64]     -                                  256           256  no rule names it
        layers.0.weight  f32[64,64]  -                                16384         10496  Lora(f32[64,64])
        layers.1.bias    f32[64]     -                                  256           256  no rule names it
        layers.1.weight  f32[64,64]  nf4:64   4.500   0.09099         16384          2304
                                                                      33280         13312"#]]
    .assert_eq(&model.report().to_string());
    assert_eq!(model.report().bytes().1, model.nbytes());
    model.replace("*.bias", |_, value| Ok(Some(value.dense()?.as_dtype(Dtype::Float16)?.into())))?;
    model.set("layers.1.weight", normal(3, &[64, 64]))?;
    model.set("layers.0.weight", Affine { bits: 8, group: 64 }.quantize(&normal(4, &[64, 64]))?)?;
    expect![[r#"
        parameter        aval        format    bits     error        before         after
        layers.0.bias    f16[64]     -                                  256           128  no rule names it
        layers.0.weight  f32[64,64]  -                                16384          4608  Affine(f32[64,64])
        layers.1.bias    f16[64]     -                                  256           128  no rule names it
        layers.1.weight  f32[64,64]  -                                16384         16384  it was set to a dense array
                                                                      33280         21248"#]]
    .assert_eq(&model.report().to_string());
    assert_eq!(model.report().bytes().1, model.nbytes());
    let untouched = layers()?;
    assert_eq!(untouched.report().bytes(), (untouched.nbytes(), untouched.nbytes()));
    Ok(())
}

#[test]
fn the_report_tells_of_what_was_replaced() -> Result<()> {
    let mut model = layers()?.quantize("layers.0.weight", NF4)?;
    model.replace("layers.0.weight", |_, value| Ok(Some(value.dense()?.into())))?;
    model.replace("layers.1.weight", |_, value| Ok(Some(Affine { bits: 8, group: 64 }.quantize(&value.dense()?)?)))?;
    let rows = model.report().rows;
    let dense = Outcome::Left { reason: "it was set to a dense array".to_owned() };
    assert_eq!(rows["layers.0.weight"].outcome, dense);
    assert_eq!(rows["layers.1.weight"].outcome, Outcome::Implicit { array: "Affine(f32[64,64])".to_owned() });
    Ok(())
}

#[test]
fn what_a_function_assigned_is_told_as_it_is() -> Result<()> {
    let (mut model, other) = (Model::new(nn::Linear::new(64, 64)?)?.quantize("weight", NF4)?, normal(5, &[64, 64]));
    model.run(|linear| {
        linear.weight.value = other.clone();
        Ok::<_, Error>(Array::from_f32(0.0))
    })?;
    let row = model.report().rows["weight"].clone();
    assert_eq!(row.outcome, Outcome::Left { reason: "it was set to a dense array".to_owned() });
    assert_eq!((row.before, row.after), (64 * 64 * 4, 64 * 64 * 4));
    Ok(())
}

#[test]
fn explanations_and_errors_name_parameters() -> Result<()> {
    let mut model = layers()?.quantize("layers.*.weight", NF4)?;
    let x = ops::ones::<f32>(&[1, 64])?;
    let told = model.explain(|layers| layers.forward(&x))?;
    assert_eq!(
        told.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(),
        ["layers.0.weight", "layers.1.weight"]
    );
    let first: Vec<String> = told.equations.iter().take(2).map(std::string::ToString::to_string).collect();
    assert!(
        first[0].starts_with("a:Nf4(f32[64,64]) = transpose") && first[0].contains("layers.0.weight"),
        "{}",
        first[0]
    );

    let _deny = Policy::Deny.scope();
    let denied = |f: fn(&Array) -> std::result::Result<Array, mlx_rs::error::Exception>| {
        let mut model = layers().and_then(|model| model.quantize("layers.*.weight", NF4)).expect("quantizes");
        let denied = model.run(|layers| {
            let weights = mlx_rs::module::ModuleParameters::parameters(layers).flatten();
            f(weights["layers.1.weight"])
        });
        denied.expect_err("is denied").to_string()
    };
    // A transposed view is a value of its own, and made of the parameter.
    for message in [denied(|w| ops::sort_axis(w, -1)), denied(|w| ops::sort_axis(w.t(), -1))] {
        assert!(message.contains("\nof: layers.1.weight\n"), "{message}");
    }
    Ok(())
}

#[test]
fn a_merge_that_is_denied_says_how_it_is_allowed() -> Result<()> {
    let mut model = layers()?.quantize("*.weight", NF4)?.lora("layers.0.weight", LoraConfig::default())?;
    let _deny = Policy::Deny.scope();
    expect![[r#"
        a dense array of Lora(f32[64,64]) needs Lora materialized, which the policy forbids
        of: layers.0.weight
        help: allow it here with `Policy::Allow.scope()`"#]]
    .assert_eq(&model.merge_exactly().expect_err("is denied").to_string());
    Ok(())
}

#[test]
fn what_is_given_and_is_not_in_the_model_is_told_too() -> Result<()> {
    let mut model = layers()?;
    let given: Parameters = ["model.layers.0.weight", "layers.0.bias", "lm_head.weight"]
        .map(|path| (path.to_owned(), normal(1, &[64]).into()))
        .into();
    expect![[r#"
        parameters of the model are not given: layers.0.weight, layers.1.bias, layers.1.weight; what is given, and the model does not have: lm_head.weight, model.layers.0.weight
        help: give them under the paths of the model, or let them be as they are with `Missing::Keep`"#]].assert_eq(&model.assign(given, Missing::Refuse).expect_err("others").to_string());
    Ok(())
}

/// What was quantized first keeps its row when others are, and what is quantized anew the bytes that it took at first.
#[test]
fn a_second_quantize_tells_of_the_first() -> Result<()> {
    let layers = nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Linear::new(64, 64)?);
    let model = Model::new(layers)?.quantize("layers.0.weight", "nf4:64")?;
    let first = model.report().rows["layers.0.weight"].clone();
    let mut model = model.quantize("*", "affine:4:64")?;
    assert_eq!(model.report().rows["layers.0.weight"], first);
    model.replace("layers.0.weight", |_, value| Ok(Some(value.dense()?.into())))?;
    let again = model.quantize("layers.0.weight", "affine:8:64")?.report();
    let row = &again.rows["layers.0.weight"];
    assert_eq!(row.before, 64 * 64 * 4);
    assert!(matches!(&row.outcome, Outcome::Quantized { format, .. } if format == "affine:8:64"), "{row:?}");
    Ok(())
}
