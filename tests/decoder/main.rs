//! The decoders of `tacit-models` on tiny checkpoints of each architecture, beside what mlx-lm's models made of them
//! (`tests/decoder/golden/make.py`).

mod caches;
mod explained;
mod fp8;
mod gguf;
mod golden;
mod halves;
mod hybrid;
mod losses;
mod refused;
mod twice;
mod variants;
