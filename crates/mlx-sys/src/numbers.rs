//! The number types of `mlx-c` that Rust has none for, and its half-precision part, which its headers declare on Arm only.

use crate::mlx_array;

/// A complex number.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq)]
#[repr(C)]
pub struct __BindgenComplex<T> {
    pub re: T,
    pub im: T,
}

/// A complex number of two floats.
pub type mlx_complex64_t = __BindgenComplex<f32>;

/// The bits of an IEEE half-precision number.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq)]
#[repr(transparent)]
pub struct __BindgenFloat16(pub u16);

/// The bits of an IEEE half-precision number.
pub type float16_t = __BindgenFloat16;

/// The bits of a bfloat16 number.
pub type bfloat16_t = u16;

unsafe extern "C" {
    /// Writes the value of a scalar array, evaluating it first; not 0 on an error.
    pub fn mlx_array_item_float16(res: *mut float16_t, arr: mlx_array) -> ::std::os::raw::c_int;
    /// Writes the value of a scalar array, evaluating it first; not 0 on an error.
    pub fn mlx_array_item_bfloat16(res: *mut bfloat16_t, arr: mlx_array) -> ::std::os::raw::c_int;
    /// Returns the data of an evaluated array, or null on an error.
    pub fn mlx_array_data_float16(arr: mlx_array) -> *const float16_t;
    /// Returns the data of an evaluated array, or null on an error.
    pub fn mlx_array_data_bfloat16(arr: mlx_array) -> *const bfloat16_t;
}
