//! The decoder of `examples/generate` on tiny checkpoints of each architecture, beside what mlx-lm's models made of them
//! (`examples/generate/golden/make.py`).

#[path = "../../examples/generate/config.rs"]
#[allow(dead_code, reason = "the example has more uses for it")]
mod config;
#[path = "../../examples/generate/decoder.rs"]
mod decoder;
#[path = "../../examples/generate/experts.rs"]
mod experts;
#[path = "../../examples/generate/keys.rs"]
mod keys;
#[path = "../../examples/generate/load.rs"]
mod load;
#[path = "../../examples/generate/rope.rs"]
mod rope;

mod golden;
mod refused;
