//! What may not grow faster than the work: time by the size of what is recorded, traced, compiled, derived and stored; and what
//! may not grow at all with the number of steps: memory, threads and open files.
//!
//! Each case has a limit, far from what is measured and below what the next power would give, and the program fails once all have
//! run. A size is taken beside an eighth of it: work that grows with the square of the size takes 64 times as long.
//!
//! `cargo bench --bench ceilings -- [filter]`. It takes half a minute.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mlx_rs::{Array, Dtype, memory, ops, random, transforms};
use tacit::compile::compile;
use tacit::control::cond;
use tacit::executable::{Executable, Mode};
use tacit::model::KvCache;
use tacit::prelude::*;
use tacit::transform::{grad, vmap};
use tacit::tree;
use tacit_figures::{Bench, resident};

/// How much larger the larger size is.
const TIMES: usize = 8;
/// How many times as long eight times the size may take: 8 is linear and 64 quadratic. What was quadratic took 49 to 92 times;
/// what is not takes 7 to 25.
const LONGER: f64 = 32.0;
/// The same of slices, which take 27 to 36 times on two noisy cores: less than a quadratic time, and more than a linear one.
const LONGER_SLICES: f64 = 45.0;
/// How long work is repeated to be measured.
const LONG_ENOUGH: Duration = Duration::from_millis(100);
/// The width of the layer that steps have.
const WIDTH: i32 = 512;
/// The nodes of a step's graph.
const NODES: usize = 400;
/// How many bytes memory may have grown by the end of all steps: what the allocators keep of one step or another.
const GROWN: f64 = 4e6;

fn main() -> ExitCode {
    let bench = tacit_figures::bench!("ceilings");
    let mut ceilings = Ceilings { bench, broken: Vec::new() };
    if let Err(error) = all(&mut ceilings) {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    for broken in &ceilings.broken {
        eprintln!("error: {broken}");
    }
    if ceilings.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all(ceilings: &mut Ceilings) -> Result<()> {
    random::seed(0)?;
    times(ceilings)?;
    steps(ceilings)?;
    caches(ceilings)
}

struct Ceilings {
    bench: Bench,
    /// The limits that do not hold.
    broken: Vec<String>,
}

impl Ceilings {
    /// The time of work of a size beside that of an eighth of it.
    fn time(&mut self, case: &str, size: usize, work: impl FnMut(usize) -> Result<()>) -> Result<()> {
        self.time_within(LONGER, case, size, work)
    }

    /// The same with a limit of the case's own.
    fn time_within(
        &mut self,
        limit: f64,
        case: &str,
        size: usize,
        mut work: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        if !self.bench.wants(case) {
            return Ok(());
        }
        let small = size / TIMES;
        // What only the first run does is not measured.
        work(small)?;
        let (mut one, mut large) = (f64::INFINITY, f64::INFINITY);
        // The least of two is what the machine's other work disturbed less.
        for _ in 0..2 {
            one = one.min(seconds(|| work(small))?);
            large = large.min(seconds(|| work(size))?);
        }
        self.bench.amount(case, large * 1e3, "ms", "an eighth of the size", one * 1e3);
        let ratio = large / one;
        if ratio > limit {
            self.broken.push(format!("{case}: {size} take {ratio:.0} times as long as {small}, the limit is {limit}"));
        }
        Ok(())
    }

    /// Memory, threads and open files after so many steps beside those after an eighth of them.
    fn steps(&mut self, case: &str, steps: usize, mut run: impl FnMut(usize) -> Result<()>) -> Result<()> {
        if !self.bench.wants(case) {
            return Ok(());
        }
        run(steps / TIMES)?;
        let early = Taken::now()?;
        run(steps - steps / TIMES)?;
        let late = Taken::now()?;
        let (grown, resident) = (late.active - early.active, late.resident - early.resident);
        self.bench.amount(
            &format!("{case}/memory"),
            late.resident / 1e6,
            "MB",
            "after an eighth",
            early.resident / 1e6,
        );
        if grown.max(resident) > GROWN {
            let megabytes = grown.max(resident) / 1e6;
            self.broken
                .push(format!("{case}: {megabytes:.1} MB more after {steps} steps than after an eighth of them"));
        }
        for (what, early, late) in [("threads", early.threads, late.threads), ("open files", early.files, late.files)] {
            if late > early {
                self.broken
                    .push(format!("{case}: {early} {what} after an eighth of {steps} steps, and {late} after all"));
            }
        }
        Ok(())
    }
}

/// The seconds that this thread computes in one piece of work: what else the machine does is not counted.
fn seconds(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    // The first number is that in nanoseconds, but it is brought up to date only with each tick of some milliseconds.
    let computed = || {
        let text = fs::read_to_string("/proc/thread-self/schedstat").ok();
        text.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
    };
    let (start, before) = (Instant::now(), computed());
    let mut count = 0;
    while count == 0 || start.elapsed() < LONG_ENOUGH {
        work()?;
        count += 1;
    }
    let whole = match (before, computed()) {
        (Some(before), Some(after)) => (after - before) / 1e9,
        _ => start.elapsed().as_secs_f64(),
    };
    Ok(whole / f64::from(count))
}

/// What this process has taken.
struct Taken {
    /// Bytes of arrays.
    active: f64,
    /// All bytes.
    resident: f64,
    threads: usize,
    files: usize,
}

impl Taken {
    fn now() -> Result<Self> {
        memory::clear_cache()?;
        let count = |folder: &str| fs::read_dir(folder).map_or(1, Iterator::count);
        Ok(Self {
            active: memory::active_memory()? as f64,
            resident: resident::now(),
            threads: count("/proc/self/task"),
            files: count("/proc/self/fd"),
        })
    }
}

fn weight(width: i32) -> Result<Nf4Array> {
    let weight = Nf4Array::quantize(&random::normal::<f32>(&[width, width], None, 0.1, None)?, 64)?;
    tree::eval(&weight)?;
    Ok(weight)
}

/// An elementwise op, one of a few in turn.
fn next(x: &Array, at: usize) -> Result<Array> {
    let c = Array::from_f32(0.5);
    Ok(match at % 4 {
        0 => x.add(&c)?,
        1 => x.multiply(&c)?,
        2 => x.sin()?,
        _ => ops::maximum(x, &c)?,
    })
}

fn chain(x: &Array, length: usize) -> Result<Array> {
    (0..length).try_fold(x.clone(), |x, at| next(&x, at))
}

/// A graph of many nodes, which takes longer at its end than to be recorded: some are always under way.
fn slow(x: &Array, w: &Array) -> Result<Array> {
    (0..24).try_fold(chain(x, NODES)?, |x, _| Ok(x.matmul(w.t())?.sin()?))
}

/// What is traced, by the number of its ops.
fn times(ceilings: &mut Ceilings) -> Result<()> {
    let x = random::normal::<f32>(&[4, 64], None, None, None)?;
    let w = weight(64)?;
    ceilings.time("trace", 8000, |ops| {
        black_box(implicit((&x, &w), |(x, w)| chain(&x.matmul(w.t())?, ops))?);
        Ok(())
    })?;
    ceilings.time("trace/handlers", 800, |ops| {
        let products = |(x, w): (Array, Array)| (0..ops).try_fold(x, |x, _| Ok::<_, Error>(x.matmul(w.t())?));
        black_box(implicit((&x, &w), products)?);
        Ok(())
    })?;
    ceilings.time("compile", 4000, |ops| {
        black_box(compile(|x: Array| chain(&x, ops)).call(&x)?);
        Ok(())
    })?;
    // Programs that alternate with other nodes: whether two may become one asks for what lies between them.
    ceilings.time("compile/groups", 800, |ops| {
        let layers = |x: Array| {
            (0..ops).try_fold(x, |x, at| {
                Ok::<_, Error>(next(&x, at)?.add(x.sum_axis(0, true)?)?.matmul(ops::eye::<f32>(64, None, None)?)?)
            })
        };
        black_box(compile(layers).call(&x)?);
        Ok(())
    })?;
    let row = random::normal::<f32>(&[8, 1024], None, None, None)?;
    ceilings.time_within(LONGER_SLICES, "compile/slices", 1024, |slices| {
        let sum = |x: Array| {
            let parts = x.split_at_indices(&(1..slices as i32).collect::<Vec<_>>(), 1)?;
            Ok::<_, Error>(ops::concatenate(&parts.iter().map(mlx_rs::Array::exp).collect::<Result<Vec<_>, _>>()?, 1)?)
        };
        black_box(compile(sum).call(&row)?);
        Ok(())
    })?;
    ceilings.time("cond", 2400, |conds| {
        let branches = |x: Array| {
            (0..conds).try_fold(x, |x, _| {
                let positive = x.sum(None)?.gt(Array::from_f32(0.0))?;
                let [half, more] = [Array::from_f32(0.5), Array::from_f32(1.0)];
                cond(&positive, &x, |x: Array| x.multiply(&half), |x: Array| x.add(&more))?.dense()
            })
        };
        black_box(compile(branches).call(&x)?);
        Ok(())
    })?;
    ceilings.time("grad", 2000, |ops| {
        let mut gradient = grad(|x: Array| Ok::<_, Error>(chain(&x, ops)?.sum(None)?));
        black_box(gradient.call(&x)?);
        Ok(())
    })?;
    ceilings.time("vmap", 4000, |ops| {
        black_box(vmap(0, 0, |x: Array| chain(&x, ops)).call(&x)?);
        Ok(())
    })?;
    let file = scratch("parameters");
    ceilings.time("checkpoint", 4000, |leaves| {
        let one = |at: usize| Ok((format!("layers.{at}.weight"), Value::from(Array::from_f32(at as f32))));
        tacit::io::save(&file, &(0..leaves).map(one).collect::<Result<_>>()?)?;
        black_box(tacit::io::load(&file)?);
        Ok(())
    })?;
    drop(fs::remove_file(file));
    Ok(())
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tacit-ceilings-{name}-{}.safetensors", std::process::id()))
}

/// Steps that leave nothing behind, however many there are.
fn steps(ceilings: &mut Ceilings) -> Result<()> {
    let x = random::normal::<f32>(&[64, WIDTH], None, None, None)?;
    let w = weight(WIDTH)?;
    let value = Value::from(w.clone());
    let mut state = x.clone();
    ceilings.steps("undrained", 160, |steps| {
        for _ in 0..steps {
            let next = implicit((&state, &w), |(x, w)| slow(&x, &w))?.dense()?;
            transforms::async_eval([&next])?;
            // The one before it, so that never nothing is under way.
            state.eval()?;
            state = next;
        }
        Ok(())
    })?;
    state.eval()?;
    let mut decoder = Executable::builder("decoder")
        .mode(Mode::Lazy)
        .parameter("weight", Aval::new(&[WIDTH, WIDTH], Dtype::Float32))
        .input("x", Aval::from(&x))
        .resident("sum", Aval::from(&x))
        .output("y")
        .output("sum")
        .feed("sum", "sum")
        .build(|given| {
            let y = slow(given.get("x")?, given.get("weight")?)?;
            let sum = given.get("sum")?.add(&y)?;
            Ok(vec![y, sum])
        })?;
    decoder.set_parameter("weight", &value)?;
    decoder.set_input("sum", ops::zeros::<f32>(&[64, WIDTH])?)?;
    ceilings.steps("pipelined", 160, |steps| {
        let inputs = std::iter::repeat_n([x.clone()], steps);
        decoder.run_pipelined(inputs).try_for_each(|outputs| outputs.map(drop))
    })?;
    let x = random::normal::<f32>(&[1, WIDTH], None, None, None)?;
    let mut step = compile(|(x, w): (Array, Array)| x.matmul(w.t())?.sin());
    let args = (Value::from(&x), value.clone());
    ceilings.steps("compiled", 8000, |steps| {
        for _ in 0..steps {
            step.call(&args)?.dense()?.eval()?;
        }
        Ok(())
    })?;
    // Another function each time.
    ceilings.steps("traced", 800, |steps| {
        for _ in 0..steps {
            compile(|(x, w): (Array, Array)| chain(&x.matmul(w.t())?, 8)).call(&args)?.dense()?.eval()?;
        }
        Ok(())
    })?;
    ceilings.steps("interpreted", 4000, |steps| {
        for _ in 0..steps {
            implicit((&x, &w), |(x, w)| chain(&x.matmul(w.t())?, 8))?.dense()?.eval()?;
        }
        Ok(())
    })?;
    // Each maps the file.
    let file = scratch("mapped");
    tacit::io::save(&file, &[("weight".to_owned(), value)].into_iter().collect())?;
    ceilings.steps("loaded", 800, |steps| {
        for _ in 0..steps {
            black_box(tacit::io::load(&file)?);
        }
        Ok(())
    })?;
    drop(fs::remove_file(file));
    Ok(())
}

/// Tokens are written into a cache where they belong, however many are there.
fn caches(ceilings: &mut Ceilings) -> Result<()> {
    let token = random::normal::<f32>(&[1, 2, 1, 64], None, None, None)?;
    ceilings.time("cache", 4096, |tokens| {
        let mut cache = KvCache::new([1, 2, 64], Dtype::Float32)?;
        cache.reserve(tokens as i32)?;
        for _ in 0..tokens {
            cache.update(&token, &token)?;
            tree::eval(&cache)?;
        }
        Ok(())
    })
}
