//! -1 and 1, times a scale.

use mlx_rs::Array;
use tacit_core::Result;

use crate::flat::flat_array;

flat_array! {
    /// An array of any shape in 1 bit an element: the sign, times the scale of its block.
    ///
    /// The elements are flattened row-major and cut into blocks, often a whole row; the scale is the mean magnitude.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::BinaryArray;
    /// use tacit_core::implicit;
    ///
    /// let w = BinaryArray::quantize_rows(&ops::ones::<f32>(&[8, 32])?)?;
    /// let x = ops::ones::<f32>(&[2, 32])?;
    /// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
    /// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The rule is that of `XNOR-Net` (Rastegari et al., 2016).
    pub struct BinaryArray {
        /// Eight codes to a byte, the first in the lowest bit, 1 for values from zero up: `u8[ceil(size/8)]`.
        packed,
        /// The scale of each block: `f32[ceil(size/block_size)]`.
        scales,
    }
    "tacit.Binary", BINARY, Binary, check_block
}

impl BinaryArray {
    /// Quantizes each row of `x`, along its last axis, with a scale of its own.
    ///
    /// # Errors
    ///
    /// As [`quantize`](Self::quantize).
    pub fn quantize_rows(x: &Array) -> Result<Self> {
        Self::quantize(x, x.shape().last().map_or(1, |&last| last.max(1) as usize))
    }
}
