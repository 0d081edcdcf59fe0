//! What may happen to a model, and what has to hold then.

use std::collections::BTreeSet;
use std::fmt::Display;

use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::optimizers::Sgd;
use mlx_rs::{Array, Dtype, ops, random};
use proptest::prelude::*;
use proptest::sample::select;
use tacit::arrays::{ActivationGranularity, Adapter, AsStored, Awq, Dora, Gptq, ScaledChannels};
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::format::AnyFormat;
use tacit::io::Training;
use tacit::model::{LoraConfig, Method, Missing, Model, Observations, ParameterFilter, Parameters, Pattern, QatConfig};
use tacit::{Error, Policy, Result, Value};

use crate::held::{Held, bytes, distance};
use crate::net::{Net, tokens};

#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Quantize { pattern: &'static str, format: &'static str },
    Prepare { pattern: &'static str, format: &'static str, scales: bool, int8: bool },
    Convert,
    Switch(bool),
    Lora { pattern: &'static str, method: Method, stored: Option<&'static str>, dropout: bool },
    Merge(Option<&'static str>),
    MergeAndBack(Option<&'static str>),
    Without,
    Sets { chosen: u32 },
    Freeze(bool),
    Cast { pattern: &'static str, dtype: Dtype },
    Hold,
    Int8(&'static str),
    Set { path: &'static str, good: bool },
    Replace { fails_at: usize },
    Fail,
    Step { trained: Trained, compiled: bool },
    Observe { pattern: &'static str, format: &'static str, awq: bool },
    Leaves { good: bool },
    Saved,
    SavedRun(Trained),
    TornRun(Trained),
    Tie,
    Training(bool),
    Thread,
    Compile,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Trained {
    Default,
    All,
    Dense,
    Lora,
    Scales,
    Masters,
}

impl Trained {
    fn filter(self) -> ParameterFilter {
        match self {
            Self::Default => ParameterFilter::default(),
            Self::All => ParameterFilter::All,
            Self::Dense => ParameterFilter::Dense,
            Self::Lora => ParameterFilter::Lora,
            Self::Scales => ParameterFilter::Scales,
            Self::Masters => ParameterFilter::Masters,
        }
    }
}

const PATTERNS: &[&str] =
    &["*", "*.weight", "up.*", "down.weight", "embedding.weight", "head.weight", "up.bias", "no.*"];
const FORMATS: &[&str] = &[
    "nf4:64",
    "nf4:32+double",
    "affine:4:64",
    "affine:8:32",
    "affine:2:64",
    "int8:64",
    "fp4:64",
    "mxfp4",
    "nvfp4",
    "binary:64",
    "bf16",
    "nf4:100",
    "f4",
];

fn trained() -> impl Strategy<Value = Trained> {
    select(&[Trained::Default, Trained::All, Trained::Dense, Trained::Lora, Trained::Scales, Trained::Masters][..])
}

pub(crate) fn verb() -> impl Strategy<Value = Verb> {
    let (pattern, format) = (|| select(PATTERNS), || select(FORMATS));
    let stored = || proptest::option::of(format());
    let method = select(&[Method::Lora, Method::Dora, Method::QaLora][..]);
    let dtype = select(&[Dtype::Bfloat16, Dtype::Float16, Dtype::Float32][..]);
    let path = select(&["up.weight", "down.weight", "norm.weight", "head.weight", "no"][..]);
    prop_oneof![
        3 => (pattern(), format()).prop_map(|(pattern, format)| Verb::Quantize { pattern, format }),
        3 => (pattern(), format(), any::<bool>(), any::<bool>())
            .prop_map(|(pattern, format, scales, int8)| Verb::Prepare { pattern, format, scales, int8 }),
        2 => Just(Verb::Convert),
        1 => any::<bool>().prop_map(Verb::Switch),
        4 => (pattern(), method, stored(), any::<bool>())
            .prop_map(|(pattern, method, stored, dropout)| Verb::Lora { pattern, method, stored, dropout }),
        2 => stored().prop_map(Verb::Merge),
        2 => stored().prop_map(Verb::MergeAndBack),
        1 => Just(Verb::Without),
        1 => (0u32..4).prop_map(|chosen| Verb::Sets { chosen }),
        1 => any::<bool>().prop_map(Verb::Freeze),
        1 => (pattern(), dtype).prop_map(|(pattern, dtype)| Verb::Cast { pattern, dtype }),
        1 => Just(Verb::Hold),
        1 => pattern().prop_map(Verb::Int8),
        1 => (path, any::<bool>()).prop_map(|(path, good)| Verb::Set { path, good }),
        1 => (0usize..4).prop_map(|fails_at| Verb::Replace { fails_at }),
        1 => Just(Verb::Fail),
        3 => (trained(), any::<bool>()).prop_map(|(trained, compiled)| Verb::Step { trained, compiled }),
        2 => (pattern(), format(), any::<bool>()).prop_map(|(pattern, format, awq)| Verb::Observe { pattern, format, awq }),
        1 => any::<bool>().prop_map(|good| Verb::Leaves { good }),
        2 => Just(Verb::Saved),
        2 => trained().prop_map(Verb::SavedRun),
        1 => trained().prop_map(Verb::TornRun),
        1 => Just(Verb::Tie),
        1 => any::<bool>().prop_map(Verb::Training),
        1 => Just(Verb::Thread),
        1 => Just(Verb::Compile),
    ]
}

/// A model, and what happened to it.
pub(crate) struct Life {
    model: Model<Net>,
    told: Vec<String>,
    /// Whether its products may round what they are given.
    rounds: bool,
    half: bool,
}

/// What is wrong with a model, or with what happened to it.
type Checked<T = ()> = std::result::Result<T, String>;

/// An error where none may be.
fn never<T>(result: Result<T>) -> Checked<T> {
    result.map_err(|error| format!("never an error: {error}"))
}

fn holds(what: bool, wrong: impl Display) -> Checked {
    if what { Ok(()) } else { Err(wrong.to_string()) }
}

impl Life {
    pub(crate) fn new(tied: bool) -> Result<Self> {
        let mut model = Model::new(Net::new()?)?;
        if tied {
            model = model.tie("head.weight", "embedding.weight")?;
        }
        Ok(Self { model, told: vec![format!("tied: {tied}")], rounds: false, half: false })
    }

    pub(crate) fn told(&self) -> String {
        self.told.join("; ")
    }

    pub(crate) fn live(&mut self, verb: &Verb) -> Checked {
        let before = never(Held::of(&self.model))?;
        let known = self.model.clone();
        match self.act(verb, &before)? {
            Ok(()) => {
                self.told.push(format!("{verb:?}"));
            }
            Err(error) => {
                let text = error.to_string();
                holds(text.contains("help: "), format!("an error without help: {text}"))?;
                let after = never(Held::of(&self.model))?;
                if let Some(difference) = before.changed(&after) {
                    return Err(format!("after the error \"{text}\" the model has other {difference}"));
                }
            }
        }
        // A clone shares nothing that changes.
        if let Some(difference) = before.changed(&never(Held::of(&known))?) {
            return Err(format!("a clone of before has other {difference}"));
        }
        self.check()
    }

    /// What holds of every model.
    fn check(&mut self) -> Checked {
        let (told, bytes) = (self.model.report().bytes().1, self.model.nbytes());
        holds(told == bytes, format!("the report tells of {told} bytes, and there are {bytes}"))?;
        let y = never(self.output())?;
        let expected = never(self.mirrored())?;
        let far = never(distance(&y, &expected))?;
        let most = if self.rounds {
            0.1
        } else if self.half {
            0.05
        } else {
            1e-4
        };
        holds(far <= most, format!("{far} from a dense model"))
    }

    /// What the model computes.
    fn output(&mut self) -> Result<Array> {
        let _policy = policy(&self.model)?.scope();
        let y = self.model.forward(&tokens())?;
        y.eval()?;
        Ok(y)
    }

    /// What a dense model of the same values computes.
    fn mirrored(&self) -> Result<Array> {
        let _allow = Policy::Allow.scope();
        let mut net = Net::new()?;
        for (path, slot) in net.parameters_mut().flatten() {
            *slot = self.model.used(&path)?.dense()?;
        }
        net.forward(&tokens()).map_err(Into::into)
    }

    /// Lets it happen. An outer error is a defect, an inner one is what the model's user sees.
    fn act(&mut self, verb: &Verb, before: &Held) -> Checked<Result<()>> {
        let y = never(self.output())?;
        Ok(match verb {
            Verb::Quantize { pattern, format } => self.become_other(|model| model.quantize(*pattern, *format)),
            Verb::Prepare { pattern, format, scales, int8 } => self.prepare(pattern, format, *scales, *int8),
            Verb::Convert => return self.convert(&y),
            Verb::Switch(on) => self.model.switch_quantization(*on).map(drop),
            Verb::Lora { pattern, method, stored, dropout } => {
                return self.adapt(pattern, *method, *stored, *dropout, &y);
            }
            Verb::Merge(format) => self.merge(*format).map(drop),
            Verb::MergeAndBack(format) => return self.merge_and_back(*format, before),
            Verb::Without => self.model.without_adapters().map(drop),
            Verb::Sets { chosen } => self.model.clone().without_adapters().and_then(|set| {
                self.model.adapter_sets(&[set.clone(), set])?;
                self.model.choose_adapters(&Array::from_slice(&[*chosen], &[]))
            }),
            Verb::Freeze(true) => {
                self.model.freeze_parameters(true);
                holds(self.model.all_frozen() == Some(true), "not all is frozen")?;
                Ok(())
            }
            Verb::Freeze(false) => {
                self.model.unfreeze_parameters(true);
                Ok(())
            }
            Verb::Cast { pattern, dtype } => self.cast(pattern, *dtype),
            Verb::Hold => self.model.hold_halves().map(drop),
            Verb::Int8(pattern) => {
                let rounded = self.model.int8_activations(*pattern);
                self.rounds |= rounded.is_ok();
                rounded.map(drop)
            }
            Verb::Set { path, good } => return self.set(path, *good),
            Verb::Replace { fails_at } => self.replace(*fails_at),
            Verb::Fail => self.fail(),
            Verb::Step { trained, compiled } => return self.step(*trained, *compiled),
            Verb::Observe { pattern, format, awq } => return self.observe(pattern, format, *awq, before),
            Verb::Leaves { good } => return self.set_leaves(*good),
            Verb::Saved => return self.save(&y).map(Ok),
            Verb::SavedRun(trained) => return self.save_run(*trained, &y),
            Verb::TornRun(trained) => return self.restore_torn(*trained),
            Verb::Tie => self.become_other(|model| model.tie("head.weight", "embedding.weight")),
            Verb::Training(on) => {
                self.model.training_mode(*on);
                Ok(())
            }
            Verb::Thread => return self.run_elsewhere(&y).map(Ok),
            Verb::Compile => return self.run_compiled(&y).map(Ok),
        })
    }

    fn prepare(&mut self, pattern: &str, format: &str, scales: bool, int8: bool) -> Result<()> {
        let config = QatConfig::new(format.parse::<AnyFormat>()?);
        let config = if scales { config.trained_scales() } else { config };
        let config = if int8 { config.int8_activations(ActivationGranularity::Token) } else { config };
        self.become_other(|model| model.prepare(pattern, config))?;
        self.rounds |= int8;
        Ok(())
    }

    fn convert(&mut self, y: &Array) -> Checked<Result<()>> {
        let made = self.model.convert().map(drop);
        if made.is_ok() {
            let after = never(self.output())?;
            holds(never(bytes(y))? == never(bytes(&after))?, "a converted model computes something else")?;
        }
        Ok(made)
    }

    fn adapt(
        &mut self,
        pattern: &str,
        method: Method,
        stored: Option<&'static str>,
        dropout: bool,
        y: &Array,
    ) -> Checked<Result<()>> {
        let dropout = if dropout { 0.5 } else { 0.0 };
        let config = LoraConfig { rank: 4, method, dropout, ..LoraConfig::default() };
        let config = match stored {
            None => Ok(config),
            Some(format) => format.parse::<AnyFormat>().map(|format| config.as_stored(format)),
        };
        let made = config.and_then(|config| self.become_other(|model| model.lora(pattern, config)));
        if made.is_ok() && stored.is_none() {
            let far = never(distance(&never(self.output())?, y))?;
            holds(far <= self.tolerance(1e-4), format!("an adapter that is not trained moves by {far}"))?;
        }
        Ok(made)
    }

    fn merge_and_back(&mut self, format: Option<&str>, before: &Held) -> Checked<Result<()>> {
        let report = match self.merge(format) {
            Ok(report) => report,
            Err(error) => return Ok(Err(error)),
        };
        holds(report.worst().is_finite(), format!("a loss that is no number: {report}"))?;
        never(self.output())?;
        never(self.model.unmerge(report))?;
        let differs = before.differs(&never(Held::of(&self.model))?);
        differs.map_or(Ok(Ok(())), |difference| Err(format!("merged and unmerged, there are other {difference}")))
    }

    fn cast(&mut self, pattern: &str, dtype: Dtype) -> Result<()> {
        self.half |= dtype != Dtype::Float32;
        let cast = |_: &str, value: Value| match value {
            Value::Dense(array) if array.dtype().is_float() => Ok(Some(array.as_dtype(dtype)?.into())),
            _ => Ok(None),
        };
        self.model.replace(pattern, cast).map(drop)
    }

    fn set(&mut self, path: &str, good: bool) -> Checked<Result<()>> {
        let own = match self.model.get(path) {
            Ok(value) => never(value.aval())?.shape,
            Err(_) => vec![4, 4],
        };
        let shape = if good { own } else { vec![3, 5] };
        let array = random::key(5).and_then(|key| random::normal::<f32>(&shape, None, 0.1, &key));
        let set = self.model.set(path, never(array.map_err(Error::from))?);
        holds(good || set.is_err(), "a parameter took another shape")?;
        Ok(set)
    }

    fn replace(&mut self, fails_at: usize) -> Result<()> {
        let mut seen = 0;
        let replaced = self.model.replace("*.weight", |_, value| {
            seen += 1;
            if seen > fails_at { Err(Error::invalid("not this one", "try again")) } else { Ok(Some(value)) }
        });
        replaced.map(drop)
    }

    /// A function of the module that fails when it has assigned every parameter.
    fn fail(&mut self) -> Result<()> {
        let failed = self.model.run(|net| {
            let y = net.forward(&tokens())?;
            for (_, slot) in net.parameters_mut().flatten() {
                *slot = ops::zeros_like(&*slot)?;
            }
            y.reshape(&[7])
        });
        failed.map(drop)
    }

    fn observe(&mut self, pattern: &str, format: &str, awq: bool, before: &Held) -> Checked<Result<()>> {
        let seen = self.model.observe(pattern, |model| model.forward(&tokens()));
        if let Ok(seen) = &seen {
            self.observe_in_groups(pattern, seen)?;
        }
        if let Some(difference) = before.changed(&never(Held::of(&self.model))?) {
            return Err(format!("a model that was observed has other {difference}"));
        }
        Ok(seen.and_then(|seen| {
            self.become_other(|model| {
                if awq {
                    model.quantize_observed(pattern, format, &seen, &Awq::default())
                } else {
                    model.quantize_observed(pattern, format, &seen, &Gptq::default())
                }
            })
        }))
    }

    /// The same is seen in groups, and, but for rounding, where squares alone are recorded.
    fn observe_in_groups(&mut self, pattern: &str, all: &Observations) -> Checked {
        for paths in never(self.model.observation_groups(pattern, 4 * 2 * 64 * 64))? {
            let own = Pattern::any(&paths);
            let group = never(self.model.observe(own.clone(), |model| model.forward(&tokens())))?;
            let squares = never(self.model.observe_squares(own, |model| model.forward(&tokens())))?;
            let count = paths.len();
            holds(
                [&group, &squares].iter().all(|seen| seen.paths().count() == count),
                "more than a group is observed",
            )?;
            for path in &paths {
                let (Ok(seen), Ok(squares)) = (group.get(path), squares.get(path)) else {
                    holds(all.get(path).is_err(), format!("{path} is not seen in its group"))?;
                    continue;
                };
                let all = never(all.get(path))?;
                let [found, expected] = [seen, all].map(|seen| seen.gram().and_then(bytes));
                holds(never(found)? == never(expected)?, format!("{path} is seen otherwise in its group"))?;
                let [found, expected] = [squares, all].map(|seen| never(seen.mean_squares()));
                let far = never(distance(&found?, &expected?))?;
                holds(far <= 1e-5, format!("the squares of {path} are {far} apart"))?;
            }
        }
        Ok(())
    }

    fn set_leaves(&mut self, good: bool) -> Checked<Result<()>> {
        let leaves = self.model.leaves(&ParameterFilter::All).into_iter();
        let mut leaves: Vec<_> = leaves.map(|(path, array)| (path, array.clone())).collect();
        if !good && let Some(last) = leaves.last_mut() {
            last.1 = Array::from_slice(&[1u8, 2], &[2]);
        }
        let set = self.model.set_leaves(leaves);
        holds(set.is_ok() == good, "leaves of its own are taken, and no others")?;
        Ok(set)
    }

    /// A file of all values is this model again.
    fn save(&self, y: &Array) -> Checked {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("model.safetensors");
        let values = never(self.model.values())?;
        never(tacit::io::save(&file, &values))?;
        let read = never(tacit::io::load(&file))?;
        holds(read.keys().eq(values.keys()), "a file has other parameters")?;
        let mut other = self.model.clone();
        never(other.assign(never(zeros(&values))?, Missing::Refuse))?;
        never(other.assign(read, Missing::Refuse))?;
        self.same(other, y, "read again")
    }

    /// A run with some of its leaves makes this model of one in which they are zero.
    fn save_run(&self, trained: Trained, y: &Array) -> Checked<Result<()>> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("run.safetensors");
        let run = Training::new(3).with_model(&self.model, &trained.filter());
        let run = match run.and_then(|run| run.with_optimizer(&Sgd::new(0.1))) {
            Ok(run) => run,
            Err(error) => return Ok(Err(error)),
        };
        never(run.save(&file))?;
        let mut other = self.model.clone();
        let leaves = other.lasting_leaves(&trained.filter()).into_iter();
        let zeros = leaves.map(|(path, array)| Ok((path, ops::zeros_like(array)?)));
        let zeros = never(zeros.collect::<Result<Vec<_>>>())?;
        never(other.set_leaves(zeros))?;
        never(never(Training::load(&file))?.restore_model(&mut other))?;
        self.same(other, y, "restored")?;
        Ok(Ok(()))
    }

    /// Leaves of adapters, and a model of zeros that has none.
    fn restore_torn(&mut self, trained: Trained) -> Checked<Result<()>> {
        let mut run = match Training::new(3).with_model(&self.model, &trained.filter()) {
            Ok(run) => run,
            Err(error) => return Ok(Err(error)),
        };
        run.parameters = never(self.model.values().and_then(|values| zeros(&values)))?;
        let mut other = self.model.clone();
        let restored = run.restore_model(&mut other);
        if restored.is_err() {
            self.model = other;
        }
        Ok(restored)
    }

    fn run_elsewhere(&self, y: &Array) -> Checked {
        let mut model = self.model.clone();
        never(model.eval())?;
        let there = std::thread::spawn(move || -> Result<Vec<u8>> {
            let _policy = policy(&model)?.scope();
            bytes(&model.forward(&tokens())?)
        });
        let there = there.join().map_err(|_| "another thread panics")?;
        holds(never(there)? == never(bytes(y))?, "another thread computes something else")
    }

    fn run_compiled(&self, y: &Array) -> Checked {
        let mut step = compile_with_state(CompileOptions::default(), |model: &mut Model<Net>, tokens: Array| {
            model.forward(&tokens)
        });
        let mut model = self.model.clone();
        for _ in 0..2 {
            let compiled = never(step.call(&mut model, tokens()).and_then(|y| y.dense()))?;
            let far = never(distance(&compiled, y))?;
            holds(far <= self.tolerance(1e-5), format!("compiled, it computes {far} apart"))?;
        }
        Ok(())
    }

    /// How far two ways to compute the same may be from each other, which is `least` where nothing is rounded.
    fn tolerance(&self, least: f32) -> f32 {
        if self.half || self.rounds { 0.05 } else { least }
    }

    fn become_other(&mut self, f: impl FnOnce(Model<Net>) -> Result<Model<Net>>) -> Result<()> {
        self.model = f(self.model.clone())?;
        Ok(())
    }

    fn merge(&mut self, format: Option<&str>) -> Result<tacit::model::MergeReport> {
        match format {
            Some(format) => self.model.merge(format),
            None => self.model.merge_exactly(),
        }
    }

    /// That another model is this one, and computes the same.
    fn same(&self, mut other: Model<Net>, y: &Array, how: &str) -> Checked {
        let (own, of) = (never(Held::of(&self.model))?, never(Held::of(&other))?);
        // What is frozen is not in the file.
        let differs = own.holds_other(&of).map(|difference| format!("{how}, it has other {difference}"));
        differs.map_or(Ok(()), Err)?;
        let _policy = never(policy(&other))?.scope();
        let there = never(other.forward(&tokens()).map_err(Into::into).and_then(|y| bytes(&y)))?;
        holds(there == never(bytes(y))?, format!("{how}, it computes something else"))
    }

    /// A step of training.
    fn step(&mut self, trained: Trained, compiled: bool) -> Checked<Result<()>> {
        let key = never(random::key(11).map_err(Into::into))?;
        let dropped = self.model.drop_features(Some(&key));
        if let Err(error) = dropped {
            return Ok(Err(error));
        }
        let before = never(Held::of(&self.model))?;
        let mut optimizer = Sgd::new(0.01);
        let loss = |model: &mut Model<Net>, tokens: Array| model.forward(&tokens)?.square()?.mean(None);
        let mut plain = self.model.clone();
        let of = |model: &mut Model<Net>| {
            // Outside of products the gradient of scales of codes is that of a dense array.
            let builds = matches!(trained, Trained::Scales | Trained::All);
            let _policy = if builds { Policy::Allow } else { policy(model)? }.scope();
            model.value_and_grad(trained.filter(), tokens(), loss)
        };
        let stepped = of(&mut plain).and_then(|(value, gradients)| {
            plain.update(&mut optimizer, &gradients)?;
            plain.eval()?;
            Ok((value, gradients.into_keys().map(|path| path.to_string()).collect::<BTreeSet<_>>()))
        });
        let (value, moved) = match stepped {
            Ok(stepped) => stepped,
            Err(error) => {
                // The key is what was changed.
                never(self.model.drop_features(None))?;
                return Ok(Err(error));
            }
        };
        if compiled {
            let mut optimizer = Sgd::new(0.0);
            let mut step = compile_with_state(CompileOptions::default(), |model: &mut Model<Net>, tokens: Array| {
                let (value, gradients) = model.value_and_grad(trained.filter(), tokens, loss)?;
                model.update(&mut optimizer, &gradients)?;
                Ok::<_, Error>(value)
            });
            let mut model = self.model.clone();
            for _ in 0..2 {
                let y = never(step.call(&mut model, tokens()).and_then(|y| y.dense()))?;
                let far = never(distance(&y, &value))?;
                holds(far <= self.tolerance(1e-4), format!("compiled, the loss is {far} apart"))?;
            }
        }
        let after = never(Held::of(&plain))?;
        let differing = before.moved(&after);
        if let Some(path) = differing.difference(&moved).next() {
            return Err(format!("the leaf {path} was moved without a gradient"));
        }
        self.model = plain;
        never(self.model.drop_features(None))?;
        Ok(Ok(()))
    }
}

/// No dense array is built but those of vectors, which are repeated along other axes, and of sums of any kind, which are
/// quantized again, or whose rows are measured.
fn policy(model: &Model<Net>) -> Result<Policy> {
    let is_built = |value: &Value| {
        let vector = value.is_implicit() && value.aval()?.shape.len() < 2;
        let measured = value.downcast::<Dora>().is_some_and(|dora| dora.base().downcast::<ScaledChannels>().is_some());
        Ok::<_, Error>(vector || measured || value.downcast::<AsStored>().is_some())
    };
    let built = model.values()?.values().map(is_built).collect::<Result<Vec<_>>>()?;
    Ok(if built.contains(&true) { Policy::Allow } else { Policy::Deny })
}

/// Dense zeros in the place of values.
fn zeros(values: &Parameters) -> Result<Parameters> {
    let zeros = values.iter().map(|(path, value)| {
        let aval = value.aval()?;
        Ok((path.clone(), ops::zeros_dtype(&aval.shape, aval.dtype)?.into()))
    });
    zeros.collect()
}
