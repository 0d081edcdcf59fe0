//! What a whole model costs: a call of it beside the bare module's, sentences embedded by quantized encoders beside the
//! float one, and checkpoints saved and loaded beside copying and reading the file.
//! Where `TACIT_GEMMA` names the file of `tests/scripts/gemma.sh`, that decoder is loaded from it and quantized.
//!
//! The encoder has the sizes of all-MiniLM-L6-v2 and drawn weights. What is compared takes its turns in one run.

#[path = "../examples/embed/bert.rs"]
#[allow(dead_code, reason = "the example has more uses for it")]
mod bert;

use std::fs::{self, File};
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use bert::{Batch, Bert, Config};
use mlx_rs::{Array, Dtype, ops, random, transforms};
use tacit::Result;
use tacit::format::{Granularity, Int8, Nf4, Parts};
use tacit::model::Model;
use tacit::prelude::*;
use tacit::tree::{Open, leaves};
use tacit_figures::{Bench, Unit, resident};
use tacit_models::Decoder;

/// The tokens of a sentence.
const TOKENS: i32 = 32;

/// The largest part of a checkpoint that one array is.
const ROWS: i32 = 4096;

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let bench = tacit_figures::bench!("models");
    let bert = encoder()?;
    calls(&bench, &bert)?;
    for sentences in [1, 32] {
        embeddings(&bench, &bert, sentences)?;
    }
    checkpoints(&bench)?;
    match std::env::var_os("TACIT_GEMMA") {
        Some(file) => decoder(&bench, Path::new(&file)),
        None => Ok(()),
    }
}

/// A decoder from one file, beside reading the file, and its layers in another format. Memory is counted by the most that the process
/// has beyond what it had before, pages of the file included, over what the result takes.
fn decoder(bench: &Bench, file: &Path) -> Result<()> {
    let rounds = bench
        .turns()
        .within(Duration::from_secs(20), 5)
        .run("loading", || tacit_models::load(file).map(|loaded| drop(black_box(loaded))))
        .run("reading the file into memory", || {
            black_box(sum(&fs::read(file).map_err(Error::file("read", file))?));
            Ok(())
        })
        .take()?;
    rounds.record("file/load", Unit::rate("MB/s", megabytes(file)?));

    let peak_of = |case: &str, make: &dyn Fn() -> Result<Model<Decoder>>| {
        resident::reset_peak();
        let before = resident::now();
        let model = make()?;
        let held = model.nbytes() as f64 / 1e6;
        bench.amount(case, (resident::peak() - before) / 1e6, "MB", "the result", held);
        Ok::<_, Error>(())
    };
    peak_of("file/load/memory", &|| Ok(tacit_models::load(file)?.1))?;
    // Those of the layers alone: the embedding has eight bits in the file.
    let layers = "model.layers.*_proj.weight";
    peak_of("file/quantize/memory", &|| {
        let _allow = Policy::Allow.scope();
        let (_, mut model) = tacit_models::load(file)?;
        model.replace(layers, |_, codes| Ok(Some(codes.dense()?.into())))?;
        model.quantize(layers, "nf4:64")
    })
}

fn encoder() -> Result<Bert> {
    random::seed(0)?;
    let config = serde_json::json!({
        "vocab_size": 30_522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536, "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    });
    let config: Config = serde_json::from_value(config)
        .map_err(|error| Error::invalid(format!("the encoder's sizes: {error}"), "write them as config.json does"))?;
    Ok(Bert::new(&config)?)
}

fn quantized(bert: &Bert, format: impl Quantizer + 'static) -> Result<Model<Bert>> {
    Model::new(bert.clone())?.quantize("layers.*.weight", format)
}

fn batch(sentences: i32) -> Result<Batch> {
    let ids = random::randint::<_, u32>(0, 30_522, &[sentences, TOKENS], Some(&random::key(1)?))?;
    let mask = ops::ones::<f32>(&[sentences, TOKENS])?;
    transforms::eval([&ids, &mask])?;
    Ok(Batch { ids, mask })
}

/// What a model adds to a call of its module: to one that is computed, and to the recording alone of one that is implicit.
fn calls(bench: &Bench, bert: &Bert) -> Result<()> {
    let batch = batch(1)?;
    let (mut bare, mut dense) = (bert.clone(), Model::new(bert.clone())?);
    let rounds = bench
        .turns()
        .run("a model", || Ok::<_, Error>(dense.run(|bert| bert.embed(&batch))?.eval()?))
        .run("the bare module", || Ok(bare.embed(&batch)?.eval()?))
        .take()?;
    rounds.record("call/dense", Unit::time("us"));

    let (mut bare, mut nf4) = (bert.clone(), quantized(bert, Nf4 { block: 64, double: false })?);
    let rounds = bench
        .turns()
        .run("recording a model", || {
            black_box(nf4.run(|bert| bert.embed(&batch))?);
            Ok::<_, Error>(())
        })
        .run("recording the bare module", || {
            black_box(bare.embed(&batch)?);
            Ok(())
        })
        .take()?;
    rounds.record("call/nf4", Unit::above("us"));
    Ok(())
}

/// The sentences that encoders embed in a second.
fn embeddings(bench: &Bench, bert: &Bert, sentences: i32) -> Result<()> {
    let batch = batch(sentences)?;
    let (mut float, mut nf4, mut int8) = (
        bert.clone(),
        quantized(bert, Nf4 { block: 64, double: false })?,
        quantized(bert, Int8 { granularity: Granularity::Row })?,
    );
    let rounds = bench
        .turns()
        .within(Duration::from_secs(4), 9)
        .run("f32", || Ok::<_, Error>(float.embed(&batch)?.eval()?))
        .run("nf4", || Ok(nf4.run(|bert| bert.embed(&batch))?.eval()?))
        .run("int8", || Ok(int8.run(|bert| bert.embed(&batch))?.eval()?))
        .take()?;
    for format in ["f32", "nf4", "int8"] {
        let case = format!("embed/{format}/b{sentences}");
        rounds.record_of(&case, format, "f32", Unit::rate("sentences/s", f64::from(sentences)));
    }
    Ok(())
}

/// Saving and loading 16 large NF4 arrays, beside a copy of the file and beside reading it.
fn checkpoints(bench: &Bench) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("tacit-models-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(Error::file("make", &folder))?;
    let measured = in_folder(bench, &folder);
    let _ = fs::remove_dir_all(&folder);
    measured
}

fn in_folder(bench: &Bench, folder: &Path) -> Result<()> {
    let [saved, copied] = ["saved.safetensors", "copied"].map(|name| folder.join(name));
    {
        let parameters = large()?;
        let rounds = bench
            .turns()
            .within(Duration::from_secs(4), 5)
            .run("saving", || tacit::io::save(&saved, &parameters))
            .run("copying the file, to the disk", || copy(&saved, &copied))
            .take()?;
        rounds.record("save", Unit::rate("MB/s", megabytes(&saved)?));
    }
    let rounds = bench
        .turns()
        .within(Duration::from_secs(4), 5)
        .run("loading", || {
            black_box(loaded_sum(&saved)?);
            Ok::<_, Error>(())
        })
        .run("reading the file into memory", || {
            black_box(sum(&fs::read(&saved).map_err(Error::file("read", &saved))?));
            Ok(())
        })
        .take()?;
    rounds.record("load", Unit::rate("MB/s", megabytes(&saved)?));

    resident::reset_peak();
    let before = resident::now();
    black_box(loaded_sum(&saved)?);
    bench.amount("load/memory", (resident::peak() - before) / 1e6, "MB", "the file", megabytes(&saved)?);
    Ok(())
}

fn megabytes(path: &Path) -> Result<f64> {
    Ok(fs::metadata(path).map_err(Error::file("open", path))?.len() as f64 / 1e6)
}

/// 16 arrays of 64-blocks, drawn as codes: quantizing would take longer than all the rest.
fn large() -> Result<Parameters> {
    let shape = [ROWS, 4096];
    let elements = shape.iter().product::<i32>();
    let array = |layer: u64| {
        let codes = random::randint::<_, u32>(0, 256, &[elements / 2], Some(&random::key(layer)?))?.as_type::<u8>()?;
        let absmax = ops::full::<f32>(&[elements / 64], Array::from_f32(0.02))?;
        transforms::eval([&codes, &absmax])?;
        let aval = tacit::Aval::new(&shape, Dtype::Float32);
        let weight = Nf4Array::from_parts(Parts::new(codes, absmax), 64, aval)?;
        Ok((format!("layers.{layer}.weight"), weight.into()))
    };
    (0..16).map(array).collect()
}

/// A copy that is on the disk when it ends, as what is saved is.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map_err(Error::file("copy", from))?;
    File::open(to).and_then(|file| file.sync_all()).map_err(Error::file("write", to))
}

/// Loads a checkpoint and reads all that it holds.
fn loaded_sum(path: &Path) -> Result<u64> {
    let mut all = 0;
    for value in tacit::io::load(path)?.values() {
        for leaf in leaves(value, Open::Fully)? {
            let array = leaf.dense()?;
            all += match array.dtype() {
                Dtype::Uint8 => sum(array.as_slice::<u8>()),
                _ => array.as_slice::<f32>().iter().map(|number| u64::from(number.to_bits())).sum(),
            };
        }
    }
    Ok(all)
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(4096).map(|chunk| u64::from(chunk.iter().map(|&byte| u32::from(byte)).sum::<u32>())).sum()
}
