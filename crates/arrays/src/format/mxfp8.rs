//! OCP's MXFP8 of E4M3 elements.

use tacit_core::register_array;

use crate::format::declaration::{Format, TextForm};
use crate::format::mx::{GROUP, ScaleRule, read_rule, rule_option};
use crate::kernel::{Coding, Encoding, Scaling, Scheme};
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of 8 bits an element, E4M3: sign, four bits of exponent, three of mantissa.
///
/// Groups of 32 elements of the last axis share a power of two. The layout is that of MLX's mode `mxfp8`. Which
/// power a group takes is the [`ScaleRule`]'s; versions of MLX differ in it, and decode all
/// alike. It is made as an [`Mxfp4Array`](crate::Mxfp4Array) is.
///
/// The codes are `u32[.., k / 4]`, the least significant bits first; the scales `u8[.., k / 32]`, exponents plus 127.
/// The format is defined by OCP's Microscaling Formats specification 1.0.
pub type Mxfp8Array = PackedArray<Mxfp8>;

/// OCP's MXFP8 of E4M3 elements, with a power of two for each 32 elements of the last axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mxfp8 {
    /// How the powers are chosen; reading does not depend on it.
    pub rule: ScaleRule,
}

impl From<ScaleRule> for Mxfp8 {
    fn from(rule: ScaleRule) -> Self {
        Self { rule }
    }
}

impl Format for Mxfp8 {
    const SAVED_AS: &'static str = "tacit.Mxfp8";

    fn scheme(&self) -> Scheme {
        let coding = Coding::E4m3;
        Scheme::grouped(Self::NAME, Encoding::Mxfp8(self.rule), coding, Scaling::E8m0)
    }

    fn block(&self) -> usize {
        GROUP
    }
}

impl TextForm for Mxfp8 {
    const NAME: &'static str = "mxfp8";
    const FORMS: &'static str = "mxfp8, mxfp8:round or mxfp8:floor";

    fn options(&self) -> String {
        rule_option(self.rule)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        read_rule(options).map(Self::from)
    }
}

register_format!(Mxfp8);
register_array!(Mxfp8Array);
