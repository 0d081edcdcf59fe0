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
    expect![[""]].assert_eq(&said.concat());
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
    expect![[""]].assert_eq(&said.concat());
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
    expect![[""]].assert_eq(&said.concat());
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
    expect![[""]].assert_eq(&(said.concat() + &log.lines().join("\n")));
    Ok(())
}

#[test]
fn a_model_is_not_made_of_its_leaves() -> Result<()> {
    let [layer, _] = layers()?;
    let (leaves, def) = tree::flatten(&Model::new(layer)?, Open::Closed)?;
    expect![[""]].assert_eq(&said_of(tree::unflatten::<Model<nn::Linear>>(&def, leaves)));
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
    expect![[""]].assert_eq(&said.concat());
    Ok(())
}

#[test]
fn a_target_that_is_no_class_is_told_when_the_loss_is_read() -> Result<()> {
    let losses = cross_entropy(&ops::zeros::<f32>(&[2, 8])?, &Array::from_slice(&[7u32, 8], &[2]))?;
    expect![[""]].assert_eq(&said_of(losses.eval().map_err(Error::from)));
    Ok(())
}
