//! The formats of Tacit's own array types.

use mlx_rs::Array;
use tacit_core::{Error, Result, Value};

use super::{Quantizer, TextForm};
use crate::{
    AffineArray, BinaryArray, Fp4Array, Int8Array, Mxfp4Array, Mxfp8Array, Nf4Array, Nvfp4Array, ScaleRule,
    TernaryArray, register_format,
};

/// bitsandbytes' NF4: 4-bit quantiles of the normal distribution, in blocks counted row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nf4 {
    /// Elements that share a scale: a power of two from 32 to 4096.
    pub block: usize,
    /// Whether the scales are quantized to 8 bits, too.
    pub double: bool,
}

/// bitsandbytes' FP4: 4-bit floats, in blocks counted row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp4 {
    /// Elements that share a scale: a power of two from 32 to 4096.
    pub block: usize,
    /// Whether the scales are quantized to 8 bits, too.
    pub double: bool,
}

/// MLX's affine format: integers with a scale and a bias for each group of the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affine {
    /// Bits of an element: 2, 3, 4, 5, 6 or 8.
    pub bits: u32,
    /// Elements in a group: 32, 64 or 128.
    pub group: usize,
}

/// Which elements share a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Per {
    /// Those of a row, along the last axis.
    #[default]
    Row,
    /// Those of a column of a matrix.
    Column,
    /// So many, counted row-major.
    Block(usize),
}

/// Symmetric 8-bit integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Int8 {
    /// Which elements share a scale.
    pub per: Per,
}

/// -1, 0 and 1 times a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ternary {
    /// Which elements share a scale: a row or a block.
    pub per: Per,
}

/// -1 and 1 times a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Binary {
    /// Which elements share a scale: a row or a block.
    pub per: Per,
}

/// OCP's MXFP4: E2M1 with a power of two for each 32 elements of the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mxfp4 {
    /// How the powers are chosen.
    pub rule: ScaleRule,
}

/// OCP's MXFP8 of E4M3 elements, with a power of two for each 32 elements of the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mxfp8 {
    /// How the powers are chosen.
    pub rule: ScaleRule,
}

/// NVIDIA's NVFP4: E2M1 with a scale in E4M3 for each 16 elements of the last axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nvfp4 {
    /// Whether the scales are relative to the largest magnitude of the array.
    pub global: bool,
}

register_format!(Nf4, Fp4, Affine, Int8, Ternary, Binary, Mxfp4, Mxfp8, Nvfp4);

impl Quantizer for Nf4 {
    fn quantize(&self, x: &Array) -> Result<Value> {
        let array = Nf4Array::quantize(x, self.block)?;
        Ok(if self.double { array.double_quantized()? } else { array }.into())
    }
}

impl Quantizer for Fp4 {
    fn quantize(&self, x: &Array) -> Result<Value> {
        let array = Fp4Array::quantize(x, self.block)?;
        Ok(if self.double { array.double_quantized()? } else { array }.into())
    }
}

impl Quantizer for Affine {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Ok(AffineArray::quantize(x, *self)?.into())
    }
}

impl Quantizer for Int8 {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Ok(match self.per {
            Per::Row => Int8Array::quantize_rows(x)?,
            Per::Column => Int8Array::quantize_columns(x)?,
            Per::Block(block) => Int8Array::quantize(x, block)?,
        }
        .into())
    }
}

impl Quantizer for Ternary {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Ok(match self.per {
            Per::Row => TernaryArray::quantize_rows(x)?,
            Per::Block(block) => TernaryArray::quantize(x, block)?,
            Per::Column => return Err(no_columns(Self::NAME)),
        }
        .into())
    }
}

impl Quantizer for Binary {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Ok(match self.per {
            Per::Row => BinaryArray::quantize_rows(x)?,
            Per::Block(block) => BinaryArray::quantize(x, block)?,
            Per::Column => return Err(no_columns(Self::NAME)),
        }
        .into())
    }
}

fn no_columns(name: &str) -> Error {
    Error::invalid(format!("{name} has no scale for each column"), "quantize rows or blocks")
}

impl Quantizer for Mxfp4 {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Ok(Mxfp4Array::quantize(x, self.rule)?.into())
    }
}

impl Quantizer for Mxfp8 {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Ok(Mxfp8Array::quantize(x, self.rule)?.into())
    }
}

impl Quantizer for Nvfp4 {
    fn quantize(&self, x: &Array) -> Result<Value> {
        let most = self.global.then(|| x.as_dtype(mlx_rs::Dtype::Float32)?.abs()?.max(None)).transpose()?;
        Ok(Nvfp4Array::quantize(x, most.as_ref())?.into())
    }
}

/// `:64`, `:64:double`.
fn blocks(block: usize, double: bool) -> String {
    format!(":{block}{}", if double { ":double" } else { "" })
}

fn read_blocks(options: &[&str]) -> Option<(usize, bool)> {
    match options {
        [] => Some((64, false)),
        [block] => Some((block.parse().ok()?, false)),
        [block, "double"] => Some((block.parse().ok()?, true)),
        _ => None,
    }
}

impl TextForm for Nf4 {
    const NAME: &'static str = "nf4";
    const FORMS: &'static str = "nf4:BLOCK, or nf4:BLOCK:double for quantized scales";

    fn options(&self) -> String {
        blocks(self.block, self.double)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        read_blocks(options).map(|(block, double)| Self { block, double })
    }
}

impl TextForm for Fp4 {
    const NAME: &'static str = "fp4";
    const FORMS: &'static str = "fp4:BLOCK, or fp4:BLOCK:double for quantized scales";

    fn options(&self) -> String {
        blocks(self.block, self.double)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        read_blocks(options).map(|(block, double)| Self { block, double })
    }
}

impl TextForm for Affine {
    const NAME: &'static str = "affine";
    const FORMS: &'static str = "affine:BITS:GROUP";

    fn options(&self) -> String {
        format!(":{}:{}", self.bits, self.group)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let [bits, group] = options else { return None };
        Some(Self { bits: bits.parse().ok()?, group: group.parse().ok()? })
    }
}

impl Per {
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
}

impl TextForm for Int8 {
    const NAME: &'static str = "int8";
    const FORMS: &'static str = "int8 for rows, int8:columns, or int8:BLOCK";

    fn options(&self) -> String {
        self.per.options()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        Per::read(options).map(|per| Self { per })
    }
}

impl TextForm for Ternary {
    const NAME: &'static str = "ternary";
    const FORMS: &'static str = "ternary for rows, or ternary:BLOCK";

    fn options(&self) -> String {
        self.per.options()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        Per::read(options).filter(|per| *per != Per::Column).map(|per| Self { per })
    }
}

impl TextForm for Binary {
    const NAME: &'static str = "binary";
    const FORMS: &'static str = "binary for rows, or binary:BLOCK";

    fn options(&self) -> String {
        self.per.options()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        Per::read(options).filter(|per| *per != Per::Column).map(|per| Self { per })
    }
}

impl ScaleRule {
    fn options(self) -> &'static str {
        match self {
            Self::Ceil => "",
            Self::Round => ":round",
            Self::Floor => ":floor",
        }
    }

    fn read(options: &[&str]) -> Option<Self> {
        match options {
            [] | ["ceil"] => Some(Self::Ceil),
            ["round"] => Some(Self::Round),
            ["floor"] => Some(Self::Floor),
            _ => None,
        }
    }
}

impl TextForm for Mxfp4 {
    const NAME: &'static str = "mxfp4";
    const FORMS: &'static str = "mxfp4, mxfp4:round or mxfp4:floor";

    fn options(&self) -> String {
        self.rule.options().to_owned()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        ScaleRule::read(options).map(|rule| Self { rule })
    }
}

impl TextForm for Mxfp8 {
    const NAME: &'static str = "mxfp8";
    const FORMS: &'static str = "mxfp8, mxfp8:round or mxfp8:floor";

    fn options(&self) -> String {
        self.rule.options().to_owned()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        ScaleRule::read(options).map(|rule| Self { rule })
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
