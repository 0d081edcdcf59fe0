//! What is said of calls that no other test makes.

use expect_test::expect;
use mlx_rs::{Array, Dtype, nn, ops};
use tacit_arrays::Observation;
use tacit_arrays::format::AnyFormat;
use tacit_core::tree::{self, Open};
use tacit_core::{Error, Result, Value};
use tacit_nn::training::cross_entropy;
use tacit_nn::{Advisor, KvCache, LoraConfig, Model, Observations, Outcome, ParameterFilter, Parameters, Rules};

use crate::log::Log;
use crate::types::{Hidden, normal, said_of};

/// A layer of 64 features, and one whose weight is whole numbers.
fn layers() -> Result<[nn::Linear; 2]> {
    let mut whole = nn::Linear::new(64, 8)?;
    whole.weight.value = ops::zeros::<i32>(&[8, 64])?;
    Ok([nn::Linear::new(64, 8)?, whole])
}

#[test]
fn an_advisor_says_what_it_cannot_weigh() -> Result<()> {
    let parameters = |weight: Array| Parameters::from([("weight".to_owned(), weight.into())]);
    let advisor = || Advisor::new(["nf4:64".parse().expect("a format")]);
    let nan = normal(1, &[8, 64]).multiply(Array::from_f32(f32::NAN))?;
    let weight = parameters(normal(1, &[8, 64]));
    let said = [
        said_of(advisor().advise(&parameters(nan), 5.0)),
        said_of(advisor().with_inputs(parameters(normal(2, &[4, 32]))).advise(&weight, 5.0)),
        said_of(advisor().with_inputs(parameters(ops::zeros::<i32>(&[4, 64])?)).advise(&weight, 5.0)),
    ];
    expect![[r#"
        weight has an element that is not finite
        help: mend it before it is quantized
        weight is f32[8,64], and its inputs f32[4,32]
        help: give floats whose last axis is that of the parameter
        weight is f32[8,64], and its inputs i32[4,64]
        help: give floats whose last axis is that of the parameter
    "#]]
    .assert_eq(&said.concat());
    Ok(())
}

#[test]
fn a_cache_says_which_tokens_it_is_not_filled_with() -> Result<()> {
    let filled = |tokens: Value| {
        KvCache::new([1, 2, 64], Dtype::Float32).and_then(|cache| cache.filled(tokens.clone(), tokens, 4))
    };
    let tokens = normal(1, &[1, 2, 4, 64]);
    let said = [
        said_of(filled(normal(1, &[4, 64]).into())),
        said_of(filled(tokens.as_dtype(Dtype::Float16)?.into())),
        said_of(filled("nf4:64".parse::<AnyFormat>()?.quantize(&tokens)?)),
    ];
    expect![[r#"
        f32[4,64] is no buffer of a cache
        help: give f32, f16 or bf16 of the shape [batch, heads, tokens, width]
        f16[1,2,4,64] fills a cache of f32[1,2,0,64]
        help: give tokens of the shape and dtype that the cache was made for
        Nf4(f32[1,2,4,64]) fills a cache of another format
        help: say by `KvCache::stored` what the cache holds
    "#]]
    .assert_eq(&said.concat());
    Ok(())
}

#[test]
fn a_report_and_a_refusal_say_why_a_parameter_is_left() -> Result<()> {
    let [first, whole] = layers()?;
    let other = nn::Linear::new(64, 8)?;
    let rules = Rules::new().skip("layers.0.*")?.quantize("*", "nf4:64")?;
    let model = Model::new(nn::Sequential::new().append(first).append(other).append(whole))?.quantize("*", &rules)?;
    let report = model.report();
    let mut left = String::new();
    for (path, row) in &report.rows {
        if let Outcome::Left { reason } = &row.outcome {
            left += &[path.as_str(), ": ", reason, "\n"].concat();
        }
    }
    let [layer, whole] = layers()?;
    let mut hidden = Model::new(layer)?;
    hidden.replace("weight", |_, weight| Ok(Some(Hidden::of(weight))))?;
    let said = [
        left,
        said_of(Model::new(whole.clone())?.quantize("*", "nf4:64")),
        said_of(Model::new(whole)?.prepare("*", "nf4:64")),
        said_of(hidden.int8_activations("*")),
    ];
    expect![[r#"
        layers.0.bias: a rule skips it
        layers.0.weight: a rule skips it
        layers.1.bias: it has one axis
        layers.2.bias: it has one axis
        layers.2.weight: it is not float
        the rules quantize no parameter of the model: bias: it has one axis; weight: it is not float
        help: name other parameters or another format: its parameters are bias, weight; what has one axis is quantized where a rule names its very path
        no parameter of the model is prepared: bias: it has one axis; weight: it is not float
        help: name other parameters or another format: its parameters are bias, weight; what has one axis is quantized where a rule names its very path
        no parameter rounds activations to 8 bits; weight: it holds no codes
        help: quantize weights first, in a format whose codes are multiplied as integers, such as nf4:64
    "#]].assert_eq(&said.concat());
    Ok(())
}

#[test]
fn leaves_that_do_not_belong_together_are_named() -> Result<()> {
    let [layer, _] = layers()?;
    let config = LoraConfig { rank: 2, ..LoraConfig::default() };
    let mut model = Model::new(layer)?.quantize("weight", "nf4:64")?.lora("weight", config)?;
    let leaves = |model: &Model<nn::Linear>, filter: ParameterFilter| -> Vec<(String, Array)> {
        model.lasting_leaves(&filter).into_iter().map(|(path, array)| (path, array.clone())).collect()
    };
    let (all, adapters) = (leaves(&model, ParameterFilter::All), leaves(&model, ParameterFilter::Lora));
    let kinds = model.leaf_kinds(&ParameterFilter::Lora)?;
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let said = [
        said_of(model.load_leaves(all, Some(&kinds))),
        said_of(model.load_leaves(Vec::new(), Some(&kinds))),
        said_of(model.load_leaves(adapters[..1].to_vec(), Some(&kinds))),
        said_of(model.load_leaves(adapters[..1].to_vec(), None)),
    ];
    model.load_leaves(adapters, None)?;
    expect![[r#"
        leaves are given that were not saved with the others: bias, weight.base.codes, weight.base.scales
        help: leave them out: what they mean is in the file that they were saved in
        there is no leaf to load
        help: save the leaves that are trained
        leaves that were saved are not given: weight.b
        help: give all leaves of the file that they were saved in; `ParameterFilter::Paths` saves and loads some by themselves
        leaves of the model are not given, of Lora: weight.b
        help: give all leaves of the file that they were saved in; `ParameterFilter::Paths` saves and loads some by themselves
        the leaves say nothing of the scale and the kind of their adapters: they are taken to be those of the model
        the leaves say nothing of the scale and the kind of their adapters: they are taken to be those of the model"#]].assert_eq(&(said.concat() + &log.lines().join("\n")));
    Ok(())
}

#[test]
fn a_model_is_not_made_of_its_leaves() -> Result<()> {
    let [layer, _] = layers()?;
    let (leaves, def) = tree::flatten(&Model::new(layer)?, Open::Closed)?;
    expect![[r#"
        a module cannot be made of its parameters alone
        help: pass it as the state of `compile_with_state`, or change it in place
    "#]]
    .assert_eq(&said_of(tree::unflatten::<Model<nn::Linear>>(&def, leaves)));
    Ok(())
}

/// Two ranks, of which this one plays both.
#[test]
fn observations_of_ranks_that_differ_are_refused() -> Result<()> {
    let seen = || -> Result<Observations> {
        let seen = Observation::from_inputs(&ops::ones::<f32>(&[4, 8])?)?;
        Ok([("weight".to_owned(), seen)].into_iter().collect())
    };
    // The number of ranks, the paths, their square, and of each weight whether it met a product and has sums.
    let with = |other: [i64; 5]| {
        move |told: &Array| -> Result<Array> { Ok(told.add(told)?.add(Array::from_slice(&other, &[5]))?) }
    };
    let without_sums = seen()?.over_ranks(with([0, 0, 0, 0, -1]))?;
    let said = [said_of(seen()?.over_ranks(with([0, 1, 1, 0, 0]))), said_of(without_sums.get("weight"))];
    expect![[r#"
        other weights were observed on another rank
        help: observe the same weights on each rank
        the parameter weight: the weight has sums on 1 of 2 ranks
        help: observe inputs on each rank that reach it, or leave it out
    "#]]
    .assert_eq(&said.concat());
    Ok(())
}

#[test]
fn a_target_that_is_no_class_is_told_when_the_loss_is_read() -> Result<()> {
    let losses = cross_entropy(&ops::zeros::<f32>(&[2, 8])?, &Array::from_slice(&[7u32, 8], &[2]))?;
    expect![[r#"
        kernel Indices failed: target 8 (entry 1) is not in the range 0 to 7
        help: give each row a class, and leave out losses that do not count
    "#]]
    .assert_eq(&said_of(losses.eval().map_err(Error::from)));
    Ok(())
}
