//! bitsandbytes' 4-bit `NormalFloat`.

use crate::flat::{bitsandbytes_array, flat_array};

flat_array! {
    /// An array of any shape in 4 bits an element, bit for bit as bitsandbytes stores it.
    ///
    /// The elements are flattened row-major and cut into blocks of 32, 64 (the usual choice), 128, up to 4096; each
    /// block has its largest magnitude in `absmax`, and each element the 4-bit code of a quantile of the normal
    /// distribution. Transposing a matrix is a view.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::Nf4Array;
    /// use tacit_core::implicit;
    ///
    /// let w = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
    /// let x = ops::ones::<f32>(&[2, 32])?;
    /// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
    /// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The format is defined by the paper `QLoRA` (Dettmers et al., 2023) and by bitsandbytes' kernels.
    pub struct Nf4Array {
        /// Two codes to a byte, the first in the high nibble: `u8[ceil(size/2)]`.
        packed,
        /// The scale of each block: `f32[ceil(size/block_size)]`.
        absmax,
        /// Whether products with the transpose quantize the activations.
        int8_activations,
    }
    "tacit.Nf4", NF4, Nf4, check_block_size
}

bitsandbytes_array!(Nf4Array);
