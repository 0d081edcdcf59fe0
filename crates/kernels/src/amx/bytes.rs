//! Sums of products of bytes.

use std::arch::asm;

use super::{TILE, Tiles};

/// Rows of `x` whose bytes are multiplied at a time.
pub(crate) const ROWS: usize = 2 * TILE;

/// Bytes of a row that one instruction takes.
pub(crate) const BYTES: usize = 64;

/// Writes the sums of the products of 32 rows of signed bytes with 32 columns of unsigned ones to `to`, row by row.
///
/// # Safety
/// `steps` times [`BYTES`] bytes are readable in [`ROWS`] rows at `x`, `stride` bytes apart, and 32 times as many at
/// `panel`, where four of each column follow each other; `to` has room.
pub(crate) unsafe fn multiply_bytes(
    _: &Tiles,
    x: *const i8,
    stride: usize,
    panel: *const u8,
    steps: usize,
    to: *mut i32,
) {
    // SAFETY: the caller's promise; there are tiles.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{x} + {stride}]",
            "tileloadd tmm6, [{w} + {line}]",
            "tileloadd tmm7, [{w} + {line} + 64]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{y} + {stride}]",
            "tdpbsud tmm1, tmm4, tmm7",
            "tdpbsud tmm2, tmm5, tmm6",
            "tdpbsud tmm3, tmm5, tmm7",
            "add {x}, 64",
            "add {y}, 64",
            "add {w}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{to} + {line}], tmm0",
            "tilestored [{to} + {line} + 64], tmm1",
            "tilestored [{to} + {line} + 2048], tmm2",
            "tilestored [{to} + {line} + 2112], tmm3",
            x = inout(reg) x => _,
            y = inout(reg) x.add(TILE * stride) => _,
            w = inout(reg) panel => _,
            steps = inout(reg) steps => _,
            to = in(reg) to,
            stride = in(reg) stride,
            line = in(reg) 128_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
