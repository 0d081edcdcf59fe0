//! Symmetric 8-bit integers.

use mlx_rs::Array;
use tacit_core::{Aval, Error, Result};

use crate::flat::flat_array;

flat_array! {
    /// An array of any shape as signed bytes, with the largest magnitude of each row, column or block.
    ///
    /// An element is `code * (absmax / 127)`, where the codes run from -127 to 127. A row is a block of as many
    /// elements as the last axis has; a matrix with a scale for each column is the transpose of one with a scale for
    /// each row, and is stored so.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::Int8Array;
    /// use tacit_core::implicit;
    ///
    /// let w = Int8Array::quantize_rows(&ops::ones::<f32>(&[8, 32])?)?;
    /// let x = ops::ones::<f32>(&[2, 32])?;
    /// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
    /// assert!(y.dense()?.as_slice::<f32>().iter().all(|y| (y - 32.0).abs() < 1e-4));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With rows it is the weight of bitsandbytes' `LLM.int8` (Dettmers et al., 2022), whose `SCB` is `absmax`.
    pub struct Int8Array {
        /// One byte an element: `i8` of the stored shape.
        codes,
        /// The largest magnitude of each block: `f32[ceil(size/block_size)]`.
        absmax,
        /// Whether products with the transpose quantize the activations.
        int8_activations,
    }
    "tacit.Int8", INT8, Int8, check_block
}

impl Int8Array {
    /// Quantizes each row of `x`, along its last axis.
    ///
    /// # Errors
    ///
    /// As [`quantize`](Self::quantize).
    pub fn quantize_rows(x: &Array) -> Result<Self> {
        Self::quantize(x, x.shape().last().map_or(1, |&last| last.max(1) as usize))
    }

    /// Quantizes each column of the matrix `x`.
    ///
    /// # Errors
    ///
    /// As [`quantize`](Self::quantize), or `x` is not a matrix.
    pub fn quantize_columns(x: &Array) -> Result<Self> {
        if x.ndim() != 2 {
            return Err(Error::invalid(
                format!("{} is not a matrix, which alone has columns", Aval::from(x)),
                "quantize rows or blocks",
            ));
        }
        Ok(Self { transposed: true, aval: Aval::from(x), ..Self::quantize_rows(&x.t())? })
    }

    /// The same array, whose products `x W^T` quantize each row of `x` to 8 bits first.
    ///
    /// That is faster for many rows. The result differs from the float product by about 3e-3 of its largest magnitude,
    /// and by 1e-2 at worst. The
    /// backward pass and products `x W` stay in floats.
    #[must_use]
    pub fn with_int8_activations(self) -> Self {
        Self { int8_activations: true, ..self }
    }
}
