//! A run of a benchmark: what was asked of it, and its record.

use std::cell::OnceCell;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::Line;
use crate::machine::{self, Limits, Machine, Run};

/// What the kernels tell of the machine; [`bench!`](crate::bench) asks `tacit-kernels`, which this crate does not know.
pub struct Probes {
    /// The instruction set that they take.
    pub isa: String,
    /// How many threads they take.
    pub threads: usize,
    /// Bytes per second that are read from a buffer of so many.
    pub read: fn(usize) -> f64,
    /// Floating-point operations per second.
    pub fma: fn() -> f64,
    /// Operations per second of 8-bit dot products.
    pub dot: fn() -> f64,
}

/// Begins a run of the benchmark of this name, `bench!("compile")`, in a crate that depends on `tacit-kernels`.
#[macro_export]
macro_rules! bench {
    ($name:literal) => {
        $crate::Bench::new(
            $name,
            $crate::Probes {
                isa: format!("{:?}", tacit_kernels::Isa::detect()).to_lowercase(),
                threads: tacit_kernels::threads::count(),
                read: tacit_kernels::machine::read_bandwidth,
                fma: tacit_kernels::machine::fma_peak,
                dot: tacit_kernels::machine::dot_peak,
            },
        )
    };
}

/// A run of a benchmark, by the arguments of this program.
///
/// `--quick` asks for few short rounds; other arguments select the cases whose names contain one of them.
/// `TACIT_FIGURES` names another file than `target/figures.jsonl`.
pub struct Bench {
    name: &'static str,
    probes: Probes,
    machine: Machine,
    date: String,
    quick: bool,
    wanted: Vec<String>,
    file: PathBuf,
    run: OnceCell<Run>,
}

impl Bench {
    /// Begins a run.
    #[must_use]
    pub fn new(name: &'static str, probes: Probes) -> Self {
        let wanted = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
        let quick = std::env::args().any(|argument| argument == "--quick");
        let machine = Machine::detect(probes.isa.clone(), probes.threads);
        let file = std::env::var_os("TACIT_FIGURES").map_or_else(beside_this_program, PathBuf::from);
        Self { name, probes, machine, date: machine::now(), quick, wanted, file, run: OnceCell::new() }
    }

    /// The name of the benchmark.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether few short rounds are asked for.
    #[must_use]
    pub const fn is_quick(&self) -> bool {
        self.quick
    }

    /// Whether this case is asked for.
    #[must_use]
    pub fn wants(&self, case: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|part| case.contains(part.as_str()))
    }

    /// Records what is counted and not timed.
    ///
    /// # Panics
    ///
    /// Panics if the file cannot be written.
    pub fn amount(&self, case: &str, value: f64, unit: &str, baseline: &str, baseline_value: f64) {
        self.record(Line {
            bench: self.name.to_owned(),
            case: case.to_owned(),
            unit: unit.to_owned(),
            value,
            baseline: baseline.to_owned(),
            baseline_value: Some(baseline_value),
            ratio: value / baseline_value,
            ..Line::default()
        });
    }

    /// Prints a figure and appends it to the file, with this run.
    pub(crate) fn record(&self, mut line: Line) {
        let Line { bench, case, value, unit, baseline, ratio, .. } = &line;
        let least = line.least.map(|least| format!(" (least {least:.4})")).unwrap_or_default();
        let spread = line.spread.map(|[low, high]| format!(" [{low:.3}, {high:.3}]")).unwrap_or_default();
        // Who has closed the output has read enough: the file has the figure.
        drop(writeln!(io::stdout(), "{bench}/{case}: {value:.4} {unit}{least}; {ratio:.3}{spread} against {baseline}"));
        line.run = Some(self.run.get_or_init(|| self.describe()).clone());
        let text = serde_json::to_string(&line).expect("a figure is plain data");
        let written =
            OpenOptions::new().create(true).append(true).open(&self.file).and_then(|mut file| writeln!(file, "{text}"));
        written.unwrap_or_else(|error| panic!("{} cannot be written: {error}", self.file.display()));
    }

    /// Measures the limits; after the first case, whose memory they must not disturb.
    fn describe(&self) -> Run {
        let largest = self.machine.caches.last().map_or(0, |kilobytes| *kilobytes as usize * 1024);
        let cold = (2 * largest).clamp(256 << 20, 1 << 30);
        let limits = Limits {
            read_hot: (self.probes.read)(8 << 20) / 1e9,
            read_cold: (!self.quick).then(|| (self.probes.read)(cold) / 1e9),
            fma: (self.probes.fma)() / 1e9,
            dot: (self.probes.dot)() / 1e9,
        };
        Run {
            machine: self.machine.clone(),
            commit: machine::commit(Path::new(env!("CARGO_MANIFEST_DIR"))),
            date: self.date.clone(),
            limits: Some(limits),
        }
    }
}

/// `figures.jsonl` in the target folder, which this program lies three levels below: `release/deps`.
fn beside_this_program() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.ancestors().nth(3).map(PathBuf::from).unwrap_or_default().join("figures.jsonl")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run that measures nothing of the machine.
    pub(crate) fn idle() -> Bench {
        Bench::new("idle", Probes { isa: String::new(), threads: 1, read: |_| 1e9, fma: || 2e9, dot: || 3e9 })
    }

    #[test]
    fn a_line_says_where_and_when_it_was_measured() {
        let file = std::env::temp_dir().join(format!("tacit-figures-{}.jsonl", std::process::id()));
        let bench = Bench { file: file.clone(), quick: true, ..idle() };
        bench.amount("taken", 3.0, "MB", "what is there", 4.0);
        bench.amount("taken/twice", 6.0, "MB", "what is there", 4.0);
        let lines = crate::read(&file);
        std::fs::remove_file(&file).expect("the file was written");
        let lines = lines.expect("the lines are ours");
        assert_eq!((lines.len(), lines[0].ratio, lines[1].ratio), (2, 0.75, 1.5));
        let run = lines[0].run.as_ref().expect("a run");
        assert_eq!(Some(run), lines[1].run.as_ref());
        let limits = Limits { read_hot: 1.0, read_cold: None, fma: 2.0, dot: 3.0 };
        assert_eq!((run.limits, run.machine.threads), (Some(limits), 1));
        assert!(!run.machine.cpu.is_empty() && !run.commit.is_empty() && run.date.ends_with('Z'), "{run:?}");
    }
}
