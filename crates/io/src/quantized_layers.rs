//! What GPTQ's and AWQ's checkpoints share: layers of a few tensors, and a configuration beside them.

use std::path::Path;

use mlx_rs::Dtype;
use serde::Deserialize;
use tacit_arrays::AffineArray;
use tacit_core::{Aval, Error, Result};
use tacit_files::current;
use tacit_nn::Parameters;

use crate::Tensors;
use crate::integers::{Integers, floats_of};
use crate::json::standard;
use crate::mapped::Part;

/// A method by which layers are quantized.
pub(crate) trait Method {
    /// Its name in the configuration, `gptq`.
    const NAME: &'static str;
    /// The file that had the configuration before `config.json` did.
    const OLDER: &'static str;
    /// The tensors of a layer beside `qweight`, `qzeros` and `scales`.
    const MORE: &'static [&'static str];

    fn layer(layer: &Layer) -> Result<Integers>;
}

/// A quantization as its configuration says.
#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "bits and group_size")]
pub(crate) struct Config {
    quant_method: Option<String>,
    #[serde(alias = "w_bit")]
    pub(crate) bits: u32,
    /// The elements that share a scale, or -1 for all of a column.
    #[serde(alias = "q_group_size")]
    group_size: i64,
    pub(crate) checkpoint_format: Option<String>,
    pub(crate) version: Option<String>,
    /// Whether all zeros are the middle code.
    pub(crate) sym: Option<bool>,
    meta: Option<serde_json::Value>,
}

impl Config {
    /// The major version of the program of this name, if that quantized the model: 5 of `gptqmodel:5.6.12`.
    pub(crate) fn major_version(&self, program: &str) -> Option<u32> {
        let quantizer = self.meta.as_ref()?.get("quantizer")?;
        let quantizers = quantizer.as_array().map_or(std::slice::from_ref(quantizer), Vec::as_slice);
        quantizers.iter().find_map(|quantizer| {
            let version = quantizer.as_str()?.strip_prefix(program)?.strip_prefix(':')?;
            version.split('.').next()?.parse().ok()
        })
    }
}

const QWEIGHT: &str = ".qweight";

/// Reads a folder, whose layers become implicit arrays.
pub(crate) fn read<M: Method>(folder: &Path) -> Result<Parameters> {
    let tensors = Tensors::open(folder)?;
    let config = config::<M>(&tensors)?;
    let mut parameters = Parameters::new();
    for name in tensors.names() {
        if let Some(path) = name.strip_suffix(QWEIGHT) {
            let layer = Layer { tensors: &tensors, path, config: &config };
            parameters.insert(format!("{path}.weight"), layer.read::<M>()?.into());
            continue;
        }
        let part =
            name.rsplit_once('.').filter(|(_, part)| M::MORE.contains(part) || ["qzeros", "scales"].contains(part));
        if part.is_none_or(|(path, _)| !tensors.contains(&format!("{path}{QWEIGHT}"))) {
            parameters.insert(name.to_owned(), tensors.get(name)?.into());
        }
    }
    Ok(parameters)
}

fn config<M: Method>(tensors: &Tensors) -> Result<Config> {
    let folder = tensors.folder();
    let wrong = |file: &Path, reason: String| {
        Error::checkpoint(file, None, reason, "name the folder of a model that was quantized so")
    };
    let text = |file: &Path| std::fs::read_to_string(current(file)?).map_err(Error::file("read", file));
    let (older, file) = (folder.join(M::OLDER), folder.join("config.json"));
    let (file, value) = if older.is_file() {
        (older.clone(), serde_json::from_str(&standard(&text(&older)?)))
    } else {
        let whole: serde_json::Result<serde_json::Value> = serde_json::from_str(&standard(&text(&file)?));
        (file, whole.map(|whole| whole.get("quantization_config").cloned().unwrap_or_default()))
    };
    let config: Config = value
        .and_then(serde_json::from_value)
        .map_err(|error| wrong(&file, format!("it has no quantization_config of {}: {error}", M::NAME)))?;
    match &config.quant_method {
        Some(method) if method != M::NAME => {
            Err(wrong(&file, format!("its quant_method is {method}, not {}", M::NAME)))
        }
        _ => Ok(config),
    }
}

pub(crate) struct Layer<'a> {
    tensors: &'a Tensors,
    path: &'a str,
    pub(crate) config: &'a Config,
}

/// The words of a tensor `[rows, columns]`.
pub(crate) struct Words {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) part: Part,
}

impl Words {
    pub(crate) fn get(&self, row: usize, column: usize) -> u32 {
        let at = 4 * (row * self.columns + column);
        let bytes = self.part.bytes();
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }
}

impl<'a> Layer<'a> {
    fn read<M: Method>(&self) -> Result<AffineArray> {
        let array = M::layer(self)?.array(self.scales()?.1.dtype);
        array.map_err(|reason| self.wrong("qweight", reason, "quantize the model again in groups of 32, 64 or 128"))
    }

    /// The words of one of the layer's tensors.
    pub(crate) fn words(&self, part: &str) -> Result<Words> {
        let name = self.name(part);
        let aval = self.tensors.aval(&name)?;
        match (aval.shape.as_slice(), aval.dtype) {
            (&[rows, columns], Dtype::Int32 | Dtype::Uint32) => {
                Ok(Words { rows: rows as usize, columns: columns as usize, part: self.tensors.part(&name)? })
            }
            _ => Err(self.wrong(part, format!("it is {aval}, and must be a matrix of 32-bit words"), HELP)),
        }
    }

    /// The scales as `f32`, and what they are in the file.
    pub(crate) fn scales(&self) -> Result<(Vec<f32>, &'a Aval)> {
        let name = self.name("scales");
        let aval = self.tensors.aval(&name)?;
        match floats_of(self.tensors.bytes(&name)?, aval.dtype) {
            Some(scales) if aval.shape.len() == 2 => Ok((scales, aval)),
            _ => Err(self.wrong("scales", format!("it is {aval}, and must be a matrix of floats"), HELP)),
        }
    }

    /// The integers of a vector, if the layer has it.
    pub(crate) fn integers(&self, part: &str) -> Result<Option<Vec<i32>>> {
        let name = self.name(part);
        if !self.tensors.contains(&name) {
            return Ok(None);
        }
        let aval = self.tensors.aval(&name)?;
        if aval.shape.len() != 1 || aval.dtype != Dtype::Int32 {
            return Err(self.wrong(part, format!("it is {aval}, and must be a vector of i32"), HELP));
        }
        let (integers, _) = self.tensors.bytes(&name)?.as_chunks::<4>();
        Ok(Some(integers.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()))
    }

    /// The elements that share a scale, of columns of so many, whose scales are there, and zeros of so many words a group.
    pub(crate) fn group(&self, inputs: usize, outputs: usize, zeros: &Words, words: usize) -> Result<usize> {
        let group = if self.config.group_size == -1 { inputs } else { self.config.group_size.try_into().unwrap_or(0) };
        let groups = inputs.checked_div(group).filter(|groups| groups * group == inputs).ok_or_else(|| {
            let reason = format!(
                "its columns of {inputs} are not whole groups of {}, as its configuration says",
                self.config.group_size
            );
            self.wrong("qweight", reason, HELP)
        })?;
        let (_, scales) = self.scales()?;
        if scales.shape != [groups as i32, outputs as i32] {
            let reason = format!("it is {scales}, and {groups} groups of {outputs} columns have [{groups},{outputs}]");
            return Err(self.wrong("scales", reason, HELP));
        }
        if (zeros.rows, zeros.columns) != (groups, words) {
            let reason = format!("it has {} by {} words, and must have {groups} by {words}", zeros.rows, zeros.columns);
            return Err(self.wrong("qzeros", reason, HELP));
        }
        Ok(group)
    }

    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.path)
    }

    pub(crate) fn wrong(&self, part: &str, reason: impl Into<String>, help: &str) -> Error {
        self.tensors.wrong(Some(&self.name(part)), reason, help)
    }
}

pub(crate) const HELP: &str = "the file and its configuration do not fit: fetch both again";
