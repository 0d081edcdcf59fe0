//! The book's second chapter: an array type and its handlers, from nothing.

// ANCHOR: type
use approx::assert_relative_eq;
use mlx_rs::module::Module;
use mlx_rs::{Array, Dtype, nn, ops, random, transforms};
use std::sync::Arc;
use tacit::dispatch::Registry;
use tacit::model::explain_with_parameters;
use tacit::prelude::*;
use tacit::primitives::{Add, AddMM, Matmul, Transpose};

/// The product of a tall matrix and a wide one: `left right`.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.LowRank")]
struct LowRank {
    /// `f32[n, rank]`
    left: Array,
    /// `f32[rank, k]`
    right: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl LowRank {
    fn new(left: Array, right: Array) -> Result<Self> {
        let (&[n, rank], &[also_rank, k]) = (left.shape(), right.shape()) else {
            return Err(Error::invalid("a factor is not a matrix", "give two matrices"));
        };
        if rank != also_rank {
            return Err(Error::invalid("the factors have different ranks", "give f32[n,rank] and f32[rank,k]"));
        }
        Ok(Self { aval: Aval::new(&[n, k], Dtype::Float32), left, right })
    }
}

impl Materialize for LowRank {
    fn materialize(&self) -> Result<Value> {
        Ok(self.left.matmul(&self.right)?.into())
    }
}
// ANCHOR_END: type

// ANCHOR: matmul
#[handler]
fn low_rank_matmul(_op: &Matmul, x: &Array, w: &LowRank) -> Result<Array> {
    Ok(x.matmul(&w.left)?.matmul(&w.right)?)
}
// ANCHOR_END: matmul

// ANCHOR: transpose
#[handler]
fn low_rank_transpose(op: &Transpose, w: &LowRank) -> Result<Value> {
    if op.axes != [1, 0] {
        return Err(Error::decline("only the two axes of a matrix can be swapped"));
    }
    Ok(LowRank::new(w.right.t(), w.left.t())?.into())
}
// ANCHOR_END: transpose

// ANCHOR: addmm
#[handler]
fn low_rank_addmm(op: &AddMM, x: &Array, w: &LowRank, bias: &Array) -> Result<Array> {
    if (op.alpha, op.beta) != (1.0, 1.0) {
        return Err(Error::decline("a scaled sum is rare and left to the dense weight"));
    }
    Ok(x.matmul(&w.left)?.matmul(&w.right)?.add(bias)?)
}
// ANCHOR_END: addmm

// ANCHOR: add
#[handler]
fn low_rank_add(_op: &Add, a: &LowRank, b: &LowRank) -> Result<Value> {
    if a.aval != b.aval {
        return Err(Error::decline("a sum that broadcasts has no factors"));
    }
    let sum = LowRank::new(ops::concatenate(&[&a.left, &b.left], 1)?, ops::concatenate(&[&a.right, &b.right], 0)?)?;
    if Value::from(sum.clone()).nbytes() >= sum.aval.nbytes() {
        return Err(Error::decline("the factors of the sum would be larger than the sum"));
    }
    Ok(sum.into())
}
// ANCHOR_END: add

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 8] = [
    ("no_handler", no_handler),
    ("matmul_only", matmul_only),
    ("both", both),
    ("denied", denied),
    ("biased", biased),
    ("declined", declined),
    ("gradient", gradient),
    ("checked", checked),
];

// ANCHOR: data
/// A matrix of rank 4 that stands for `f32[64,256]`, and something to multiply it with.
fn data() -> Result<(LowRank, Array)> {
    random::seed(0)?;
    let normal = |shape: &[i32]| random::normal::<f32>(shape, None, None, None);
    Ok((LowRank::new(normal(&[64, 4])?, normal(&[4, 256])?)?, normal(&[2, 256])?))
}

/// What becomes of `x w^T` with the handlers of `registry` alone.
fn explained(registry: Registry) -> Result<String> {
    let _guard = Arc::new(registry).scope();
    let (w, x) = data()?;
    let explanation = explain((x, w), |(x, w)| x.matmul(w.t()))?;
    Ok(explanation.to_string())
}
// ANCHOR_END: data

// ANCHOR: no_handler
fn no_handler() -> Result<String> {
    explained(Registry::new())
}
// ANCHOR_END: no_handler

// ANCHOR: matmul_only
fn matmul_only() -> Result<String> {
    explained(Registry::new().with::<low_rank_matmul>())
}
// ANCHOR_END: matmul_only

// ANCHOR: both
fn both() -> Result<String> {
    explained(Registry::new().with::<low_rank_matmul>().with::<low_rank_transpose>())
}
// ANCHOR_END: both

// ANCHOR: denied
/// A layer with a bias, without the handler that it needs.
fn denied() -> Result<String> {
    let registry = Registry::new().with::<low_rank_matmul>().with::<low_rank_transpose>();
    let _registry = Arc::new(registry).scope();
    let _policy = Policy::Deny.scope();
    let (w, x) = data()?;
    let mut linear = nn::Linear::new(256, 64)?;
    let weights = Parameters::from([("weight".to_owned(), w.into())]);
    let refused = with_parameters(&mut linear, &weights, |linear| linear.forward(&x));
    Ok(refused.expect_err("no handler takes the bias").to_string())
}
// ANCHOR_END: denied

// ANCHOR: biased
/// The same layer with everything that `#[handler]` registered in this program.
fn biased() -> Result<String> {
    let _policy = Policy::Deny.scope();
    let (w, x) = data()?;
    let mut linear = nn::Linear::new(256, 64)?;
    let weights = Parameters::from([("weight".to_owned(), w.into())]);
    let explanation = explain_with_parameters(&mut linear, &weights, |linear| linear.forward(&x))?;
    Ok(explanation.to_string())
}
// ANCHOR_END: biased

// ANCHOR: declined
/// Sums of two matrices of rank 4 and of two of rank 32.
fn declined() -> Result<String> {
    let _policy = Policy::Allow.scope();
    let mut lines = Vec::new();
    for rank in [4, 32] {
        let w = LowRank::new(ops::ones::<f32>(&[64, rank])?, ops::ones::<f32>(&[rank, 256])?)?;
        let (result, counters) = Counters::during(|| implicit((&w, &w), |(a, b)| a.add(b)));
        lines.push(format!("rank {rank}: {}, {} declined", result?, counters.declined));
    }
    Ok(lines.join("\n"))
}
// ANCHOR_END: declined

// ANCHOR: gradient
/// The gradient with respect to a factor, through the handlers.
fn gradient() -> Result<String> {
    let (w, x) = data()?;
    let right = w.right.clone();
    let loss = move |left: &Array| -> Result<Array> {
        let w = LowRank::new(left.clone(), right.clone())?;
        implicit((&x, w), |(x, w)| x.matmul(w.t())?.sum(None))?.dense()
    };
    let mut gradient = transforms::grad(move |left: &Array| Ok(loss(left)?));
    Ok(Value::from(gradient(&w.left)?).to_string())
}
// ANCHOR_END: gradient

// ANCHOR: checked
/// Each handler against the primitive on the materialized array.
fn checked() -> Result<String> {
    Registry::global().check().map_err(|mut errors| errors.remove(0))?;
    let (w, x) = data()?;
    let dense = Value::from(w.clone()).dense()?;
    let product = |(x, w): (Array, Array)| x.matmul(w.t());
    let by_handler = implicit((&x, w), product)?;
    let by_mlx = Value::from(product((x, dense))?);
    assert_relative_eq!(by_handler, by_mlx, epsilon = 1e-4, max_relative = 1e-4);
    Ok(format!("both are {by_mlx}"))
}
// ANCHOR_END: checked

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
