//! OCP's MXFP8.

use crate::mx::mx_array;

mx_array! {
    /// An array of 8 bits an element, E4M3: sign, four bits of exponent, three of mantissa.
    ///
    /// Groups of 32 elements of the last axis share a power of two. The layout is that of MLX's mode `mxfp8`. Which
    /// power a group takes is the [`ScaleRule`](crate::ScaleRule)'s; versions of MLX differ in it, and decode all
    /// alike.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::{Mxfp8Array, ScaleRule};
    /// use tacit_core::implicit;
    ///
    /// let w = Mxfp8Array::quantize(&ops::ones::<f32>(&[8, 32])?, ScaleRule::Ceil)?;
    /// let x = ops::ones::<f32>(&[2, 32])?;
    /// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
    /// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The format is defined by OCP's Microscaling Formats specification 1.0.
    pub struct Mxfp8Array;
    "tacit.Mxfp8", MXFP8, Mxfp8, 4
}
