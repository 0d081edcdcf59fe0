//! Adapters within other arrays: over an adapter, in parts of an array, and in sets.

use expect_test::expect;
use mlx_rs::module::Module;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, nn, ops, random};
use tacit_arrays::{Adapter, Concat, Lora, LoraSet, merge};
use tacit_core::{Policy, Result, Value};
use tacit_nn::{LoraConfig, Model, ParameterFilter};

use super::{AFFINE, base, bytes, config, forward, step};
use crate::types::{error, normal, numbers, said_of};

#[test]
fn adapters_within_another_array_drop_features_of_their_own() -> Result<()> {
    let lora = |seed: u64| -> Result<Value> {
        let lora = Lora::new(normal(seed, &[4, 8]), normal(7, &[2, 8]), normal(8, &[4, 2]), 1.0)?;
        Ok(Adapter::with_key(&lora.with_dropout(0.5, random::key(0)?)?, None)?.into())
    };
    let mut model = Model::new(nn::Linear::new(8, 8)?)?;
    let joined = Value::from(Concat::new(vec![lora(1)?, lora(2)?], 0)?);
    model.replace("weight", |_, _| Ok(Some(joined.clone())))?;
    let mut keyed = |key: Option<&Array>| -> Result<Vec<f32>> {
        model.drop_features(key)?;
        Ok(numbers(&model.forward(&normal(3, &[64, 8]))?))
    };
    let still = keyed(None)?;
    let first = keyed(Some(&random::key(1)?))?;
    assert_ne!(first, still);
    assert_eq!(keyed(Some(&random::key(1)?))?, first);
    // The change of both is the same but for what each drops.
    let change = |from: usize| -> Vec<f32> {
        let rows = first.chunks(8).zip(still.chunks(8));
        rows.flat_map(|(first, still)| (from..from + 4).map(|at| first[at] - still[at]).collect::<Vec<_>>()).collect()
    };
    assert!(change(0).iter().zip(change(4)).any(|(a, b)| (a - b).abs() > 1e-2));
    assert_eq!(keyed(None)?, still);
    assert!(model.leaves(&ParameterFilter::All).iter().all(|(path, _)| path.rsplit('.').next() != Some("key")));
    // Nor are they forgotten where they have no key.
    let mut gradient = |key: Option<&Array>| {
        model.drop_features(key)?;
        model.value_and_grad(ParameterFilter::Lora, normal(3, &[5, 8]), |model, x| model.forward(&x)?.sum(None))
    };
    expect![[r#"
        the adapter of weight drops features with a probability of 0.5, and has no random key
        help: give each step a key by `model.drop_features(Some(&key))`, or take a `dropout` of 0; in evaluation mode nothing is dropped"#]]
    .assert_eq(&gradient(None).unwrap_err().to_string());
    gradient(Some(&random::key(1)?))?;
    Ok(())
}

fn lora_on(base: impl Into<Value>, seed: u64) -> Result<Lora> {
    let base = base.into();
    let [out, inputs] = base.aval()?.shape[..] else { unreachable!("it is a matrix") };
    Lora::new(base, normal(seed, &[2, inputs]), normal(seed + 1, &[out, 2]), 1.0)
}

#[test]
fn an_adapter_over_an_adapter_drops_features_too() -> Result<()> {
    let mut model = Model::new(nn::Linear::new(8, 8)?)?;
    let inner = lora_on(normal(1, &[8, 8]), 2)?.with_dropout(0.5, random::key(1)?)?;
    let outer = Value::from(lora_on(inner, 4)?);
    model.replace("weight", |_, _| Ok(Some(outer.clone())))?;
    let keys =
        |model: &Model<nn::Linear>| model.leaves(&ParameterFilter::Paths("*.key".parse().expect("a pattern"))).len();
    assert_eq!(keys(&model), 1);
    model.drop_features(None)?;
    assert_eq!(keys(&model), 0);
    let still = numbers(&model.forward(&normal(3, &[64, 8]))?);
    model.drop_features(Some(&random::key(2)?))?;
    assert_eq!(keys(&model), 1);
    assert_ne!(numbers(&model.forward(&normal(3, &[64, 8]))?), still);
    Ok(())
}

#[test]
fn adapters_within_another_array_are_merged_and_taken_out() -> Result<()> {
    let joined = || {
        let parts = vec![lora_on(normal(1, &[4, 8]), 2)?.into(), lora_on(normal(5, &[4, 8]), 6)?.into()];
        Concat::new(parts, 0)
    };
    let mut model = Model::new(nn::Linear::new(8, 8)?)?;
    model.replace("weight", |_, _| Ok(Some(joined()?.into())))?;
    let (x, before) = (normal(3, &[5, 8]), model.leaves(&ParameterFilter::Lora).len());
    let trained = numbers(&model.forward(&x)?);
    let report = model.merge_exactly()?;
    assert_eq!((before, report.rows.len(), model.leaves(&ParameterFilter::Lora).len()), (4, 1, 0));
    let merged = numbers(&model.forward(&x)?);
    assert!(merged.iter().zip(&trained).all(|(a, b)| (a - b).abs() < 1e-4), "{merged:?} {trained:?}");
    model.unmerge(report)?;
    assert_eq!(numbers(&model.forward(&x)?), trained);
    assert_eq!(model.without_adapters()?.len(), 1);
    assert_eq!(model.leaves(&ParameterFilter::Lora).len(), 0);
    assert_ne!(numbers(&model.forward(&x)?), trained);
    Ok(())
}

#[test]
fn an_adapter_of_an_adapter_is_taken_out_with_it() -> Result<()> {
    let mut model = base();
    let (before, x) = (bytes(&model), normal(3, &[5, 64]));
    let plain = numbers(&model.forward(&x)?);
    model = model.lora("*.weight", config())?;
    let (a, b) = (normal(1, &[4, 64]), normal(2, &[32, 4]));
    model
        .replace("layers.0.weight", |_, value| Ok(Some(Lora::new(value.clone(), a.clone(), b.clone(), 8.0)?.into())))?;
    assert_eq!(model.without_adapters()?.len(), 2);
    assert_eq!((bytes(&model), model.leaves(&ParameterFilter::Lora).len()), (before, 0));
    assert_eq!(numbers(&model.forward(&x)?), plain);
    Ok(())
}

/// One adapter changes nothing yet, over a base that two bits nearly hold: its loss is the greatest beside the change alone.
#[test]
fn the_error_of_a_parameter_is_that_of_its_worst_part() -> Result<()> {
    let even = ops::sign(normal(1, &[4, 32]))?.add(normal(2, &[4, 32]).multiply(Array::from_f32(0.01))?)?;
    let still = Lora::new(even, normal(3, &[2, 32]), ops::zeros::<f32>(&[4, 2])?, 1.0)?;
    let moved = lora_on(normal(5, &[4, 32]), 6)?;
    let alone = merge(&moved, AFFINE)?.loss.relative;
    for parts in [[&still, &moved], [&moved, &still]] {
        let mut model = Model::new(nn::Linear::new(32, 8)?)?;
        model.set("weight", Concat::new(parts.map(|part| Value::from(part.clone())).to_vec(), 0)?)?;
        let worst = model.merge(AFFINE)?.worst();
        assert!(worst >= alone, "{worst}, and a part alone is off by {alone}");
    }
    Ok(())
}

#[test]
fn sets_of_adapters_on_one_model() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let mut model = base();
    let plain = forward(&mut model);
    let (mut sets, mut alone) = (Vec::new(), Vec::new());
    for rank in [2, 4] {
        model = model.lora("*", LoraConfig { rank, ..config() })?;
        let mut optimizer = Adam::new(1e-2);
        for _ in 0..rank {
            step(&mut model, &mut optimizer);
        }
        alone.push(forward(&mut model));
        sets.push(model.without_adapters()?);
    }
    model.adapter_sets(&sets)?;
    let near = |found: &[f32], expected: &[f32]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} for {expected:?}");
    };
    near(&forward(&mut model), &plain);
    for (index, expected) in alone.iter().chain([&plain]).enumerate() {
        model.choose_adapters(&Array::from_slice(&[index as u32], &[]))?;
        near(&forward(&mut model), expected);
    }
    model.choose_adapters(&Array::from_slice(&[1u32, 0, 2, 0, 1], &[5]))?;
    let rows: Vec<f32> = [1, 0, 2, 0, 1]
        .into_iter()
        .enumerate()
        .flat_map(|(row, index)| {
            let of = alone.get(index).unwrap_or(&plain);
            of[4 * row..4 * row + 4].to_vec()
        })
        .collect();
    near(&forward(&mut model), &rows);
    let mut said = [
        said_of(base().adapter_sets(&[])),
        said_of(base().choose_adapters(&Array::from_slice(&[0u32], &[]))),
        said_of(model.choose_adapters(&Array::from_slice(&[0i32], &[]))),
    ]
    .concat();
    let mut fewer = sets[1].clone();
    fewer.remove("layers.2.weight");
    said += &[
        said_of(model.adapter_sets(&[sets[0].clone(), fewer.clone()])),
        // The old ones would stay on the other weight, and be chosen with these.
        said_of(model.adapter_sets(std::slice::from_ref(&fewer))),
        said_of(model.adapter_sets(&[fewer, sets[0].clone()])),
    ]
    .concat();
    expect![[r#"
        there is no set of adapters
        help: give at least one
        the model has no sets of adapters to choose from
        help: put some on it by `Model::adapter_sets`
        the parameter layers.0.weight: the index is i32[], which chooses no adapters
        help: give u32[] for all rows, or u32[n] for n parts of them
        the parameter layers.2.weight: a set of adapters has nothing for it
        help: give a `Lora` for the same weights in each set
        the model has sets of adapters for layers.2.weight, and these have none
        help: take out those that are there by `Model::without_adapters`
        the first set of adapters has none for layers.2.weight, and another one has
        help: give sets of the same weights
    "#]]
    .assert_eq(&said);
    near(&forward(&mut model), &rows);
    Ok(())
}

#[test]
fn sets_within_another_array_are_chosen_from() -> Result<()> {
    let set = |seed: u64| -> Result<Value> {
        let lora = Lora::new(normal(seed, &[4, 8]), normal(7, &[2, 8]), normal(8, &[4, 2]), 1.0)?;
        Ok(LoraSet::new(&[lora], Array::from_slice(&[1u32], &[]))?.into())
    };
    let mut model = Model::new(nn::Linear::new(8, 8)?)?;
    let joined = Value::from(Concat::new(vec![set(1)?, set(2)?], 0)?);
    model.replace("weight", |_, _| Ok(Some(joined.clone())))?;
    let mut chosen = |index: u32| -> Result<Vec<f32>> {
        model.choose_adapters(&Array::from_slice(&[index], &[]))?;
        Ok(numbers(&model.forward(&normal(3, &[5, 8]))?))
    };
    let plain = chosen(1)?;
    let changed = chosen(0)?;
    // The change is the same in both halves, and in each there is one.
    for (plain, changed) in plain.chunks(8).zip(changed.chunks(8)) {
        let change = |at: usize| changed[at] - plain[at];
        assert!((0..4).all(|at| change(at).abs() > 1e-6 && (change(at) - change(at + 4)).abs() < 1e-4), "{changed:?}");
    }
    assert_eq!(chosen(1)?, plain);
    assert!(model.adapters()?.is_empty());
    Ok(())
}

/// A set has low-rank sums alone: what an inner adapter adds to its base is in none of them.
#[test]
fn a_set_loses_no_inner_adapter_and_leaves_none_of_the_model() -> Result<()> {
    let nested = || -> Result<Model<nn::Sequential>> {
        let mut model = base().lora("layers.0.weight", config())?;
        model.set_leaves([("layers.0.weight.b".to_owned(), normal(9, &[32, 4]))])?;
        let (a, b) = (normal(1, &[4, 64]), normal(2, &[32, 4]));
        model.replace("layers.0.weight", |_, value| Ok(Some(Lora::new(value, a.clone(), b.clone(), 8.0)?.into())))?;
        Ok(model)
    };
    let mut model = nested()?;
    let set = model.without_adapters()?;
    expect![[r#"
        the parameter layers.0.weight: a set of adapters has a `Lora` over Lora(f32[32,64]), whose own adapters would be lost
        help: merge the inner adapters into their bases before the outer one is trained"#]]
    .assert_eq(&error(model.adapter_sets(&[set])).to_string());
    // Nothing is left of both adapters of the model, where the set is not in use.
    let plain = forward(&mut base());
    let set = base().lora("layers.0.weight", config())?.without_adapters()?;
    let mut model = nested()?;
    model.adapter_sets(&[set])?;
    let found = forward(&mut model);
    assert!(found.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} for {plain:?}");
    Ok(())
}
