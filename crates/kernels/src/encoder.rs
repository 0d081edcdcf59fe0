//! How floats become codes: a format is one declaration, and the loops are written once.

use std::sync::Arc;

use crate::{
    Order, ScaleRule,
    search::{FarSearch, Search},
};

/// What a format makes of floats: a scale of each block, and a code of each element by its block's scale.
///
/// Each format's module has its own, such as [`nf4::encoder`](crate::nf4::encoder); of a table of values it is that of
/// [`Table`](crate::nearest::Table).
///
/// ```
/// use tacit_kernels::{BlockScales, nf4};
///
/// let (mut codes, mut absmax) = ([0; 2], [0.0]);
/// nf4::encoder(64).quantize(&[1.0, -2.0, 0.0], &mut codes, BlockScales::Floats(&mut absmax))?;
/// assert_eq!((codes, absmax), ([0xc0, 0x77], [2.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Encoder {
    /// Elements of a block.
    pub(crate) block: usize,
    /// Which blocks the format has.
    pub(crate) blocks: BlockRule,
    /// Which end of a byte is filled first.
    pub(crate) order: Order,
    /// The code that fills a last byte up.
    pub(crate) padding: u8,
    pub(crate) rule: Rule,
}

/// Which blocks a format has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BlockRule {
    Any,
    /// The block sizes of bitsandbytes.
    PowerOfTwo,
    /// The last one is whole, too.
    Whole,
}

/// What the scale of a block is, and what an element's code is by it.
#[derive(Clone, Debug)]
pub(crate) enum Rule {
    /// The scale by the top of up to sixteen values, and the nearest of these.
    Nearest { search: Box<Search>, top: Top, bits: u32 },
    /// The same of 256 values.
    NearestByte { search: Arc<FarSearch>, top: Top },
    /// A power of two, and E2M1.
    Mxfp4(ScaleRule),
    /// A power of two, and E4M3.
    Mxfp8(ScaleRule),
    /// E4M3 relative to the largest magnitude of a tensor, and E2M1.
    Nvfp4 { global_scale: Option<f32> },
    /// The absmax, and integers.
    Int8,
    /// The largest element over the least integer of so many bits, and these integers.
    Symmetric { bits: u32 },
    /// A scale and a bias from the range, and unsigned integers of so many bits.
    Affine { bits: u32 },
    /// The mean magnitude; -1, 0 or 1.
    Ternary,
    /// The mean magnitude, and the sign.
    Binary,
}

/// The values of a table that the outermost elements of a block take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Top {
    /// The largest magnitude: the scale is the absmax over it.
    Absmax(f32),
    /// The least value, below zero, and the greatest, above it: the scale is the least by which they reach both ends of the block.
    Reach([f32; 2]),
}

/// The scales of blocks, one a block: written, of `&mut` slices, or given.
#[derive(Clone, Copy, Debug)]
pub enum BlockScales<F, B> {
    /// Floats.
    Floats(F),
    /// Floats of 8 bits: powers of two, or E4M3.
    Bytes(B),
    /// A scale and a bias.
    Biased(F, F),
}

impl Encoder {
    /// A format with blocks of any size, whose codes lie low first and are filled up by zeros.
    pub(crate) fn new(block: usize, rule: Rule) -> Self {
        Self { block, blocks: BlockRule::Any, order: Order::LowFirst, padding: 0, rule }
    }

    /// The same with blocks of so many elements, also of a size that the format has not: to code elements by scales that are
    /// [given](Self::quantize_by), which are then those of as many.
    ///
    /// ```
    /// use tacit_kernels::{BlockScales, nf4};
    ///
    /// let mut codes = [0; 1];
    /// nf4::encoder(64).with_block(1).quantize_by(&[1.0, -1.0], BlockScales::Floats(&[1.0, 2.0]), &mut codes)?;
    /// assert_eq!(codes, [0xf2]);
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    #[must_use]
    pub fn with_block(self, block: usize) -> Self {
        Self { block, blocks: BlockRule::Any, ..self }
    }

    /// The same with this end of a byte filled first; codes of other than 1, 2 and 4 bits are one stream in either order.
    ///
    /// ```
    /// use tacit_kernels::{BlockScales, Order, nearest::Table};
    ///
    /// let (mut codes, mut scales) = ([0; 1], [0.0]);
    /// let encoder = Table::new(&[-2.0, -0.5, 0.0, 2.0])?.encoder(4).with_order(Order::HighFirst);
    /// encoder.quantize(&[4.0, -1.0, -3.0, 0.1], &mut codes, BlockScales::Floats(&mut scales))?;
    /// assert_eq!((codes, scales), ([0b11_01_00_10], [2.0]));
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    #[must_use]
    pub fn with_order(self, order: Order) -> Self {
        Self { order, ..self }
    }
}
