//! The book's chapter on more than one process: what a rank does, on two of them.

// ANCHOR: use
use std::io;
use std::path::Path;
use std::process::Command;

use mlx_rs::module::Module;
use mlx_rs::nn::{self, Sequential};
use mlx_rs::optimizers::AdamW;
use mlx_rs::random::RandomState;
use mlx_rs::{Array, Dtype, ops, random, transforms};
use tacit::distributed::{FullyShard, Group, Shard, Sharded, Split, load_run, save_run};
use tacit::io::Training;
use tacit::model::ParameterFilter;
use tacit::prelude::*;

// ANCHOR_END: use
use tacit_bridge::ports::Held;

/// A title, and what each rank does to show it.
type Section = (&'static str, fn(&Group) -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 9] = [
    ("sums", sums),
    ("batches", batches),
    ("layers", layers),
    ("explained", explained),
    ("stored", stored),
    ("grid", grid),
    ("dropped", dropped),
    ("resumed", resumed),
    ("refused", refused),
];

// ANCHOR: sums
fn sums(group: &Group) -> Result<String> {
    let x = Array::from_slice(&[1.0_f32, 10.0], &[2]).multiply(Array::from_f32(group.rank() as f32 + 1.0))?;
    let sum = group.all_sum(&x)?;
    let both = group.all_gather(&x, 0)?;
    Ok(format!(
        "rank {} of {} has {:?}; the sum is {:?}, and both are {:?}",
        group.rank(),
        group.size(),
        x.as_slice::<f32>(),
        sum.as_slice::<f32>(),
        both.as_slice::<f32>()
    ))
}
// ANCHOR_END: sums

// ANCHOR: model
/// The same on every rank: the seed says so.
fn mlp() -> Result<Model<Sequential>> {
    random::seed(0)?;
    let layers = Sequential::new().append(nn::Linear::new(64, 256)?).append(nn::Relu).append(nn::Linear::new(256, 64)?);
    Model::new(layers)
}

fn words() -> Result<Array> {
    Ok(random::normal::<f32>(&[8, 64], None, None, &random::key(1)?)?)
}

fn loss(model: &mut Model<Sequential>, x: &Array) -> Result<Array, mlx_rs::error::Exception> {
    model.forward(x)?.subtract(x)?.square()?.mean(None)
}
// ANCHOR_END: model

// ANCHOR: batches
fn batches(group: &Group) -> Result<String> {
    let words = words()?;
    let own = words.split_equal(group.size() as i32, 0)?.swap_remove(group.rank());

    let before = group.traffic();
    let (_, gradients) = mlp()?.value_and_grad(ParameterFilter::default(), &own, loss)?;
    let gradients = group.mean(&gradients)?;
    transforms::eval(gradients.values())?;
    let sent = group.traffic();

    // What one rank makes of the whole batch.
    let (_, whole) = mlp()?.value_and_grad(ParameterFilter::default(), &words, loss)?;
    let mut off = 0.0_f32;
    for (path, gradient) in &gradients {
        off = off.max(gradient.subtract(&whole[path])?.abs()?.max(None)?.item_exact::<f32>());
    }
    Ok(format!(
        "{} gradients in {} collective of {} bytes, equal to those of one rank: {}",
        gradients.len(),
        sent.collectives - before.collectives,
        sent.bytes - before.bytes,
        off < 1e-6
    ))
}
// ANCHOR_END: batches

// ANCHOR: layers
fn split(group: &Group) -> Result<Model<Sequential>> {
    mlp()?
        .quantize("*.weight", Nf4 { block: 64, double: false })?
        .shard("layers.0.*", Split::Columns(group))?
        .shard("layers.2.weight", Split::Rows(group))
}

fn layers(group: &Group) -> Result<String> {
    let expected = mlp()?.quantize("*.weight", Nf4 { block: 64, double: false })?.forward(&words()?)?;
    let _guard = Policy::Deny.scope();
    let mut model = split(group)?;
    let before = group.traffic();
    let y = model.forward(&words()?)?;
    y.eval()?;
    let sent = group.traffic();
    let off = y.subtract(expected)?.abs()?.max(None)?.item_exact::<f32>();
    Ok(format!(
        "{} bytes of weights on this rank, {} collective of {} bytes, equal to one rank: {}",
        model.nbytes(),
        sent.collectives - before.collectives,
        sent.bytes - before.bytes,
        off < 1e-5
    ))
}
// ANCHOR_END: layers

// ANCHOR: explained
fn explained(group: &Group) -> Result<String> {
    let words = words()?;
    Ok(split(group)?.explain(|model| model.forward(&words))?.to_string())
}
// ANCHOR_END: explained

// ANCHOR: stored
fn stored(group: &Group) -> Result<String> {
    let weight = random::normal::<f32>(&[64, 128], None, None, &random::key(2)?)?;
    let whole = Nf4Array::quantize(&weight, 64)?;
    // Inside a block, both sides keep its scale.
    let inside = Sharded::split(Value::from(whole.clone()).clone(), 0, group)?;
    let same = Value::from(inside).dense()?.eq(whole.materialize()?.dense()?)?.all(None)?.item_exact::<bool>();
    Ok(format!("cut and gathered, it is what it was to the bit: {same}"))
}
// ANCHOR_END: stored

// ANCHOR: grid
fn grid(group: &Group) -> Result<String> {
    let (rank, words) = (group.rank(), words()?);
    // The ranks that have the parts of one model, and those that have the same part.
    let (model, data) = (group.split(rank / 2)?, group.split(rank % 2)?);

    let mut split =
        mlp()?.shard("layers.0.*", Split::Columns(&model))?.shard("layers.2.weight", Split::Rows(&model))?;
    let own = words.split_equal(data.size() as i32, 0)?.swap_remove(data.rank());
    let (found, gradients) = split.value_and_grad(ParameterFilter::default(), &own, loss)?;
    let gradients = split.mean_gradients(gradients, &data)?;
    split.update(&mut AdamW::new(1e-3), &gradients)?;

    let off = data.mean(&found)?.subtract(loss(&mut mlp()?, &words)?)?.abs()?.item_exact::<f32>();
    Ok(format!(
        "{} ranks: a model over {}, a batch over {}, and the loss of one rank: {}",
        group.size(),
        model.size(),
        data.size(),
        off < 1e-5
    ))
}
// ANCHOR_END: grid

// ANCHOR: dropped
fn dropped(group: &Group) -> Result<String> {
    let mut dropout = nn::Dropout::new();
    let mut mask = || -> Result<Vec<u8>> {
        let kept = dropout.forward(&ops::ones::<f32>(&[12])?)?.gt(Array::from_f32(0.0))?.as_dtype(Dtype::Uint8)?;
        Ok(kept.as_slice::<u8>().to_vec())
    };
    let model = mlp()?;
    // Each rank has rows of its own, and drops features of its own.
    group.seed(1)?;
    let apart = mask()?;
    // The ranks of a split model compute the same rows, and drop the same.
    drop(model.shard("layers.0.*", Split::Columns(group))?);
    let together = mask()?;
    Ok(format!("rank {} keeps {apart:?} of its own rows, and {together:?} of the rows of all", group.rank()))
}
// ANCHOR_END: dropped

// ANCHOR: resumed
fn saved_and_resumed(folder: &Path, group: &Group) -> Result<String> {
    let step = |model: &mut Model<Sequential>, adamw: &mut AdamW, random: &mut RandomState| -> Result<()> {
        let own = random::normal::<f32>(&[4, 64], None, None, &random.next_key()?)?;
        let (_, gradients) = model.value_and_grad(ParameterFilter::default(), &own, loss)?;
        let gradients = model.mean_gradients(gradients, group)?;
        model.update(adamw, &gradients)
    };
    let new = || Ok::<_, Error>((mlp()?.fully_shard("layers.0.*", group)?, AdamW::new(1e-3)));

    let ((mut model, mut adamw), mut random) = (new()?, group.random(7)?);
    step(&mut model, &mut adamw, &mut random)?;
    save_run(folder, &Training::new(1).with_optimizer(&adamw)?.with_random(&random), &model, group)?;
    step(&mut model, &mut adamw, &mut random)?;

    let (mut resumed, mut moments) = new()?;
    let run = load_run(folder, &resumed, group)?;
    run.restore_model(&mut resumed)?;
    run.restore_optimizer(&mut moments)?;
    step(&mut resumed, &mut moments, &mut run.random()?)?;

    let pairs = model.leaves(&ParameterFilter::All).into_iter().zip(resumed.leaves(&ParameterFilter::All));
    let mut same = true;
    for ((_, expected), (_, found)) in pairs {
        same &= expected.eq(found)?.all(None)?.item_exact::<bool>();
    }
    Ok(format!("a step behind the save, and a step behind its loading, are the same to the bit: {same}"))
}
// ANCHOR_END: resumed

/// In a folder that is this program's alone, and the same on both ranks.
fn resumed(group: &Group) -> Result<String> {
    let own = if group.rank() == 0 { std::process::id() as i32 } else { 0 };
    let number = group.all_max(&Array::from_int(own))?.item_exact::<i32>();
    let folder = std::env::temp_dir().join(format!("tacit-book-run-{number}"));
    let shown = saved_and_resumed(&folder, group)?;
    group.barrier()?;
    drop(std::fs::remove_dir_all(folder));
    Ok(shown)
}

// ANCHOR: refused
fn refused(group: &Group) -> Result<String> {
    let odd = Sharded::split(random::normal::<f32>(&[7, 4], None, None, None)?, 0, group);
    let nobody = group.send(&Array::from_f32(1.0), group.size());
    let messages = [odd.err(), nobody.err()].into_iter().flatten().map(|error| error.to_string());
    Ok(messages.collect::<Vec<_>>().join("\n\n"))
}
// ANCHOR_END: refused

/// Shows the sections on this rank, each in a file of its own.
pub(crate) fn rank(folder: &Path) -> Result<()> {
    let group = Group::init()?;
    for (title, section) in SECTIONS {
        let file = folder.join(format!("{title}.{}", group.rank()));
        let shown = section(&group)?;
        std::fs::write(file, shown).map_err(|error| Error::invalid(error.to_string(), "give a folder"))?;
    }
    group.barrier()
}

/// What each of two ranks shows of each section. The command starts a program that calls [`rank`] with the folder.
pub(crate) fn on_two_ranks(folder: &Path, command: impl Fn() -> Command) -> io::Result<Vec<[String; 2]>> {
    // A port each, and the one after them, where they meet to watch each other.
    let held = Held::new(3)?;
    let [first, second] = [held.numbers()[0], held.numbers()[1]];
    let hosts = folder.join("hosts.json");
    std::fs::write(&hosts, format!("[[\"127.0.0.1:{first}\"],[\"127.0.0.1:{second}\"]]"))?;
    let start = |rank: &str| command().env("MLX_RANK", rank).env("MLX_HOSTFILE", &hosts).spawn();
    for mut process in [start("0")?, start("1")?] {
        let status = process.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("a rank ends with {status}")));
        }
    }
    let of = |title: &str, rank: usize| std::fs::read_to_string(folder.join(format!("{title}.{rank}")));
    SECTIONS.iter().map(|(title, _)| Ok([of(title, 0)?, of(title, 1)?])).collect()
}

#[allow(dead_code, reason = "the book's test is a program of its own")]
pub(crate) fn main() -> Result<()> {
    if let Some(folder) = std::env::args().nth(1) {
        return rank(Path::new(&folder));
    }
    let folder = std::env::temp_dir().join(format!("tacit-distributed-{}", std::process::id()));
    let shown = std::fs::create_dir_all(&folder).and_then(|()| {
        let program = std::env::current_exe()?;
        on_two_ranks(&folder, || {
            let mut command = Command::new(&program);
            command.arg(&folder);
            command
        })
    });
    let shown = shown.map_err(|error| Error::invalid(error.to_string(), "see what the ranks print"))?;
    drop(std::fs::remove_dir_all(&folder));
    for ((title, _), [first, second]) in SECTIONS.iter().zip(shown) {
        println!("== {title}\n{first}\n\n{second}\n");
    }
    Ok(())
}
