//! GGUF, the files of llama.cpp.
//!
//! The container is that of ggml's `docs/gguf.md`, versions 2 and 3, little-endian.

use std::fs::File;
use std::path::{Path, PathBuf};

use mlx_rs::{Array, Dtype};
use tacit_bridge::MappedFile;
use tacit_core::{Aval, Error, Result, Value};
use tacit_files::current;
use tacit_nn::Parameters;

mod arrays;
mod blocks;
mod cursor;
mod header;
mod heads;
mod kind;
mod metadata;
mod names;

use cursor::Cursor;
use header::{Header, Stored};
pub use kind::GgufType;
pub use metadata::GgufValue;

/// A GGUF file, memory-mapped and checked.
///
/// Tensors are read when they are asked for. Those of `F32`, `F16`, `BF16` and integers are parts of the file and not
/// copied. Quantized ones keep their codes and become implicit arrays of `f32`, whose values are those of gguf-py's
/// `dequantize`, bit for bit:
///
/// | type | array | bits an element here, and in the file |
/// |---|---|---|
/// | `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0` | [`AffineArray`](tacit_arrays::AffineArray), groups of 32 | 5, 5, 6, 6, 9; 4.5, 5, 5.5, 6, 8.5 |
/// | `Q2_K`, `Q3_K`, `Q4_K`, `Q5_K`, `Q6_K` | [`KQuantArray`](tacit_arrays::KQuantArray) | 3.25, 3.625, 4.75, 5.75, 6.625; 2.625, 3.4375, 4.5, 5.5, 6.5625 |
/// | `IQ4_NL`, `IQ4_XS` | [`CodebookArray`](tacit_arrays::CodebookArray), blocks of 32 | 5; 4.5, 4.25 |
/// | `MXFP4` | [`Mxfp4Array`](tacit_arrays::Mxfp4Array) | 4.25; 4.25 |
///
/// GGUF lists extents from the fastest axis to the slowest; here they are the other way round, as in MLX, so that a linear
/// layer's weight is `[out, in]`. A model that was split into several files is opened file by file.
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
    file: MappedFile,
    header: Header,
}

impl Gguf {
    /// Opens a file and checks everything but the elements.
    ///
    /// # Errors
    ///
    /// The file cannot be read ([`Error::File`]), or is not as the format demands ([`Error::Checkpoint`]): it is of another
    /// version or big-endian; a number of things is more than its bytes can hold; a key or tensor is there twice; a type is
    /// unknown; the alignment is no power of two; a tensor is misaligned, overlaps another one or is not in the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let file = File::open(current(&path)?).map_err(Error::file("open", &path))?;
        let file = MappedFile::new(&file).map_err(Error::file("map", &path))?;
        let header = header::header(&path, file.bytes())?;
        Ok(Self { path, file, header })
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
        metadata::value(&mut Cursor::new(self.file.bytes(), at), kind)
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

    /// A tensor: dense, or the implicit array of its codes.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name, its type is not read, or it is quantized and has no elements.
    pub fn get(&self, name: &str) -> Result<Value> {
        self.rows(name, None)
    }

    /// All tensors by their names.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn parameters(&self) -> Result<Parameters> {
        self.names().map(|name| Ok((name.to_owned(), self.get(name)?))).collect()
    }

    /// A tensor whose rows are those of so many heads in llama.cpp's order, if they are.
    fn rows(&self, name: &str, heads: Option<usize>) -> Result<Value> {
        let Stored { kind, shape, bytes } = self.stored(name)?;
        let aval = self.aval(name)?;
        let order = heads.map(|heads| self.order(name, shape, heads)).transpose()?;
        if kind.dtype.is_some() {
            let array = self.file.array(bytes.start, &aval)?;
            let order = order.map(|order| Array::from_slice(&order, &[order.len() as i32]));
            return Ok(match order {
                Some(order) => array.take_axis(order, 0)?.into(),
                None => array.into(),
            });
        }
        let Some(reader) = blocks::reader(kind.name()) else {
            let reason = format!("its type, {kind}, is not read; {} are", blocks::READ);
            return Err(self.wrong(name, reason, "make the file anew with llama-quantize and one of these"));
        };
        let row = |row: usize| order.as_ref().and_then(|order| order.get(row)).map_or(row, |&row| row as usize);
        arrays::array(*kind, reader, aval, &self.file.bytes()[bytes.clone()], &row).map_err(|error| {
            self.wrong(name, format!("it cannot be read: {}", error.clause()), "leave it out, or convert it again")
        })
    }

    /// The row of the file that each row of queries or keys is.
    fn order(&self, name: &str, shape: &[i32], heads: usize) -> Result<Vec<u32>> {
        let rows = shape.first().map_or(0, |&rows| rows as usize);
        heads::order(rows, heads).ok_or_else(|| {
            let reason = format!("its {rows} rows are not those of {heads} heads");
            self.wrong(name, reason, "the metadata are those of another model: convert it again")
        })
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
