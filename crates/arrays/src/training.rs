//! Training quantized weights, as float masters or as codes, and observing their inputs for calibration.

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
