//! All files of a checkpoint, which appear at once: tensors, their index, and what stands beside them.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::Array;
use serde_json::{Map, Value as Json, json};
use tacit_core::{Error, Result};
use tacit_files::{Output, Place, Room, Staged, folder_of};

use crate::index::{INDEX, TENSORS};
use crate::shards::Family;
use crate::writer::{Metadata, Writer, Writing};

/// The place of a checkpoint, and the files beside its tensors.
pub(crate) struct Set<'s> {
    /// The path of a single file of tensors.
    pub(crate) path: &'s Path,
    /// Names in the same folder with what these files hold, without which the tensors are not understood.
    pub(crate) beside: Vec<(&'static str, Vec<u8>)>,
    /// Names in the same folder that would be taken for a part of it.
    pub(crate) stale: Vec<&'static str>,
}

/// The tensors of a file.
type Group = Vec<(String, Array)>;

impl Set<'_> {
    pub(crate) fn write(self, tensors: Group, metadata: &Metadata, writing: Writing<'_>) -> Result<()> {
        let Self { path, beside, stale } = self;
        let mut writer = Writer::new(path, &tensors, metadata, writing.progress)?;
        if Place::at(path)? == Place::Stream {
            let mut output = Output::create(path)?;
            writer.write(path, &mut output, tensors)?;
            return output.finish();
        }
        let place = path.file_name().unwrap_or_default();
        // What is no text has no index.
        let name = place.to_str().unwrap_or_default();
        let family = name.strip_suffix(TENSORS).map(|stem| Family { folder: folder_of(path), stem });
        if family.is_none() && writing.shard.is_some() {
            let help = "give the place of a single file, such as model.safetensors";
            return Err(Error::checkpoint(path, None, "the name does not end in .safetensors", help));
        }
        // Nothing is written that then finds a link or a folder at its place.
        let indexed = family.filter(|family| writing.shard.is_some() || family.old().names(name));
        for name in beside.iter().map(|(name, _)| *name).chain(indexed.map(Family::index).as_deref()) {
            Place::of_file(&folder_of(path).join(name))?;
        }
        let room = Room::at(folder_of(path));
        let groups = match writing.shard {
            Some(limit) => grouped(tensors, limit),
            None => vec![tensors],
        };
        let mut keys = Vec::with_capacity(groups.len());
        let mut staged = Vec::with_capacity(groups.len());
        for group in groups {
            keys.push(group.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>());
            let mut file = Staged::beside(path)?;
            writer.write(path, &mut file, group)?;
            // Here, where no other save waits for it.
            file.sync().map_err(Error::file("write", path))?;
            staged.push(file);
        }
        let mut commit = room.begin()?;
        let names = match &family {
            Some(family) if staged.len() > 1 => family.free_names(staged.len()),
            _ => vec![name.to_owned()],
        };
        if let Some(family) = family {
            let old = family.old();
            if names.len() > 1 || old.names(name) || (old.is_there && writing.shard.is_some()) {
                let map: BTreeMap<&str, &str> = keys
                    .iter()
                    .zip(&names)
                    .flat_map(|(keys, name)| keys.iter().map(move |key| (&**key, &**name)))
                    .collect();
                commit.place_content(&family.index(), &index(metadata, writer.total, &map, path)?)?;
            }
            if writing.shard.is_some() {
                // A single file would be taken before the index.
                old.shards.iter().map(String::as_str).chain([name]).for_each(|name| commit.remove(name));
            }
        }
        for (file, name) in staged.into_iter().zip(&names) {
            commit.place(file, if names.len() == 1 { place } else { name.as_ref() })?;
        }
        for name in stale {
            commit.remove(name);
        }
        for (name, content) in beside {
            commit.place_last(name, &content)?;
        }
        commit.finish()
    }
}

/// The text of an index, as Hugging Face writes it.
fn index(metadata: &Metadata, total: usize, map: &BTreeMap<&str, &str>, path: &Path) -> Result<Vec<u8>> {
    let mut said: Map<String, Json> = metadata.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    said.insert("total_size".to_owned(), total.into());
    let text = serde_json::to_vec_pretty(&json!({ "metadata": said, "weight_map": map }));
    text.map_err(|error| Error::file("write", &path.with_extension(&INDEX[1..]))(error.into()))
}

/// The tensors in groups of at most `limit` bytes, or of one tensor that has more.
fn grouped(tensors: Group, limit: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut bytes = 0;
    for (name, array) in tensors {
        bytes += array.nbytes();
        match groups.last_mut() {
            Some(group) if bytes <= limit => group.push((name, array)),
            _ => {
                bytes = array.nbytes();
                groups.push(vec![(name, array)]);
            }
        }
    }
    if groups.is_empty() { vec![Group::new()] } else { groups }
}
