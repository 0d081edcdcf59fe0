//! The header of a GGUF file, checked: everything before the elements.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use tacit_core::{Error, Result};

use super::cursor::{Cursor, Reason};
use super::kind::GgufType;
use super::metadata::{self, GgufValue};

#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    /// The type and the place of each value.
    pub(super) metadata: BTreeMap<String, (u32, usize)>,
    pub(super) tensors: BTreeMap<String, Stored>,
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// Which file of the model has it.
    pub(super) part: usize,
    pub(super) kind: GgufType,
    /// The extents as MLX has them: the last one is that of elements which lie beside each other.
    pub(super) shape: Vec<i32>,
    pub(super) bytes: Range<usize>,
}

/// What a file begins with.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";

const HELP: &str = "the file is not as it was written: fetch or convert it again";

/// The key of what each tensor's place is a multiple of.
const ALIGNMENT: &str = "general.alignment";

/// The most extents that ggml has.
pub(super) const MOST_DIMENSIONS: u32 = 4;

pub(super) fn header(file: &Path, bytes: &[u8]) -> Result<Header> {
    let wrong = |key: Option<&str>, reason: Reason| Error::checkpoint(file, key, reason, HELP);
    let mut cursor = Cursor::new(bytes, 0);
    let magic = cursor.array("the magic number").map_err(|reason| wrong(None, reason))?;
    if magic != MAGIC {
        return Err(Error::checkpoint(file, None, "it does not begin with `GGUF`", "open a GGUF file"));
    }
    let version = cursor.u32("the version").map_err(|reason| wrong(None, reason))?;
    if !matches!(version, 2 | 3) {
        let (reason, help) = if version.trailing_zeros() >= 16 {
            ("its numbers are big-endian".to_owned(), "convert it with gguf-py's gguf_convert_endian")
        } else {
            (format!("its version is {version}, and 2 and 3 are read"), "convert the model with a current llama.cpp")
        };
        return Err(Error::checkpoint(file, None, reason, help));
    }
    let counted =
        |cursor: &mut Cursor| Ok((cursor.count(24, "the number of tensors")?, cursor.count(13, "the number of keys")?));
    let (tensors, keys) = counted(&mut cursor).map_err(|reason| wrong(None, reason))?;
    let mut metadata = BTreeMap::new();
    for _ in 0..keys {
        let key = cursor.text("a key").map_err(|reason| wrong(None, reason))?;
        let entry = entry(&mut cursor).map_err(|reason| wrong(Some(key), reason))?;
        if metadata.insert(key.to_owned(), entry).is_some() {
            return Err(wrong(Some(key), "the key is there twice".to_owned()));
        }
    }
    let alignment = alignment(bytes, &metadata).map_err(|reason| wrong(Some(ALIGNMENT), reason))?;
    let mut by_name: BTreeMap<String, (Stored, u64)> = BTreeMap::new();
    for _ in 0..tensors {
        let name = cursor.text("the name of a tensor").map_err(|reason| wrong(None, reason))?;
        let tensor = tensor(&mut cursor).map_err(|reason| wrong(Some(name), reason))?;
        if by_name.insert(name.to_owned(), tensor).is_some() {
            return Err(wrong(Some(name), "the tensor is there twice".to_owned()));
        }
    }
    // The alignment is less than 2^32, and a file shorter than 2^63.
    let start = cursor.at.next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for (name, (mut stored, offset)) in by_name {
        let placed = placed_at(&stored, offset, start, alignment, bytes.len());
        stored.bytes = placed.map_err(|reason| wrong(Some(&name), reason))?;
        tensors.insert(name, stored);
    }
    let mut places: Vec<(&str, &Range<usize>)> =
        tensors.iter().map(|(name, stored)| (name.as_str(), &stored.bytes)).collect();
    places.retain(|(_, bytes)| !bytes.is_empty());
    places.sort_by_key(|(_, bytes)| bytes.start);
    for pair in places.windows(2) {
        if let [(first, before), (second, after)] = pair
            && before.end > after.start
        {
            return Err(wrong(Some(second), format!("its bytes overlap those of {first}")));
        }
    }
    Ok(Header { version, metadata, tensors })
}

/// The type of a value and its place, which are checked.
fn entry(cursor: &mut Cursor) -> Result<(u32, usize), Reason> {
    let kind = cursor.u32("a type")?;
    let at = cursor.at;
    metadata::skip(cursor, kind)?;
    Ok((kind, at))
}

fn alignment(bytes: &[u8], metadata: &BTreeMap<String, (u32, usize)>) -> Result<usize, Reason> {
    let Some(&(kind, at)) = metadata.get(ALIGNMENT) else { return Ok(32) };
    match metadata::value(&mut Cursor::new(bytes, at), kind)? {
        GgufValue::Unsigned(alignment) if kind == 4 && alignment.is_power_of_two() => Ok(alignment as usize),
        GgufValue::Unsigned(other) => Err(format!("it is {other}, and must be a power of two in a u32")),
        _ => Err("it is of another type, and must be a power of two in a u32".to_owned()),
    }
}

/// A tensor and where its bytes begin behind the header; they are not looked for yet.
fn tensor(cursor: &mut Cursor) -> Result<(Stored, u64), Reason> {
    let dimensions = cursor.u32("the number of extents")?;
    if dimensions > MOST_DIMENSIONS {
        return Err(format!("it has {dimensions} extents, and ggml has {MOST_DIMENSIONS} at most"));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let extent = cursor.u64("an extent")?;
        shape.push(i32::try_from(extent).map_err(|_| format!("an extent of {extent} is beyond MLX's"))?);
    }
    let number = cursor.u32("a type")?;
    let kind =
        GgufType::from_number(number).ok_or_else(|| format!("its type is number {number}, which is not known"))?;
    let along = shape.first().map_or(1, |&extent| extent as usize);
    if !along.is_multiple_of(kind.elements) {
        return Err(format!(
            "its rows have {along} elements, which are not whole blocks of {}, as {kind} has",
            kind.elements
        ));
    }
    // Elements that lie beside each other are along the first extent here, and along the last one in MLX.
    shape.reverse();
    Ok((Stored { part: 0, kind, shape, bytes: 0..0 }, cursor.u64("a place")?))
}

/// The bytes of a tensor in a file of `length` bytes.
fn placed_at(
    stored: &Stored,
    offset: u64,
    start: usize,
    alignment: usize,
    length: usize,
) -> Result<Range<usize>, Reason> {
    let Stored { kind, shape, .. } = stored;
    if !offset.is_multiple_of(alignment as u64) {
        return Err(format!("its place, {offset}, is not a multiple of the alignment, {alignment}"));
    }
    let elements = shape.iter().try_fold(1_usize, |elements, &extent| elements.checked_mul(extent as usize));
    let bytes = elements.and_then(|elements| (elements / kind.elements).checked_mul(kind.bytes));
    let from = usize::try_from(offset).ok().and_then(|offset| start.checked_add(offset));
    let range = from.zip(bytes).and_then(|(from, bytes)| Some(from..from.checked_add(bytes)?));
    range.filter(|range| range.end <= length).ok_or_else(|| {
        format!("{kind} of {shape:?} at {offset} behind the header, which ends at {start}, is not within the {length} bytes of the file")
    })
}
