//! A dense array or an implicit one.

use std::fmt;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_bridge::{Aval, is_traced, with_bytes};

use crate::{ImplicitArray, Result};

/// A dense array or an implicit one.
///
/// ```
/// use mlx_rs::Array;
/// use tacit_core::Value;
///
/// let value = Value::from(Array::from_slice(&[1f32, 2.0], &[2]));
/// assert_eq!(value.to_string(), "f32[2]");
/// ```
#[derive(Clone)]
pub enum Value {
    /// An array of MLX's.
    Dense(Array),
    /// An array that stands for a dense one.
    Implicit(Box<dyn ImplicitArray>),
}

impl Value {
    /// Shape and dtype.
    ///
    /// # Errors
    ///
    /// An implicit type declares no aval and refuses to be materialized.
    pub fn aval(&self) -> Result<Aval> {
        match self {
            Self::Dense(array) => Ok(Aval::from(array)),
            Self::Implicit(array) => array.aval(),
        }
    }

    /// The dense array, if it is one.
    #[must_use]
    pub fn as_dense(&self) -> Option<&Array> {
        match self {
            Self::Dense(array) => Some(array),
            Self::Implicit(_) => None,
        }
    }

    /// The implicit array of type `T`, if it is one.
    #[must_use]
    pub fn downcast<T: ImplicitArray>(&self) -> Option<&T> {
        match self {
            Self::Dense(_) => None,
            Self::Implicit(array) => array.as_any().downcast_ref(),
        }
    }

    /// The implicit array as a member of the family `F`, such as `dyn Packed`, if its type joins it.
    #[must_use]
    pub fn family<F: ?Sized + 'static>(&self) -> Option<&F> {
        match self {
            Self::Dense(_) => None,
            Self::Implicit(array) => (**array).family(),
        }
    }

    /// Whether this is an implicit array.
    #[must_use]
    pub fn is_implicit(&self) -> bool {
        matches!(self, Self::Implicit(_))
    }

    /// The bytes held: a dense array's own, an implicit array's children's.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        match self {
            Self::Dense(array) => array.nbytes(),
            Self::Implicit(array) => array.nbytes(),
        }
    }
}

impl fmt::Display for Value {
    /// In jaxpr notation: `f32[4,8]` dense, `Nf4(f32[4,8])` implicit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(array) => Aval::from(array).fmt(f),
            Self::Implicit(array) => match array.aval() {
                Ok(aval) => write!(f, "{}({aval})", short_name(&**array)),
                Err(_) => write!(f, "{}(?)", short_name(&**array)),
            },
        }
    }
}

impl fmt::Debug for Value {
    /// As it is displayed, with the first elements of a dense array and the static fields of an implicit one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match self {
            Self::Dense(array) => first_elements(array).map_or(Ok(()), |elements| write!(f, " {elements}")),
            Self::Implicit(array) => {
                let fields = array.aux().into_iter().filter(|(name, _)| *name != "aval");
                let fields: Vec<String> = fields.map(|(name, value)| format!("{name}: {value}")).collect();
                if fields.is_empty() { Ok(()) } else { write!(f, " {{ {} }}", fields.join(", ")) }
            }
        }
    }
}

/// A few elements as text; nothing for an array without data, and for one that cannot be evaluated.
fn first_elements(array: &Array) -> Option<String> {
    const SHOWN: usize = 6;
    if is_traced(array) || array.dtype().is_complex() {
        return None;
    }
    let shown = SHOWN.min(array.size());
    let first = ops::flatten(array, None, None).and_then(|flat| flat.try_index(..shown as i32)).ok()?;
    let elements = if shown == 0 {
        Vec::new()
    } else {
        match array.dtype() {
            Dtype::Float64 => texts(&first, Dtype::Float64, f64::from_ne_bytes),
            Dtype::Uint64 => texts(&first, Dtype::Uint64, u64::from_ne_bytes),
            dtype if dtype.is_float() => texts(&first, Dtype::Float32, f32::from_ne_bytes),
            _ => texts(&first, Dtype::Int64, i64::from_ne_bytes),
        }?
    };
    let more = if array.size() > shown { ", .." } else { "" };
    Some(format!("[{}{more}]", elements.join(", ")))
}

/// Elements as text, in a dtype that has all of their numbers.
fn texts<T: ToString + fmt::LowerExp, const N: usize>(
    array: &Array,
    dtype: Dtype,
    number: fn([u8; N]) -> T,
) -> Option<Vec<String>> {
    const LONG: usize = 24;
    let text = |bytes: &[u8; N]| {
        let number = number(*bytes);
        let digits = number.to_string();
        if digits.len() > LONG { format!("{number:e}") } else { digits }
    };
    // As bytes: a part of a file may begin where no number may.
    with_bytes(&array.as_dtype(dtype).ok()?, |bytes| bytes.as_chunks().0.iter().map(text).collect()).ok()
}

/// The type's name without its namespace: `Nf4` for `tacit.Nf4`.
#[must_use]
pub fn short_name(array: &dyn ImplicitArray) -> &'static str {
    let name = array.typetag_name();
    name.rsplit('.').next().unwrap_or(name)
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Dense(array)
    }
}

impl From<&Array> for Value {
    fn from(array: &Array) -> Self {
        Self::Dense(array.clone())
    }
}

impl From<&Value> for Value {
    fn from(value: &Value) -> Self {
        value.clone()
    }
}

impl From<Box<dyn ImplicitArray>> for Value {
    fn from(array: Box<dyn ImplicitArray>) -> Self {
        Self::Implicit(array)
    }
}

impl<T: ImplicitArray> From<T> for Value {
    fn from(array: T) -> Self {
        Self::Implicit(Box::new(array))
    }
}
