//! The book's chapter on families: a type that joins three of them, and a handler for a class of primitives.

// ANCHOR: use
use std::ops::Range;

use mlx_rs::{Array, ops, random};
use tacit::arrays::{Cut, Linear, Move, Product, View, cut, shard};
use tacit::prelude::*;
use tacit::primitives::Unary;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 4] = [("moved", moved), ("parts", parts), ("product", product), ("unary", unary)];

// ANCHOR: type
/// Another array plus a number.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Shifted", family(View, Cut, Linear))]
struct Shifted {
    inner: Value,
    /// `f32[]`
    by: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Shifted {
    fn new(inner: Value, by: Array) -> Result<Self> {
        Ok(Self { aval: inner.aval()?, inner, by })
    }
}

impl Materialize for Shifted {
    fn materialize(&self) -> Result<Value> {
        Ok(self.inner.dense()?.add(&self.by)?.into())
    }
}
// ANCHOR_END: type

// ANCHOR: view
impl View for Shifted {
    fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>> {
        step.around([&self.inner], |[inner]| Ok(Self::new(inner, self.by.clone())?.into()))
    }
}
// ANCHOR_END: view

// ANCHOR: moved
/// A matrix in four bits plus 0.5.
fn shifted() -> Result<Shifted> {
    let w = random::normal::<f32>(&[64, 256], None, None, Some(&random::key(0)?))?;
    Shifted::new(Nf4Array::quantize(&w, 64)?.into(), Array::from_f32(0.5))
}

fn moved() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let rows = Array::from_slice(&[5, 0, 3], &[3]);
    let explanation = explain((shifted()?, rows), |(w, rows)| w.take_axis(rows, 0)?.reshape(&[3, 4, 64]))?;
    Ok(explanation.to_string())
}
// ANCHOR_END: moved

// ANCHOR: cut
impl Cut for Shifted {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        Ok(Self::new(cut(&self.inner, axis as i32, range)?, self.by.clone())?.into())
    }
}
// ANCHOR_END: cut

// ANCHOR: parts
/// The half of the rows that the second of two processes holds.
fn parts() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let whole = Value::from(shifted()?);
    let half = shard(&whole, 0, 1, 2)?;
    Ok(format!("{whole}, {} bytes\n{half}, {} bytes", whole.nbytes(), half.nbytes()))
}
// ANCHOR_END: parts

// ANCHOR: linear
impl Linear for Shifted {
    /// `x (W + c)` is `x W`, plus `c` times the sum of each row of `x`; `(W + c) x` is `W x`, plus `c` times that of each column.
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        if product == Product::Rows {
            return Err(Error::decline("the family `View` takes rows"));
        }
        implicit((x, &self.inner, &self.by), |(x, w, by)| -> Result<Array> {
            let sums = x.sum_axes(&[product.axis()], true)?;
            Ok(product.apply(&x, &w)?.add(sums.multiply(by)?)?)
        })
    }
}
// ANCHOR_END: linear

// ANCHOR: product
fn product() -> Result<String> {
    let (x, bias) = (ops::ones::<f32>(&[2, 256])?, ops::zeros::<f32>(&[64])?);
    let layer = |(x, w, bias): (Array, Array, Array)| ops::addmm(bias, x, w.t(), None, None);
    let expected = implicit((&x, shifted()?.materialize()?, &bias), layer)?.dense()?;

    let _deny = Policy::Deny.scope();
    let explanation = explain((&x, shifted()?, &bias), layer)?;
    let y = implicit((&x, shifted()?, &bias), layer)?.dense()?;
    let same = y.all_close(&expected, 1e-4, 1e-4, None)?;
    Ok(format!("{explanation}\nas with the dense matrix: {same}"))
}
// ANCHOR_END: product

// ANCHOR: class
/// One number at every place.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Filled")]
struct Filled {
    /// `f32[]`
    number: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Filled {
    fn materialize(&self) -> Result<Value> {
        Ok(ops::broadcast_to(&self.number, &self.aval.shape)?.into())
    }
}

/// Every unary primitive of equal elements is that of one of them.
#[handler]
fn filled_unary(op: &Unary, x: &Filled, results: &[Aval]) -> Result<Value> {
    // A primitive that is put into the graph again keeps its number of axes.
    let one = x.number.reshape(&vec![1; x.aval.shape.len()])?;
    let number = op.emit(&[one])?.remove(0).reshape(&[])?;
    Ok(Filled { number, aval: results[0].clone() }.into())
}
// ANCHOR_END: class

// ANCHOR: unary
fn unary() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let x = Filled { number: Array::from_f32(4.0), aval: "f32[1000,1000]".parse().expect("an aval") };
    Ok(explain(x, |x| x.sqrt()?.negative()?.exp())?.to_string())
}
// ANCHOR_END: unary

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
