//! The formats that mlx-lm has: MLX's quantization modes, as its configurations spell them.

use tacit_arrays::format::{Affine, AnyFormat, Format, Mxfp4, Mxfp8, Nvfp4};
use tacit_arrays::{AffineArray, Mxfp4Array, Mxfp8Array, Nvfp4Array, Packed};
use tacit_core::Value;

use crate::json::Json;

/// A quantization mode with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Affine(Affine),
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

impl Mode {
    /// The mode that `{"group_size": .., "bits": .., "mode": ..}` says; what is not said is as MLX has it.
    pub(super) fn of_json(json: &Json) -> Result<Self, String> {
        let present = |key: &str| json.get(key).filter(|value| **value != Json::Null);
        let number = |key: &str| match present(key) {
            None => Ok(None),
            Some(value) => value.integer::<u32>().map(Some).ok_or_else(|| format!("its {key} is {value}")),
        };
        let (group, bits) = (number("group_size")?, number("bits")?);
        let mode = match present("mode").map_or(Some("affine"), Json::text) {
            Some("affine") => {
                let affine = Affine { bits: bits.unwrap_or(4), group: group.unwrap_or(64) as usize };
                affine.check().map_err(|error| error.clause())?;
                return Ok(Self::Affine(affine));
            }
            Some("mxfp4") => Self::Mxfp4,
            Some("mxfp8") => Self::Mxfp8,
            Some("nvfp4") => Self::Nvfp4,
            _ => return Err(format!("MLX has no mode {}", json.get("mode").unwrap_or(&Json::Null))),
        };
        let (own_group, own_bits) = (mode.group() as u32, mode.bits());
        if group.unwrap_or(own_group) != own_group || bits.unwrap_or(own_bits) != own_bits {
            return Err(format!(
                "{} has {own_bits} bits in groups of {own_group}, and this is {} bits in groups of {}",
                mode.name(),
                bits.unwrap_or(own_bits),
                group.unwrap_or(own_group)
            ));
        }
        Ok(mode)
    }

    /// What a configuration says of it.
    pub(super) fn json(self) -> Json {
        Json::Object(vec![
            ("group_size".to_owned(), Json::Integer(self.group() as i128)),
            ("bits".to_owned(), Json::Integer(self.bits().into())),
            ("mode".to_owned(), Json::Text(self.name().to_owned())),
        ])
    }

    /// The mode of a matrix, if it is one of MLX's and has its own orientation.
    pub(super) fn from_value(value: &Value) -> Option<Self> {
        let mode = if let Some(array) = value.downcast::<AffineArray>() {
            Self::Affine(*array.format())
        } else if value.downcast::<Mxfp4Array>().is_some() {
            Self::Mxfp4
        } else if value.downcast::<Mxfp8Array>().is_some() {
            Self::Mxfp8
        } else if value.downcast::<Nvfp4Array>().is_some() {
            Self::Nvfp4
        } else {
            return None;
        };
        value.family::<dyn Packed>().is_some_and(|array| !array.stored().transposed).then_some(mode)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Affine(_) => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    pub(super) fn bits(self) -> u32 {
        match self {
            Self::Affine(Affine { bits, .. }) => bits,
            Self::Mxfp4 | Self::Nvfp4 => 4,
            Self::Mxfp8 => 8,
        }
    }

    pub(super) fn group(self) -> usize {
        match self {
            Self::Affine(Affine { group, .. }) => group,
            Self::Mxfp4 | Self::Mxfp8 => 32,
            Self::Nvfp4 => 16,
        }
    }

    pub(super) fn format(self) -> AnyFormat {
        match self {
            Self::Affine(format) => format.into(),
            Self::Mxfp4 => Mxfp4::default().into(),
            Self::Mxfp8 => Mxfp8::default().into(),
            Self::Nvfp4 => Nvfp4::default().into(),
        }
    }
}
