//! Implicit arrays over several processes, on MLX's own distributed engine.
//!
//! A [`Group`] is the processes that compute together. Its collectives are primitives in the graph: lazy, differentiated,
//! mapped and compiled like any other. [`Sharded`] is an array of which each process holds a part; plain code that
//! multiplies by it becomes tensor-parallel. [`FullySharded`] is a value that is gathered where an op uses it. [`save_run`] and
//! [`load_run`] save a run and go on with it, on any number of processes.

// The macros' output names the core as the facade does.
extern crate tacit_core as tacit;

mod agreement;
mod backend;
mod checkpoint;
mod clip;
mod current;
mod fully_shard;
mod fully_sharded;
mod group;
mod guard;
mod init;
mod layout;
mod mean;
mod members;
mod named;
mod options;
mod pauses;
mod placed;
mod put_in_parts;
mod random;
mod said;
mod sentinel;
mod shard;
mod sharded;
mod split;
#[cfg(test)]
mod tests;
mod watch;

pub use backend::Backend;
pub use checkpoint::{load_run, save_run};
pub use fully_shard::FullyShard;
pub use fully_sharded::FullySharded;
pub use group::{Group, Traffic};
pub use guard::NOT_JOINED;
pub use options::GroupOptions;
pub use shard::{Shard, Split, split_heads};
pub use sharded::Sharded;
