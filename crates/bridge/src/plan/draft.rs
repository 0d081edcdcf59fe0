//! A plan before its arrays have places: stages, buffers, and the values in them.

use std::ops::Range;
use std::sync::Arc;

use super::PlanValue;
use crate::Aval;
use crate::kernel::{Kernel, Pieces};

/// A part of a buffer.
pub(super) struct Value {
    pub(super) buffer: usize,
    /// In bytes.
    pub(super) offset: usize,
    pub(super) aval: Aval,
}

/// What one kernel writes, or an input.
pub(super) struct Buffer {
    pub(super) bytes: usize,
    pub(super) home: Home,
    /// The stages from the one that writes it first to the last one that uses it.
    pub(super) life: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Input(usize),
    Output(usize),
    /// The memory of another buffer, which begins as this one.
    Of(usize),
    /// At this offset, once that is known.
    Arena(usize),
    /// Nowhere as a whole: only stages of a chain use it, one piece after the other, at this offset of what each thread has for it.
    Piece(usize),
}

pub(super) struct Draft {
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) inputs: Vec<PlanValue>,
    pub(super) outputs: Vec<PlanValue>,
    pub(super) begins_as: Option<PlanValue>,
    pub(super) pieces: Option<Pieces>,
    /// The outputs that may lie in the memory of an input; once the places are known, those that may in this plan.
    pub(super) in_place: Vec<(usize, usize)>,
}

/// The buffer whose memory this one has.
pub(super) fn root(buffers: &[Buffer], mut buffer: usize) -> usize {
    while let Home::Of(other) = buffers[buffer].home {
        buffer = other;
    }
    buffer
}
