//! The book's short recipes: one function for each, none of which needs another.

// ANCHOR: use
use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::optimizers::{Adam, LionBuilder, Optimizer};
use mlx_rs::{Array, Dtype, nn, ops, random, transforms};
use tacit::arrays::{Awq, Calibrate, Corrected, Gptq, saved};
use tacit::dispatch::Taker;
use tacit::format::Int8;
use tacit::io::{CheckpointRotation, Training};
use tacit::model::training::{
    Accumulated, EarlyStopping, Schedule, Verdict, chunked_cross_entropy, clip_by_norm, distillation_loss,
};
use tacit::model::{Advisor, Apollo, Outcome, Pattern, QatConfig, QuantizedState, Row};
use tacit::prelude::*;
use tacit::record::{Chart, Record, Recorder};
use tacit::transform::value_and_grad;

// ANCHOR_END: use

/// A title, and the function that makes what the page shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the pages' order.
pub(crate) const SECTIONS: [Section; 24] = [
    ("budget", budget),
    ("advised", advised),
    ("warned", warned),
    ("counted", counted),
    ("who", who),
    ("denied", denied),
    ("only", only),
    ("mixed", mixed),
    ("errors", errors),
    ("frozen", frozen),
    ("thawed", thawed),
    ("refused", refused),
    ("searched", searched),
    ("halves", halves),
    ("recorded", recorded),
    ("looped", looped),
    ("vocabulary", vocabulary),
    ("moments", moments),
    ("drawn", drawn),
    ("low_rank", low_rank),
    ("calibrated", calibrated),
    ("distilled", distilled),
    ("activations", activations),
    ("int8_training", int8_training),
];

// ANCHOR: model
/// Two layers and a norm between them.
fn model() -> Result<Model<nn::Sequential>> {
    random::seed(0)?;
    let layers = nn::Sequential::new()
        .append(nn::Linear::new(128, 256)?)
        .append(nn::RmsNorm::new(256)?)
        .append(nn::Relu)
        .append(nn::Linear::new(256, 8)?);
    Model::new(layers)
}
// ANCHOR_END: model

// ANCHOR: budget
/// The formats whose error is the least that so many bits can buy.
fn budget() -> Result<String> {
    let weight = random::normal::<f32>(&[256, 1024], None, None, &random::key(0)?)?;
    let length = |x: &Array| -> Result<f32> { Ok(x.square()?.sum(None)?.sqrt()?.item_exact::<f32>()) };
    let mut tried = Vec::new();
    for text in
        ["affine:2:64", "affine:3:64", "nf4:64", "nf4:64:double", "affine:4:32", "affine:5:64", "affine:6:64", "int8"]
    {
        let packed = text.parse::<AnyFormat>()?.quantize(&weight)?;
        let bits = 8.0 * packed.nbytes() as f64 / weight.size() as f64;
        let error = length(&packed.dense()?.subtract(&weight)?)? / length(&weight)?;
        tried.push((text, bits, error));
    }
    tried.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut least = f32::INFINITY;
    tried.retain(|&(_, _, error)| {
        let better = error < least;
        least = least.min(error);
        better
    });
    let lines =
        tried.iter().map(|(text, bits, error)| format!("{text:<14} {bits:>5.2} bits  {:>5.1} %", 100.0 * error));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}
// ANCHOR_END: budget

// ANCHOR: advised
/// A format for each parameter of a model, so that all together take at most 5.5 bits an element.
fn advised() -> Result<String> {
    let model = model()?;
    let formats = ["affine:2:64", "affine:4:64", "affine:4:64+search", "affine:6:64"].map(str::parse);
    let formats = formats.into_iter().collect::<Result<Vec<AnyFormat>>>()?;
    let advice = Advisor::new(formats).advise(&model.values()?, 5.5)?;
    let model = model.quantize("*", &advice.rules()?)?;
    Ok(format!("{}\n{advice}", model.report()))
}
// ANCHOR_END: advised

// ANCHOR: warned
/// `cumsum` has no handler for packed weights, so the weight is built, with a warning.
fn warned() -> Result<String> {
    let weight = Nf4Array::quantize(&ops::ones::<f32>(&[64, 64])?, 64)?;
    let sums = implicit(weight, |w| w.cumsum(1, None, None))?.dense()?;
    Ok(Aval::from(&sums).to_string())
}
// ANCHOR_END: warned

// ANCHOR: counted
fn counted() -> Result<String> {
    let weight = Nf4Array::quantize(&ops::ones::<f32>(&[64, 64])?, 64)?;
    let _quiet = Policy::Allow.scope();
    let (sums, counters) = Counters::during(|| implicit(weight, |w| w.t().cumsum(1, None, None)?.sum(None)));
    sums?.dense()?;
    let Counters { seen, handled, materialized, materialized_bytes, .. } = counters;
    Ok(format!("{seen} nodes, {handled} handled, {materialized} arrays built, {materialized_bytes} bytes"))
}
// ANCHOR_END: counted

// ANCHOR: who
/// The nodes of a call for which a weight was built.
fn who() -> Result<String> {
    let weight = Nf4Array::quantize(&ops::ones::<f32>(&[64, 64])?, 64)?;
    let x = ops::ones::<f32>(&[2, 64])?;
    let _quiet = Policy::Allow.scope();
    let told = explain((&x, &weight), |(x, w)| x.matmul(w.t())?.add(w.cumsum(1, None, None)?.sum(None)?))?;
    let built = told.equations.iter().filter(|node| node.taker == Taker::Materialized);
    Ok(built.map(|node| format!("{} {}", node.primitive, node.operands.join(" "))).collect::<Vec<_>>().join("\n"))
}
// ANCHOR_END: who

// ANCHOR: denied
fn denied() -> Result<String> {
    let weight = Nf4Array::quantize(&ops::ones::<f32>(&[64, 64])?, 64)?;
    let _deny = Policy::Deny.scope();
    let error = implicit(weight, |w| w.cumsum(1, None, None)).expect_err("there is no handler");
    assert!(matches!(error, Error::MaterializationDenied { .. }));
    Ok(error.to_string())
}
// ANCHOR_END: denied

// ANCHOR: only
/// The last layer keeps its floats: what it rounds, nothing after it can mend.
fn only() -> Result<String> {
    let rules = Rules::new().skip("layers.3.*")?.quantize("*.weight", Nf4 { block: 64, double: true })?;
    let model = model()?.quantize("*", &rules)?;
    Ok(model.report().to_string())
}
// ANCHOR_END: only

// ANCHOR: mixed
/// More bits where they are worth more, by path and by shape.
fn mixed() -> Result<String> {
    let wide = Pattern::when(|_, aval| aval.shape.len() == 2 && aval.shape[0] >= 256);
    let rules = Rules::new()
        .quantize(wide, Affine { bits: 3, group: 64 })?
        .quantize("*.weight", Affine { bits: 8, group: 64 })?;
    let model = model()?.quantize("*", &rules)?;
    let (before, after) = model.report().bytes();
    Ok(format!("{}\n{:.1} times smaller", model.report(), before as f64 / after as f64))
}
// ANCHOR_END: mixed

// ANCHOR: errors
/// The parameter that its format fits worst.
fn errors() -> Result<String> {
    let model = model()?.quantize("*.weight", Affine { bits: 4, group: 64 })?;
    let error = |row: &Row| match row.outcome {
        Outcome::Quantized { error, .. } => Some(error),
        _ => None,
    };
    let report = model.report();
    let rows = report.rows.iter().filter_map(|(path, row)| Some((path, error(row)?)));
    let worst = rows.max_by(|a, b| a.1.total_cmp(&b.1));
    Ok(worst.map(|(path, error)| format!("{path} loses {:.1} %", 100.0 * error)).unwrap_or_default())
}
// ANCHOR_END: errors

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

// ANCHOR: refused
/// A weight that has become NaN has no scale, so it is not quantized; the error is that of the eval.
fn refused() -> Result<String> {
    let weight = Array::from_slice(&[[0.5_f32; 63].as_slice(), &[f32::NAN]].concat(), &[1, 64]);
    let packed = Nf4Array::quantize(&weight, 64)?;
    let y = implicit(packed, |w| w.t().matmul(Array::from_slice(&[1.0_f32], &[1, 1])))?.dense()?;
    Ok(transforms::eval([&y]).map_err(Error::from).expect_err("nothing is valid").to_string())
}
// ANCHOR_END: refused

// ANCHOR: searched
/// The first layer whose output is not finite.
fn searched() -> Result<String> {
    let mut model = model()?;
    model.set("layers.1.weight", ops::full::<f32>(&[256], Array::from_f32(f32::INFINITY))?)?;
    let x = ops::ones::<f32>(&[4, 128])?;
    // What a function of `run` returns is a tree of results, so each layer's may be among them.
    let outputs = model.run(|model| {
        let mut outputs = vec![x];
        for layer in &mut model.layers {
            outputs.push(layer.forward(&outputs[outputs.len() - 1])?);
        }
        Ok::<_, Exception>(outputs)
    })?;
    for (at, y) in outputs.iter().skip(1).enumerate() {
        if !y.is_finite()?.all(None)?.item_exact::<bool>() {
            return Ok(format!("layers.{at}"));
        }
    }
    Ok("all are finite".to_owned())
}
// ANCHOR_END: searched

// ANCHOR: halves
/// A half-precision model whose products run on codes of two bytes, without a copy.
fn halves() -> Result<String> {
    let mut model = model()?;
    for (path, aval) in model.avals() {
        let half = model.get(&path)?.dense()?.as_dtype(Dtype::Bfloat16)?;
        assert_eq!(half.shape(), aval.shape);
        model.set(&path, half)?;
    }
    model.hold_halves()?;
    Ok(model.report().to_string())
}
// ANCHOR_END: halves

// ANCHOR: recorded
/// A few numbers of a run, written, read and drawn.
fn recorded() -> Result<String> {
    let file = std::env::temp_dir().join(format!("tacit-how-to-{}.jsonl", std::process::id()));
    // The steps that were made: none as yet, or those of the checkpoint from which the run goes on.
    let mut recorder = Recorder::resume(&file, 0)?;
    for step in 1..=4 {
        recorder.scalar(step, "loss", 1.0 / step as f64)?;
    }
    recorder.histogram(4, "weights", &model()?.get("layers.0.weight")?.dense()?)?;
    recorder.memory(4)?;

    let record = Record::read(&file)?;
    let svg = Chart::new("loss").logarithmic().line("this run", record.scalar("loss")?).to_svg()?;
    let text = std::fs::read_to_string(&file).map_err(Error::file("read", &file))?;
    drop(std::fs::remove_file(&file));
    let lines: Vec<&str> = text.lines().take(3).collect();
    Ok(format!("{}\n..\nan SVG: {}", lines.join("\n"), svg.starts_with("<svg ")))
}
// ANCHOR_END: recorded

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

// ANCHOR: calibrated
/// What a model of three bits changes of the outputs, on inputs that were not observed.
fn calibrated() -> Result<String> {
    let normal = |seed, shape: &[i32]| random::normal::<f32>(shape, None, None, &random::key(seed)?);
    // Inputs that have something in common, as the activations of a model have.
    let batch = |seed| -> Result<Array> {
        let common = normal(seed, &[256, 16])?.matmul(normal(100, &[16, 128])?)?;
        Ok(common.add(normal(seed + 1, &[256, 128])?)?)
    };
    let (mut float, x) = (model()?, batch(10)?);
    let seen = float.observe("*.weight", |model| {
        for seed in [0, 2, 4] {
            model.forward(&batch(seed)?)?;
        }
        Ok::<_, Error>(())
    })?;

    let by = |method: &dyn Calibrate| model()?.quantize_observed("*.weight", "affine:3:64", &seen, method);
    let fitted = Gptq::default().with_refits(2)?;
    let y = float.forward(&x)?;
    let mut lines = vec![format!("{} rows seen", seen.get("layers.0.weight")?.rows()[0])];
    for (name, mut model) in [
        ("rounding", model()?.quantize("*.weight", "affine:3:64")?),
        ("AWQ", by(&Awq::default())?),
        ("GPTQ", by(&Gptq::default())?),
        ("fitted", by(&fitted)?),
        ("corrected", by(&Corrected::new(fitted, 4)?)?),
    ] {
        let lost = model.forward(&x)?.subtract(&y)?.square()?.sum(None)?.divide(y.square()?.sum(None)?)?.sqrt()?;
        lines.push(format!("{name:<9} {:>5.1} %  {}", 100.0 * lost.item_exact::<f32>(), model.get("layers.0.weight")?));
    }
    Ok(lines.join("\n"))
}
// ANCHOR_END: calibrated

// ANCHOR: distilled
/// Scales and biases of codes learn to compute what the model in floats does.
fn distill(student: &mut Model<nn::Sequential>, teacher: &mut Model<nn::Sequential>) -> Result<()> {
    let mut adam = Adam::new(1e-4);
    for seed in 0..60 {
        let x = random::normal::<f32>(&[256, 128], None, None, &random::key(seed)?)?;
        let targets = teacher.forward(&x)?;
        let (_, gradients) = student.value_and_grad(ParameterFilter::Scales, &x, |student, x| {
            Ok::<_, Error>(distillation_loss(&student.forward(x)?, &targets, 1.0)?.mean(None)?)
        })?;
        student.update(&mut adam, &gradients)?;
        student.eval()?;
    }
    Ok(())
}
// ANCHOR_END: distilled

fn distilled() -> Result<String> {
    let (mut teacher, mut student) = (model()?, model()?.quantize("*.weight", "affine:3:64")?);
    let codes = |student: &Model<nn::Sequential>| -> Vec<Array> {
        let leaves = student.leaves(&ParameterFilter::All).into_iter();
        leaves.filter(|(_, leaf)| !leaf.dtype().is_float()).map(|(_, leaf)| leaf.clone()).collect()
    };
    let x = random::normal::<f32>(&[1024, 128], None, None, &random::key(100)?)?;
    let targets = teacher.forward(&x)?;
    let divergence = |student: &mut Model<nn::Sequential>| -> Result<f32> {
        Ok(1000.0 * distillation_loss(&student.forward(&x)?, &targets, 1.0)?.mean(None)?.item_exact::<f32>())
    };
    let (before, own) = (divergence(&mut student)?, codes(&student));
    let _deny = Policy::Deny.scope();
    let (trained, counters) = Counters::during(|| distill(&mut student, &mut teacher));
    trained?;
    let mut moved = false;
    for (own, now) in own.iter().zip(codes(&student)) {
        moved |= !now.eq_exact(own)?;
    }
    Ok(format!(
        "millinats from the teacher: {before:.1} before, {:.1} after\ncodes moved: {moved}, {} bytes materialized",
        divergence(&mut student)?,
        counters.materialized_bytes
    ))
}

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

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
