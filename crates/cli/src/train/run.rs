//! The steps of a run.

use std::cell::RefCell;
use std::time::Instant;

use mlx_rs::builder::Builder;
use mlx_rs::module::FlattenedModuleParam;
use mlx_rs::optimizers::{AdamW, AdamWBuilder};
use mlx_rs::{Array, memory};
use tacit_bridge::process::give_back_memory;
use tacit_core::{Error, Result, tree};
use tacit_models::{Batch, Config, Decoder, Rows, checkpointed_token_losses, token_losses};
use tacit_nn::training::{Accumulated, clip_by_norm};
use tacit_nn::{Model, QuantizedState, Rules};

use super::options::{MomentBits, Plan};
use super::saved::Saved;
use crate::output::{Failure, Output};

pub(super) struct Run<'r> {
    pub(super) config: &'r Config,
    pub(super) rows: &'r Rows,
    /// Rows that are not learned.
    pub(super) others: Option<&'r Rows>,
    pub(super) plan: &'r Plan,
    /// The epoch of the last step, and the order of its rows, which takes a sort of them all.
    pub(super) order: RefCell<Option<(u64, Vec<usize>)>>,
}

pub(super) struct Ended {
    pub(super) resumed: u64,
    pub(super) loss: Option<f64>,
    pub(super) evaluated: Option<f64>,
    pub(super) allocator_peak_bytes: usize,
}

struct Step {
    loss: f64,
    norm: f64,
    /// Tokens that were learned.
    tokens: usize,
}

impl Run<'_> {
    /// Makes the steps that are not made yet.
    pub(super) fn run(
        &self,
        model: &mut Model<Decoder>,
        saved: &mut Saved,
        output: &mut Output,
    ) -> Result<Ended, Failure> {
        let plan = self.plan;
        let mut optimizer = self.optimizer()?;
        let resumed = saved.restore(model, &mut optimizer)?;
        let mut ended = Ended { resumed, loss: None, evaluated: None, allocator_peak_bytes: 0 };
        memory::reset_peak_memory().map_err(Error::from)?;
        if resumed == 0 {
            output.piece(&line(["step", "loss", "rate", "norm", "tokens/s"]))?;
            self.evaluated(0, model, saved, output)?;
        }
        let (mut begun, mut tokens) = (Instant::now(), 0);
        for done in resumed..plan.steps {
            let step = self.step(done, model, &mut optimizer)?;
            let (number, rate) = (done + 1, plan.schedule.at(done));
            saved.scalar(number, "loss", step.loss)?;
            saved.scalar(number, "rate", rate.into())?;
            saved.scalar(number, "norm", step.norm)?;
            ended.loss = Some(step.loss);
            tokens += step.tokens;
            let is_last = number == plan.steps;
            if number.is_multiple_of(plan.report_every.get()) || is_last {
                let speed = tokens as f64 / begun.elapsed().as_secs_f64();
                let texts = [
                    number.to_string(),
                    format!("{:.4}", step.loss),
                    format!("{rate:.2e}"),
                    format!("{:.3}", step.norm),
                    format!("{speed:.0}"),
                ];
                output.piece(&line(texts.each_ref().map(String::as_str)))?;
                (begun, tokens) = (Instant::now(), 0);
            }
            if is_last {
                self.judge_last(done, model)?;
            }
            if number.is_multiple_of(plan.evaluate_every.get()) || is_last {
                ended.evaluated = self.evaluated(number, model, saved, output)?;
            }
            // A record begins to count anew.
            ended.allocator_peak_bytes = memory::peak_memory().map_err(Error::from)?.max(ended.allocator_peak_bytes);
            if number.is_multiple_of(plan.save_every.get()) || is_last {
                saved.save(number, model, &optimizer, &plan.trained)?;
            }
        }
        if resumed == plan.steps {
            ended.evaluated = self.evaluated(resumed, model, saved, output)?;
        }
        ended.allocator_peak_bytes = memory::peak_memory().map_err(Error::from)?.max(ended.allocator_peak_bytes);
        Ok(ended)
    }

    fn optimizer(&self) -> Result<QuantizedState<AdamW>> {
        let built = AdamWBuilder::new(0.0).weight_decay(self.plan.pace.decay).build();
        let optimizer = built.unwrap_or_else(|never| match never {});
        match self.plan.pace.moments {
            MomentBits::ThirtyTwo => QuantizedState::new(optimizer, &Rules::new()),
            MomentBits::Eight => QuantizedState::eight_bits(optimizer),
            MomentBits::Four => QuantizedState::four_bits(optimizer),
        }
    }

    /// One step: the gradient of the mean loss of what is learned in all its batches.
    fn step(&self, done: u64, model: &mut Model<Decoder>, optimizer: &mut QuantizedState<AdamW>) -> Result<Step> {
        let plan = self.plan;
        let batches = self.batches(done)?;
        let tokens = batches.iter().map(|rows| self.rows.learned(rows)).sum::<usize>();
        let (mut accumulated, mut loss) = (Accumulated::default(), 0.0);
        for rows in &batches {
            // The mean over batches of this is the mean over all tokens, however many of them each batch has.
            let scale = batches.len() as f32 / tokens as f32;
            let (part, gradients) = self.gradient(model, self.rows.batch(rows), scale)?;
            accumulated.add(gradients)?;
            loss += item(&part)? / batches.len() as f64;
        }
        if !loss.is_finite() {
            let message = format!("the loss of step {} is {loss}", done + 1);
            let help = "give a lower `--rate` or a longer `--warmup`; where it is the first step, check the weights";
            return Err(Error::invalid(message, help));
        }
        let (gradients, norm) = clip_by_norm(accumulated.take_mean()?, plan.pace.clip)?;
        let norm = item(&norm)?;
        if !norm.is_finite() {
            let message = format!("the gradient of step {} has a norm of {norm}", done + 1);
            let help = "give a checkpoint in bf16 or f32 where this one is in f16, or a lower `--rate`; what was saved is as it was";
            return Err(Error::invalid(message, help));
        }
        optimizer.lr = plan.schedule.array(done);
        model.update(optimizer, &gradients)?;
        tree::eval(&(&*model, &*optimizer))?;
        // The C library keeps what a step leaves, in pieces that the next one does not fit into.
        give_back_memory();
        Ok(Step { loss, norm, tokens })
    }

    /// Whether the last step, after which no other one looks at the loss, left a model that has one.
    fn judge_last(&self, done: u64, model: &mut Model<Decoder>) -> Result<()> {
        let loss = match self.batches(done)?.first() {
            Some(rows) => item(&self.sum(model, &self.rows.batch(rows))?)?,
            None => 0.0,
        };
        if loss.is_finite() {
            return Ok(());
        }
        let help = "give a lower `--rate` or a longer `--warmup`; what was saved is as it was";
        Err(Error::invalid(format!("the loss after step {}, the last one, is {loss}", done + 1), help))
    }

    /// The loss of a batch, as a sum times `scale`, and its gradient.
    fn gradient(&self, model: &mut Model<Decoder>, batch: Batch, scale: f32) -> Result<(Array, FlattenedModuleParam)> {
        let Batch { tokens, weights } = batch;
        let batch = Batch { tokens, weights: weights.multiply(Array::from_f32(scale))? };
        model.value_and_grad(self.plan.trained.clone(), &batch, |model, batch| self.sum(model, batch))
    }

    /// The rows of each batch of a step. Epochs follow each other, each in an order of its own.
    fn batches(&self, done: u64) -> Result<Vec<Vec<usize>>> {
        let (batch, accumulate) = (self.plan.pace.batch.get(), self.plan.pace.accumulate.get());
        let (count, mut order) = (self.rows.len(), self.order.borrow_mut());
        let first = done.saturating_mul((batch * accumulate) as u64);
        let mut row = |at: u64| -> Result<usize> {
            let epoch = at / count as u64;
            if order.as_ref().is_none_or(|(known, _)| *known != epoch) {
                *order = Some((epoch, self.rows.order(self.plan.seed.wrapping_add(epoch))?));
            }
            Ok(order.as_ref().map_or(0, |(_, order)| order[(at % count as u64) as usize]))
        };
        let batches = (0..accumulate as u64).map(|number| {
            let first = first + number * batch as u64;
            (first..first + batch as u64).map(&mut row).collect()
        });
        batches.collect()
    }

    /// The mean loss of what is learned in the other rows, said and recorded.
    fn evaluated(
        &self,
        number: u64,
        model: &mut Model<Decoder>,
        saved: &mut Saved,
        output: &mut Output,
    ) -> Result<Option<f64>, Failure> {
        let Some(rows) = self.others else { return Ok(None) };
        let loss = self.mean(rows, model)?;
        saved.scalar(number, "evaluated", loss)?;
        output.piece(&format!(
            "{number:>8}  a loss of {loss:.4} and a perplexity of {:.3} in the other file\n",
            loss.exp()
        ))?;
        Ok(Some(loss))
    }

    /// The mean loss of what is learned in rows.
    fn mean(&self, rows: &Rows, model: &mut Model<Decoder>) -> Result<f64> {
        let rows_of_all: Vec<usize> = (0..rows.len()).collect();
        let mut sum = 0.0;
        for part in rows_of_all.chunks(self.plan.pace.batch.get()) {
            sum += item(&self.sum(model, &rows.batch(part))?)?;
        }
        Ok(sum / rows.learned(&rows_of_all) as f64)
    }

    /// The sum of the losses of what is learned in a batch.
    fn sum(&self, model: &mut Model<Decoder>, batch: &Batch) -> Result<Array> {
        let losses = if self.plan.keeps { token_losses } else { checkpointed_token_losses };
        Ok(losses(self.config, model, &batch.tokens)?.multiply(&batch.weights)?.sum(None)?)
    }
}

/// The number that an array is, once it is computed.
fn item(array: &Array) -> Result<f64> {
    array.eval()?;
    Ok(array.item_exact::<f32>().into())
}

fn line([step, loss, rate, norm, speed]: [&str; 5]) -> String {
    format!("{step:>8}  {loss:>8}  {rate:>8}  {norm:>8}  {speed:>8}\n")
}
