//! What quantization-aware training costs a step: weights in several formats with straight-through gradients, next to float
//! ones.
//!
//! Two models: an MLP of 784-512-512-10 with a batch of 128, and a transformer block, 512 wide with 8 heads and 2048 in its
//! MLP, on 8 sequences of 256 tokens. The block is trained whole, and by adapters beside a base that stays in its format
//! (`lora`). The whole step is compiled, the optimizer with it. All formats take their steps in
//! turn, in many short rounds, so that they see the same machine; a ratio is the median of those of the rounds.
//!
//! `cargo bench --bench qat -- [--quick] [--seconds=SECONDS] [--beside=COMMAND] [filter]`. `--quick` takes some seconds.
//! `--beside` starts a program that takes steps of the same models in the same rounds, as `benches/peers/train.py` does, and
//! compares with its steps without quantization, too. Without a filter everything is run, each task for so many seconds.

#[path = "../examples/characters/block.rs"]
mod block;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::losses::{CrossEntropy, CrossEntropyBuilder, LossReduction};
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module as _, ModuleParameters};
use mlx_rs::nn::{self, MultiHeadAttention, Sequential};
use mlx_rs::optimizers::{AdamW, Optimizer, Sgd};
use mlx_rs::utils::Updatable;
use mlx_rs::{Array, ops, random};
use tacit::arrays::Int8Training;
use tacit::compile::{CompileOptions, Constants, compile_with_state};
use tacit::model::{Module, Stateful, quantized, straight_through, with_parameters};
use tacit::prelude::*;
use tacit::{Tree, tree};
use tacit_figures::{Bench, Beside, Unit};

use block::Block;

/// Seconds of a turn, which is one step at least.
const TURN: f64 = 0.02;
/// The name of weights as they are.
const FLOAT: &str = "f32";
/// The name of weights of 8 bits whose products are of integers in the forward and in the backward pass.
const INT8_TRAINING: &str = "int8-training";
/// Rounds of a case, at least.
const ROUNDS: usize = 3;

/// A model with an optimizer, the formats of its weights, and what starts to train it in one of them.
struct Case {
    name: &'static str,
    formats: [&'static str; 4],
    run: fn(&str, Option<&str>) -> Result<Run>,
}

/// The matrices of a block that get adapters.
const ADAPTED: &str = "{attention.*,up,down}.weight";

const CASES: [Case; 4] = [
    Case {
        name: "mlp/sgd",
        // Rows of 784 do not divide into MLX's groups.
        formats: ["nf4:64", "fp4:64", "int8", INT8_TRAINING],
        run: |name, format| Run::of::<Mlp, _>(name, Sgd::new(0.05), format),
    },
    Case {
        name: "block/sgd",
        formats: ["nf4:64", "affine:4:64", "int8", INT8_TRAINING],
        run: |name, format| Run::of::<Block, _>(name, Sgd::new(0.05), format),
    },
    Case {
        name: "block/adamw",
        formats: ["nf4:64", "affine:4:64", "int8", INT8_TRAINING],
        run: |name, format| Run::of::<Block, _>(name, AdamW::new(1e-4), format),
    },
    Case {
        name: "block/lora",
        formats: ["nf4:64", "fp4:64", "affine:4:64", "int8"],
        run: |name, format| Run::adapted::<Block, _>(name, AdamW::new(1e-4), format),
    },
];

/// What is trained on: inputs, and what they should become.
type Batch = (Array, Array);

/// A model with the loss that it is trained by.
trait Task: ModuleParameters + Sized + 'static {
    fn new() -> Result<Self>;
    fn batch(seed: u64) -> Result<Batch>;
    fn loss(&mut self, batch: &Batch) -> Result<Array, Exception>;
}

#[derive(Debug, ModuleParameters)]
struct Mlp {
    #[param]
    layers: Sequential,
}

impl Task for Mlp {
    fn new() -> Result<Self> {
        let layers = Sequential::new()
            .append(nn::Linear::new(784, 512)?)
            .append(nn::Relu)
            .append(nn::Linear::new(512, 512)?)
            .append(nn::Relu)
            .append(nn::Linear::new(512, 10)?);
        Ok(Self { layers })
    }

    fn batch(seed: u64) -> Result<Batch> {
        let x = random::normal::<f32>(&[128, 784], None, None, &random::key(100 + seed)?)?;
        let projections = random::normal::<f32>(&[784, 10], None, None, &random::key(99)?)?;
        let labels = ops::indexing::argmax_axis(&x.matmul(projections)?, 1, None)?;
        Ok((x, labels))
    }

    fn loss(&mut self, (x, labels): &Batch) -> Result<Array, Exception> {
        let cross_entropy: CrossEntropy<'_> = CrossEntropyBuilder::new().reduction(LossReduction::Mean).build()?;
        cross_entropy.apply(self.layers.forward(x)?, labels)
    }
}

/// How wide a block is.
const DIMS: i32 = 512;
/// What a block is trained on: sequences of tokens.
const TOKENS: [i32; 3] = [8, 256, DIMS];

impl Task for Block {
    fn new() -> Result<Self> {
        Block::new(DIMS, 8)
    }

    fn batch(seed: u64) -> Result<Batch> {
        let normal = |seed| random::normal::<f32>(&TOKENS, None, None, &random::key(seed)?);
        Ok((normal(100 + seed)?, normal(200 + seed)?))
    }

    fn loss(&mut self, (x, target): &Batch) -> Result<Array, Exception> {
        let mask = MultiHeadAttention::create_additive_causal_mask::<f32>(TOKENS[1])?;
        self.forward(x, &mask, nn::silu)?.subtract(target)?.square()?.mean(None)
    }
}

/// One way to train.
struct Run {
    name: String,
    /// Takes so many steps; the seconds of one.
    steps: Box<dyn FnMut(usize) -> Result<f64>>,
}

impl Run {
    /// Steps of ours, compiled: with weights as they are, or quantized in a format.
    fn of<T: Task, O: Optimizer + Updatable + Clone + 'static>(
        name: &str,
        optimizer: O,
        format: Option<&str>,
    ) -> Result<Self> {
        let name = format!("{name}/{}", format.unwrap_or(FLOAT));
        let both_passes = format == Some(INT8_TRAINING);
        let format: Option<AnyFormat> = format.filter(|_| !both_passes).map(str::parse).transpose()?;
        let step = move |(model, optimizer): &mut (Module<T>, Stateful<O>), batch: Batch| -> Result<Array, Exception> {
            let loss = |model: &mut T, batch: Batch| -> Result<Array, Exception> {
                let weights = match &format {
                    Some(format) => straight_through(model, |_, w| {
                        Ok(if w.ndim() == 2 { Some(format.quantize(w)?) } else { None })
                    })?,
                    None if both_passes => quantized(model, |_, w| {
                        Ok(if w.ndim() == 2 { Some(Int8Training::new(w)?.into()) } else { None })
                    })?,
                    None => return model.loss(&batch),
                };
                Ok(with_parameters(model, &weights, |model| model.loss(&batch))?.dense()?)
            };
            let (loss, gradients) = nn::value_and_grad(loss)(model, batch)?;
            optimizer.update(&mut **model, gradients)?;
            Ok(loss)
        };
        random::seed(0)?;
        Self::compiled(name, (Module::in_place(T::new()?), Stateful(optimizer)), step, T::batch)
    }

    /// Steps of adapters, compiled: beside weights as they are, or in a format.
    fn adapted<T: Task, O: Optimizer + Updatable + Clone + 'static>(
        name: &str,
        optimizer: O,
        format: Option<&str>,
    ) -> Result<Self> {
        let name = format!("{name}/{}", format.unwrap_or(FLOAT));
        random::seed(0)?;
        let mut model = Model::new(T::new()?)?;
        if let Some(format) = format {
            model = model.quantize(ADAPTED, format)?;
        }
        let model = model.lora(ADAPTED, LoraConfig { rank: 16, ..LoraConfig::default() })?;
        let step = |(model, optimizer): &mut (Model<T>, Stateful<O>), batch: Batch| -> Result<Array> {
            let loss = |model: &mut Model<T>, batch: Batch| model.run(|module| module.loss(&batch));
            let (loss, gradients) = model.value_and_grad(ParameterFilter::Lora, batch, loss)?;
            model.update(optimizer, &gradients)?;
            Ok(loss)
        };
        Self::compiled(name, (model, Stateful(optimizer)), step, T::batch)
    }

    /// Steps of a compiled function on a state.
    fn compiled<S: Tree + 'static, E: Into<Error>>(
        name: String,
        mut training: S,
        step: impl FnMut(&mut S, Batch) -> Result<Array, E> + 'static,
        batch: fn(u64) -> Result<Batch>,
    ) -> Result<Self> {
        let batches: Vec<Batch> = (0..4).map(batch).collect::<Result<_>>()?;
        tree::eval(&batches)?;
        let options =
            CompileOptions { name: name.as_str().into(), constants: Constants::Deny, ..CompileOptions::default() };
        let mut step = compile_with_state(options, step);
        let steps = Box::new(move |count: usize| {
            let start = Instant::now();
            for (x, target) in batches.iter().cycle().take(count) {
                let loss = step.call(&mut training, (x, target))?.dense()?;
                tree::eval(&(&training, &loss))?;
            }
            Ok(start.elapsed().as_secs_f64() / count as f64)
        });
        Ok(Self { name, steps })
    }

    /// Steps of another program, if it knows this name.
    fn beside(peer: &Rc<RefCell<Beside>>, name: &str) -> Result<Option<Self>> {
        // The first step compiles.
        if answered(peer.borrow_mut().seconds(name, 1))?.is_none() {
            return Ok(None);
        }
        let (peer, asked) = (Rc::clone(peer), name.to_owned());
        let steps = Box::new(move |count| Ok(answered(peer.borrow_mut().seconds(&asked, count))?.unwrap_or(f64::NAN)));
        Ok(Some(Self { name: format!("{name}, the program beside"), steps }))
    }

    /// Takes turns of several steps, as many as fit.
    fn turns(mut self) -> Result<impl FnMut() -> Result<f64>> {
        (self.steps)(1)?;
        let count = ((TURN / (self.steps)(2)?) as usize).max(1);
        Ok(move || (self.steps)(count))
    }
}

/// What the program beside answers, as an error of ours.
fn answered<T>(answer: io::Result<T>) -> Result<T> {
    answer.map_err(|error| {
        Error::invalid(error.to_string(), "give `--beside` a program and its arguments, as `benches/peers` says")
    })
}

impl Case {
    fn measure(&self, bench: &Bench, peer: Option<&Rc<RefCell<Beside>>>, seconds: f64) -> Result<()> {
        let formats = [None].into_iter().chain(self.formats.map(Some));
        let mut runs: Vec<Run> = formats.clone().map(|format| (self.run)(self.name, format)).collect::<Result<_>>()?;
        let own = runs.len();
        for format in formats.filter(|_| peer.is_some()) {
            let name = format!("{}/{}", self.name, format.unwrap_or(FLOAT));
            runs.extend(peer.map(|peer| Run::beside(peer, &name)).transpose()?.flatten());
        }
        let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
        let mut turns = bench.turns().within(Duration::from_secs_f64(seconds), ROUNDS);
        for (name, run) in names.iter().zip(runs) {
            turns = turns.measure(name, run.turns()?);
        }
        let rounds = turns.take()?;
        for (at, name) in names.iter().enumerate() {
            // The peer's float step, where there is one, is what all are compared with beside our own.
            for base in [&names[0]].into_iter().chain(names.get(own)).filter(|base| at < own || *base != name) {
                rounds.record_of(name, name, base, Unit::rate("steps/s", 1.0));
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let bench = tacit_figures::bench!("qat");
    let mut seconds = 30.0;
    for argument in std::env::args().skip(1) {
        if let Some(text) = argument.strip_prefix("--seconds=") {
            seconds = text.parse().unwrap_or(seconds);
        }
    }
    let peer = answered(Beside::given())?.map(|beside| Rc::new(RefCell::new(beside)));
    let wanted = CASES.iter().filter(|case| bench.wants(case.name));
    wanted.into_iter().try_for_each(|case| case.measure(&bench, peer.as_ref(), seconds))
}
