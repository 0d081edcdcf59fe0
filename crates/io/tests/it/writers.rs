//! Every writer over every folder, and at every operation on the file system: what is there is the old checkpoint or the new
//! one, and nothing else of the folder changes.

mod matrix;
mod situations;

use std::fs;
use std::path::Path;

use mlx_rs::{Array, nn, random};
use tacit_arrays::format::{Affine, Nf4};
use tacit_arrays::{AffineArray, Lora, Nf4Array};
use tacit_core::{Result, Value};
use tacit_io::bitsandbytes::{self, BitsAndBytesLayout};
use tacit_io::json::Json;
use tacit_io::mlx_lm::{self, ConfigFile};
use tacit_io::mlx_prompt_cache::{self, PromptCache};
use tacit_io::{
    Metadata, ModelFile, Resumable, Tensors, Training, Writing, hugging_face, load, mlx_adapter, peft, save, save_with,
    write_sharded,
};
use tacit_nn::{Model, ParameterFilter, Parameters};

use crate::checkpoints::taken_apart;

/// A function that writes a checkpoint into a folder, and one that reads it again.
struct Writer {
    name: &'static str,
    /// The files that it may write, by their names or how these begin.
    files: &'static [&'static str],
    write: In<Result<()>>,
    /// Fails where what is read is not what was written.
    check: In<()>,
}

/// What is done in a folder.
type In<T> = Box<dyn Fn(&Path) -> T>;

fn evaluated(value: impl Into<Value>) -> Value {
    let value = value.into();
    // All that it is made of, so that a save computes nothing.
    taken_apart(&Parameters::from([("w".to_owned(), value.clone())]));
    value
}

fn numbers(seed: u64, shape: &[i32]) -> Array {
    let numbers = random::normal::<f32>(shape, None, None, &random::key(seed).expect("a key")).expect("draws");
    numbers.eval().expect("evaluates");
    numbers
}

fn named(values: impl IntoIterator<Item = (&'static str, Value)>) -> Parameters {
    values.into_iter().map(|(name, value)| (name.to_owned(), evaluated(value))).collect()
}

const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// How the names of a model's files begin.
const PARTS: &[&str] = &[MODEL, INDEX, "model-", "model.2-"];

fn writer(
    name: &'static str,
    files: &'static [&'static str],
    expected: Parameters,
    write: impl Fn(&Path, &Parameters) -> Result<()> + 'static,
    read: impl Fn(&Path) -> Result<Parameters> + 'static,
) -> Writer {
    let values = expected.clone();
    Writer {
        name,
        files,
        write: Box::new(move |folder| write(folder, &values)),
        check: Box::new(move |folder| {
            let read = read(folder).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(taken_apart(&read) == taken_apart(&expected), "{name}");
        }),
    }
}

/// Every writer of the crate.
fn writers() -> Vec<Writer> {
    [own(), vec![model_file()], foreign(), adapters(), vec![prompt_cache()]].into_iter().flatten().collect()
}

fn nf4() -> Nf4Array {
    Nf4Array::quantize(&numbers(4, &[8, 64]), 64).expect("quantizes")
}

fn packed() -> Parameters {
    named([("a.weight", nf4().into()), ("norm.weight", numbers(3, &[64]).into())])
}

/// Those of Tacit's own files.
fn own() -> Vec<Writer> {
    vec![
        writer("save", PARTS, packed(), |at, values| save(at.join(MODEL), values), |at| load(at.join(MODEL))),
        writer(
            "save_with",
            PARTS,
            packed(),
            |at, values| save_with(at.join(MODEL), values, Writing { shard: Some(100), progress: None }),
            |at| load(at.join(INDEX)),
        ),
        writer(
            "Training",
            PARTS,
            packed(),
            |at, values| {
                let mut run = Training::new(7);
                run.parameters = values.clone();
                run.save(at.join(MODEL))
            },
            |at| Ok(Training::load(at.join(MODEL))?.parameters),
        ),
        writer(
            "Resumable",
            &[MODEL, INDEX, "model-", "model.2-", ".model.safetensors.parts"],
            packed(),
            |at, values| {
                let mut work = Resumable::open(at.join(MODEL), Vec::<&Path>::new())?;
                for (path, value) in values {
                    work.value(path, "as it is", || Ok((value.clone(), ())))?;
                }
                work.finish(values, Writing::default())
            },
            |at| load(at.join(MODEL)),
        ),
    ]
}

fn model_file() -> Writer {
    let model = || Model::new(nn::Linear::new(64, 8).expect("a layer")).expect("a model");
    let saved = model().quantize("weight", Nf4 { block: 64, double: false }).expect("fits");
    let values = saved.values().expect("has values");
    let expected: Parameters = values.into_iter().map(|(path, value)| (path, evaluated(value))).collect();
    Writer {
        name: "ModelFile",
        files: PARTS,
        write: Box::new(move |at| saved.save(at.join(MODEL), ParameterFilter::All)),
        check: Box::new(move |at| {
            let mut read = model();
            read.load(at.join(MODEL)).expect("loads");
            assert!(taken_apart(&read.values().expect("has values")) == taken_apart(&expected));
        }),
    }
}

/// Those of other programs' models.
fn foreign() -> Vec<Writer> {
    let dense = named([
        ("a.weight", numbers(1, &[8, 64]).into()),
        ("b.weight", numbers(2, &[8, 64]).into()),
        ("norm.weight", numbers(3, &[64]).into()),
    ]);
    let affine = AffineArray::quantize(&numbers(5, &[8, 64]), Affine { bits: 8, group: 32 }).expect("quantizes");
    let affine = named([("a.weight", affine.into()), ("norm.weight", numbers(3, &[64]).into())]);
    let config = || ConfigFile::new(Json::parse(r#"{"model_type": "llama"}"#).expect("JSON"));
    vec![
        writer(
            "write_sharded",
            PARTS,
            dense.clone(),
            |at, values| {
                let tensors = values.iter().map(|(name, value)| (name.clone(), value.dense().expect("is dense")));
                write_sharded(at.join(MODEL), tensors.collect(), &Metadata::new(), 2048)
            },
            |at| hugging_face::read(at),
        ),
        writer(
            "hugging_face",
            PARTS,
            dense,
            |at, values| hugging_face::write(at.join(MODEL), values),
            |at| hugging_face::read(at.join(MODEL)),
        ),
        writer(
            "bitsandbytes",
            PARTS,
            packed(),
            |at, values| bitsandbytes::write(at.join(MODEL), values, BitsAndBytesLayout::default()),
            |at| bitsandbytes::read(at.join(MODEL)),
        ),
        writer(
            "mlx_lm",
            &[MODEL, INDEX, "model-", "model.2-", "config.json"],
            affine,
            move |at, values| mlx_lm::write(at, values, &config()),
            |at| mlx_lm::read(at),
        ),
    ]
}

/// Those of adapters.
fn adapters() -> Vec<Writer> {
    let base = named([("model.layers.0.proj.weight", nf4().into())]);
    let lora = Lora::new(base["model.layers.0.proj.weight"].clone(), numbers(6, &[2, 64]), numbers(7, &[8, 2]), 16.0);
    let lora = named([("model.layers.0.proj.weight", lora.expect("fits").into())]);
    let object = || Json::Object(Vec::new());
    let (of_peft, of_mlx) = (base.clone(), base);
    vec![
        writer(
            "peft",
            &["adapter_model.safetensors", "adapter_model.safetensors.index.json", "adapter_config.json"],
            lora.clone(),
            move |at, values| peft::write(at, values, &object()),
            move |at| peft::read(at, &of_peft),
        ),
        writer(
            "mlx_adapter",
            &["adapters.safetensors", "adapter_config.json"],
            lora,
            move |at, values| mlx_adapter::write(at, values, &object()),
            move |at| mlx_adapter::read(at, &of_mlx),
        ),
    ]
}

fn prompt_cache() -> Writer {
    let cache = || {
        let golden = crate::golden::golden("mlx_prompt_cache/0.32/kv.safetensors");
        mlx_prompt_cache::read(golden).expect("reads")
    };
    Writer {
        name: "mlx_prompt_cache",
        files: PARTS,
        write: Box::new(move |at| mlx_prompt_cache::write(at.join(MODEL), &cache())),
        check: Box::new(|at| {
            let golden = crate::golden::golden("mlx_prompt_cache/0.32/kv.safetensors");
            let PromptCache { layers, .. } = mlx_prompt_cache::read(at.join(MODEL)).expect("reads");
            assert!(!layers.is_empty());
            let [ours, theirs] = [at.join(MODEL), golden].map(|file| Tensors::open(file).expect("opens"));
            for name in theirs.names() {
                assert!(ours.bytes(name).expect("is there") == theirs.bytes(name).expect("is there"), "{name}");
            }
        }),
    }
}

/// What a folder holds under its own names, hidden files and folders in it too.
fn raw(folder: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut held = std::collections::BTreeMap::new();
    for entry in fs::read_dir(folder).expect("reads") {
        let entry = entry.expect("reads");
        let name = entry.file_name().into_string().expect("text");
        if entry.file_type().expect("a type").is_dir() {
            held.extend(raw(&entry.path()).into_iter().map(|(inner, content)| (format!("{name}/{inner}"), content)));
            held.insert(name, Vec::new());
        } else {
            held.insert(name, fs::read(entry.path()).expect("reads"));
        }
    }
    held
}
