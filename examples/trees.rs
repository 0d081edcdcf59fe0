//! The book's recipes on trees: types of other crates, numbers, what is opened, and derivatives of one's own over them.

// ANCHOR: use
use mlx_rs::random::RandomState;
use mlx_rs::{Array, ops, random};
use tacit::Tree;
use tacit::compile;
use tacit::prelude::*;
use tacit::register::register_node;
use tacit::transform::{custom_jvp, grad, jvp};
use tacit::tree::{self, Branch, Gradient, Open, Path, Static};

// ANCHOR_END: use

/// A title, and the function that makes what the recipe shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the order of the recipes.
pub(crate) const SECTIONS: [Section; 7] = [
    ("registered", registered),
    ("numbers", numbers),
    ("opened", opened),
    ("added", added),
    ("masters", masters),
    ("ruled", ruled),
    ("denied", denied),
];

fn normal(seed: u64) -> Result<Array> {
    Ok(random::normal::<f32>(&[4, 64], None, None, &random::key(seed)?)?)
}

// ANCHOR: registered
/// What a sampler of another crate looks like: it knows nothing of trees.
struct Sampler {
    random: RandomState,
    table: Vec<Value>,
    top: usize,
}

/// The tree that stands for it. Its fields are in paths; the static one is in the structure.
#[derive(Tree)]
struct SamplerTree {
    random: RandomNode,
    table: Vec<Value>,
    #[tree(static)]
    top: usize,
}

register_node!(
    /// A random state, by its key.
    RandomNode(RandomState) as Array,
    |state| state.as_array().clone(),
    |key| Ok(RandomState::from_key(key)),
);

register_node!(
    /// A sampler; another wrapper is inside.
    SamplerNode(Sampler) as SamplerTree,
    |sampler| SamplerTree {
        random: RandomNode(sampler.random.clone()),
        table: sampler.table.clone(),
        top: sampler.top,
    },
    |tree| Ok(Sampler { random: tree.random.0, table: tree.table, top: tree.top }),
);

fn registered() -> Result<String> {
    let table = vec![Nf4Array::quantize(&normal(1)?, 64)?.into()];
    let sampler = SamplerNode(Sampler { random: RandomState::with_seed(7)?, table, top: 40 });
    let (leaves, def) = tree::flatten(&sampler, Open::Fully)?;
    let paths: Vec<String> = def.paths().iter().map(ToString::to_string).collect();
    let again: SamplerNode = tree::unflatten(&def, leaves)?;
    Ok(format!("{}; top {}, {}", paths.join(", "), again.top, again.table[0]))
}
// ANCHOR_END: registered

// ANCHOR: numbers
/// Integers, strings and floats in a tuple: each is part of the structure, and another one is another trace.
fn numbers() -> Result<String> {
    let mut scaled = compile(|(x, by, axes): (Array, Static<f32>, Vec<Static<i32>>)| {
        let axes: Vec<i32> = axes.iter().map(|axis| axis.0).collect();
        x.multiply(Array::from_f32(by.0))?.sum_axes(&axes, false)
    });
    for by in [0.5, 0.25, 0.5] {
        scaled.call((normal(1)?, Static(by), vec![Static(0), Static(1)]))?;
    }
    let stats = scaled.stats();
    Ok(format!("traces: {}; {}", stats.traces, stats.retraces().collect::<Vec<_>>().join("; ")))
}
// ANCHOR_END: numbers

// ANCHOR: opened
/// A function of path and node says where to stop: at the first layer, and at implicit arrays that are small.
fn opened() -> Result<String> {
    let layer = |seed| -> Result<Vec<Value>> { Ok(vec![Nf4Array::quantize(&normal(seed)?, 64)?.into()]) };
    let layers = vec![layer(1)?, layer(2)?];
    let chooses = |path: &Path, branch: &Branch<'_>| match branch {
        Branch::Node(_) => &**path != "0",
        Branch::Implicit(array) => array.nbytes() > 64,
    };
    let (_, def) = tree::flatten(&layers, Open::Where(&chooses))?;
    Ok(def.paths().iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}
// ANCHOR_END: opened

// ANCHOR: added
/// Leaf by leaf over two trees of one structure: a running mean of parameters.
fn added() -> Result<String> {
    let (mean, now) = (vec![normal(1)?, normal(2)?], vec![normal(3)?, normal(4)?]);
    let mean = tree::map2(&mean, &now, Open::Fully, |mean, now| {
        let (mean, now) = (mean.dense()?, now.dense()?);
        Ok(mean.multiply(Array::from_f32(0.9))?.add(now.multiply(Array::from_f32(0.1))?)?.into())
    })?;
    let other = vec![normal(3)?];
    let error = tree::map2(&mean, &other, Open::Fully, |mean, _| Ok(mean)).expect_err("there is one leaf less");
    Ok(format!("{}\n{error}", tree::structure(&mean)?))
}
// ANCHOR_END: added

// ANCHOR: masters
/// A tree of masters, each quantized in its own way; both get the gradient of a plain sum.
fn masters() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let mut gradient = grad(|masters: (Array, Array)| {
        let quantized = ste(masters, |(up, down)| -> Result<(Nf4Array, AffineArray)> {
            Ok((Nf4Array::quantize(up, 64)?, AffineArray::quantize(down, Affine { bits: 4, group: 64 })?))
        })?;
        let ones = ops::ones::<f32>(&[1, 64])?;
        implicit((ones, quantized), |(x, (up, down))| x.matmul(up.t())?.sum(None)?.add(x.matmul(down.t())?.sum(None)?))?
            .dense()
    });
    let (of_up, of_down) = gradient.call((normal(1)?, normal(2)?))?;
    let ones = ops::ones::<f32>(&[4, 64])?;
    Ok(format!("{of_up} {of_down}, ones: {} {}", of_up.array()?.eq_exact(&ones)?, of_down.array()?.eq_exact(&ones)?))
}
// ANCHOR_END: masters

// ANCHOR: ruled
/// `log(1 + exp(x))`, whose plain derivative is not a number where `exp(x)` is infinite. One rule serves both directions.
fn ruled() -> Result<String> {
    let softplus =
        || custom_jvp(|x: Array| x.exp()?.log1p(), |x: Array, change: Array| ops::sigmoid(&x)?.multiply(change));
    let (x, change) = (Array::from_f32(100.0), Gradient::Dense(Array::from_f32(1.0)));
    let (mut forward, mut backward) = (softplus(), softplus());
    let (_, pushed) = jvp(&x, change, move |x: Array| forward.call(x)?.dense())?;
    let gradient = grad(move |x: Array| backward.call(x)?.dense()).call(&x)?;
    let plain = grad(|x: Array| x.exp()?.log1p()).call(&x)?;
    let of = |array: &Array| array.item_exact::<f32>();
    Ok(format!("{} and {}; plain: {}", of(&pushed.dense()?), of(gradient.array()?), of(plain.array()?)))
}
// ANCHOR_END: ruled

// ANCHOR: denied
/// A table that must never be built by accident, whatever the program says of others.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Vast", materialize = "deny")]
struct Vast {
    row: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Vast {
    fn materialize(&self) -> Result<Value> {
        Ok(ops::broadcast_to(&self.row, &self.aval.shape)?.into())
    }
}

fn denied() -> Result<String> {
    let row = ops::ones::<f32>(&[4])?;
    let vast = Vast { aval: Aval::new(&[1 << 20, 4], row.dtype()), row };
    let error = implicit(&vast, |x| x.cumsum(0, None, None)).expect_err("the type says so");
    // Who calls has the last word.
    let _allow = Policy::Allow.scope();
    let allowed = implicit(&vast, |x| x.cumsum(0, None, None))?;
    Ok(format!("{}\nand then {allowed}", error.clause()))
}
// ANCHOR_END: denied

#[allow(dead_code, reason = "the test of the book calls the sections one by one")]
fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("## {title}\n{}\n", section()?);
    }
    Ok(())
}
