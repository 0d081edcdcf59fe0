//! Saves of runs whose parameters and moments are codes of which each rank has a part.

use std::path::Path;

use mlx_rs::module::Module;
use mlx_rs::nn;
use mlx_rs::optimizers::AdamW;
use tacit_arrays::format::Nf4;
use tacit_conformance::close;
use tacit_core::{Policy, Result};
use tacit_distributed::{FullyShard, Group, Shard, Split, load_run, save_run};
use tacit_io::Training;
use tacit_nn::{LoraConfig, Model, ParameterFilter, Parameters, QuantizedState};

use crate::case::Case;
use crate::checkpoints::{Layers, bits, filled, folder, layers, loss, normal, refused};

pub(crate) const CASES: &[Case] = &[
    Case::new("go_on_with_as_many_ranks_and_with_others", go_on_with_as_many_ranks_and_with_others),
    Case::new("are_split_otherwise", are_split_otherwise),
];

type Moments = QuantizedState<AdamW>;

/// A model that lies on the ranks of a group, or in one process.
struct Divided {
    name: &'static str,
    model: fn(Option<&Group>) -> Result<Layers>,
}

const DIVIDED: [Divided; 3] = [
    Divided {
        name: "columns",
        model: |group| match group {
            Some(group) => layers()?.shard("layers.0.*", Split::Columns(group)),
            None => layers(),
        },
    },
    Divided {
        name: "one layer fully",
        model: |group| match group {
            Some(group) => layers()?.fully_shard("layers.0.*", group),
            None => layers(),
        },
    },
    Divided { name: "parts of a format under adapters", model: adapted_parts },
];

fn adapted_parts(group: Option<&Group>) -> Result<Layers> {
    let mut model = layers()?.quantize("layers.0.weight", Nf4 { block: 32, double: false })?;
    if let Some(group) = group {
        model = model.shard("layers.0.weight", Split::Columns(group))?.fully_shard("layers.2.weight", group)?;
    }
    filled(model.lora("layers.*.weight", LoraConfig { rank: 2, ..LoraConfig::default() })?)
}

fn optimizer() -> Result<Moments> {
    Ok(QuantizedState::eight_bits(AdamW::new(1e-2))?.from_elements(8))
}

fn step(model: &mut Layers, optimizer: &mut Moments, seed: u64) -> Result<()> {
    let batch = (normal(seed, &[8, 16])?, normal(seed + 50, &[8, 4])?);
    let (_, gradients) = model.value_and_grad(ParameterFilter::default(), batch, loss)?;
    model.update(optimizer, &gradients)
}

fn loaded(folder: &Path, mut model: Layers, group: &Group) -> Result<(Layers, Moments)> {
    let (run, mut optimizer) = (load_run(folder, &model, group)?, optimizer()?);
    run.restore_model(&mut model)?;
    run.restore_optimizer(&mut optimizer)?;
    Ok((model, optimizer))
}

/// Checks that two models have the same leaves to the bit.
fn assert_same_leaves(found: &Layers, expected: &Layers) -> Result<()> {
    let (found, expected) = (found.leaves(&ParameterFilter::All), expected.leaves(&ParameterFilter::All));
    assert_eq!(found.len(), expected.len());
    for ((path, found), (other, expected)) in found.into_iter().zip(expected) {
        assert_eq!((&path, found.shape()), (&other, expected.shape()));
        assert!(bits(found)? == bits(expected)?, "{path} is {found}, not {expected}");
    }
    Ok(())
}

/// Checks that moments stand for the same numbers, within so much of the largest.
fn assert_near(found: &Parameters, expected: &Parameters, within: f32) -> Result<()> {
    let _allow = Policy::Allow.scope();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, expected) in expected {
        let (found, expected) = (&found[key], expected);
        assert_eq!(found.to_string(), expected.to_string(), "{key}");
        let (found, expected) = (found.dense()?, expected.dense()?);
        let most = expected.abs()?.max(None)?.item_exact::<f32>();
        let off = found.subtract(&expected)?.abs()?.max(None)?.item_exact::<f32>();
        assert!(off <= within * most, "{key} is off by {off} of {most}");
    }
    Ok(())
}

fn go_on_with_as_many_ranks_and_with_others(group: &Group) -> Result<()> {
    let folder = folder("codes");
    DIVIDED.iter().try_for_each(|divided| goes_on(divided, &folder, group))
}

fn goes_on(Divided { name, model }: &Divided, folder: &Path, group: &Group) -> Result<()> {
    let alone = Group::alone();
    let (mut split, mut moments) = (model(Some(group))?, optimizer()?);
    (0..2).try_for_each(|seed| step(&mut split, &mut moments, seed))?;
    save_run(folder, &Training::new(2).with_optimizer(&moments)?, &split, group)?;
    let saved = moments.values()?;
    let codes = |values: &Parameters| values.values().filter(|value| value.is_implicit()).count();
    assert!(codes(&saved) >= 6, "{name}: {saved:?}");

    // As many ranks: the same codes, and the same steps.
    let (mut again, mut resumed) = loaded(folder, model(Some(group))?, group)?;
    assert_same_leaves(&again, &split)?;
    assert_near(&resumed.values()?, &saved, 0.0)?;
    step(&mut split, &mut moments, 2)?;
    step(&mut again, &mut resumed, 2)?;
    assert_same_leaves(&again, &split)?;

    // One process, which has the codes of all ranks, computes the same.
    let (mut whole, of_whole) = loaded(folder, model(None)?, &alone)?;
    let (mut split, moments) = loaded(folder, model(Some(group))?, group)?;
    assert_eq!(codes(&of_whole.values()?), codes(&saved), "{name}");
    let x = normal(7, &[8, 16])?;
    close(split.forward(&x)?, whole.forward(&x)?, 2e-5).unwrap_or_else(|error| panic!("{name}: {error}"));

    // Ranks go on with what one process saved: the codes of the parameters are the same.
    let own = folder.join(name.replace(' ', "-"));
    if group.rank() == 0 {
        save_run(&own, &Training::new(2).with_optimizer(&of_whole)?, &whole, &alone)?;
    }
    group.barrier()?;
    let (back, of_back) = loaded(&own, model(Some(group))?, group)?;
    assert_same_leaves(&back, &split)?;
    assert_near(&of_back.values()?, &moments.values()?, 5e-2)
}

/// Parts of a flat format have one shape, whichever axis they were split along: they are joined, and cut along the other one.
fn are_split_otherwise(group: &Group) -> Result<()> {
    let folder = folder("otherwise");
    let linear = |double: bool| -> Result<Model<nn::Linear>> {
        Model::new(nn::Linear::new(256, 256)?)?.quantize("weight", Nf4 { block: 64, double })
    };
    let model = |split: Split<'_>, adapted: bool| -> Result<Model<nn::Linear>> {
        let model = linear(false)?.shard("weight", split)?;
        if adapted { model.lora("weight", LoraConfig { rank: 2, ..LoraConfig::default() }) } else { Ok(model) }
    };
    let dense = |model: &Model<nn::Linear>| -> Result<Vec<u8>> {
        let _allow = Policy::Allow.scope();
        bits(&model.get("weight")?.dense()?)
    };
    let load = |mut model: Model<nn::Linear>| -> Result<Vec<u8>> {
        let run = load_run(&folder, &model, group)?;
        for (path, array) in run.states["leaves"].iter().filter(|(path, _)| path.ends_with("codes")) {
            let depth = tacit_bridge::depth(std::slice::from_ref(array), &[])?;
            assert!(depth <= 1, "{path} keeps the parts of all ranks");
        }
        run.restore_model(&mut model)?;
        dense(&model)
    };
    for adapted in [true, false] {
        let columns = model(Split::Columns(group), adapted)?;
        save_run(&folder, &Training::new(1), &columns, group)?;
        let expected = dense(&columns)?;
        for split in [Split::Columns(group), Split::Rows(group)] {
            assert!(load(model(split, adapted)?)? == expected, "{split:?}, adapted: {adapted}");
        }
        if !adapted {
            assert!(load(linear(false)?.fully_shard("weight", group)?)? == expected, "flat parts");
        }
    }
    // Scales that are codes are not joined.
    save_run(&folder, &Training::new(1), &linear(true)?.shard("weight", Split::Columns(group))?, group)?;
    let flat = linear(true)?.fully_shard("weight", group)?;
    let found = refused(load_run(&folder, &flat, group).map(drop), &folder);
    let reason =
        "weight.codes: the leaf is a part of [256, 256] along axis 0, and in the model no part of a stored array: ";
    let help = "help: load it on as many ranks as saved it, split alike";
    assert!(found.contains(reason) && found.ends_with(help), "{found}");
    Ok(())
}
