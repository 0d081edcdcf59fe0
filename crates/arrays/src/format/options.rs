//! Options that several formats have.

use std::hash::Hash;

use tacit_core::store::serde::Serialize;
use tacit_core::store::serde::de::DeserializeOwned;
use tacit_core::{Error, Result};

use super::declaration::{Format, Quantizer, TextForm};
use crate::kernel::Scheme;

/// Which elements share a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// The elements of a row, along the last axis, share a scale.
    #[default]
    Row,
    /// The elements of a column of a matrix share a scale.
    Column,
    /// So many, counted row-major.
    Block(usize),
}

impl Granularity {
    fn options(self) -> String {
        match self {
            Self::Row => String::new(),
            Self::Column => ":columns".to_owned(),
            Self::Block(block) => format!(":{block}"),
        }
    }

    fn read(options: &[&str]) -> Option<Self> {
        match options {
            [] | ["rows"] => Some(Self::Row),
            ["columns"] => Some(Self::Column),
            [block] => Some(Self::Block(block.parse().ok()?)),
            _ => None,
        }
    }

    /// The elements of a block, or 0 where that is not known without a shape.
    fn block(self) -> usize {
        if let Self::Block(block) = self { block } else { 0 }
    }

    /// The block that a row is, if rows or columns are stored in this shape.
    fn on(self, shape: &[i32]) -> Self {
        match self {
            Self::Row | Self::Column => Self::Block(shape.last().map_or(1, |&last| last.max(1) as usize)),
            Self::Block(_) => self,
        }
    }
}

/// A format whose one option is which elements share a scale.
pub(crate) trait FormatByGranularity:
    Quantizer + Clone + Eq + Hash + Serialize + DeserializeOwned + From<Granularity> + 'static
{
    const SAVED_AS: &'static str;
    const NAME: &'static str;
    const FORMS: &'static str;
    const SCHEME: Scheme;

    fn granularity(&self) -> Granularity;
}

#[diagnostic::do_not_recommend]
impl<F: FormatByGranularity> Format for F {
    const SAVED_AS: &'static str = F::SAVED_AS;

    fn scheme(&self) -> Scheme {
        F::SCHEME
    }

    fn block(&self) -> usize {
        self.granularity().block()
    }

    fn with_block(&self, block: usize) -> Option<Self> {
        Some(Granularity::Block(block).into())
    }

    fn on(&self, shape: &[i32]) -> Self {
        self.granularity().on(shape).into()
    }

    fn columns(&self) -> Option<Self> {
        Some(Granularity::Column.into())
    }

    fn by_columns(&self) -> bool {
        self.granularity() == Granularity::Column
    }
}

#[diagnostic::do_not_recommend]
impl<F: FormatByGranularity> TextForm for F {
    const NAME: &'static str = F::NAME;
    const FORMS: &'static str = F::FORMS;

    fn options(&self) -> String {
        self.granularity().options()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        Granularity::read(options).map(Self::from)
    }
}

/// Checks the options of integers in MLX's layout; `missing` says which format there is not.
pub(crate) fn check_integers(missing: &str, bits: u32, group: usize) -> Result<()> {
    if matches!(bits, 2..=6 | 8) && matches!(group, 32 | 64 | 128) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{missing} of {bits} bits in groups of {group}"),
        "use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128",
    ))
}

pub(crate) fn groups(bits: u32, group: usize) -> String {
    format!(":{bits}:{group}")
}

pub(crate) fn read_groups(options: &[&str]) -> Option<(u32, usize)> {
    let [bits, group] = options else { return None };
    Some((bits.parse().ok()?, group.parse().ok()?))
}

/// What bitsandbytes' formats of 4 bits are, which differ in their tables: blocks counted row-major, whose scales may be quantized,
/// too.
macro_rules! bitsandbytes_format {
    ($format:ident, $name:literal, $table:expr) => {
        impl From<usize> for $format {
            fn from(block: usize) -> Self {
                Self { block, double: false }
            }
        }

        impl $crate::format::Format for $format {
            const SAVED_AS: &'static str = concat!("tacit.", stringify!($format));

            fn scheme(&self) -> $crate::kernel::scheme::Scheme {
                use $crate::kernel::scheme::{Coding, Encoding, Nested, Scheme};
                let coding = Coding::Table { bits: 4, order: tacit_kernels::Order::HighFirst, values: $table };
                let nested = self.double.then_some(Nested::Dynamic8 { block: 256 });
                Scheme { nested, ..Scheme::flat($name, Encoding::$format, coding) }
            }

            fn block(&self) -> usize {
                self.block
            }

            fn with_block(&self, block: usize) -> Option<Self> {
                Some(Self { block, ..*self })
            }

            fn check(&self) -> tacit_core::Result<()> {
                $crate::avals::checks::check_block_size($name, self.block)
            }
        }

        impl $crate::format::Int8Activations for $format {}

        impl $crate::format::TextForm for $format {
            const NAME: &'static str = $name;
            const FORMS: &'static str = concat!(
                $name,
                " for blocks of 64, ",
                $name,
                ":BLOCK, or ",
                $name,
                ":BLOCK:double for quantized scales"
            );

            fn options(&self) -> String {
                format!(":{}{}", self.block, if self.double { ":double" } else { "" })
            }

            fn from_options(options: &[&str]) -> Option<Self> {
                let (block, double) = match options {
                    [] => ("64", false),
                    [block] => (*block, false),
                    [block, "double"] => (*block, true),
                    _ => return None,
                };
                Some(Self { block: block.parse().ok()?, double })
            }
        }
    };
}
pub(crate) use bitsandbytes_format;
