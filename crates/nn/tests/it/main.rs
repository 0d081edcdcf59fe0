//! Unmodified mlx-rs modules with implicit parameters.

#![allow(clippy::needless_pass_by_value, reason = "snapshots stand in the call")]

mod implicit_module;
mod modules;
mod training;
