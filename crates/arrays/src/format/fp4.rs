//! bitsandbytes' 4-bit float.

use tacit_core::register_array;
use tacit_kernels::fp4;

use crate::format::options::bitsandbytes_format;
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of any shape in 4 bits an element, as bitsandbytes' FP4 stores it: sign, exponent, and one bit more.
///
/// The elements are flattened row-major and cut into blocks of 32, 64 (the usual choice), 128, up to 4096; each
/// block has its largest magnitude as its scale. It is not OCP's E2M1, which is that of
/// [`Mxfp4Array`](crate::Mxfp4Array).
///
/// It is made as an [`Nf4Array`](crate::Nf4Array) is, and its codes and scales lie in the same way. The format is that of
/// bitsandbytes' kernels.
pub type Fp4Array = PackedArray<Fp4>;

/// bitsandbytes' FP4: 4-bit floats, in blocks counted row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp4 {
    /// Elements that share a scale: a power of two from 32 to 4096.
    pub block: usize,
    /// Whether the scales are quantized to 8 bits, too.
    pub double: bool,
}

bitsandbytes_format!(Fp4, "fp4", fp4::CODEBOOK);
register_format!(Fp4);
register_array!(Fp4Array);
