//! bitsandbytes' 4-bit float.

use crate::flat::{bitsandbytes_array, flat_array};

flat_array! {
    /// An array of any shape in 4 bits an element, as bitsandbytes' FP4 stores it: sign, exponent, and one bit more.
    ///
    /// The elements are flattened row-major and cut into blocks of 32, 64 (the usual choice), 128, up to 4096; each
    /// block has its largest magnitude in `absmax`. It is not OCP's E2M1, which is that of
    /// [`Mxfp4Array`](crate::Mxfp4Array).
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::Fp4Array;
    /// use tacit_core::implicit;
    ///
    /// let w = Fp4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
    /// let x = ops::ones::<f32>(&[2, 32])?;
    /// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
    /// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The format is that of bitsandbytes' kernels.
    pub struct Fp4Array {
        /// Two codes to a byte, the first in the high nibble: `u8[ceil(size/2)]`.
        packed,
        /// The scale of each block: `f32[ceil(size/block_size)]`.
        absmax,
        /// Whether products with the transpose quantize the activations.
        int8_activations,
    }
    "tacit.Fp4", FP4, Fp4, check_block_size
}

bitsandbytes_array!(Fp4Array);
