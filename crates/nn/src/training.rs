//! Parts of a training loop beside the model: the rate of a step, what becomes of gradients before it, and when to stop.
//!
//! Each is a value or a function that a loop calls; none of them runs the loop.

mod accumulated;
mod clip;
mod early_stopping;
mod schedule;

pub use accumulated::Accumulated;
pub use clip::clip_by_norm;
pub use early_stopping::{EarlyStopping, Verdict};
pub use schedule::Schedule;
