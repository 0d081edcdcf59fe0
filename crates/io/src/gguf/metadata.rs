//! What a GGUF file says of itself: values by key.

use super::cursor::{Cursor, Reason};

/// A value of GGUF's metadata; the width of an integer or a float is not kept.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// A `u8`, `u16`, `u32` or `u64`.
    Unsigned(u64),
    /// An `i8`, `i16`, `i32` or `i64`.
    Signed(i64),
    /// An `f32` or `f64`.
    Float(f64),
    /// A `bool`.
    Bool(bool),
    /// A string.
    Text(String),
    /// Values of one kind, which may be lists themselves.
    List(Vec<GgufValue>),
}

/// The numbers that stand for types of values; those of all scalars are in [`width`].
pub(super) const U32: u32 = 4;
pub(super) const I32: u32 = 5;
pub(super) const F32: u32 = 6;
pub(super) const BOOL: u32 = 7;
pub(super) const STRING: u32 = 8;
pub(super) const ARRAY: u32 = 9;

/// How deep lists lie in each other: no file has more than one level, and a call is made for each.
const DEPTH: u32 = 8;

/// The bytes of a scalar of this type.
fn width(kind: u32) -> Option<usize> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// The fewest bytes of a value of this type.
fn least(kind: u32) -> Result<usize, Reason> {
    match kind {
        STRING => Ok(8),
        ARRAY => Ok(12),
        _ => width(kind).ok_or_else(|| format!("its type is {kind}, and GGUF has 0 to 12")),
    }
}

/// Goes past a value and checks that it is one.
pub(super) fn skip(cursor: &mut Cursor, kind: u32) -> Result<(), Reason> {
    skip_within(cursor, kind, DEPTH)
}

fn skip_within(cursor: &mut Cursor, kind: u32, depth: u32) -> Result<(), Reason> {
    if let Some(width) = width(kind) {
        let bytes = cursor.take(width, "a number")?;
        return bools(kind, bytes);
    }
    if kind == STRING {
        let length = cursor.count(1, "the length of a string")?;
        return cursor.take(length, "a string").map(|_| ());
    }
    let (kind, count) = list(cursor, kind, depth)?;
    if let Some(width) = width(kind) {
        return bools(kind, cursor.take(count * width, "a list")?);
    }
    (0..count).try_for_each(|_| skip_within(cursor, kind, depth - 1))
}

/// The type of a list's values, and how many there are.
fn list(cursor: &mut Cursor, kind: u32, depth: u32) -> Result<(u32, usize), Reason> {
    least(kind)?;
    if depth == 0 {
        return Err(format!("its lists lie in each other more than {DEPTH} deep"));
    }
    let kind = cursor.u32("the type of a list")?;
    Ok((kind, cursor.count(least(kind)?, "the length of a list")?))
}

/// How many values a list has, if this is one.
pub(super) fn length(cursor: &mut Cursor, kind: u32) -> Option<usize> {
    (kind == ARRAY).then(|| list(cursor, kind, DEPTH).ok()).flatten().map(|(_, count)| count)
}

fn bools(kind: u32, bytes: &[u8]) -> Result<(), Reason> {
    match bytes.iter().find(|&&byte| kind == 7 && byte > 1) {
        Some(byte) => Err(format!("its byte {byte} is no bool")),
        None => Ok(()),
    }
}

pub(super) fn value(cursor: &mut Cursor, kind: u32) -> Result<GgufValue, Reason> {
    value_within(cursor, kind, DEPTH)
}

fn value_within(cursor: &mut Cursor, kind: u32, depth: u32) -> Result<GgufValue, Reason> {
    let what = "a number";
    Ok(match kind {
        0 => GgufValue::Unsigned(cursor.array::<1>(what)?[0].into()),
        1 => GgufValue::Signed(i8::from_le_bytes(cursor.array(what)?).into()),
        2 => GgufValue::Unsigned(u16::from_le_bytes(cursor.array(what)?).into()),
        3 => GgufValue::Signed(i16::from_le_bytes(cursor.array(what)?).into()),
        4 => GgufValue::Unsigned(cursor.u32(what)?.into()),
        5 => GgufValue::Signed(i32::from_le_bytes(cursor.array(what)?).into()),
        6 => GgufValue::Float(f32::from_le_bytes(cursor.array(what)?).into()),
        7 => GgufValue::Bool(cursor.array::<1>(what)? != [0]),
        STRING => GgufValue::Text(cursor.text("a string")?.to_owned()),
        10 => GgufValue::Unsigned(cursor.u64(what)?),
        11 => GgufValue::Signed(i64::from_le_bytes(cursor.array(what)?)),
        12 => GgufValue::Float(f64::from_le_bytes(cursor.array(what)?)),
        _ => {
            let (kind, count) = list(cursor, kind, depth)?;
            let values = (0..count).map(|_| value_within(cursor, kind, depth - 1));
            GgufValue::List(values.collect::<Result<_, _>>()?)
        }
    })
}
