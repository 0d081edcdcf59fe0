//! FP4, the 4-bit float of bitsandbytes: sign, two bits of exponent, one of mantissa, in a coding of its own.
//!
//! The layout is that of [`nf4`](crate::nf4): flat blocks of 32 to 4096 elements with their absmax, element `2j` in the
//! high nibble of byte `j`, an odd length padded by the code of 0. The value of a code is `CODEBOOK[code] * absmax`. It
//! is not OCP's E2M1, which [`mx`](crate::mx) and [`nvfp4`](crate::nvfp4) use.

use crate::{Encoder, nearest::bitsandbytes, search::Search};

/// The value of each code, in units of the block's absmax; the fourth bit is the sign, save that both zeros are positive.
pub const CODEBOOK: [f32; 16] = {
    let twelfths = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];
    let mut values = [0.0; 16];
    let mut code = 0;
    while code < 8 {
        values[code] = twelfths[code] / 12.0;
        values[code + 8] = if code == 0 { 0.0 } else { -twelfths[code] / 12.0 };
        code += 1;
    }
    values
};

/// The codes from the least value to the greatest. bitsandbytes' backend for the CPU uses both codes of zero: the second
/// for small positive elements.
const SORTED: [u8; 16] = [11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3];

/// The encoder of blocks of `block` elements, a power of two from 32 to 4096, with the absmax of each.
///
/// An element takes the nearest value; halfway between two, the lesser, as in bitsandbytes' backend for the CPU.
///
/// ```
/// use tacit_kernels::{BlockScales, fp4};
///
/// let (mut codes, mut absmax) = ([0; 2], [0.0]);
/// fp4::encoder(64).quantize(&[12.0, -8.0, 2.1, 0.0], &mut codes, BlockScales::Floats(&mut absmax))?;
/// assert_eq!((codes, absmax), ([0x3a, 0x60], [12.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn encoder(block: usize) -> Encoder {
    const SEARCH: Search = {
        let mut thresholds = [0.0; 15];
        let mut rank = 0;
        while rank < 15 {
            let (below, above) = (SORTED[rank] as usize, SORTED[rank + 1] as usize);
            thresholds[rank] = f32::midpoint(CODEBOOK[below], CODEBOOK[above]);
            rank += 1;
        }
        Search::new(thresholds, SORTED)
    };
    bitsandbytes(block, &SEARCH, 0)
}
