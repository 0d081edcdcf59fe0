//! Passes over compiled graphs: identities, transposed products, common subexpressions, programs over rows, and plans.
//!
//! A function that is [compiled](tacit_core::compile()) leaves a plain graph: forward, gradients and the optimizer's update in
//! one. What is linked with this crate has five [passes](tacit_core::pass) rewrite it on the CPU, in this order:
//!
//! 1. `identities`: what only passes an operand on, such as a function with a derivative of its own, is left out, and a split
//!    becomes slices.
//! 2. `transposed`: a product whose transpose is what is used becomes the product of the transposes in the other order, so
//!    that the gradient of a weight comes in the weight's own layout.
//! 3. `cse`, common subexpression elimination: of several nodes of one primitive, state and inputs one is left.
//! 4. `programs`: connected elementwise ops and reductions of rows become one [program](tacit_kernels::program), a single
//!    pass over memory on all threads, in the place of the loops that MLX has a C++ compiler build for one. So do those that take
//!    the same arrays. Slices of columns are read where they lie, and results that are concatenated are written side by side.
//! 5. `plan`: kernels, programs, products of dense matrices and the plain ops between them become stages of one node, a
//!    [`Plan`](tacit_core::pass::Plan). What the stages leave to each other lies in one arena, at places that are chosen once;
//!    stages of the same elements run together, a piece of these at a time, so that what only they use is never there as a whole;
//!    reshapes, and transposes and slices of what lies together, cost nothing; a state that nobody else holds is updated where
//!    it lies, parameters and moments by a program that reads each element before it writes it. An op that no stage computes
//!    stays a node of MLX, between two plans. Nodes go together only if the same collectives are behind them, so that nothing
//!    that a process sends waits for more than it needs. All results of a plan are computed when one is; if a stage fails, all
//!    of them are errors, also those that do not depend on it.
//!
//! A program computes what the plain ops compute. Each op is rounded to the dtype of its result, in a program as outside of
//! one. Adding, multiplying, comparing and casting give the same bits as MLX. So do elementary functions of half floats on
//! x86-64; elsewhere, where MLX has other formulas, they are within a unit of the last place. Those of `f32` are within a few
//! units. Sums of rows are taken in an order of their own; those of half floats, softmax and log-sum-exp compute in `f32` and
//! are rounded once, at the end, where MLX's CPU may round after each addition. So are products, which MLX rounds once as well.
//!
//! Sorts, partitions, running sums and products, greatest and least numbers, random bits, and what is put or added at indices are those of
//! MLX to the bit.
//!
//! ```
//! # fn main() -> tacit_core::Result<()> {
//! use mlx_rs::{Array, ops};
//! use tacit_core::compile;
//! use tacit_fusion as _;
//!
//! let mut norm = compile(|x: Array| {
//!     let mean_square = x.square()?.mean_axes(&[-1], true)?;
//!     x.multiply(ops::rsqrt(&mean_square.add(Array::from_f32(1e-5))?)?)
//! });
//! let x = Array::from_slice(&[3f32, 4.0, 0.0, 0.0], &[1, 4]);
//! let y = norm.call(&x)?.dense()?;
//! assert!((y.as_slice::<f32>()[0] - 1.2).abs() < 1e-5);
//! assert_eq!(norm.stats().rewritten[0].pass, "programs");
//! # Ok(())
//! # }
//! ```

mod collectives;
mod cse;
mod identities;
mod needed;
mod plan;
mod programs;
mod transposed;

tacit_core::register_pass!("identities", 5, identities::run);
tacit_core::register_pass!("transposed", 10, transposed::run);
tacit_core::register_pass!("cse", 20, cse::run);
tacit_core::register_pass!("programs", 30, programs::run);
tacit_core::register_pass!("plan", 40, plan::run, plan::reasons);
