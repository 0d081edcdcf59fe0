//! One static parameter of a primitive, as it crosses from C++ (`cpp/params.h` has the byte format).

use std::ffi::{c_int, c_void};
use std::{fmt, slice};

use mlx_rs::Dtype;

use crate::aval::{dtype_name, dtype_of};
use crate::error::{BridgeError, ParamError, check};

/// A static parameter of a primitive.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// An optional parameter that is absent.
    None,
    /// A flag.
    Bool(bool),
    /// An integer: an axis, a size, a count.
    Int(i64),
    /// A real number; one that MLX holds as `f32` is widened.
    Float(f64),
    /// An element type.
    Dtype(Dtype),
    /// Integers: axes, a shape, strides.
    Ints(Vec<i64>),
    /// Text, or the name of an enumerator.
    Str(String),
    /// Values of several types.
    List(Vec<Param>),
}

/// A type that a typed view's field may have.
pub(crate) trait FromParam: Sized {
    /// What it accepts, for errors.
    const EXPECTED: &'static str;

    /// The value, or `None` if `param` is not of this type or out of its range.
    fn from_param(param: &Param) -> Option<Self>;
}

/// Reads all the parameters in `bytes`.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Param>, ParamError> {
    let mut reader = Reader { bytes, at: 0 };
    let mut params = Vec::new();
    while reader.at < bytes.len() {
        params.push(reader.value(MAX_DEPTH)?);
    }
    Ok(params)
}

/// The parameters of a recorded primitive; none if the table does not have its class.
///
/// # Safety
///
/// `recorded` is a live object that `tacit_primitive_of` gave.
pub(crate) unsafe fn of_recorded(recorded: *const c_void) -> Result<Vec<Param>, BridgeError> {
    let mut outcome: Result<_, ParamError> = Ok(Vec::new());
    let out = Bytes { ctx: (&raw mut outcome).cast(), take };
    // SAFETY: the caller vouches for the object, and the outcome outlives the call.
    check(unsafe { tacit_primitive_params(recorded, out) })?;
    Ok(outcome?)
}

/// Receives the bytes of the parameters, once.
#[repr(C)]
struct Bytes {
    ctx: *mut c_void,
    take: extern "C" fn(*mut c_void, *const u8, usize),
}

unsafe extern "C" {
    fn tacit_primitive_params(recorded: *const c_void, out: Bytes) -> c_int;
}

extern "C" fn take(ctx: *mut c_void, data: *const u8, length: usize) {
    if length == 0 {
        return;
    }
    // SAFETY: the buffer is live during the call and `length` bytes long.
    let bytes = unsafe { slice::from_raw_parts(data, length) };
    // SAFETY: the context is the outcome of `of_recorded`, which is waiting for this.
    unsafe { *ctx.cast::<Result<Vec<Param>, ParamError>>() = decode(bytes) };
}

/// A custom kernel's scalars and shape flags are the deepest: lists in a list.
const MAX_DEPTH: usize = 4;

/// The longest text that is printed whole; a kernel's source is cut.
const MAX_PRINTED: usize = 40;

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Param::None => f.write_str("none"),
            Param::Bool(value) => write!(f, "{value}"),
            Param::Int(value) => write!(f, "{value}"),
            Param::Float(value) => print_float(*value, f),
            Param::Dtype(value) => f.write_str(dtype_name(*value)),
            Param::Ints(values) => print_tuple(values, f),
            Param::Str(text) => print_text(text, f),
            Param::List(values) => print_tuple(values, f),
        }
    }
}

/// The shortest digits that name the value; those of an `f32` if it is one, so that a widened `1e-5` prints as `1e-5`.
fn print_float(value: f64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let narrow = value as f32;
    let plain = value == 0.0 || (1e-4..1e16).contains(&value.abs()) || !value.is_finite();
    match (f64::from(narrow).to_bits() == value.to_bits(), plain) {
        (true, true) => write!(f, "{narrow}"),
        (true, false) => write!(f, "{narrow:e}"),
        (false, true) => write!(f, "{value}"),
        (false, false) => write!(f, "{value:e}"),
    }
}

fn print_tuple<T: fmt::Display>(values: &[T], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("(")?;
    for (index, value) in values.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(f, "{comma}{value}")?;
    }
    f.write_str(")")
}

fn print_text(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_') {
        return f.write_str(text);
    }
    match text.char_indices().nth(MAX_PRINTED) {
        Some((end, _)) => write!(f, "{:?}..", &text[..end]),
        None => write!(f, "{text:?}"),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Param, ParamError> {
        let [tag] = self.take()?;
        Ok(match tag {
            0 => Param::None,
            1 => Param::Bool(self.take::<1>()? != [0]),
            2 => Param::Int(i64::from_ne_bytes(self.take()?)),
            3 => Param::Float(f64::from_ne_bytes(self.take()?)),
            4 => {
                let code = i32::from_ne_bytes(self.take()?);
                Param::Dtype(dtype_of(code).ok_or(ParamError::Dtype(code))?)
            }
            5 => {
                let count = self.count()?;
                let (values, _) = self.slice(count.saturating_mul(8))?.as_chunks::<8>();
                Param::Ints(values.iter().map(|value| i64::from_ne_bytes(*value)).collect())
            }
            6 => {
                let count = self.count()?;
                let text = str::from_utf8(self.slice(count)?).map_err(|_| ParamError::Text)?;
                Param::Str(text.to_owned())
            }
            7 => {
                let depth = depth.checked_sub(1).ok_or(ParamError::Depth)?;
                let count = self.count()?;
                Param::List((0..count).map(|_| self.value(depth)).collect::<Result<_, _>>()?)
            }
            tag => return Err(ParamError::Tag(tag)),
        })
    }

    fn count(&mut self) -> Result<usize, ParamError> {
        Ok(u32::from_ne_bytes(self.take()?) as usize)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ParamError> {
        let (value, _) = self.bytes[self.at..].split_first_chunk().ok_or(ParamError::Truncated(self.at))?;
        self.at += N;
        Ok(*value)
    }

    fn slice(&mut self, length: usize) -> Result<&[u8], ParamError> {
        let value = self.bytes[self.at..].get(..length).ok_or(ParamError::Truncated(self.at))?;
        self.at += length;
        Ok(value)
    }
}

/// Implements [`FromParam`] for a type that one kind of parameter holds.
macro_rules! from_param {
    ($($ty:ty, $expected:literal, $pattern:pat => $value:expr;)*) => {$(
        impl FromParam for $ty {
            const EXPECTED: &'static str = $expected;

            fn from_param(param: &Param) -> Option<Self> {
                match param {
                    $pattern => $value,
                    _ => None,
                }
            }
        }
    )*};
}

from_param! {
    bool, "a bool", Param::Bool(value) => Some(*value);
    i32, "a 32-bit integer", Param::Int(value) => i32::try_from(*value).ok();
    i64, "an integer", Param::Int(value) => Some(*value);
    f32, "a real number", Param::Float(value) => Some(*value as f32);
    f64, "a real number", Param::Float(value) => Some(*value);
    Dtype, "a dtype", Param::Dtype(value) => Some(*value);
    String, "text", Param::Str(text) => Some(text.clone());
    Vec<i32>, "a list of 32-bit integers", Param::Ints(values) => values.iter().map(|value| i32::try_from(*value).ok()).collect();
    Vec<i64>, "a list of integers", Param::Ints(values) => Some(values.clone());
    Vec<Param>, "a list", Param::List(values) => Some(values.clone());
}

impl<T: FromParam> FromParam for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn from_param(param: &Param) -> Option<Self> {
        match param {
            Param::None => Some(None),
            param => T::from_param(param).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![tag];
        for part in parts {
            bytes.extend_from_slice(part);
        }
        bytes
    }

    fn every_kind() -> (Vec<u8>, Vec<Param>) {
        let cases = [
            (bytes(0, &[]), Param::None),
            (bytes(1, &[&[1]]), Param::Bool(true)),
            (bytes(2, &[&(-3_i64).to_ne_bytes()]), Param::Int(-3)),
            (bytes(3, &[&0.5_f64.to_ne_bytes()]), Param::Float(0.5)),
            (bytes(4, &[&12_i32.to_ne_bytes()]), Param::Dtype(Dtype::Bfloat16)),
            (
                bytes(5, &[&2_u32.to_ne_bytes(), &1_i64.to_ne_bytes(), &(-1_i64).to_ne_bytes()]),
                Param::Ints(vec![1, -1]),
            ),
            (bytes(6, &[&3_u32.to_ne_bytes(), b"mxf"]), Param::Str("mxf".to_owned())),
            (bytes(7, &[&2_u32.to_ne_bytes(), &[1, 0], &[0]]), Param::List(vec![Param::Bool(false), Param::None])),
        ];
        let (bytes, params): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        (bytes.concat(), params)
    }

    #[test]
    fn every_kind_is_decoded() {
        let (bytes, params) = every_kind();
        assert_eq!(decode(&bytes), Ok(params));
        assert_eq!(decode(&[]), Ok(vec![]));
    }

    #[test]
    fn a_cut_buffer_decodes_to_a_beginning_or_an_error() {
        let (bytes, params) = every_kind();
        for end in 0..bytes.len() {
            match decode(&bytes[..end]) {
                Ok(read) => assert!(read.len() < params.len() && params.starts_with(&read)),
                Err(error) => assert!(matches!(error, ParamError::Truncated(at) if at <= end), "{error:?}"),
            }
        }
    }

    #[test]
    fn malformed_bytes_are_errors() {
        for (bytes, said) in [
            (vec![9], "9 is not the tag of a parameter"),
            (bytes(4, &[&99_i32.to_ne_bytes()]), "99 is not the code of a dtype"),
            (bytes(6, &[&1_u32.to_ne_bytes(), &[0xff]]), "a text parameter is not UTF-8"),
            (bytes(5, &[&u32::MAX.to_ne_bytes()]), "the parameters end inside a value, 5 bytes in"),
            (bytes(7, &[&1_u32.to_ne_bytes()]).repeat(10_000), "the parameters are nested too deeply"),
        ] {
            assert_eq!(decode(&bytes).expect_err("malformed").to_string(), said);
        }
    }

    #[test]
    fn parameters_print_short() {
        let cases = [
            (Param::None, "none"),
            (Param::Bool(true), "true"),
            (Param::Int(-1), "-1"),
            (Param::Float(1.0), "1"),
            (Param::Float(f64::from(0.1_f32)), "0.1"),
            (Param::Float(0.1), "0.1"),
            (Param::Float(f64::from(1e-5_f32)), "1e-5"),
            (Param::Float(1.0 / 3.0), "0.3333333333333333"),
            (Param::Float(-0.0), "-0"),
            (Param::Float(f64::NEG_INFINITY), "-inf"),
            (Param::Float(f64::NAN), "NaN"),
            (Param::Dtype(Dtype::Bfloat16), "bf16"),
            (Param::Ints(vec![1, 0]), "(1,0)"),
            (Param::Ints(vec![]), "()"),
            (Param::Str("affine".to_owned()), "affine"),
            (Param::Str("a b".to_owned()), "\"a b\""),
            (Param::List(vec![Param::Bool(true), Param::Int(2)]), "(true,2)"),
        ];
        for (param, text) in cases {
            assert_eq!(param.to_string(), text);
        }
        assert_eq!(Param::Str("é;".repeat(50)).to_string(), format!("\"{}\"..", "é;".repeat(20)));
    }

    #[test]
    fn a_field_takes_its_own_type_within_its_range() {
        assert_eq!(i32::from_param(&Param::Int(1 << 40)), None);
        assert_eq!(i64::from_param(&Param::Int(1 << 40)), Some(1 << 40));
        assert_eq!(Vec::<i32>::from_param(&Param::Ints(vec![1 << 40])), None);
        assert_eq!(f32::from_param(&Param::Int(1)), None);
        assert_eq!(Option::<f32>::from_param(&Param::None), Some(None));
        assert_eq!(Option::<f32>::from_param(&Param::Float(2.0)), Some(Some(2.0)));
        assert_eq!(Option::<f32>::from_param(&Param::Bool(true)), None);
    }
}
