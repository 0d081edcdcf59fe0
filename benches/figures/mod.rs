//! Appends each figure as a line of JSON to `target/figures.jsonl`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A measured figure and what it is compared with, both from this run.
pub(crate) struct Figure<'a> {
    /// The benchmark.
    pub(crate) bench: &'a str,
    /// The case in it.
    pub(crate) case: &'a str,
    /// The figure.
    pub(crate) value: f64,
    /// Its unit.
    pub(crate) unit: &'a str,
    /// What it is compared with.
    pub(crate) baseline: &'a str,
    /// The figure in terms of the baseline, as the case defines it.
    pub(crate) ratio: f64,
}

impl Figure<'_> {
    /// Prints the figure and appends it to the file.
    pub(crate) fn record(&self) {
        let Self { bench, case, value, unit, baseline, ratio } = self;
        println!("{bench}/{case}: {value:.4} {unit}; {ratio:.3} against {baseline}");
        let line = serde_json::json!({
            "bench": bench, "case": case, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio,
        });
        let path = figures_path();
        let written =
            OpenOptions::new().create(true).append(true).open(&path).and_then(|mut file| writeln!(file, "{line}"));
        written.unwrap_or_else(|error| panic!("{} cannot be written: {error}", path.display()));
    }
}

/// `figures.jsonl` in the target folder, which this executable lies three levels below: `release/deps`.
fn figures_path() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    executable.ancestors().nth(3).map(PathBuf::from).unwrap_or_default().join("figures.jsonl")
}

/// The median time of one call, over `rounds` rounds of `calls` calls, after one round to warm up.
#[allow(dead_code, reason = "not every benchmark times short calls")]
pub(crate) fn median(rounds: usize, calls: usize, mut f: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..=rounds)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..calls {
                f();
            }
            start.elapsed() / calls as u32
        })
        .skip(1)
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}
