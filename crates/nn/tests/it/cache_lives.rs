//! Random lives of caches: prompts with padding, single tokens, refused tokens, batches that are joined, split and chosen from, in
//! any order. What each token sees is what it would see of its own sequence alone.

use mlx_rs::{Array, Dtype, ops};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tacit_conformance::Sweep;
use tacit_core::compile::CompileOptions;
use tacit_core::{Error, Policy, Result, compile_with_state};
use tacit_nn::{KvCache, PaddingSide, Window};

use crate::cache::{FORMATS, Tokens, WINDOWS, cache, eager, format, layer, part, tokens, whole};

/// How many tokens there are to draw from.
const TOKENS: i32 = 997;

/// The caches that live at once, at most.
const MOST: usize = 4;

#[derive(Clone, Debug)]
enum Verb {
    Tokens { of: usize, count: i32, compiled: bool },
    Prompt { of: usize, lengths: [i32; 4], right: bool, pieces: i32 },
    Trim { of: usize, tokens: i32, reserved: bool },
    Merge { of: usize, with: usize },
    Filter { of: usize, rows: Vec<usize> },
    Split { of: usize },
    Reserve { of: usize, tokens: i32 },
    Store { of: usize },
    Wrong { of: usize },
}

fn verb() -> impl Strategy<Value = Verb> {
    let of = || 0usize..4;
    prop_oneof![
        5 => (of(), 1i32..6, any::<bool>()).prop_map(|(of, count, compiled)| Verb::Tokens { of, count, compiled }),
        3 => (of(), [0i32..7, 0i32..7, 0i32..7, 0i32..7], any::<bool>(), 1i32..4)
            .prop_map(|(of, lengths, right, pieces)| Verb::Prompt { of, lengths, right, pieces }),
        2 => (of(), 0i32..8, any::<bool>()).prop_map(|(of, tokens, reserved)| Verb::Trim { of, tokens, reserved }),
        2 => (of(), of()).prop_map(|(of, with)| Verb::Merge { of, with }),
        1 => (of(), vec(0usize..4, 1..4)).prop_map(|(of, rows)| Verb::Filter { of, rows }),
        1 => of().prop_map(|of| Verb::Split { of }),
        1 => (of(), 0i32..20).prop_map(|(of, tokens)| Verb::Reserve { of, tokens }),
        1 => of().prop_map(|of| Verb::Store { of }),
        1 => of().prop_map(|of| Verb::Wrong { of }),
    ]
}

/// A cache, and the tokens that each of its sequences has seen.
#[derive(Clone)]
struct Batch {
    cache: KvCache,
    seen: Vec<Vec<i32>>,
    formats: [&'static str; 2],
}

struct Life {
    all: Tokens,
    /// The next token that nobody has seen.
    next: i32,
    window: Window,
    batches: Vec<Batch>,
    told: Vec<String>,
}

type Checked = std::result::Result<(), String>;

fn never<T>(result: Result<T>) -> std::result::Result<T, String> {
    result.map_err(|error| format!("never an error: {error}"))
}

fn joined(tokens: &[Tokens], axis: i32) -> Tokens {
    let each =
        |of: fn(&Tokens) -> &Array| ops::concatenate(&tokens.iter().map(of).collect::<Vec<_>>(), axis).expect("joins");
    (each(|t| &t.0), each(|t| &t.1), each(|t| &t.2))
}

impl Life {
    /// These tokens, in this order.
    fn of(&self, ids: &[i32]) -> Tokens {
        joined(&ids.iter().map(|&id| part(&self.all, id, id + 1)).collect::<Vec<_>>(), 2)
    }

    fn fresh(&mut self, count: i32) -> Vec<i32> {
        let from = self.next;
        self.next += count;
        (from..self.next).map(|id| id % TOKENS).collect()
    }

    /// What the last tokens of each sequence see, of what was made for slots `from..from + count` of each row.
    fn check(&self, batch: &Batch, made: &Array, rows: &[(i32, i32)]) -> Checked {
        for (at, (&(from, count), seen)) in rows.iter().zip(&batch.seen).enumerate() {
            if count == 0 {
                continue;
            }
            let expected = whole(&self.of(seen), batch.formats, self.window);
            let long = seen.len() as i32;
            let slice = |array: &Array, row: i32, from: i32| {
                let array = array.take_axis(Array::from_slice(&[row], &[1]), 0).expect("a row");
                let slots: Vec<i32> = (from..from + count).collect();
                array.take_axis(Array::from_slice(&slots, &[count]), 2).expect("tokens")
            };
            let (found, expected) = (slice(made, at as i32, from), slice(&expected, 0, long - count));
            let far = found.subtract(&expected).and_then(|d| d.abs()?.max(None)).expect("compares").item_exact::<f32>();
            if far.is_nan() || far > 1e-4 {
                return Err(format!("sequence {at} of {} tokens is {far} apart", seen.len()));
            }
        }
        let offset: Vec<i32> = batch.cache.offset().as_slice::<i32>().to_vec();
        let expected: Vec<i32> = batch.seen.iter().map(|seen| seen.len() as i32).collect();
        if offset.iter().cycle().zip(&expected).any(|(offset, expected)| offset != expected) {
            return Err(format!("the offset is {offset:?}, and there are {expected:?} tokens"));
        }
        Ok(())
    }

    fn append(&mut self, of: usize, count: i32, compiled: bool) -> Checked {
        let ids: Vec<Vec<i32>> = (0..self.batches[of].seen.len()).map(|_| self.fresh(count)).collect();
        let tokens = joined(&ids.iter().map(|ids| self.of(ids)).collect::<Vec<_>>(), 0);
        let mut batch = self.batches[of].clone();
        let made = if compiled {
            never(batch.cache.reserve(count))?;
            let mut step = compile_with_state(CompileOptions::default(), layer);
            never(step.call(&mut batch.cache, tokens).and_then(|made| made.dense()))?
        } else {
            never(eager(&mut batch.cache, &tokens))?
        };
        batch.seen.iter_mut().zip(&ids).for_each(|(seen, ids)| seen.extend(ids));
        self.check(&batch, &made, &vec![(0, count); ids.len()])?;
        self.batches[of] = batch;
        Ok(())
    }

    /// What was refused has changed nothing: the next token sees what it would have.
    fn unchanged(&mut self, of: usize) -> Checked {
        let next = self.next;
        let kept = self.batches[of].clone();
        self.append(of, 1, false).map_err(|wrong| format!("after an error {wrong}"))?;
        self.batches[of] = kept;
        self.next = next;
        Ok(())
    }

    fn live(&mut self, verb: &Verb) -> Checked {
        let count = self.batches.len();
        match verb {
            Verb::Tokens { of, count: tokens, compiled } => self.append(of % count, *tokens, *compiled),
            Verb::Prompt { of, lengths, right, pieces } => self.prompt(of % count, lengths, *right, *pieces),
            Verb::Trim { of, tokens, reserved } => self.trim(of % count, *tokens, *reserved),
            Verb::Merge { of, with } => self.merge(of % count, with % count),
            Verb::Filter { of, rows } => self.filter(of % count, rows),
            Verb::Split { of } => self.split(of % count),
            Verb::Reserve { of, tokens } => {
                never(self.batches[of % count].cache.reserve(*tokens))?;
                self.unchanged(of % count)
            }
            Verb::Store { of } => self.store(of % count),
            Verb::Wrong { of } => {
                let batch = &mut self.batches[of % count];
                let others = tokens(3, batch.seen.len() as i32 + 1, 2, Dtype::Float32);
                if eager(&mut batch.cache, &others).is_ok() {
                    return Err("tokens of another batch are taken".to_owned());
                }
                self.unchanged(of % count)
            }
        }
    }

    /// A padded prompt, in pieces.
    fn prompt(&mut self, of: usize, lengths: &[i32], right: bool, pieces: i32) -> Checked {
        let mut batch = self.batches[of].clone();
        let lengths = &lengths[..batch.seen.len()];
        let long = lengths.iter().copied().max().unwrap_or(0).max(1);
        let side = if right { PaddingSide::Right } else { PaddingSide::Left };
        if let Err(error) = batch.cache.prepare(long, lengths, side) {
            helps(&error)?;
            self.batches[of].cache = batch.cache;
            return self.unchanged(of);
        }
        let own: Vec<Vec<i32>> = lengths.iter().map(|&length| self.fresh(length)).collect();
        let padded = |ids: &Vec<i32>| {
            let padding = self.fresh(long - ids.len() as i32);
            let all = if right { [ids.clone(), padding].concat() } else { [padding, ids.clone()].concat() };
            self.of(&all)
        };
        let prompt = joined(&own.iter().map(padded).collect::<Vec<_>>(), 0);
        let (mut made, mut from, each) = (Vec::new(), 0, (long / pieces).max(1));
        while from < long {
            let to = if from + 2 * each > long { long } else { from + each };
            made.push(never(eager(&mut batch.cache, &part(&prompt, from, to)))?);
            from = to;
        }
        let made = ops::concatenate(&made, 2).expect("joins");
        batch.seen.iter_mut().zip(&own).for_each(|(seen, ids)| seen.extend(ids));
        let rows: Vec<(i32, i32)> =
            lengths.iter().map(|&length| (if right { 0 } else { long - length }, length)).collect();
        self.check(&batch, &made, &rows)?;
        self.batches[of] = batch;
        Ok(())
    }

    /// Takes tokens away; after `reserved` that is never refused.
    fn trim(&mut self, of: usize, tokens: i32, reserved: bool) -> Checked {
        if reserved {
            never(self.batches[of].cache.reserve_trim(tokens))?;
            self.append(of, tokens.max(1), false)?;
        }
        match self.batches[of].cache.trim(tokens) {
            Err(error) if reserved => return Err(format!("reserved, and refused: {error}")),
            Err(error) => helps(&error)?,
            Ok(()) => {
                for seen in &mut self.batches[of].seen {
                    let left = seen.len().checked_sub(tokens as usize).ok_or("fewer tokens than none")?;
                    seen.truncate(left);
                }
            }
        }
        self.unchanged(of)
    }

    fn merge(&mut self, of: usize, with: usize) -> Checked {
        let (one, other) = (self.batches[of].clone(), self.batches[with].clone());
        if one.seen.len() + other.seen.len() > 4 {
            return Ok(());
        }
        let cache = match KvCache::merge(&[one.cache, other.cache]) {
            Ok(cache) => cache,
            Err(error) => {
                helps(&error)?;
                return self.unchanged(of);
            }
        };
        if one.formats != other.formats {
            return Err("unlike formats are merged".to_owned());
        }
        let merged = Batch { cache, seen: [one.seen, other.seen].concat(), formats: one.formats };
        if self.batches.len() < MOST {
            self.batches.push(merged);
            return self.unchanged(self.batches.len() - 1);
        }
        self.batches[of] = merged;
        self.unchanged(of)
    }

    fn filter(&mut self, of: usize, rows: &[usize]) -> Checked {
        let Batch { cache, seen, formats } = &self.batches[of];
        let rows: Vec<usize> = rows.iter().map(|row| row % seen.len()).collect();
        let numbers: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let cache = never(cache.filter(&numbers))?;
        let seen = rows.iter().map(|&row| seen[row].clone()).collect();
        self.batches[of] = Batch { cache, seen, formats: *formats };
        self.unchanged(of)
    }

    fn split(&mut self, of: usize) -> Checked {
        let Batch { cache, seen, formats } = self.batches.remove(of);
        for (cache, seen) in never(cache.split())?.into_iter().zip(seen) {
            if self.batches.len() < MOST {
                self.batches.push(Batch { cache, seen: vec![seen], formats });
                self.unchanged(self.batches.len() - 1)?;
            }
        }
        Ok(())
    }

    /// What is in a cache is rounded as what comes would have been.
    fn store(&mut self, of: usize) -> Checked {
        let batch = &mut self.batches[of];
        if batch.formats == FORMATS[0] {
            let [keys, values] = FORMATS[3].map(format);
            if let Ok(cache) = batch.cache.clone().stored(keys, values) {
                *batch = Batch { cache, seen: batch.seen.clone(), formats: FORMATS[3] };
            }
        }
        self.unchanged(of)
    }
}

/// An error says what to do.
fn helps(error: &Error) -> Checked {
    if error.to_string().contains("help: ") { Ok(()) } else { Err(format!("no help: {error}")) }
}

fn cases() -> u32 {
    if Sweep::current() == Sweep::Full { 1000 } else { 40 }
}

#[test]
fn every_life_of_a_cache_is_that_of_its_sequences_alone() {
    let config = Config { cases: cases(), failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let seed = std::env::var("TACIT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let lives = (select(&WINDOWS[..]), select(&[FORMATS[0], FORMATS[3], FORMATS[6]][..]), 1i32..4, vec(verb(), 1..14));
    let all = tokens(9, 1, TOKENS, Dtype::Float32);
    let _deny = Policy::Deny.scope();
    let tried = TestRunner::new_with_rng(config, rng).run(&lives, |(window, formats, batch, verbs)| {
        let cache = cache(batch, Dtype::Float32, formats, window);
        let first = Batch { cache, seen: vec![Vec::new(); batch as usize], formats };
        let mut life = Life { all: all.clone(), next: 0, window, batches: vec![first], told: Vec::new() };
        for verb in &verbs {
            let lived = life.live(verb);
            lived.map_err(|wrong| TestCaseError::fail(format!("{verb:?}: {wrong}\nso far: {:?}", life.told)))?;
            life.told.push(format!("{verb:?}"));
        }
        Ok(())
    });
    if let Err(error) = tried {
        panic!("{error}");
    }
}
