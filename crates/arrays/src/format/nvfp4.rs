//! NVIDIA's NVFP4.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Result, register_array};
use tacit_kernels::{E2M1, Order};

use crate::avals::checks::check_children;
use crate::format::declaration::{Format, TextForm};
use crate::kernel::{self, Coding, Encoding, Scaling, Scheme};
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of 4 bits an element, OCP's E2M1, with a scale in E4M3 for each group of 16 elements of the last axis.
///
/// An element is `code * scale * global_scale / (448 * 6)`, or `code * scale` without a global scale. The layout is
/// that of MLX's mode `nvfp4`.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::Nvfp4Array;
/// use tacit_arrays::format::Nvfp4;
/// use tacit_core::implicit;
///
/// let w = Nvfp4Array::quantize(&ops::full::<f32>(&[8, 32], Array::from_f32(6.0))?, Nvfp4::default())?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [192.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The codes are `u32[.., k / 8]`, the least significant bits first; the scales `u8[.., k / 16]`, bytes of E4M3.
/// The format is defined by NVIDIA's Blackwell architecture and its cuDNN documentation.
pub type Nvfp4Array = PackedArray<Nvfp4>;

/// NVIDIA's NVFP4: E2M1 with a scale in E4M3 for each 16 elements of the last axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nvfp4 {
    /// Whether the scales are relative to the largest magnitude of the array, and so use all of E4M3's range.
    pub global: bool,
}

impl Nvfp4Array {
    /// Quantizes `x` relative to `global_scale: f32[]`, the largest magnitude of the tensor that `x` is a part of.
    ///
    /// # Errors
    ///
    /// As for [`quantize`](Self::quantize), or the global scale is not a scalar of `f32`. One that is negative or not finite is an
    /// error of the eval; one below [`LEAST_GLOBAL`](tacit_kernels::nvfp4::LEAST_GLOBAL), as that of a tensor of zeros, counts as that.
    pub fn quantize_relative(x: &Array, global_scale: &Array) -> Result<Self> {
        let scalar = ("the global scale", Aval::new(&[], Dtype::Float32), Aval::from(global_scale));
        check_children(Nvfp4::NAME, &Aval::from(x), &[scalar])?;
        Self::coded(x, &Nvfp4 { global: true }, Some(kernel::global_scale(global_scale)?))
    }
}

impl Format for Nvfp4 {
    const SAVED_AS: &'static str = "tacit.Nvfp4";

    fn scheme(&self) -> Scheme {
        let coding = Coding::Table { bits: 4, order: Order::LowFirst, values: E2M1 };
        Scheme::grouped(Self::NAME, Encoding::Nvfp4 { global: self.global }, coding, Scaling::E4m3)
    }

    fn block(&self) -> usize {
        16
    }
}

impl TextForm for Nvfp4 {
    const NAME: &'static str = "nvfp4";
    const FORMS: &'static str = "nvfp4, or nvfp4:global for scales relative to the largest magnitude";

    fn options(&self) -> String {
        if self.global { ":global" } else { "" }.to_owned()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        match options {
            [] => Some(Self { global: false }),
            ["global"] => Some(Self { global: true }),
            _ => None,
        }
    }
}

register_format!(Nvfp4);
register_array!(Nvfp4Array);
