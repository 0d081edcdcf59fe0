//! Adapters: arrays of a frozen base and a trainable change beside it.

pub(crate) mod as_merged;
pub(crate) mod as_stored;
pub(crate) mod dora;
pub(crate) mod factors;
pub(crate) mod lora;
pub(crate) mod lora_set;
pub(crate) mod merge;
pub(crate) mod qa_lora;
