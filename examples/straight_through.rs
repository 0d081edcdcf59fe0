//! The book's third chapter: training a layer for the two bits that it will be held in.

// ANCHOR: use
use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, nn, ops, random, transforms};
use tacit::format::Affine;
use tacit::prelude::*;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 3] = [("passed", passed), ("denied", denied), ("coded", coded)];

// ANCHOR: passed
/// The sum of all elements of a matrix, as it is and in two bits, and the gradient of the latter.
fn passed() -> Result<String> {
    let master = ops::arange::<_, f32>(0, 64, None)?.square()?.reshape(&[2, 32])?;
    let x = ops::ones::<f32>(&[1, 32])?;
    let plain = x.matmul(master.t())?.sum(None)?;

    let quantized_sum = move |master: &Array| -> Result<Array> {
        let w = ste(master, |w| AffineArray::quantize(w, Affine { bits: 2, group: 32 }))?;
        implicit((&x, w), |(x, w)| x.matmul(w.t())?.sum(None))?.dense()
    };
    let quantized = quantized_sum(&master)?;
    let gradient = transforms::grad(move |master: &Array| Ok(quantized_sum(master)?))(&master)?;
    Ok(format!(
        "sum: {:.0} plain, {:.0} quantized\ngradient: {} to {}",
        plain.item_exact::<f32>(),
        quantized.item_exact::<f32>(),
        gradient.min(None)?.item_exact::<f32>(),
        gradient.max(None)?.item_exact::<f32>()
    ))
}
// ANCHOR_END: passed

// ANCHOR: task
/// 256 examples of 64 features that move together, and 8 targets that are linear in them.
fn task() -> Result<(Array, Array)> {
    random::seed(7)?;
    let normal = |shape: &[i32]| random::normal::<f32>(shape, None, None, None);
    let shared = normal(&[256, 8])?.matmul(normal(&[8, 64])?)?;
    let x = shared.add(normal(&[256, 64])?.multiply(Array::from_f32(0.3))?)?;
    let y = x.matmul(normal(&[64, 8])?)?;
    Ok((x, y))
}
// ANCHOR_END: task

// ANCHOR: rule
/// Which parameters are quantized, and how.
fn two_bits(path: &str, parameter: &Array) -> Result<Option<Value>> {
    Ok(if path.ends_with("weight") {
        Some(AffineArray::quantize(parameter, Affine { bits: 2, group: 32 })?.into())
    } else {
        None
    })
}
// ANCHOR_END: rule

// ANCHOR: float_loss
fn layer() -> Result<nn::Linear> {
    random::seed(1)?;
    Ok(nn::LinearBuilder::new(64, 8).bias(false).build()?)
}

/// The mean squared error of the layer with its float weight.
fn float_loss(model: &mut nn::Linear, (x, y): (&Array, &Array)) -> Result<Array, Exception> {
    model.forward(x)?.subtract(y)?.square()?.mean(None)
}
// ANCHOR_END: float_loss

// ANCHOR: quantized_loss
/// The same of the layer with its weight in two bits, as it is at this step.
fn quantized_loss(model: &mut nn::Linear, batch: (&Array, &Array)) -> Result<Array, Exception> {
    let weights = straight_through(model, two_bits)?;
    Ok(with_parameters(model, &weights, |model| float_loss(model, batch))?.dense()?)
}
// ANCHOR_END: quantized_loss

// ANCHOR: train
type Loss = fn(&mut nn::Linear, (&Array, &Array)) -> Result<Array, Exception>;

/// Trains with mlx-rs's own optimizer, and returns the last loss.
fn train(model: &mut nn::Linear, loss: Loss, steps: usize, learning_rate: f32) -> Result<f32> {
    let (x, y) = task()?;
    let mut optimizer = Adam::new(learning_rate);
    let mut step = nn::value_and_grad(loss);
    let mut last = f32::NAN;
    for _ in 0..steps {
        let (value, gradients) = step(model, (&x, &y))?;
        optimizer.update(model, gradients)?;
        transforms::eval_params(model.parameters())?;
        last = value.item_exact();
    }
    Ok(last)
}
// ANCHOR_END: train

// ANCHOR: denied
/// One step, both passes of it, where building the dense weight would be an error.
fn denied() -> Result<String> {
    let mut model = layer()?;
    let _guard = Policy::Deny.scope();
    let (last, counters) = Counters::during(|| train(&mut model, quantized_loss, 1, 1e-4));
    last?;
    Ok(format!("{} bytes materialized", counters.materialized_bytes))
}
// ANCHOR_END: denied

// ANCHOR: compared
/// Mean squared errors on the task.
#[derive(Debug)]
pub(crate) struct Errors {
    pub(crate) float32: f32,
    pub(crate) quantized_after_training: f32,
    pub(crate) quantization_aware: f32,
}

/// Trains in float32, quantizes that, and trains on with the quantization in place.
pub(crate) fn compared() -> Result<Errors> {
    let (x, y) = task()?;
    let mut model = layer()?;
    let float32 = train(&mut model, float_loss, 600, 2e-2)?;
    let quantized_after_training = quantized_loss(&mut model, (&x, &y))?.item_exact();
    train(&mut model, quantized_loss, 300, 1e-4)?;
    let quantization_aware = quantized_loss(&mut model, (&x, &y))?.item_exact();
    Ok(Errors { float32, quantized_after_training, quantization_aware })
}
// ANCHOR_END: compared

// ANCHOR: coded
/// The layer trained as codes of 8 bits: no float master is kept.
fn coded() -> Result<String> {
    let (x, y) = task()?;
    let mut model = Model::new(layer()?)?.prepare("weight", "int8+stochastic")?;
    let (mut optimizer, mut losses) = (Adam::new(2e-2), Vec::new());
    for _ in 0..200 {
        let (loss, gradients) = model.value_and_grad(ParameterFilter::default(), (&x, &y), |model, (x, y)| {
            model.forward(x)?.subtract(y)?.square()?.mean(None)
        })?;
        model.update(&mut optimizer, &gradients)?;
        model.eval()?;
        losses.push(loss.item_exact::<f32>());
    }
    let trained = format!("{}, {} bytes", model.get("weight")?, model.nbytes());
    model.convert()?;
    let converted = format!("{}, {} bytes", model.get("weight")?, model.nbytes());
    Ok(format!("{trained}\n{converted}\nthe loss is less than a tenth: {}", losses[199] < 0.1 * losses[0]))
}
// ANCHOR_END: coded

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    let Errors { float32, quantized_after_training, quantization_aware } = compared()?;
    println!("== compared\nfloat32: {float32:.1}");
    println!("quantized after training: {quantized_after_training:.1}");
    println!("quantization-aware: {quantization_aware:.1}");
    Ok(())
}
