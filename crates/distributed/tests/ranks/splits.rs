//! Groups that were split off another: each by itself, and several at once, as data and tensor parallelism have them.

use std::sync::OnceLock;
use std::time::Duration;

use mlx_rs::optimizers::{AdamW, Sgd};
use mlx_rs::{Array, Dtype, nn, ops, transforms};
use tacit_arrays::format::Nf4;
use tacit_conformance::close;
use tacit_core::{Error, Policy, Result, compile};
use tacit_distributed::{FullyShard, Group, Shard, Split, load_run, save_run};
use tacit_io::Training;
use tacit_nn::training::clip_by_norm;
use tacit_nn::{Model, ParameterFilter};

use crate::case::Case;
use crate::checkpoints::{Layers, arrays, assert_same as assert_same_bits, filled, folder, loss, normal, refused};
use crate::collectives::{assert_equal, folded, numbers};

const FOUR: &[usize] = &[4];

pub(crate) const CASES: &[Case] = &[
    Case::new("values", values).sizes(FOUR),
    Case::new("in_different_orders", in_different_orders).sizes(FOUR),
    Case::new("data_and_tensor_parallel", data_and_tensor_parallel).sizes(FOUR),
    Case::new("everything_in_parts", everything_in_parts).sizes(FOUR),
    Case::new("saved_in_parts", saved_in_parts).sizes(FOUR).within(Duration::from_mins(2)),
    Case::new("groups_of_one", groups_of_one),
    Case::new("keys_and_splits_of_splits", keys_and_splits_of_splits),
    Case::new("colors_that_are_none", colors_that_are_none),
];

/// The two groups of two that each of four ranks is in: with the rank beside it, and with the one across.
fn grid(group: &Group) -> Result<(Group, Group)> {
    // Once for all cases: over the ring it takes a while.
    static GRID: OnceLock<(Group, Group)> = OnceLock::new();
    if let Some(grid) = GRID.get() {
        return Ok(grid.clone());
    }
    let grid = (group.split(group.rank() / 2)?, group.split(group.rank() % 2)?);
    Ok(GRID.get_or_init(|| grid).clone())
}

fn values(group: &Group) -> Result<()> {
    let ((model, data), rank) = (grid(group)?, group.rank());
    for (part, ranks) in [(&model, [rank / 2 * 2, rank / 2 * 2 + 1]), (&data, [rank % 2, rank % 2 + 2])] {
        assert_eq!((part.size(), ranks[part.rank()], part.backend()), (2, rank, group.backend()));
        let all = ranks.iter().map(|&rank| numbers(rank, &[4, 3], Dtype::Float32)).collect::<Result<Vec<_>>>()?;
        let (own, other) = (&all[part.rank()], 1 - part.rank());
        let sum = folded(&all, |sum, x| sum.add(x))?;
        assert_equal(&part.all_sum(own)?, &sum, "a sum")?;
        assert_equal(&part.all_max(own)?, &folded(&all, |most, x| ops::maximum(most, x))?, "a maximum")?;
        assert_equal(&part.all_gather(own, 0)?, &ops::concatenate(&all, 0)?, "what is joined")?;
        let half = sum.split_equal(2, 0)?.swap_remove(part.rank());
        assert_equal(&part.sum_scatter(own)?, &half, "a part of the sum")?;
        if other == 1 {
            part.send(own, other)?.eval()?;
        } else {
            assert_equal(&part.recv(&[4, 3], Dtype::Float32, other)?, &all[other], "a message")?;
        }
        part.barrier()?;
    }
    let all = (0..4).map(|rank| numbers(rank, &[5], Dtype::Float32)).collect::<Result<Vec<_>>>()?;
    assert_equal(&group.all_sum(&all[rank])?, &folded(&all, |sum, x| sum.add(x))?, "the sum of all")
}

/// Collectives of three groups that are evaluated together, from either end.
fn in_different_orders(group: &Group) -> Result<()> {
    let ((model, data), rank) = (grid(group)?, group.rank());
    let reversed = |made: &mut Vec<Array>| {
        if rank % 2 == 1 {
            made.reverse();
        }
    };
    let mut both = compile(|x: Array| data.all_sum(&model.all_sum(&x)?.square()?));
    for round in 0..10u8 {
        let of = |rank: usize| rank as f32 + f32::from(round);
        let x = ops::full::<f32>(&[4], Array::from_f32(of(rank)))?;
        let row = model.all_sum(&x)?;
        let mut made =
            vec![row.clone(), data.all_sum(&x)?, group.all_sum(&x)?, data.all_max(&row)?, model.all_min(&x)?];
        made.extend([both.call(&x)?.dense()?, both.call(&x.add(Array::from_f32(1.0))?)?.dense()?]);
        reversed(&mut made);
        transforms::eval(&made)?;
        reversed(&mut made);
        let squares = |more: f32| (of(0) + of(1) + more).powi(2) + (of(2) + of(3) + more).powi(2);
        let expected = [
            of(rank) + of(rank ^ 1),
            of(rank) + of(rank ^ 2),
            (0..4).map(of).sum(),
            of(2) + of(3),
            of(rank / 2 * 2),
            squares(0.0),
            squares(2.0),
        ];
        for (at, (made, expected)) in made.iter().zip(expected).enumerate() {
            assert_eq!(made.as_slice::<f32>(), [expected; 4], "round {round}, result {at} of rank {rank}");
        }
    }
    Ok(())
}

const PATHS: [&str; 4] = ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"];

/// The same on every rank.
fn layers() -> Result<Layers> {
    let (up, down) = (nn::Linear::new(8, 16)?, nn::Linear::new(16, 8)?);
    filled(Model::new(nn::Sequential::new().append(up).append(nn::Relu).append(down))?)
}

/// A batch, and the rows of it that a rank has of so many.
fn rows(rank: usize, size: usize) -> Result<(Array, Array)> {
    let own = |seed| -> Result<Array> { Ok(normal(seed, &[8, 8])?.split_equal(size as i32, 0)?.swap_remove(rank)) };
    Ok((own(1)?, own(2)?))
}

fn assert_same(found: &Layers, expected: &Layers) -> Result<()> {
    let _allow = Policy::Allow.scope();
    for path in PATHS {
        let (found, expected) = (found.get(path)?.dense()?, expected.get(path)?.dense()?);
        close(&found, &expected, 1e-5).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    Ok(())
}

/// The same step as one process that has the whole model and the whole batch; it is saved by one pair of ranks or by all, and
/// loaded by both.
fn data_and_tensor_parallel(group: &Group) -> Result<()> {
    let (model, data) = grid(group)?;
    let mut whole = layers()?;
    let (_, gradients) = whole.value_and_grad(ParameterFilter::default(), rows(0, 1)?, loss)?;
    let (gradients, norm) = clip_by_norm(gradients, 0.5)?;
    whole.update(&mut Sgd::new(0.5), &gradients)?;

    let split = || layers()?.shard("layers.0.*", Split::Columns(&model))?.shard("layers.2.*", Split::Rows(&model));
    let mut own = split()?;
    let batch = rows(data.rank(), data.size())?;
    let (_, gradients) = own.value_and_grad(ParameterFilter::default(), batch, loss)?;
    // Ranks of one batch share no gradient.
    let error = own.mean_gradients(gradients.clone(), group).expect_err("is split over others").to_string();
    let pair = if group.rank() < 2 { "ranks 0 and 1" } else { "ranks 2 and 3" };
    let help = "give the group whose ranks each have a batch: a parameter is split over that one, or they have the same part of it";
    let words = format!(" is split over {pair}, and the group has ranks 0, 1, 2 and 3\nhelp: {help}");
    assert!(error.ends_with(&words), "{error}");
    let again = group.split(group.rank() / 2)?;
    let error = own.mean_gradients(gradients.clone(), &again).expect_err("is another group").to_string();
    let help = "split once, and give the group that the parameter was split over";
    let words = format!(" is split over another group of {pair}: each split makes one\nhelp: {help}");
    assert!(error.ends_with(&words), "{error}");
    let gradients = own.mean_gradients(gradients, &data)?;
    for part in [group, &model] {
        let (_, found) = part.clip_by_norm(&own, gradients.clone(), 0.5)?;
        close(&found, &norm, 1e-5).unwrap_or_else(|error| panic!("the norm over {part:?}: {error}"));
    }
    let (gradients, _) = model.clip_by_norm(&own, gradients, 0.5)?;
    own.update(&mut Sgd::new(0.5), &gradients)?;
    assert_same(&own, &whole)?;

    let folder = folder("by_one_pair");
    transforms::eval(own.leaves(&ParameterFilter::All).into_iter().map(|(_, array)| array))?;
    if data.rank() == 0 {
        save_run(&folder, &Training::new(1), &own, &model)?;
    }
    group.barrier()?;
    for (saved_by, loaded_by) in [(&model, &model), (&model, group), (group, &model), (group, group)] {
        if saved_by == group {
            save_run(&folder, &Training::new(1), &own, group)?;
        }
        let mut loaded = split()?;
        load_run(&folder, &loaded, loaded_by)?.restore_model(&mut loaded)?;
        assert_same(&loaded, &whole)?;
        group.barrier()?;
    }
    // Other cases expect that ranks draw differently.
    group.seed(1)
}

/// One layer lies in parts on the ranks of each batch, and the other is split over the ranks that compute one: each parameter
/// counts once in the norm.
fn everything_in_parts(group: &Group) -> Result<()> {
    let ((model, data), rank) = (grid(group)?, group.rank());
    let mut whole = layers()?;
    let (_, gradients) = whole.value_and_grad(ParameterFilter::default(), rows(0, 1)?, loss)?;
    let (gradients, norm) = clip_by_norm(gradients, 0.5)?;
    whole.update(&mut Sgd::new(0.5), &gradients)?;
    let mut own = layers()?.fully_shard("layers.0.*", &data)?.shard("layers.2.*", Split::Columns(&model))?;
    let batch = rows(data.rank(), data.size())?;
    let (_, gradients) = own.value_and_grad(ParameterFilter::default(), batch, loss)?;
    let gradients = own.mean_gradients(gradients, &data)?;
    let [pair, across] =
        [[rank / 2 * 2, rank / 2 * 2 + 1], [rank % 2, rank % 2 + 2]].map(|[a, b]| format!("ranks {a} and {b}"));
    for (part, own_ranks, others) in [(&model, &pair, &across), (&data, &across, &pair)] {
        let error = part.clip_by_norm(&own, gradients.clone(), 0.5).expect_err("has not all ranks").to_string();
        let help = "help: give the group that has all of these ranks, such as the one that was split";
        let words = format!(" is split over {others}, and the group has {own_ranks}\n{help}");
        assert!(error.ends_with(&words), "{error}");
    }
    let (gradients, found) = group.clip_by_norm(&own, gradients, 0.5)?;
    close(&found, &norm, 1e-5).unwrap_or_else(|error| panic!("the norm: {error}"));
    own.update(&mut Sgd::new(0.5), &gradients)?;
    assert_same(&own, &whole)?;
    group.seed(1)
}

/// All parameters whole.
fn whole_of(model: &Layers) -> Result<Vec<(&'static str, Array)>> {
    let _allow = Policy::Allow.scope();
    PATHS.into_iter().map(|path| Ok((path, model.get(path)?.dense()?))).collect()
}

fn assert_exact(found: &Layers, expected: &[(&str, Array)], what: &str) -> Result<()> {
    for ((path, found), (_, expected)) in whole_of(found)?.iter().zip(expected) {
        assert!(found.eq_exact(expected)?, "{path}, {what}");
    }
    Ok(())
}

/// Leaves and what an optimizer keeps of them are saved by all ranks together, whichever of these have their parts.
fn saved_in_parts(group: &Group) -> Result<()> {
    let ((model, data), alone) = (grid(group)?, group.split(group.rank())?);
    let folder = folder("in_parts");
    let divided = |a: &Group, b: &Group| -> Result<Layers> {
        let layers = layers()?.quantize("layers.2.weight", Nf4 { block: 32, double: false })?;
        layers.fully_shard("layers.0.*", a)?.shard("layers.2.weight", Split::Columns(b))
    };
    let ways = [(&data, &model), (&model, &data), (group, &model), (&alone, &data), (&data, &alone), (group, group)];
    for (number, (a, b)) in ways.into_iter().enumerate() {
        let (mut own, mut adamw) = (divided(a, b)?, AdamW::new(1e-2));
        // All have one batch, and so the same parts.
        let (_, gradients) = own.value_and_grad(ParameterFilter::default(), rows(0, 1)?, loss)?;
        own.update(&mut adamw, &gradients)?;
        save_run(&folder, &Training::new(1).with_optimizer(&adamw)?, &own, group)?;
        let expected = whole_of(&own)?;
        for (other, (a, b)) in ways.into_iter().enumerate() {
            let what = format!("saved as {number} and loaded as {other}");
            let (mut loaded, mut resumed) = (divided(a, b)?, AdamW::new(1e-2));
            let run = load_run(&folder, &loaded, group)?;
            run.restore_model(&mut loaded)?;
            run.restore_optimizer(&mut resumed)?;
            assert_exact(&loaded, &expected, &what)?;
            if number == other {
                assert_same_bits(&arrays(&loaded, &resumed)?, &arrays(&own, &adamw)?, &what)?;
            }
        }
        group.barrier()?;
    }
    let files = std::fs::read_dir(&folder).map_err(Error::file("read", &folder))?;
    assert_eq!(files.count(), group.size() + 1, "the files of earlier saves are gone");
    let own = layers()?.fully_shard("layers.0.*", if group.rank() < 2 { &model } else { &data })?;
    let found = refused(save_run(&folder, &Training::new(2), &own, group), &folder);
    let help = "help: split a parameter over one group on every rank";
    assert!(found.ends_with(&format!(" is split over other groups on some ranks than on others\n{help}")), "{found}");
    group.seed(1)
}

/// What is split over one rank is whole on it, and the same on all: it counts once, and is saved once.
fn groups_of_one(group: &Group) -> Result<()> {
    let (folder, alone) = (folder("of_one"), group.split(group.rank())?);
    let split = || layers()?.fully_shard("layers.0.*", &alone)?.shard("layers.2.*", Split::Columns(&alone));
    let mut own = split()?;
    let (_, gradients) = own.value_and_grad(ParameterFilter::default(), rows(0, 1)?, loss)?;
    let (_, norm) = clip_by_norm(gradients.clone(), 0.5)?;
    let (gradients, found) = group.clip_by_norm(&own, gradients, 0.5)?;
    close(&found, &norm, 1e-5).unwrap_or_else(|error| panic!("the norm: {error}"));
    own.update(&mut Sgd::new(0.5), &gradients)?;
    save_run(&folder, &Training::new(1), &own, group)?;
    let expected = whole_of(&own)?;
    for mut loaded in [split()?, layers()?, layers()?.fully_shard("*", group)?] {
        load_run(&folder, &loaded, group)?.restore_model(&mut loaded)?;
        assert_exact(&loaded, &expected, "loaded")?;
    }
    group.seed(1)
}

fn keys_and_splits_of_splits(group: &Group) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    assert_eq!(group.split(7)?, *group, "all ranks are the group itself");
    assert_eq!(group.split(rank)?, Group::alone());
    let reversed = group.split_with_key(0, size - rank)?;
    assert_eq!((reversed.rank(), reversed.size()), (size - 1 - rank, size));
    let joined = |part: &Group| -> Result<Vec<i32>> {
        let all = part.all_gather(&Array::from_slice(&[rank as i32], &[1]), 0)?;
        all.eval()?;
        Ok(all.as_slice::<i32>().to_vec())
    };
    assert_eq!(joined(&reversed)?, (0..size as i32).rev().collect::<Vec<_>>());
    let pair = reversed.split(reversed.rank() / 2)?;
    let ranks = [0, 1].map(|at| size - 1 - reversed.rank() / 2 * 2 - at);
    assert_eq!(joined(&pair)?, ranks.map(|rank| rank as i32));
    let [first, second] = ranks;
    let shown = format!("Group({}, rank {} of 2: ranks {first} and {second})", group.backend(), pair.rank());
    assert_eq!(format!("{pair:?}"), shown);
    // A file names the ranks, by which it finds the group again.
    let text = serde_json::to_string(&pair).expect("is written");
    assert_eq!(serde_json::from_str::<Group>(&text).expect("is there"), pair);
    drop((reversed, pair));
    let error = serde_json::from_str::<Group>(&text).expect_err("nobody has it").to_string();
    assert!(error.contains(&format!("of a group of ranks {first} and {second}: split that off first")), "{error}");
    group.barrier()
}

/// One rank's error is an error of all, and the group goes on.
fn colors_that_are_none(group: &Group) -> Result<()> {
    let color = if group.rank() == 1 { 1 << 31 } else { 0 };
    let error = group.split(color).expect_err("no color").to_string();
    let expected = if group.rank() == 1 {
        "the color 2147483648 of a split is above 2147483647\nhelp: count the parts of the group from 0 on"
    } else {
        "rank 1 could not split the group\nhelp: see the error there; the group is as it was"
    };
    assert_eq!(error, expected);
    group.barrier()
}
