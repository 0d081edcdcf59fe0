//! The book's first chapter: a layer of mlx-rs whose weight is held in four bits.

// ANCHOR: use
use mlx_rs::module::Module;
use mlx_rs::{Array, nn, random};
use tacit::prelude::*;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 6] = [
    ("ten_lines", ten_lines),
    ("value", value),
    ("closure", closure),
    ("explained", explained),
    ("denied", denied),
    ("module", module),
];

// ANCHOR: ten_lines
fn ten_lines() -> Result<String> {
    let x = random::normal::<f32>(&[2, 256], None, None, None)?;
    let layer = nn::Linear::new(256, 512)?;
    let mut layer = Model::new(layer)?.quantize("weight", Nf4 { block: 64, double: false })?;

    let _guard = Policy::Deny.scope(); // From here on, building the dense weight is an error.
    let y = layer.forward(&x)?;
    Ok(format!("{} from {} bytes", Aval::from(&y), layer.nbytes()))
}
// ANCHOR_END: ten_lines

// ANCHOR: layer
/// A layer as any mlx-rs program has it, and something to put in.
fn layer() -> Result<(nn::Linear, Array)> {
    random::seed(0)?;
    let linear = nn::Linear::new(256, 512)?;
    let x = random::normal::<f32>(&[2, 256], None, None, None)?;
    Ok((linear, x))
}
// ANCHOR_END: layer

// ANCHOR: value
fn value() -> Result<String> {
    let (linear, _) = layer()?;
    let dense = &*linear.weight;
    let weight = Value::from(Nf4Array::quantize(dense, 64)?);
    Ok(format!("{weight} holds {} bytes instead of {}", weight.nbytes(), dense.nbytes()))
}
// ANCHOR_END: value

// ANCHOR: closure
fn closure() -> Result<String> {
    let (linear, x) = layer()?;
    let weight = Nf4Array::quantize(&linear.weight, 64)?;
    let y = implicit((x, weight), |(x, w)| x.matmul(w.t()))?;
    Ok(y.to_string())
}
// ANCHOR_END: closure

// ANCHOR: rule
/// The layer with its weight in four bits.
fn four_bits(linear: nn::Linear) -> Result<Model<nn::Linear>> {
    Model::new(linear)?.quantize("weight", Nf4 { block: 64, double: false })
}
// ANCHOR_END: rule

// ANCHOR: explained
fn explained() -> Result<String> {
    let (linear, x) = layer()?;
    let mut linear = four_bits(linear)?;
    let explanation = linear.explain(|linear| linear.forward(&x))?;
    Ok(explanation.to_string())
}
// ANCHOR_END: explained

// ANCHOR: denied
fn denied() -> Result<String> {
    let (linear, x) = layer()?;
    let mut linear = four_bits(linear)?;

    let _guard = Policy::Deny.scope();
    let (y, counters) = Counters::during(|| linear.forward(&x));
    y?;
    let refused = linear.run(|linear| linear.weight.sum(None));
    Ok(format!(
        "forward: {} calls handled, {} bytes materialized\nsum: {}",
        counters.handled,
        counters.materialized_bytes,
        refused.expect_err("no handler takes the sum of an Nf4Array")
    ))
}
// ANCHOR_END: denied

// ANCHOR: module
fn module() -> Result<String> {
    let (mut linear, x) = layer()?;
    let expected = linear.forward(&x)?;
    let mut linear = four_bits(linear)?;
    let y = linear.forward(&x)?;
    Ok(format!("{} bytes, {:.1} % off", linear.nbytes(), 100.0 * relative_error(&y, &expected)?))
}

/// The length of the difference in terms of the length of what was expected.
fn relative_error(y: &Array, expected: &Array) -> Result<f32> {
    let length = |array: &Array| array.square()?.sum(None)?.sqrt();
    Ok(length(&y.subtract(expected)?)?.divide(length(expected)?)?.item_exact::<f32>())
}
// ANCHOR_END: module

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
