//! Tacit's own checkpoints: any implicit arrays, in a safetensors file.
//!
//! The arrays are tensors of the file under their paths, `layers.0.weight` for a dense parameter and
//! `layers.0.weight.codes` for an array of an implicit one. The metadata say what they are made to: under `tacit.values` a
//! JSON object with `{"array": key}` or `{"implicit": {"type": .., ..}}` for each path, as [`tacit_core::store`] has it;
//! under `tacit.version` the version of all this, under `tacit.mlx` the MLX that was there, and under `tacit.part` whether a
//! [`ModelFile`](crate::ModelFile) is a whole model or some of its leaves, which are tensors under their own paths; under
//! `tacit.leaves` then what these mean, as [`LeafKinds`](tacit_nn::LeafKinds) in JSON.

use std::borrow::Borrow;
use std::path::Path;

use tacit_bridge::mlx;
use tacit_core::Result;
use tacit_nn::Parameters;

use crate::structure::{self, DAMAGED, Structure, put_together, take_apart};
use crate::tensors::Tensors;
use crate::write::write_with;
use crate::writer::{Metadata, Writing};

/// The version of the layout that is written, and the newest that is read.
const VERSION: u32 = 1;

pub(crate) const VERSION_KEY: &str = "tacit.version";
const VALUES_KEY: &str = "tacit.values";

/// What of a model the file has, where it was saved as one.
pub(crate) const PART_KEY: &str = "tacit.part";

/// What leaves mean, where the file has some.
pub(crate) const LEAVES_KEY: &str = "tacit.leaves";

/// Saves values by their paths, implicit or dense, in one file.
///
/// An old file stays until the new one is complete. Where all values are dense, the file is one that other programs read as well. The
/// random keys of adapters with dropout are not saved: see [`undropped`](tacit_nn::undropped).
///
/// ```
/// use mlx_rs::ops;
/// use tacit_arrays::Nf4Array;
/// use tacit_io::{load, save};
/// use tacit_nn::Parameters;
///
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-save-{}.safetensors", std::process::id()));
/// let weight = Nf4Array::quantize(&ops::ones::<f32>(&[64, 64])?, 64)?;
/// save(&path, &Parameters::from([("layers.0.weight".to_owned(), weight.into())]))?;
/// let parameters = load(&path)?;
/// assert_eq!(parameters["layers.0.weight"].to_string(), "Nf4(f32[64,64])");
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// An array cannot be evaluated, a type cannot be saved, or the file cannot be written. The old file is then untouched.
pub fn save(path: impl AsRef<Path>, parameters: &Parameters) -> Result<()> {
    save_with(path, parameters, Writing::default())
}

/// Saves as [`save`] does, in several files or with reports of its progress.
///
/// Parameters that are passed by value are dropped one by one as they are written.
///
/// ```
/// use mlx_rs::ops;
/// use tacit_io::{Writing, load, save_with};
/// use tacit_nn::Parameters;
///
/// # fn main() -> tacit_core::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("tacit-save-with-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).expect("a folder for the files");
/// let (a, b) = (ops::ones::<f32>(&[64, 64])?, ops::zeros::<f32>(&[64, 64])?);
/// let parameters = Parameters::from([("a".to_owned(), a.into()), ("b".to_owned(), b.into())]);
/// // Files of at most 16 KiB of elements, and an index of them.
/// save_with(folder.join("model.safetensors"), parameters, Writing { shard: Some(1 << 14), ..Writing::default() })?;
/// assert!(folder.join("model-00002-of-00002.safetensors").exists());
/// assert_eq!(load(&folder)?.len(), 2);
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`save`].
pub fn save_with(path: impl AsRef<Path>, parameters: impl Borrow<Parameters>, writing: Writing<'_>) -> Result<()> {
    let (structure, arrays) = take_apart(parameters.borrow(), None)?;
    drop(parameters);
    write_with(path, arrays.into_iter().collect(), &metadata(&structure), writing)
}

/// Loads what [`save`] saved: a file, an index, or a folder with either.
///
/// The arrays are parts of the file in memory, which is read where and when they are used; see [`Tensors`]. So loading takes
/// no memory but for the structure, and at most the size of the file once everything has been used.
///
/// # Errors
///
/// As for [`Tensors::open`]; the file was not written by Tacit, or by a newer version; an array type is not in this program; an
/// array is missing, or is not what its type demands; or the file has no parameters but some leaves of a model, such as those of
/// its adapters. Each message names the file and, where there is one, the path.
pub fn load(path: impl AsRef<Path>) -> Result<Parameters> {
    let tensors = Tensors::open(path)?;
    let values = values(&tensors)?;
    if values.is_empty() && tensors.names().next().is_some() {
        let help = "load it into the model that it was saved from, by `ModelFile::load` or `Training::load`";
        return Err(tensors.wrong(None, "it has leaves or states of a model, and no parameters", help));
    }
    Ok(values)
}

pub(crate) fn metadata(structure: &Structure) -> Metadata {
    let structure = serde_json::Value::Object(structure.clone().into_iter().collect());
    let entries = [
        // What other readers look for.
        ("format", "mlx".to_owned()),
        (VERSION_KEY, VERSION.to_string()),
        ("tacit.mlx", mlx::VERSION.to_owned()),
        (VALUES_KEY, structure.to_string()),
    ];
    entries.map(|(key, text)| (key.to_owned(), text)).into()
}

/// Checks that a file is one of Tacit's and of a version that is known.
pub(crate) fn said_version(tensors: &Tensors) -> Result<()> {
    let Some(version) = tensors.metadata().get(VERSION_KEY) else {
        let help = "read it with the function for its format, or its tensors with `Tensors::open`";
        return Err(tensors.wrong(None, "it is no checkpoint of Tacit's", help));
    };
    match version.parse::<u32>() {
        Ok(1..=VERSION) => Ok(()),
        Ok(version) if version > VERSION => {
            let reason = format!("it has version {version} of Tacit's checkpoints, and this program reads {VERSION}");
            Err(tensors.wrong(None, reason, "use a newer Tacit"))
        }
        _ => Err(tensors.wrong(None, format!("its version is {version:?}"), DAMAGED)),
    }
}

/// The values of a file, whose version is checked.
pub(crate) fn values(tensors: &Tensors) -> Result<Parameters> {
    said_version(tensors)?;
    put_together(tensors, structure::read(tensors, said_values(tensors)?)?)
}

/// What the values of a file are made of, in JSON.
pub(crate) fn said_values(tensors: &Tensors) -> Result<&str> {
    let values = tensors.metadata().get(VALUES_KEY).map(String::as_str);
    values.ok_or_else(|| tensors.wrong(None, "it has no `tacit.values`", DAMAGED))
}
