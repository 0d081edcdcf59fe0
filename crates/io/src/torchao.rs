//! torchao's `Int4Tensor` and `NF4Tensor` in safetensors.
//!
//! The tensors of a parameter `MODULE.NAME` are `MODULE._NAME_PART`, and the file's metadata has for it a JSON object with
//! `_type`, `_data`, which are the static fields, and `_tensor_data_names`, as `flatten_tensor_state_dict` of torchao's
//! `safetensors_support` makes them.

use std::collections::BTreeSet;
use std::path::Path;

use half::{bf16, f16};
use mlx_rs::Dtype;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tacit_arrays::CodebookArray;
use tacit_arrays::format::{Affine, Codebook, Parts};
use tacit_core::{Aval, Error, Result, Value};
use tacit_nn::Parameters;

use crate::Tensors;
use crate::codes::floats;
use crate::filled::filled;
use crate::integers::{Integers, floats_of};
use crate::mapped::Part;
use crate::remaining::Remaining;

/// Reads a file, an index or a folder of torchao's.
///
/// An `Int4Tensor` becomes an [`AffineArray`](tacit_arrays::AffineArray) and an `NF4Tensor` a [`CodebookArray`] of its own
/// table, both in the dtype of torchao's tensor and with their codes, which are read when they are used. The values of an
/// `NF4Tensor` are those of `get_original_weight` bit for bit, though its scales, of 8 bits there, are held in `f32`. Those of
/// an `Int4Tensor` are `code * scale + zero_point`, rounded once, unless a zero point is more than 2^13 times its scale, when
/// the last bit may differ. Groups longer than 128 have their scales several times. Other tensors are as they are.
///
/// `flatten_tensor_state_dict` takes no `NF4Tensor`: a file of these is one whose writer named its tensors in the same way,
/// with `block_size`, `scaler_block_size` and `shape` as the static fields.
///
/// ```no_run
/// # fn main() -> tacit_core::Result<()> {
/// let parameters = tacit_io::torchao::read("model.safetensors")?;
/// println!("{}", parameters["layers.0.proj.weight"]); // Affine(bf16[1024,1024])
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A file cannot be read; its metadata are not torchao's, or do not fit the tensors; or a tensor is of another subclass.
pub fn read(path: impl AsRef<Path>) -> Result<Parameters> {
    let tensors = Tensors::open(path)?;
    let mut parameters = Parameters::new();
    let mut prefixes = BTreeSet::new();
    for name in of_metadata::<Vec<String>>(&tensors, "tensor_names", "tensor_names")? {
        let subclass: Subclass = of_metadata(&tensors, &name, &name)?;
        if subclass.kind == "Tensor" {
            continue;
        }
        let tensor = Subclassed { tensors: &tensors, name: &name };
        let value = match subclass.kind.as_str() {
            "Int4Tensor" => tensor.int4(&subclass)?,
            "NF4Tensor" => tensor.nf4(&subclass)?,
            other => {
                let reason = format!("it is of torchao's {other}, and Int4Tensor and NF4Tensor are read");
                return Err(tensors.wrong(Some(&name), reason, "save it as one of these, or dequantized"));
            }
        };
        prefixes.insert(tensor.part(""));
        parameters.insert(name, value);
    }
    let mut remaining = Remaining::new(&tensors);
    // Each prefix ends in `_`: those that a name could have are looked up, and not all of them compared.
    remaining.without(|name| name.match_indices('_').any(|(at, _)| prefixes.contains(&name[..=at])));
    remaining.dense(&mut parameters)?;
    Ok(parameters)
}

/// What the metadata say of a tensor.
#[derive(Deserialize)]
#[serde(expecting = "an object with _type")]
struct Subclass {
    #[serde(rename = "_type")]
    kind: String,
    #[serde(rename = "_data", default)]
    data: Data,
    #[serde(rename = "_tensor_data_names", default)]
    parts: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, expecting = "static fields")]
struct Data {
    shape: Vec<i32>,
    block_size: BlockSize,
    scaler_block_size: usize,
}

/// A number, or one for each axis.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a number, or one for each axis")]
enum BlockSize {
    Flat(usize),
    Each(Vec<usize>),
}

impl Default for BlockSize {
    fn default() -> Self {
        Self::Flat(0)
    }
}

const HELP: &str = "the tensors and the file's metadata do not fit: write the file again";

/// An entry of the metadata, which is JSON.
fn of_metadata<T: DeserializeOwned>(tensors: &Tensors, entry: &str, key: &str) -> Result<T> {
    let text = tensors.metadata().get(entry);
    let text =
        text.ok_or_else(|| tensors.wrong(Some(key), "the file's metadata do not have it, as torchao's do", HELP))?;
    serde_json::from_str(text).map_err(|error| {
        tensors.wrong(Some(key), format!("the file's metadata of it are not torchao's: {error}"), HELP)
    })
}

/// A tensor of several parts.
struct Subclassed<'a> {
    tensors: &'a Tensors,
    name: &'a str,
}

impl Subclassed<'_> {
    /// The name of a part in the file.
    fn part(&self, part: &str) -> String {
        let (module, name) = self.name.rsplit_once('.').unwrap_or(("", self.name));
        format!("{module}._{name}_{part}")
    }

    fn wrong(&self, part: &str, reason: impl Into<String>) -> Error {
        self.tensors.wrong(Some(&self.part(part)), reason, HELP)
    }

    /// What is stored of a part, which must be of this shape and of one of these dtypes; all are of one or more bytes.
    fn stored(&self, part: &str, shape: &[i32], dtypes: &[Dtype]) -> Result<(Part, Dtype)> {
        let name = self.part(part);
        let aval = self.tensors.aval(&name)?;
        if aval.shape != shape || !dtypes.contains(&aval.dtype) {
            let expected: Vec<String> = dtypes.iter().map(|&dtype| Aval::new(shape, dtype).to_string()).collect();
            return Err(self.wrong(part, format!("it is {aval}, and must be {}", expected.join(" or "))));
        }
        Ok((self.tensors.part(&name)?, aval.dtype))
    }

    fn floats(&self, part: &str, shape: &[i32], dtypes: &[Dtype]) -> Result<(Vec<f32>, Dtype)> {
        let (stored, dtype) = self.stored(part, shape, dtypes)?;
        let floats = floats_of(stored.bytes(), dtype).ok_or_else(|| self.wrong(part, "it is not of floats"))?;
        Ok((floats, dtype))
    }

    fn int4(&self, subclass: &Subclass) -> Result<Value> {
        if let Some(part) =
            subclass.parts.iter().find(|part| !["qdata", "scale", "zero_point"].contains(&part.as_str()))
        {
            return Err(self.wrong(part, "it changes the activations, which an array of weights does not hold"));
        }
        let wrong = || {
            let reason = "its metadata have no shape of a matrix and no block_size of whole groups of its rows";
            self.tensors.wrong(Some(self.name), reason, HELP)
        };
        let (&[n, k], BlockSize::Each(block)) = (subclass.data.shape.as_slice(), &subclass.data.block_size) else {
            return Err(wrong());
        };
        let group = match **block {
            [1, group] if n > 0 && k > 0 && k % 2 == 0 && group > 0 && (k as usize).is_multiple_of(group) => group,
            _ => return Err(wrong()),
        };
        let (rows, columns) = (n as usize, k as usize);
        let groups = columns / group;
        let (data, _) = self.stored("qdata", &[n, k / 2], &[Dtype::Int8, Dtype::Uint8])?;
        let (scales, dtype) = self.floats("scale", &[groups as i32, n], &FLOATS)?;
        let (zeros, _) = self.floats("zero_point", &[groups as i32, n], &[dtype])?;
        let stored = data.clone();
        // Two codes from -8 to 7, the first in the low half, counted from -8.
        let code = move |row: usize, column: usize| {
            let at = row * columns + column;
            data.bytes()[at / 2] >> (4 * (column % 2)) & 15 ^ 8
        };
        let numbers = |row: usize, group: usize| {
            let at = group * rows + row;
            (scales[at], zeros[at] - 8.0 * scales[at])
        };
        let integers = Integers::new([rows, columns], Affine { bits: 4, group }, stored, code, numbers);
        Ok(integers.array(dtype).map_err(|reason| self.wrong("qdata", reason))?.into())
    }

    fn nf4(&self, subclass: &Subclass) -> Result<Value> {
        let Data { shape, block_size, scaler_block_size } = &subclass.data;
        let size = shape.iter().try_fold(1_i32, |size, &extent| size.checked_mul(extent).filter(|_| extent > 0));
        let (Some(size), &BlockSize::Flat(block), scaler_block @ 1..) = (size, block_size, *scaler_block_size) else {
            let reason = "its metadata have no shape, block_size and scaler_block_size of whole numbers";
            return Err(self.tensors.wrong(Some(self.name), reason, HELP));
        };
        let blocks =
            (size as usize).checked_div(block).filter(|blocks| blocks * block == size as usize && block % 2 == 0);
        let Some(blocks) = blocks.filter(|blocks| blocks.is_multiple_of(scaler_block)) else {
            let reason =
                format!("{size} elements are not whole blocks of {block}, and these not of {scaler_block} scales");
            return Err(self.tensors.wrong(Some(self.name), reason, HELP));
        };
        let (table, dtype) = self.floats("nf4", &[16], &FLOATS)?;
        let (factors, _) = self.floats("quantization_factor", &[(blocks / scaler_block) as i32], &[dtype])?;
        let (mean, _) = self.floats("scaler_mean", &[], &[dtype])?;
        let (scalers, _) = self.stored("quantized_scalers", &[blocks as i32], &[Dtype::Int8])?;
        let (data, _) = self.stored("quantized_data", &[size / 2], &[Dtype::Uint8])?;
        // As torch computes in this dtype: each result is rounded to it.
        let rounded = |number: f32| match dtype {
            Dtype::Float16 => f16::from_f32(number).to_f32(),
            Dtype::Bfloat16 => bf16::from_f32(number).to_f32(),
            _ => number,
        };
        let scales: Vec<f32> = scalers
            .bytes()
            .iter()
            .enumerate()
            .map(|(at, byte)| rounded(rounded(f32::from(byte.cast_signed()) / factors[at / scaler_block]) + mean[0]))
            .collect();
        // The first element is in the high half there, and in the low one here.
        let [codes] = filled([Aval::new(&[size / 2], Dtype::Uint8)], move |[places]| {
            for (place, byte) in places.iter_mut().zip(data.bytes()) {
                *place = byte.rotate_left(4);
            }
            data.forget();
        })?;
        let array = Codebook::new(block, &table).and_then(|format| {
            CodebookArray::from_parts(Parts::new(codes, floats(&scales)), format, Aval::new(shape, dtype))
        });
        Ok(array.map_err(|error| self.wrong("nf4", error.clause()))?.into())
    }
}

const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
