//! Functions with named parameters and inputs, held and run many times.
//!
//! An [`Executable`] is described once: its parameters, which may be implicit arrays, the inputs that each run is given,
//! the inputs that are resident, and the outputs. An output that is fed to a resident input stays on the device from run
//! to run, as a cache does. Parameters and inputs are arguments of the compiled graph, never constants of it, so setting
//! one anew costs no trace unless it is of another structure.

mod body;
mod builder;
mod bytes;
mod commit;
mod described;
mod executable;
mod extent;
mod feeding;
mod mode;
mod named;
mod nodes;
mod pending;
mod pipelined;
mod rehearsal;
mod setting;
mod signature;

pub use builder::Builder;
pub use executable::Executable;
pub use mode::{MODE_VARIABLE, Mode};
pub use named::{Named, Outputs};
pub use pipelined::Pipelined;
