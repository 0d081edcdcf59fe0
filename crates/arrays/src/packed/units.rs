//! Where packed arrays can be cut: between blocks, between codes that share no byte, and between super-blocks.

use tacit_core::Value;
use tacit_core::kernel::Pieces;

use crate::families::packed::{Packed, Stored};
use crate::kernel::Coding;
use crate::packed::dynamic8::Dynamic8Array;

/// Scales that are integers with a factor for each super-block: `f32[rows, super-blocks, groups]`.
pub(crate) struct Supers<'a> {
    pub(crate) integers: &'a dyn Packed,
    pub(crate) rows: i32,
    pub(crate) groups: i32,
    /// Elements of a super-block.
    pub(crate) elements: usize,
}

impl<'a> Supers<'a> {
    pub(crate) fn new(stored: &'a Stored) -> Option<Self> {
        let (integers, stored_integers) = integers(stored.scales.as_ref()?)?;
        let &[rows, _, groups] = stored_integers.aval.shape.as_slice() else { return None };
        Some(Self { integers, rows, groups, elements: stored.block * groups as usize })
    }
}

/// Scales that are integers themselves, and what they are made of.
pub(crate) fn integers(scales: &Value) -> Option<(&dyn Packed, Stored)> {
    let array = scales.family::<dyn Packed>()?;
    let stored = array.stored();
    matches!(stored.scheme.coding, Coding::Signed).then_some((array, stored))
}

impl Stored {
    /// The scales as codes of their own, of the double quantization, if they are such.
    pub(crate) fn double_quantized(&self) -> Option<&Dynamic8Array> {
        self.scales.as_ref()?.downcast()
    }

    /// The elements after which a block ends and an element of the array of codes does, too.
    pub(crate) fn unit(&self) -> usize {
        self.unit_of(self.block)
    }

    /// The elements that have a scale in common, or the scale of their scales.
    pub(crate) fn reach(&self) -> usize {
        Supers::new(self).map_or(self.block, |supers| supers.elements)
    }

    /// The same in blocks of another size.
    pub(crate) fn unit_of(&self, block: usize) -> usize {
        let (bits, width) = (self.scheme.bits(), self.scheme.width());
        let codes = Pieces::common_unit(bits, width) / bits;
        let block = Supers::new(self).map_or(block, |supers| supers.elements);
        Pieces::common_unit(block, codes)
    }
}
