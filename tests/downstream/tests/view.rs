//! A view of a stranger's: without a handler of its own it is transposed, sliced, reshaped and gathered, and nothing is built.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops};
use tacit::arrays::{Move, View};
use tacit::format::{Affine, Quantizer};
use tacit::{ImplicitArray, Materialize, Policy, Result, Value, implicit};

/// Another array, squared.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "downstream.Squared", family(View))]
struct Squared {
    root: Value,
}

impl Materialize for Squared {
    fn materialize(&self) -> Result<Value> {
        Ok(self.root.dense()?.square()?.into())
    }
}

impl View for Squared {
    fn moved(&self, step: &Move<'_>) -> Result<Value> {
        Ok(Squared { root: step.of(&self.root)? }.into())
    }
}

#[test]
fn it_moves_with_the_array_behind_it() -> Result<()> {
    let x = ops::arange::<_, f32>(None, 8 * 64, None)?.reshape(&[8, 64])?;
    let root = Affine { bits: 8, group: 32 }.quantize(&x)?;
    let whole = Value::from(Squared { root }).dense()?;
    let moves: [fn(Array) -> Result<Array>; 4] = [
        |w| Ok(w.t()),
        |w| Ok(w.try_index((2..6, ..))?),
        |w| Ok(w.reshape(&[2, 4, 64])?.transpose_axes(&[1, 0, 2])?),
        |w| Ok(w.reshape(&[4, 2, 64])?.try_index(1..3)?),
    ];
    for step in moves {
        let deny = Policy::Deny.scope();
        let view = implicit(Squared { root: Affine { bits: 8, group: 32 }.quantize(&x)? }, step)?;
        assert!(view.downcast::<Squared>().is_some(), "{view}");
        drop(deny);
        assert!(view.dense()?.array_eq(step(whole.clone())?, None)?.item_exact::<bool>());
    }
    let rows = Array::from_slice(&[5, 0], &[2]);
    let _deny = Policy::Deny.scope();
    let taken = implicit(Squared { root: Affine { bits: 8, group: 32 }.quantize(&x)? }, |w| w.take_axis(&rows, 0))?;
    assert!(taken.dense()?.array_eq(whole.take_axis(&rows, 0)?, None)?.item_exact::<bool>());
    Ok(())
}
