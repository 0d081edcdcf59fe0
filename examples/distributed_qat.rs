//! Trains a transformer of characters, quantization-aware in NF4, on several ranks: each with its part of the batch, each with
//! its part of every layer, or each with its part of the batch and of everything that is kept. The losses are those of one rank.
//!
//! The transformer is the one of `qat_transformer`, of mlx-rs's own layers, and knows nothing of ranks. The program starts
//! the ranks itself, which are processes of this machine and talk over MLX's ring. Or something else does, and this is one
//! of them: `tacit launch`, `mpirun`, MLX's own launcher.
//!
//!     cargo run --release --example distributed_qat
//!     cargo run --release --example distributed_qat -- --ranks 2 --mode tensor
//!     mpirun -n 4 target/release/examples/distributed_qat --mode data

mod characters;

// ANCHOR: use
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use characters::{Corpus, Outcome, Shape, Transformer, bits};
use mlx_rs::module::Module;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, random};
use tacit::distributed::{Backend, FullyShard, Group, Shard, Split, Traffic};
use tacit::model::{ParameterFilter, QatConfig};
use tacit::prelude::*;
use tacit::tree;

// ANCHOR_END: use
use tacit_bridge::ports::Held;

const SHAPE: Shape = Shape { dims: 128, blocks: 1, heads: 4, context: 16 };
/// Windows of text in a step, of all ranks together.
const BATCH: usize = 8;
/// The projections of attention, and both layers of each MLP.
const QUANTIZED: &str = "blocks.*.weight";
/// Its blocks end where parts of four ranks do.
const FORMAT: Nf4 = Nf4 { block: 32, double: false };
/// How far the loss of a step may be from that of one rank, in terms of how far one rank is from itself when it takes the rows
/// of each batch the other way round. Sums in another order round otherwise, a weight near the edge between two codes
/// then takes the other one, and in some hundred steps that grows.
const TOLERANCE: f32 = 4.0;
/// Or in bits for each character: of those few hundred steps, which gain three bits,
const LEAST: f32 = 0.25;
/// and of the first three, in which nothing has grown yet.
const AT_FIRST: f32 = 1e-3;

/// What each rank has a part of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Data,
    Tensor,
    Full,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Data, Self::Tensor, Self::Full];

    const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Tensor => "tensor",
            Self::Full => "full",
        }
    }
}

// ANCHOR: model
fn model(mode: Mode, group: &Group, characters: usize) -> Outcome<Model<Transformer>> {
    // The same on every rank.
    random::seed(0)?;
    let model = Model::new(Transformer::new(SHAPE, characters)?)?.prepare(QUANTIZED, QatConfig::new(FORMAT))?;
    Ok(match mode {
        Mode::Data => model,
        Mode::Tensor => model
            .shard("blocks.*.{query,key,value}_proj.weight", Split::Columns(group))?
            .shard("blocks.*.output_proj.weight", Split::Rows(group))?
            .shard("blocks.*.up.*", Split::Columns(group))?
            .shard("blocks.*.down.weight", Split::Rows(group))?,
        Mode::Full => model.fully_shard("blocks.*", group)?,
    })
}
// ANCHOR_END: model

// ANCHOR: step
/// One step; the loss of the whole batch, in bits for each character.
fn step(
    mode: Mode,
    group: &Group,
    model: &mut Model<Transformer>,
    optimizer: &mut Adam,
    batch: (Array, Array),
) -> Outcome<f32> {
    let (x, y) = match mode {
        Mode::Data | Mode::Full => (own_rows(&batch.0, group)?, own_rows(&batch.1, group)?),
        Mode::Tensor => batch,
    };
    let loss = |model: &mut Model<Transformer>, (x, y): (Array, Array)| bits(&model.forward(&x)?, &y);
    let (mut loss, mut gradients) = model.value_and_grad(ParameterFilter::default(), (x, y), loss)?;
    match mode {
        Mode::Data => gradients = group.mean(&gradients)?,
        // Those of what is split are summed where they are made.
        Mode::Full => gradients = model.mean_gradients(gradients, group)?,
        Mode::Tensor => {}
    }
    if mode != Mode::Tensor {
        loss = group.mean(&loss)?;
    }
    model.update(optimizer, &gradients)?;
    tree::eval(&(&*model, &loss))?;
    Ok(loss.try_item_exact::<f32>()?)
}

/// The rows that are this rank's.
fn own_rows(batch: &Array, group: &Group) -> Outcome<Array> {
    Ok(batch.split_equal(group.size() as i32, 0)?.swap_remove(group.rank()))
}
// ANCHOR_END: step

fn reversed_rows(batch: &Array) -> Outcome<Array> {
    let rows: Vec<i32> = (0..batch.dim(0)).rev().collect();
    Ok(batch.take_axis(Array::from_slice(&rows, &[batch.dim(0)]), 0)?)
}

/// What a run says of itself.
struct Run {
    losses: Vec<f32>,
    traffic: Traffic,
    steps_per_second: f64,
}

/// Trains on this rank.
fn train(mode: Mode, group: &Group, steps: usize, reversed: bool) -> Outcome<Run> {
    let (corpus, _) = Corpus::read();
    let mut model = model(mode, group, corpus.characters.len())?;
    let mut optimizer = Adam::new(1e-3);
    let mut losses = Vec::with_capacity(steps);
    let start = Instant::now();
    for number in 0..steps {
        let (mut x, mut y) = corpus.batch(number, BATCH, SHAPE.context)?;
        if reversed {
            (x, y) = (reversed_rows(&x)?, reversed_rows(&y)?);
        }
        losses.push(step(mode, group, &mut model, &mut optimizer, (x, y))?);
    }
    Ok(Run { losses, traffic: group.traffic(), steps_per_second: steps as f64 / start.elapsed().as_secs_f64() })
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let given = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let mode = match given("--mode") {
        None => None,
        Some(name) => Some(*Mode::ALL.iter().find(|mode| mode.name() == name).ok_or("--mode is data, tensor or full")?),
    };
    let ranks = given("--ranks").map(|ranks| ranks.parse()).transpose()?;
    let steps = given("--steps").map_or(Ok(200), |steps| steps.parse())?;
    if Backend::from_environment()? != Backend::Alone || has("--alone") {
        let group = Group::init()?;
        let _deny = Policy::Deny.scope();
        let run = train(mode.unwrap_or(Mode::Data), &group, steps, has("--reversed"))?;
        if group.rank() == 0 {
            say(&run);
        }
        return Ok(());
    }
    let modes = mode.map_or(Mode::ALL.to_vec(), |mode| vec![mode]);
    let numbers = ranks.map_or(vec![2, 4], |ranks| vec![ranks]);
    println!("Bits for each character. A step's collectives, and what a rank gives to them.\n");
    println!("split     ranks     step 1  step {steps:>4}  differs by   collectives   kB a step   steps/s");
    let one = start(Mode::Data, 1, steps, false)?;
    row("one rank", 1, &one, 0.0);
    let reversed = start(Mode::Data, 1, steps, true)?;
    let control = largest(&reversed, &one);
    row("reversed", 1, &reversed, control);
    for mode in modes {
        for &ranks in &numbers {
            let run = start(mode, ranks, steps, false)?;
            let differs = largest(&run, &one);
            row(mode.name(), ranks, &run, differs);
            let first = run.losses.iter().zip(&one.losses).take(3).all(|(loss, one)| (loss - one).abs() <= AT_FIRST);
            let near = differs <= (TOLERANCE * control).max(LEAST);
            if !first || !near || run.losses.len() != steps {
                return Err(format!("the losses of {ranks} ranks are not those of one").into());
            }
        }
    }
    Ok(())
}

/// The largest difference between the losses of a step; NaN where a loss is.
fn largest(run: &Run, one: &Run) -> f32 {
    let differences = run.losses.iter().zip(&one.losses).map(|(loss, of_one)| (loss - of_one).abs());
    differences.max_by(f32::total_cmp).unwrap_or(f32::NAN)
}

fn row(name: &str, ranks: usize, run: &Run, largest: f32) {
    let steps = run.losses.len().max(1) as u64;
    let (first, last) = (run.losses.first().unwrap_or(&f32::NAN), run.losses.last().unwrap_or(&f32::NAN));
    let Traffic { collectives, bytes, .. } = run.traffic;
    println!(
        "{name:<8} {ranks:>5}  {first:>9.4}  {last:>9.4}  {largest:>10.5}  {:>12}  {:>10.1}  {:>8.1}",
        collectives / steps,
        bytes as f64 / steps as f64 / 1e3,
        run.steps_per_second
    );
}

/// Prints a run so that [`heard`] reads it.
fn say(run: &Run) {
    for (step, loss) in run.losses.iter().enumerate() {
        println!("step {step} loss {loss:?}");
    }
    println!("traffic {} {} speed {:?}", run.traffic.collectives, run.traffic.bytes, run.steps_per_second);
}

/// Reads what a rank prints.
fn heard(lines: impl Iterator<Item = std::io::Result<String>>) -> Outcome<Run> {
    let mut run = Run { losses: Vec::new(), traffic: Traffic::default(), steps_per_second: 0.0 };
    for line in lines {
        let line = line?;
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["step", _, "loss", loss] => run.losses.push(loss.parse()?),
            ["traffic", collectives, bytes, "speed", speed] => {
                (run.traffic.collectives, run.traffic.bytes) = (collectives.parse()?, bytes.parse()?);
                run.steps_per_second = speed.parse()?;
            }
            _ => println!("{line}"),
        }
    }
    Ok(run)
}

/// Runs this program on so many ranks of this machine.
fn start(mode: Mode, ranks: usize, steps: usize, reversed: bool) -> Outcome<Run> {
    // A port each, and the one after them, where they meet to watch each other.
    let held = Held::new(ranks + 1)?;
    let hosts: Vec<String> = held.numbers()[..ranks].iter().map(|port| format!("[\"127.0.0.1:{port}\"]")).collect();
    let file = std::env::temp_dir().join(format!("distributed-qat-{}.json", std::process::id()));
    std::fs::write(&file, format!("[{}]", hosts.join(",")))?;
    let threads = (std::thread::available_parallelism()?.get() / ranks).max(1);
    let mut started: Vec<Child> = Vec::new();
    for rank in 0..ranks {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--mode", mode.name(), "--steps", &steps.to_string()]).env("TACIT_THREADS", threads.to_string());
        if reversed {
            command.arg("--reversed");
        }
        if ranks == 1 {
            command.arg("--alone");
        } else {
            command.env("MLX_RANK", rank.to_string()).env("MLX_HOSTFILE", &file);
        }
        let said = if rank == 0 { Stdio::piped() } else { Stdio::null() };
        started.push(command.stdout(said).spawn()?);
    }
    let said = started[0].stdout.take().ok_or("the first rank says nothing")?;
    let run = heard(BufReader::new(said).lines());
    for (rank, child) in started.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("rank {rank} of {ranks} ends with {status}").into());
        }
    }
    std::fs::remove_file(&file)?;
    run
}
