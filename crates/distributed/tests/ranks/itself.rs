//! This program itself: it sees that it ends in another way than it should.

use std::process::{Command, exit, id};
use std::thread::sleep;
use std::time::Duration;

use tacit_core::{Error, Result};
use tacit_distributed::Group;

use crate::case::{Apart, Case, Ended};
use crate::child::until_heard;
use crate::failures::ensure;

pub(crate) const CASES: &[Case] = &[
    Case::new("an_exit_has_its_code", |_| Ok(())).sizes(&[2]).apart(Apart {
        variables: &[("TACIT_RANKS_CODE", "7")],
        join: ends,
        lost: &[],
        judge: |ranks| is_told(ranks).and_then(|()| ensure(matches!(ranks[1].code, Some(7) | None), "another code")),
    }),
    Case::new("a_stopped_rank_is_killed", |_| Ok(())).sizes(&[2]).apart(Apart {
        variables: &[],
        join: stops,
        lost: &[1],
        judge: |ranks| is_told(ranks).and_then(|()| ensure(ranks[1].code.is_none(), "it exits")),
    }),
];

/// The first rank says an error and writes a line, and then the other one exits.
fn ends(rank: usize) -> Result<Group> {
    if rank == 1 {
        // `mpirun` ends all ranks once one has failed.
        until_heard();
        exit(std::env::var("TACIT_RANKS_CODE").ok().and_then(|code| code.parse().ok()).unwrap_or(1));
    }
    refuse()
}

/// The first rank says an error and writes a line, and the other one stops for ever.
fn stops(rank: usize) -> Result<Group> {
    if rank == 1 {
        drop(Command::new("sh").args(["-c", &format!("kill -STOP {}", id())]).status());
        // `mpirun` lets it go on before it ends it.
        sleep(Duration::from_mins(10));
    }
    refuse()
}

fn refuse() -> Result<Group> {
    eprintln!("it is told");
    Err(Error::invalid("a rank is missing", "start it"))
}

/// What the first rank does in each case.
fn is_told(ranks: &[Ended]) -> Result<(), String> {
    let [first, second] = ranks else { return Err("not two ranks".to_owned()) };
    ensure(
        first.said.as_ref().is_some_and(|said| said.as_ref().is_err_and(|error| error.contains("missing"))),
        "no error",
    )?;
    ensure(second.said.is_none(), "the second rank speaks")?;
    ensure(first.stderr.contains("it is told"), "other words")
}
