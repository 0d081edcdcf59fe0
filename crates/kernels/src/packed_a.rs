//! Packed A: rows of the left-hand side of a product, in the order in which the microkernel reads them.

use std::{
    slice,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    Isa, Operand,
    copy::{Block, copy},
    factors::scale,
    microkernel::{DEPTH, PanelA},
    simd::{Kernel, LINE_FLOATS, Simd, run},
};

/// Floats that a thread keeps room for until its next product.
const KEPT: usize = 1 << 22;

/// A cache line, so that no vector of a panel spans two.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line(#[expect(dead_code, reason = "read through a pointer")] pub(crate) [f32; LINE_FLOATS]);

/// Some rows of `x`, and how they are cut into panels of A, each as high as a microkernel.
#[derive(Clone, Copy)]
pub(crate) struct PackedRows<'a> {
    /// No others have the same.
    id: usize,
    x: Operand<'a>,
    /// What all numbers are multiplied by.
    factor: f32,
    first: usize,
    pub(crate) count: usize,
    /// Rows of a panel of A, of which the last may have fewer.
    pub(crate) height: usize,
    /// Whether they are read where they lie.
    in_place: bool,
}

/// A number that nothing else gets in this process.
pub(crate) fn unique() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<'a> PackedRows<'a> {
    pub(crate) fn new(isa: Isa, x: Operand<'a>, factor: f32, first: usize, rows: usize, cache: usize) -> Self {
        // Tiles of nearly equal height waste less of the registers than full ones and a rest.
        let height = rows.div_ceil(rows.div_ceil(run(isa, Height)));
        let count = rows.div_ceil(height);
        let in_place = factor.to_bits() == 1.0_f32.to_bits() && lies_well(&x, rows, cache);
        Self { id: unique(), x, factor, first, count, height, in_place }
    }

    /// Floats of the part of a panel of A for some steps.
    fn floats(&self, lanes: usize) -> usize {
        (lanes * DEPTH.min(self.x.columns())).next_multiple_of(LINE_FLOATS)
    }
}

/// Whether rows of `x` are read as fast where they lie as from a copy: their steps lie side by side, the rows do not all
/// fall into the same few cache sets, and all of them stay in the cache.
fn lies_well(x: &Operand, rows: usize, cache: usize) -> bool {
    let stride = x.matrix.stride;
    x.is_plain() && !stride.is_multiple_of(2 * DEPTH) && rows * stride * size_of::<f32>() <= cache / 2
}

/// Rows of the register tile.
struct Height;

impl Kernel for Height {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::ROWS
    }
}

/// What a thread has packed of some rows.
///
/// Each thread has its own: what another one has just written takes longer to read than to copy.
#[derive(Default)]
pub(crate) struct PackedA {
    rows_id: usize,
    /// For each [`DEPTH`] steps and each panel of A: step by step a vector, which holds the number of each row.
    lines: Vec<Line>,
    /// Whether the part of a panel of A for these steps is there.
    done: Vec<bool>,
}

impl PackedA {
    /// Forgets what belongs to other rows.
    pub(crate) fn begin(&mut self, packed_rows: &PackedRows, lanes: usize) {
        if packed_rows.in_place || self.rows_id == packed_rows.id {
            return;
        }
        self.rows_id = packed_rows.id;
        let parts = packed_rows.count * packed_rows.x.columns().div_ceil(DEPTH);
        let lines = parts * packed_rows.floats(lanes) / LINE_FLOATS;
        if self.lines.len() > lines.max(KEPT / LINE_FLOATS) {
            self.lines = Vec::new();
        }
        self.lines.resize(lines.max(self.lines.len()), Line([0.0; LINE_FLOATS]));
        self.done.clear();
        self.done.resize(parts, false);
    }

    /// The panel of A that starts with this row, of so many steps from `start` on.
    #[inline(always)]
    pub(crate) fn panel<S: Simd>(
        &mut self,
        packed_rows: &PackedRows,
        isa: Isa,
        row: usize,
        start: usize,
        depth: usize,
    ) -> PanelA {
        let x = packed_rows.x;
        let (from, stride) = (x.at(packed_rows.first + row, start), x.matrix.stride);
        if packed_rows.in_place {
            return PanelA::InPlace(from, stride);
        }
        let part = start / DEPTH * packed_rows.count + row / packed_rows.height;
        let to = self.lines.as_mut_ptr().cast::<f32>().wrapping_add(part * packed_rows.floats(S::LANES));
        if !self.done[part] {
            self.done[part] = true;
            // Whole vectors are copied faster; what belongs to the next panel of A is not looked at.
            let height = S::LANES.min(x.rows() - packed_rows.first - row);
            let (rows, columns) = if x.is_plain() { (height, depth) } else { (depth, height) };
            let block = Block { from, stride, rows, columns, to, to_stride: S::LANES, next: 0 };
            // SAFETY: the rows and steps lie in `x`, and the part has a vector for each of the steps.
            unsafe { copy(isa, block, x.orientation.transposed()) };
            if packed_rows.factor.to_bits() != 1.0_f32.to_bits() {
                // SAFETY: they were just written.
                scale(unsafe { slice::from_raw_parts_mut(to, depth * S::LANES) }, packed_rows.factor);
            }
        }
        PanelA::Packed(to)
    }
}
