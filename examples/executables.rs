//! The book's chapter on executables: a decoder that is described once, and runs many times.

// ANCHOR: use
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit::compile::CompileOptions;
use tacit::executable::{Executable, Mode};
use tacit::prelude::*;

// ANCHOR_END: use

#[path = "decode_loop.rs"]
#[allow(dead_code, reason = "its `main` is the example's")]
mod decode_loop;

use decode_loop::{decoder, weights};

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 9] = [
    ("described", described),
    ("fed", fed),
    ("explained", explained),
    ("committed", committed),
    ("pipelined", pipelined),
    ("rows", rows),
    ("optional", optional),
    ("bytes", bytes),
    ("named", named),
];

fn token(token: u32) -> Array {
    Array::from_slice(&[token], &[1])
}

// ANCHOR: described
/// What the decoder says of itself.
fn described() -> Result<String> {
    let decoder = decoder(&weights()?)?;
    let inputs: Vec<String> = decoder.inputs().map(|(name, aval)| format!("{name} {aval}")).collect();
    let outputs: Vec<String> = decoder.outputs()?.iter().map(|(name, aval)| format!("{name} {aval}")).collect();
    let parameters = decoder.parameters().count();
    Ok(format!(
        "{parameters} parameters, {} unset\ninputs: {}\noutputs: {}",
        decoder.unset().len(),
        inputs.join(", "),
        outputs.join(", ")
    ))
}
// ANCHOR_END: described

// ANCHOR: fed
/// Three tokens. The cache and the position are fed: a run returns the logits, and holds the rest for the next.
fn fed() -> Result<String> {
    let mut decoder = decoder(&weights()?)?;
    let mut told = String::new();
    for word in [7, 11, 13] {
        let outputs = decoder.run(&[("token", &token(word))])?;
        let position = decoder.resident("position")?.dense()?.item_exact::<i32>();
        let logits = outputs.get("logits")?.aval()?;
        told.extend(["logits ", &logits.to_string(), ", then at position ", &position.to_string(), "\n"]);
    }
    // The run that warmed it up traced it.
    let stats = decoder.stats();
    Ok(format!("{told}calls: {}, traces: {}", stats.calls, stats.traces))
}
// ANCHOR_END: fed

// ANCHOR: explained
/// Which nodes of a run the handlers of NF4 take, and whether anything is built.
fn explained() -> Result<String> {
    let told = decoder(&weights()?)?.explain()?.to_string();
    let products: Vec<&str> = told.lines().filter(|line| line.contains("matmul")).map(str::trim).collect();
    Ok(format!("{}\n{}", products[..3].join("\n"), told.lines().last().unwrap_or_default().trim()))
}
// ANCHOR_END: explained

// ANCHOR: committed
/// The host prepares something while the decoder computes.
fn committed() -> Result<String> {
    let mut decoder = decoder(&weights()?)?;
    decoder.commit(&[("token", &token(7))])?;
    let meanwhile: u64 = (1..=1000).sum();
    let outputs = decoder.wait()?;
    Ok(format!("{meanwhile} meanwhile, and {}", outputs.get("logits")?))
}
// ANCHOR_END: committed

// ANCHOR: pipelined
/// A prompt: the graph of each token is built while the one before it is computed.
fn pipelined() -> Result<String> {
    let weights = weights()?;
    let (mut one_by_one, mut ahead) = (decoder(&weights)?, decoder(&weights)?);
    let prompt: Vec<[Array; 1]> = (1..9).map(|word| [token(word)]).collect();
    let mut last = None;
    for outputs in ahead.run_pipelined(&prompt) {
        last = Some(outputs?.get("logits")?.dense()?);
    }
    let mut expected = None;
    for [word] in &prompt {
        expected = Some(one_by_one.run(&[("token", word)])?.get("logits")?.dense()?);
    }
    let same = match (last, expected) {
        (Some(last), Some(expected)) => last.eq_exact(&expected)?,
        _ => false,
    };
    Ok(format!("{} tokens, as one by one: {same}", prompt.len()))
}
// ANCHOR_END: pipelined

// ANCHOR: classifier
/// Rows of 64 features to ten classes, for batches of up to eight.
fn classifier(options: CompileOptions, mode: Mode) -> Result<Executable<'static>> {
    let mut classifier = Executable::builder("classifier")
        .parameter("weight", Aval::new(&[10, 64], Dtype::Float32))
        .input("rows", Aval::new(&[8, 64], Dtype::Float32))
        .optional("temperature", Array::from_f32(1.0))
        .output("classes")
        .mode(mode)
        .options(options)
        .build(|given| {
            let logits = given.get("rows")?.matmul(given.get("weight")?.t())?;
            Ok(vec![ops::softmax_axis(logits.divide(given.get("temperature")?)?, -1, None)?])
        })?;
    let weight = ops::arange::<_, f32>(0, 640, None)?.reshape(&[10, 64])?.sin()?;
    classifier.set_parameter("weight", Nf4Array::quantize(&weight, 64)?)?;
    Ok(classifier)
}
// ANCHOR_END: classifier

fn features() -> Result<Array> {
    Ok(ops::arange::<_, f32>(0, 512, None)?.reshape(&[8, 64])?.cos()?)
}

// ANCHOR: rows
/// A batch is padded to eight rows, and only those that are there are computed: one trace for all of them.
fn rows() -> Result<String> {
    let shapeless = CompileOptions { shapeless: true, ..CompileOptions::default() };
    let mut classifier = classifier(shapeless, Mode::Compiled)?;
    let mut avals = Vec::new();
    for actual in [8, 3, 5] {
        classifier.active_extent(actual, 8)?;
        avals.push(classifier.run(&[("rows", &features()?)])?.get("classes")?.aval()?.to_string());
    }
    Ok(format!("{}; traces: {}", avals.join(", "), classifier.stats().traces))
}
// ANCHOR_END: rows

// ANCHOR: optional
/// The temperature is 1, but for the run that says otherwise.
fn optional() -> Result<String> {
    let mut classifier = classifier(CompileOptions::default(), Mode::Compiled)?;
    let (rows, hot) = (features()?, Array::from_f32(100.0));
    let mut surest = |given: &[(&str, &Array)]| -> Result<String> {
        let classes = classifier.run(given)?.get("classes")?.dense()?;
        Ok(format!("{:.2}", classes.try_index((0, ..))?.max(None)?.item_exact::<f32>()))
    };
    let told =
        [surest(&[("rows", &rows)])?, surest(&[("rows", &rows), ("temperature", &hot)])?, surest(&[("rows", &rows)])?];
    Ok(told.join(", "))
}
// ANCHOR_END: optional

// ANCHOR: bytes
/// Elements of another program's memory go in, and the classes come out into memory of the host.
fn bytes() -> Result<String> {
    let mut classifier = classifier(CompileOptions::default(), Mode::Compiled)?;
    let received: Vec<u8> = (0..8 * 64).flat_map(|i| (i as f32).cos().to_ne_bytes()).collect();
    let rows = classifier.array_from_bytes("rows", &received)?;
    let mut classes = vec![0u8; 8 * 10 * 4];
    classifier.run_into(&[&rows], &mut [&mut classes])?;
    let (first, _) = classes.as_chunks::<4>();
    let total: f32 = first.iter().take(10).map(|bytes| f32::from_ne_bytes(*bytes)).sum();
    Ok(format!("the first row sums to {total:.3}"))
}
// ANCHOR_END: bytes

// ANCHOR: named
/// A run in the eager mode names the node that fails.
fn named() -> Result<String> {
    let mut loss = Executable::builder("loss")
        .input("weight", Aval::new(&[4, 64], Dtype::Float32))
        .output("loss")
        .mode(Mode::Eager)
        .build(|given| {
            let rounded = Nf4Array::quantize(&given.get("weight")?.log()?, 64)?;
            Ok(vec![implicit((ops::ones::<f32>(&[1, 64])?, rounded), |(x, w)| x.matmul(w.t())?.sum(None))?.dense()?])
        })?;
    let error = loss.run(&[("weight", &Array::from_f32(-1.0))]).expect_err("its logarithm is not a number");
    Ok(error.to_string())
}
// ANCHOR_END: named

#[allow(dead_code, reason = "the test of the book calls the sections one by one")]
fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("## {title}\n{}\n", section()?);
    }
    Ok(())
}
