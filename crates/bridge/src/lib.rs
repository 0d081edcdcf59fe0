//! The C++ beside MLX and its safe Rust face: record, walk, re-emit, kernels, custom vjp.
//!
//! MLX is lazy: an op only adds a node to a graph. This crate makes placeholders to record such a graph on
//! ([`Scope`]), lists the nodes that depend on them ([`Tape`]), tells what each node is ([`Primitive`], [`typed`]),
//! emits a primitive again with other operands or rewires a node in place, and puts Rust functions into graphs
//! ([`kernel`], [`custom_function()`]). It keeps compiled functions ([`Program`]), tells whether two recorded graphs are one
//! program ([`difference()`]), maps functions over axes ([`vmap()`]), and makes arrays of parts of a file without copying
//! them ([`MappedFile`]). It knows nothing of implicit arrays.
//!
//! No Rust panic and no C++ exception crosses the border: a failing callback becomes an exception with its text, and
//! [`recover`] finds the error itself again. Whatever asks MLX for an array fails where MLX has no memory left; a function's
//! own docs say what else its errors are.

mod arrays;
mod aval;
mod callback;
mod custom_function;
mod custom_vjp;
mod depth;
mod derivatives;
mod difference;
mod dynamic_slice;
mod environment;
mod error;
mod eval;
mod ffi;
mod function;
mod gradients;
mod graph;
mod group;
pub mod kernel;
mod mapped;
pub mod mlx;
mod names;
mod param;
mod partition;
mod plan;
pub mod ports;
mod primitive;
pub mod process;
mod program;
mod quantized;
mod record;
mod rewrite;
mod saved;
mod scope;
mod tape;
pub mod typed;
mod vmap;

pub use arrays::{array_id, prototype};
pub use aval::{Aval, ParseAvalError, dtype_name, dtype_named};
pub use callback::PanicError;
pub use custom_function::{CustomFunction, TangentError, checkpoint, custom_function, in_chunks, is_wanted};
pub use custom_vjp::{Differentiable, custom_vjp};
pub use depth::{check_depth, depth};
pub use derivatives::{jvp, vjp};
pub use difference::{Difference, difference};
pub use dynamic_slice::{dynamic_slice, dynamic_slice_update};
pub use error::{BoxError, BridgeError, ParamError, VmapError, recover, remember};
pub use eval::{Spent, eval};
pub use gradients::GradientError;
pub use graph::{
    broadcast_source, constants, frontier, held_elsewhere, holders, is_traced, reached, reshape_source, reshaped_again,
};
pub use group::{Engine, Group, InFlight, Op, Watcher};
pub use mapped::{MappedFile, array_of_bytes, forget_bytes, forget_pages, with_bytes};
pub use names::NameId;
pub use param::Param;
pub use partition::arg_partition;
pub use plan::{Plan, PlanBuilder, PlanValue, StageTimes, Threads};
pub use primitive::Primitive;
pub use program::{
    KnownInputs, Outcome, Program, any_held_tracer, any_tracer, compiler_available, in_transform, set_no_fuse,
};
pub use quantized::{QuantizationMode, Quantized, quantized_matmul};
pub use record::{extent, has_shape_rules, record, record_shapeless};
pub use rewrite::{comes_of_collective, cse, runs_here, scalar_value};
pub use saved::{Ends, after, apart, saved, settle};
pub use scope::Scope;
pub use tape::{Kept, Slot, Tape};
pub use vmap::{Mapped, vmap};
