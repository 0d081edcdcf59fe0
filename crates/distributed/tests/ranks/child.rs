//! A rank: joins the group, runs the cases that it is given, and says to the parent what became of each.

use std::any::Any;
use std::env;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::path::Path;
use std::process::{ExitCode, abort};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::Duration;

use tacit_core::Result;
use tacit_distributed::Group;

use crate::case::Case;
use crate::cases;

/// The first argument of a rank; names of cases follow.
pub(crate) const FLAG: &str = "--rank";
/// Says that ranks are to differ in the order and the speed of what they do.
pub(crate) const DIFFER: &str = "TACIT_RANKS_DIFFER";
/// Where the parent listens.
pub(crate) const PARENT: &str = "TACIT_RANKS_PARENT";
/// The folder of the group.
pub(crate) const FOLDER: &str = "TACIT_RANKS_FOLDER";
/// A file there, once the parent has heard what became of a case on any rank.
pub(crate) const HEARD: &str = "heard";
/// Ends a message; what it is said in may have lines.
pub(crate) const END: u8 = 0;

/// What a rank says, field by field: its number and process, then of each case its name and nothing, or the error.
pub(crate) const FIELD: char = '\u{1f}';

pub(crate) fn run(names: &[String]) -> ExitCode {
    let (Some(parent), Some(rank)) = (env::var(PARENT).ok(), rank()) else {
        eprintln!("error: a rank is started by its parent");
        return ExitCode::FAILURE;
    };
    let Ok(mut parent) = TcpStream::connect(parent) else {
        eprintln!("error: rank {rank} does not reach its parent");
        return ExitCode::FAILURE;
    };
    end_with(&parent);
    let mut say = |words: &[&str]| {
        let mut text = words.join(&FIELD.to_string()).into_bytes();
        text.push(END);
        // Without a parent this process ends anyway.
        drop(parent.write_all(&text));
    };
    say(&[&rank.to_string(), &std::process::id().to_string()]);
    if env::var_os(DIFFER).is_some() {
        differ(rank);
    }
    let chosen: Vec<(String, &Case)> = cases().filter(|(name, _)| names.contains(name)).collect();
    let panicked = record_panics();
    let join = chosen.iter().find_map(|(_, case)| Some(case.apart.as_ref()?.join)).unwrap_or(|_| Group::init());
    let mut failed = false;
    let mut outcome = |name: &str, result: thread::Result<Result<()>>| {
        let error = match result {
            Ok(Ok(())) => String::new(),
            Ok(Err(error)) => error.to_string(),
            Err(payload) => {
                panicked.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_else(|| said(&payload))
            }
        };
        failed |= !error.is_empty();
        say(&[name, &error]);
    };
    match catch_unwind(AssertUnwindSafe(|| join(rank))) {
        Ok(Ok(group)) => {
            for (name, case) in chosen {
                outcome(&name, catch_unwind(AssertUnwindSafe(|| (case.run)(&group))));
            }
        }
        // The first case stands for all of them.
        other => outcome(chosen.first().map_or("", |(name, _)| name), other.map(|joined| joined.map(drop))),
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Makes this rank unlike the others: its evals begin at another of their arrays and come at another time, and its memory lies
/// elsewhere, by which C++ orders its hash maps. The seeds of Rust's differ in each process anyway.
fn differ(rank: usize) {
    tacit_bridge::Group::disturb(0x5EED_0000 + 977 * rank as u64 + 1);
    for number in 0..37 * rank {
        std::mem::forget(vec![0_u8; 16 * (number % 29 + 1)]);
    }
}

/// The number of this rank, which is known before it joins.
fn rank() -> Option<usize> {
    ["MLX_RANK", "OMPI_COMM_WORLD_RANK"].iter().find_map(|name| env::var(name).ok()?.parse().ok())
}

/// Waits until the parent has heard what became of a case on any rank; without a parent this process ends anyway.
pub(crate) fn until_heard() {
    let file = env::var_os(FOLDER).map(|folder| Path::new(&folder).join(HEARD));
    while file.as_ref().is_some_and(|file| !file.exists()) {
        sleep(Duration::from_millis(5));
    }
}

/// Ends this process when the parent has gone.
fn end_with(parent: &TcpStream) {
    let Ok(mut parent) = parent.try_clone() else { return };
    thread::spawn(move || {
        // It never says anything.
        drop(parent.read(&mut [0]));
        abort();
    });
}

/// Keeps where the last panic was and what it said, in place of printing it.
fn record_panics() -> Arc<Mutex<Option<String>>> {
    let last = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&last);
    set_hook(Box::new(move |panic| {
        eprintln!("{panic}");
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic.to_string());
    }));
    last
}

fn said(payload: &Box<dyn Any + Send>) -> String {
    payload.downcast_ref::<&str>().map_or("a panic", |text| text).to_owned()
}
