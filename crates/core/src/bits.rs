//! Equality to the last bit.

use mlx_rs::{Array, Dtype};
use tacit_bridge::{Aval, array_id};

use crate::Result;

/// Whether two arrays are one, or of one aval and equal to the last bit.
///
/// # Errors
///
/// They cannot be evaluated.
pub fn same_bits(a: &Array, b: &Array) -> Result<bool> {
    if array_id(a) == array_id(b) {
        return Ok(true);
    }
    Ok(Aval::from(a) == Aval::from(b) && equal_bits(a, b)?)
}

/// The same of two arrays of one aval, which are evaluated also where they are one.
pub(crate) fn equal_bits(a: &Array, b: &Array) -> Result<bool> {
    Ok(bits(a)?.eq_exact(bits(b)?)?)
}

/// Each element as the number of its bits, in the shape of the array: an axis of all its bytes may be longer than MLX counts.
fn bits(array: &Array) -> Result<Array> {
    let dtype = match array.item_size() {
        1 => Dtype::Uint8,
        2 => Dtype::Uint16,
        4 => Dtype::Uint32,
        _ => Dtype::Uint64,
    };
    Ok(array.view_dtype(dtype)?)
}

#[cfg(test)]
mod tests {
    use mlx_rs::ops;

    use super::*;

    fn same(a: &Array, b: &Array) -> bool {
        same_bits(a, b).expect("evaluates")
    }

    #[test]
    fn bits_are_compared_and_not_numbers() {
        let floats = |numbers: [f32; 4]| Array::from_slice(&numbers, &[2, 2]);
        let x = floats([0.0, f32::NAN, 1.0, 2.0]);
        assert!(same(&x, &floats([0.0, f32::NAN, 1.0, 2.0])));
        assert!(!same(&x, &floats([-0.0, f32::NAN, 1.0, 2.0])));
        assert!(!same(&x, &x.t()));
        assert!(same(&x.t(), &floats([0.0, 1.0, f32::NAN, 2.0])));
        assert!(!same(&Array::from_bool(true), &Array::from_slice(&[1u8], &[])));
        let dtypes = [Dtype::Bool, Dtype::Int8, Dtype::Float16, Dtype::Bfloat16, Dtype::Int64, Dtype::Complex64];
        for dtype in dtypes {
            let [one, again, none] = [1, 1, 0].map(|number| Array::from_int(number).as_dtype(dtype).expect("casts"));
            assert!(same(&one, &again) && !same(&one, &none), "{dtype:?}");
        }
    }

    #[test]
    fn arrays_without_elements_are_the_same() {
        let empty = |shape: &[i32]| ops::zeros::<f32>(shape).expect("zeros");
        assert!(same(&empty(&[0, 3]), &empty(&[0, 3])));
        assert!(!same(&empty(&[0, 3]), &empty(&[3, 0])));
    }

    #[test]
    fn arrays_of_more_bytes_than_an_axis_has_are_compared_whole() {
        // 2^32 bytes, which as an extent of 32 bits are zero.
        let repeated = |number: i64| {
            ops::broadcast_to(Array::from_slice(&[number], &[]), &[1 << 15, 1 << 14]).expect("broadcasts")
        };
        assert!(!same(&repeated(1), &repeated(2)));
    }
}
