//! Calibration: codes for a weight from what was observed of its inputs.

pub(crate) mod awq;
mod best;
pub(crate) mod calibrate;
mod coder;
pub(crate) mod corrected;
pub(crate) mod gptq;
mod hessian;
mod refit;
pub(crate) mod weighted;
