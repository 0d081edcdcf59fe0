//! Which program's checkpoint a file or a folder is.

use std::fmt;
use std::path::Path;

use mlx_rs::Dtype;
use tacit_core::Result;

use crate::checkpoint::VERSION_KEY;
use crate::gguf::Gguf;
use crate::json::Json;
use crate::tensors::Tensors;

/// A program's way to store parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// Tacit's own: [`load`](crate::load()).
    Tacit,
    /// llama.cpp's: [`Gguf`](crate::Gguf).
    Gguf,
    /// [`bitsandbytes`](crate::bitsandbytes).
    Bitsandbytes,
    /// [`mlx_lm`](crate::mlx_lm).
    MlxLm,
    /// [`gptq`](crate::gptq).
    Gptq,
    /// [`awq`](crate::awq).
    Awq,
    /// [`torchao`](crate::torchao).
    Torchao,
    /// Nothing but floats, those of eight bits with their scales: [`hugging_face`](crate::hugging_face).
    Floats,
}

impl FileKind {
    /// Tells the kind by the names of the tensors and what stands beside them.
    ///
    /// No tensor is read.
    ///
    /// # Errors
    ///
    /// The tensors cannot be opened: see [`Tensors::open`]; or a configuration beside them that would tell is damaged.
    pub fn detect(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if Gguf::find(path)?.is_some() {
            return Ok(Self::Gguf);
        }
        Ok(Self::of_tensors(&Tensors::open(path)?)?.0)
    }

    /// The kind of some tensors, and the one that told.
    pub(crate) fn of_tensors(tensors: &Tensors) -> Result<(Self, Option<&str>)> {
        if tensors.metadata().contains_key(VERSION_KEY) {
            return Ok((Self::Tacit, None));
        }
        if tensors.metadata().contains_key("tensor_names") {
            return Ok((Self::Torchao, None));
        }
        for name in tensors.names() {
            if let Some(kind) = Self::told(tensors, name)? {
                return Ok((kind, Some(name)));
            }
        }
        Ok((Self::Floats, None))
    }

    /// The kind of which a tensor is a part, if its name tells.
    fn told(tensors: &Tensors, name: &str) -> Result<Option<Self>> {
        if name.contains(".quant_state.bitsandbytes__") || name.rsplit_once('.').is_some_and(|(_, part)| part == "SCB")
        {
            return Ok(Some(Self::Bitsandbytes));
        }
        if name.ends_with(".qweight") {
            return Ok(Some(if is_awq(tensors.folder())? { Self::Awq } else { Self::Gptq }));
        }
        let Some(layer) = name.strip_suffix(".scales") else { return Ok(None) };
        let weight = format!("{layer}.weight");
        let codes = tensors.contains(&weight) && tensors.aval(&weight).is_ok_and(|aval| aval.dtype == Dtype::Uint32);
        Ok(codes.then_some(Self::MlxLm))
    }
}

impl fmt::Display for FileKind {
    /// What reads it: `bitsandbytes::read`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tacit => "load",
            Self::Gguf => "Gguf",
            Self::Bitsandbytes => "bitsandbytes::read",
            Self::MlxLm => "mlx_lm::read",
            Self::Gptq => "gptq::read",
            Self::Awq => "awq::read",
            Self::Torchao => "torchao::read",
            Self::Floats => "hugging_face::read",
        })
    }
}

/// Whether the configuration beside the tensors is AWQ's; GPTQ's tensors have the same names.
fn is_awq(folder: &Path) -> Result<bool> {
    let method = |json: &Json| Some(json.get("quantization_config")?.get("quant_method")?.text()? == "awq");
    match Json::open_if_there(folder.join("config.json"))?.as_ref().and_then(method) {
        Some(is_awq) => Ok(is_awq),
        None => Ok(Json::open_if_there(folder.join("quant_config.json"))?.is_some()),
    }
}
