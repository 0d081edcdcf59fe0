//! The iterator of generated tokens.

use std::collections::VecDeque;
use std::fmt;

use tacit_core::Result;

use super::stats::Clock;
use super::{GenerateOptions, GenerateStats};

/// The tokens that a model makes of prompts, one at a time.
///
/// The sequences of a batch take turns, and each ends by itself. When a token is given, the state has seen it and all before it,
/// so that another generation may go on from there; a caller that drops the iterator leaves it so, with the tokens of the other
/// sequences of this turn. While others go on, the step is given tokens for a sequence that has ended, too: at the end the
/// state is left with what each sequence had seen when it ended. After an error of a step the state lacks the last token of the
/// sequences that went on, and was left by that step as it was before; the iterator ends there. An iterator that is dropped by a
/// panic leaves the state as it is then.
pub struct Generation<'a> {
    engine: Box<dyn Engine + 'a>,
    sequences: Vec<Sequence>,
    queue: VecDeque<Token>,
    stop: Vec<Vec<u32>>,
    max_tokens: usize,
    clock: Clock,
    stats: GenerateStats,
    /// Tokens that the engine has drawn and nobody will see.
    unread: usize,
    ended: bool,
}

/// A token of a [`Generation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Which prompt it follows.
    pub sequence: usize,
    /// Its place in the vocabulary.
    pub id: u32,
    /// Why it is the last of its sequence, if it is.
    pub finish: Option<Finish>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Its last tokens are one of [`GenerateOptions::stop`], or its text has one of the stops of [`Texts`](super::Texts).
    Stop,
    /// It is as long as it may be.
    Length,
}

/// What makes tokens, for all sequences at a time.
pub(super) trait Engine {
    /// The next tokens of each sequence, one or more and at most `room`. Those of a sequence that is not `open` are nobody's.
    fn advance(&mut self, room: usize, open: &[bool], stats: &mut GenerateStats) -> Result<Vec<Vec<u32>>>;

    /// No more are asked for, and the last `unread` of the last advance never were: the state forgets them, and has then seen all
    /// that were read.
    fn end(&mut self, unread: usize) -> Result<()>;

    /// It failed, and no more are asked for: the state is left with what sequences had seen that ended before.
    fn fail(&mut self);
}

#[derive(Default)]
struct Sequence {
    /// As many of its last tokens as the longest stop has.
    last: VecDeque<u32>,
    count: usize,
    finished: bool,
}

impl<'a> Generation<'a> {
    pub(super) fn new(
        engine: Box<dyn Engine + 'a>,
        options: &GenerateOptions,
        sequences: usize,
        prompt_tokens: usize,
        clock: Clock,
    ) -> Self {
        let fresh = || Sequence { finished: options.max_tokens == 0, ..Sequence::default() };
        Self {
            engine,
            sequences: std::iter::repeat_with(fresh).take(sequences).collect(),
            queue: VecDeque::new(),
            stop: options.stop.clone(),
            max_tokens: options.max_tokens,
            clock,
            stats: GenerateStats { prompt_tokens, ..GenerateStats::default() },
            unread: 0,
            ended: false,
        }
    }

    /// What it took so far.
    #[must_use]
    pub fn stats(&self) -> GenerateStats {
        self.stats
    }

    /// Ends a sequence after the token that was given last. Where there are several, its token of this turn may not have been given
    /// yet: it is dropped, and the state has seen it all the same.
    pub fn stop(&mut self, sequence: usize) {
        if let Some(sequence) = self.sequences.get_mut(sequence) {
            sequence.finished = true;
        }
        let waiting = self.queue.len();
        self.queue.retain(|token| token.sequence != sequence);
        self.unread += waiting - self.queue.len();
    }

    /// How many sequences there are.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// The tokens that end a sequence by themselves.
    pub(super) fn single_stops(&self) -> Vec<u32> {
        self.stop.iter().filter_map(|stop| if let [token] = stop[..] { Some(token) } else { None }).collect()
    }

    /// Takes the tokens that the engine drew for each sequence until that ends.
    fn take(&mut self, rows: Vec<Vec<u32>>) {
        let before = self.queue.len();
        let longest = self.stop.iter().map(Vec::len).max().unwrap_or(0);
        for (place, (sequence, tokens)) in self.sequences.iter_mut().zip(rows).enumerate() {
            if sequence.finished {
                continue;
            }
            for (index, &id) in tokens.iter().enumerate() {
                let finish = sequence.push(id, longest, &self.stop, self.max_tokens);
                self.queue.push_back(Token { sequence: place, id, finish });
                if finish.is_some() {
                    self.unread = tokens.len() - index - 1;
                    break;
                }
            }
        }
        self.clock.read(self.queue.len() - before, &mut self.stats);
    }
}

impl Sequence {
    fn push(&mut self, id: u32, longest: usize, stop: &[Vec<u32>], max_tokens: usize) -> Option<Finish> {
        self.count += 1;
        self.last.push_back(id);
        if self.last.len() > longest {
            self.last.pop_front();
        }
        let stops = |stop: &Vec<u32>| {
            self.last.len().checked_sub(stop.len()).is_some_and(|before| self.last.iter().skip(before).eq(stop))
        };
        let finish = if stop.iter().any(stops) {
            Some(Finish::Stop)
        } else if self.count >= max_tokens {
            Some(Finish::Length)
        } else {
            None
        };
        self.finished = finish.is_some();
        finish
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(token) = self.queue.pop_front() {
                return Some(Ok(token));
            }
            if self.ended {
                return None;
            }
            let open: Vec<bool> = self.sequences.iter().map(|sequence| !sequence.finished).collect();
            let going = self.sequences.iter().filter(|sequence| !sequence.finished);
            let Some(room) = going.map(|sequence| self.max_tokens - sequence.count).max() else {
                self.ended = true;
                return self.engine.end(self.unread).err().map(Err);
            };
            match self.engine.advance(room, &open, &mut self.stats) {
                Ok(rows) => self.take(rows),
                Err(error) => {
                    self.ended = true;
                    self.engine.fail();
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        // A step that has panicked is not called again while that unwinds: a second panic would end the process.
        if !self.ended && !std::thread::panicking() {
            // Who drops it does not ask how it ended.
            let _ = self.engine.end(self.unread + self.queue.len());
        }
    }
}

impl fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.sequences.iter().filter(|sequence| !sequence.finished).count();
        f.debug_struct("Generation").field("open", &open).field("stats", &self.stats).finish_non_exhaustive()
    }
}
