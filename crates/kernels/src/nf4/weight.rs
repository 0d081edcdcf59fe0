//! A borrowed NF4 matrix, and the checks that every function makes before it touches memory.

use crate::KernelError;

/// An NF4 matrix of `n` rows of `k` elements.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// Two codes to a byte: `u8[packed_len(n * k)]`.
    pub packed: &'a [u8],
    /// The scale of each block: `f32[absmax_len(n * k, block)]`.
    pub absmax: &'a [f32],
    /// Elements in a block: a power of two from 32 to 4096.
    pub block: usize,
    /// Rows.
    pub n: usize,
    /// Elements in a row.
    pub k: usize,
}

/// The bytes that hold `elements` codes.
#[must_use]
pub const fn packed_len(elements: usize) -> usize {
    elements.div_ceil(2)
}

/// The blocks that `elements` elements are cut into; 0 where `block` is 0.
#[must_use]
pub const fn absmax_len(elements: usize, block: usize) -> usize {
    if block == 0 { 0 } else { elements.div_ceil(block) }
}

impl Weight<'_> {
    /// The number of elements, once the block size and both lengths are known to be right.
    pub(crate) fn check(&self) -> Result<usize, KernelError> {
        let elements = product(self.n, self.k)?;
        check_codes(self.packed, self.absmax, self.block, elements)?;
        Ok(elements)
    }

    /// `log2(block)`.
    pub(crate) fn shift(&self) -> u32 {
        self.block.trailing_zeros()
    }

    /// Whether each row starts on a word of eight codes, so that a word lies in one row and in one block.
    pub(crate) fn rows_are_words(&self) -> bool {
        self.k.is_multiple_of(8)
    }

    /// Whether each row starts on a block.
    pub(crate) fn rows_are_blocks(&self) -> bool {
        self.k.is_multiple_of(self.block)
    }
}

pub(crate) fn product(rows: usize, columns: usize) -> Result<usize, KernelError> {
    // Slices of f32 hold at most isize::MAX bytes; below that, no index or offset overflows.
    rows.checked_mul(columns)
        .filter(|&elements| elements <= isize::MAX as usize / 4)
        .ok_or(KernelError::Overflow { rows, columns })
}

pub(crate) fn check_length(
    name: &'static str,
    actual: usize,
    expected: usize,
    help: &'static str,
) -> Result<(), KernelError> {
    if actual == expected { Ok(()) } else { Err(KernelError::Length { name, expected, actual, help }) }
}

pub(crate) fn check_block(block: usize) -> Result<(), KernelError> {
    if block.is_power_of_two() && (32..=4096).contains(&block) { Ok(()) } else { Err(KernelError::BlockSize { block }) }
}

pub(crate) fn check_codes(packed: &[u8], absmax: &[f32], block: usize, elements: usize) -> Result<(), KernelError> {
    check_block(block)?;
    check_length("packed", packed.len(), packed_len(elements), "two elements share a byte")?;
    check_length("absmax", absmax.len(), absmax_len(elements, block), "each block of elements has one")
}
