//! Low-rank adaptation of the encoder on a base of few bits: it learns to tell apart who does what to whom.

use std::collections::HashMap;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::module::FlattenedModuleParam;
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, ops, random, transforms};
use tacit::arrays::Lora;
use tacit::nn::{Parameters, quantized, with_parameters};
use tacit::format::Quantizer;

use crate::Outcome;
use crate::bert::{Batch, Bert};
use crate::pairs::{Example, HELD_OUT, TRAINING};
use crate::text::{Text, Tokens, progress};

const RANK: i32 = 8;
const ALPHA: f32 = 16.0;
const STEPS: usize = 60;
/// Examples a step.
const BATCH: usize = 16;
/// How steeply the loss tells cosines apart, as in sentence-transformers' `CoSENTLoss`.
const STEEPNESS: f32 = 20.0;

struct Adapted {
    bert: Bert,
    base: Parameters,
    factors: FlattenedModuleParam,
}

impl Adapted {
    fn new(bert: Bert, base: Parameters) -> Outcome<Self> {
        let mut factors = HashMap::new();
        for (path, w) in &base {
            let shape = w.aval()?.shape;
            let a = random::uniform::<_, f32>(-1.0, 1.0, &[RANK, shape[1]], None)?;
            factors.insert(Rc::from(format!("{path}.a")), a.divide(Array::from_f32((shape[1] as f32).sqrt()))?);
            factors.insert(Rc::from(format!("{path}.b")), ops::zeros::<f32>(&[shape[0], RANK])?);
        }
        Ok(Self { bert, base, factors })
    }
}

fn embed(bert: &mut Bert, base: &Parameters, factors: &FlattenedModuleParam, batch: &Batch) -> tacit::Result<Array> {
    let mut parameters = Parameters::new();
    for (path, w) in base {
        let factor = |name: &str| factors[format!("{path}.{name}").as_str()].clone();
        parameters.insert(path.clone(), Lora::new(w.clone(), factor("a"), factor("b"), ALPHA)?.into());
    }
    with_parameters(bert, &parameters, |bert| bert.embed(batch))?.dense()
}

/// The cosines of each example's anchor to the sentence that says the same, and to the other: `f32[2,n]`.
fn cosines(embeddings: &Array) -> Result<Array, Exception> {
    let parts = embeddings.reshape(&[3, -1, embeddings.dim(1)])?;
    let parts = parts.split_axis(&[1], 0)?;
    parts[0].multiply(&parts[1])?.sum_axis(-1, None)
}

fn loss(embeddings: &Array) -> Result<Array, Exception> {
    let cosines = cosines(embeddings)?;
    let [same, other] = [0, 1].map(|row| cosines.take_axis(Array::from_int(row), 0));
    let differences = other?.expand_dims(0)?.subtract(same?.expand_dims(1)?)?;
    let all = differences.multiply(Array::from_f32(STEEPNESS))?.logsumexp(None)?;
    ops::logaddexp(all, Array::from_f32(0.0))
}

fn rows(text: &Text, examples: &[Example]) -> Outcome<Batch> {
    let column = |of: fn(&Example) -> &String| text.tokens(&examples.iter().map(of).collect::<Vec<_>>());
    let all: Vec<Tokens> = [column(|e| &e.anchor)?, column(|e| &e.same)?, column(|e| &e.other)?].concat();
    text.batch(&all.iter().collect::<Vec<_>>())
}

/// How often a pair that says the same has a larger cosine than one that does not.
fn auc(same: &[f32], other: &[f32]) -> f64 {
    let right: usize = same.iter().map(|a| other.iter().filter(|b| a > b).count()).sum();
    right as f64 / (same.len() * other.len()) as f64
}

fn evaluate(adapted: &mut Adapted, text: &Text, examples: &[Example]) -> Outcome<(f64, f64)> {
    let (mut same, mut other) = (Vec::new(), Vec::new());
    for examples in examples.chunks(BATCH) {
        let batch = rows(text, examples)?;
        let e = embed(&mut adapted.bert, &adapted.base, &adapted.factors, &batch)?;
        let c = cosines(&e)?;
        let c = c.try_as_slice::<f32>()?;
        same.extend_from_slice(&c[..examples.len()]);
        other.extend_from_slice(&c[examples.len()..]);
    }
    let best = same.iter().chain(&other).map(|t| {
        same.iter().filter(|c| *c >= t).count() + other.iter().filter(|c| *c < t).count()
    }).max().unwrap_or(0);
    Ok((auc(&same, &other), best as f64 / (2 * same.len()) as f64))
}

pub(crate) fn finetune(bert: Bert, format: &dyn Quantizer, text: &Text) -> Outcome<()> {
    random::seed(0)?;
    let base = quantized(&bert, |path, w| {
        let linear = path.starts_with("layers") && path.ends_with("weight") && w.ndim() == 2;
        linear.then(|| format.quantize(w)).transpose()
    })?;
    let mut adapted = Adapted::new(bert, base)?;
    let (training, held_out) = (TRAINING.examples(), HELD_OUT.examples());
    println!("{} {}", training.len(), held_out.len());
    println!("train before {:?}", evaluate(&mut adapted, text, &training[..48])?);
    println!("held before {:?}", evaluate(&mut adapted, text, &held_out)?);
    let mut optimizer = Adam::new(std::env::var("LR").unwrap().parse::<f32>().unwrap());
    let bar = progress("training", STEPS, "steps")?;
    let start = std::time::Instant::now();
    for step in 0..STEPS {
        let chosen: Vec<Example> = (0..BATCH).map(|i| training[(step * BATCH + i) * 37 % training.len()].clone()).collect();
        let batch = rows(text, &chosen)?;
        let Adapted { bert, base, factors } = &mut adapted;
        let f = |factors: FlattenedModuleParam, batch: Batch| -> Result<Vec<Array>, Exception> {
            let e = embed(bert, base, &factors, &batch).map_err(|e| Exception::custom(e.to_string()))?;
            Ok(vec![loss(&e)?])
        };
        let mut vg = transforms::keyed_value_and_grad(f);
        let (value, gradients) = vg(factors.clone(), batch)?;
        drop(vg);
        for (key, gradient) in &gradients {
            optimizer.update_single(key, gradient, factors.get_mut(key).unwrap())?;
        }
        transforms::eval(factors.values().chain([&value[0]]))?;
        println!("{step} {:.3}", value[0].item_exact::<f32>()); if step % 20 == 19 {
        println!("step {step} loss {:.3} {:.1}s held {:?}", value[0].item_exact::<f32>(), start.elapsed().as_secs_f64(), evaluate(&mut adapted, text, &held_out)?);
        }
        bar.inc(1);
    }
    println!("train after {:?}", evaluate(&mut adapted, text, &training[..48])?);
    Ok(())
}
