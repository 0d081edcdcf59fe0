//! The book's chapter on files: a run that goes on where it was killed, and checkpoints of other programs.

// ANCHOR: use
use std::fs;
use std::path::{Path, PathBuf};

use mlx_rs::error::Exception;
use mlx_rs::module::Module;
use mlx_rs::nn::{self, Sequential};
use mlx_rs::optimizers::AdamW;
use mlx_rs::random::{self, RandomState};
use mlx_rs::{Array, Dtype, ops};
use tacit::decoders::{Decoder, Positions};
use tacit::io::{self, FileKind, Gguf, GgufType, Library, ModelFolder, Tensors, Training, bitsandbytes, mlx_lm};
use tacit::model::Window;
use tacit::prelude::*;
use tacit::record::{Record, Recorder};
use tacit::tree;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 10] = [
    ("inside", inside),
    ("resumed", resumed),
    ("kept", kept),
    ("kinds", kinds),
    ("codes", codes),
    ("decoder", decoder),
    ("library", library),
    ("merged", merged),
    ("back", back),
    ("converted", converted),
];

/// A folder of its own, which is gone with this.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("tacit-book-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(Error::file("write", &path))?;
        Ok(Self(path))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

// ANCHOR: run
/// All that a step changes.
struct Run {
    model: Model<Sequential>,
    optimizer: AdamW,
    random: RandomState,
    step: u64,
}

impl Run {
    fn new() -> Result<Self> {
        random::seed(0)?;
        let layers =
            Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Relu).append(nn::Linear::new(64, 8)?);
        let model = Model::new(layers)?.prepare("*.weight", Affine { bits: 4, group: 32 })?;
        Ok(Self { model, optimizer: AdamW::new(1e-2), random: RandomState::with_seed(1)?, step: 0 })
    }

    /// A step on data and with a dropout that are drawn from the random state.
    fn step(&mut self) -> Result<f32> {
        let x = random::normal::<f32>(&[16, 64], None, None, &self.random.next_key()?)?;
        let kept = random::bernoulli(&Array::from_f32(0.9), x.shape(), &self.random.next_key()?)?;
        let loss = |model: &mut Model<Sequential>, (x, kept): (&Array, &Array)| -> Result<Array, Exception> {
            let y = model.forward(&x.multiply(kept.as_dtype(Dtype::Float32)?)?)?;
            y.subtract(x.sum_axis(-1, true)?)?.square()?.mean(None)
        };
        let (loss, gradients) = self.model.value_and_grad(ParameterFilter::default(), (&x, &kept), loss)?;
        self.model.update(&mut self.optimizer, &gradients)?;
        self.model.eval()?;
        self.step += 1;
        Ok(loss.item_exact())
    }
}
// ANCHOR_END: run

// ANCHOR: checkpoint
impl Run {
    fn save(&self, path: &Path) -> Result<()> {
        Training::new(self.step)
            .with_model(&self.model, &ParameterFilter::All)?
            .with_optimizer(&self.optimizer)?
            .with_random(&self.random)
            .save(path)
    }

    /// The run of a file, or a new one where there is none.
    fn resume(path: &Path) -> Result<Self> {
        let mut run = Self::new()?;
        if path.exists() {
            let saved = Training::load(path)?;
            saved.restore_model(&mut run.model)?;
            saved.restore_optimizer(&mut run.optimizer)?;
            (run.random, run.step) = (saved.random()?, saved.step);
        }
        Ok(run)
    }
}
// ANCHOR_END: checkpoint

// ANCHOR: program
/// The whole program: it always resumes, saves every ten steps, and here may be killed after any of them.
fn program(folder: &Folder, steps: u64, killed: Option<u64>) -> Result<Run> {
    let checkpoint = folder.file("run.safetensors");
    let mut run = Run::resume(&checkpoint)?;
    let mut recorder = Recorder::resume(folder.file("run.jsonl"), run.step)?;
    while run.step < steps {
        let loss = run.step()?;
        recorder.scalar(run.step, "loss", loss)?;
        if run.step.is_multiple_of(10) {
            run.save(&checkpoint)?;
        }
        if killed == Some(run.step) {
            break;
        }
    }
    Ok(run)
}
// ANCHOR_END: program

// ANCHOR: resumed
fn resumed() -> Result<String> {
    let (once, twice) = (Folder::new("once")?, Folder::new("twice")?);
    let uninterrupted = program(&once, 30, None)?;
    // Three steps beyond the last checkpoint.
    program(&twice, 30, Some(13))?;
    let resumed = program(&twice, 30, None)?;

    let (expected, found) =
        (uninterrupted.model.leaves(&ParameterFilter::All), resumed.model.leaves(&ParameterFilter::All));
    let mut equal = 0;
    for ((path, a), (_, b)) in expected.iter().zip(&found) {
        if !a.eq_exact(b)? {
            return Err(Error::invalid(format!("{path} differs"), "save all that a step changes"));
        }
        equal += 1;
    }
    let [a, b] = [&once, &twice].map(|folder| Record::read(folder.file("run.jsonl")));
    Ok(format!("{equal} of {} leaves have the same bits, and the same curve: {}", expected.len(), a? == b?))
}
// ANCHOR_END: resumed

// ANCHOR: inside
/// What is in the file of a run.
fn inside() -> Result<String> {
    let folder = Folder::new("inside")?;
    program(&folder, 10, None)?;
    let tensors = Tensors::open(folder.file("run.safetensors"))?;
    let lines = tensors.names().map(|name| Ok(format!("{name}  {}", tensors.aval(name)?)));
    Ok(lines.collect::<Result<Vec<_>>>()?.join("\n"))
}
// ANCHOR_END: inside

// ANCHOR: kept
/// A file that was cut off is refused, and what was loaded into is untouched.
fn kept() -> Result<String> {
    let folder = Folder::new("kept")?;
    let file = folder.file("model.safetensors");
    let mut run = Run::new()?;
    run.model.save(&file, ParameterFilter::All)?;
    let bytes = fs::read(&file).map_err(Error::file("read", &file))?;
    fs::write(&file, &bytes[..bytes.len() / 2]).map_err(Error::file("write", &file))?;

    let before: Vec<Array> =
        run.model.leaves(&ParameterFilter::All).into_iter().map(|(_, leaf)| leaf.clone()).collect();
    let error = run.model.load(&file).expect_err("half a file is none").to_string();
    let mut same = true;
    for ((_, leaf), before) in run.model.leaves(&ParameterFilter::All).into_iter().zip(&before) {
        same &= leaf.eq_exact(before)?;
    }
    Ok(format!("{}\nthe model is what it was: {same}", error.replace(&*folder.0.to_string_lossy(), "..")))
}
// ANCHOR_END: kept

/// A file that another program wrote, which Tacit's tests keep.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/io/tests/golden").join(name)
}

// ANCHOR: kinds
/// Whose a checkpoint is, is seen in it.
fn kinds() -> Result<String> {
    let mut lines = Vec::new();
    for name in ["bitsandbytes/4bit.safetensors", "mlx_lm/uniform", "gguf/llama.gguf", "gptq/bits4", "awq/group64"] {
        let parameters = io::read(golden(name))?;
        let implicit = parameters.values().filter(|value| matches!(value, Value::Implicit(_))).count();
        lines.push(format!(
            "{name}: {}, {} parameters, {implicit} of codes",
            FileKind::detect(golden(name))?,
            parameters.len()
        ));
    }
    Ok(lines.join("\n"))
}
// ANCHOR_END: kinds

// ANCHOR: codes
/// What llama.cpp stored, tensor by tensor.
fn codes() -> Result<String> {
    let gguf = Gguf::open(golden("gguf/types.gguf"))?;
    let own = |name: &&str| !matches!(name.split_once('.'), Some((_, "large" | "quantized")));
    let lines = gguf.names().filter(own).map(|name| match gguf.get(name) {
        Ok(value) => format!("{name}: {value}"),
        Err(error) => format!("{name}: {}", error.to_string().lines().last().unwrap_or_default()),
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}
// ANCHOR_END: codes

// ANCHOR: decoder
/// A decoder and its configuration from one file.
fn decoder() -> Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/golden/gguf/gemma3_text.gguf");
    let (config, mut model) = tacit::decoders::load(file)?;
    let mut caches = tacit::decoders::caches(&config, 1, Dtype::Float32)?;
    caches.iter_mut().try_for_each(|cache| cache.reserve(3))?;
    let tokens = Array::from_slice(&[1_u32, 2, 3], &[1, 3]);
    let logits = model.run_with(&mut caches, |decoder, caches| decoder.forward(&tokens, caches, Positions::Last))?;
    let windows: Vec<Window> = config.kinds.iter().map(|kind| kind.window).collect();
    Ok(format!("{} layers, {windows:?}\n{}", config.layers.len(), Aval::from(&logits)))
}
// ANCHOR_END: decoder

// ANCHOR: library
/// The folder of a GGUF file's model for mlx-lm.
fn library() -> Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/golden/tokenizers/spm.gguf");
    let folder = Folder::new("library")?;
    let parameters = Library::MlxLm.holdable(&folder.0, io::read(&file)?)?;
    let model = ModelFolder::open(&file)?;
    model.write(&folder.0, &parameters, Library::MlxLm)?;

    let (config, _) = tacit::decoders::load(&folder.0)?;
    let names: Vec<_> = model.names().collect();
    Ok(format!("{}: {} words, {} layer", names.join(", "), config.vocab_size, config.layers.len()))
}
// ANCHOR_END: library

// ANCHOR: merged
/// A GGUF file whose weights are trained by adapters, and the merged model as another GGUF file.
fn merged() -> Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoder/golden/gguf/gemma3_text.gguf");
    let (config, model) = tacit::decoders::load(&file)?;
    let mut model = model.lora("model.layers.*_proj.weight", LoraConfig::default())?;
    let tokens = Array::from_slice(&[1_u32, 5, 9, 20, 3, 7], &[1, 6]);
    let mut adam = AdamW::new(1e-2);
    for _ in 0..3 {
        let loss = |model: &mut Model<Decoder>, tokens: &Array| -> Result<Array> {
            Ok(tacit::decoders::token_losses(&config, model, tokens)?.mean(None)?)
        };
        let (_, gradients) = model.value_and_grad(ParameterFilter::Lora, &tokens, loss)?;
        model.update(&mut adam, &gradients)?;
        tree::eval(&model)?;
    }

    // The sums of weights and adapters are built as floats.
    let _allow = Policy::Allow.scope();
    model.merge_exactly()?;
    let folder = Folder::new("merged")?;
    let written = folder.file("merged.gguf");
    ModelFolder::open(&file)?.write_gguf(&written, model.values()?, GgufType::named("f16"))?;
    let (_, again) = tacit::decoders::load(&written)?;
    Ok(again.get("model.layers.0.mlp.down_proj.weight")?.to_string())
}
// ANCHOR_END: merged

// ANCHOR: back
/// Read and written again, a file has the bytes that it had.
fn back() -> Result<String> {
    let folder = Folder::new("back")?;
    let read = |path: &Path| fs::read(path).map_err(Error::file("read", path));

    let original = golden("bitsandbytes/4bit.safetensors");
    let copy = folder.file("copy.safetensors");
    bitsandbytes::write(&copy, &bitsandbytes::read(&original)?, bitsandbytes::BitsAndBytesLayout::read(&original)?)?;
    let of_bitsandbytes = same_tensors(&original, &copy)?;

    let original = golden("mlx_lm/uniform");
    let config = mlx_lm::ConfigFile::read(&original)?;
    mlx_lm::write(folder.file("copy"), &mlx_lm::read(&original)?, &config)?;
    let of_mlx = same_tensors(&original.join("model.safetensors"), &folder.file("copy/model.safetensors"))?;
    let config = read(&original.join("config.json"))? == read(&folder.file("copy/config.json"))?;
    Ok(format!("bitsandbytes: {of_bitsandbytes}, mlx-lm: {of_mlx}, with its configuration: {config}"))
}

/// Whether two files have the same tensors, byte for byte.
fn same_tensors(a: &Path, b: &Path) -> Result<bool> {
    let (a, b) = (Tensors::open(a)?, Tensors::open(b)?);
    let names: Vec<&str> = a.names().collect();
    let mut same = names == b.names().collect::<Vec<_>>();
    for name in names {
        same &= a.get(name)?.view_dtype(Dtype::Uint8)?.eq_exact(&b.get(name)?.view_dtype(Dtype::Uint8)?)?;
    }
    Ok(same)
}
// ANCHOR_END: back

// ANCHOR: converted
/// A checkpoint of bitsandbytes in formats of MLX.
fn converted() -> Result<String> {
    let weight = random::normal::<f32>(&[64, 128], None, None, &random::key(0)?)?;
    let nf4 = Nf4 { block: 64, double: true };
    let all = ["q_proj.weight", "v_proj.weight"].map(|path| Ok((path.to_owned(), nf4.quantize(&weight)?)));
    let mut parameters: Parameters = all.into_iter().collect::<Result<_>>()?;
    parameters.insert("q_proj.bias".to_owned(), ops::zeros::<f32>(&[64])?.into());

    let folder = Folder::new("converted")?;
    bitsandbytes::write(folder.file("theirs.safetensors"), &parameters, bitsandbytes::BitsAndBytesLayout::default())?;
    let rules = Rules::from_toml("'q_proj.weight' = 'nf4:64'\n'*.weight' = 'affine:8:64'")?;
    let (parameters, report) = io::convert(&io::read(folder.file("theirs.safetensors"))?, &rules)?;
    io::save(folder.file("ours.safetensors"), &parameters)?;
    let again = io::load(folder.file("ours.safetensors"))?;
    Ok(format!("{report}\n{}", again["v_proj.weight"]))
}
// ANCHOR_END: converted

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
