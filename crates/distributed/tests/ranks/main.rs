//! What only several processes show: each case runs on all ranks of a group, over the ring and over MPI, with 2 to 4 ranks,
//! and in some of the groups with ranks that differ in the order in which they evaluate and in their speed.
//!
//! The program starts itself once for each kind of group, and runs all cases there; only a case that ends its processes has
//! processes of its own. A rank that fails or hangs ends its group within the limit of the case, and the rest of the cases
//! goes on in a new one. MPI is tried where `TACIT_MPI` names an Open MPI's `mpirun`.
//!
//! A subject is a file with a `pub(crate) const CASES: &[Case]`, and a line in the table below.

mod case;
mod chance;
mod checkpoints;
mod child;
mod codes;
mod collectives;
mod commands;
mod compiled_messages;
mod failures;
mod fully;
mod itself;
mod means;
mod observed;
mod parent;
mod plan;
mod processes;
mod refused;
mod rows;
mod saved;
mod shapeless;
mod sharded;
mod shared;
mod splits;
mod threads;

use std::process::ExitCode;

// A crate that is not named registers nothing: compiled steps are rewritten here as they are by a program.
use tacit_fusion as _;

use case::Case;

/// The subjects, in the order in which they run.
const SUBJECTS: &[(&str, &[Case])] = &[
    ("itself", itself::CASES),
    ("collectives", collectives::CASES),
    ("compiled_messages", compiled_messages::CASES),
    ("means", means::CASES),
    ("observed", observed::CASES),
    ("sharded", sharded::CASES),
    ("shared", shared::CASES),
    ("refused", refused::CASES),
    ("shapeless", shapeless::CASES),
    ("rows", rows::CASES),
    ("chance", chance::CASES),
    ("saved", saved::CASES),
    ("plan", plan::CASES),
    ("fully", fully::CASES),
    ("splits", splits::CASES),
    ("threads", threads::CASES),
    ("checkpoints", checkpoints::CASES),
    ("codes", codes::CASES),
    ("failures", failures::CASES),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, cases)) if first == child::FLAG => child::run(cases),
        _ => parent::run(&arguments),
    }
}

/// All cases by name, such as `collectives/all_sum`.
fn cases() -> impl Iterator<Item = (String, &'static Case)> {
    SUBJECTS
        .iter()
        .flat_map(|(subject, cases)| cases.iter().map(move |case| (format!("{subject}/{}", case.name), case)))
}
