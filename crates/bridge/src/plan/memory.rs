//! Where the arrays of a plan lie while it runs.

use std::borrow::Cow;

use crate::Aval;
use crate::ffi::{Buffer, Span};
use crate::kernel::{Input, Output};

/// What a dense array is.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    pub(super) aval: Aval,
    /// The bytes of the aval, whose extents lie all over memory where there are hundreds.
    pub(super) bytes: usize,
}

impl Dense {
    pub(super) fn new(aval: Aval) -> Self {
        Self { bytes: aval.nbytes(), aval }
    }
}

/// Where an array lies.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) memory: Memory,
    /// In bytes.
    pub(super) offset: usize,
    pub(super) array: Dense,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Input(usize),
    Output(usize),
    Arena,
}

/// Where the memories of a run begin.
pub(super) struct Bases<'a> {
    pub(super) inputs: &'a [Buffer],
    pub(super) outputs: &'a [Buffer],
    pub(super) arena: *mut u8,
}

// SAFETY: it only says where memory begins; whoever uses that says why it may.
unsafe impl Sync for Bases<'_> {}

impl Bases<'_> {
    pub(super) fn at(&self, place: &Place) -> *mut u8 {
        let base = match place.memory {
            Memory::Input(at) => self.inputs[at].data.cast(),
            Memory::Output(at) => self.outputs[at].data.cast(),
            Memory::Arena => self.arena,
        };
        base.wrapping_add(place.offset)
    }

    /// Copies an array, unless it is there already.
    ///
    /// # Safety
    ///
    /// Both places are within their memory, are equally long, and are apart or the same; nobody else uses the second one.
    pub(super) unsafe fn copy(&self, from: &Place, to: &Place) {
        let (from, to, bytes) = (self.at(from), self.at(to), to.array.bytes);
        if from != to && bytes > 0 {
            // SAFETY: as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        }
    }
}

/// # Safety
///
/// This array is at `data`, and nobody writes it while the result lives.
pub(super) unsafe fn input(data: *const u8, array: &Dense) -> Input<'_> {
    // SAFETY: as the caller promises; arenas are zeros before anything else, and what MLX gives is initialized to Rust.
    Input::new(unsafe { Span { data, count: array.bytes }.get() }, Cow::Borrowed(&array.aval))
}

/// An array of this aval that is where an output is.
pub(super) fn in_place(output: usize, aval: &Aval) -> Input<'_> {
    Input::in_place(output, Cow::Borrowed(aval))
}

/// # Safety
///
/// There is room for this array at `data`, and nobody else uses it while the result lives.
pub(super) unsafe fn output(data: *mut u8, array: &Dense, fresh: bool) -> Output<'_> {
    // SAFETY: as the caller promises.
    unsafe { Output::new(data, array.bytes, Cow::Borrowed(&array.aval), fresh) }
}
