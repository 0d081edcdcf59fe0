//! The readers under libFuzzer, which keeps the inputs that reach code which no earlier input reached, and changes those again.
//!
//! `tests/scripts/sanitizers.sh` builds and runs this. `TACIT_FUZZ_READER` names the reader of a run; without it the names of all
//! readers are printed. An input is the index of a right file in one byte, and each file with its length in four bytes before it.

use std::{env, process};

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use mlx_rs::memory;
use tacit_core::Policy;

use crate::corpus::Sample;
use crate::random::Random;
use crate::readers::{Reader, readers};
use crate::scratch::Scratch;
use crate::{change, is_taken};

/// By how many bytes libFuzzer may lengthen a file in one change.
const LONGER: usize = 64;

thread_local! {
    /// libFuzzer makes all its calls on one thread.
    static RUN: (Reader, Scratch) = begin();
}

fuzz_target!(init: RUN.with(|_| ()), |input: &[u8]| {
    RUN.with(|(reader, folder)| {
        let _allow = Policy::Allow.scope();
        if let Some((_, sample)) = decode(&reader.corpus, input) {
            is_taken(reader, folder, &sample);
        }
    });
});

// Changes as the test makes them, and libFuzzer's own, which know the values that the code compares with.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    RUN.with(|(reader, _)| {
        let mut random = Random::of(reader.name, seed.into());
        let kept = decode(&reader.corpus, &data[..size]).filter(|_| !random.once_in(16));
        let (index, mut sample) = kept.unwrap_or_else(|| {
            let index = random.below(reader.corpus.len());
            (index, reader.corpus[index].clone())
        });
        let names: Vec<String> = sample.files.keys().cloned().collect();
        match sample.files.get_mut(random.one_of(&names)) {
            Some(file) if random.once_in(2) => {
                let length = file.len();
                file.resize(length + LONGER, 0);
                let length = fuzzer_mutate(file, length, length + LONGER);
                file.truncate(length);
            }
            _ => change(&mut sample, &mut random),
        }
        let input = encode(index, &sample);
        let size = input.len().min(max_size);
        data[..size].copy_from_slice(&input[..size]);
        size
    })
});

fn begin() -> (Reader, Scratch) {
    // Memory that MLX keeps for later arrays could be read after its end without a report.
    memory::set_cache_limit(0).expect("sets a limit");
    let mut readers = readers();
    let Ok(name) = env::var("TACIT_FUZZ_READER") else {
        readers.iter().for_each(|reader| println!("{}", reader.name));
        process::exit(0);
    };
    let at = readers.iter().position(|reader| reader.name == name).expect("TACIT_FUZZ_READER names a reader");
    (readers.swap_remove(at), Scratch::new())
}

fn encode(index: usize, sample: &Sample) -> Vec<u8> {
    let mut input = vec![index as u8];
    for file in sample.files.values() {
        input.extend((file.len() as u32).to_le_bytes());
        input.extend(file);
    }
    input
}

/// The files of an input and the index of the right file that gives their names. What is missing at the end is empty.
fn decode(corpus: &[Sample], input: &[u8]) -> Option<(usize, Sample)> {
    let (&index, mut rest) = input.split_first()?;
    let index = usize::from(index);
    let mut sample = corpus.get(index)?.clone();
    for file in sample.files.values_mut() {
        let (length, after) = rest.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let length = (u32::from_le_bytes(*length) as usize).min(after.len());
        *file = after[..length].to_vec();
        rest = &after[length..];
    }
    Some((index, sample))
}
