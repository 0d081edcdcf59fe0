//! What ranks draw by chance: apart, or alike.

use mlx_rs::module::Module;
use mlx_rs::{nn, ops, random};
use tacit_core::{Error, Result};
use tacit_distributed::{Group, Shard, Split};
use tacit_nn::Model;

use crate::case::Case;

pub(crate) const CASES: &[Case] = &[Case::new("dropped_features", dropped_features)];

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
