//! Reads and writes the folders of mlx-lm: quantized safetensors and a `config.json`.
//!
//! A quantized module is `weight: u32[.., k * bits / 32]`, `scales` and, in the mode `affine`, `biases`. The configuration
//! says under `quantization` the group size, the bits and the mode of all modules, and of single ones by their paths
//! (`load_model` and `quantize_model` in `mlx_lm/utils.py`).

mod as_affine;
mod config;
mod mode;

use std::borrow::Borrow;
use std::path::Path;

use mlx_rs::Dtype;
use tacit_arrays::format::{Affine, Format, Mxfp4, Mxfp8, Nvfp4, Parts};
use tacit_arrays::{AffineArray, Mxfp4Array, Mxfp8Array, Nvfp4Array, Packed, Stored};
use tacit_core::{Aval, Error, Result, Value};
use tacit_files::{Steady, make_folder};
use tacit_nn::Parameters;

pub(crate) use as_affine::as_affine;
pub use config::ConfigFile;
pub(crate) use mode::Mode;

use crate::hugging_face::cannot_hold;
use crate::remaining::Remaining;
use crate::set::Set;
use crate::{Metadata, Tensors, Writing};

/// Reads a folder: [`AffineArray`]s, [`Mxfp4Array`]s, [`Mxfp8Array`]s and [`Nvfp4Array`]s, and what is dense as it is.
///
/// Codes, scales and biases are those of the files. A parameter has the dtype of its scales; where those are bytes it has
/// that of the configuration, or `bf16`. A module that the configuration does not name by its path, and whose shapes are
/// not those of the default, has the one format that the shapes tell; an error says if they tell several.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("tacit-mlx-lm-{}", std::process::id()));
/// use mlx_rs::ops;
/// use tacit_arrays::{AffineArray, format::Affine};
/// use tacit_io::json::Json;
/// use tacit_io::mlx_lm::{self, ConfigFile};
/// use tacit_nn::Parameters;
///
/// let weight = AffineArray::quantize(&ops::ones::<f32>(&[8, 64])?, Affine { bits: 4, group: 32 })?;
/// let parameters = Parameters::from([("layers.0.proj.weight".to_owned(), weight.into())]);
/// mlx_lm::write(&folder, &parameters, &ConfigFile::new(Json::Object(Vec::new())))?;
///
/// let config = ConfigFile::read(&folder)?;
/// assert_eq!(config.json().get("quantization").unwrap().line(), r#"{"group_size": 32, "bits": 4, "mode": "affine"}"#);
/// assert_eq!(mlx_lm::read(&folder)?["layers.0.proj.weight"].to_string(), "Affine(f32[8,64])");
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The tensors cannot be opened (see [`Tensors::open`]), the configuration cannot be read or has a format that MLX has not,
/// a part of a module is not there or does not fit its format, or the two do not say the same modules.
pub fn read(folder: impl AsRef<Path>) -> Result<Parameters> {
    let _steady = Steady::at(folder.as_ref());
    let tensors = Tensors::open(folder)?;
    let config = ConfigFile::read(tensors.folder())?;
    let formats = config.formats()?;
    let dtype = config.dtype();
    let mut remaining = Remaining::new(&tensors);
    let mut parameters = Parameters::new();
    for module in remaining.stems(".scales") {
        let (weight, scales) = (format!("{module}.weight"), format!("{module}.scales"));
        let codes = tensors.contains(&weight) && tensors.aval(&weight)?.dtype == Dtype::Uint32;
        if !codes {
            continue;
        }
        let mode = match (formats.entries.get(module), formats.default) {
            (Some(Some(mode)), _) => *mode,
            (Some(None), _) => {
                let help = "fetch the configuration and the tensors again, together";
                return Err(tensors.wrong(Some(&scales), "the configuration says that it is not quantized", help));
            }
            (None, Some(default)) => of_shapes(&tensors, module, default)?,
            (None, None) => {
                return Err(config.wrong(
                    "quantization",
                    format!("it is not there, and {module} is quantized"),
                    TOGETHER,
                ));
            }
        };
        parameters.insert(weight, quantized(&mut remaining, module, mode, dtype)?);
    }
    for (module, mode) in &formats.entries {
        if let Some(mode) = mode.filter(|_| !parameters.contains_key(&format!("{module}.weight"))) {
            let reason = format!("the configuration says that it is {}, and it is not there", mode.name());
            return Err(tensors.wrong(Some(&format!("{module}.scales")), reason, TOGETHER));
        }
    }
    for module in remaining.stems(".weight") {
        let name = format!("{module}.weight");
        if tensors.aval(&name)?.dtype == Dtype::Uint32 {
            return Err(tensors.wrong(Some(&name), format!("it is codes, and there is no {module}.scales"), TOGETHER));
        }
    }
    remaining.dense(&mut parameters)?;
    Ok(parameters)
}

/// Writes a folder that mlx-lm reads: `model.safetensors`, or more files and an index, and `config.json`.
///
/// All of them appear at once: whenever the program ends, the old files or the new ones are there, and nothing else in the folder
/// changes. The folder is made if it is not there. What [`read`] took from a folder is written as the same tensors, and the
/// configuration as the same bytes; for other parameters the configuration is changed to say their formats.
///
/// # Errors
///
/// A parameter is neither dense nor the `weight` of a module in one of MLX's formats, or a file cannot be written, as for
/// [`write_sharded`](crate::write_sharded).
pub fn write(folder: impl AsRef<Path>, parameters: &Parameters, config: &ConfigFile) -> Result<()> {
    write_beside(folder.as_ref(), parameters, config, Vec::new(), Vec::new())
}

/// Whether a folder has a place for the codes of a parameter.
pub(crate) fn holds(path: &str, value: &Value) -> bool {
    path.ends_with(".weight") && Mode::from_value(value).is_some()
}

/// Writes a folder with other files beside its own.
pub(crate) fn write_beside(
    folder: &Path,
    parameters: impl Borrow<Parameters>,
    config: &ConfigFile,
    mut beside: Vec<(&'static str, Vec<u8>)>,
    stale: Vec<&'static str>,
) -> Result<()> {
    let config = config.describing(parameters.borrow())?;
    let path = folder.join("model.safetensors");
    let mut tensors = Vec::new();
    for (name, value) in parameters.borrow() {
        if let Value::Dense(array) = value {
            tensors.push((name.clone(), array.clone()));
            continue;
        }
        let stored = Mode::from_value(value).and_then(|_| value.family::<dyn Packed>().map(Packed::stored));
        let (Some(module), Some(Stored { codes, scales: Some(scales), biases, global_scale, .. })) =
            (name.strip_suffix(".weight"), stored)
        else {
            let help = "convert it to affine, mxfp4, mxfp8 or nvfp4, as the `weight` of a module, or make it dense";
            return Err(cannot_hold(&path, name, value, "a folder of mlx-lm", help));
        };
        tensors.push((name.clone(), codes));
        tensors.push((format!("{module}.scales"), scales.dense().map_err(|error| error.of_parameter(name))?));
        tensors.extend(biases.map(|biases| (format!("{module}.biases"), biases)));
        tensors.extend(global_scale.map(|scale| (format!("{module}.global_scale"), scale)));
    }
    // Those that are given away go as they are written.
    drop(parameters);
    let _new = make_folder(folder)?;
    let metadata = Metadata::from([("format".to_owned(), "mlx".to_owned())]);
    let writing = Writing { shard: Some(SHARD), progress: None };
    beside.push(("config.json", config.text().into_bytes()));
    Set { path: &path, beside, stale }.write(tensors, &metadata, writing)
}

/// The largest file that mlx-lm writes, `MAX_FILE_SIZE_GB`.
const SHARD: usize = 5 << 30;

const TOGETHER: &str = "fetch the configuration and the tensors again, together, or convert the model again";

/// The mode of a module without an entry: the default, if the shapes can be its, or the only one whose they can be.
fn of_shapes(tensors: &Tensors, module: &str, default: Mode) -> Result<Mode> {
    let (weight, scales) = (format!("{module}.weight"), format!("{module}.scales"));
    let last = |name: &str| Ok::<_, Error>(tensors.aval(name)?.shape.last().map_or(0, |&last| last as usize));
    let (words, groups) = (last(&weight)?, last(&scales)?);
    // The bits of a group, which are the same however long the rows are.
    let bits = (words * 32).checked_div(groups).unwrap_or(0);
    let is_float = tensors.aval(&scales)?.dtype.is_float();
    let fits = |mode: &Mode| mode.bits() as usize * mode.group() == bits && matches!(mode, Mode::Affine(_)) == is_float;
    if fits(&default) {
        return Ok(default);
    }
    let affine = [32, 64, 128].map(|group| Mode::Affine(Affine { bits: (bits / group) as u32, group }));
    let known = |mode: &Mode| !matches!(mode, Mode::Affine(affine) if affine.check().is_err());
    let others = affine.into_iter().chain([Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4]);
    let others: Vec<Mode> = others.filter(|mode| fits(mode) && known(mode)).collect();
    if let [only] = others.as_slice() {
        return Ok(*only);
    }
    let names: Vec<String> = others.iter().map(|mode| mode.format().to_string()).collect();
    let may =
        if names.is_empty() { "no mode of MLX's has".to_owned() } else { format!("{} have", names.join(" and ")) };
    let reason = format!("its groups have {bits} bits, as {may}, and the default is {}", default.format());
    Err(tensors.wrong(Some(&scales), reason, format!("give {module} an entry of its own in the configuration")))
}

/// The weight of a module.
fn quantized(remaining: &mut Remaining<'_>, module: &str, mode: Mode, dtype: Dtype) -> Result<Value> {
    let key = format!("{module}.weight");
    let what = format!("the {} parameter {key}", mode.name());
    let codes = remaining.take_of(&key, Dtype::Uint32, &what)?;
    let scales = remaining.take(&format!("{module}.scales"), &what)?;
    let biases = remaining.take_if(&format!("{module}.biases"))?;
    let global_scale = remaining.take_if(&format!("{module}.global_scale"))?;
    let dtype = if matches!(mode, Mode::Affine(_)) { scales.dtype() } else { dtype };
    let mut aval = Aval::new(codes.shape(), dtype);
    if let Some(last) = aval.shape.last_mut() {
        let (bits, per) = (i64::from(*last) * 32, i64::from(mode.bits()));
        let elements = i32::try_from(bits / per).ok().filter(|_| bits % per == 0);
        *last = elements.ok_or_else(|| {
            let reason = format!("its rows of {last} words are no whole number of codes of {per} bits");
            remaining.tensors.wrong(Some(&key), reason, TOGETHER)
        })?;
    }
    let global = global_scale.is_some();
    let parts = Parts { codes, scales: Some(scales.into()), biases, global_scale };
    let array = match mode {
        Mode::Affine(format) => AffineArray::from_parts(parts, format, aval).map(Value::from),
        Mode::Mxfp4 => Mxfp4Array::from_parts(parts, Mxfp4::default(), aval).map(Value::from),
        Mode::Mxfp8 => Mxfp8Array::from_parts(parts, Mxfp8::default(), aval).map(Value::from),
        Mode::Nvfp4 => Nvfp4Array::from_parts(parts, Nvfp4 { global }, aval).map(Value::from),
    };
    array.map_err(remaining.at(&key))
}
