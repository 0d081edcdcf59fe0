//! bitsandbytes' 4-bit `NormalFloat`.

use tacit_core::register_array;
use tacit_kernels::nf4;

use crate::format::options::bitsandbytes_format;
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of any shape in 4 bits an element, bit for bit as bitsandbytes stores it.
///
/// The elements are flattened row-major and cut into blocks of 32, 64 (the usual choice), 128, up to 4096; each
/// block has its largest magnitude as its scale, and each element the 4-bit code of a quantile of the normal
/// distribution. Transposing a matrix is a view. The codes are `u8[ceil(size/2)]`, two to a byte, the first in the high
/// nibble; the scales `f32[ceil(size/block)]`.
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
pub type Nf4Array = PackedArray<Nf4>;

/// bitsandbytes' NF4: 4-bit quantiles of the normal distribution, in blocks counted row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nf4 {
    /// Elements that share a scale: a power of two from 32 to 4096.
    pub block: usize,
    /// Whether the scales are quantized to 8 bits, too.
    pub double: bool,
}

bitsandbytes_format!(Nf4, "nf4", nf4::CODEBOOK);
register_format!(Nf4);
register_array!(Nf4Array);
