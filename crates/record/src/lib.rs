//! The curves of a training run: recorded as it goes, continued where it resumes, drawn as SVG.
//!
//! ```
//! use tacit_record::{Chart, Record, Recorder};
//!
//! # fn main() -> tacit_core::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("tacit-record-{}", std::process::id()));
//! let file = folder.join("run.jsonl");
//! let mut recorder = Recorder::create(&file)?;
//! for step in 1..=100 {
//!     // .. a training step ..
//!     recorder.scalar(step, "loss", 1.0 / step as f64)?;
//! }
//! recorder.memory(100)?;
//!
//! let record = Record::read(&file)?;
//! Chart::new("loss by step").logarithmic().line("float32", record.scalar("loss")?).save(folder.join("loss.svg"))?;
//! # std::fs::remove_dir_all(folder).ok();
//! # Ok(())
//! # }
//! ```
//!
//! A [`Recorder`] appends one line of JSON for each number or [`Histogram`]. [`Recorder::resume`] continues the file of a run
//! that was killed. A [`Record`] is what was read back, a [`Chart`] draws it by step, and [`Bars`] by name.

mod bars;
mod chart;
mod entry;
mod histogram;
mod record;
mod recorder;
mod series;

pub use bars::Bars;
pub use chart::Chart;
pub use entry::{Entry, Recorded};
pub use histogram::Histogram;
pub use record::Record;
pub use recorder::Recorder;
pub use series::Series;
