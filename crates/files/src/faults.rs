//! Faults for tests: one operation on the file system fails, or the machine stops at it.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// What happens at an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this number of the system's, such as 28 where the disk is full, and those after it do not.
    Fails(i32),
    /// It and all after it fail in this way.
    FailsFromHere(i32),
    /// The machine stops: nothing more is written or removed, and what was not brought to the disk is lost.
    Stops,
}

/// A fault that is waited for, and what came so far.
struct Plan {
    at: usize,
    fault: Fault,
    steps: usize,
    ended: bool,
    /// Files that were not brought to the disk since they were made or grew, with their lengths on the disk.
    unsynced: Vec<(File, u64)>,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Runs `f` on this thread with a fault at its operation number `at`. Tells how many operations there were; where these are
/// not more than `at`, nothing failed.
pub fn inject<T>(at: usize, fault: Fault, f: impl FnOnce() -> T) -> (T, usize) {
    /// Nothing fails after the call, however it ends.
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            PLAN.take();
        }
    }
    PLAN.set(Some(Plan { at, fault, steps: 0, ended: false, unsynced: Vec::new() }));
    let _clear = Clear;
    let out = f();
    (out, PLAN.with_borrow(|plan| plan.as_ref().map_or(0, |plan| plan.steps)))
}

pub(crate) fn step() -> io::Result<()> {
    PLAN.with_borrow_mut(|plan| {
        let Some(plan) = plan else { return Ok(()) };
        if plan.ended {
            return Err(io::Error::other("the machine has stopped"));
        }
        let at = plan.steps;
        plan.steps += 1;
        match plan.fault {
            Fault::Fails(number) if at == plan.at => Err(io::Error::from_raw_os_error(number)),
            Fault::FailsFromHere(number) if at >= plan.at => Err(io::Error::from_raw_os_error(number)),
            Fault::Stops if at == plan.at => {
                plan.ended = true;
                for (file, length) in plan.unsynced.drain(..) {
                    // The pages were not written.
                    drop(file.set_len(length));
                }
                Err(io::Error::other("the machine stops"))
            }
            _ => Ok(()),
        }
    })
}

pub(crate) fn ended() -> bool {
    PLAN.with_borrow(|plan| plan.as_ref().is_some_and(|plan| plan.ended))
}

pub(crate) fn made(file: &File) {
    grows(file, 0);
}

/// Notes that a file, of which so many bytes are on the disk, is written behind these.
pub(crate) fn grows(file: &File, length: u64) {
    PLAN.with_borrow_mut(|plan| {
        if let Some(plan) = plan
            && !plan.unsynced.iter().any(|(other, _)| id(other) == id(file))
        {
            plan.unsynced.extend(file.try_clone().map(|file| (file, length)));
        }
    });
}

/// Notes that a file is on the disk, where a fault is waited for: there the disk itself need not be.
pub(crate) fn synced(file: &File) -> bool {
    PLAN.with_borrow_mut(|plan| {
        if let Some(plan) = plan {
            plan.unsynced.retain(|(other, _)| id(other) != id(file));
        }
        plan.is_some()
    })
}

fn id(file: &File) -> Option<(u64, u64)> {
    file.metadata().ok().map(|own| (own.dev(), own.ino()))
}
