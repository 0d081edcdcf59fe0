//! The header of a safetensors file, checked.
//!
//! Eight bytes with the header's length, the header in JSON, which may end in spaces, and the elements of the tensors
//! without gaps (<https://github.com/huggingface/safetensors>, "Format").

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::de::{self, DeserializeSeed, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tacit_core::{Aval, Error, Result};

use crate::mistaken;
use crate::stored_dtype::{dtype_of_stored, known};

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored {
    /// The dtype as the file spells it.
    pub(crate) dtype: String,
    /// What it is read as.
    pub(crate) aval: Aval,
    /// Its bytes in the file.
    pub(crate) bytes: Range<usize>,
}

/// What a header says, in the order of the bytes.
#[derive(Debug, Default)]
pub(crate) struct Header {
    pub(crate) tensors: Vec<(String, Stored)>,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// The bytes that say how long the header is.
pub(crate) const LENGTH: usize = 8;

/// The longest header that is read, as in the reference implementation.
pub(crate) const LONGEST: usize = 100_000_000;

/// The name of what is no tensor.
pub(crate) const METADATA: &str = "__metadata__";

const HELP: &str = "the file is not as it was written: fetch or write it again";

pub(crate) fn header(file: &Path, bytes: &[u8]) -> Result<Header> {
    let wrong = |reason: String| Error::checkpoint(file, None, reason, HELP);
    let length = bytes.first_chunk::<LENGTH>().map(|length| u64::from_le_bytes(*length));
    let length = length.ok_or_else(|| wrong(format!("it has {} bytes, and a header's length is 8", bytes.len())))?;
    let rest = bytes.len() - LENGTH;
    let fits = usize::try_from(length).ok().filter(|&length| length <= rest.min(LONGEST));
    let length = fits.ok_or_else(|| {
        if let Some((reason, help)) = mistaken::kind(bytes) {
            return Error::checkpoint(file, None, reason, help);
        }
        let of = if rest < LONGEST { format!("{rest} bytes follow") } else { format!("{LONGEST} is the most") };
        wrong(format!("its header is to have {length} bytes, and {of}"))
    })?;
    let (text, elements) = bytes[LENGTH..].split_at(length);
    if text.first() != Some(&b'{') {
        return Err(wrong("its header does not begin with `{`".to_owned()));
    }
    let mut at = None;
    let mut reader = serde_json::Deserializer::from_slice(text);
    let read = Raw { at: &mut at }.deserialize(&mut reader).and_then(|raw| reader.end().map(|()| raw));
    let (named, metadata) =
        read.map_err(|error| Error::checkpoint(file, at.as_deref(), format!("in its header, {error}"), HELP))?;
    let mut tensors = Vec::with_capacity(named.len());
    for (name, entry) in named {
        let stored = entry.stored(LENGTH + length, elements.len());
        let stored = stored.map_err(|(reason, help)| Error::checkpoint(file, Some(&name), reason, help))?;
        tensors.push((name, stored));
    }
    tensors.sort_by_key(|(_, stored)| (stored.bytes.start, stored.bytes.end));
    let mut end = LENGTH + length;
    for (name, stored) in &tensors {
        let start = stored.bytes.start;
        if start != end {
            let what = if start < end { "overlaps the tensor before it" } else { "leaves a gap before it" };
            return Err(Error::checkpoint(file, Some(name), what, HELP));
        }
        end = stored.bytes.end;
    }
    if end != bytes.len() {
        return Err(wrong(format!("{} bytes are left behind the last tensor", bytes.len() - end)));
    }
    Ok(Header { tensors, metadata })
}

/// An entry of the header as it stands there.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Entry {
    /// Checks the entry by itself. The elements begin at byte `start` of the file and are `available` bytes. An error is a
    /// reason with what to do.
    fn stored(self, start: usize, available: usize) -> Result<Stored, (String, &'static str)> {
        const BEYOND: &str = "MLX cannot hold it: convert the file with the program that wrote it";
        let Self { dtype, shape, data_offsets: (from, to) } = self;
        let read = dtype_of_stored(&dtype);
        let read = read.ok_or_else(|| (format!("{dtype:?} is no dtype of MLX's, which are {}", known()), BEYOND))?;
        let extent =
            |extent: &u64| i32::try_from(*extent).map_err(|_| (format!("its extent {extent} is too large"), BEYOND));
        let aval = Aval { shape: shape.iter().map(extent).collect::<Result<_, _>>()?, dtype: read };
        let bytes = aval.checked_nbytes().ok_or_else(|| (format!("{aval} is more than memory can hold"), BEYOND))?;
        let within = |at: u64| usize::try_from(at).ok().filter(|&at| at <= available);
        let (Some(from), Some(to)) = (within(from), within(to)) else {
            return Err((format!("its bytes are to be {from}..{to}, and there are {available}"), HELP));
        };
        if to.checked_sub(from) != Some(bytes) {
            return Err((format!("{aval} has {bytes} bytes, and these are to be {from}..{to}"), HELP));
        }
        Ok(Stored { dtype, aval, bytes: start + from..start + to })
    }
}

type Named = (BTreeMap<String, Entry>, BTreeMap<String, String>);

/// Reads the header's JSON; `at` is the entry that it is at.
struct Raw<'a> {
    at: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Raw<'_> {
    type Value = Named;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Named, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Raw<'_> {
    type Value = Named;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
        let (mut tensors, mut metadata) = (BTreeMap::new(), None);
        while let Some(name) = map.next_key::<String>()? {
            *self.at = Some(name.clone());
            let first = if name == METADATA {
                // MLX writes a `null` where it has none.
                let said = map.next_value::<Option<Unique<String>>>()?;
                metadata.replace(said.map(|said| said.0).unwrap_or_default()).is_none()
            } else {
                tensors.insert(name, map.next_value()?).is_none()
            };
            if !first {
                return Err(de::Error::custom("the name is there twice"));
            }
            *self.at = None;
        }
        Ok((tensors, metadata.unwrap_or_default()))
    }
}

/// A map in which no key is there twice, which serde would take for one entry.
pub(crate) struct Unique<V>(pub(crate) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Unique<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(std::marker::PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Unique<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique<V>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if entries.contains_key(&key) {
                        return Err(de::Error::custom(format!("the key {key:?} is there twice")));
                    }
                    entries.insert(key, value);
                }
                Ok(Unique(entries))
            }
        }

        deserializer.deserialize_map(Entries(std::marker::PhantomData))
    }
}
