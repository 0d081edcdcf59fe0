//! Functions without shapes of weights that are split: one trace for every batch.

use mlx_rs::{Array, ops};
use tacit_arrays::Nf4Array;
use tacit_conformance::close;
use tacit_core::compile::{CompileOptions, Constants};
use tacit_core::{Policy, Result, Value, compile_with};
use tacit_distributed::{Group, Sharded};

use crate::case::Case;
use crate::checkpoints::normal;

pub(crate) const CASES: &[Case] = &[
    Case::new("layers_of_any_batch", layers_of_any_batch),
    Case::new("moved_parts_of_any_batch", moved_parts_of_any_batch),
    Case::new("what_is_cut_is_gathered_instead", what_is_cut_is_gathered_instead),
];

const BATCHES: [[i32; 3]; 3] = [[2, 3, 32], [5, 4, 32], [3, 33, 32]];

type Layers = (Array, Array, Array, Array, Array);

/// The first layer, of whose outputs each rank has some, and the second, of whose inputs it has these.
fn layers((x, up, bias, down, other): Layers) -> Result<Array> {
    let hidden = ops::maximum(ops::addmm(bias, &x, up.t(), None, None)?, Array::from_f32(0.0))?;
    Ok(ops::addmm(other, hidden, down.t(), None, None)?)
}

fn options() -> CompileOptions {
    CompileOptions { shapeless: true, constants: Constants::Deny, ..CompileOptions::default() }
}

fn layers_of_any_batch(group: &Group) -> Result<()> {
    let (up, down) = (normal(1, &[128, 32])?, normal(2, &[32, 128])?);
    let (bias, other) = (normal(3, &[128])?, normal(4, &[32])?);
    let nf4 = |w: &Array| -> Result<Value> { Ok(Nf4Array::quantize(w, 32)?.into()) };
    for (up, down) in [(up.clone().into(), down.clone().into()), (nf4(&up)?, nf4(&down)?)] {
        let split = |w: &Value, axis: i32| Sharded::split(w.clone(), axis, group);
        let (own_up, own_bias, own_down) = (split(&up, 0)?, split(&bias.clone().into(), 0)?, split(&down, 1)?);
        let mut compiled = compile_with(options(), layers);
        for shape in BATCHES {
            let x = normal(5, &shape)?;
            let expected = {
                let _allow = Policy::Allow.scope();
                layers((x.clone(), up.dense()?, bias.clone(), down.dense()?, other.clone()))?
            };
            let _deny = Policy::Deny.scope();
            let found = compiled.call((&x, &own_up, &own_bias, &own_down, &other))?.dense()?;
            close(&found, &expected, 2e-5).unwrap_or_else(|error| panic!("{up} and {shape:?}: {error}"));
        }
        assert_eq!(compiled.stats().traces, 1, "{up}");
    }
    Ok(())
}

/// Axes that come and go, and a split bias beside an array that is not long along the axis where it is split.
fn moved_parts_of_any_batch(group: &Group) -> Result<()> {
    let moved = |(x, up, bias): (Array, Array, Array)| -> Result<Array> {
        let hidden = x.matmul(up.t())?.expand_dims(1)?.flatten(0, 1)?;
        let total = hidden.sum_axis(1, false)?;
        Ok(x.sum_axis(-1, true)?.add(bias)?.multiply(total.expand_dims(1)?)?.sum_axis(-1, false)?)
    };
    let (up, bias) = (normal(1, &[128, 32])?, normal(3, &[128])?);
    let (own_up, own_bias) = (Sharded::split(up.clone(), 0, group)?, Sharded::split(bias.clone(), 0, group)?);
    let mut compiled = compile_with(options(), moved);
    for shape in BATCHES {
        let x = normal(5, &shape)?;
        let expected = moved((x.clone(), up.clone(), bias.clone()))?;
        let _deny = Policy::Deny.scope();
        let found = compiled.call((&x, &own_up, &own_bias))?.dense()?;
        close(&found, &expected, 2e-5).unwrap_or_else(|error| panic!("{shape:?}: {error}"));
    }
    assert_eq!(compiled.stats().traces, 1);
    Ok(())
}

/// A rank's part of the inputs would be cut by extents that are written down.
fn what_is_cut_is_gathered_instead(group: &Group) -> Result<()> {
    let w = normal(1, &[16, 32])?;
    let split = Sharded::split(w.clone(), 1, group)?;
    let mut compiled = compile_with(options(), |(x, w): (Array, Array)| x.matmul(w.t()));
    let _allow = Policy::Allow.scope();
    for shape in BATCHES {
        let x = normal(5, &shape)?;
        let found = compiled.call((&x, &split))?.dense()?;
        close(&found, x.matmul(w.t())?, 2e-5).unwrap_or_else(|error| panic!("{shape:?}: {error}"));
    }
    assert_eq!(compiled.stats().traces, 1);
    Ok(())
}
