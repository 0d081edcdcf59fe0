//! Saves of runs: whatever is trained and however it is split goes on bit for bit, and what cannot be saved is an error on
//! every rank.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mlx_rs::builder::Builder;
use mlx_rs::module::Module;
use mlx_rs::optimizers::{
    AdaDelta, AdaGrad, Adafactor, AdafactorBuilder, Adam, AdamW, Adamax, Lion, Optimizer, OptimizerState, RmsProp, Sgd,
    SgdBuilder, State,
};
use mlx_rs::random::RandomState;
use mlx_rs::{Array, nn, ops, random, transforms};
use tacit_arrays::format::Nf4;
use tacit_core::{Error, Result};
use tacit_distributed::{FullyShard, Group, Shard, Split, load_run, save_run};
use tacit_io::Training;
use tacit_nn::{LoraConfig, Model, ParameterFilter};

use crate::case::{Case, ODD_TOO};
use crate::child::FOLDER;

pub(crate) const CASES: &[Case] = &[
    Case::new("of_what_is_not_evaluated", of_what_is_not_evaluated).sizes(ODD_TOO),
    Case::new("of_every_optimizer_in_every_split", of_every_optimizer_in_every_split).within(Duration::from_mins(4)),
    Case::new("of_random_states", of_random_states).sizes(ODD_TOO),
    Case::new("into_folders_that_are_not_shared", into_folders_that_are_not_shared),
    Case::new("of_other_models", of_other_models),
    Case::new("of_adapters_of_another_scale", of_adapters_of_another_scale),
];

pub(crate) type Layers = Model<nn::Sequential>;

pub(crate) fn normal(seed: u64, shape: &[i32]) -> Result<Array> {
    Ok(random::normal::<f32>(shape, None, None, Some(&random::key(seed)?))?)
}

/// A folder that all ranks name alike, and that is not there: in that of the group, with which it goes.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(&std::env::var_os(FOLDER).expect("a rank is started in the folder of its group")).join(name)
}

/// The same numbers at each call and on each rank, with weights that every split divides.
pub(crate) fn filled(mut model: Layers) -> Result<Layers> {
    let leaves = model.leaves(&ParameterFilter::All).into_iter().zip(60..);
    let floats = leaves.filter(|((path, array), _)| array.dtype().is_float() && !path.ends_with("scales"));
    let filled = floats.map(|((path, array), seed)| Ok((path, normal(seed, array.shape())?.as_dtype(array.dtype())?)));
    let filled = filled.collect::<Result<Vec<_>>>()?;
    model.set_leaves(filled)?;
    Ok(model)
}

pub(crate) fn layers() -> Result<Layers> {
    let (up, down) = (nn::Linear::new(16, 32)?, nn::Linear::new(32, 4)?);
    filled(Model::new(nn::Sequential::new().append(up).append(nn::Relu).append(down))?)
}

pub(crate) fn loss(model: &mut Layers, (x, y): (Array, Array)) -> Result<Array> {
    Ok(model.forward(&x)?.subtract(y)?.square()?.mean(None)?)
}

/// One way to have a model on several ranks.
struct Divided {
    name: &'static str,
    model: fn(&Group) -> Result<Layers>,
    /// Whether each rank has a batch of its own.
    batches: bool,
}

const DIVIDED: [Divided; 7] = [
    Divided { name: "data", model: |_| layers(), batches: true },
    Divided { name: "columns", model: |group| layers()?.shard("layers.0.*", Split::Columns(group)), batches: false },
    Divided {
        name: "columns and rows",
        model: |group| {
            layers()?.shard("layers.0.*", Split::Columns(group))?.shard("layers.2.weight", Split::Rows(group))
        },
        batches: false,
    },
    Divided { name: "fully", model: |group| layers()?.fully_shard("*", group), batches: true },
    Divided { name: "one layer fully", model: |group| layers()?.fully_shard("layers.0.*", group), batches: true },
    Divided { name: "adapters over parts of a format", model: adapters, batches: false },
    Divided { name: "parts under adapters", model: adapted_parts, batches: false },
];

fn adapters(group: &Group) -> Result<Layers> {
    let config = LoraConfig { rank: 2, ..LoraConfig::default() };
    let model =
        layers()?.quantize("layers.2.weight", Nf4 { block: 32, double: false })?.lora("layers.2.weight", config)?;
    filled(model)?.shard("layers.2.weight", Split::Columns(group))
}

fn adapted_parts(group: &Group) -> Result<Layers> {
    let config = LoraConfig { rank: 2, ..LoraConfig::default() };
    let model = layers()?.quantize("layers.0.weight", Nf4 { block: 32, double: false })?;
    let model = model.shard("layers.0.weight", Split::Columns(group))?.fully_shard("layers.2.weight", group)?;
    filled(model.lora("layers.*.weight", config)?)
}

/// Takes a step and evaluates nothing.
fn step<O: Optimizer>(model: &mut Layers, optimizer: &mut O, seed: u64, batches: bool, group: &Group) -> Result<()> {
    let own = if batches { seed + 100 * (1 + group.rank() as u64) } else { seed };
    let batch = (normal(own, &[8, 16])?, normal(own + 50, &[8, 4])?);
    let (_, gradients) = model.value_and_grad(ParameterFilter::default(), batch, loss)?;
    let gradients = if batches { model.mean_gradients(gradients, group)? } else { gradients };
    optimizer.update(model, &gradients)?;
    Ok(())
}

pub(crate) fn bits(array: &Array) -> Result<Vec<u8>> {
    Ok(tacit_bridge::with_bytes(array, <[u8]>::to_vec)?)
}

/// Every array of a run by name: the model's leaves, and the optimizer's state.
pub(crate) fn arrays<O, V>(model: &Layers, optimizer: &O) -> Result<Vec<(String, Array)>>
where
    O: Optimizer<State = State<V>>,
    State<V>: OptimizerState,
    V: Clone,
{
    let mut state = optimizer.state().clone();
    let state = state.flatten().map_err(|error| Error::invalid(error.to_string(), "name them apart"))?;
    let mut arrays: Vec<(String, Array)> =
        state.into_iter().map(|(key, array)| (format!("state {key}"), array.clone())).collect();
    arrays.sort_by(|(a, _), (b, _)| a.cmp(b));
    arrays.extend(model.leaves(&ParameterFilter::All).into_iter().map(|(path, array)| (path, array.clone())));
    transforms::eval(arrays.iter().map(|(_, array)| array))?;
    Ok(arrays)
}

pub(crate) fn assert_same(found: &[(String, Array)], expected: &[(String, Array)], what: &str) -> Result<()> {
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((path, found), (other, expected)) in found.iter().zip(expected) {
        assert_eq!((path, found.shape(), found.dtype()), (other, expected.shape(), expected.dtype()), "{what}");
        assert!(bits(found)? == bits(expected)?, "{what}: {path} is {found}, not {expected}");
    }
    Ok(())
}

/// Whether all ranks have the same numbers.
fn is_alike(array: &Array, group: &Group) -> Result<bool> {
    let (most, least) = (group.all_max(array)?, group.all_min(array)?);
    Ok(most.eq(&least)?.all(None)?.item_exact::<bool>())
}

/// Sums that nobody has asked for yet are in all that is saved; each rank writes another share of it.
fn of_what_is_not_evaluated(group: &Group) -> Result<()> {
    let folder = folder("pending");
    let (mut model, mut adamw) = (layers()?, AdamW::new(1e-2));
    let (mut stepwise, mut other) = (layers()?, AdamW::new(1e-2));
    // Each gradient is a sum of its own, as those of larger layers are.
    let step = |model: &mut Layers, adamw: &mut AdamW, seed: u64| -> Result<()> {
        let seed = seed + 100 * group.rank() as u64;
        let (_, gradients) = model.value_and_grad(
            ParameterFilter::default(),
            (normal(seed, &[8, 16])?, normal(seed, &[8, 4])?),
            loss,
        )?;
        let mut gradients: Vec<_> = gradients.into_iter().collect();
        gradients.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let means = gradients.into_iter().map(|(path, gradient)| Ok((path, group.mean(&gradient)?)));
        adamw.update(model, &means.collect::<Result<_>>()?)?;
        Ok(())
    };
    for number in 0..4 {
        step(&mut model, &mut adamw, number)?;
        step(&mut stepwise, &mut other, number)?;
        drop(arrays(&stepwise, &other)?);
    }
    save_run(&folder, &Training::new(4).with_optimizer(&adamw)?, &model, group)?;
    let expected = arrays(&stepwise, &other)?;
    assert_same(&arrays(&model, &adamw)?, &expected, "in memory")?;
    for (path, array) in &expected {
        assert!(is_alike(array, group)?, "{path} differs between ranks");
    }
    let run = load_run(&folder, &layers()?, group)?;
    let (mut model, mut adamw) = (layers()?, AdamW::new(1e-2));
    run.restore_model(&mut model)?;
    run.restore_optimizer(&mut adamw)?;
    assert_same(&arrays(&model, &adamw)?, &expected, "on the disk")?;
    Ok(())
}

/// Saves after two steps, goes on for two, and goes on from the save: the same, bit for bit.
fn goes_on<O, V>(name: &str, new: impl Fn() -> O, folder: &Path, group: &Group) -> Result<()>
where
    O: Optimizer<State = State<V>>,
    State<V>: OptimizerState,
    V: Clone,
{
    for divided in &DIVIDED {
        let what = format!("{name}, {}", divided.name);
        let (mut model, mut optimizer) = ((divided.model)(group)?, new());
        let steps = |model: &mut Layers, optimizer: &mut O, from: u64| {
            (from..from + 2).try_for_each(|number| step(model, optimizer, number, divided.batches, group))
        };
        steps(&mut model, &mut optimizer, 0)?;
        save_run(folder, &Training::new(2).with_optimizer(&optimizer)?, &model, group)?;
        let (mut restored, mut resumed) = ((divided.model)(group)?, new());
        let run = load_run(folder, &restored, group)?;
        run.restore_model(&mut restored)?;
        run.restore_optimizer(&mut resumed)?;
        assert_same(&arrays(&restored, &resumed)?, &arrays(&model, &optimizer)?, &format!("{what}, as it was saved"))?;
        steps(&mut model, &mut optimizer, 2)?;
        let expected = arrays(&model, &optimizer)?;
        steps(&mut restored, &mut resumed, 2)?;
        assert_same(&arrays(&restored, &resumed)?, &expected, &format!("{what}, two steps later"))?;
    }
    let files = std::fs::read_dir(folder).map_err(Error::file("read", folder))?;
    assert_eq!(files.count(), group.size() + 1, "the files of earlier saves are gone");
    group.barrier()
}

fn of_every_optimizer_in_every_split(group: &Group) -> Result<()> {
    fn built<T, E: std::fmt::Display>(optimizer: std::result::Result<T, E>) -> T {
        optimizer.unwrap_or_else(|error| panic!("{error}"))
    }
    let folder = folder("optimizers");
    // One of each form of state on many ranks, which take turns on the cores; all of them on two.
    goes_on("SGD with momentum", || built(SgdBuilder::new(1e-2).momentum(0.9).build()), &folder, group)?;
    goes_on("AdamW", || AdamW::new(1e-2), &folder, group)?;
    goes_on("Adafactor with a moment", || built(AdafactorBuilder::new().beta1(Some(0.9)).build()), &folder, group)?;
    if group.size() == 2 {
        goes_on("SGD", || Sgd::new(1e-2), &folder, group)?;
        goes_on("Adam", || Adam::new(1e-2), &folder, group)?;
        goes_on("Adamax", || Adamax::new(1e-2), &folder, group)?;
        goes_on("Lion", || Lion::new(1e-3), &folder, group)?;
        goes_on("AdaGrad", || AdaGrad::new(1e-2), &folder, group)?;
        goes_on("AdaDelta", || built(AdaDelta::new(1e-2)), &folder, group)?;
        goes_on("RMSprop", || built(RmsProp::new(1e-2)), &folder, group)?;
        goes_on("Adafactor", || built(Adafactor::new()), &folder, group)?;
    }
    Ok(())
}

/// A random state that is each rank's own is saved for each, and one that all have for all.
fn of_random_states(group: &Group) -> Result<()> {
    let folder = folder("random");
    let key = |state: &RandomState| Ok::<_, Error>(state.as_array().as_slice::<u32>().to_vec());
    for (state, differs) in [(group.random(5)?, true), (RandomState::with_seed(5)?, false)] {
        assert_eq!(!is_alike(state.as_array(), group)?, differs);
        let mut drawn = state.clone();
        drawn.next_key()?;
        save_run(&folder, &Training::new(1).with_random(&drawn), &layers()?, group)?;
        let run = load_run(&folder, &layers()?, group)?;
        assert_eq!(key(&run.random()?)?, key(&drawn)?, "rank {}", group.rank());
    }
    Ok(())
}

/// An error on every rank, whose words are the same but for the folder's name.
pub(crate) fn refused(result: Result<()>, folder: &Path) -> String {
    result.expect_err("is refused").to_string().replace(&folder.display().to_string(), "FOLDER")
}

/// Folders that only look alike, or are called otherwise: nothing is written, and nothing that was there goes.
fn into_folders_that_are_not_shared(group: &Group) -> Result<()> {
    let folder = folder("apart");
    save_run(&folder, &Training::new(1), &layers()?, group)?;
    let names = |folder: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(folder).expect("is there").flatten().map(|it| it.file_name()).collect();
        names.sort();
        names
    };
    let (before, own) = (names(&folder), folder.with_extension(format!("{}", group.rank())));
    let found = refused(save_run(&own, &Training::new(2), &layers()?, group), &own);
    let others = match group.size() {
        2 => "rank 1 does",
        _ => "ranks 1, 2 and 3 do",
    };
    let help = "help: give the same path on all ranks, in a file system that they share";
    assert_eq!(found, format!("{others} not see the folder FOLDER of rank 0\n{help}"));
    assert!(!own.exists() || names(&own).is_empty(), "{:?}", names(&own));
    group.barrier()?;
    drop(std::fs::remove_dir_all(&own));
    group.barrier()?;
    assert_eq!(names(&folder), before);

    // Each has a whole run of its own, of which the last rank's is a later one.
    let rank = group.rank();
    let single = Group::alone();
    (0..=rank.min(1)).try_for_each(|step| save_run(&own, &Training::new(step as u64), &layers()?, &single))?;
    let found = load_run(&own, &layers()?, group).map(drop);
    let found = refused(found, &own);
    let others = match group.size() {
        2 => "rank 1 finds",
        _ => "ranks 1, 2 and 3 find",
    };
    assert_eq!(found, format!("{others} another save in the folder FOLDER of rank 0\n{help}"));
    Ok(())
}

/// Ranks that would save other arrays are told so, each of them.
fn of_other_models(group: &Group) -> Result<()> {
    let folder = folder("others");
    let last = group.size() - 1;
    let model = layers()?;
    let mut run = Training::new(1);
    if group.rank() == last {
        run.states.insert("more".to_owned(), [("array".to_owned(), ops::zeros::<f32>(&[1])?)].into());
    }
    let found = refused(save_run(&folder, &run, &model, group), &folder);
    let help = "help: give every rank the same model, and states of the same names";
    let message = format!("rank {last} would save other arrays than rank 0, by their names, shapes or dtypes\n{help}");
    assert_eq!(found, message);
    // What the first rank says for all of them.
    let is_last = group.rank() == last;
    let same = "help: give every rank the same run; what each has of its own is in the arrays of its states";
    let mut named = Training::new(1);
    named.optimizer = is_last.then(|| "Lion".to_owned());
    for (run, what) in [
        (Training::new(1 + u64::from(is_last)), "another step"),
        (named, "another optimizer"),
        (Training::new(1).with_note("data", format!("{is_last}")), "other notes"),
    ] {
        let found = refused(save_run(&folder, &run, &model, group), &folder);
        assert_eq!(found, format!("rank {last} would save {what} than rank 0\n{same}"));
    }
    let config = LoraConfig { rank: 2, alpha: if is_last { 8.0 } else { 16.0 }, ..LoraConfig::default() };
    let found =
        refused(save_run(&folder, &Training::new(1), &layers()?.lora("layers.2.weight", config)?, group), &folder);
    let words = "would save leaves of other arrays than rank 0, by their kinds or fields";
    let help = "help: give every rank the same model, with the same kinds, alphas and formats";
    assert_eq!(found, format!("rank {last} {words}\n{help}"));
    // The folder of rank 0 cannot be made: the others are told by whom.
    group.barrier()?;
    if group.rank() == 0 {
        std::fs::write(&folder, "a file").map_err(Error::file("write", &folder))?;
    }
    let found = refused(save_run(&folder, &Training::new(1), &model, group), &folder);
    if group.rank() == 0 {
        assert!(found.starts_with("cannot make FOLDER: "), "{found}");
    } else {
        let help = "help: see the error there; the checkpoint that was there before is untouched";
        assert_eq!(found, format!("rank 0 could not begin a save in the folder\n{help}"));
    }
    Ok(())
}

/// What the leaves mean is checked, however the model was split that they are of, and however that is which they are for.
fn of_adapters_of_another_scale(group: &Group) -> Result<()> {
    let folder = folder("scales");
    let model = |alpha, split| {
        let config = LoraConfig { rank: 2, alpha, ..LoraConfig::default() };
        let model = filled(layers()?.lora("layers.2.weight", config)?)?;
        if split { model.fully_shard("layers.2.weight", group) } else { Ok(model) }
    };
    for saved in [true, false] {
        save_run(&folder, &Training::new(1), &model(16.0, saved)?, group)?;
        for split in [true, false] {
            let mut same = model(16.0, split)?;
            load_run(&folder, &same, group)?.restore_model(&mut same)?;
            let mut other = model(8.0, split)?;
            let found = refused(load_run(&folder, &other, group)?.restore_model(&mut other), &folder);
            assert!(found.contains(" was saved of tacit.Lora (alpha 16,"), "{saved} {split}: {found}");
        }
    }
    Ok(())
}
