//! Decoders from folders of mlx-lm and of Hugging Face and from GGUF files, with parameters of any format.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::Adapter;
use tacit_core::{Aval, Error, Result, Value};
use tacit_files::{Steady, current_if_there};
use tacit_io::json::Json;
use tacit_io::{self as io, Gguf, layout, mlx_adapter, peft};
use tacit_nn::{DecoderRules, Missing, Model, Parameters, Rules};

use crate::config::{Config, folder_of};
use crate::decoder::Decoder;
use crate::formats::Formats;

/// Reads a decoder, with the parameters as they are stored, and its configuration.
///
/// The path is a GGUF file of llama.cpp, in which both are; a file of tensors beside its `config.json`; or a folder with either,
/// as mlx-lm and Hugging Face write it. Parameters have the arrangement of mlx-lm: see [`layout`]. Where the embedding of a GGUF file
/// is dense in half floats, its dense `F32` tensors take that dtype. Biases of zeros that the decoder does not have are left out.
///
/// # Errors
///
/// As for [`Config::read`] and [`io::read`], or for [`Config::from_gguf`] and [`Gguf::hugging_face`]; or a parameter is not there,
/// has another shape, or does not belong to the decoder; or the filter of a convolution is codes; or the head is not the
/// embedding, which the configuration says it is.
pub fn load(path: impl AsRef<Path>) -> Result<(Config, Model<Decoder>)> {
    load_with(path, Ok)
}

/// Reads a decoder as [`load`] does, and gives it to `change` before its parameters are computed.
///
/// What becomes codes there is never in memory as a whole: experts that lie apart in the files are put together a layer at a time.
///
/// ```no_run
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_models::{Formats, load_with, quantize};
///
/// let format = Formats::read("nf4:64")?;
/// let (_config, model) = load_with("Qwen3-30B-A3B", |model| quantize(model, &format))?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`load`], or `change` fails.
pub fn load_with(
    path: impl AsRef<Path>,
    change: impl FnOnce(Model<Decoder>) -> Result<Model<Decoder>>,
) -> Result<(Config, Model<Decoder>)> {
    let (config, model) = read(path.as_ref())?;
    let model = change(model)?;
    // What is lazy belongs to this thread, and whoever has a model may send it to another.
    model.eval()?;
    Ok((config, model))
}

fn read(path: &Path) -> Result<(Config, Model<Decoder>)> {
    if let Some(file) = Gguf::find(path)? {
        let file = Gguf::open(file)?;
        let config = Config::from_gguf(&file)?;
        let source = Source { tensors: file.path(), config: file.path() };
        let parameters = in_one_dtype(file.hugging_face()?)?;
        return built(config, parameters, &source).map_err(|error| file.in_own_names(error));
    }
    let folder = folder_of(path)?;
    let steady = Steady::at(folder);
    let config = Config::read(folder)?;
    let parameters = io::read(path)?;
    // From here on they are parts of files that are mapped: no save has to wait while they are computed with.
    drop(steady);
    built(config, parameters, &Source { tensors: folder, config: &folder.join("config.json") })
}

/// Dense floats in the dtype of the embedding: llama.cpp widens vectors and small matrices to `F32`, and a decoder of half floats
/// would compute in `f32` from the first of them on.
fn in_one_dtype(mut parameters: Parameters) -> Result<Parameters> {
    let dtype = parameters.get(EMBEDDING).and_then(Value::as_dense).map(Array::dtype);
    let Some(dtype @ (Dtype::Float16 | Dtype::Bfloat16)) = dtype else { return Ok(parameters) };
    for value in parameters.values_mut() {
        if let Some(wide) = value.as_dense().filter(|array| array.dtype() == Dtype::Float32) {
            *value = wide.as_dtype(dtype)?.into();
        }
    }
    Ok(parameters)
}

/// What errors name: where tensors are, and where the configuration is.
struct Source<'s> {
    tensors: &'s Path,
    config: &'s Path,
}

fn built(mut config: Config, parameters: Parameters, source: &Source<'_>) -> Result<(Config, Model<Decoder>)> {
    let mut parameters = layout::as_mlx_lm(source.tensors, parameters)?;
    let head = parameters.contains_key(HEAD);
    if *config.tied.get_or_insert(!head) {
        layout::drop_tied_head(source.tensors, &mut parameters)?;
    }
    // Old checkpoints keep what is computed.
    parameters.retain(|path, _| !path.ends_with(".rotary_emb.inv_freq"));
    check_layers(source.config, &config, &parameters)?;
    let mut model = Model::new(Decoder::new(&config)?)?;
    let own = model.avals();
    drop_zero_biases(&own, &mut parameters)?;
    check(source.tensors, &own, &parameters)?;
    model.assign(parameters, Missing::Refuse)?;
    Ok((config, model))
}

/// The head, where it is not the embedding.
pub(crate) const HEAD: &str = "lm_head.weight";
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

/// Checks that there are tensors of the last layer before any layer is built.
fn check_layers(file: &Path, config: &Config, parameters: &Parameters) -> Result<()> {
    let layer = |path: &String| path.strip_prefix("model.layers.")?.split_once('.')?.0.parse::<usize>().ok();
    let found = parameters.keys().filter_map(layer).max().map_or(0, |last| last.saturating_add(1));
    if config.layers.len() > found {
        let reason = format!("it is {}, and there are tensors of {found} layers", config.layers.len());
        let help = "fetch the configuration and the tensors again, together";
        return Err(Error::checkpoint(file, Some("num_hidden_layers"), reason, help));
    }
    Ok(())
}

/// Removes biases of nothing but zeros that the decoder does not have: programs of GPTQ store one for each layer.
fn drop_zero_biases(own: &BTreeMap<String, Aval>, parameters: &mut Parameters) -> Result<()> {
    let is_foreign = |path: &&String| path.strip_suffix(".bias").is_some() && !own.contains_key(*path);
    let foreign: Vec<String> = parameters.keys().filter(is_foreign).cloned().collect();
    for path in foreign {
        if let Some(bias) = parameters.get(&path).and_then(Value::as_dense)
            && bias.eq_exact(ops::zeros_like(bias)?)?
        {
            parameters.remove(&path);
        }
    }
    Ok(())
}

/// Checks that the parameters are those of the decoder.
fn check(folder: &Path, own: &BTreeMap<String, Aval>, given: &Parameters) -> Result<()> {
    let wrong = |path: &str, reason: String| {
        let help = "fetch the configuration and the tensors again, together";
        Err(Error::checkpoint(folder, Some(path), reason, help))
    };
    for (path, aval) in own {
        match given.get(path) {
            None => return wrong(path, format!("it is not there, and the configuration asks for {aval}")),
            // A convolution has no products of codes.
            Some(value) if value.is_implicit() && aval.shape.len() > 1 && !Rules::is_matrix(path, aval) => {
                let reason = format!("it is {value}, and the filter of a convolution is of floats");
                let help = "quantize the model again: filters stay as they are";
                return Err(Error::checkpoint(folder, Some(path), reason, help));
            }
            Some(value) if value.aval()?.shape != aval.shape => {
                return wrong(path, format!("it is {value}, and the configuration asks for {aval}"));
            }
            Some(value) if aval.dtype.is_float() && !value.aval()?.dtype.is_float() => {
                let reason = format!("it is {value}, and a weight is of floats");
                let help = "take a checkpoint in a format that is read: these may be codes whose scales are not known";
                return Err(Error::checkpoint(folder, Some(path), reason, help));
            }
            Some(_) => {}
        }
    }
    match given.keys().find(|path| !own.contains_key(*path)) {
        Some(path) => wrong(path, "the configuration's decoder has no such parameter".to_owned()),
        None => Ok(()),
    }
}

/// The products' weights, by path; the router's stay as they are.
const PRODUCTS: &str = "{model.layers.*_proj,model.layers.*.in_proj_qkvz,model.embed_tokens,lm_head}.weight";

/// Quantizes the weights of the products in one format, or all matrices by rules.
///
/// Those that are quantized already stay.
///
/// Where one format is given, embedding and head have at least 6 bits: see [`Rules::for_decoder`]. Rules may name experts as Hugging
/// Face or as mlx-lm does; all experts of a layer have the format of the first.
///
/// # Errors
///
/// As for [`Rules::for_decoder`] and [`Model::quantize`].
pub fn quantize(model: Model<Decoder>, formats: &Formats) -> Result<Model<Decoder>> {
    match formats {
        Formats::One(format) => {
            let rules = Rules::for_decoder(format, &model.values()?)?.rules;
            model.quantize(PRODUCTS, &rules)
        }
        Formats::Rules(rules) => {
            let rules = DecoderRules::new(rules, &model.values()?, layout::other_name)?.rules;
            model.quantize("*", &rules)
        }
    }
}

/// Puts the adapter in a folder over the parameters, as mlx-lm or PEFT wrote it.
///
/// # Errors
///
/// As for [`mlx_adapter::read`] and [`peft::read`]; or PEFT trained the embedding alone, which is the head of this
/// model as well.
pub fn adapt(model: &mut Model<Decoder>, folder: &Path) -> Result<()> {
    let values = model.values()?;
    let [of_mlx, file] = mlx_adapter::files(folder);
    let config = Json::open_if_there(&file)?.ok_or_else(|| {
        let help = "name the folder of an adapter, as PEFT, mlx-lm or `tacit train` writes it in the end";
        Error::checkpoint(folder, None, "it has no adapter_config.json, and is no adapter", help)
    })?;
    let is_peft = config.get("peft_type").is_some();
    let adapted = if !is_peft && current_if_there(&of_mlx)?.is_some_and(|file| file.is_file()) {
        mlx_adapter::read(folder, &values)?
    } else {
        let adapted = peft::read(folder, &values)?;
        check_tied(&file, &config, &adapted)?;
        adapted
    };
    model.assign(adapted, Missing::Refuse)
}

/// Refuses an embedding that PEFT trained without the head, where the model has one matrix for both.
fn check_tied(file: &Path, config: &Json, adapted: &Parameters) -> Result<()> {
    let ties = config.get("ensure_weight_tying").and_then(Json::flag).unwrap_or(false);
    let whole = match config.get("modules_to_save") {
        Some(Json::List(names)) => names.iter().filter_map(Json::text).any(|name| name.ends_with("embed_tokens")),
        _ => false,
    };
    let is_trained = whole || adapted.get(EMBEDDING).is_some_and(|value| value.family::<dyn Adapter>().is_some());
    if ties || !is_trained || adapted.contains_key(HEAD) {
        return Ok(());
    }
    let reason = "it is not true, and the embedding was trained, which is the head of this model";
    let help = "set it to true if the head was trained with the embedding; otherwise give the model a head of its own";
    Err(Error::checkpoint(file, Some("ensure_weight_tying"), reason, help))
}
