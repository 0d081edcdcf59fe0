//! Weights that are quantized in the forward pass and trained in floats.

pub(crate) mod int8_inputs;
pub(crate) mod prepared;
pub(crate) mod saved;
pub(crate) mod ste;
