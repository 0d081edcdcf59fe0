//! How much room NF4's codes and scales take.

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
