//! Which token is in which slot, on the host and in the graph.

use mlx_rs::{Array, ops};
use tacit_core::Result;

use super::Window;

/// The slots of a buffer: a line, or behind the sinks a ring that is written again and again once it is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) capacity: i32,
    pub(super) window: Window,
}

/// What of other slots stands in some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// The slots from one on to before another.
    Kept(i32, i32),
    /// So many empty slots.
    Empty(i32),
}

impl Run {
    /// Runs with one more behind them.
    pub(super) fn pushed(mut runs: Vec<Self>, next: Self) -> Vec<Self> {
        match (runs.last_mut(), next) {
            (Some(Self::Kept(_, end)), Self::Kept(from, to)) if *end == from => *end = to,
            (Some(Self::Empty(count)), Self::Empty(more)) => *count += more,
            _ => runs.push(next),
        }
        runs
    }

    pub(super) fn is_empty(self) -> bool {
        match self {
            Self::Kept(from, to) => from >= to,
            Self::Empty(count) => count < 1,
        }
    }
}

impl Slots {
    /// The sinks and the slots of the ring, if there is one.
    fn ring(self) -> Option<(i32, i32)> {
        let (size, sinks) = self.window.bounds()?;
        (self.capacity >= size.saturating_add(sinks)).then_some((sinks, self.capacity - sinks))
    }

    /// The slot of a token, counted from the first.
    fn slot(self, token: i32) -> i32 {
        match self.ring() {
            Some((sinks, ring)) if token >= self.capacity => sinks + (token - sinks) % ring,
            _ => token,
        }
    }

    /// The token in a slot where there are so many; none where that is not sure to be one.
    pub(super) fn token(self, slot: i32, total: i32) -> Option<i32> {
        let token = match self.ring() {
            Some((sinks, ring)) if slot >= sinks => total - 1 - (total - 1 - slot).rem_euclid(ring),
            _ => slot,
        };
        (token >= slot && token < total).then_some(token)
    }

    /// The same tokens in other slots, where the first one behind the sinks is preceded by `shift` positions of padding.
    ///
    /// `kept` says which tokens there are.
    pub(super) fn moved(self, to: Self, total: i32, shift: i32, kept: impl Fn(i32) -> bool) -> Vec<Run> {
        let sinks = self.window.bounds().map_or(0, |(_, sinks)| sinks);
        let run = |slot| {
            let token = to.token(slot, total + shift).filter(|token| !(sinks..sinks + shift).contains(token));
            let token = token.map(|token| if token < sinks { token } else { token - shift });
            let slot = token.filter(|&token| (0..total).contains(&token) && kept(token)).map(|token| self.slot(token));
            slot.map_or(Run::Empty(1), |slot| Run::Kept(slot, slot + 1))
        };
        (0..to.capacity).map(run).fold(Vec::new(), Run::pushed)
    }

    /// The runs of these slots in the order of their tokens, of which `kept` says which there are.
    pub(super) fn in_order(self, total: i32, kept: impl Fn(i32) -> bool) -> Vec<Run> {
        let slots = (0..total).filter(|&token| kept(token)).map(|token| self.slot(token));
        slots.map(|slot| Run::Kept(slot, slot + 1)).fold(Vec::new(), Run::pushed)
    }

    /// The slots of tokens: `i32[n]` both.
    pub(super) fn of(self, tokens: &Array) -> Result<Array> {
        let Some((sinks, ring)) = self.ring() else { return Ok(tokens.clone()) };
        let sinks = Array::from_int(sinks);
        let around = tokens.subtract(&sinks)?.remainder(Array::from_int(ring))?.add(&sinks)?;
        Ok(ops::select(tokens.lt(Array::from_int(self.capacity))?, tokens, around)?)
    }

    /// The token in each slot where there are `total: i32[1]`, and -1 where there is none: `i32[1, capacity]`.
    pub(super) fn tokens(self, total: &Array) -> Result<Array> {
        let slots = ops::arange::<_, i32>(0, self.capacity, None)?;
        let tokens = match self.ring() {
            None => slots.clone(),
            Some((sinks, ring)) => {
                let last = total.subtract(Array::from_int(1))?;
                let ago = last.subtract(&slots)?.remainder(Array::from_int(ring))?;
                let around = last.subtract(ago)?;
                if sinks == 0 { around } else { ops::select(slots.lt(Array::from_int(sinks))?, &slots, around)? }
            }
        };
        let there = tokens.ge(&slots)?.logical_and(tokens.lt(total)?)?;
        Ok(ops::select(there, tokens, Array::from_int(-1))?.reshape(&[1, self.capacity])?)
    }
}
