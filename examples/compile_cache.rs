//! The book's page on how a compiled function finds its trace again: what is a new one, what is not, with the counters.

// ANCHOR: use
use std::sync::Arc;

use mlx_rs::{Array, Dtype, ops, random};
use tacit::arrays::Lora;
use tacit::compile::{CompileOptions, CompileStats, compile_with};
use tacit::dispatch::Registry;
use tacit::prelude::*;
use tacit::{Tree, compile};

// ANCHOR_END: use

/// A title, and the function that makes what the page shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the page's order.
pub(crate) const SECTIONS: [Section; 5] =
    [("same", same), ("new", new), ("nested", nested), ("ambient", ambient), ("bounded", bounded)];

// ANCHOR: weights
/// A weight of `f32[32,64]` whose values a seed decides, in blocks of so many.
fn weight(seed: u64, block: usize) -> Result<Value> {
    let w = random::normal::<f32>(&[32, 64], None, None, &random::key(seed)?)?;
    Ok(Nf4Array::quantize(&w, block)?.into())
}

fn rows(rows: i32) -> Result<Value> {
    Ok(ops::ones::<f32>(&[rows, 64])?.into())
}
// ANCHOR_END: weights

/// What the counters say, and why there was a trace beyond the first.
fn told(stats: &CompileStats) -> String {
    let reasons: Vec<&str> = stats.retraces().collect();
    format!("calls: {}, traces: {}\n{}", stats.calls, stats.traces, reasons.join("\n")).trim_end().to_owned()
}

// ANCHOR: same
/// Calls that one trace serves.
fn same() -> Result<String> {
    let mut forward = compile(|(x, w): (Array, Array)| x.matmul(w.t()));
    let w = weight(1, 64)?;
    forward.call((rows(2)?, w.clone()))?;
    // The same arrays again, other values, and other objects of the same structure.
    forward.call((rows(2)?, w.clone()))?;
    forward.call((rows(2)?.dense()?.multiply(Array::from_f32(3.0))?, weight(2, 64)?))?;
    // A view of another array: how its elements lie in memory is not part of a structure.
    let wide = ops::ones::<f32>(&[64, 2])?;
    forward.call((wide.t(), w))?;
    Ok(told(forward.stats()))
}
// ANCHOR_END: same

// ANCHOR: new
/// Calls each of which is a trace of its own.
fn new() -> Result<String> {
    let mut forward = compile(|(x, w): (Array, Array)| x.matmul(w.t()));
    let w = weight(1, 64)?;
    forward.call((rows(2)?, w.clone()))?;
    forward.call((rows(3)?, w.clone()))?;
    forward.call((rows(3)?.dense()?.as_dtype(Dtype::Float16)?, w.clone()))?;
    forward.call((rows(3)?, weight(1, 32)?))?;
    forward.call((rows(3)?, Affine { bits: 4, group: 64 }.quantize(&w.dense()?)?))?;
    forward.call((rows(3)?, w.dense()?))?;
    Ok(told(forward.stats()))
}
// ANCHOR_END: new

// ANCHOR: nested
/// Lists, whose lengths count at every depth, and implicit arrays in implicit arrays.
fn nested() -> Result<String> {
    #[derive(Tree)]
    struct Lists<L = Array> {
        lists: Vec<Vec<L>>,
    }
    let mut first = compile(|Lists { lists }: Lists| Ok::<_, Error>(lists[0][0].clone()));
    let [a, b] = [1.0, 2.0].map(|x| Value::from(Array::from_f32(x)));
    first.call(&Lists { lists: vec![vec![a.clone()], vec![b.clone()]] })?;
    first.call(&Lists { lists: vec![vec![a.clone(), b.clone()]] })?;
    first.call(&Lists { lists: vec![vec![b], vec![a]] })?;

    let mut forward = compile(|(x, w): (Array, Array)| x.matmul(w.t()));
    let factor = |shape: &[i32]| ops::ones::<f32>(shape);
    for rank in [4, 4, 8] {
        let sum = Lora::new(weight(1, 64)?, factor(&[rank, 64])?, factor(&[32, rank])?, 8.0)?;
        forward.call((rows(2)?, sum))?;
    }
    Ok(format!("{}\n\n{}", told(first.stats()), told(forward.stats())))
}
// ANCHOR_END: nested

// ANCHOR: ambient
/// What is no argument and still decides what a trace holds.
fn ambient() -> Result<String> {
    let mut forward = compile(|(x, w): (Array, Array)| x.matmul(w.t()));
    let arguments = (rows(2)?, weight(1, 64)?);
    let _allow = Policy::Allow.scope();
    forward.call(&arguments)?;
    {
        // Without a handler the weight is materialized, in the graph as well.
        let _plain = Arc::new(Registry::new()).scope();
        forward.call(&arguments)?;
    }
    {
        let _deny = Policy::Deny.scope();
        forward.call(&arguments)?;
    }
    forward.call(&arguments)?;
    Ok(told(forward.stats()))
}
// ANCHOR_END: ambient

// ANCHOR: bounded
/// Structures that come again and again, in a cache with room for two.
fn bounded() -> Result<String> {
    let options = CompileOptions { capacity: 2, ..CompileOptions::default() };
    let mut sum = compile_with(options, |x: Array| x.sum(None));
    for rows in [1, 2, 1, 2, 1, 3, 1, 2] {
        sum.call(&self::rows(rows)?)?;
    }
    let stats = sum.stats();
    Ok(format!("calls: {}, traces: {}, dropped: {}", stats.calls, stats.traces, stats.evicted))
}
// ANCHOR_END: bounded

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
