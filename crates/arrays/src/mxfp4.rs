//! OCP's MXFP4.

use crate::mx::mx_array;

mx_array! {
    /// An array of 4 bits an element, E2M1: sign, two bits of exponent, one of mantissa.
    ///
    /// Groups of 32 elements of the last axis share a power of two. The layout is that of MLX's mode `mxfp4`. Which
    /// power a group takes is the [`ScaleRule`](crate::ScaleRule)'s; versions of MLX differ in it, and decode all
    /// alike.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::{Mxfp4Array, ScaleRule};
    /// use tacit_core::implicit;
    ///
    /// let w = Mxfp4Array::quantize(&ops::ones::<f32>(&[8, 32])?, ScaleRule::Ceil)?;
    /// let x = ops::ones::<f32>(&[2, 32])?;
    /// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
    /// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The format is defined by OCP's Microscaling Formats specification 1.0.
    pub struct Mxfp4Array;
    "tacit.Mxfp4", MXFP4, Mxfp4, 8
}
