//! The indices of numbers, partitioned as MLX does.

use crate::error::{BridgeError, check};
use crate::ffi;

/// Writes the places of `values` to `places`, as MLX's `argpartition` leaves them: those of smaller numbers than the one at
/// `kth` come before it. NaN is the greatest.
///
/// ```
/// let mut places = [0; 4];
/// tacit_bridge::arg_partition(&[3.0, 1.0, f32::NAN, 2.0], 1, &mut places)?;
/// assert_eq!(places[1], 3);
/// # Ok::<(), tacit_bridge::BridgeError>(())
/// ```
///
/// # Errors
///
/// `kth` is not among the values, or there are not as many places.
pub fn arg_partition(values: &[f32], kth: usize, places: &mut [u32]) -> Result<(), BridgeError> {
    if kth >= values.len() || values.len() != places.len() || u32::try_from(values.len()).is_err() {
        return Err(BridgeError::Mlx(format!(
            "the number at place {kth} of {} numbers is asked for, and there are {} places\nhelp: ask for one that is there, \
             and give a place for each number",
            values.len(),
            places.len()
        )));
    }
    // SAFETY: both slices are live for the call, of this length, and `kth` is below it.
    check(unsafe { ffi::tacit_arg_partition(values.as_ptr(), values.len(), kth, places.as_mut_ptr()) })
}
