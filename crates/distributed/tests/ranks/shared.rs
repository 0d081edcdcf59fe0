//! What ranks share of the parts of one array, and what only looks alike.

use mlx_rs::{Array, ops};
use tacit_arrays::{Concat, Lora, Nf4Array, Stacked};
use tacit_conformance::close;
use tacit_core::transform::{grad, vjp};
use tacit_core::tree::Gradient;
use tacit_core::{Policy, Result, Value, implicit};
use tacit_distributed::{Group, Sharded};

use crate::case::Case;
use crate::checkpoints::normal;

pub(crate) const CASES: &[Case] = &[
    Case::new("experts_of_their_own", experts_of_their_own),
    Case::new("parts_of_other_kinds", parts_of_other_kinds),
    Case::new("scales_of_blocks_that_are_cut", scales_of_blocks_that_are_cut),
    Case::new("what_some_ranks_share_is_refused", what_some_ranks_share_is_refused),
];

/// A low-rank sum `[rows, 128]` over codes.
fn low_rank(seed: u64, rows: i32) -> Result<Value> {
    let base = Nf4Array::quantize(&normal(seed, &[rows, 128])?, 32)?;
    Ok(Lora::new(base, normal(seed + 1, &[2, 128])?, normal(seed + 2, &[rows, 2])?, 1.0)?.into())
}

fn assert_close(found: &Array, expected: &Array, what: &str) {
    close(found, expected, 2e-5).unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Factors of one shape, and one array in the place of two, are of other experts all the same.
fn experts_of_their_own(group: &Group) -> Result<()> {
    let _allow = Policy::Allow.scope();
    let zeros = ops::zeros::<f32>(&[8, 2])?;
    let expert = |seed: u64| -> Result<Value> {
        let base = Nf4Array::quantize(&normal(seed, &[8, 128])?, 32)?;
        Ok(Lora::new(base, normal(seed + 1, &[2, 128])?, zeros.clone(), 1.0)?.into())
    };
    for make in [&|at: u64| low_rank(10 * at, 8), &|at: u64| expert(10 * at)] as [&dyn Fn(u64) -> Result<Value>; 2] {
        let whole: Value = Stacked::new((0..4).map(make).collect::<Result<_>>()?)?.into();
        let x = normal(9, &[4, 3, 128])?;
        let gradient = |w: Value| -> Result<Gradient> {
            let x = x.clone();
            grad(move |w: Array| -> Result<Array> { Ok(x.matmul(w.transpose_axes(&[0, 2, 1])?)?.square()?.sum(None)?) })
                .call(w)
        };
        let expected = gradient(whole.clone())?;
        let found = gradient(Sharded::split(whole, 0, group)?.into())?;
        let own = 4 / group.size();
        for expert in 0..own {
            let (here, there) = (format!("experts.{expert}"), format!("experts.{}", expert + own * group.rank()));
            for factor in ["a", "b"] {
                let found = found.child("part").child(&here).child(factor);
                let expected = expected.child(&there).child(factor);
                assert_close(found.array()?, expected.array()?, &format!("{factor} of {there}"));
            }
        }
    }
    Ok(())
}

/// Some ranks have a dense part, and others codes: all of them run the same collectives.
fn parts_of_other_kinds(group: &Group) -> Result<()> {
    let _allow = Policy::Allow.scope();
    let codes = Nf4Array::quantize(&normal(2, &[4, 32])?, 32)?;
    let whole: Value = Concat::new(vec![normal(1, &[4, 32])?.into(), codes.into()], 0)?.into();
    let split: Value = Sharded::split(whole.clone(), 0, group)?.into();
    let gradient = |w: Value| -> Result<Array> {
        let x = normal(3, &[2, 32])?;
        let product = |x: Array| implicit((x, &w), |(x, w)| x.matmul(w.t()))?.dense();
        Ok(vjp(x, normal(4, &[2, 8])?, product)?.1.array()?.clone())
    };
    assert_close(&gradient(split.clone())?, &gradient(whole)?, "by the other side");
    let x = normal(3, &[2, 32])?;
    let by_part = grad(move |w: Array| -> Result<Array> { Ok(x.matmul(w.t())?.square()?.sum(None)?) }).call(split)?;
    for gradient in tacit_core::tree::arrays(&by_part)? {
        gradient.eval()?;
    }
    group.barrier()
}

/// A block that is cut in the middle has a scale of its own on both sides, though there are as many as in the whole.
fn scales_of_blocks_that_are_cut(group: &Group) -> Result<()> {
    let _allow = Policy::Allow.scope();
    for (shape, axis) in [([6, 32], 0), ([2, 96], 0), ([12, 32], 0), ([4, 96], 0)] {
        if !(shape[0] as usize).is_multiple_of(group.size()) {
            continue;
        }
        let whole: Value = Nf4Array::quantize(&normal(1, &shape)?, 64)?.into();
        let x = normal(3, &[5, shape[1]])?;
        let gradient = |w: Value| -> Result<Gradient> {
            let x = x.clone();
            grad(move |w: Array| -> Result<Array> { Ok(x.matmul(w.t())?.sin()?.sum(None)?) }).call(w)
        };
        let expected = gradient(whole.clone())?.child("scales").array()?.clone();
        let found = gradient(Sharded::split(whole, axis, group)?.into())?;
        let found = group.all_gather(found.child("part").child("scales").array()?, 0)?;
        // The scale of a block moves what both sides of it do: their gradients are its own.
        let blocks = shape[0] * shape[1] / found.dim(0);
        let of_block = |at: i32| -> Result<Array> {
            let own = (0..found.dim(0)).filter(|scale| scale * blocks / 64 == at);
            let places: Vec<i32> = own.collect();
            Ok(found.take_axis(Array::from_slice(&places, &[places.len() as i32]), 0)?.sum(None)?)
        };
        let sums = (0..expected.dim(0)).map(of_block).collect::<Result<Vec<_>>>()?;
        assert_close(&ops::stack(&sums, 0)?, &expected, &format!("{shape:?} along axis {axis}"));
    }
    Ok(())
}

/// A factor that is neither cut nor on every rank: no collective of all ranks has its gradient.
fn what_some_ranks_share_is_refused(group: &Group) -> Result<()> {
    let whole: Value = Concat::new(vec![low_rank(1, 8)?, low_rank(4, 16)?], 0)?.into();
    let error = Sharded::split(whole.clone(), 0, group).expect_err("some ranks share a factor").to_string();
    let words = "along axis 0 of Concat(f32[24,128]), f32[2,128] of it would be part of ranks 0 and 1, and not of every rank at one place";
    assert_eq!(error, format!("{words}\nhelp: split what it is made of one by one, or along another axis"));
    drop(Sharded::split(whole, 1, group)?);
    let empty = ops::zeros::<f32>(&[0, i32::MAX])?;
    let error = Sharded::from_part(empty, 1, group).expect_err("an axis is too long").to_string();
    let words = format!("{} parts of f32[0,2147483647] make an axis longer than MLX has", group.size());
    assert_eq!(error, format!("{words}\nhelp: split along another axis"));
    Ok(())
}
