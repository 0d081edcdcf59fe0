//! What each format loses by its bits: of weights, of products, and of a small decoder that is trained here, with the format's
//! own scales, with fitted ones, and trained in the format.
//!
//! `cargo bench --bench accuracy -- [--quick] [--record] [filter]`. Lines go to `target/accuracy.jsonl`, or with `--record` to
//! `benches/recorded/accuracy.jsonl`, which the book's page is made of. `--quick` takes some seconds. With a filter only formats
//! whose texts contain it are measured. Drawn weights are the same in each run, and the decoder is kept beside
//! the lines once it is trained.

mod decoder;

use std::path::Path;
use std::time::Instant;

use decoder::{Decoder, QUANTIZED, Size, Trainer};
use mlx_rs::{Array, Dtype, ops, random};
use tacit::format::{Fit, Fitted};
use tacit::model::Outcome;
use tacit::prelude::*;
use tacit::tree;
use tacit_figures::accuracy::{self, Loss};

const FORMATS: [&str; 57] = [
    "binary",
    "binary:64",
    "ternary",
    "ternary:32",
    "ternary:64",
    "ternary:128",
    "affine:2:32",
    "affine:2:64",
    "affine:2:128",
    "affine:3:32",
    "affine:3:64",
    "affine:3:128",
    "affine:4:32",
    "affine:4:64",
    "affine:4:128",
    "affine:5:32",
    "affine:5:64",
    "affine:5:128",
    "affine:6:32",
    "affine:6:64",
    "affine:6:128",
    "affine:8:32",
    "affine:8:64",
    "affine:8:128",
    "k:2",
    "k:3",
    "k:4",
    "k:5",
    "k:6",
    "nf4:32",
    "nf4:64",
    "nf4:128",
    "nf4:256",
    "nf4:1024",
    "nf4:64:double",
    "nf4:128:double",
    "fp4:32",
    "fp4:64",
    "fp4:128",
    "fp4:64:double",
    "mxfp4",
    "mxfp4:round",
    "mxfp4:floor",
    "nvfp4",
    "nvfp4:global",
    "mxfp8",
    "e5m2:64",
    "e5m2:128",
    "int8",
    "int8:32",
    "int8:64",
    "int8:128",
    "rotated:affine:4:64",
    "rotated:nf4:64",
    "rotated:nf4:64:double",
    "f16",
    "bf16",
];

/// The formats that a decoder is trained in, too.
const TRAINED: [&str; 5] = ["ternary:64", "affine:2:64", "affine:3:64", "nf4:64", "mxfp4"];

const FULL: Size =
    Size { dims: 128, blocks: 2, heads: 4, context: 64, batch: 12, common: 600, more: 200, held_out: 96 };
const QUICK: Size = Size { dims: 64, blocks: 1, heads: 2, context: 32, batch: 8, common: 60, more: 10, held_out: 16 };

/// What is asked for, and what was found.
struct Run {
    quick: bool,
    wanted: Vec<String>,
    losses: Vec<Loss>,
}

impl Run {
    fn keep(&mut self, format: &str, of: &str, measure: &str, bits: f64, value: f64) {
        println!("{of:<8} {format:<28} {bits:>6.3} bits  {measure} {value:.5}");
        self.losses.push(Loss::new(format, of, measure, bits, value));
    }

    /// The formats that are asked for, each with its own scales, and with those of each fit where it has any.
    fn formats(&self) -> Result<Vec<AnyFormat>> {
        let wanted =
            |text: &&str| self.wanted.is_empty() || self.wanted.iter().any(|part| text.contains(part.as_str()));
        let mut formats = Vec::new();
        for text in FORMATS.iter().copied().filter(wanted).step_by(if self.quick { 8 } else { 1 }) {
            let format: AnyFormat = text.parse()?;
            formats.push(format.clone());
            for fit in [Fit::search(), Fit::half_quadratic()] {
                if format.fits(fit) {
                    formats.push(Fitted::new(&format, fit)?.into());
                }
            }
        }
        Ok(formats)
    }
}

fn number(array: &Array) -> Result<f64> {
    array.eval()?;
    Ok(f64::from(array.item_exact::<f32>()))
}

/// Normal numbers over the root of the mean of `degrees` squares of such: Student's t.
fn student(shape: &[i32], degrees: i32) -> Result<Array> {
    let normal = |seed| -> Result<Array> { Ok(random::normal::<f32>(shape, None, None, &random::key(seed)?)?) };
    let mut squares = ops::zeros::<f32>(shape)?;
    for seed in 0..degrees {
        squares = squares.add(normal(200 + seed as u64)?.square()?)?;
    }
    Ok(normal(100)?.divide(squares.divide(Array::from_int(degrees))?.sqrt()?)?)
}

/// Drawn weights, as errors of themselves and of a product.
fn drawn(run: &mut Run, of: &str, weights: &Array) -> Result<()> {
    let weights = weights.as_dtype(Dtype::Bfloat16)?;
    let wide = weights.as_dtype(Dtype::Float32)?;
    let k = weights.dim(1);
    let x = random::normal::<f32>(&[64, k], None, None, &random::key(300)?)?;
    // Every hundredth channel is far larger, as some of a transformer's are.
    let sizes: Vec<f32> = (0..k).map(|channel| if channel % 100 == 7 { 20.0 } else { 1.0 }).collect();
    let x = x.multiply(Array::from_slice(&sizes, &[k]))?;
    let exact = x.matmul(wide.t())?;
    let (energy, power) = (number(&wide.square()?.sum(None)?)?, number(&exact.square()?.sum(None)?)?);
    for format in run.formats()? {
        let made = format.quantize(&weights)?;
        let bits = 8.0 * made.nbytes() as f64 / weights.size() as f64;
        let dense = made.dense()?.as_dtype(Dtype::Float32)?;
        let y = x.matmul(dense.t())?;
        let lost = number(&dense.subtract(&wide)?.square()?.sum(None)?)?;
        let lost_of_product = number(&y.subtract(&exact)?.square()?.sum(None)?)?;
        let cosine = number(&y.multiply(&exact)?.sum(None)?)? / (power * number(&y.square()?.sum(None)?)?).sqrt();
        let text = format.to_string();
        run.keep(&text, of, "error", bits, (lost / energy).sqrt());
        // What is lost of `bf16` in `bf16` is nothing.
        if lost_of_product > 0.0 {
            run.keep(&text, of, "sqnr", bits, 10.0 * (power / lost_of_product).log10());
            run.keep(&text, of, "cosine", bits, cosine);
        }
    }
    Ok(())
}

/// Bits of the weights that a format holds, and their error beside others.
fn lost(model: &Model<Decoder>, float: &Model<Decoder>) -> Result<(f64, f64)> {
    let (mut bytes, mut elements, mut lost, mut energy) = (0, 0, 0.0, 0.0);
    for (path, row) in &model.report().rows {
        if matches!(row.outcome, Outcome::Quantized { .. }) {
            (bytes, elements) = (bytes + row.after, elements + row.aval.size());
            let own = float.get(path)?.dense()?;
            lost += number(&model.get(path)?.dense()?.subtract(&own)?.square()?.sum(None)?)?;
            energy += number(&own.square()?.sum(None)?)?;
        }
    }
    Ok((8.0 * bytes as f64 / elements as f64, (lost / energy).sqrt()))
}

/// The decoder's perplexity with its weights in each format, and trained in some.
fn decoder(run: &mut Run, folder: &Path) -> Result<()> {
    let size = if run.quick { QUICK } else { FULL };
    let trainer = Trainer::new(size);
    let start = Instant::now();
    let [halfway, float] = trainer.trained(&folder.join("accuracy"))?;
    println!("the decoder took {:.0} s", start.elapsed().as_secs_f64());
    run.keep("f32", "decoder", "perplexity", 32.0, trainer.perplexity(&mut float.clone())?);
    for format in run.formats()? {
        let mut model = float.clone().quantize(QUANTIZED, &format)?;
        let (bits, error) = lost(&model, &float)?;
        let text = format.to_string();
        run.keep(&text, "decoder", "error", bits, error);
        let perplexity = trainer.perplexity(&mut model)?;
        run.keep(&text, "decoder", "perplexity", bits, perplexity);
    }
    let trained: Vec<&str> = if run.quick { vec!["ternary:64"] } else { TRAINED.to_vec() };
    let wanted = |text: &&str| run.wanted.is_empty() || run.wanted.iter().any(|part| text.contains(part.as_str()));
    for text in trained.into_iter().filter(wanted).collect::<Vec<_>>() {
        let mut model = halfway.clone().prepare(QUANTIZED, text)?;
        trainer.train(&mut model, size.common, size.more)?;
        model.convert()?;
        let (bits, _) = lost(&model, &float)?;
        let perplexity = trainer.perplexity(&mut model)?;
        run.keep(text, "decoder", "trained", bits, perplexity);
    }
    Ok(())
}

/// How long fitting takes.
fn timed(run: &mut Run) -> Result<()> {
    let extent = if run.quick { 512 } else { 4096 };
    let weights = random::normal::<f32>(&[extent, extent], None, None, &random::key(0)?)?;
    weights.eval()?;
    for text in ["nf4:64", "nf4:64+search", "nf4:64+hqq", "affine:4:64", "affine:4:64+search", "affine:4:64+hqq"] {
        let start = Instant::now();
        let made = text.parse::<AnyFormat>()?.quantize(&weights)?;
        tree::eval(&made)?;
        let seconds = start.elapsed().as_secs_f64();
        run.keep(text, "4096x4096", "seconds", 8.0 * made.nbytes() as f64 / weights.size() as f64, seconds);
    }
    Ok(())
}

fn main() -> Result<()> {
    // Dense arrays are asked for by name here.
    let _allow = Policy::Allow.scope();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let wanted = arguments.iter().filter(|argument| !argument.starts_with('-')).cloned().collect();
    let mut run = Run { quick: has("--quick"), wanted, losses: Vec::new() };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let shape: [i32; 2] = if run.quick { [64, 512] } else { [512, 1024] };
    drawn(&mut run, "normal", &random::normal::<f32>(&shape, None, None, &random::key(0)?)?)?;
    drawn(&mut run, "student", &student(&shape, 4)?)?;
    decoder(&mut run, &folder)?;
    timed(&mut run)?;
    let file = if has("--record") { root.join(accuracy::RECORDED) } else { folder.join("accuracy.jsonl") };
    accuracy::write(&file, &run.losses).map_err(|error| Error::Function(Box::new(error)))?;
    println!("{} figures in {}", run.losses.len(), file.display());
    Ok(())
}
