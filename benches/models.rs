//! What a whole model costs: a call of it beside the bare module's, sentences embedded by quantized encoders beside the
//! float one, and checkpoints saved and loaded beside copying and reading the file.
//!
//! The encoder has the sizes of all-MiniLM-L6-v2 and drawn weights. What is compared takes its turns in one run.

#[path = "../examples/embed/bert.rs"]
#[allow(dead_code, reason = "the example has more uses for it")]
mod bert;
mod figures;
#[path = "figures/resident.rs"]
mod resident;

use std::fs::{self, File};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use bert::{Batch, Bert, Config};
use figures::Figure;
use mlx_rs::{Array, Dtype, ops, random, transforms};
use tacit::Result;
use tacit::arrays::Quantizer;
use tacit::format::{Int8, Nf4, Parts, Per};
use tacit::nn::Model;
use tacit::prelude::*;
use tacit::tree::{Open, leaves};

/// The tokens of a sentence.
const TOKENS: i32 = 32;

/// The largest part of a checkpoint that one array is.
const ROWS: i32 = 4096;

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let bert = encoder()?;
    calls(&bert)?;
    for sentences in [1, 32] {
        embeddings(&bert, sentences)?;
    }
    checkpoints()
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

fn record(case: &str, value: f64, unit: &str, baseline: &str, ratio: f64) {
    Figure { bench: "models", case, value, unit, baseline, ratio }.record();
}

/// The median seconds of each of several functions, which take their turns.
fn medians<const N: usize>(rounds: usize, mut all: [&mut dyn FnMut() -> Result<()>; N]) -> Result<[f64; N]> {
    let mut times = [const { Vec::new() }; N];
    for round in 0..=rounds {
        for (f, times) in all.iter_mut().zip(&mut times) {
            let start = Instant::now();
            f()?;
            // The first round warms up.
            if round > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }))
}

/// What a model adds to a call of its module: to one that is computed, and to the recording alone of one that is implicit.
fn calls(bert: &Bert) -> Result<()> {
    let batch = batch(1)?;
    let (mut bare, mut dense) = (bert.clone(), Model::new(bert.clone())?);
    let [own, held] = medians(
        40,
        [&mut || Ok(bare.embed(&batch)?.eval()?), &mut || Ok(dense.run(|bert| bert.embed(&batch))?.eval()?)],
    )?;
    record("call/dense", held * 1e6, "us", "the bare module", held / own);

    let mut nf4 = quantized(bert, Nf4 { block: 64, double: false })?;
    let [own, held] = medians(
        100,
        [
            &mut || {
                black_box(bare.embed(&batch)?);
                Ok(())
            },
            &mut || {
                black_box(nf4.run(|bert| bert.embed(&batch))?);
                Ok(())
            },
        ],
    )?;
    record("call/nf4", (held - own) * 1e6, "us", "recording the bare module", held / own);
    Ok(())
}

/// The sentences that encoders embed in a second.
fn embeddings(bert: &Bert, sentences: i32) -> Result<()> {
    let batch = batch(sentences)?;
    let (mut float, mut nf4, mut int8) =
        (bert.clone(), quantized(bert, Nf4 { block: 64, double: false })?, quantized(bert, Int8 { per: Per::Row })?);
    let rounds = if sentences == 1 { 40 } else { 8 };
    let [float, nf4, int8] = medians(
        rounds,
        [
            &mut || Ok(float.embed(&batch)?.eval()?),
            &mut || Ok(nf4.run(|bert| bert.embed(&batch))?.eval()?),
            &mut || Ok(int8.run(|bert| bert.embed(&batch))?.eval()?),
        ],
    )?;
    for (format, seconds) in [("f32", float), ("nf4", nf4), ("int8", int8)] {
        let case = format!("embed/{format}/b{sentences}");
        record(&case, f64::from(sentences) / seconds, "sentences/s", "f32", float / seconds);
    }
    Ok(())
}

/// Saving and loading 16 large NF4 arrays, beside a copy of the file and beside reading it.
fn checkpoints() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("tacit-models-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(Error::file("make", &folder))?;
    let measured = in_folder(&folder);
    let _ = fs::remove_dir_all(&folder);
    measured
}

fn in_folder(folder: &Path) -> Result<()> {
    let [saved, copied] = ["saved.safetensors", "copied"].map(|name| folder.join(name));
    {
        let parameters = large()?;
        let [save, copy] = medians(5, [&mut || tacit::io::save(&saved, &parameters), &mut || copy(&saved, &copied)])?;
        let bytes = fs::metadata(&saved).map_err(Error::file("open", &saved))?.len() as f64;
        record("save", bytes / save / 1e6, "MB/s", "copying the file, to the disk", copy / save);
    }
    let bytes = fs::metadata(&saved).map_err(Error::file("open", &saved))?.len() as f64;
    let [load, read] = medians(
        5,
        [
            &mut || {
                black_box(loaded_sum(&saved)?);
                Ok(())
            },
            &mut || {
                let bytes = fs::read(&saved).map_err(Error::file("read", &saved))?;
                black_box(sum(&bytes));
                Ok(())
            },
        ],
    )?;
    record("load", bytes / load / 1e6, "MB/s", "reading the file into memory", read / load);

    resident::reset_peak();
    let before = resident::kilobytes("VmRSS")?;
    black_box(loaded_sum(&saved)?);
    let taken = (resident::kilobytes("VmHWM")? - before) * 1024.0;
    record("load/memory", taken / 1e6, "MB", "the file", taken / bytes);
    Ok(())
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
