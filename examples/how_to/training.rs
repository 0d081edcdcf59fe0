//! Recipes of training: what moves, in what precision, and how long.

// ANCHOR: use
use mlx_rs::builder::Builder;
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::optimizers::{Adam, LionBuilder, Optimizer};
use mlx_rs::{Array, nn, ops, random};
use tacit::arrays::saved;
use tacit::format::Int8;
use tacit::io::{CheckpointRotation, Training};
use tacit::model::training::{Accumulated, EarlyStopping, Schedule, Verdict, chunked_cross_entropy, clip_by_norm};
use tacit::model::{Apollo, QatConfig, QuantizedState};
use tacit::prelude::*;
use tacit::transform::value_and_grad;

// ANCHOR_END: use
use super::{Section, model};

pub(super) const SECTIONS: [Section; 9] = [
    ("frozen", frozen),
    ("thawed", thawed),
    ("looped", looped),
    ("vocabulary", vocabulary),
    ("moments", moments),
    ("drawn", drawn),
    ("low_rank", low_rank),
    ("activations", activations),
    ("int8_training", int8_training),
];

// ANCHOR: frozen
/// A step that moves the last layer alone.
fn frozen() -> Result<String> {
    let mut model = model()?;
    let last = ParameterFilter::Paths("layers.3.*".parse()?);
    let x = ops::ones::<f32>(&[4, 128])?;
    let (_loss, gradients) = model.value_and_grad(last, &x, |m, x| m.forward(x)?.square()?.mean(None))?;
    model.update(&mut Adam::new(1e-3), &gradients)?;
    let mut paths: Vec<_> = gradients.keys().map(ToString::to_string).collect();
    paths.sort();
    Ok(paths.join("\n"))
}
// ANCHOR_END: frozen

// ANCHOR: thawed
/// Everything that can be trained; codes never are.
fn thawed() -> Result<String> {
    let mut model = model()?.quantize("layers.0.weight", Nf4 { block: 64, double: false })?;
    let x = ops::ones::<f32>(&[4, 128])?;
    let everything = ParameterFilter::default();
    let (_loss, gradients) = model.value_and_grad(everything, &x, |m, x| m.forward(x)?.square()?.mean(None))?;
    let mut paths: Vec<_> = gradients.keys().map(ToString::to_string).collect();
    paths.sort();
    Ok(paths.join("\n"))
}
// ANCHOR_END: thawed

// ANCHOR: looped
/// A run of steps of four batches each, with checkpoints, that ends where the validation gets no better.
fn looped() -> Result<String> {
    let folder = std::env::temp_dir().join(format!("tacit-how-to-loop-{}", std::process::id()));
    let (rotation, schedule) = (CheckpointRotation::new(&folder, 2)?, Schedule::cosine(1e-2, 200).with_warmup(20));
    let (mut model, mut adam) = (model()?, Adam::new(0.0));
    let (mut accumulated, mut stopping) = (Accumulated::default(), EarlyStopping::new(2).with_least_gain(1e-3));
    let batch = |seed: u64| random::normal::<f32>(&[8, 128], None, None, Some(&random::key(seed)?));
    let validation = batch(u64::MAX)?;
    let mut ended = None;
    for step in 0..200 {
        for part in 0..4 {
            let x = batch(4 * step + part)?;
            let loss = |m: &mut Model<nn::Sequential>, x: &Array| m.forward(x)?.square()?.mean(None);
            let (_loss, gradients) = model.value_and_grad(ParameterFilter::default(), &x, loss)?;
            accumulated.add(gradients)?;
        }
        let (gradients, _norm) = clip_by_norm(accumulated.take_mean()?, 1.0)?;
        adam.lr = schedule.array(step);
        model.update(&mut adam, &gradients)?;
        if step % 10 == 9 {
            let loss = model.forward(&validation)?.square()?.mean(None)?.item_exact::<f32>();
            match stopping.see(loss) {
                Verdict::Best => {
                    drop(rotation.save(&Training::new(step + 1).with_model(&model, &ParameterFilter::All)?)?);
                }
                Verdict::Worse => {}
                Verdict::Stop => {
                    ended = Some(step + 1);
                    break;
                }
            }
        }
    }
    let kept = rotation.checkpoints()?.len();
    let best = rotation.load_latest()?.expect("a best model was saved");
    drop(std::fs::remove_dir_all(&folder));
    Ok(format!(
        "stopped early: {}, {kept} checkpoints, the best one before the end: {}",
        ended.is_some(),
        Some(best.step) < ended
    ))
}
// ANCHOR_END: looped

// ANCHOR: vocabulary
/// The gradient of a loss over 65,536 words, whose logits are never all there.
fn vocabulary() -> Result<String> {
    let model = Model::new(nn::Embedding::new(65_536, 64)?)?.quantize("weight", "nf4:64")?;
    let x = random::normal::<f32>(&[256, 64], None, None, &random::key(1)?)?;
    let targets = random::randint::<_, u32>(0, 65_536, &[256], &random::key(2)?)?;
    let head = model.get("weight")?;
    let loss = |x: Array| -> Result<Array> {
        let losses = chunked_cross_entropy(x, &head, &targets, None, |x, w| x.matmul(w.t()))?;
        Ok(losses.mean(None)?)
    };
    let (step, counters) = Counters::during(|| value_and_grad(loss).call(&x));
    let (loss, gradient) = step?;
    let (loss, gradient) = (loss.dense()?.item_exact::<f32>(), gradient.array()?.shape().to_vec());
    Ok(format!("loss {loss:.2}, gradient {gradient:?}, {} bytes of the head built", counters.materialized_bytes))
}
// ANCHOR_END: vocabulary

// ANCHOR: moments
/// What Adam holds of each parameter after a step.
fn moments() -> Result<String> {
    let mut model = model()?;
    let mut adam = QuantizedState::eight_bits(Adam::new(1e-3))?;
    let x = ops::ones::<f32>(&[4, 128])?;
    let (_, gradients) =
        model.value_and_grad(ParameterFilter::default(), x, |m, x: Array| m.forward(&x)?.square()?.mean(None))?;
    let (step, counters) = Counters::during(|| model.update(&mut adam, &gradients));
    step?;
    let values = adam.values()?;
    let lines = values.iter().filter(|(key, _)| key.ends_with(".1")).map(|(key, value)| format!("{key} {value}"));
    let lines: Vec<String> = lines.collect();
    Ok(format!("{}\n{} bytes, {} materialized", lines.join("\n"), adam.nbytes(), counters.materialized_bytes))
}
// ANCHOR_END: moments

// ANCHOR: drawn
/// The mean of gradients that are 0.5 for sixty steps and 0.4 for sixty more, beside the mean of ones.
fn drawn() -> Result<String> {
    let _allow = Policy::Allow.scope();
    let rows = |x: f32| Array::from_slice(&[1.0, x].repeat(2048), &[64, 64]);
    let mean = |format: &str| -> Result<f32> {
        let Ok(lion) = LionBuilder::new(1e-3).betas((0.9, 0.99)).build();
        let mut lion = QuantizedState::new(lion, format)?.with_seed(7);
        for step in 0..120 {
            lion.update_single(&"weight".into(), &rows(if step < 60 { 0.5 } else { 0.4 }), &mut rows(0.0))?;
        }
        let means = lion.values()?["weight"].dense()?.reshape(&[-1, 2])?.mean_axis(0, None)?;
        Ok(means.as_slice::<f32>()[1] / means.as_slice::<f32>()[0])
    };
    Ok(format!("nearest {:.3}\nat random {:.3}", mean("dynamic:8:256")?, mean("dynamic:8:256+stochastic")?))
}
// ANCHOR_END: drawn

// ANCHOR: low_rank
/// What Adam holds where it steps by gradients of a low rank.
fn low_rank() -> Result<String> {
    let mut model = model()?;
    let mut adam = QuantizedState::new(Adam::new(1e-3), &Rules::new())?.apollo("*", Apollo::new(16))?;
    let x = ops::ones::<f32>(&[4, 128])?;
    let (_, gradients) =
        model.value_and_grad(ParameterFilter::default(), x, |m, x: Array| m.forward(&x)?.square()?.mean(None))?;
    model.update(&mut adam, &gradients)?;
    let values = adam.values()?;
    let lines = ["layers.0.weight.1", "layers.3.weight.1"].map(|key| format!("{key} {}", values[key]));
    Ok(format!("{}\n{} bytes", lines.join("\n"), adam.nbytes()))
}
// ANCHOR_END: low_rank

// ANCHOR: activations
/// A step whose backward pass reads the activations of the model from codes.
fn in_codes(model: &mut Model<nn::Sequential>, x: &Array, format: &str) -> Result<(Array, FlattenedModuleParam)> {
    model.value_and_grad(ParameterFilter::Dense, x, |model, x| -> Result<Array> {
        let y = saved(format, |x: Array| model.forward(&x))?.call(x)?.dense()?;
        Ok(y.square()?.mean(None)?)
    })
}
// ANCHOR_END: activations

// ANCHOR: activations_by_path
/// Has each step read the activations of all layers but the first from codes.
fn save_by_path(model: &mut Model<nn::Sequential>) -> Result<()> {
    let rules = Rules::new().skip("layers.0.*")?.quantize("layers.*", "affine:8:64")?;
    model.saved_activations("*", &rules)?;
    Ok(())
}
// ANCHOR_END: activations_by_path

fn activations() -> Result<String> {
    let (mut model, x) = (model()?, random::normal::<f32>(&[64, 128], None, None, &random::key(1)?)?);
    let norm = |x: &Array| -> Result<f32> { Ok(x.square()?.sum(None)?.sqrt()?.item_exact::<f32>()) };
    let step = |model: &mut Model<nn::Sequential>| {
        model.value_and_grad(ParameterFilter::Dense, &x, |model, x| model.forward(x)?.square()?.mean(None))
    };
    let (loss, plain) = step(&mut model)?;
    let mut steps = Vec::new();
    for format in ["bf16", "affine:8:64", "affine:4:32"] {
        steps.push((format, in_codes(&mut model, &x, format)?));
    }
    save_by_path(&mut model)?;
    steps.push(("by path", step(&mut model)?));
    let mut lines = Vec::new();
    for (name, (found, gradients)) in steps {
        let same = found.item_exact::<f32>().to_bits() == loss.item_exact::<f32>().to_bits();
        let mut off = 0f32;
        for (path, plain) in &plain {
            off = off.max(norm(&gradients[path].subtract(plain)?)? / norm(plain)?);
        }
        lines.push(format!("{name:<11}  the same loss: {same}, gradients off by {:.1} %", 100.0 * off));
    }
    Ok(lines.join("\n"))
}

// ANCHOR: int8_training
/// A model whose products are of 8-bit integers in the forward and in the backward pass.
fn in_8_bits() -> Result<Model<nn::Sequential>> {
    model()?.prepare("*.weight", QatConfig::new(Int8::default()).stochastic_int8_training())
}
// ANCHOR_END: int8_training

fn int8_training() -> Result<String> {
    let x = random::normal::<f32>(&[64, 128], None, None, &random::key(1)?)?;
    let gradient = |model: &mut Model<nn::Sequential>, path: &str| -> Result<Array> {
        let (_, gradients) =
            model.value_and_grad(ParameterFilter::default(), &x, |model, x| model.forward(x)?.square()?.mean(None))?;
        Ok(gradients[path].clone())
    };
    let (mut float, mut integers) = (model()?, in_8_bits()?);
    let exact = gradient(&mut float, "layers.0.weight")?;
    let [found, again] = [(); 2].map(|()| gradient(&mut integers, "layers.0.weight.inner.master"));
    let (found, again) = (found?, again?);
    let norm = |x: &Array| -> Result<f32> { Ok(x.square()?.sum(None)?.sqrt()?.item_exact::<f32>()) };
    Ok(format!(
        "{}\ngradient off by {:.1} %, the same again: {}",
        integers.get("layers.0.weight")?,
        100.0 * norm(&found.subtract(&exact)?)? / norm(&exact)?,
        norm(&found.subtract(&again)?)? == 0.0,
    ))
}
