//! The book's chapter on whole models: rules, adapters and files for attention that somebody else wrote.

// ANCHOR: use
use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Module;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, nn, random};
use tacit::io::ModelFile;
use tacit::prelude::*;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 8] = [
    ("own", own),
    ("paths", paths),
    ("ruled", ruled),
    ("run", run),
    ("adapted", adapted),
    ("trained", trained),
    ("merged", merged),
    ("saved", saved),
];

// ANCHOR: block
/// A module of one's own: two layers beside the identity.
#[derive(Debug, ModuleParameters)]
struct Block {
    #[param]
    up: nn::Linear,
    #[param]
    down: nn::Linear,
}

impl Block {
    fn new(width: i32) -> Result<Self> {
        Ok(Self { up: nn::Linear::new(width, 4 * width)?, down: nn::Linear::new(4 * width, width)? })
    }
}

impl Module<&Array> for Block {
    type Output = Array;
    type Error = Exception;

    fn forward(&mut self, x: &Array) -> Result<Array, Exception> {
        let hidden = nn::gelu(self.up.forward(x)?)?;
        self.down.forward(&hidden)?.add(x)
    }

    fn training_mode(&mut self, mode: bool) {
        self.up.training_mode(mode);
        self.down.training_mode(mode);
    }
}
// ANCHOR_END: block

// ANCHOR: own
fn own() -> Result<String> {
    random::seed(0)?;
    let mut model = Model::new(Block::new(64)?)?.quantize("*.weight", Nf4 { block: 64, double: false })?;
    let x = random::normal::<f32>(&[2, 64], None, None, None)?;
    let _guard = Policy::Deny.scope();
    let y = model.forward(&x)?;
    Ok(format!("{}\n{}", Aval::from(&y), model.report()))
}
// ANCHOR_END: own

// ANCHOR: attention
/// Attention as mlx-rs has it, and a sentence of six words to put in.
fn attention() -> Result<(Model<nn::MultiHeadAttention>, Array)> {
    random::seed(0)?;
    let attention = nn::MultiHeadAttention::new(128, 4).map_err(|error| Exception::custom(error.to_string()))?;
    let words = random::normal::<f32>(&[1, 6, 128], None, None, None)?;
    Ok((Model::new(attention)?, words))
}
// ANCHOR_END: attention

// ANCHOR: paths
fn paths() -> Result<String> {
    let (model, _) = attention()?;
    let lines = model.avals().into_iter().map(|(path, aval)| format!("{path}  {aval}"));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}
// ANCHOR_END: paths

// ANCHOR: ruled
const RULES: &str = "
'value_proj.weight' = 'int8'
'output_proj.*' = 'skip'
'*.weight' = 'nf4:64:double'
";

fn ruled() -> Result<String> {
    let (model, _) = attention()?;
    let model = model.quantize("*", &Rules::from_toml(RULES)?)?;
    Ok(model.report().to_string())
}
// ANCHOR_END: ruled

// ANCHOR: run
fn run() -> Result<String> {
    let (mut model, words) = attention()?;
    let expected = model.forward((&words, &words, &words))?;
    let before = model.nbytes();
    let mut model = model.quantize("*", &Rules::from_toml(RULES)?)?;

    let _guard = Policy::Deny.scope();
    let (y, counters) = Counters::during(|| model.forward((&words, &words, &words)));
    Ok(format!(
        "{} bytes instead of {before}, {} products by codes, {} bytes built, {:.0} % off",
        model.nbytes(),
        counters.handled / 2,
        counters.materialized_bytes,
        100.0 * relative_error(&y?, &expected)?,
    ))
}
// ANCHOR_END: run

// ANCHOR: drawn
/// The graph of one call as a drawing.
pub(crate) fn drawing() -> Result<String> {
    let (model, words) = attention()?;
    let mut model = model.quantize("*", &Rules::from_toml(RULES)?)?;
    let explanation = model.explain(|attention| attention.forward((&words, &words, &words)))?;
    Ok(explanation.to_svg())
}
// ANCHOR_END: drawn

/// The length of the difference in terms of the length of what was expected.
fn relative_error(y: &Array, expected: &Array) -> Result<f32> {
    let length = |array: &Array| array.square()?.sum(None)?.sqrt();
    Ok(length(&y.subtract(expected)?)?.divide(length(expected)?)?.item_exact::<f32>())
}

// ANCHOR: adapted
/// The model in four bits with an adapter beside the weights of queries and values.
fn with_adapters() -> Result<(Model<nn::MultiHeadAttention>, Array)> {
    let (model, words) = attention()?;
    let config = LoraConfig { rank: 4, alpha: 8.0, ..LoraConfig::default() };
    let model = model
        .quantize("*.weight", Nf4 { block: 64, double: true })?
        .lora("query_proj.weight", config.clone())?
        .lora("value_proj.weight", config)?;
    Ok((model, words))
}

fn adapted() -> Result<String> {
    let (model, _) = with_adapters()?;
    let leaves = model.leaves(&ParameterFilter::Lora);
    let lines = leaves.iter().map(|(path, leaf)| format!("{path}  {}", Aval::from(*leaf)));
    Ok(format!("{}\n\n{}", model.get("query_proj.weight")?, lines.collect::<Vec<_>>().join("\n")))
}
// ANCHOR_END: adapted

// ANCHOR: trained
/// Thirty steps towards a target, which only the adapters take.
fn train(model: &mut Model<nn::MultiHeadAttention>, words: &Array) -> Result<[f32; 2]> {
    let target = words.multiply(Array::from_f32(0.5))?;
    let mut optimizer = Adam::new(1e-2);
    let mut losses = Vec::new();
    for _ in 0..30 {
        let loss = |model: &mut Model<nn::MultiHeadAttention>, (words, target): (&Array, &Array)| {
            model.forward((words, words, words))?.subtract(target)?.square()?.mean(None)
        };
        let (loss, gradients) = model.value_and_grad(ParameterFilter::Lora, (words, &target), loss)?;
        model.update(&mut optimizer, &gradients)?;
        model.eval()?;
        losses.push(loss.item_exact::<f32>());
    }
    Ok([losses[0], losses[29]])
}

fn trained() -> Result<String> {
    let (mut model, words) = with_adapters()?;
    let _guard = Policy::Deny.scope();
    let before = model.get("key_proj.weight")?.nbytes();
    let [first, last] = train(&mut model, &words)?;
    let same = model.get("key_proj.weight")?.nbytes() == before;
    Ok(format!("the loss is {} of what it was; the base is in four bits still: {same}", share(last / first)))
}

fn share(ratio: f32) -> &'static str {
    if ratio < 0.5 { "less than half" } else { "more than half" }
}
// ANCHOR_END: trained

// ANCHOR: merged
fn merged() -> Result<String> {
    let (mut model, words) = with_adapters()?;
    train(&mut model, &words)?;
    let adapted = model.forward((&words, &words, &words))?;
    let report = model.merge(Affine { bits: 8, group: 64 })?;
    let merged = model.forward((&words, &words, &words))?;
    let near = relative_error(&merged, &adapted)? < 0.02;
    let weight = model.get("query_proj.weight")?;
    let worst = report.worst() < 0.01;
    Ok(format!("{weight}, less than 1 % of a weight lost: {worst}, less than 2 % off: {near}"))
}
// ANCHOR_END: merged

// ANCHOR: saved
fn saved() -> Result<String> {
    let (mut model, words) = with_adapters()?;
    train(&mut model, &words)?;
    let file = std::env::temp_dir().join(format!("tacit-book-adapter-{}.safetensors", std::process::id()));
    model.save(&file, ParameterFilter::Lora)?;

    let (mut other, _) = with_adapters()?;
    let loaded = other.load(&file);
    drop(std::fs::remove_file(&file));
    loaded?;
    let same = model.forward((&words, &words, &words))?.eq(&other.forward((&words, &words, &words))?)?.all(None)?;
    Ok(format!("the same bits: {}", same.item_exact::<bool>()))
}
// ANCHOR_END: saved

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    println!("{} bytes of SVG", drawing()?.len());
    Ok(())
}
