//! Every reader of the crate and of those above it, with files that it reads.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::optimizers::AdamW;
use mlx_rs::random;
use tacit_core::{Result, Value};
use tacit_io::mlx_prompt_cache::StoredCache;
use tacit_io::{
    Content, Gguf, GgufType, ModelFolder, Tensors, Training, awq, bitsandbytes, contents, gptq, hugging_face, load,
    mlx_adapter, mlx_lm, mlx_prompt_cache, peft, torchao,
};
use tacit_nn::Parameters;
use tacit_record::{Chart, Record};

use crate::corpus::{self, Sample, golden};

/// Reads what is at a path, and gives the values of it.
type Read = dyn Fn(&Path) -> Result<Vec<Value>>;

/// A reader, and the right files that its cases begin from.
pub(crate) struct Reader {
    pub(crate) name: &'static str,
    pub(crate) corpus: Vec<Sample>,
    pub(crate) read: Box<Read>,
}

/// The readers, in the order in which they are tried.
pub(crate) fn readers() -> Vec<Reader> {
    let read = "the goldens are read";
    let float = hugging_face::read(golden("mlx_lm/shards")).expect(read);
    let quantized = mlx_lm::read(golden("mlx_lm/uniform")).expect(read);
    let base = hugging_face::read(golden("peft/base.safetensors")).expect(read);
    let gptq_kinds = ["bits2", "bits3", "bits4", "bits4_symmetric", "bits8", "whole_columns"];
    vec![
        Reader { name: "safetensors", corpus: corpus::tacit(), read: Box::new(tensors) },
        of_parameters("tacit", corpus::tacit(), |path| load(path)),
        Reader { name: "training", corpus: corpus::training(), read: Box::new(training) },
        Reader { name: "gguf", corpus: corpus::gguf(), read: Box::new(gguf) },
        of_parameters("torchao", Sample::golden(["torchao/int4.safetensors", "torchao/nf4.safetensors"]), |path| {
            torchao::read(path)
        }),
        of_parameters("gptq", Sample::golden(gptq_kinds.map(|kind| format!("gptq/{kind}"))), |path| gptq::read(path)),
        of_parameters("awq", Sample::golden(["awq/group32", "awq/group64"]), |path| awq::read(path)),
        of_parameters(
            "bitsandbytes",
            Sample::golden(["4bit", "int8", "storage"].map(|name| format!("bitsandbytes/{name}.safetensors"))),
            |path| bitsandbytes::read(path),
        ),
        of_parameters(
            "mlx_lm",
            Sample::golden(
                ["grid_float16", "grid_float32", "mixed", "shards", "text_config", "uniform"]
                    .map(|name| format!("mlx_lm/{name}")),
            ),
            |path| mlx_lm::read(path),
        ),
        Reader {
            name: "mlx_prompt_cache",
            corpus: Sample::golden(
                ["kv", "quantized", "rotating", "chunked", "list", "batch"]
                    .into_iter()
                    .flat_map(|name| {
                        ["0.31", "0.32"].map(|layout| format!("mlx_prompt_cache/{layout}/{name}.safetensors"))
                    })
                    .collect::<Vec<_>>(),
            ),
            read: Box::new(prompt_cache),
        },
        of_parameters("hugging_face", Sample::golden(["mlx_lm/shards", "peft/base.safetensors"]), |path| {
            hugging_face::read(path)
        }),
        of_parameters(
            "mlx_adapter",
            Sample::golden(["dora", "full", "lora"].map(|name| format!("mlx_lm/adapters/{name}"))),
            move |path| mlx_adapter::read(path, &float),
        ),
        of_parameters(
            "mlx_adapter_quantized",
            Sample::golden(["qdora", "qlora"].map(|name| format!("mlx_lm/adapters/{name}"))),
            move |path| mlx_adapter::read(path, &quantized),
        ),
        of_parameters(
            "peft",
            Sample::golden(["dora", "lora", "rslora"].map(|name| format!("peft/{name}"))),
            move |path| peft::read(path, &base),
        ),
        Reader { name: "contents", corpus: corpus::of_each_kind(), read: Box::new(any) },
        Reader { name: "model", corpus: corpus::decoders(), read: Box::new(model) },
        Reader { name: "gguf_written", corpus: corpus::models(), read: Box::new(written) },
        Reader { name: "record", corpus: vec![corpus::record()], read: Box::new(record) },
    ]
}

fn of_parameters(
    name: &'static str,
    corpus: Vec<Sample>,
    read: impl Fn(&Path) -> Result<Parameters> + 'static,
) -> Reader {
    Reader { name, corpus, read: Box::new(move |path| Ok(read(path)?.into_values().collect())) }
}

fn tensors(path: &Path) -> Result<Vec<Value>> {
    let tensors = Tensors::open(path)?;
    tensors.names().map(|name| Ok(tensors.get(name)?.into())).collect()
}

fn training(path: &Path) -> Result<Vec<Value>> {
    let run = Training::load(path)?;
    // These are refused where they are another's, by errors that know of no file.
    let _ = run.restore_model(&mut corpus::model());
    let _ = run.restore_optimizer(&mut AdamW::new(1e-3));
    let _ = run.random();
    let states = run.states.into_values().flat_map(BTreeMap::into_values).map(Value::from);
    Ok(run.parameters.into_values().chain(run.moments.into_values()).chain(states).collect())
}

fn gguf(path: &Path) -> Result<Vec<Value>> {
    let file = Gguf::open(path)?;
    for key in file.keys() {
        file.metadata(key)?;
    }
    let _ = [file.configuration(), file.tokenizer(), file.tokenizer_config()];
    // One of the right files has a tensor of a type that is not read. The others are.
    let (read, refused): (Vec<_>, Vec<_>) = file.names().map(|name| file.get(name)).partition(Result::is_ok);
    let whole = [file.parameters(), file.hugging_face()].into_iter().flatten().flat_map(BTreeMap::into_values);
    let values: Vec<Value> = read.into_iter().flatten().chain(whole).collect();
    if let (true, Some(Err(error))) = (values.is_empty(), refused.into_iter().next()) {
        return Err(error);
    }
    Ok(values)
}

/// Whosever it is.
fn any(path: &Path) -> Result<Vec<Value>> {
    let value = |content| match content {
        Content::Parameter(value) => Some(value),
        Content::Tensor(array) => Some(array.into()),
        Content::Unknown { .. } => None,
    };
    Ok(contents(path)?.into_values().filter_map(value).collect())
}

fn model(path: &Path) -> Result<Vec<Value>> {
    let read = tacit_models::load(path);
    // mlx-rs draws each layer's first weights, which nobody computes: their keys hold each other until one is.
    random::uniform::<f32, f32>(0.0, 1.0, &[1], None)?.eval()?;
    let (_, model) = read?;
    Ok(model.values()?.into_values().collect())
}

/// Writes a folder or a file as a GGUF file. What is written is read again, whatever it was written of.
fn written(path: &Path) -> Result<Vec<Value>> {
    let (model, parameters) = (ModelFolder::open(path)?, tacit_io::read(path)?);
    let mut values = Vec::new();
    for kind in [None, GgufType::named("q8_0")] {
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        let to = folder.join("written");
        model.write_gguf(&to, &parameters, kind)?;
        let file = Gguf::open(to).expect("what is written is opened");
        // The metadata of a file are copied as they are.
        if path.is_dir() && file.has_tokenizer() {
            file.tokenizer().expect("its tokenizer is read");
        }
        values.extend(file.parameters().expect("its tensors are read").into_values());
    }
    Ok(values)
}

/// Reads a record, and draws all of it.
fn record(path: &Path) -> Result<Vec<Value>> {
    let record = Record::read(path)?;
    let mut chart = Chart::new("all");
    for name in record.scalars() {
        chart = chart.line(name, record.scalar(name)?);
    }
    for name in record.histograms() {
        chart = chart.bands(name, record.histogram(name)?);
    }
    // What cannot be drawn is an error that knows of no file.
    let _ = chart.to_svg();
    let _ = chart.logarithmic().to_svg();
    Ok(Vec::new())
}

fn prompt_cache(path: &Path) -> Result<Vec<Value>> {
    fn values(cache: StoredCache, found: &mut Vec<Value>) {
        match cache {
            StoredCache::Kv { held, .. }
            | StoredCache::Quantized { held, .. }
            | StoredCache::Rotating { held, .. }
            | StoredCache::Chunked { held, .. } => {
                found.extend(held.into_iter().flat_map(|held| [held.keys, held.values]));
            }
            StoredCache::Arrays { slots, left_padding, lengths } => {
                found.extend(slots.into_iter().chain([left_padding, lengths]).flatten().map(Value::from));
            }
            StoredCache::List(caches) => caches.into_iter().for_each(|cache| values(cache, found)),
            StoredCache::Batch { held, offset, left_padding, .. }
            | StoredCache::BatchRotating { held, offset, left_padding, .. } => {
                found.extend(held.into_iter().flat_map(|held| [held.keys, held.values]));
                found.extend([offset, left_padding].map(Value::from));
            }
        }
    }
    let mut found = Vec::new();
    mlx_prompt_cache::read(path)?.layers.into_iter().for_each(|cache| values(cache, &mut found));
    Ok(found)
}
