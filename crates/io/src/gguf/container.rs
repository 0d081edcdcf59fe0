//! The container of a file that is written: version 3, tensors at multiples of 32 bytes.

use std::io::Write;
use std::path::Path;

use tacit_core::{Error, Result};
use tacit_files::Output;

use super::encoded::Out;
use super::header::MAGIC;
use super::kind::GgufType;
use super::metadata::{ARRAY, BOOL, F32, I32, STRING, U32};

/// What each tensor's place is a multiple of, where no key says it.
const ALIGNMENT: usize = 32;

/// Keys with their values as the file has them, type and bytes.
#[derive(Default)]
pub(super) struct Entries(Vec<(String, Vec<u8>)>);

impl Entries {
    /// A value as it is in another file.
    pub(super) fn copy(&mut self, key: &str, kind: u32, bytes: &[u8]) {
        self.0.push((key.to_owned(), [&kind.to_le_bytes(), bytes].concat()));
    }

    pub(super) fn count(&mut self, key: &str, value: u32) {
        self.copy(key, U32, &value.to_le_bytes());
    }

    pub(super) fn real(&mut self, key: &str, value: f32) {
        self.copy(key, F32, &value.to_le_bytes());
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.copy(key, BOOL, &[u8::from(value)]);
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.copy(key, STRING, &text(value));
    }

    pub(super) fn counts(&mut self, key: &str, values: &[u32]) {
        self.list(key, U32, values.iter().map(|value| value.to_le_bytes()));
    }

    pub(super) fn integers(&mut self, key: &str, values: &[i32]) {
        self.list(key, I32, values.iter().map(|value| value.to_le_bytes()));
    }

    pub(super) fn reals(&mut self, key: &str, values: &[f32]) {
        self.list(key, F32, values.iter().map(|value| value.to_le_bytes()));
    }

    pub(super) fn texts<T: AsRef<str>>(&mut self, key: &str, values: &[T]) {
        self.list(key, STRING, values.iter().map(|value| text(value.as_ref())));
    }

    fn list<B: AsRef<[u8]>>(&mut self, key: &str, kind: u32, values: impl ExactSizeIterator<Item = B>) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.for_each(|value| bytes.extend_from_slice(value.as_ref()));
        self.copy(key, ARRAY, &bytes);
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.0.retain(|(known, _)| known != key);
    }

    /// The value of a key that is a count.
    pub(super) fn number(&self, key: &str) -> Option<u32> {
        let (_, value) = self.0.iter().find(|(known, _)| known == key)?;
        Some(u32::from_le_bytes(*value.last_chunk()?))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(known, _)| known == key)
    }
}

/// A length and as many bytes.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// What the header says of a tensor.
pub(super) struct Described {
    pub(super) name: String,
    pub(super) kind: GgufType,
    /// The extents as MLX has them.
    pub(super) shape: Vec<i32>,
}

impl Described {
    fn nbytes(&self) -> usize {
        self.shape.iter().map(|&extent| extent as usize).product::<usize>() / self.kind.elements * self.kind.bytes
    }
}

/// Writes a file of these tensors, each described, in their order. `write` gives the bytes of one by its name, some at a time, and lets it
/// go before it is given the next.
pub(super) fn write<T>(
    path: &Path,
    entries: &Entries,
    tensors: Vec<(Described, T)>,
    write: impl Fn(&str, T, Out<'_>) -> Result<()>,
) -> Result<()> {
    let mut header = MAGIC.to_vec();
    header.extend(3_u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((entries.0.len() as u64).to_le_bytes());
    for (key, value) in &entries.0 {
        header.extend(text(key));
        header.extend(value);
    }
    let mut place = 0;
    for (tensor, _) in &tensors {
        header.extend(text(&tensor.name));
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        header.extend(tensor.shape.iter().rev().flat_map(|&extent| (extent as u64).to_le_bytes()));
        header.extend(tensor.kind.number.to_le_bytes());
        header.extend((place as u64).to_le_bytes());
        place += tensor.nbytes().next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    let mut file = Output::create(path)?;
    let failed = |error| Error::file("write", path)(error);
    file.write_all(&header).map_err(failed)?;
    for (described, tensor) in tensors {
        let mut written = 0;
        write(&described.name, tensor, &mut |bytes| {
            written += bytes.len();
            file.write_all(bytes).map_err(failed)
        })?;
        if written != described.nbytes() {
            let reason = format!("it has {written} bytes, and the header says {}", described.nbytes());
            return Err(Error::checkpoint(path, Some(&described.name), reason, "report this: it is a defect of Tacit"));
        }
        let gap = written.next_multiple_of(ALIGNMENT) - written;
        file.write_all(&[0; ALIGNMENT][..gap]).map_err(failed)?;
    }
    file.finish()
}
