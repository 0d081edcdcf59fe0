//! Arrays whose elements are written where they stay.

use std::{ptr, slice};

use mlx_rs::Array;

use crate::arrays::filled;
use crate::{Aval, BridgeError, ffi};

/// The elements of an array that is being made, as bytes.
///
/// What reads a file decodes it into such a buffer: the numbers are in memory once, and not beside the array that is made of
/// them.
#[derive(Debug)]
pub struct Buffer {
    array: Array,
    /// Of the elements; null where there are none.
    data: *mut u8,
}

impl Buffer {
    /// The elements of an array of this aval, all zero.
    ///
    /// # Errors
    ///
    /// An extent is negative, or there is no memory for so many elements.
    pub fn new(aval: &Aval) -> Result<Self, BridgeError> {
        if aval.shape.iter().any(|&extent| extent < 0) {
            return Err(BridgeError::NegativeExtent(aval.shape.clone()));
        }
        if aval.checked_nbytes().is_none() {
            return Err(BridgeError::Mlx(format!("{aval} has more bytes than memory can")));
        }
        let mut data = ptr::null_mut();
        // SAFETY: the shape is a live slice.
        let array = filled(|made| unsafe {
            let (shape, ndim) = (aval.shape.as_ptr(), aval.shape.len());
            ffi::tacit_array_zeroed(shape, ndim, aval.dtype as i32, made, &raw mut data)
        })?;
        Ok(Self { array, data: data.cast() })
    }

    /// The elements, row by row and little-endian. Those of a `bool` must be 0 or 1.
    #[must_use]
    pub fn bytes(&mut self) -> &mut [u8] {
        if self.data.is_null() {
            return &mut [];
        }
        // SAFETY: the data are those of `array`, which nobody else holds yet, and were all set.
        unsafe { slice::from_raw_parts_mut(self.data, self.array.nbytes()) }
    }

    /// The array of these elements.
    #[must_use]
    pub fn into_array(self) -> Array {
        self.array
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::Dtype;

    use super::*;

    #[test]
    fn what_is_written_is_the_array() {
        let mut buffer = Buffer::new(&Aval::new(&[2, 3], Dtype::Uint16)).expect("fits");
        assert_eq!(buffer.bytes(), [0; 12]);
        buffer.bytes().iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
        let array = buffer.into_array();
        assert_eq!(array.shape(), [2, 3]);
        assert_eq!(array.as_slice::<u16>(), [0x0201, 0x0403, 0x0605, 0x0807, 0x0a09, 0x0c0b]);
        let sum = array.as_dtype(Dtype::Int32).and_then(|array| array.sum(None)).expect("sums");
        assert_eq!(sum.item_exact::<i32>(), 0x2a24);
    }

    #[test]
    fn no_elements_are_no_bytes_and_wrong_shapes_are_errors() {
        let mut none = Buffer::new(&Aval::new(&[0, 8], Dtype::Float32)).expect("fits");
        assert!(none.bytes().is_empty());
        assert_eq!(none.into_array().shape(), [0, 8]);
        let of =
            |shape: &[i32]| Buffer::new(&Aval::new(shape, Dtype::Float32)).map(drop).map_err(|error| error.to_string());
        assert_eq!(of(&[2, -1]).unwrap_err(), "the shape [2, -1] has a negative extent");
        let most = i32::MAX;
        assert_eq!(
            of(&[most, most, most]).unwrap_err(),
            "f32[2147483647,2147483647,2147483647] has more bytes than memory can"
        );
    }
}
