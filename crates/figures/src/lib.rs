//! Measuring on noisy machines: contenders take short turns, and what is kept are ratios of turns that lay side by side.
//!
//! A bench begins with [`bench!`], lets its contenders take their turns, and records a case:
//!
//! ```no_run
//! # let probes = tacit_figures::Probes { isa: String::new(), threads: 1, read: |_| 1.0, fma: || 1.0, dot: || 1.0 };
//! # let bench = tacit_figures::Bench::new("sums", probes);
//! # let numbers = [1.0_f64; 1000];
//! use std::hint::black_box;
//! use tacit_figures::Unit;
//!
//! // let bench = tacit_figures::bench!("sums");
//! let rounds = bench
//!     .turns()
//!     .run("a fold", || Ok::<_, std::convert::Infallible>(drop(black_box(numbers.iter().fold(0.0, |a, b| a + b)))))
//!     .run("a sum", || Ok(drop(black_box(numbers.iter().sum::<f64>()))))
//!     .take()?;
//! // The first contender beside each other one.
//! rounds.record("thousand", Unit::time("us"));
//! # Ok::<(), std::convert::Infallible>(())
//! ```
//!
//! Each [`Line`] of `target/figures.jsonl` names the machine, the commit and what this machine reached at most in the same
//! run. [`compare`] sets such lines beside each other, and [`page`] draws what was recorded for the book; the program
//! `figures` does both from the command line.

pub mod accuracy;
mod bench;
mod beside;
pub mod compare;
mod limits;
mod line;
mod machine;
pub mod page;
pub mod resident;
mod rounds;
mod statistics;

pub use bench::{Bench, Probes};
pub use beside::Beside;
pub use line::{Line, read};
pub use machine::{Limits, Machine, Run};
pub use rounds::{Rounds, Turns, Unit};
pub use statistics::{Spread, median};
