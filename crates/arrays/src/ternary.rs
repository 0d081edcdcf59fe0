//! -1, 0 and 1, times a scale.

use mlx_rs::Array;
use tacit_core::Result;

use crate::flat::flat_array;

flat_array! {
    /// An array of any shape in 2 bits an element: -1, 0 or 1, times the scale of its block.
    ///
    /// The elements are flattened row-major and cut into blocks, often a whole row; the scale is the mean magnitude.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::TernaryArray;
    /// use tacit_core::implicit;
    ///
    /// let w = TernaryArray::quantize_rows(&ops::ones::<f32>(&[8, 32])?)?;
    /// let x = ops::ones::<f32>(&[2, 32])?;
    /// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
    /// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The rule is that of `BitNet` b1.58 (Ma et al., 2024).
    pub struct TernaryArray {
        /// Four codes to a byte, the first in the lowest bits, each the value plus one: `u8[ceil(size/4)]`.
        packed,
        /// The scale of each block: `f32[ceil(size/block_size)]`.
        scales,
    }
    "tacit.Ternary", TERNARY, Ternary, check_block
}

impl TernaryArray {
    /// Quantizes each row of `x`, along its last axis, with a scale of its own.
    ///
    /// # Errors
    ///
    /// As [`quantize`](Self::quantize).
    pub fn quantize_rows(x: &Array) -> Result<Self> {
        Self::quantize(x, x.shape().last().map_or(1, |&last| last.max(1) as usize))
    }
}
