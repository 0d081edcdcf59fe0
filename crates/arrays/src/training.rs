//! Weights that are quantized in the forward pass and trained, in floats or as their codes, and what is known of their inputs.

pub(crate) mod calibration;
pub(crate) mod int8_inputs;
pub(crate) mod int8_training;
pub(crate) mod observation;
pub(crate) mod observed;
pub(crate) mod prepared;
mod recorder;
pub(crate) mod saved;
pub(crate) mod saved_inputs;
pub(crate) mod ste;
pub(crate) mod trained_codes;
