//! Writes safetensors.

use std::path::Path;

use mlx_rs::Array;
use tacit_core::Result;

use crate::set::Set;
use crate::writer::{Metadata, Writing};

/// Writes a safetensors file; until the new file is complete and on the disk, the old one stays.
///
/// The arrays are evaluated, written and dropped one by one: a lazy one, whose graph nobody else holds, needs memory only while it is
/// written. The file has them in the order in which they are given, so that it is best to give those one after the other that are
/// computed together, as codes and scales may be. Where one would not be aligned then, those of larger elements come first. Only
/// regular files are replaced, no links; a device or a pipe, such as `/dev/stdout`, is given the bytes as they come. An index beside
/// the file that names it is written anew.
///
/// # Errors
///
/// Two tensors have one name, an array cannot be evaluated, a folder, a link or a disk is at the place, or the file cannot be
/// written. The old file, if there is one, is then untouched.
pub fn write(path: impl AsRef<Path>, tensors: Vec<(String, Array)>, metadata: &Metadata) -> Result<()> {
    write_with(path, tensors, metadata, Writing::default())
}

/// Writes files of at most `limit` bytes of elements each, and an index of them; a single one where they fit into one.
///
/// `path` is the place of a single file, such as `model.safetensors`. The files of several are named as Hugging Face does,
/// `model-00001-of-00002.safetensors`, and the index, which has the metadata too, is `model.safetensors.index.json`. All of them
/// appear at once. Files with such names that only the old index names are then removed; where their names are those of the new files,
/// the new ones are called `model.2-00001-of-00002.safetensors`.
///
/// # Errors
///
/// As for [`write`](write()); the old checkpoint is then untouched.
pub fn write_sharded(
    path: impl AsRef<Path>,
    tensors: Vec<(String, Array)>,
    metadata: &Metadata,
    limit: usize,
) -> Result<()> {
    write_with(path, tensors, metadata, Writing { shard: Some(limit), progress: None })
}

/// Writes as [`write`](write()) or [`write_sharded`] do, and reports its progress.
///
/// # Errors
///
/// As for these.
pub fn write_with(
    path: impl AsRef<Path>,
    tensors: Vec<(String, Array)>,
    metadata: &Metadata,
    writing: Writing<'_>,
) -> Result<()> {
    let path = path.as_ref();
    Set { path, beside: Vec::new(), stale: Vec::new() }.write(tensors, metadata, writing)
}
