//! Arrays of codes and scales, and products with them, reduced to one with the packed side on the right.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value};

use crate::avals::axes::swapped;
use crate::kernel::Scheme;

/// The family of arrays of codes and scales: its members are multiplied, gathered, cut, joined and scaled by their codes.
pub trait Packed: ImplicitArray {
    /// The children by their part, and how they are read.
    fn stored(&self) -> Stored;

    /// This array with other children, of the same format and block.
    fn restored(&self, stored: Stored) -> Box<dyn ImplicitArray>;

    /// Whether the format of this array has blocks of so many elements, too.
    fn has_block(&self, block: usize) -> bool {
        block == self.stored().block
    }

    /// This array with other children, in blocks of a size that the format [has](Self::has_block).
    fn reblocked(&self, stored: Stored) -> Box<dyn ImplicitArray> {
        self.restored(stored)
    }

    /// Floats, whose last axis is that of the stored array, by the format of this array: what is written into it.
    ///
    /// # Errors
    ///
    /// The type does not quantize, or the floats do not fit its format.
    fn encoded(&self, rows: &Array) -> Result<Stored> {
        Err(Error::decline(format!("the type does not quantize {}", Aval::from(rows))))
    }

    /// The text of its format, as rules have it, if it is declared and has one: a transpose has none whose blocks are not its
    /// columns.
    fn format_text(&self) -> Option<String> {
        None
    }

    /// Whether products with the transpose round the activations to 8 bits.
    fn int8_activations(&self) -> bool {
        false
    }

    /// This array, whose products `x W^T` round the activations to 8 bits: see
    /// [`PackedArray::with_int8_activations`](crate::format::PackedArray::with_int8_activations), which knows the format.
    ///
    /// # Errors
    ///
    /// It has no such products.
    fn rounding_activations(&self) -> Result<Box<dyn ImplicitArray>> {
        Err(Error::decline("the type has no products with activations in 8 bits"))
    }
}

/// What every packed array is made of.
#[derive(Clone, Debug)]
pub struct Stored {
    /// How codes and scales are read.
    pub scheme: Scheme,
    /// The codes.
    pub codes: Array,
    /// One for each block; `None` where the codes are the values.
    pub scales: Option<Value>,
    /// The biases, one for each block; float.
    pub biases: Option<Array>,
    /// What all scales are relative to: `f32[]`.
    pub global_scale: Option<Array>,
    /// Elements in a block.
    pub block: usize,
    /// Whether the stored array has its last two axes the other way round.
    pub transposed: bool,
    /// The logical array.
    pub aval: Aval,
}

impl Stored {
    /// The shape in which the codes lie.
    pub(crate) fn shape(&self) -> Vec<i32> {
        if self.transposed { swapped(&self.aval.shape) } else { self.aval.shape.clone() }
    }
}

/// The same codes and scales, read in another float type without the rounding of their own.
pub(crate) fn read_in(array: &dyn Packed, dtype: Dtype) -> Value {
    let mut stored = array.stored();
    stored.aval.dtype = dtype;
    Value::from(array.restored(stored))
}
