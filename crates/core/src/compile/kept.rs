//! A warning about functions that are compiled again and again, where one could be kept.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::policy::warn;

/// How many functions, called once each, are too many of one place.
const MANY: u32 = 32;

/// Notes that a function was compiled at `place`, called once, and dropped: what was traced served nobody. Of many from one
/// place it warns, once.
pub(super) fn dropped_after_one_call(name: &str, place: &'static Location<'static>) {
    static DROPPED: LazyLock<Mutex<HashMap<&'static Location<'static>, u32>>> = LazyLock::new(Mutex::default);
    let mut dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let count = dropped.entry(place).or_default();
    *count = count.saturating_add(1);
    let many = *count == MANY;
    // Whoever listens to warnings may compile.
    drop(dropped);
    if many {
        warn(&format!(
            "{name} was compiled {MANY} times at {}:{}, and each compiled function was called once: each traces anew\n\
             help: compile once, outside the loop, and keep what `compile` returns",
            place.file(),
            place.line()
        ));
    }
}
