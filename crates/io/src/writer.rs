//! The bytes of a safetensors file.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use mlx_rs::Array;
use serde_json::json;
use tacit_bridge::{forget_bytes, with_bytes};
use tacit_core::{Aval, Error, Result};

use crate::header::{LENGTH, LONGEST, METADATA};
use crate::progress::Progress;
use crate::stored_dtype::stored_dtype;

/// What a file says in words besides its tensors.
pub type Metadata = BTreeMap<String, String>;

/// How a checkpoint is written.
#[derive(Default)]
pub struct Writing<'p> {
    /// The most bytes of elements that a file is to have: more go into several files under an index.
    pub shard: Option<usize>,
    /// Called with the progress as the tensors are written.
    pub progress: Option<&'p mut dyn FnMut(Progress)>,
}

/// What is the same for all files of a checkpoint, and how far they are.
pub(crate) struct Writer<'w, 'p> {
    pub(crate) metadata: &'w Metadata,
    progress: Option<&'p mut dyn FnMut(Progress)>,
    done: usize,
    pub(crate) total: usize,
}

impl<'w, 'p> Writer<'w, 'p> {
    /// Checks the names of the tensors that are to be written.
    pub(crate) fn new(
        path: &Path,
        tensors: &[(String, Array)],
        metadata: &'w Metadata,
        progress: Option<&'p mut dyn FnMut(Progress)>,
    ) -> Result<Self> {
        unique(path, tensors)?;
        Ok(Self { metadata, progress, done: 0, total: tensors.iter().map(|(_, array)| array.nbytes()).sum() })
    }

    /// Writes a file of tensors, which is to be at `path`, to `file`.
    pub(crate) fn write(&mut self, path: &Path, file: &mut impl Write, tensors: Vec<(String, Array)>) -> Result<()> {
        let mut tensors: Vec<(String, Aval, Array)> =
            tensors.into_iter().map(|(name, array)| (name, Aval::from(&array), array)).collect();
        if !is_aligned(tensors.iter().map(|(_, aval, _)| aval)) {
            // Stable: those of one size stay in their order.
            tensors.sort_by_key(|(_, aval, _)| Reverse(aval.item_size()));
        }
        let failed = |error| Error::file("write", path)(error);
        let avals = tensors.iter().map(|(name, aval, _)| (&**name, aval));
        let header = header(avals, self.metadata).map_err(|error| failed(error.into()))?;
        check_length(path, header.len() - LENGTH)?;
        file.write_all(&header).map_err(failed)?;
        for (name, _, array) in tensors {
            let written = with_bytes(&array, |bytes| bytes.chunks(CHUNK).try_for_each(|chunk| self.chunk(file, chunk)));
            written.map_err(|error| Error::from(error).of_parameter(&name))?.map_err(failed)?;
        }
        Ok(())
    }

    fn chunk(&mut self, file: &mut impl Write, chunk: &[u8]) -> io::Result<()> {
        file.write_all(chunk)?;
        // Of an array that lies in another file, nothing stays in memory.
        forget_bytes(chunk);
        self.done += chunk.len();
        if let Some(progress) = &mut self.progress {
            progress(Progress { done: self.done, total: self.total });
        }
        Ok(())
    }
}

/// How many bytes are written between two words of progress.
const CHUNK: usize = 1 << 26;

/// Whether each tensor begins at a multiple of its elements' size where they follow each other in this order.
fn is_aligned<'t>(mut tensors: impl Iterator<Item = &'t Aval>) -> bool {
    let mut end = 0;
    tensors.all(|aval| {
        let start = end;
        end += aval.nbytes();
        start.is_multiple_of(aval.item_size())
    })
}

/// The header with its length before it, ending at a multiple of 8 bytes.
fn header<'t>(
    tensors: impl Iterator<Item = (&'t str, &'t Aval)>,
    metadata: &Metadata,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut entries = Vec::new();
    if !metadata.is_empty() {
        entries.push(format!("{}:{}", json!(METADATA), serde_json::to_string(metadata)?));
    }
    let mut start = 0;
    for (name, aval) in tensors {
        let end = start + aval.nbytes();
        let (name, dtype, shape) = (json!(name), stored_dtype(aval.dtype), json!(aval.shape));
        // The fields in the order of the reference implementation, whose files are so the same bytes.
        entries.push(format!(r#"{name}:{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#));
        start = end;
    }
    let mut text = format!("{{{}}}", entries.join(","));
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text.into_bytes());
    Ok(header)
}

/// Checks that readers take a header of so many bytes.
fn check_length(path: &Path, length: usize) -> Result<()> {
    if length <= LONGEST {
        return Ok(());
    }
    let reason = format!("its header would have {length} bytes, and {LONGEST} is the most");
    Err(Error::checkpoint(path, None, reason, "save fewer values in a file, or under shorter names"))
}

/// Checks that no two tensors have one name, and none the name of what is no tensor.
fn unique(path: &Path, tensors: &[(String, Array)]) -> Result<()> {
    let mut seen = BTreeSet::from([METADATA]);
    match tensors.iter().find(|(name, _)| !seen.insert(name)) {
        Some((name, _)) => {
            Err(Error::checkpoint(path, Some(name), "the name is taken", "give each tensor a name of its own"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// Names of so many bytes are not made for it.
    #[test]
    fn a_header_that_no_reader_takes_is_refused() {
        let path = Path::new("model.safetensors");
        check_length(path, LONGEST).expect("is taken");
        let error = check_length(path, LONGEST + 8).expect_err("is too long");
        expect![[r#"
            model.safetensors: its header would have 100000008 bytes, and 100000000 is the most
            help: save fewer values in a file, or under shorter names"#]]
        .assert_eq(&error.to_string());
    }
}
