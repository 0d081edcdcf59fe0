//! What a split costs, before anybody starts the ranks: bytes, messages and seconds of a collective, and of a step.
//!
//! A [`Network`] is an engine's algorithms with a latency and a bandwidth; [`Network::cost`] is the arithmetic of one
//! collective. [`Step::estimate`] puts a whole training step on two lanes, one that computes and one that sends, and says
//! how long it takes and how much of it is waiting. Nothing here talks to a group or to MLX.
//!
//! ```
//! use tacit_distributed::plan::{Engine, Network, Split, Step};
//!
//! // Ethernet of 10 Gbit/s, 100 microseconds from program to program.
//! let network = Network { engine: Engine::Ring, latency: 100e-6, bandwidth: 1.25e9 };
//! // 32 layers of 200 million parameters in 4 bits, of which adapters of one million are trained.
//! let step = Step { layers: 32, parameters: 200e6, bits: 4.5, trained: 1e6, width: 4096.0, tokens: 8192.0, element: 4.0 };
//! let split = step.estimate(Split::Data, &network, 10e12, 8);
//! let sharded = step.estimate(Split::FullySharded, &network, 10e12, 8);
//! assert!(split.bytes < sharded.bytes && split.seconds <= sharded.seconds);
//! ```

mod network;
mod step;

pub use network::{Collective, Cost, Engine, Network};
pub use step::{Estimate, Split, Step};
