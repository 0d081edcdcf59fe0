//! Reads a checkpoint of any known program.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::Array;
use tacit_core::{Result, Value};
use tacit_nn::Parameters;

use crate::checkpoint::{load, said_values, said_version};
use crate::gguf::Gguf;
use crate::kind::FileKind;
use crate::structure::{self, Unknown, known_or_not};
use crate::tensors::Tensors;
use crate::{awq, bitsandbytes, gptq, hugging_face, mlx_lm, torchao};

/// Reads the parameters of a checkpoint, whosever it is, with the codes and scales that it has.
///
/// They have the names of the checkpoint. Those of a GGUF file whose architecture is known have Hugging Face's names, as
/// [`Gguf::hugging_face`] gives them. Half floats are dense, as in the files: on a CPU, where MLX multiplies them slowly,
/// [`tacit_nn::hold_halves`] makes faster arrays of them without a copy.
///
/// Codes that lie in the file otherwise than here are lazy, as are scales that are spread: evaluate a parameter before it goes to
/// another thread, by [`tree::eval`](tacit_core::tree::eval) or with its model.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-any-{}.safetensors", std::process::id()));
/// use mlx_rs::ops;
/// use tacit_arrays::Nf4Array;
/// use tacit_io::bitsandbytes::{self, BitsAndBytesLayout};
/// use tacit_io::{FileKind, read};
/// use tacit_nn::Parameters;
///
/// let weight = Nf4Array::quantize(&ops::ones::<f32>(&[8, 64])?, 64)?;
/// bitsandbytes::write(&path, &Parameters::from([("proj.weight".to_owned(), weight.into())]), BitsAndBytesLayout::default())?;
///
/// assert_eq!(FileKind::detect(&path)?, FileKind::Bitsandbytes);
/// assert_eq!(read(&path)?["proj.weight"].to_string(), "Nf4(f32[8,64])");
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`FileKind::detect`], and for the reader of that kind.
pub fn read(path: impl AsRef<Path>) -> Result<Parameters> {
    let path = path.as_ref();
    FileKind::detect(path)?.read(path)
}

/// What a checkpoint holds under a path.
#[derive(Clone, Debug)]
pub enum Content {
    /// A parameter.
    Parameter(Value),
    /// A tensor of a file that has no parameters, such as a leaf of an adapter.
    Tensor(Array),
    /// A parameter of an array type that is not in this program.
    Unknown {
        /// What the type is saved as.
        ty: String,
        /// The bytes of its arrays.
        nbytes: usize,
    },
}

/// What a checkpoint holds, whosever it is, as far as this program knows it.
///
/// Where [`read()`](crate::read()) is an error because parameters are missing, or are of types that are not in this program,
/// this tells what is there.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-contents-{}.safetensors", std::process::id()));
/// use mlx_rs::nn;
/// use tacit_io::{Content, ModelFile, contents, read};
/// use tacit_nn::{Model, ParameterFilter};
///
/// let model = Model::new(nn::Linear::new(64, 64)?)?;
/// model.save(&path, ParameterFilter::Dense)?;
/// assert!(read(&path).is_err());
/// assert!(matches!(contents(&path)?["weight"], Content::Tensor(_)));
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`read()`](crate::read()), but for these two.
pub fn contents(path: impl AsRef<Path>) -> Result<BTreeMap<String, Content>> {
    let path = path.as_ref();
    FileKind::detect(path)?.contents(path)
}

impl FileKind {
    /// Reads the parameters of a checkpoint of this kind, as [`read()`](crate::read()) does where it does not know the kind.
    ///
    /// # Errors
    ///
    /// As for the reader of this kind.
    pub fn read(self, path: impl AsRef<Path>) -> Result<Parameters> {
        let path = path.as_ref();
        match self {
            Self::Tacit => load(path),
            Self::Gguf => Gguf::open(path)?.read(),
            Self::Bitsandbytes => bitsandbytes::read(path),
            Self::MlxLm => mlx_lm::read(path),
            Self::Gptq => gptq::read(path),
            Self::Awq => awq::read(path),
            Self::Torchao => torchao::read(path),
            Self::Floats => hugging_face::read(path),
        }
    }

    /// What a checkpoint of this kind holds, as [`contents`] tells it where it does not know the kind.
    ///
    /// # Errors
    ///
    /// As for [`contents`].
    pub fn contents(self, path: impl AsRef<Path>) -> Result<BTreeMap<String, Content>> {
        if self != Self::Tacit {
            return Ok(self.read(path)?.into_iter().map(|(path, value)| (path, Content::Parameter(value))).collect());
        }
        let tensors = Tensors::open(path)?;
        said_version(&tensors)?;
        let values = known_or_not(&tensors, structure::read(&tensors, said_values(&tensors)?)?)?;
        if values.is_empty() {
            return tensors.names().map(|name| Ok((name.to_owned(), Content::Tensor(tensors.get(name)?)))).collect();
        }
        let content = |value| match value {
            Ok(value) => Content::Parameter(value),
            Err(Unknown { ty, nbytes }) => Content::Unknown { ty, nbytes },
        };
        Ok(values.into_iter().map(|(path, value)| (path, content(value))).collect())
    }
}
