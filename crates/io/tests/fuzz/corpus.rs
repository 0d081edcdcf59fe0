//! The right files that mutations begin from.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mlx_rs::module::{FlattenedModuleParam, ModuleParameters};
use mlx_rs::optimizers::{AdamW, Optimizer};
use mlx_rs::random::RandomState;
use mlx_rs::{Array, Dtype, nn, ops, random};
use tacit_arrays::format::{Nf4, parse};
use tacit_arrays::{
    Cast, Concat, Constant, Diagonal, Identity, Lora, LowRank, Masked, Scaled, Sliced, Sparse24, Stacked, Transposed,
};
use tacit_core::{Result, Value};
use tacit_io::{Gguf, GgufValue, Training, Writing, save, save_with};
use tacit_nn::{Model, ParameterFilter, Parameters};
use tacit_record::Recorder;

use crate::scratch::Scratch;

/// Files by their names, and which of them is opened; a folder is opened by no name.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) opened: String,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Sample {
    /// A file, or a folder without the folders in it.
    pub(crate) fn of(path: &Path) -> Self {
        let named = |path: &Path| path.file_name().expect("has a name").to_string_lossy().into_owned();
        let read = |path: &Path| (named(path), fs::read(path).expect("reads"));
        if path.is_dir() {
            // Some keep what is expected of them beside them.
            let wanted = |path: &Path| path.is_file() && !named(path).starts_with("expected");
            let entries = fs::read_dir(path).expect("reads").map(|entry| entry.expect("reads").path());
            return Self {
                opened: String::new(),
                files: entries.filter(|path| wanted(path)).map(|path| read(&path)).collect(),
            };
        }
        Self { opened: named(path), files: [read(path)].into() }
    }

    /// Files and folders that other libraries wrote, of `tests/golden`.
    pub(crate) fn golden(names: impl IntoIterator<Item = impl AsRef<Path>>) -> Vec<Self> {
        names.into_iter().map(|name| Self::of(&golden(name))).collect()
    }
}

/// A file or a folder of `tests/golden`.
pub(crate) fn golden(name: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A checkpoint of each array type there is, one of a training run, and one in two files.
pub(crate) fn tacit() -> Vec<Sample> {
    let folder = Scratch::new();
    let values = values().expect("builds");
    let path = folder.join("model.safetensors");
    let mut samples = Vec::new();
    for (name, value) in values.clone() {
        save(&path, &Parameters::from([(name, value)])).expect("saves");
        samples.push(Sample::of(&path));
    }
    fs::remove_file(&path).expect("removes");
    let writing = Writing { shard: Some(1024), progress: None };
    save_with(&path, values.into_iter().take(4).collect::<Parameters>(), writing).expect("saves");
    samples.push(Sample::of(&folder));
    samples
}

/// A training run with an optimizer's and a random state.
pub(crate) fn training() -> Vec<Sample> {
    let folder = Scratch::new();
    let path = folder.join("run.safetensors");
    let mut model = model();
    let mut adamw = AdamW::new(1e-3);
    let gradients: FlattenedModuleParam =
        model.trainable_parameters().flatten().into_iter().map(|(path, array)| (path, array.clone())).collect();
    adamw.update(&mut model, &gradients).expect("updates");
    let random = RandomState::with_seed(0).expect("seeds");
    let whole = Training::new(7).with_note("rules", "**.weight = nf4:64").with_random(&random);
    let some = whole.clone().with_model(&model, &ParameterFilter::Dense).expect("its leaves");
    let whole =
        whole.with_model(&model, &ParameterFilter::All).and_then(|run| run.with_optimizer(&adamw)).expect("its state");
    let sample = |run: Training| {
        run.save(&path).expect("saves");
        Sample::of(&path)
    };
    vec![sample(whole), sample(some)]
}

/// A file of each kind that is told by what is in it.
pub(crate) fn of_each_kind() -> Vec<Sample> {
    let mut samples = tacit();
    samples.truncate(4);
    samples.extend(Sample::golden([
        "gguf/llama.gguf",
        "torchao/int4.safetensors",
        "gptq/bits4",
        "awq/group32",
        "bitsandbytes/4bit.safetensors",
        "mlx_lm/mixed",
        "mlx_lm/shards",
    ]));
    samples
}

/// What gguf-py wrote: every type, models, tokenizers.
pub(crate) fn gguf() -> Vec<Sample> {
    let mut samples = Sample::golden(["gguf/types.gguf", "gguf/llama.gguf"]);
    samples.extend(["spm", "qwen2"].map(|name| Sample::of(&decoders_folder().join(format!("tokenizers/{name}.gguf")))));
    samples
}

/// Of which GGUF files are written: folders of Hugging Face, some of them with a tokenizer, and such files.
pub(crate) fn models() -> Vec<Sample> {
    let models = [
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "gemma2",
        "gemma3_text",
        "phi3",
        "olmo2",
        "granite",
        "smollm3",
    ];
    let folder = |name: &str| Sample::of(&decoders_folder().join("gguf").join(name));
    let mut samples: Vec<Sample> = models.into_iter().map(folder).collect();
    let changed = |name: &str, from: &str, to: &str| {
        let mut sample = folder(name);
        let config = sample.files.get_mut("config.json").expect("is there");
        let text = String::from_utf8_lossy(config).replace([' ', '\n'], "");
        assert!(text.contains(from), "{text}");
        *config = text.replace(from, to).into_bytes();
        sample
    };
    samples.extend([
        changed(
            "gemma3_text",
            r#""rope_theta":100000.0"#,
            r#""layer_types":["sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention"],"rope_parameters":{"full_attention":{"rope_type":"default","rope_theta":1e5},"sliding_attention":{"rope_type":"default","rope_theta":1e3}}"#,
        ),
        changed(
            "mistral",
            r#""sliding_window":null"#,
            r#""rope_scaling":{"rope_type":"longrope","long_factor":[1,2,3,4],"short_factor":[1,2,3,4],"factor":2.0,"original_max_position_embeddings":64}"#,
        ),
        changed(
            "mistral",
            r#""sliding_window":null"#,
            r#""rope_scaling":{"rope_type":"yarn","factor":2.0,"attention_factor":1.5,"beta_fast":16,"beta_slow":2}"#,
        ),
    ]);
    samples.extend(["spm", "qwen2"].map(with_tokenizer));
    samples.extend(["llama", "qwen3_next", "gemma3_text"].map(|name| folder(&format!("{name}.gguf"))));
    samples
}

/// A folder with a tokenizer and an embedding of its tokens.
fn with_tokenizer(name: &str) -> Sample {
    let file = Gguf::open(decoders_folder().join(format!("tokenizers/{name}.gguf"))).expect("opens");
    let Ok(GgufValue::List(tokens)) = file.metadata("tokenizer.ggml.tokens") else { panic!("{name} has no tokens") };
    let folder = Scratch::new();
    folder.file("config.json", r#"{"model_type": "llama", "bos_token_id": 1, "eos_token_id": [2, 0]}"#);
    folder.file("tokenizer.json", file.tokenizer().expect("reads").line());
    folder.file("tokenizer_config.json", file.tokenizer_config().expect("reads").line());
    let words = ops::zeros::<f32>(&[tokens.len() as i32 + 4, 2]).expect("zeros");
    let parameters = Parameters::from([("model.embed_tokens.weight".to_owned(), words.into())]);
    save(folder.join("model.safetensors"), &parameters).expect("saves");
    Sample::of(&folder)
}

fn decoders_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden")
}

/// A decoder of each architecture, some in floats and some in codes.
pub(crate) fn decoders() -> Vec<Sample> {
    let decoder = |name: &str| {
        let mut sample = Sample::of(&decoders_folder().join(name));
        sample.files.insert("generation_config.json".into(), br#"{"eos_token_id":[1,2]}"#.into());
        sample
    };
    [
        "float/llama",
        "affine/mistral",
        "float/qwen2",
        "affine/qwen3",
        "float/qwen3_moe",
        "affine/gemma2",
        "float/gemma3_text",
        "float/mixtral",
        "affine/phi3",
        "float/olmo2",
        "affine/granite",
        "float/smollm3",
        "gguf/llama.gguf",
        "gguf/qwen3.gguf",
        "gguf/qwen3_next.gguf",
        "gguf/gemma2_bf16.gguf",
        "gguf/gemma3_text.gguf",
        "gguf/mixtral.gguf",
        "gguf/phi3.gguf",
        "gguf/granite.gguf",
    ]
    .map(decoder)
    .into()
}

/// Numbers and histograms of a run.
pub(crate) fn record() -> Sample {
    let folder = Scratch::new();
    let path = folder.join("run.jsonl");
    let mut recorder = Recorder::create(&path).expect("creates");
    for (step, value) in [(1, 0.5), (2, f64::INFINITY), (3, 1e-3)] {
        recorder.scalar(step, "loss", value).expect("records");
        recorder.histogram(step, "weights", &Array::from_slice(&[-1.0f32, 0.0, 2.5], &[3])).expect("records");
    }
    drop(recorder);
    Sample::of(&path)
}

/// What a run trains.
pub(crate) fn model() -> Model<nn::Linear> {
    let linear = nn::Linear::new(64, 4).expect("builds");
    Model::new(linear).and_then(|model| model.quantize("weight", Nf4 { block: 64, double: false })).expect("quantizes")
}

fn values() -> Result<Vec<(String, Value)>> {
    let normal = |shape: &[i32]| random::normal::<f32>(shape, None, None, Some(&random::key(3)?));
    let dense = normal(&[4, 64])?;
    let mut values: Vec<(String, Value)> = vec![("dense".into(), dense.clone().into())];
    values.push(("half".into(), dense.as_dtype(Dtype::Bfloat16)?.into()));
    for format in [
        "nf4:64",
        "nf4:64:double",
        "fp4:32",
        "affine:4:64",
        "affine:3:32",
        "int8:columns",
        "int8:16",
        "ternary:32",
        "binary:8",
        "e4m3:64",
        "e5m2:64",
        "bf16",
        "mxfp4:floor",
        "mxfp8:round",
        "nvfp4:global",
    ] {
        values.push((format.into(), parse(format)?.quantize(&dense)?));
    }
    let nf4 = parse("nf4:64")?.quantize(&dense)?;
    let zeros = ops::zeros_dtype(&[4, 64], Dtype::Bool)?;
    let structured: [(&str, Value); 12] = [
        ("lora", Lora::new(nf4.clone(), normal(&[2, 64])?, normal(&[4, 2])?, 4.0)?.into()),
        ("concat", Concat::new(vec![nf4.clone(), dense.clone().into()], 0)?.into()),
        ("stacked", Stacked::new(vec![nf4.clone(), nf4.clone()])?.into()),
        ("sliced", Sliced::new(nf4.clone(), &[1, 0], &[3, 32])?.into()),
        ("scaled", Scaled::new(nf4.clone(), &Array::from_f32(2.0))?.into()),
        ("cast", Cast::new(nf4.clone(), Dtype::Float16)?.into()),
        ("transposed", Transposed::new(nf4, &[1, 0])?.into()),
        ("masked", Masked::new(dense.clone(), zeros)?.into()),
        ("low_rank", LowRank::new(normal(&[4, 2])?, normal(&[2, 64])?)?.into()),
        ("diagonal", Diagonal::new(normal(&[4])?)?.into()),
        ("identity", Identity::new(4, Dtype::Float32)?.into()),
        ("constant", Constant::full(&[4, 4], &Array::from_f32(1.0))?.into()),
    ];
    values.extend(structured.map(|(name, value)| (name.to_owned(), value)));
    values.push(("sparse24".into(), Sparse24::prune(&dense)?.into()));
    Ok(values)
}
