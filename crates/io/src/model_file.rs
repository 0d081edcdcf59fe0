//! Models and parts of them, saved and loaded by their own paths.

use std::borrow::Borrow;
use std::path::Path;

use mlx_rs::module::ModuleParameters;
use tacit_core::{Error, Result};
use tacit_nn::{Missing, Model, ParameterFilter};

use crate::checkpoint::{LEAVES_KEY, PART_KEY, metadata, said_version, values};
use crate::structure::{DAMAGED, Structure, take_apart};
use crate::tensors::Tensors;
use crate::training::{TRAINING_KEY, Training, leaves};
use crate::write::write_with;
use crate::writer::Writing;

/// What a file has of a model: nothing is said of values that were saved by themselves.
const WHOLE: &str = "model";
const LEAVES: &str = "leaves";

/// Saving and loading of a [`Model`] or of a part of it.
///
/// ```
/// use mlx_rs::nn;
/// use tacit_arrays::format::Nf4;
/// use tacit_io::ModelFile;
/// use tacit_nn::{Model, ParameterFilter};
///
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-model-file-{}.safetensors", std::process::id()));
/// let model = Model::new(nn::Linear::new(64, 64)?)?.quantize("weight", Nf4 { block: 64, double: false })?;
/// model.save(&path, ParameterFilter::All)?;
///
/// let mut other = Model::new(nn::Linear::new(64, 64)?)?;
/// other.load(&path)?;
/// assert_eq!(other.get("weight")?.to_string(), "Nf4(f32[64,64])");
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
pub trait ModelFile {
    /// Saves the model, or only some of its leaves, such as the factors of its adapters.
    ///
    /// A whole model is loaded into any model of the same module, whatever its formats are there. Leaves are loaded into a
    /// model that has them: adapters of the same shape, kind and scale on the same parameters, all of them unless `only` names
    /// some by their paths. What adapters drop in a step is not saved.
    ///
    /// # Errors
    ///
    /// The model has no leaf of this part, or as for [`save`](crate::save()).
    fn save(&self, path: impl AsRef<Path>, only: impl Borrow<ParameterFilter>) -> Result<()>;

    /// Loads what [`save`](Self::save) saved, what a [`Training`] has of a model, or values that were saved by
    /// [`save`](crate::save()), which may be of some parameters only.
    ///
    /// # Errors
    ///
    /// As for [`load`](crate::load()); there is nothing to load; the model has no such parameter or leaf, or one of another
    /// shape; a whole model has not all parameters of this one; leaves are not those of the part that was saved, here or in
    /// the file, or are of adapters of another kind or scale. The model is then what it was.
    fn load(&mut self, path: impl AsRef<Path>) -> Result<()>;
}

impl<M: ModuleParameters> ModelFile for Model<M> {
    fn save(&self, path: impl AsRef<Path>, only: impl Borrow<ParameterFilter>) -> Result<()> {
        let only = only.borrow();
        let path = path.as_ref();
        let (structure, tensors, part, kinds) = if matches!(only, ParameterFilter::All) {
            let (structure, arrays) = take_apart(&self.values()?, None)?;
            (structure, arrays.into_iter().collect(), WHOLE, None)
        } else {
            (Structure::new(), leaves(self, only)?, LEAVES, Some(self.leaf_kinds(only)?))
        };
        let mut metadata = metadata(&structure);
        metadata.insert(PART_KEY.to_owned(), part.to_owned());
        if let Some(kinds) = kinds {
            let kinds = serde_json::to_string(&kinds).map_err(|error| Error::file("write", path)(error.into()))?;
            metadata.insert(LEAVES_KEY.to_owned(), kinds);
        }
        write_with(path, tensors, &metadata, Writing::default())
    }

    fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let tensors = Tensors::open(path)?;
        said_version(&tensors)?;
        match tensors.metadata().get(PART_KEY).map(String::as_str) {
            None if tensors.metadata().contains_key(TRAINING_KEY) => {
                Training::from_tensors(&tensors)?.restore_model(self)
            }
            None => {
                let values = values(&tensors)?;
                if values.is_empty() {
                    return Err(tensors.wrong(None, "it has no values to load", "save a model, or a part of it"));
                }
                self.assign(values, Missing::Keep)
            }
            Some(WHOLE) => self.assign(values(&tensors)?, Missing::Refuse),
            Some(LEAVES) => {
                let kinds = tensors.metadata().get(LEAVES_KEY).map(|kinds| serde_json::from_str(kinds)).transpose();
                let kinds = kinds.map_err(|error| {
                    tensors.wrong(None, format!("what it says of its leaves cannot be read: {error}"), DAMAGED)
                })?;
                let arrays = tensors.names().map(|name| Ok((name.to_owned(), tensors.get(name)?)));
                self.load_leaves(arrays.collect::<Result<Vec<_>>>()?, kinds.as_ref())
            }
            Some(other) => Err(tensors.wrong(None, format!("it has an unknown part of a model, {other:?}"), DAMAGED)),
        }
    }
}
