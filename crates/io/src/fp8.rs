//! Floats of eight bits, with the scales that checkpoints have for them.
//!
//! A weight `M.weight: F8_E4M3 [.., n, k]`, or `F8_E5M2`, is its elements times a scale that stands beside it:
//! `M.weight_scale_inv` of a block of 128 by 128 in `DeepSeek`'s and Qwen's checkpoints (`weight_block_size` says another one),
//! which `DeepSeek`'s own programs call `M.scale`; `M.weight_scale` of the whole, of each row or of a block in those of
//! compressed-tensors, `AutoFP8`, `ModelOpt` and FBGEMM; `M.scale_weight` in `ComfyUI`'s. It becomes an array of its own codes,
//! where a block lies along a row.

use std::collections::BTreeSet;
use std::path::Path;

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{E4m3, E5m2, Format, PackedArray, Parts};
use tacit_core::{Aval, Error, Result, Value};
use tacit_nn::Parameters;

use crate::Tensors;
use crate::codes::floats;
use crate::json::Json;
use crate::remaining::Remaining;
use crate::torch_dtype::dtype_of_torch;

/// Scales of activations and of caches, which stay floats here.
const OF_ACTIVATIONS: [&str; 11] = [
    "input_scale",
    "input_scale_inv",
    "input_scale_ub",
    "output_scale",
    "activation_scale",
    "activation_scale_inv",
    "scale_input",
    "scale_output",
    "q_scale",
    "k_scale",
    "v_scale",
];

impl Remaining<'_> {
    /// What is left, as dense parameters, and floats of eight bits with the scales that they have.
    pub(crate) fn dense(mut self, parameters: &mut Parameters) -> Result<()> {
        take(&mut self, parameters)?;
        for name in self.stems("") {
            parameters.insert(name.to_owned(), Value::from(self.tensors.get(name)?));
        }
        Ok(())
    }
}

/// Takes the floats of eight bits with their scales, and what is beside them for activations.
///
/// # Errors
///
/// One is in a type that has other values (`F8_E4M3FNUZ`), or has no scale that can be read; codes of another width are there
/// with scales like these; or the configuration beside the tensors cannot be read.
fn take(remaining: &mut Remaining<'_>, parameters: &mut Parameters) -> Result<()> {
    let tensors = remaining.tensors;
    if !tensors.names().any(|name| tensors.stored_dtype(name).is_ok_and(is_float8)) {
        return tensors.names().try_for_each(|name| codes_of_another_width(tensors, name));
    }
    let (names, said) = (tensors.names().collect(), Said::read(tensors.folder())?);
    let mut has_codes = false;
    for name in remaining.stems("") {
        let stored = tensors.stored_dtype(name)?;
        let named_scale = name.rsplit('.').next().is_some_and(|last| last.contains("scale"));
        if named_scale || !is_float8(stored) {
            codes_of_another_width(tensors, name)?;
            continue;
        }
        has_codes = true;
        let scale = scale_name(tensors, &names, name)?;
        let scale = scale.map(|scale| Ok::<_, Error>((scale_of(remaining, &scale)?, scale))).transpose()?;
        let codes = remaining.take(name, "the checkpoint")?;
        let value = match stored {
            "F8_E4M3" => value(tensors, &said, name, E4m3::from, &codes, scale)?,
            "F8_E5M2" => value(tensors, &said, name, E5m2::from, &codes, scale)?,
            other => {
                let reason = format!("it is {other}, which has other values than F8_E4M3 and F8_E5M2");
                return Err(tensors.wrong(Some(name), reason, "convert the checkpoint to one of these, or to floats"));
            }
        };
        parameters.insert(name.to_owned(), value);
    }
    if has_codes {
        let beside: Vec<&str> = remaining.stems("").into_iter().filter(|name| is_of_activations(name)).collect();
        for name in beside {
            remaining.take_if(name)?;
        }
    }
    match remaining.stems("").into_iter().find(|name| tensors.stored_dtype(name).is_ok_and(is_float8)) {
        None => Ok(()),
        Some(name) => {
            let reason = "it is a scale in eight bits, of no weight that is read";
            Err(tensors.wrong(Some(name), reason, "convert the checkpoint to floats, or to F8_E4M3 with float scales"))
        }
    }
}

fn is_float8(stored: &str) -> bool {
    stored.starts_with("F8_")
}

fn is_of_activations(name: &str) -> bool {
    OF_ACTIVATIONS.contains(&name.rsplit('.').next().unwrap_or(name))
}

/// Refuses a weight of integers that has a scale as one of eight bits has: it is codes, and no parameter.
fn codes_of_another_width(tensors: &Tensors, name: &str) -> Result<()> {
    let module = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".weight_packed"));
    let Some(module) = module.filter(|_| tensors.aval(name).is_ok_and(|aval| !aval.dtype.is_float())) else {
        return Ok(());
    };
    let scale = ["weight_scale", "weight_scale_inv", "scale"].map(|end| format!("{module}.{end}"));
    let Some(scale) = scale.iter().find(|scale| tensors.contains(scale)) else { return Ok(()) };
    let reason = format!("it is codes {} with the scale {scale}, of a format that is not read", tensors.aval(name)?);
    Err(tensors.wrong(
        Some(name),
        reason,
        "fetch the checkpoint in FP8 or in floats, or convert it with its own program",
    ))
}

/// The name of a weight's scale; none where the elements are the values.
fn scale_name(tensors: &Tensors, names: &BTreeSet<&str>, name: &str) -> Result<Option<String>> {
    let (module, last) = name.rsplit_once('.').map_or(("", name), |(module, last)| (module, last));
    let beside = |end: &str| if module.is_empty() { end.to_owned() } else { format!("{module}.{end}") };
    let mut known = vec![format!("{name}_scale_inv"), format!("{name}_scale"), beside(&format!("scale_{last}"))];
    // DeepSeek's own programs name the scale by its module alone.
    known.extend((last == "weight").then(|| beside("scale")));
    let found: Vec<&String> = known.iter().filter(|scale| tensors.contains(scale)).collect();
    let prefix = beside("");
    let module = names.range(prefix.as_str()..).take_while(|other| other.starts_with(&prefix));
    let ends: Vec<&str> = module.map(|other| &other[prefix.len()..]).collect();
    // A `bias_scale` is the scale of a `bias`, where there is one.
    let is_of_another = |scale: &str| {
        let others = ends.iter().filter(|other| !other.contains("scale") && **other != last);
        let mut affixes = others.map(|other| (format!("{other}_"), format!("_{other}")));
        affixes.any(|(start, end)| scale.starts_with(&start) || scale.ends_with(&end))
    };
    let is_scale = |end: &str| {
        let is_named = end.contains("scale") || end.contains("scaling");
        is_named && !end.contains('.') && !is_of_activations(end)
    };
    let unknown = ends.iter().filter(|end| is_scale(end)).find(|end| {
        let is_own = end.contains(last) || !is_of_another(end);
        is_own && !known.contains(&beside(end))
    });
    let other = unknown.map(|end| beside(end));
    match (found.as_slice(), other) {
        ([], None) => Ok(None),
        ([scale], None) => Ok(Some((*scale).clone())),
        (found, other) => {
            let names: Vec<&str> = found.iter().map(|scale| scale.as_str()).chain(other.as_deref()).collect();
            let reason = format!("how its scales go together is not known: {}", names.join(", "));
            Err(tensors.wrong(Some(name), reason, "fetch the checkpoint in floats, or convert it with its own program"))
        }
    }
}

/// A scale as floats of single precision.
fn scale_of(remaining: &mut Remaining<'_>, name: &str) -> Result<Array> {
    let tensors = remaining.tensors;
    let array = remaining.take(name, "a weight in eight bits")?;
    if tensors.stored_dtype(name)? == "F8_E8M0" {
        // Powers of two: the exponent plus 127, of which 0 is below the normal numbers and 255 none.
        let power = |&byte: &u8| match byte {
            0 => f32::from_bits(1 << 22),
            255 => f32::NAN,
            byte => f32::from_bits(u32::from(byte) << 23),
        };
        let powers: Vec<f32> = tensors.bytes(name)?.iter().map(power).collect();
        return Ok(floats(&powers).reshape(array.shape())?);
    }
    if !array.dtype().is_float() {
        let reason = format!("it is {}, and a scale of floats in eight bits is of floats", Aval::from(&array));
        return Err(tensors.wrong(Some(name), reason, "fetch the checkpoint again, or in floats"));
    }
    Ok(array.as_dtype(Dtype::Float32)?)
}

/// The parameter of these codes, times a scale with its name.
fn value<F: Format>(
    tensors: &Tensors,
    said: &Said,
    name: &str,
    format: impl Fn(usize) -> F,
    codes: &Array,
    scale: Option<(Array, String)>,
) -> Result<Value> {
    let shape = codes.shape().to_vec();
    let dtype = match &scale {
        // Each value is a `bf16` as it is.
        None => said.dtype.unwrap_or(Dtype::Bfloat16),
        Some((_, scale)) => {
            let dtype = tensors.aval(scale)?.dtype;
            let half = matches!(dtype, Dtype::Float16 | Dtype::Bfloat16).then_some(dtype);
            said.dtype.or(half).unwrap_or(Dtype::Float32)
        }
    };
    let aval = Aval { shape: shape.clone(), dtype };
    if shape.len() < 2 || codes.size() == 0 {
        return dense(tensors, name, &format(1), scale, &aval);
    }
    let (rows, columns) = (rows(&shape), shape[shape.len() - 1] as usize);
    let (scales, block) = match &scale {
        None => (Array::from_slice(&vec![1f32; rows], &[rows as i32]), columns),
        Some((scale, _)) if scale.size() == 1 => (ops::broadcast_to(scale.reshape(&[1])?, &[rows as i32])?, columns),
        Some((scale, scale_name)) => {
            let blocks = Blocks::from_shapes(&shape, scale.shape(), said.block);
            let blocks = blocks.ok_or_else(|| {
                let reason = format!("it is {}, which fits no rows or blocks of {aval}", Aval::from(scale));
                tensors.wrong(Some(scale_name), reason, "fetch the checkpoint again, or in floats")
            })?;
            blocks.along_rows(&shape, scale)?
        }
    };
    let parts = Parts::new(codes.reshape(&[-1])?, scales);
    let array = PackedArray::<F>::from_parts(parts, format(block), aval);
    Ok(array.map_err(|error| tensors.wrong(Some(name), error.clause(), "fetch the checkpoint again"))?.into())
}

/// A vector, which is small.
fn dense<F: Format>(
    tensors: &Tensors,
    name: &str,
    format: &F,
    scale: Option<(Array, String)>,
    aval: &Aval,
) -> Result<Value> {
    let scheme = format.scheme();
    let values = scheme.table().unwrap_or_else(|| unreachable!("floats of eight bits have a table"));
    let read: Vec<f32> = tensors.bytes(name)?.iter().map(|&byte| values[usize::from(byte)]).collect();
    // As one axis at first: mlx-rs multiplies extents as `i32`, which those of no elements may be too large for.
    let mut array = floats(&read).reshape(&aval.shape)?;
    if let Some((scale, scale_name)) = scale {
        if scale.size() != 1 {
            let reason = format!("it is {}, which is no scale of {aval}", Aval::from(&scale));
            return Err(tensors.wrong(Some(&scale_name), reason, "fetch the checkpoint again, or in floats"));
        }
        array = array.multiply(scale.reshape(&[])?)?;
    }
    Ok(array.as_dtype(aval.dtype)?.into())
}

fn rows(shape: &[i32]) -> usize {
    shape[..shape.len() - 1].iter().map(|&extent| extent as usize).product()
}

/// The rows and columns that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocks {
    rows: usize,
    columns: usize,
}

impl Blocks {
    /// The blocks of a weight `[.., n, k]` with a scale of this shape; `said` is what the configuration says of them.
    fn from_shapes(shape: &[i32], scale: &[i32], said: Option<[usize; 2]>) -> Option<Self> {
        let (&[n, k], outer) = (shape.last_chunk::<2>()?, &shape[..shape.len() - 2]);
        let (n, k) = (n as usize, k as usize);
        if scale == &shape[..shape.len() - 1] {
            return Some(Self { rows: 1, columns: k });
        }
        let &[r, c] = scale.last_chunk::<2>()?;
        if scale[..scale.len() - 2] != *outer || r < 1 || c < 1 {
            return None;
        }
        let (r, c) = (r as usize, c as usize);
        let fits = |blocks: &Self| n.div_ceil(blocks.rows) == r && k.div_ceil(blocks.columns) == c;
        let square = |[rows, columns]: [usize; 2]| Self { rows, columns };
        let even = Self { rows: n.div_ceil(r), columns: k.div_ceil(c) };
        let even = (n.is_multiple_of(r) && k.is_multiple_of(c)).then_some(even);
        said.map(square).filter(fits).or(Some(square([128; 2])).filter(fits)).or(even)
    }

    /// The same scales, one for each block of a row, and the elements of a block.
    fn along_rows(self, shape: &[i32], scale: &Array) -> Result<(Array, usize)> {
        let (n, k) = (shape[shape.len() - 2] as usize, shape[shape.len() - 1] as usize);
        // A row has whole blocks: where the last one is short, all are divided.
        let block = gcd(k, self.columns);
        let mut whole = shape[..shape.len() - 2].to_vec();
        whole.extend([n.div_ceil(self.rows) as i32, k.div_ceil(self.columns) as i32]);
        let numbers = |count: usize, of: &dyn Fn(usize) -> usize| {
            Array::from_slice(&(0..count).map(|at| of(at) as u32).collect::<Vec<_>>(), &[count as i32])
        };
        let of_rows = numbers(n, &|row| row / self.rows);
        let of_blocks = numbers(k / block, &|at| at * block / self.columns);
        let scales = scale.reshape(&whole)?.take_axis(of_rows, -2)?.take_axis(of_blocks, -1)?;
        Ok((scales.reshape(&[-1])?, block))
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What the configuration says of the weights.
struct Said {
    /// The float type that the model is computed in.
    dtype: Option<Dtype>,
    /// The rows and columns that share a scale.
    block: Option<[usize; 2]>,
}

impl Said {
    fn read(folder: &Path) -> Result<Self> {
        let config = Json::open_if_there(folder.join("config.json"))?.unwrap_or(Json::Null);
        let inner = config.get("text_config").unwrap_or(&Json::Null);
        let dtype = |json: &Json| dtype_of_torch(json.get("torch_dtype").or(json.get("dtype"))?.text()?);
        let section = |json: &Json| json.get("quantization_config").and_then(block_size);
        Ok(Self {
            dtype: dtype(&config).or_else(|| dtype(inner)).filter(mlx_rs::Dtype::is_float),
            block: section(&config).or_else(|| section(inner)),
        })
    }
}

/// `weight_block_size` of a section of a configuration.
fn block_size(section: &Json) -> Option<[usize; 2]> {
    let Json::List(sizes) = section.get("weight_block_size")? else { return None };
    let [rows, columns] = sizes.as_slice() else { return None };
    let sizes = [rows.integer::<usize>()?, columns.integer::<usize>()?];
    sizes.iter().all(|&size| size > 0).then_some(sizes)
}
