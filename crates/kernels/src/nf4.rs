//! NF4, the 4-bit `NormalFloat` of bitsandbytes.
//!
//! A matrix is flattened row-major and cut into blocks of 32 to 4096 elements, which may straddle rows; the last one
//! may be short. A block stores `absmax`, the largest magnitude in it, and for each element the 4-bit code of
//! `x * (1 / max(absmax, 1e-38))` in [`CODEBOOK`]. Element `2j` is the high nibble of byte `j`; an odd length is
//! padded by the code of 0. The value of a code is `CODEBOOK[code] * absmax`.

use crate::{Encoder, nearest::bitsandbytes, search::Search};

/// The value of each code, in units of the block's absmax.
#[allow(clippy::excessive_precision)]
pub const CODEBOOK: [f32; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

/// The scaled value above which code `i + 1` is chosen over code `i`; a value on a threshold takes the lower code. Both tables
/// are those of bitsandbytes' CUDA kernels, bit for bit.
#[allow(clippy::excessive_precision)]
pub const THRESHOLDS: [f32; 15] = [
    -0.848_096_400_499_343_9,
    -0.610_632_926_225_662_2,
    -0.459_995_269_775_390_6,
    -0.339_679_434_895_515_44,
    -0.234_607_405_960_559_84,
    -0.137_911_733_239_889_14,
    -0.045_525_018_125_772_476,
    0.039_790_149_778_127_67,
    0.120_255_250_483_751_3,
    0.203_521_251_678_466_8,
    0.292_013_771_831_989_3,
    0.389_312_535_524_368_3,
    0.501_663_416_624_069_2,
    0.642_786_920_070_648_2,
    0.861_478_417_811_801_1,
];

/// The code that fills a last byte up: that of 0.
pub const PADDING: u8 = 7;

/// The encoder of blocks of `block` elements, a power of two from 32 to 4096, with the absmax of each.
///
/// Every value is the one that bitsandbytes computes, to the bit; NaN and infinities, of which it stores a block of garbage,
/// are refused.
#[must_use]
pub fn encoder(block: usize) -> Encoder {
    const SEARCH: Search = Search::new(THRESHOLDS, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    bitsandbytes(block, &SEARCH, PADDING)
}
