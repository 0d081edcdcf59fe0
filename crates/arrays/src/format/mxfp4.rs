//! OCP's MXFP4.

use tacit_core::register_array;
use tacit_kernels::{E2M1, Order};

use crate::format::declaration::{Format, TextForm};
use crate::format::mx::{GROUP, ScaleRule, read_rule, rule_option};
use crate::kernel::{Coding, Encoding, Scaling, Scheme};
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of 4 bits an element, E2M1: sign, two bits of exponent, one of mantissa.
///
/// Groups of 32 elements of the last axis share a power of two. The layout is that of MLX's mode `mxfp4`. Which
/// power a group takes is the [`ScaleRule`]'s; versions of MLX differ in it, and decode all
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
/// The codes are `u32[.., k / 8]`, the least significant bits first; the scales `u8[.., k / 32]`, exponents plus 127.
/// The format is defined by OCP's Microscaling Formats specification 1.0.
pub type Mxfp4Array = PackedArray<Mxfp4>;

/// OCP's MXFP4: E2M1 with a power of two for each 32 elements of the last axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mxfp4 {
    /// How the powers are chosen; reading does not depend on it.
    pub rule: ScaleRule,
}

impl From<ScaleRule> for Mxfp4 {
    fn from(rule: ScaleRule) -> Self {
        Self { rule }
    }
}

impl Format for Mxfp4 {
    const SAVED_AS: &'static str = "tacit.Mxfp4";

    fn scheme(&self) -> Scheme {
        let coding = Coding::Table { bits: 4, order: Order::LowFirst, values: E2M1 };
        Scheme::grouped(Self::NAME, Encoding::Mxfp4(self.rule), coding, Scaling::E8m0)
    }

    fn block(&self) -> usize {
        GROUP
    }
}

impl TextForm for Mxfp4 {
    const NAME: &'static str = "mxfp4";
    const FORMS: &'static str = "mxfp4, mxfp4:round or mxfp4:floor";

    fn options(&self) -> String {
        rule_option(self.rule)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        read_rule(options).map(Self::from)
    }
}

register_format!(Mxfp4);
register_array!(Mxfp4Array);
