//! What several ranks gain and what their words cost: steps and products on two ranks of one thread each beside one rank of
//! one thread and of two, and each collective by its size, over the ring and over MPI.
//!
//! The ranks are processes of this program that wait for their turns: contenders take them one after the other, all ranks
//! of one at a time. MPI is measured where `TACIT_MPI` names an `mpirun`. More ranks than cores share them, so
//! that four ranks show what waiting costs there, and nothing else.
//!
//! `cargo bench --bench distributed -- [--quick] [filter]`.

#[path = "../crates/distributed/tests/ranks/commands.rs"]
mod commands;
#[path = "../examples/splits/plan.rs"]
mod plan;

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process};

use commands::{Commands, Engine, commands, mpirun};
use mlx_rs::error::Exception;
use mlx_rs::module::{Module as _, ModuleParameters};
use mlx_rs::nn::{self, Sequential};
use mlx_rs::optimizers::{Optimizer, Sgd};
use mlx_rs::{Array, ops, random, transforms};
use plan::{Network, Step};
use tacit::distributed::{Group, Shard, Split};
use tacit::model::ParameterFilter;
use tacit::prelude::*;
use tacit_figures::{Bench, Unit};

/// Where the ranks ask for tasks.
const CONDUCTOR: &str = "TACIT_BENCH_CONDUCTOR";
/// The width of the layers of the step, and the tokens of all ranks together.
const STEP: [i32; 2] = [1024, 2048];
/// The layers of the step.
const LAYERS: usize = 3;
/// The width of the products, and the tokens.
const PRODUCT: [i32; 2] = [4096, 256];
/// Bytes of the arrays that collectives are measured on.
const SIZES: [usize; 5] = [4, 4096, 65_536, 1 << 20, 8 << 20];

fn main() -> ExitCode {
    let done = match env::var(CONDUCTOR) {
        Ok(conductor) => rank(&conductor),
        Err(_) => conduct(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The processes of a contender.
struct Ranks {
    processes: Vec<Child>,
    connections: Vec<BufReader<TcpStream>>,
    folder: PathBuf,
}

impl Ranks {
    fn start(engine: Engine, ranks: usize, threads: usize) -> io::Result<Self> {
        let folder = env::temp_dir().join(format!("tacit-bench-{}-{engine}-{ranks}-{threads}", process::id()));
        fs::create_dir_all(&folder)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut this = Self { processes: Vec::new(), connections: Vec::new(), folder };
        // The ports are the ranks' once all have connected, which is when they have begun.
        let program = [env::current_exe()?.into_os_string()];
        let Commands { mut each, held: _held } = commands(engine, ranks, &this.folder, &program)?;
        for command in &mut each {
            command.env(CONDUCTOR, listener.local_addr()?.to_string()).env("TACIT_THREADS", threads.to_string());
            if ranks == 1 {
                command.env_remove("MLX_RANK").env_remove("MLX_HOSTFILE");
            }
            this.processes.push(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        }
        for _ in 0..ranks {
            this.connections.push(BufReader::new(listener.accept()?.0));
        }
        Ok(this)
    }

    /// What the slowest rank answers when all do a task so many times.
    fn answer(&mut self, task: &str, count: usize) -> Result<f64> {
        let failed =
            |error: &dyn std::fmt::Display| Error::invalid(format!("{task}: {error}"), "see what the ranks print");
        for connection in &mut self.connections {
            writeln!(connection.get_mut(), "{task} {count}").map_err(|error| failed(&error))?;
        }
        let mut slowest = 0.0_f64;
        for connection in &mut self.connections {
            let mut line = String::new();
            connection.read_line(&mut line).map_err(|error| failed(&error))?;
            slowest = slowest.max(line.trim().parse().map_err(|error| failed(&error))?);
        }
        Ok(slowest)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // Without a connection they end by themselves.
        self.connections.clear();
        let until = Instant::now() + Duration::from_secs(5);
        for process in &mut self.processes {
            while Instant::now() < until && matches!(process.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(process.kill());
            drop(process.wait());
        }
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn conduct() -> Result<()> {
    let bench = tacit_figures::bench!("distributed");
    let start = |engine, ranks, threads| {
        let failed = |error| Error::invalid(format!("no {ranks} ranks over {engine}: {error}"), "see what they print");
        Ranks::start(engine, ranks, threads).map_err(failed).map(RefCell::new)
    };
    let one = start(Engine::Ring, 1, 1)?;
    let two_threads = start(Engine::Ring, 1, 2)?;
    let mut engines = vec![Engine::Ring];
    engines.extend(mpirun().map(|_| Engine::Mpi));
    for &engine in &engines {
        let two = start(engine, 2, 1)?;
        let name = format!("2 ranks over {engine}");
        for task in ["data", "tensor"] {
            let case = format!("{task}/{engine}/2");
            if !bench.wants(&case) {
                continue;
            }
            let mut turns = bench.turns().within(Duration::from_secs(12), 7);
            turns = turns.measure(&name, || two.borrow_mut().answer(task, 1));
            turns = turns.measure("one rank of one thread", || one.borrow_mut().answer(task, 1));
            turns = turns.measure("one rank of two threads", || two_threads.borrow_mut().answer(task, 1));
            if task == "data" {
                turns = turns.measure("sums after all gradients", || two.borrow_mut().answer("apart", 1));
            }
            turns.take()?.record(&case, Unit::rate("1/s", 1.0));
            let counted = two.borrow_mut().answer(&format!("bytes:{task}"), 1)?;
            bench.amount(&format!("{case}/bytes"), counted, "bytes", "the formula", formula(task));
        }
        collectives(&bench, engine, 2, &two)?;
    }
    if !bench.is_quick() {
        for engine in engines {
            collectives(&bench, engine, 4, &start(engine, 4, 1)?)?;
        }
    }
    Ok(())
}

/// The bytes that a rank of two gives to collectives for a task, as [`plan`] has them.
fn formula(task: &str) -> f64 {
    let network = Network { engine: plan::Engine::Ring, latency: 0.0, bandwidth: 1.0 };
    let [width, tokens] = if task == "data" { STEP } else { PRODUCT }.map(f64::from);
    if task == "tensor" {
        return tokens * width * 4.0;
    }
    let parameters = width * width + width;
    let step = Step { layers: LAYERS, parameters, bits: 32.0, trained: parameters, width, tokens, element: 4.0 };
    step.estimate(plan::Split::Data, &network, 1.0, 2).given
}

/// Each collective by its size: seconds, beside the least size.
fn collectives(bench: &Bench, engine: Engine, ranks: usize, group: &RefCell<Ranks>) -> Result<()> {
    for name in ["all_sum", "all_gather"] {
        // A quick run takes the least and a middling one.
        for bytes in SIZES.into_iter().step_by(if bench.is_quick() { 3 } else { 1 }) {
            let case = format!("{name}/{engine}/{ranks}/{bytes}");
            if !bench.wants(&case) {
                continue;
            }
            let calls = if bytes <= 65_536 { 20 } else { 3 };
            let task = |bytes: usize| move || group.borrow_mut().answer(&format!("{name}:{bytes}"), calls);
            let turns = bench.turns().within(Duration::from_secs(2), 9);
            let turns = turns.measure("the collective", task(bytes)).measure("one of a number", task(4));
            turns.take()?.record(&case, Unit::time("us"));
        }
    }
    Ok(())
}

/// Does the tasks that it is asked for, until nobody asks.
fn rank(conductor: &str) -> Result<()> {
    let failed = |error: io::Error| Error::invalid(format!("no tasks: {error}"), "start the bench without variables");
    let mut stream = TcpStream::connect(conductor).map_err(failed)?;
    let group = Group::init()?;
    let tasks = BufReader::new(stream.try_clone().map_err(failed)?);
    let mut tasks_of = Tasks::new(&group)?;
    for line in tasks.lines() {
        let line = line.map_err(failed)?;
        let (task, count) = line.split_once(' ').unwrap_or((&line, "1"));
        let answer = tasks_of.answer(task, count.parse().unwrap_or(1))?;
        writeln!(stream, "{answer:?}").map_err(failed)?;
    }
    Ok(())
}

/// What a rank is asked for.
struct Tasks<'a> {
    group: &'a Group,
    model: Model<Sequential>,
    optimizer: Sgd,
    batch: (Array, Array),
    product: Model<Sequential>,
    tokens: Array,
}

impl<'a> Tasks<'a> {
    fn new(group: &'a Group) -> Result<Self> {
        random::seed(0)?;
        let [width, tokens] = STEP;
        let layers = (0..LAYERS).try_fold(Sequential::new(), |model, _| {
            Ok::<_, Error>(model.append(nn::Linear::new(width, width)?).append(nn::Relu))
        })?;
        let own = tokens / group.size() as i32;
        let normal = |seed: usize, shape: &[i32]| random::normal::<f32>(shape, None, None, &random::key(seed as u64)?);
        let batch = (normal(10 + group.rank(), &[own, width])?, normal(20 + group.rank(), &[own, width])?);
        let [width, tokens] = PRODUCT;
        let product = Sequential::new().append(nn::Linear::new(width, width)?).append(nn::Linear::new(width, width)?);
        let product = Model::new(product)?
            .shard("layers.0.*", Split::Columns(group))?
            .shard("layers.1.weight", Split::Rows(group))?;
        let tokens = normal(30, &[tokens, width])?;
        Ok(Self { group, model: Model::new(layers)?, optimizer: Sgd::new(1e-3), batch, product, tokens })
    }

    /// The seconds of a task done so many times, each by itself, or what is counted of it.
    fn answer(&mut self, task: &str, count: usize) -> Result<f64> {
        if let Some(counted) = task.strip_prefix("bytes:") {
            let before = self.group.traffic().bytes;
            self.perform(counted)?;
            return Ok((self.group.traffic().bytes - before) as f64);
        }
        let collective = task.split_once(':').map(|(name, bytes)| (name, bytes.parse::<i32>().unwrap_or(4) / 4));
        let x = collective.map(|(_, elements)| ops::ones::<f32>(&[elements])).transpose()?;
        if let Some(x) = &x {
            x.eval()?;
        }
        self.group.barrier()?;
        let start = Instant::now();
        for _ in 0..count {
            match (&x, collective) {
                (Some(x), Some(("all_sum", _))) => self.group.all_sum(x)?.eval()?,
                (Some(x), Some(_)) => self.group.all_gather(x, 0)?.eval()?,
                _ => self.perform(task)?,
            }
        }
        Ok(start.elapsed().as_secs_f64() / count as f64)
    }

    fn perform(&mut self, task: &str) -> Result<()> {
        if task == "tensor" {
            return Ok(self.product.forward(&self.tokens)?.eval()?);
        }
        let loss = |model: &mut Model<Sequential>, (x, y): (Array, Array)| -> Result<Array, Exception> {
            model.forward(&x)?.subtract(y)?.square()?.mean(None)
        };
        let (_, gradients) = self.model.value_and_grad(ParameterFilter::default(), self.batch.clone(), loss)?;
        if task == "apart" {
            transforms::eval(gradients.values())?;
        }
        let gradients = self.group.mean(&gradients)?;
        self.optimizer.update(&mut self.model, &gradients)?;
        Ok(transforms::eval(self.model.parameters().flatten().into_values())?)
    }
}
