//! The book's chapter on dispatch: who takes a call, clause by clause.

// ANCHOR: use
use mlx_rs::{Array, ops};
use tacit::arrays::Lora;
use tacit::prelude::*;
use tacit::primitives::{Add, Matmul, Negative, Unary};

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 6] = [
    ("specific", specific),
    ("declined", declined),
    ("swapped", swapped),
    ("default", default),
    ("fewest", fewest),
    ("layers", layers),
];

// ANCHOR: type
/// Twice an array.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Doubled")]
struct Doubled {
    half: Array,
}

impl Materialize for Doubled {
    fn materialize(&self) -> Result<Value> {
        Ok(self.half.add(&self.half)?.into())
    }
}

fn doubled(shape: &[i32]) -> Result<Doubled> {
    Ok(Doubled { half: ops::ones::<f32>(shape)? })
}
// ANCHOR_END: type

// ANCHOR: specific
/// Of this type, for one primitive.
#[handler]
fn negate_doubled(_: &Negative, x: &Doubled) -> Result<Value> {
    Ok(Doubled { half: x.half.negative()? }.into())
}

/// Of this type, for a whole class of primitives.
#[handler]
fn unary_of_doubled(op: &Unary, x: &Doubled) -> Result<Value> {
    let whole = x.materialize()?.dense()?;
    Ok(op.emit(&[whole])?.remove(0).into())
}

fn specific() -> Result<String> {
    Ok(explain(doubled(&[2])?, |x| x.negative()?.exp())?.to_string())
}
// ANCHOR_END: specific

// ANCHOR: declined
/// Only one row at a time.
#[handler]
fn row_by_doubled(_: &Matmul, x: &Array, w: &Doubled) -> Result<Array> {
    if x.shape()[0] != 1 {
        return Err(Error::decline("it takes one row"));
    }
    let y = x.matmul(&w.half)?;
    Ok(y.add(&y)?)
}

fn declined() -> Result<String> {
    let _quiet = Policy::Allow.scope();
    let (row, rows) = (ops::ones::<f32>(&[1, 4])?, ops::ones::<f32>(&[2, 4])?);
    let product = |(x, w): (Array, Array)| x.matmul(w);
    let taken = explain((row, doubled(&[4, 3])?), product)?;
    let declined = explain((rows, doubled(&[4, 3])?), product)?;
    Ok(format!("{taken}\n\n{declined}"))
}
// ANCHOR_END: declined

// ANCHOR: swapped
/// The array on the left; a sum may have it on either side.
#[handler]
fn doubled_plus(_: &Add, x: &Doubled, y: &Array) -> Result<Array> {
    Ok(x.half.add(&x.half)?.add(y)?)
}

fn swapped() -> Result<String> {
    let y = ops::ones::<f32>(&[2])?;
    Ok(explain((y, doubled(&[2])?), |(y, x)| y.add(x))?.to_string())
}
// ANCHOR_END: swapped

// ANCHOR: default
fn default() -> Result<String> {
    let master = ops::ones::<f32>(&[64, 64])?;
    let w = ste(&master, |w| Nf4Array::quantize(w, 64))?;
    let x = ops::ones::<f32>(&[2, 64])?;
    Ok(explain((x, w), |(x, w)| x.matmul(w.t()))?.to_string())
}
// ANCHOR_END: default

// ANCHOR: fewest
/// Nobody multiplies these two; the bias has the fewer bytes.
fn fewest() -> Result<String> {
    let _quiet = Policy::Allow.scope();
    let weight = Nf4Array::quantize(&ops::ones::<f32>(&[64, 64])?, 64)?;
    Ok(explain((weight, doubled(&[1])?), |(w, scale)| w.multiply(scale))?.to_string())
}
// ANCHOR_END: fewest

// ANCHOR: layers
/// An adapter on four bits, and an op that neither knows: one layer goes, then the other.
fn layers() -> Result<String> {
    let _quiet = Policy::Allow.scope();
    let base = Nf4Array::quantize(&ops::ones::<f32>(&[64, 64])?, 64)?;
    let w = Lora::new(base, ops::ones::<f32>(&[4, 64])?, ops::zeros::<f32>(&[64, 4])?, 8.0)?;
    let told = explain(w, |w| w.cumsum(0, None, None))?;
    Ok(format!("{told}\n{} arrays, {} bytes", told.counters.materialized, told.counters.materialized_bytes))
}
// ANCHOR_END: layers

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
