//! Unmodified mlx-rs modules with implicit parameters.

#![allow(clippy::needless_pass_by_value, reason = "snapshots stand in the call")]

// The macros' output names the core as the facade does.
extern crate tacit_core as tacit;

mod compiling;
mod implicit_module;
mod modules;
mod parameters;
#[path = "../../../core/tests/it/traced.rs"]
mod traced;
mod training;
mod trees;
mod types;
