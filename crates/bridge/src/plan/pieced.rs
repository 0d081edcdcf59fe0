//! Stages that follow each other one piece of their elements after the other.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::memory::{Bases, Dense, Place, input, output};
use crate::callback::PanicError;
use crate::error::BoxError;
use crate::kernel::EvalPiece;

/// The threads that share the pieces of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    /// How many may work at once.
    pub count: fn() -> usize,
    /// `run(threads, tasks, task)` calls the task with each number below `tasks` once, on at most so many threads.
    pub run: fn(usize, usize, &(dyn Fn(usize) + Sync)),
}

/// What the time of such stages counts for.
pub(super) const NAME: &str = "Pieces";

/// Stages of a plan that run together.
pub(super) struct Pieced {
    pub(super) stages: Range<usize>,
    pub(super) steps: Vec<Step>,
    pub(super) elements: usize,
    /// The elements of each piece but the last.
    pub(super) piece: usize,
    pub(super) threads: Threads,
    /// How many of them work, each with memory of its own for what the stages leave to each other.
    pub(super) slots: usize,
}

/// One of the stages.
pub(super) struct Step {
    pub(super) eval: Box<EvalPiece>,
    pub(super) inputs: Vec<Part>,
    pub(super) outputs: Vec<Part>,
}

/// Where the pieces of an array lie, or an array that each piece takes whole.
pub(super) struct Part {
    /// The first, or that of the first thread.
    pub(super) first: Place,
    /// What the last one is.
    pub(super) last: Dense,
    /// The bytes from each to the next.
    pub(super) step: usize,
    /// The bytes from that of a thread to that of the next thread.
    pub(super) slot: usize,
}

impl Pieced {
    /// Runs the stages. It gives the number of the first one that failed, and what that said of the first elements at which it did.
    ///
    /// # Safety
    ///
    /// As for the stages themselves, one after the other: what they read and what they write is within its memory, and apart.
    pub(super) unsafe fn run(&self, bases: &Bases<'_>) -> Result<(), (usize, BoxError)> {
        let pieces = self.elements.div_ceil(self.piece);
        let (arrived, next) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let failed = Mutex::new(None::<((usize, usize), BoxError)>);
        (self.threads.run)(self.slots, self.slots, &|_| {
            // Whatever number the task is called with: nobody else may have its memory.
            let slot = arrived.fetch_add(1, Ordering::Relaxed);
            if slot >= self.slots {
                return;
            }
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= pieces {
                    break;
                }
                // SAFETY: as the caller promises; each piece is taken once, and each slot is one call's.
                if let Err((step, error)) = unsafe { self.run_piece(bases, piece, slot) } {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|(first, _)| (step, piece) < *first) {
                        *failed = Some(((step, piece), error));
                    }
                }
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(((step, _), error)) => Err((self.stages.start + step, error)),
            None => Ok(()),
        }
    }

    /// # Safety
    ///
    /// As for `run`; nobody else computes this piece, or uses this slot meanwhile.
    unsafe fn run_piece(&self, bases: &Bases<'_>, piece: usize, slot: usize) -> Result<(), (usize, BoxError)> {
        let begin = piece * self.piece;
        let elements = begin..self.elements.min(begin + self.piece);
        let is_last = elements.end == self.elements;
        let at = |part: &Part| bases.at(&part.first).wrapping_add(piece * part.step + slot * part.slot);
        let (mut read, mut written) = (Vec::new(), Vec::new());
        for (number, step) in self.steps.iter().enumerate() {
            // SAFETY: as the caller promises. The slices end with the step.
            unsafe {
                read.extend(step.inputs.iter().map(|part| input(at(part), part.array(is_last))));
                written.extend(step.outputs.iter().map(|part| output(at(part), part.array(is_last), true)));
            }
            let done = catch_unwind(AssertUnwindSafe(|| (step.eval)(elements.clone(), &read, &mut written)));
            let done = done.unwrap_or_else(|payload| Err(PanicError::from_payload(&*payload).into()));
            done.map_err(|error| (number, error))?;
            read.clear();
            written.clear();
        }
        Ok(())
    }
}

impl Part {
    fn array(&self, is_last: bool) -> &Dense {
        if is_last { &self.last } else { &self.first.array }
    }
}
