//! Reads and writes the state dicts of bitsandbytes' linear layers: NF4, FP4 and `LLM.int8`.
//!
//! A 4-bit weight is its codes under the parameter's own name and, behind that name, `absmax`, `quant_map`, with double
//! quantization `nested_absmax` and `nested_quant_map`, and `quant_state.bitsandbytes__nf4` (or `__fp4`), the bytes of a JSON
//! (`QuantState.as_dict(packed=True)` in `bitsandbytes/functional.py`). An 8-bit weight of a module is `weight`, `SCB` and
//! `weight_format` (`Linear8bitLt._save_to_state_dict` in `bitsandbytes/nn/modules.py`).

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Coding, Format, Fp4, Granularity, Int8, Nf4, PackedArray, Parts};
use tacit_arrays::{Dynamic8Array, Fp4Array, Int8Array, Nf4Array, Packed, Stored};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value};
use tacit_nn::Parameters;

use crate::Tensors;
use crate::floats::floats;
use crate::hugging_face::{self, cannot_hold};
use crate::json::Json;
use crate::remaining::Remaining;
use crate::set::Set;
use crate::torch_dtype::{dtype_of_torch, torch_dtype};

/// What checkpoints of bitsandbytes may differ in, beside their parameters.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-layout-{}.safetensors", std::process::id()));
/// use mlx_rs::ops;
/// use tacit_arrays::Nf4Array;
/// use tacit_io::bitsandbytes::{self, BitsAndBytesLayout};
/// use tacit_nn::Parameters;
///
/// let weight = Nf4Array::quantize(&ops::ones::<f32>(&[8, 64])?, 64)?;
/// let parameters = Parameters::from([("proj.weight".to_owned(), weight.into())]);
/// bitsandbytes::write(&path, &parameters, BitsAndBytesLayout::default())?;
///
/// let read = bitsandbytes::read(&path)?;
/// assert_eq!(read["proj.weight"].to_string(), "Nf4(f32[8,64])");
/// bitsandbytes::write(&path, &read, BitsAndBytesLayout::read(&path)?)?;
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitsAndBytesLayout {
    /// The dtype that 4-bit codes lie in, `bnb_4bit_quant_storage`: `u8`, or a float where they are to be sharded with floats.
    pub storage: Dtype,
}

impl Default for BitsAndBytesLayout {
    fn default() -> Self {
        Self { storage: Dtype::Uint8 }
    }
}

impl BitsAndBytesLayout {
    /// The layout of a checkpoint.
    ///
    /// # Errors
    ///
    /// The checkpoint cannot be opened: see [`Tensors::open`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let tensors = Tensors::open(path)?;
        let mut storage = Dtype::Uint8;
        for stem in tensors.names().filter_map(|name| name.split_once(STATE)).map(|(stem, _)| stem) {
            if let Some(stem) = stem.strip_suffix('.')
                && tensors.contains(stem)
            {
                storage = tensors.aval(stem)?.dtype;
            }
        }
        Ok(Self { storage })
    }
}

/// Reads a checkpoint: [`Nf4Array`]s, [`Fp4Array`]s and [`Int8Array`]s, and what is dense as it is.
///
/// The codes and scales are those of the file. The dtype of a 4-bit parameter is the one that was quantized; the file does
/// not say that of an 8-bit one, which takes that of its module's bias, or `f16`, the one that `LLM.int8` is defined for.
///
/// # Errors
///
/// The checkpoint cannot be opened (see [`Tensors::open`]), or is not as bitsandbytes writes it: a part of a parameter is
/// not there or of another shape or dtype, its state is no such JSON or is there twice, or it has other code maps.
pub fn read(path: impl AsRef<Path>) -> Result<Parameters> {
    let tensors = Tensors::open(path)?;
    let mut remaining = Remaining::new(&tensors);
    let mut parameters = Parameters::new();
    let mut states: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in tensors.names() {
        let Some((stem, _)) = name.split_once(STATE) else { continue };
        let stem = stem.strip_suffix('.').filter(|stem| !stem.is_empty());
        let stem = stem.ok_or_else(|| tensors.wrong(Some(name), "it is the state of no parameter", WRITE_AGAIN))?;
        states.entry(stem).or_default().push(name);
    }
    for (stem, keys) in states {
        let [key] = keys.as_slice() else {
            return Err(tensors.wrong(
                Some(stem),
                format!("it has more than one state: {}", keys.join(", ")),
                WRITE_AGAIN,
            ));
        };
        let value = match key.rsplit("__").next() {
            Some("nf4") => four_bit(&mut remaining, key, stem, |block, double| Nf4 { block, double }),
            Some("fp4") => four_bit(&mut remaining, key, stem, |block, double| Fp4 { block, double }),
            _ => Err(tensors.wrong(Some(key), "its 4-bit type is not known", "quantize to nf4 or fp4")),
        };
        parameters.insert(stem.to_owned(), value?);
    }
    for module in remaining.stems(".SCB") {
        parameters.insert(format!("{module}.weight"), int8(&mut remaining, module)?);
    }
    for part in [".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"] {
        if let [stem, ..] = *remaining.stems(part) {
            let reason = format!("it is a part of {stem}, which has no {STATE}nf4 and no {STATE}fp4");
            return Err(tensors.wrong(Some(&format!("{stem}{part}")), reason, WRITE_AGAIN));
        }
    }
    remaining.dense(&mut parameters)?;
    Ok(parameters)
}

/// Writes a checkpoint as bitsandbytes does.
///
/// What [`read`] took from one of its files is written as the same bytes, in the layout that [`BitsAndBytesLayout::read`] found.
///
/// # Errors
///
/// A parameter is neither dense nor one of these formats, or the file cannot be written, as for [`write`](crate::write()).
pub fn write(path: impl AsRef<Path>, parameters: impl Borrow<Parameters>, layout: BitsAndBytesLayout) -> Result<()> {
    let path = path.as_ref();
    let mut tensors = Vec::new();
    for (name, value) in parameters.borrow() {
        let of = |error: Error| error.of_parameter(name);
        let mut put = |end: &str, array: Array| tensors.push((format!("{name}{end}"), array));
        if let Value::Dense(array) = value {
            put("", array.clone());
        } else if let Some(array) = value.downcast::<Nf4Array>().filter(|array| !array.stored().transposed) {
            let Nf4 { block, .. } = *array.format();
            put_four_bit(array, block, layout, put).map_err(of)?;
        } else if let Some(array) = value.downcast::<Fp4Array>().filter(|array| !array.stored().transposed) {
            let Fp4 { block, .. } = *array.format();
            put_four_bit(array, block, layout, put).map_err(of)?;
        } else if let (Some((codes, scales)), Some(module)) = (by_rows(value), name.strip_suffix(".weight")) {
            put("", codes.clone());
            let mut put = |end: &str, array: Array| tensors.push((format!("{module}.{end}"), array));
            put("SCB", scales.dense().map_err(of)?);
            put("weight_format", Array::from_slice(&[0_u8], &[]));
        } else {
            let help = "convert it to nf4, to fp4, or the matrix of a module's `weight` to int8, or make it dense";
            return Err(cannot_hold(path, name, value, "bitsandbytes", help));
        }
    }
    // Those that are given away go as they are written.
    drop(parameters);
    hugging_face::write_set(Set { path, beside: Vec::new(), stale: Vec::new() }, tensors)
}

/// What stands between the name of a parameter and its 4-bit type.
const STATE: &str = "quant_state.bitsandbytes__";

const WRITE_AGAIN: &str = "fetch the file again, or save it again by bitsandbytes";

/// The 4-bit parameter `stem`, whose state is the tensor `key`.
fn four_bit<F: Format>(
    remaining: &mut Remaining<'_>,
    key: &str,
    stem: &str,
    format: impl Fn(usize, bool) -> F,
) -> Result<Value> {
    let state = State::read(remaining, key)?;
    let format = format(state.block, state.nested.is_some());
    let what = format!("the {format} parameter {stem}");
    let codes = remaining.take(stem, &what)?;
    let codes = codes_of(remaining, stem, &codes, state.aval.size().div_ceil(2))?;
    check_map(remaining, &format!("{stem}.quant_map"), &what, &code_map(&format))?;
    let absmax = format!("{stem}.absmax");
    let scales = match state.nested {
        None => Value::from(remaining.take_of(&absmax, Dtype::Float32, &what)?),
        Some(Nested { block, offset }) => {
            check_map(remaining, &format!("{stem}.nested_quant_map"), &what, Dynamic8Array::map())?;
            let codes = remaining.take_of(&absmax, Dtype::Uint8, &what)?;
            let scales = remaining.take_of(&format!("{stem}.nested_absmax"), Dtype::Float32, &what)?;
            let nested = Dynamic8Array::from_parts(codes, scales, Array::from_f32(offset), block);
            nested.map_err(remaining.at(&absmax))?.into()
        }
    };
    let array = PackedArray::<F>::from_parts(Parts::new(codes, scales), format, state.aval);
    Ok(array.map_err(remaining.at(stem))?.into())
}

/// The bytes of the codes, `u8[n]`, whatever dtype they lie in.
fn codes_of(remaining: &Remaining<'_>, stem: &str, stored: &Array, bytes: usize) -> Result<Array> {
    let codes = stored.reshape(&[-1])?.view_dtype(Dtype::Uint8)?;
    let padded = bytes.next_multiple_of(stored.item_size());
    if codes.size() != padded {
        let found = Aval::from(stored);
        let reason =
            format!("it is {found}, which has {} bytes of codes, and its state asks for {padded}", codes.size());
        return Err(remaining.tensors.wrong(Some(stem), reason, WRITE_AGAIN));
    }
    let codes = if padded == bytes { codes } else { ops::split_at_indices(&codes, &[bytes as i32], 0)?.swap_remove(0) };
    // A view of the file, which may go to another thread once it is evaluated.
    codes.eval()?;
    Ok(codes)
}

/// Checks that the values of the codes are those that Tacit reads them as.
fn check_map(remaining: &mut Remaining<'_>, key: &str, what: &str, expected: &[f32]) -> Result<()> {
    let map = remaining.take_of(key, Dtype::Float32, what)?.reshape(&[-1])?;
    let stored = floats(&map)?;
    let reason = if stored.len() != expected.len() {
        format!("it has {} values, and {} are known", stored.len(), expected.len())
    } else if let Some(code) =
        (0..stored.len()).find(|&code| stored[code].partial_cmp(&expected[code]) != Some(Ordering::Equal))
    {
        format!("it says that code {code} is {}, and it is read as {}", stored[code], expected[code])
    } else {
        return Ok(());
    };
    Err(remaining.tensors.wrong(Some(key), reason, "read it by bitsandbytes, and save it dense"))
}

/// The value of each code, as bitsandbytes writes it: its zero has no sign.
fn code_map(format: &impl Format) -> Vec<f32> {
    match format.scheme().coding {
        Coding::Table { values, .. } => values.iter().map(|value| value + 0.0).collect(),
        _ => Vec::new(),
    }
}

/// The 8-bit weight of a module.
fn int8(remaining: &mut Remaining<'_>, module: &str) -> Result<Value> {
    let (weight, scb) = (format!("{module}.weight"), format!("{module}.SCB"));
    let what = format!("the 8-bit parameter {weight}");
    let scales = remaining.take_of(&scb, Dtype::Float32, &what)?;
    let codes = remaining.take_of(&weight, Dtype::Int8, &what)?;
    let key = format!("{module}.weight_format");
    if let Some(format) = remaining.take_if(&key)? {
        let row = Aval::from(&format).size() == 1 && remaining.tensors.bytes(&key)?.iter().all(|&byte| byte == 0);
        if !row {
            let reason = "the codes are not row by row (format 0)";
            return Err(remaining.tensors.wrong(Some(&key), reason, "save it again by bitsandbytes 0.45 or later"));
        }
    }
    let bias = format!("{module}.bias");
    let dtype = if remaining.tensors.contains(&bias) { remaining.tensors.aval(&bias)?.dtype } else { Dtype::Float16 };
    let aval = Aval::new(codes.shape(), dtype);
    let array = Int8Array::from_parts(Parts::new(codes, scales), Granularity::Row, aval);
    Ok(array.map_err(remaining.at(&weight))?.into())
}

/// The codes and scales of a matrix with a scale for each row, if it is one.
fn by_rows(value: &Value) -> Option<(&Array, &Value)> {
    let array = value.downcast::<Int8Array>()?;
    let Stored { transposed, aval, block, .. } = array.stored();
    let &[_, columns] = aval.shape.as_slice() else { return None };
    let int8_scales =
        array.format() == &Int8 { granularity: Granularity::Block(columns as usize) } && block == columns as usize;
    array.scales().filter(|_| !transposed && int8_scales).map(|scales| (array.codes(), scales))
}

/// The tensors of a 4-bit parameter, by the ends of their names.
fn put_four_bit<F: Format>(
    array: &PackedArray<F>,
    block: usize,
    layout: BitsAndBytesLayout,
    mut put: impl FnMut(&str, Array),
) -> Result<()> {
    let aval = array.aval()?;
    let scales = array.scales();
    let nested = scales.and_then(|scales| scales.downcast::<Dynamic8Array>());
    let map = |values: &[f32]| Array::from_slice(values, &[values.len() as i32]);
    let item = Aval::new(&[], layout.storage).item_size();
    let codes = array.codes();
    let short = codes.size().next_multiple_of(item) - codes.size();
    let codes = if short == 0 { codes.clone() } else { ops::pad(codes, (0, short as i32), None, None)? };
    put("", codes.view_dtype(layout.storage)?.reshape(&[-1, 1])?);
    put(".quant_map", map(&code_map(array.format())));
    let quant_type = F::NAME;
    let shape = aval.shape.iter().map(|&extent| Json::Integer(extent.into())).collect();
    let mut state = vec![
        ("quant_type".to_owned(), Json::Text(quant_type.to_owned())),
        ("blocksize".to_owned(), Json::Integer(block as i128)),
        ("dtype".to_owned(), Json::Text(torch_dtype(aval.dtype).to_owned())),
        ("shape".to_owned(), Json::List(shape)),
    ];
    match (nested, scales) {
        (None, scales) => {
            if let Some(scales) = scales {
                put(".absmax", scales.dense()?);
            }
        }
        (Some(scales), _) => {
            let [codes, absmax, offset] = scales.parts();
            put(".absmax", codes);
            put(".nested_absmax", absmax);
            put(".nested_quant_map", map(Dynamic8Array::map()));
            state.extend([
                ("nested_blocksize".to_owned(), Json::Integer(scales.block_size() as i128)),
                ("nested_dtype".to_owned(), Json::Text("float32".to_owned())),
                ("nested_offset".to_owned(), Json::Float(floats(&offset)?[0].into())),
            ]);
        }
    }
    let state = Json::Object(state).line().into_bytes();
    put(&format!(".{STATE}{quant_type}"), Array::from_slice(&state, &[state.len() as i32]));
    Ok(())
}

/// What the JSON of a 4-bit parameter says.
struct State {
    block: usize,
    aval: Aval,
    nested: Option<Nested>,
}

struct Nested {
    block: usize,
    offset: f32,
}

impl State {
    fn read(remaining: &mut Remaining<'_>, key: &str) -> Result<Self> {
        let what = "a 4-bit parameter";
        remaining.take_of(key, Dtype::Uint8, what)?;
        let quant_type = key.rsplit("__").next().unwrap_or_default();
        let read = std::str::from_utf8(remaining.tensors.bytes(key)?)
            .map_err(|error| error.to_string())
            .and_then(Json::parse)
            .and_then(|json| Self::from_json(&json, quant_type));
        read.map_err(|reason| {
            remaining.tensors.wrong(Some(key), format!("the state cannot be read: {reason}"), WRITE_AGAIN)
        })
    }

    fn from_json(json: &Json, quant_type: &str) -> Result<Self, String> {
        const KNOWN: [&str; 7] =
            ["quant_type", "blocksize", "dtype", "shape", "nested_blocksize", "nested_dtype", "nested_offset"];
        if let Some((key, _)) = json.entries().iter().find(|(key, _)| !KNOWN.contains(&key.as_str())) {
            return Err(format!("{key:?} is not known"));
        }
        let field = |key: &str| json.get(key).ok_or_else(|| format!("it has no {key:?}"));
        let wrong = |key: &str, json: &Json| format!("{key} is {json}");
        let integer =
            |key: &str| field(key)?.integer::<usize>().ok_or_else(|| wrong(key, json.get(key).unwrap_or(&Json::Null)));
        if field("quant_type")?.text() != Some(quant_type) {
            return Err(wrong("quant_type", field("quant_type")?));
        }
        let dtype = field("dtype")?;
        let dtype = dtype.text().and_then(dtype_of_torch).ok_or_else(|| wrong("dtype", dtype))?;
        let Json::List(shape) = field("shape")? else { return Err(wrong("shape", field("shape")?)) };
        let shape: Option<Vec<i32>> = shape.iter().map(Json::integer).collect();
        let aval = shape.map(|shape| Aval::new(&shape, dtype));
        let aval = aval.filter(|aval| aval.shape.iter().all(|&extent| extent > 0) && aval.checked_nbytes().is_some());
        let aval = aval.ok_or_else(|| wrong("shape", &json.get("shape").cloned().unwrap_or(Json::Null)))?;
        let nested = match json.get("nested_offset") {
            None => None,
            Some(offset) => {
                if field("nested_dtype")?.text() != Some("float32") {
                    return Err(wrong("nested_dtype", field("nested_dtype")?));
                }
                let offset = offset.number().ok_or_else(|| wrong("nested_offset", offset))? as f32;
                Some(Nested { block: integer("nested_blocksize")?, offset })
            }
        };
        Ok(Self { block: integer("blocksize")?, aval, nested })
    }
}
