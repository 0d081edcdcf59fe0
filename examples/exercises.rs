//! Answers to the exercises at the end of the book's chapters, one function for each.

use mlx_rs::error::Exception;
use mlx_rs::module::Module;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, nn, ops, random};
use tacit::arrays::{Lora, Prepared};
use tacit::compile::{CompileOptions, compile_with};
use tacit::format::{Format, PackedArray, Scheme, TextForm};
use tacit::io::Training;
use tacit::model::QatConfig;
use tacit::prelude::*;
use tacit::primitives::Matmul;
use tacit::register::{register_array, register_format};
use tacit::{Tree, compile};

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapters' order.
pub(crate) const SECTIONS: [Section; 13] = [
    ("eight_bits", eight_bits),
    ("allowed", allowed),
    ("repeated", repeated),
    ("three_values", three_values),
    ("late", late),
    ("unequal", unequal),
    ("frozen_key", frozen_key),
    ("traces", traces),
    ("nested", nested),
    ("halted", halted),
    ("unmerged", unmerged),
    ("partly", partly),
    ("counted_on", counted_on),
];

fn layer() -> Result<(nn::Linear, Array)> {
    random::seed(0)?;
    Ok((nn::Linear::new(256, 512)?, random::normal::<f32>(&[2, 256], None, None, None)?))
}

fn relative_error(y: &Array, expected: &Array) -> Result<f32> {
    let length = |array: &Array| array.square()?.sum(None)?.sqrt();
    Ok(length(&y.subtract(expected)?)?.divide(length(expected)?)?.item_exact::<f32>())
}

// ANCHOR: eight_bits
fn eight_bits() -> Result<String> {
    let mut lines = Vec::new();
    for format in ["nf4:64", "int8"] {
        let (mut linear, x) = layer()?;
        let expected = linear.forward(&x)?;
        let mut linear = Model::new(linear)?.quantize("weight", format)?;
        let error = relative_error(&linear.forward(&x)?, &expected)?;
        lines.push(format!("{format}: {} bytes, {:.1} % off", linear.nbytes(), 100.0 * error));
    }
    Ok(lines.join("\n"))
}
// ANCHOR_END: eight_bits

// ANCHOR: allowed
fn allowed() -> Result<String> {
    let (linear, x) = layer()?;
    let mut linear = Model::new(linear)?.quantize("weight", Nf4 { block: 64, double: false })?;
    let _deny = Policy::Deny.scope();
    linear.forward(&x)?;
    let (sum, counters) = {
        // The guard in force is the last one that lives.
        let _allow = Policy::Allow.scope();
        Counters::during(|| linear.run(|linear| linear.weight.sum(None)))
    };
    sum?;
    Ok(format!(
        "{} bytes built, and {} afterwards",
        counters.materialized_bytes,
        Counters::during(|| linear.forward(&x)).1.materialized_bytes
    ))
}
// ANCHOR_END: allowed

// ANCHOR: repeated
/// A matrix whose rows are all the same one.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Repeated")]
struct Repeated {
    /// `f32[1, k]`
    row: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Repeated {
    fn materialize(&self) -> Result<Value> {
        Ok(ops::broadcast_to(&self.row, &self.aval.shape)?.into())
    }
}

/// `x W` has, in each row, the sum of a row of `x` times the row.
#[handler]
fn matmul_repeated(_: &Matmul, x: &Array, w: &Repeated) -> Result<Array> {
    Ok(x.sum_axis(-1, true)?.multiply(&w.row)?)
}

fn repeated() -> Result<String> {
    let row = ops::ones::<f32>(&[1, 64])?;
    let w = Repeated { aval: Aval::new(&[4096, 64], row.dtype()), row };
    let _deny = Policy::Deny.scope();
    Ok(explain((ops::ones::<f32>(&[2, 4096])?, w), |(x, w)| x.matmul(w))?.to_string())
}
// ANCHOR_END: repeated

// ANCHOR: three_values
static THREE: [f32; 4] = [-1.0, 0.0, 0.0, 1.0];

/// Three values in two bits, the scale being the largest magnitude of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Three;

impl Format for Three {
    const SAVED_AS: &'static str = "book.Three";

    fn scheme(&self) -> Scheme {
        Scheme::codebook(Self::NAME, &THREE)
    }

    fn block(&self) -> usize {
        64
    }
}

impl TextForm for Three {
    const NAME: &'static str = "three";
    const FORMS: &'static str = "three";

    fn options(&self) -> String {
        String::new()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        options.is_empty().then_some(Self)
    }
}

register_format!(Three);
register_array!(PackedArray<Three>);

fn three_values() -> Result<String> {
    let w = random::normal::<f32>(&[64, 256], None, None, &random::key(1)?)?;
    let _allow = Policy::Allow.scope();
    let error = |packed: Value| relative_error(&packed.dense()?, &w);
    let (three, ternary) =
        (error(Three.quantize(&w)?)?, error("ternary".parse::<tacit::format::AnyFormat>()?.quantize(&w)?)?);
    Ok(format!("by the largest: {:.0} %, by the mean: {:.0} %", 100.0 * three, 100.0 * ternary))
}
// ANCHOR_END: three_values

// ANCHOR: late
/// Floats first; the switch is no other model, so an optimizer keeps its state.
fn late() -> Result<String> {
    let (mut linear, x) = layer()?;
    let float = linear.forward(&x)?;
    let mut model = Model::new(linear)?.prepare("weight", Affine { bits: 2, group: 64 })?;
    model.switch_quantization(false)?;
    let before = relative_error(&model.forward(&x)?, &float)?;
    model.switch_quantization(true)?;
    let after = relative_error(&model.forward(&x)?, &float)?;
    Ok(format!("{before:.1} off before, more than 0.2 after: {}", after > 0.2))
}
// ANCHOR_END: late

// ANCHOR: unequal
fn unequal() -> Result<String> {
    let rules = "
        '{query,key}_proj.weight' = 'affine:8:64'
        '*.weight' = 'affine:4:64'
    ";
    random::seed(0)?;
    let attention = nn::MultiHeadAttention::new(128, 4).map_err(|error| Exception::custom(error.to_string()))?;
    let model = Model::new(attention)?.quantize("*", &Rules::from_toml(rules)?)?;
    Ok(model.report().to_string())
}
// ANCHOR_END: unequal

// ANCHOR: frozen_key
/// A key is an argument like any other.
fn frozen_key() -> Result<String> {
    let noise = |key: Array| random::normal::<f32>(&[2], None, None, &key);
    let mut noise = compile_with(CompileOptions::default(), noise);
    let [a, b] = [1, 2].map(|seed| noise.call(&random::key(seed)?)?.dense());
    Ok(format!("other numbers: {}, traces: {}", !a?.eq_exact(&b?)?, noise.stats().traces))
}
// ANCHOR_END: frozen_key

// ANCHOR: traces
fn traces() -> Result<String> {
    let mut found = Vec::new();
    for shapeless in [false, true] {
        let options = CompileOptions { shapeless, ..CompileOptions::default() };
        let mut scaled = compile_with(options, |x: Array| x.multiply(Array::from_f32(2.0))?.sum_axis(-1, false));
        for rows in [2, 3, 2, 5] {
            scaled.call(&ops::ones::<f32>(&[rows, 4])?)?;
        }
        found.push(format!("shapeless {shapeless}: {}", scaled.stats().traces));
    }
    Ok(found.join("\n"))
}
// ANCHOR_END: traces

// ANCHOR: nested
fn nested() -> Result<String> {
    let base = Nf4 { block: 64, double: true }.quantize(&ops::ones::<f32>(&[64, 64])?)?;
    let w = Lora::new(base, ops::ones::<f32>(&[4, 64])?, ops::zeros::<f32>(&[64, 4])?, 8.0)?;
    let _deny = Policy::Deny.scope();
    Ok(explain((ops::ones::<f32>(&[2, 64])?, w), |(x, w)| x.matmul(w.t()))?.to_string())
}
// ANCHOR_END: nested

// ANCHOR: halted
/// Scales that are frozen: the part that is trained leaves them out.
fn halted() -> Result<String> {
    let (linear, x) = layer()?;
    let aware = QatConfig::new(Affine { bits: 2, group: 64 }).trained_scales();
    let mut model = Model::new(linear)?.prepare("weight", aware)?;
    let mut optimizer = Adam::new(1e-3);
    let mut moved = Vec::new();
    for part in [ParameterFilter::default().or(ParameterFilter::Scales), ParameterFilter::default()] {
        let before = model.get("weight")?.downcast::<Prepared>().map(|w| (w.master().clone(), w.scales().cloned()));
        let loss = |model: &mut Model<nn::Linear>, x: &Array| model.forward(x)?.square()?.mean(None);
        let (_, gradients) = model.value_and_grad(part, &x, loss)?;
        model.update(&mut optimizer, &gradients)?;
        let after = model.get("weight")?.downcast::<Prepared>().map(|w| (w.master().clone(), w.scales().cloned()));
        let (Some((a, Some(b))), Some((c, Some(d)))) = (before, after) else { continue };
        moved.push(format!("the masters moved: {}, the scales: {}", !a.eq_exact(&c)?, !b.eq_exact(&d)?));
    }
    Ok(moved.join("\n"))
}
// ANCHOR_END: halted

// ANCHOR: unmerged
/// A merge that is taken back.
fn unmerged() -> Result<String> {
    let (linear, x) = layer()?;
    let nf4 = Nf4 { block: 64, double: false };
    let mut model = Model::new(linear)?.quantize("weight", nf4)?.lora("weight", LoraConfig::default())?;
    let b = random::normal::<f32>(&[512, 16], None, None, None)?;
    model.set_leaves([("weight.b".to_owned(), b)])?;
    let adapted = model.forward(&x)?;
    let report = model.merge(nf4)?;
    let merged = model.forward(&x)?;
    model.unmerge(report)?;
    let back = model.forward(&x)?;
    Ok(format!("merged: {}, taken back: {}", merged.eq_exact(&adapted)?, back.eq_exact(&adapted)?))
}
// ANCHOR_END: unmerged

// ANCHOR: partly
/// A run whose base never changes saves what is trained, and makes the rest again.
fn partly() -> Result<String> {
    let adapted = || -> Result<Model<nn::Linear>> {
        let nf4 = Nf4 { block: 64, double: false };
        Model::new(layer()?.0)?.quantize("weight", nf4)?.lora("weight", LoraConfig::default())
    };
    let file = |name: &str| std::env::temp_dir().join(format!("tacit-book-{name}-{}", std::process::id()));
    let (whole, part) = (file("whole"), file("part"));
    let model = adapted()?;
    Training::new(1).with_model(&model, &ParameterFilter::All)?.save(&whole)?;
    Training::new(1).with_model(&model, &ParameterFilter::Lora)?.save(&part)?;
    let restored = Training::load(&part).and_then(|run| run.restore_model(&mut adapted()?));
    let bytes = [&whole, &part].map(|file| std::fs::metadata(file).map_or(0, |file| file.len()));
    drop((std::fs::remove_file(&whole), std::fs::remove_file(&part)));
    restored?;
    Ok(format!("the part takes less than two thirds of the whole: {}", 3 * bytes[1] < 2 * bytes[0]))
}
// ANCHOR_END: partly

// ANCHOR: counted_on
/// A number of the program is part of the structure, an array is not.
fn counted_on() -> Result<String> {
    #[derive(Tree, Clone)]
    struct At<L = Array> {
        x: L,
        place: L,
        #[tree(static)]
        number: usize,
    }
    let mut of_number = compile(|at: At| at.x.multiply(Array::from_f32(at.number as f32)));
    let mut of_place = compile(|at: At| at.x.multiply(at.place));
    for step in 0..10 {
        let (x, place) = (Array::from_f32(1.0).into(), Array::from_f32(step as f32).into());
        let at: At<Value> = At { x, place, number: step };
        of_number.call(&at)?;
        of_place.call(&At { number: 0, ..at })?;
    }
    Ok(format!("of a number: {} traces, of an array: {}", of_number.stats().traces, of_place.stats().traces))
}
// ANCHOR_END: counted_on

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
