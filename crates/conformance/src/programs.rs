//! Random programs: graphs over the op surface in every way of running them.
//!
//! A seed becomes a [`Program`]: inputs of all dtypes, half floats first, that are views, lazy, in flight, misaligned, empty,
//! of NaN and of infinities; ops of the [surface](crate::ops) on them; and transforms around it. It is run as it is, compiled
//! without passes, with each pass alone and with all, called again with other numbers, with a state, after an error of the
//! function and after a node that failed; transforms are compared with plain code, implicit inputs with what they
//! materialize to. Half floats and integers are compared to the last bit where no sum is in another order and no function
//! approximated in another way. What fails is made as short as it gets and listed.

mod compare;
mod draw;
mod inputs;
mod perturbed;
mod program;
mod run;
mod shrink;

use std::ops::Range;

use compare::Scene;
pub use program::Program;

use crate::report::{Report, guarded};
use crate::subject::Subject;
use crate::sweep::Sweep;

/// The variable that chooses the seeds of [`programs`]: `FIRST..END`, or one seed.
pub const PROGRAMS_VARIABLE: &str = "TACIT_PROGRAMS";

/// Runs programs in every way; implicit inputs are of the given subjects.
///
/// A few hundred seeds, and with `TACIT_SWEEP=full` many more; [`PROGRAMS_VARIABLE`] chooses others.
///
/// # Panics
///
/// The variable holds no seeds.
#[must_use]
pub fn programs(subjects: &[Subject]) -> Report {
    let seeds = match std::env::var(PROGRAMS_VARIABLE) {
        Ok(text) => seeds(&text).unwrap_or_else(|| panic!("{PROGRAMS_VARIABLE} is {text}, which is no `FIRST..END`")),
        Err(_) => 0..Sweep::current().programs(),
    };
    let mut report = Report::new(format!("random programs {seeds:?}"));
    for seed in seeds {
        let program = draw::draw(seed, subjects);
        report.compared_one();
        if let Err(what) = outcome(&program, subjects) {
            let least = shrink::shrunk(program, &|program| outcome(program, subjects).is_err());
            let what = outcome(&least, subjects).err().unwrap_or(what);
            report.found(format_args!("seed {seed}"), format_args!("{what}\n{least}"));
            println!("seed {seed}: {what}\n{least}\n");
        }
    }
    report
}

/// Runs one program in every way.
///
/// # Errors
///
/// What differs.
pub fn program(program: &Program, subjects: &[Subject]) -> Result<(), String> {
    outcome(program, subjects)
}

fn outcome(program: &Program, subjects: &[Subject]) -> Result<(), String> {
    guarded(|| Scene { program, subjects }.check())
}

fn seeds(text: &str) -> Option<Range<u64>> {
    if let Some((first, end)) = text.split_once("..") {
        return Some(first.parse().ok()?..end.parse().ok()?);
    }
    let seed: u64 = text.parse().ok()?;
    Some(seed..seed + 1)
}
