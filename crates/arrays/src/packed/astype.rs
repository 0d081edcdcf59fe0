//! Packed arrays in other float types.

use mlx_rs::Dtype;
use tacit_core::primitives::AsType;
use tacit_core::{Error, Result, Value, handler};

use crate::avals::dtypes::{castable, holds};
use crate::families::packed::{Packed, read_in};
use crate::views::cast::Cast;

/// Another float type: the codes and scales as they are, read so, or a [`Cast`] where a rounding must show.
#[handler]
pub(crate) fn packed_astype(op: &AsType, array: &dyn Packed) -> Result<Value> {
    let dtype = op.dtype;
    if !castable(dtype) {
        return Err(Error::decline("only f32, bf16 and f16 are read as views"));
    }
    let own = array.aval()?.dtype;
    let read = |dtype| read_in(array, dtype);
    let half = array.stored().scheme.half();
    // Values that the array's own type holds as they are show no rounding in a wider one either.
    if holds(dtype, own) || half.is_some_and(|half| half == own) && holds(own, dtype) {
        return Ok(read(dtype));
    }
    // The rounding of the narrower type shows; products leave it out.
    Cast::of(read(Dtype::Float32), own, dtype)
}
