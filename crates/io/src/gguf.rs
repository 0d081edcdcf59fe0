//! GGUF, the files of llama.cpp.
//!
//! The container is that of ggml's `docs/gguf.md`, versions 2 and 3, little-endian.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlx_rs::Dtype;
use tacit_bridge::MappedFile;
use tacit_core::{Aval, Error, Result, Value};
use tacit_nn::Parameters;

mod architecture;
mod arrays;
mod blocks;
mod configuration;
mod container;
mod cursor;
mod description;
mod encoded;
mod header;
mod heads;
mod kind;
mod metadata;
mod names;
mod parts;
mod pre_tokenizer;
mod rounded;
mod rows;
mod tensor;
mod tokenizer;
mod vocabulary;
mod windows;
mod writing;

use crate::mapped::Part;
use cursor::Cursor;
use header::{Header, Stored};
pub use kind::GgufType;
pub use metadata::GgufValue;
use parts::Parts;
use rows::Rows;
pub(crate) use vocabulary::Tokenizer;
pub(crate) use writing::{Beside, Planned, planned};

/// A GGUF file, memory-mapped and checked.
///
/// Tensors are read when they are used: those of `F32`, `F16`, `BF16` and integers are parts of the file and not copied, and
/// codes are lazy arrays. Quantized tensors keep their codes and become implicit arrays of `f32`, whose values are those of gguf-py's
/// `dequantize`, bit for bit:
///
/// | type | array | bits an element here, and in the file |
/// |---|---|---|
/// | `Q4_0`, `Q5_0`, `Q8_0` | [`SymmetricArray`](tacit_arrays::SymmetricArray), groups of 32 | 4.5, 5.5, 8.5; 4.5, 5.5, 8.5 |
/// | `Q4_1`, `Q5_1` | [`AffineArray`](tacit_arrays::AffineArray), groups of 32 | 5, 6; 5, 6 |
/// | `Q2_K`, `Q3_K`, `Q4_K`, `Q5_K`, `Q6_K` | [`KQuantArray`](tacit_arrays::KQuantArray) | 3.25, 3.625, 4.75, 5.75, 6.625; 2.625, 3.4375, 4.5, 5.5, 6.5625 |
/// | `IQ4_NL`, `IQ4_XS` | [`CodebookArray`](tacit_arrays::CodebookArray), blocks of 32 | 5; 4.5, 4.25 |
/// | `TQ1_0`, `TQ2_0` | [`CodebookArray`](tacit_arrays::CodebookArray), blocks of 256 | 2.125; 1.6875, 2.0625 |
/// | `MXFP4` | [`Mxfp4Array`](tacit_arrays::Mxfp4Array) | 4.25; 4.25 |
///
/// GGUF lists extents from the fastest axis to the slowest; here they are the other way round, as in MLX, so that a linear
/// layer's weight is `[out, in]`. A model that was split into several files is opened by the name of any of them.
///
/// ```no_run
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_io::Gguf;
///
/// let file = Gguf::open("qwen3-0.6b-q4_k_m.gguf")?;
/// println!("{:?}", file.metadata("general.architecture")?);
/// let w = file.get("blk.0.attn_q.weight")?;
/// let model = file.hugging_face()?; // model.layers.0.self_attn.q_proj.weight, ..
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    /// One, or the parts of a model that was split, of which the first has the metadata.
    files: Vec<Arc<MappedFile>>,
    header: Header,
}

impl Gguf {
    /// Opens a file, all files of a model that was split, or the model of a folder, and checks everything but the elements.
    ///
    /// # Errors
    ///
    /// A file cannot be read ([`Error::File`]), or is not as the format demands ([`Error::Checkpoint`]): it is of another
    /// version or big-endian; a number of things is more than its bytes can hold; a key or tensor is there twice; a type is
    /// unknown; the alignment is no power of two; a tensor is misaligned, overlaps another one or is not in the file. Or a folder
    /// holds no model or several, or the parts of one do not belong together.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = if path.is_dir() { parts::in_folder(path)? } else { Some(path.to_owned()) };
        let file = file.ok_or_else(|| {
            Error::checkpoint(path, None, "the folder holds no model in a GGUF file", "open another folder, or a file")
        })?;
        let Parts { path, files, header } = Parts::open(file)?;
        Ok(Self { path, files: files.into_iter().map(Arc::new).collect(), header })
    }

    /// The GGUF file that a path means: itself, or the only model of a folder in which there are no other tensors.
    ///
    /// # Errors
    ///
    /// The folder holds several models, or cannot be read.
    pub fn find(path: impl AsRef<Path>) -> Result<Option<PathBuf>> {
        let path = path.as_ref();
        if path.is_dir() {
            return parts::in_folder(path);
        }
        Ok(parts::is_gguf(path)?.then(|| path.to_owned()))
    }

    /// The files of the model that a file is, or a part of: those of the names that its own has.
    pub(crate) fn files(file: &Path) -> Result<Vec<PathBuf>> {
        parts::files(file)
    }

    /// The file, or the first part of a model that was split.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the container, 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// The keys of the metadata in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.header.metadata.keys().map(String::as_str)
    }

    /// The value of a key of the metadata, such as `general.architecture`.
    ///
    /// # Errors
    ///
    /// There is no such key, or a string of it is not UTF-8.
    pub fn metadata(&self, key: &str) -> Result<GgufValue> {
        let entry = self.header.metadata.get(key);
        let &(kind, at) = entry.ok_or_else(|| self.wrong(key, "there is no such key", "ask for one of `keys`"))?;
        metadata::value(&mut Cursor::new(self.bytes(), at), kind)
            .map_err(|reason| self.wrong(key, reason, "read another key: this one has bytes that are no text"))
    }

    /// The names of the tensors in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// The type of a tensor in the file.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name.
    pub fn kind(&self, name: &str) -> Result<GgufType> {
        Ok(self.stored(name)?.kind)
    }

    /// The shape of a tensor, and the dtype that it is read as.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name.
    pub fn aval(&self, name: &str) -> Result<Aval> {
        let Stored { kind, shape, .. } = self.stored(name)?;
        Ok(Aval::new(shape, kind.dtype.unwrap_or(Dtype::Float32)))
    }

    /// The bytes of a tensor as the file has them.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name.
    pub fn bytes_of(&self, name: &str) -> Result<&[u8]> {
        let stored = self.stored(name)?;
        Ok(&self.files[stored.part].bytes()[stored.bytes.clone()])
    }

    /// A tensor: dense, or the implicit array of its codes.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name, its type is not read, or it is quantized and has no elements.
    pub fn get(&self, name: &str) -> Result<Value> {
        self.gathered(&[name], None)
    }

    /// All tensors by their names.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn parameters(&self) -> Result<Parameters> {
        self.names().map(|name| Ok((name.to_owned(), self.get(name)?))).collect()
    }

    /// The rows of some tensors one behind the other, or in this order.
    fn gathered(&self, names: &[&str], order: Option<&[u32]>) -> Result<Value> {
        let tensors = names.iter().map(|name| self.stored(name)).collect::<Result<Vec<_>>>()?;
        let (name, first) = (names[0], tensors[0]);
        let alike = |stored: &&Stored| stored.kind == first.kind && stored.shape.get(1..) == first.shape.get(1..);
        if let Some(at) = tensors.iter().position(|stored| !alike(stored)) {
            let reason = format!(
                "it is {} {:?}, and {name} is {} {:?}",
                tensors[at].kind, tensors[at].shape, first.kind, first.shape
            );
            return Err(self.wrong(names[at], reason, "convert the model again, with one type for both"));
        }
        let mut aval = self.aval(name)?;
        if let Some(rows) = aval.shape.first_mut() {
            *rows = tensors.iter().map(|stored| stored.shape[0]).sum();
        }
        let is_vector_of_blocks = first.kind.dtype.is_none() && aval.shape.len() == 1;
        if is_vector_of_blocks && (order.is_some() || names.len() > 1) {
            let reason = format!("it is a vector of {}, whose elements are no rows of their own", first.kind);
            return Err(self.wrong(name, reason, "convert the model again: llama.cpp leaves vectors as floats"));
        }
        // The elements of a vector of numbers are its rows; a vector of blocks is one row.
        let row = if is_vector_of_blocks { Some(&aval.shape[..]) } else { aval.shape.get(1..) };
        let width = row.and_then(<[i32]>::last).map_or(first.kind.elements, |&last| last as usize);
        let stride = width / first.kind.elements * first.kind.bytes;
        let parts = tensors
            .iter()
            .map(|stored| Part { file: Arc::clone(&self.files[stored.part]), place: stored.bytes.clone() });
        let rows = Rows::new(parts.collect(), order, stride);
        if first.kind.dtype.is_some() {
            if names.len() == 1 && order.is_none() {
                return Ok(self.files[first.part].array(first.bytes.start, &aval)?.into());
            }
            return arrays::dense(aval, rows);
        }
        let Some(layout) = blocks::layout(first.kind.name()) else {
            let reason = format!("its type, {}, is not read; {} are", first.kind, blocks::READ);
            return Err(self.wrong(name, reason, "make the file anew with llama-quantize and one of these"));
        };
        arrays::array(first.kind, layout, aval, rows).map_err(|error| {
            self.wrong(name, format!("it cannot be read: {}", error.clause()), "leave it out, or convert it again")
        })
    }

    /// The bytes of the file with the metadata.
    fn bytes(&self) -> &[u8] {
        self.files.first().map_or(&[], |file| file.bytes())
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        self.header
            .tensors
            .get(name)
            .ok_or_else(|| self.wrong(name, "there is no tensor of this name", "ask for one of `names`"))
    }

    fn wrong(&self, key: &str, reason: impl Into<String>, help: &str) -> Error {
        Error::checkpoint(&self.path, Some(key), reason, help)
    }
}
