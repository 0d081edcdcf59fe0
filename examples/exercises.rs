//! Answers to the exercises at the end of the book's chapters, one function for each.

use mlx_rs::error::Exception;
use mlx_rs::module::Module;
use mlx_rs::{Array, nn, ops, random};
use tacit::arrays::Lora;
use tacit::compile::{Options, compile_with};
use tacit::format::{Format, PackedArray, Quantizer, Scheme, TextForm};
use tacit::op::Matmul;
use tacit::prelude::*;
use tacit::register::{register_array, register_format};

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapters' order.
pub(crate) const SECTIONS: [Section; 9] = [
    ("eight_bits", eight_bits),
    ("allowed", allowed),
    ("repeated", repeated),
    ("three_values", three_values),
    ("late", late),
    ("unequal", unequal),
    ("frozen_key", frozen_key),
    ("traces", traces),
    ("nested", nested),
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
        let mut linear = Model::new(linear)?;
        linear.apply(&Rules::from_toml(&format!("weight = '{format}'"))?)?;
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
        Counters::of(|| linear.run(|linear| linear.weight.sum(None)))
    };
    sum?;
    Ok(format!(
        "{} bytes built, and {} afterwards",
        counters.materialized_bytes,
        Counters::of(|| linear.forward(&x)).1.materialized_bytes
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
    let mut model = Model::new(attention)?;
    model.apply(&Rules::from_toml(rules)?)?;
    Ok(model.report().to_string())
}
// ANCHOR_END: unequal

// ANCHOR: frozen_key
/// A key is an argument like any other.
fn frozen_key() -> Result<String> {
    let noise = |key: Array| random::normal::<f32>(&[2], None, None, &key);
    let mut noise = compile_with(noise, Options::default());
    let [a, b] = [1, 2].map(|seed| noise.call(&random::key(seed)?.into())?.dense());
    Ok(format!("other numbers: {}, traces: {}", !a?.eq_exact(&b?)?, noise.stats().traces))
}
// ANCHOR_END: frozen_key

// ANCHOR: traces
fn traces() -> Result<String> {
    let mut found = Vec::new();
    for shapeless in [false, true] {
        let options = Options { shapeless, ..Options::default() };
        let mut scaled = compile_with(|x: Array| x.multiply(Array::from_f32(2.0))?.sum_axis(-1, false), options);
        for rows in [2, 3, 2, 5] {
            scaled.call(&ops::ones::<f32>(&[rows, 4])?.into())?;
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

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
