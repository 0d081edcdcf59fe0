//! The book's short recipes: one function for each, none of which needs another. Those of training are in `how_to/training.rs`.

#[path = "how_to/training.rs"]
mod training;

// ANCHOR: use
use mlx_rs::error::Exception;
use mlx_rs::module::Module;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, Dtype, nn, ops, random, transforms};
use tacit::arrays::{Awq, Calibrate, Corrected, Gptq};
use tacit::dispatch::Taker;
use tacit::model::training::distillation_loss;
use tacit::model::{Advisor, Outcome, Pattern, Row};
use tacit::prelude::*;
use tacit::record::{Chart, Record, Recorder};

// ANCHOR_END: use

/// A title, and the function that makes what the page shows.
type Section = (&'static str, fn() -> Result<String>);

const SECTIONS: [Section; 15] = [
    ("budget", budget),
    ("advised", advised),
    ("warned", warned),
    ("counted", counted),
    ("who", who),
    ("denied", denied),
    ("only", only),
    ("mixed", mixed),
    ("errors", errors),
    ("refused", refused),
    ("searched", searched),
    ("halves", halves),
    ("recorded", recorded),
    ("calibrated", calibrated),
    ("distilled", distilled),
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

/// All recipes.
pub(crate) fn sections() -> Vec<Section> {
    [SECTIONS.as_slice(), &training::SECTIONS].concat()
}

pub(crate) fn main() -> Result<()> {
    for (title, section) in sections() {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
