//! What ranks draw by chance: apart, or alike.

use mlx_rs::module::Module;
use mlx_rs::{Array, nn, ops, random};
use tacit_core::{Error, Result};
use tacit_distributed::{FullyShard, Group, Shard, Split};
use tacit_nn::{LoraConfig, Model, ParameterFilter};

use crate::case::Case;

pub(crate) const CASES: &[Case] =
    &[Case::new("dropped_features", dropped_features), Case::new("adapters_that_drop", adapters_that_drop)];

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
