//! Parts of a training loop beside the model: the rate of a step, losses over many classes, what becomes of gradients before
//! the step, and when to stop.
//!
//! Each is a value or a function that a loop calls; none of them runs the loop.

mod accumulated;
mod clip;
mod cross_entropy;
mod distillation;
mod early_stopping;
mod schedule;

pub use accumulated::Accumulated;
pub use clip::{HeldTogether, clip_by_norm, clip_by_norm_over};
pub use cross_entropy::{chunked_cross_entropy, cross_entropy};
pub use distillation::distillation_loss;
pub use early_stopping::{EarlyStopping, Verdict};
pub use schedule::Schedule;
