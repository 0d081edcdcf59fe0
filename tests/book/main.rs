//! What the book shows is real: its code runs, its outputs are those of the code, its includes and links exist.

#![allow(clippy::duplicate_mod, reason = "each example is a program, and several bring the same data")]

#[path = "../../examples/adapters.rs"]
#[allow(dead_code, reason = "its `main` is the example's")]
mod adapters;
#[path = "../../examples/array_types.rs"]
mod array_types;
#[path = "../../examples/bytes.rs"]
mod bytes;
#[path = "../../examples/caches.rs"]
mod caches;
#[path = "../../examples/compile_cache.rs"]
mod compile_cache;
#[path = "../../examples/compiled_functions.rs"]
mod compiled_functions;
#[path = "../../examples/compiled_steps.rs"]
mod compiled_steps;
#[path = "../../examples/control_flow.rs"]
mod control_flow;
#[path = "../../examples/dispatch.rs"]
mod dispatch;
#[path = "../../examples/distributed.rs"]
mod distributed;
#[path = "../../examples/executables.rs"]
mod executables;
#[path = "../../examples/exercises.rs"]
mod exercises;
#[path = "../../examples/families.rs"]
mod families;
#[path = "../../examples/first_layer.rs"]
mod first_layer;
#[path = "../../examples/how_to.rs"]
mod how_to;
#[path = "../../examples/models.rs"]
mod models;
#[path = "../../examples/own_array_type.rs"]
mod own_array_type;
#[path = "../../examples/own_format.rs"]
mod own_format;
#[path = "../../examples/own_kernel.rs"]
mod own_kernel;
#[path = "../../examples/qat.rs"]
mod qat;
#[path = "../../examples/saving.rs"]
mod saving;
#[path = "../../examples/splits.rs"]
mod splits;
#[path = "../../examples/straight_through.rs"]
mod straight_through;
#[path = "../../examples/trees.rs"]
mod trees;

mod output;
mod pages;
mod shown;
mod source;
