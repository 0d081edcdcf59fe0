//! What the host knows of a cache without asking the device.

use std::any::Any;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use tacit_core::embedding::in_step;
use tacit_core::tree::{Arguments, Entered, Labels, Leaf, Node, Reader, Visitor};
use tacit_core::{Error, Result, Tree};

use super::Window;
use super::slots::{Run, Slots};

/// How many tokens a cache was given, and for how many it has room.
///
/// Of the structure of a tree only the tokens of one step are a part, by which a compiled step says how many it wrote, and
/// whether there is no room at all, which no trace is for. A trace does not depend on the number that its step began
/// with. So 10,000 steps are one trace, none waits for the device to know where it is, and one that would write beyond the end
/// fails before MLX has written anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Tokens before the step.
    before: i32,
    /// Tokens of the step that runs. Outside one, those of updates that nobody has yet counted among the tokens before.
    step: i32,
    /// The first token that is certainly there, but for those that stay.
    oldest: i32,
    /// Where padding ends.
    pub(super) padded: i32,
    pub(super) slots: Slots,
    /// Whether a compiled function was given the cache: a later call, which replays the trace, may give one of other tokens.
    traced: bool,
    /// Which cache the tokens are counted of, with the copies of it that a step makes.
    cache: u64,
}

/// The most tokens of a prompt that is announced or filled in: steps behind it count on without an overflow.
pub(super) const LONGEST: i32 = 1 << 30;

impl Written {
    pub(super) fn new(window: Window) -> Self {
        let slots = Slots { capacity: 0, window };
        Self { before: 0, step: 0, oldest: 0, padded: 0, slots, traced: false, cache: number() }
    }

    /// The count of a copy. Outside a step it is a cache of its own; one that a step makes may take the place of what it is a copy of.
    pub(super) fn copied(self) -> Self {
        if in_step() { self } else { Self { cache: number(), ..self } }
    }

    /// All tokens, those of the running step included.
    pub(super) fn total(&self) -> i32 {
        self.before + self.step
    }

    /// The same with so many slots.
    pub(super) fn with_capacity(self, capacity: i32) -> Self {
        Self { slots: Slots { capacity, ..self.slots }, ..self }
    }

    /// The same outside a step, behind `shift` more positions of padding.
    pub(super) fn later(self, shift: i32) -> Self {
        let lost = if self.oldest > 0 { shift } else { 0 };
        Self { before: self.total() + shift, step: 0, oldest: self.oldest + lost, padded: self.padded + shift, ..self }
    }

    /// The same, outside a step with all tokens before the next one. Inside a step its tokens are still to be counted.
    pub(super) fn settled(self) -> Self {
        if in_step() { self } else { self.later(0) }
    }

    /// The same where the tokens before one are lost, but for those that stay.
    pub(super) fn with_oldest(self, oldest: i32) -> Self {
        Self { oldest: self.oldest.max(oldest), ..self }
    }

    /// The same where a token that another has lost is lost, its padding is padding, and what either was given was given.
    pub(super) fn with_losses_of(self, other: Self) -> Self {
        let traced = self.traced || other.traced;
        Self { padded: self.padded.max(other.padded), traced, ..self.with_oldest(other.oldest) }
    }

    /// The runs of slots that make those of `to`, behind `shift` positions of padding.
    pub(super) fn moved(&self, to: Slots, shift: i32) -> Vec<Run> {
        let capacity = self.slots.capacity;
        if self.total() <= capacity && shift == 0 && to.capacity >= capacity {
            let more = to.capacity - capacity;
            return [Run::Kept(0, capacity), Run::Empty(more)].into_iter().filter(|run| !run.is_empty()).collect();
        }
        self.slots.moved(to, self.total(), shift, |token| self.keeps(token))
    }

    /// The runs of slots in the order of their tokens.
    pub(super) fn in_order(&self) -> Vec<Run> {
        self.slots.in_order(self.total(), |token| self.keeps(token))
    }

    fn keeps(&self, token: i32) -> bool {
        token >= self.oldest || self.slots.window.bounds().is_some_and(|(_, sinks)| token < sinks)
    }

    /// The slots needed for so many tokens more.
    pub(super) fn needed(&self, tokens: i32) -> i32 {
        let total = self.total().saturating_add(tokens);
        match self.slots.window.bounds() {
            None => total,
            Some((size, sinks)) => total.min(size.saturating_add(sinks).saturating_add((tokens - 1).max(0))),
        }
    }

    /// Counts tokens of a step.
    pub(super) fn add(&mut self, tokens: i32) -> Result<()> {
        if self.needed(tokens) > self.slots.capacity {
            return Err(Error::invalid(
                format!(
                    "{tokens} tokens are written behind {} into a cache with room for {}",
                    self.total(),
                    self.slots.capacity
                ),
                "reserve room for them before the step, by `KvCache::reserve`",
            ));
        }
        self.step += tokens;
        // What no slot holds any more.
        if let Some((_, sinks)) = self.slots.window.bounds() {
            let first = self.total() - (self.slots.capacity - sinks);
            if first > sinks {
                self.oldest = self.oldest.max(first);
            }
        }
        Ok(())
    }

    pub(super) fn trim(&mut self, tokens: i32) -> Result<()> {
        let remaining = self.total().saturating_sub(tokens);
        if tokens < 0 || remaining < self.padded {
            return Err(Error::invalid(
                match self.padded {
                    0 => format!("{tokens} of {} tokens cannot be taken away", self.total()),
                    end => format!(
                        "{tokens} of {} tokens cannot be taken away: the first {end} hold padding",
                        self.total()
                    ),
                },
                "trim at most what came after the prompt",
            ));
        }
        if let Some((size, sinks)) = self.slots.window.bounds() {
            // The next token sees those from here on.
            let needed = (remaining + 1 - size).max(sinks.min(remaining));
            if self.oldest > needed {
                return Err(Error::invalid(
                    format!(
                        "without the last {tokens} tokens, token {remaining} would see token {needed}, which was overwritten"
                    ),
                    "trim fewer tokens, or reserve more slots than the window before: `KvCache::with_capacity`",
                ));
            }
        }
        // A step that leaves it is refused: its replays would take away what they did not write.
        (self.before, self.step, self.cache) = (remaining, 0, number());
        Ok(())
    }
}

const WRITTEN: &str = "Written";
const STEP: &str = "step";
const FULL: &str = "full";

impl Arguments for Written {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        // The trace of a compiled step does not depend on what was written before it.
        let shown = self.settled();
        let hollow = || Rc::new(shown) as Rc<dyn Any>;
        let full = shown.needed(1) > shown.slots.capacity;
        let node = Node::new(WRITTEN, Labels::Fields(&[])).with_template(&hollow).that_counts();
        // The trace of a cache that is not full serves no full one: one token has room.
        let node = if shown.step > 1 { node.that_refuses() } else { node };
        visitor.node(&node.with_statics(&[(STEP, &shown.step), (FULL, &full)]));
        Ok(())
    }
}

impl Tree for Written {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let count = template(&reader.enter(WRITTEN)?)?;
        if count.traced && reader.is_replayed() {
            return Err(Error::invalid(
                "a compiled function returns a cache that it was given, whose tokens a replay does not count",
                "pass it as a state, by `compile_with_state` or `implicit_with_state`",
            ));
        }
        // Within a step of another state its tokens are counted with those of that.
        if reader.is_made() && !in_step() {
            return Ok(Self { traced: false, ..count.later(0) });
        }
        // What is lent or given back is as it was, so that a step begins with the number that its structure says.
        Ok(Self { traced: count.traced || reader.is_traced(), ..count })
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if !reader.is_made() {
            *self = Self::unflatten(reader)?;
            return Ok(());
        }
        let entered = reader.enter(WRITTEN)?;
        let (step, after) = (entered.static_field::<i32>(STEP)?, template(&entered)?);
        let mut settled = self.settled();
        // A trace whose state refuses what it leaves is not kept.
        if !reader.is_replayed() {
            if (after.cache, after.before, after.padded) != (settled.cache, settled.before, settled.padded) {
                return Err(Error::invalid(
                    "a step leaves another cache in the place of the one that it was given, or trims or pads that one",
                    "put another cache there, or trim or pad the one that is there, outside a step",
                ));
            }
            if after.slots.capacity != settled.slots.capacity {
                let (slots, given) = (after.slots.capacity, settled.slots.capacity);
                return Err(Error::invalid(
                    format!("a step leaves {slots} slots to a cache that it was given with {given}"),
                    "reserve room before the step, by `KvCache::reserve`",
                ));
            }
        }
        settled.add(step - settled.step)?;
        *self = settled.settled();
        Ok(())
    }
}

/// A number that no other cache has.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What a cache was whose structure this is.
fn template(entered: &Entered<'_>) -> Result<Written> {
    let count = entered.template::<Written>().copied();
    count.ok_or_else(|| Error::invalid("a cache is not made of its arrays alone", "pass it as a state"))
}
