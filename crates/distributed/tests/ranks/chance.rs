//! What ranks draw by chance, apart or alike, and what is chosen on each.

use mlx_rs::module::Module;
use mlx_rs::{Array, nn, ops, random};
use tacit_core::{Error, Result};
use tacit_distributed::{FullyShard, Group, Shard, Split};
use tacit_nn::{LoraConfig, Model, ParameterFilter};

use crate::case::Case;

pub(crate) const CASES: &[Case] = &[
    Case::new("dropped_features", dropped_features),
    Case::new("adapters_that_drop", adapters_that_drop),
    Case::new("adapters_that_are_chosen", adapters_that_are_chosen),
];

/// Ranks draw other numbers until a model is split among them, which computes one result: then they drop the same features.
fn dropped_features(group: &Group) -> Result<()> {
    let mut dropout = nn::Dropout::new();
    let x = ops::ones::<f32>(&[64])?;
    let mut is_alike = || {
        let y = dropout.forward(&x)?;
        Ok::<_, Error>(group.all_max(&y)?.eq(group.all_min(&y)?)?.all(None)?.item_exact::<bool>())
    };
    assert!(!is_alike()?, "each rank has a seed of its own");
    group.seed(3)?;
    assert!(!is_alike()?, "the group's seed is another one on each rank");
    let model = || Model::new(nn::Linear::new(4, 8)?);
    let split = || model()?.shard("weight", Split::Columns(group));
    drop(split()?);
    assert!(is_alike()?, "ranks of one result drop the same");
    assert!(is_alike()?, "and go on so");
    // A seed that is the same already is kept.
    random::seed(9)?;
    drop(split()?);
    assert!(is_alike()?);
    let own = group.random(7)?;
    let keys = group.all_gather(&own.as_array().reshape(&[1, 2])?, 0)?;
    let keys: std::collections::BTreeSet<Vec<u32>> = keys.as_slice::<u32>().chunks(2).map(<[u32]>::to_vec).collect();
    assert_eq!(keys.len(), group.size());
    Ok(())
}

/// An adapter beside a split base drops features; one that was split with its base would drop nothing, and says so.
fn adapters_that_drop(group: &Group) -> Result<()> {
    type Linear = Model<nn::Linear>;
    let columns = |model: Linear| model.shard("weight", Split::Columns(group));
    let fully = |model: Linear| model.fully_shard("weight", group);
    let adapted = |model: Linear| model.lora("weight", LoraConfig { rank: 2, dropout: 0.5, ..LoraConfig::default() });
    let model = || Model::new(nn::Linear::new(8, 8)?);
    let x = ops::ones::<f32>(&[4, 8])?;
    let key = random::key(5)?;
    for mut model in [adapted(columns(model()?)?)?, adapted(fully(model()?)?)?] {
        let ones = |(path, array): (String, &Array)| Ok((path, ops::ones::<f32>(array.shape())?));
        let leaves = model.leaves(&ParameterFilter::Lora).into_iter().map(ones).collect::<Result<Vec<_>>>()?;
        model.set_leaves(leaves)?;
        let all = model.forward(&x)?;
        model.drop_features(Some(&key))?;
        assert!(!model.forward(&x)?.eq(&all)?.all(None)?.item_exact::<bool>(), "nothing is dropped");
    }
    for (mut model, name) in [(columns(adapted(model()?)?)?, "Sharded"), (fully(adapted(model()?)?)?, "FullySharded")] {
        model.drop_features(None)?;
        let error = model.drop_features(Some(&key)).expect_err("it would drop nothing").to_string();
        let words = "was split over ranks with an adapter in it that drops features";
        let help = "help: split the base first and adapt it then, or adapt without dropout";
        assert_eq!(error, format!("the parameter weight: {name}(f32[8,8]) {words}\n{help}"));
    }
    Ok(())
}

/// A set of adapters that was split with its base is chosen from as a whole one is.
fn adapters_that_are_chosen(group: &Group) -> Result<()> {
    let base = || -> Result<Model<nn::Linear>> {
        let mut model = Model::new(nn::Linear::new(8, 8)?)?;
        model.set("weight", ops::ones::<f32>(&[8, 8])?)?;
        model.set("bias", ops::zeros::<f32>(&[8])?)?;
        Ok(model)
    };
    let mut tuned = base()?.lora("weight", LoraConfig { rank: 2, ..LoraConfig::default() })?;
    let ones = |(path, array): (String, &Array)| Ok((path, ops::ones::<f32>(array.shape())?));
    let leaves = tuned.leaves(&ParameterFilter::Lora).into_iter().map(ones).collect::<Result<Vec<_>>>()?;
    tuned.set_leaves(leaves)?;
    let sets = [tuned.without_adapters()?];
    let adapted = || -> Result<Model<nn::Linear>> {
        let mut model = base()?;
        model.adapter_sets(&sets)?;
        Ok(model)
    };
    let x = ops::ones::<f32>(&[4, 8])?;
    let mut whole = adapted()?;
    for mut split in [adapted()?.shard("weight", Split::Columns(group))?, adapted()?.fully_shard("weight", group)?] {
        let mut found = Vec::new();
        for index in [0u32, 1] {
            let index = Array::from_slice(&[index], &[]);
            whole.choose_adapters(&index)?;
            let before = group.traffic();
            split.choose_adapters(&index)?;
            assert_eq!(group.traffic(), before, "nothing is gathered for a choice");
            let (own, expected) = (split.forward(&x)?, whole.forward(&x)?);
            assert!(own.all_close(&expected, 1e-5, 1e-5, None)?, "{own} for {expected}");
            found.push(own);
        }
        assert!(!found[0].all_close(&found[1], 1e-5, 1e-5, None)?, "nothing is chosen");
    }
    Ok(())
}
