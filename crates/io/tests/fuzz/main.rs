//! Files that are almost right: whatever is changed in one, a reader gives an error that names it, or values that can be
//! computed. It neither panics nor ends the program, and takes no more memory than a small file needs.
//!
//! A right file is changed by drawn numbers, the same ones in each run: what its JSON says, its elements, its bytes.
//! `TACIT_FUZZ=100000` runs so many cases of each reader, `TACIT_FUZZ=41..42` those alone. Where the program ends by a signal,
//! the last case is still in the temporary folder. `tests/scripts/sanitizers.sh` has libFuzzer look for the changes.

#![cfg_attr(fuzzing, no_main)]

mod bytes;
mod corpus;
mod gguf;
mod json;
#[cfg(fuzzing)]
mod libfuzzer;
mod random;
mod readers;
mod safetensors;
#[allow(dead_code, reason = "the other tests use all of it")]
#[path = "../it/scratch.rs"]
mod scratch;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Instant;
use std::{env, fs};

use mlx_rs::memory;
use tacit_core::{Error, Policy, Result};

use crate::corpus::Sample;
use crate::random::Random;
use crate::readers::{Reader, readers};
use crate::scratch::Scratch;

/// The cases of each reader where nothing else is asked for.
const CASES: u64 = 300;

/// The dense arrays that are computed, in bytes: a small file may well describe one that no machine holds.
const COMPUTED: usize = 1 << 20;

/// The memory that the cases of a reader may take beyond what the right files took.
const MEMORY: usize = 64 << 20;

#[test]
fn every_reader_withstands_what_is_almost_right() {
    let _allow = Policy::Allow.scope();
    let asked = env::var("TACIT_FUZZ").unwrap_or_default();
    let cases = match asked.split_once("..") {
        Some((from, to)) => from.parse().expect("a case")..to.parse().expect("a case"),
        None if asked.is_empty() => 0..CASES,
        None => 0..asked.parse().expect("a number of cases"),
    };
    let only = env::var("TACIT_FUZZ_READER").ok();
    let mut chosen = readers();
    chosen.retain(|reader| only.as_ref().is_none_or(|only| only == reader.name));
    assert!(!chosen.is_empty() && !cases.is_empty(), "no reader {only:?}, or no case of TACIT_FUZZ={asked}");
    for reader in &chosen {
        fuzz(reader, cases.clone());
    }
}

fn fuzz(reader: &Reader, cases: Range<u64>) {
    let folder = Scratch::new();
    for sample in &reader.corpus {
        let read = run(reader, &folder, sample);
        assert!(read.is_ok(), "{}: {} is right and is not read: {read:?}", reader.name, sample.opened);
    }
    let before = resident();
    let _ = memory::reset_peak_memory();
    let (start, count) = (Instant::now(), cases.end.saturating_sub(cases.start));
    let (mut taken, mut refused) = (0u64, 0u64);
    for case in cases {
        let mut random = Random::of(reader.name, case);
        let sample = mutated(&reader.corpus, &mut random);
        let outcome = catch_unwind(AssertUnwindSafe(|| is_taken(reader, &folder, &sample)));
        match outcome {
            Ok(true) => taken += 1,
            Ok(false) => refused += 1,
            Err(panic) => {
                println!("{} fails at TACIT_FUZZ={case}..{}", reader.name, case + 1);
                resume_unwind(panic);
            }
        }
        if case % 64 == 0 {
            let grown = resident().saturating_sub(before).max(memory::peak_memory().unwrap_or(0));
            assert!(grown < MEMORY, "{}: {grown} bytes are taken by case {case} or one of 63 before it", reader.name);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{}: {count} cases, {taken} read, {refused} refused, {seconds:.1} s", reader.name);
    if count >= CASES {
        assert!(taken > 0 && refused > 0, "{}: the changes are too small or too large", reader.name);
    }
}

/// A right file with a few changes.
fn mutated(corpus: &[Sample], random: &mut Random) -> Sample {
    let mut sample = random.one_of(corpus).clone();
    for _ in 0..=random.below(3) {
        change(&mut sample, random);
    }
    sample
}

/// Changes one of the files.
fn change(sample: &mut Sample, random: &mut Random) {
    let names: Vec<String> = sample.files.keys().cloned().collect();
    let name = random.one_of(&names);
    let Some(file) = sample.files.get_mut(name) else { return };
    let ends = |ending: &str| Path::new(name).extension().is_some_and(|extension| extension == ending);
    if ends("safetensors") {
        safetensors::mutate(file, random);
    } else if ends("gguf") {
        gguf::mutate(file, random);
    } else if let (Ok(mut read), false) = (serde_json::from_slice(file), random.once_in(8)) {
        json::mutate(&mut read, random);
        *file = read.to_string().into_bytes();
    } else {
        bytes::mutate(file, random);
    }
}

/// Whether the reader takes the files. What it says where it does not is checked.
fn is_taken(reader: &Reader, folder: &Scratch, sample: &Sample) -> bool {
    let read = run(reader, folder, sample);
    if let Err(error) = &read {
        check(error, folder);
    }
    read.is_ok()
}

/// Writes the files, reads them, and computes what they hold, as far as it is small.
fn run(reader: &Reader, folder: &Scratch, sample: &Sample) -> Result<usize> {
    for entry in fs::read_dir(&**folder).expect("reads") {
        // A file that is mapped must not change: the new one is another.
        fs::remove_file(entry.expect("reads").path()).expect("removes");
    }
    for (name, bytes) in &sample.files {
        folder.file(name, bytes);
    }
    let values = (reader.read)(&folder.join(&sample.opened))?;
    for value in &values {
        let aval = value.aval()?;
        if aval.checked_nbytes().is_some_and(|bytes| bytes <= COMPUTED) {
            value.dense()?.eval()?;
        }
    }
    Ok(values.len())
}

/// An error tells the file, and what to do where that is not for the system to say.
#[track_caller]
fn check(error: &Error, folder: &Path) {
    let text = error.to_string();
    let helps = match error {
        Error::File { .. } => true,
        Error::Checkpoint { .. } => text.contains("\nhelp: "),
        _ => false,
    };
    let named = text.contains(&*folder.to_string_lossy());
    assert!(named && helps, "the error tells no file, or no help: {text}");
}

/// The memory that the process has, where the system tells it.
fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    line.and_then(|line| line.trim().parse::<usize>().ok()).map_or(0, |kilobytes| kilobytes << 10)
}
