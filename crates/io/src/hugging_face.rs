//! Reads and writes float checkpoints as the libraries of Hugging Face do.

use std::borrow::Borrow;
use std::path::Path;

use mlx_rs::{Array, Dtype};
use tacit_core::{Error, Result, Value};
use tacit_nn::Parameters;

use crate::kind::FileKind;
use crate::remaining::Remaining;
use crate::set::Set;
use crate::{Metadata, Tensors, Writing};

/// Reads the tensors of a file, an index or a folder as dense parameters, each a part of its file.
///
/// Floats of eight bits are [`E4m3Array`](tacit_arrays::E4m3Array) and [`E5m2Array`](tacit_arrays::E5m2Array) of the file's own
/// codes, with the scales that stand beside them: those of `DeepSeek`'s and Qwen's checkpoints (`weight_scale_inv` or `scale`, a
/// block of 128 by 128), and of compressed-tensors and others (`weight_scale`, of the whole, of rows or of blocks). Their dtype is that
/// of `config.json`; where it says none, it is that of half-float scales, `bf16` without scales, and else `f32`. Scales of activations
/// are left out: these stay floats.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-float-{}.safetensors", std::process::id()));
/// use mlx_rs::ops;
/// use tacit_io::hugging_face;
/// use tacit_nn::Parameters;
///
/// let parameters = Parameters::from([("norm.weight".to_owned(), ops::ones::<f32>(&[8])?.into())]);
/// hugging_face::write(&path, &parameters)?;
/// assert_eq!(hugging_face::read(&path)?["norm.weight"].to_string(), "f32[8]");
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The checkpoint cannot be opened (see [`Tensors::open`]), or it is a quantized one, whose codes are no parameters; or
/// floats of eight bits are of another type, or have scales that are not known.
pub fn read(path: impl AsRef<Path>) -> Result<Parameters> {
    let tensors = Tensors::open(path)?;
    let (kind, told) = FileKind::of_tensors(&tensors)?;
    if kind != FileKind::Floats {
        let reason = "the checkpoint is not of floats alone, and codes are no parameters";
        return Err(tensors.wrong(told, reason, format!("read it by `{kind}`")));
    }
    let mut parameters = Parameters::new();
    Remaining::new(&tensors).dense(&mut parameters)?;
    Ok(parameters)
}

/// Writes dense parameters, in files of at most 5 GB.
///
/// `path` is the place of a single file, such as `model.safetensors`. Parameters that are passed by value are dropped one by one as
/// they are written. What [`read`] took from a file that transformers wrote is written as the same bytes.
///
/// # Errors
///
/// A parameter is not dense, or the files cannot be written: see [`write_sharded`](crate::write_sharded).
pub fn write(path: impl AsRef<Path>, parameters: impl Borrow<Parameters>) -> Result<()> {
    let path = path.as_ref();
    let tensors = tensors(path, parameters.borrow())?;
    // Those that are given away go as they are written.
    drop(parameters);
    write_set(Set { path, beside: Vec::new(), stale: Vec::new() }, tensors)
}

/// The parameters, all of which are to be dense.
pub(crate) fn tensors(path: &Path, parameters: &Parameters) -> Result<Vec<(String, Array)>> {
    let dense = |(name, value): (&String, &Value)| match value {
        Value::Dense(array) => Ok((name.clone(), array.clone())),
        Value::Implicit(_) => {
            let help = "make it dense by `tacit::io::dense`, or write it in a format that has it";
            Err(cannot_hold(path, name, value, "a float checkpoint", help))
        }
    };
    parameters.iter().map(dense).collect()
}

/// The largest file that Hugging Face's libraries write by themselves.
const SHARD: usize = 5_000_000_000;

/// The order of dtypes in a file: that of `Dtype` in the library safetensors, the other way round.
const ORDER: [Dtype; 14] = [
    Dtype::Uint64,
    Dtype::Int64,
    Dtype::Float64,
    Dtype::Complex64,
    Dtype::Float32,
    Dtype::Uint32,
    Dtype::Int32,
    Dtype::Bfloat16,
    Dtype::Float16,
    Dtype::Uint16,
    Dtype::Int16,
    Dtype::Int8,
    Dtype::Uint8,
    Dtype::Bool,
];

/// Writes tensors in the order of the library safetensors: by dtype, the widest first, and then by name.
pub(crate) fn write_set(set: Set<'_>, mut tensors: Vec<(String, Array)>) -> Result<()> {
    let rank = |array: &Array| ORDER.iter().position(|&dtype| dtype == array.dtype());
    tensors.sort_by(|(a, left), (b, right)| (rank(left), a).cmp(&(rank(right), b)));
    let metadata = Metadata::from([("format".to_owned(), "pt".to_owned())]);
    set.write(tensors, &metadata, Writing { shard: Some(SHARD), progress: None })
}

pub(crate) fn cannot_hold(path: &Path, name: &str, value: &Value, format: &str, help: &str) -> Error {
    Error::checkpoint(path, Some(name), format!("{format} cannot hold {value}"), help)
}
