//! A view of a stranger's: without a handler of its own it is transposed, sliced, reshaped and gathered, and nothing is built.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops};
use tacit::arrays::{Move, View};
use tacit::format::{Affine, Quantizer};
use tacit::{Aval, ImplicitArray, Materialize, Policy, Result, Value, implicit};

/// Another array, squared.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "downstream.Squared", family(View))]
struct Squared {
    root: Value,
    #[implicit(aux)]
    aval: Aval,
}

impl Squared {
    fn of(root: Value) -> Result<Self> {
        Ok(Self { aval: root.aval()?, root })
    }
}

impl Materialize for Squared {
    fn materialize(&self) -> Result<Value> {
        Ok(self.root.dense()?.square()?.into())
    }
}

impl View for Squared {
    fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>> {
        step.around([&self.root], |[root]| Ok(Self::of(root)?.into()))
    }
}

#[test]
fn it_moves_with_the_array_behind_it() -> Result<()> {
    let x = ops::arange::<_, f32>(None, 8 * 64, None)?.reshape(&[8, 64])?;
    let rows = Array::from_slice(&[5, 0], &[2]);
    let squared = || Squared::of(Affine { bits: 8, group: 32 }.quantize(&x)?);
    let whole = Value::from(squared()?).dense()?;
    let moves: [&dyn Fn(&Array) -> Result<Array>; 4] = [
        &|w| Ok(w.t()),
        &|w| Ok(w.try_index((2..6, ..))?),
        &|w| Ok(w.reshape(&[4, 2, 64])?.try_index(1..3)?),
        &|w| Ok(w.take_axis(&rows, 0)?),
    ];
    for step in moves {
        let deny = Policy::Deny.scope();
        let view = implicit(squared()?, |w| step(&w))?;
        drop(deny);
        assert!(view.dense()?.array_eq(step(&whole)?, None)?.item_exact::<bool>(), "{view}");
    }
    Ok(())
}
