//! Half floats that are stored as they are.

use tacit_core::register_array;

use crate::format::declaration::{Format, TextForm};
use crate::kernel::{Coding, Scheme};
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of any shape in `f16`, which is multiplied by our kernels with sums in `f32`.
///
/// MLX has no product of half floats on CPUs but a plain loop; this runs at the memory's speed.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Dtype, ops};
/// use tacit_arrays::F16Array;
/// use tacit_arrays::format::F16;
/// use tacit_core::implicit;
///
/// let w = F16Array::quantize(&ops::full::<f32>(&[8, 32], &mlx_rs::Array::from_f32(0.1))?, F16)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert!(y.dense()?.as_slice::<f32>().iter().all(|y| (y - 32.0 * 0.099_975_586).abs() < 1e-5));
/// # Ok(())
/// # }
/// ```
///
/// The codes are the bits of the values, `u16` of the array's own shape, and there are no scales: of an array that is `f16`
/// already they are the same memory, infinities and NaN included. What is rounded to it, from another type, must be finite and
/// within its range: the rest is an error of the eval, as in every format.
pub type F16Array = PackedArray<F16>;

/// An array of any shape in `bf16`, the upper half of `f32`, as [`F16Array`] has it in `f16`.
pub type Bf16Array = PackedArray<Bf16>;

/// IEEE's binary16, rounded to nearest even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct F16;

/// The upper half of an `f32`, rounded to nearest even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bf16;

macro_rules! half_format {
    ($format:ident, $name:literal) => {
        impl Format for $format {
            const SAVED_AS: &'static str = concat!("tacit.", stringify!($format));

            fn scheme(&self) -> Scheme {
                Scheme::halves($name, Coding::$format)
            }

            fn block(&self) -> usize {
                1
            }
        }

        impl TextForm for $format {
            const NAME: &'static str = $name;
            const FORMS: &'static str = $name;

            fn options(&self) -> String {
                String::new()
            }

            fn from_options(options: &[&str]) -> Option<Self> {
                options.is_empty().then_some(Self)
            }
        }
    };
}

half_format!(F16, "f16");
half_format!(Bf16, "bf16");

register_format!(F16, Bf16);
register_array!(F16Array, Bf16Array);
