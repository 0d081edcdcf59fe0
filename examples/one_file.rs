//! A decoder from one GGUF file: its perplexity on a text as it is stored and in other formats, as a table and as a drawing.
//!
//!     TACIT_GEMMA_TERMS=accepted bash tests/scripts/gemma.sh
//!     cargo run --features text --example one_file -- target/gemma/gemma-3-270m-q4_k_m.gguf TEXT DRAWING.svg

use std::path::Path;
use std::{env, fs};

// ANCHOR: use
use mlx_rs::Array;
use tacit::decoders::{Config, Decoder, load, token_losses};
use tacit::io::Gguf;
use tacit::model::Outcome;
use tacit::prelude::*;
use tokenizers::Tokenizer;
// ANCHOR_END: use
use tacit_drawing::{Point, Scatter};

/// The rows of tokens that losses are averaged over, and the tokens of one.
const ROWS: usize = 2;
const LENGTH: usize = 512;

// ANCHOR: patterns
const LAYERS: &str = "model.layers.*_proj.weight";
const EMBEDDING_TOO: &str = "{model.layers.*_proj,model.embed_tokens}.weight";
// ANCHOR_END: patterns

/// What weights become, and which; the others stay as they are in the file.
const WAYS: [(&str, &str); 10] = [
    ("int8:64", LAYERS),
    ("affine:6:64", LAYERS),
    ("nf4:64", LAYERS),
    ("nf4:64+search", LAYERS),
    ("nf4:64+hqq", LAYERS),
    ("affine:4:64", LAYERS),
    ("affine:4:64+search", LAYERS),
    ("mxfp4", LAYERS),
    ("nf4:64", EMBEDDING_TOO),
    ("nf4:64+search", EMBEDDING_TOO),
];

// ANCHOR: tokens
/// The tokens of a text in rows, each of which begins as a text does.
fn tokens(file: &Path, text: &str) -> Result<Array> {
    let tokenizer = Gguf::open(file)?.tokenizer()?.line();
    let wrong =
        |error: tokenizers::Error| Error::invalid(format!("the tokenizer: {error}"), "give another file or text");
    let encoding =
        Tokenizer::from_bytes(tokenizer).and_then(|tokenizer| tokenizer.encode(text, true)).map_err(wrong)?;
    let (begin, ids) = match encoding.get_ids() {
        [begin, ids @ ..] if ids.len() >= ROWS * (LENGTH - 1) => (*begin, ids),
        few => return Err(Error::invalid(format!("the text has {} tokens", few.len()), "give one of 1,023 or more")),
    };
    let rows = ids.chunks_exact(LENGTH - 1).take(ROWS).flat_map(|row| [&[begin], row].concat());
    Ok(Array::from_slice(&rows.collect::<Vec<_>>(), &[ROWS as i32, LENGTH as i32]))
}
// ANCHOR_END: tokens

// ANCHOR: perplexity
fn perplexity(config: &Config, model: &mut Model<Decoder>, tokens: &Array) -> Result<f64> {
    let _deny = Policy::Deny.scope();
    let loss = token_losses(config, model, tokens)?.mean(None)?;
    loss.eval()?;
    Ok(f64::from(loss.item_exact::<f32>()).exp())
}
// ANCHOR_END: perplexity

// ANCHOR: quantized
/// The model of a file with some of its weights quantized anew.
fn quantized(file: &Path, format: &str, which: &str) -> Result<(Config, Model<Decoder>)> {
    let (config, mut model) = load(file)?;
    model.replace(which, |_, codes| Ok(Some(codes.dense()?.into())))?;
    Ok((config, model.quantize(which, format)?))
}
// ANCHOR_END: quantized

/// The bits of a parameter.
fn bits(model: &Model<Decoder>) -> f64 {
    let elements: usize = model.avals().values().map(tacit::Aval::size).sum();
    8.0 * model.nbytes() as f64 / elements as f64
}

/// The error of the weights that were quantized, of which each counts the same; nothing where none was.
fn error(model: &Model<Decoder>) -> Option<f64> {
    let report = model.report();
    let errors = report.rows.values().filter_map(|row| match row.outcome {
        Outcome::Quantized { error, .. } => Some(error),
        _ => None,
    });
    let errors: Vec<f64> = errors.collect();
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

fn main() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let given: Vec<String> = env::args().skip(1).collect();
    let [file, text, drawing] = &given[..] else {
        return Err(Error::invalid("three arguments are needed", "give a GGUF file, a text and the file of a drawing"));
    };
    let [file, text, drawing] = [file, text, drawing].map(Path::new);
    let tokens = tokens(file, &fs::read_to_string(text).map_err(Error::file("read", text))?)?;
    let mut points = Vec::new();
    println!("{:<20} {:<16} {:>6} {:>8} {:>11}", "format", "of", "bits", "error", "perplexity");
    for way in [None].into_iter().chain(WAYS.map(Some)) {
        let (config, mut model) = way.map_or_else(|| load(file), |(format, which)| quantized(file, format, which))?;
        let bits = bits(&model);
        let error = error(&model).map_or(String::new(), |error| format!("{error:.4}"));
        let perplexity = perplexity(&config, &mut model, &tokens)?;
        let format = way.map_or("as stored", |(format, _)| format);
        let (kind, of) = match way {
            None => (0, "all"),
            Some((_, LAYERS)) => (1, "layers"),
            Some(_) => (2, "with embedding"),
        };
        println!("{format:<20} {of:<16} {bits:>6.2} {error:>8} {perplexity:>11.3}");
        points.push(Point { label: format.to_owned(), kind, x: bits, y: perplexity });
    }
    let kinds = [("#7d8590", "as stored"), ("#2f81f7", "layers quantized"), ("#d9601a", "and the embedding")];
    let drawn = Scatter {
        title: "Perplexity of Gemma 3 270M by bits".to_owned(),
        across: "bits a parameter".to_owned(),
        upwards: "perplexity".to_owned(),
        kinds: kinds.map(|(color, name)| (color, name.to_owned())).to_vec(),
        points,
    };
    fs::write(drawing, drawn.to_svg()).map_err(Error::file("write", drawing))
}
