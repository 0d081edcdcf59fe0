//! Shape and dtype.

use std::fmt;
use std::str::FromStr;

use mlx_rs::{Array, Dtype};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The shape and dtype of an array, printed as `f32[4,8]`.
///
/// ```
/// use mlx_rs::Dtype;
/// use tacit_bridge::Aval;
///
/// let aval = Aval::new(&[4, 8], Dtype::Float32);
/// assert_eq!(aval.to_string(), "f32[4,8]");
/// assert_eq!("f32[4,8]".parse(), Ok(aval));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Aval {
    /// The extents, outermost first.
    pub shape: Vec<i32>,
    /// The element type.
    pub dtype: Dtype,
}

impl Aval {
    /// An aval of the given shape and dtype.
    #[must_use]
    pub fn new(shape: &[i32], dtype: Dtype) -> Self {
        Self { shape: shape.to_vec(), dtype }
    }

    /// The avals of these arrays.
    pub(crate) fn all(arrays: &[Array]) -> Vec<Self> {
        arrays.iter().map(Self::from).collect()
    }

    /// The avals as messages list them.
    pub(crate) fn list(avals: &[Self]) -> String {
        if avals.is_empty() {
            return "nothing".to_owned();
        }
        avals.iter().map(Self::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The number of elements; the greatest that there is where an aval that was read has more.
    #[must_use]
    pub fn size(&self) -> usize {
        self.shape.iter().fold(1, |size: usize, &extent| size.saturating_mul(extent as usize))
    }

    /// The bytes of an element.
    #[must_use]
    pub fn item_size(&self) -> usize {
        DTYPES[self.dtype as usize].2
    }

    /// The bytes of a dense array of this aval.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.size().saturating_mul(self.item_size())
    }

    /// The bytes of a dense array of this aval; `None` where they are more than memory can have.
    ///
    /// An aval that was read from a file may have any extents. One of zero counts as 1 in this check, since MLX computes strides
    /// from all others.
    #[must_use]
    pub fn checked_nbytes(&self) -> Option<usize> {
        let mut extents = self.shape.iter().map(|&extent| usize::try_from(extent).ok());
        let bytes = extents.try_fold(self.item_size(), |bytes, extent| bytes.checked_mul(extent?.max(1)));
        bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).map(|_| self.nbytes())
    }
}

impl From<&Array> for Aval {
    fn from(array: &Array) -> Self {
        Self::new(array.shape(), array.dtype())
    }
}

impl fmt::Display for Aval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", dtype_name(self.dtype))?;
        for (i, extent) in self.shape.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{extent}")?;
        }
        f.write_str("]")
    }
}

/// As it is displayed, since it stands in the `Debug` of every implicit array.
impl fmt::Debug for Aval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an aval.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an aval such as f32[4,8]")]
pub struct ParseAvalError(String);

impl FromStr for Aval {
    type Err = ParseAvalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseAvalError(text.to_owned());
        let (dtype, extents) = text.strip_suffix(']').and_then(|t| t.split_once('[')).ok_or_else(error)?;
        let shape = extents
            .split(',')
            .filter(|extent| !extent.is_empty())
            .map(|extent| extent.parse().ok().filter(|&extent: &i32| extent >= 0).ok_or_else(error))
            .collect::<Result<_, _>>()?;
        Ok(Self { shape, dtype: dtype_named(dtype).ok_or_else(error)? })
    }
}

impl Serialize for Aval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Aval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Every dtype with its printed name and item size in bytes.
const DTYPES: [(Dtype, &str, usize); 14] = [
    (Dtype::Bool, "bool", 1),
    (Dtype::Uint8, "u8", 1),
    (Dtype::Uint16, "u16", 2),
    (Dtype::Uint32, "u32", 4),
    (Dtype::Uint64, "u64", 8),
    (Dtype::Int8, "i8", 1),
    (Dtype::Int16, "i16", 2),
    (Dtype::Int32, "i32", 4),
    (Dtype::Int64, "i64", 8),
    (Dtype::Float16, "f16", 2),
    (Dtype::Float32, "f32", 4),
    (Dtype::Float64, "f64", 8),
    (Dtype::Bfloat16, "bf16", 2),
    (Dtype::Complex64, "c64", 8),
];

/// The short name of a dtype: `f32`, `bf16`, `u8`.
#[must_use]
pub fn dtype_name(dtype: Dtype) -> &'static str {
    DTYPES[dtype as usize].1
}

/// The dtype of a short name, the inverse of [`dtype_name`].
#[must_use]
pub fn dtype_named(name: &str) -> Option<Dtype> {
    DTYPES.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
}

/// The dtype of a code of the C++ side.
pub(crate) fn dtype_of(code: i32) -> Option<Dtype> {
    DTYPES.get(usize::try_from(code).ok()?).map(|entry| entry.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_codes() {
        for (code, entry) in DTYPES.iter().enumerate() {
            assert_eq!(entry.0 as usize, code);
        }
    }

    #[test]
    fn every_aval_parses_back() {
        for entry in DTYPES {
            for shape in [&[][..], &[3], &[2, 0, 5]] {
                let aval = Aval::new(shape, entry.0);
                assert_eq!(aval.to_string().parse(), Ok(aval));
            }
        }
    }

    #[test]
    fn more_elements_than_can_be_counted_are_the_most() {
        let aval = Aval::new(&[i32::MAX; 3], Dtype::Float32);
        assert_eq!((aval.size(), aval.nbytes(), aval.checked_nbytes()), (usize::MAX, usize::MAX, None));
        assert_eq!(Aval::new(&[i32::MAX, i32::MAX, i32::MAX, 0], Dtype::Float32).size(), 0);
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in ["", "f32", "f32[", "f33[1]", "f32[a]", "f32[-1]", "[1]"] {
            assert!(text.parse::<Aval>().is_err(), "{text}");
        }
    }
}
