//! Stand-in for `mach-sys` 0.5, reduced to the one function that `mlx-rs` calls.
//!
//! The published crate binds the Mach kernel and compiles on Apple platforms only. `mlx-rs` takes a single clock from
//! it, to seed its random numbers. Here that clock is the kernel's own on Apple platforms and the standard library's
//! monotonic clock elsewhere, behind the same path and signature.

pub mod mach_time;
