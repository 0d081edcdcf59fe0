//! Slices in front of programs, concatenations behind them, and programs beside each other, as rotary embeddings have them.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Result, explain};

use crate::same::{Function, check, nodes, normal, of};

const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// Checks a function of every float type bit for bit, and gives the nodes that programs stand for.
#[track_caller]
fn exact(f: Function<'_>, inputs: &[Array]) -> usize {
    let counts = FLOATS.map(|dtype| {
        let inputs: Vec<Array> = inputs.iter().map(|input| of(dtype, input)).collect();
        nodes(&check(f, &inputs, 0.0), "programs")
    });
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    counts[0]
}

/// The two halves of the last axis as pairs that are turned.
fn turned(x: &Array, cos: &Array, sin: &Array) -> Result<Array> {
    let half = cos.dim(-1);
    let (a, b) = (x.try_index((.., .., .., ..half))?, x.try_index((.., .., .., half..2 * half))?);
    let first = a.multiply(cos)?.subtract(b.multiply(sin)?)?;
    let second = a.multiply(sin)?.add(b.multiply(cos)?)?;
    Ok(ops::concatenate(&[&first, &second], -1)?)
}

/// What is turned, and the angles.
fn heads([heads, tokens, half]: [i32; 3]) -> [Array; 3] {
    [normal(&[2, heads, tokens, 2 * half], 0), normal(&[tokens, half], 1), normal(&[tokens, half], 2)]
}

#[test]
fn a_rotary_embedding_is_one_program_of_the_same_bits() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> { Ok(vec![turned(&inputs[0], &inputs[1], &inputs[2])?]) };
    for [head_count, tokens] in [[1, 1], [4, 1], [3, 5]] {
        for half in [1, 7, 64, 129] {
            // The four products, the sums, and the concatenation, but of single numbers.
            let count = exact(&f, &heads([head_count, tokens, half]));
            assert_eq!(count, 6 + usize::from(half > 1), "{head_count} heads of {half}, {tokens} tokens");
        }
    }
}

#[test]
fn a_rotary_embedding_leaves_one_node() -> Result<()> {
    let [x, cos, sin] = heads([4, 3, 8]);
    let told = explain((x, cos, sin), |(x, cos, sin): (Array, Array, Array)| turned(&x, &cos, &sin))?;
    let names: Vec<&str> = told.compiled.nodes.iter().map(|node| node.primitive.as_str()).collect();
    assert_eq!(names, ["RowProgram"]);
    Ok(())
}

#[test]
fn parts_of_every_kind_are_those_of_their_rows() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, y] = inputs else { unreachable!() };
        let whole = x.multiply(y)?;
        let part = whole.try_index((.., .., 3..8))?;
        let (square, magnitude) = (part.square()?, part.abs()?);
        let scaled = part.subtract(part.max_axes(&[-1], true)?)?;
        Ok(vec![
            ops::concatenate(&[&square, &magnitude, &square], -1)?,
            // By itself too, and beside what no program makes.
            ops::concatenate(&[&magnitude, &x.try_index((.., .., ..5))?], -1)?,
            ops::concatenate(&[&scaled, &scaled], 0)?,
            square.add(&magnitude)?,
            part.min_axes(&[-1], false)?,
            // Other rows than those of the array that is cut.
            part.reshape(&[-1, 5])?.add(y.try_index((.., .., 7..))?.reshape(&[-1, 5])?)?,
            part.reshape(&[5, -1])?.negative()?,
            part.swap_axes(0, 1)?.abs()?,
            // Rows of one number, of a slice, of a broadcast, of other steps, and of a part of the other axes.
            whole.try_index((.., .., 2..3))?.negative()?,
            whole.try_index((.., .., 1..))?.try_index((.., .., 1..9))?.negative()?,
            ops::broadcast_to(&whole.try_index((.., ..1, ..4))?, &[3, 5, 4])?.abs()?,
            whole.flip(mlx_rs::Axes::Axis(-1))?.try_index((.., .., 2..9))?.abs()?,
            whole.try_index((1.., 2..4, 3..8))?.square()?,
            x.add(&whole)?,
        ])
    };
    assert!(exact(&f, &[normal(&[3, 5, 12], 0), normal(&[3, 5, 12], 1)]) >= 14);
    // In which there is but one row.
    assert!(exact(&f, &[normal(&[3, 5, 12], 2), normal(&[1, 1, 12], 3)]) >= 14);
}

#[test]
fn long_rows_are_cut_where_they_are_parts() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = &inputs[0];
        let (a, b) = (x.try_index((.., 1..2001))?, x.try_index((.., 2001..))?);
        Ok(vec![ops::concatenate(&[&a.add(&b)?, &a.subtract(&b)?], -1)?])
    };
    assert_eq!(exact(&f, &[normal(&[4, 4001], 0)]), 2);
}

#[test]
fn ops_that_take_the_same_arrays_are_one_program() -> Result<()> {
    let told = explain((normal(&[6, 8], 0), normal(&[6, 8], 1)), |(x, y): (Array, Array)| {
        Ok::<_, tacit_core::Error>([x.add(&y)?, x.multiply(&y)?.exp()?, y.subtract(&x)?])
    })?;
    let names: Vec<&str> = told.compiled.nodes.iter().map(|node| node.primitive.as_str()).collect();
    assert_eq!(names, ["RowProgram"]);
    // Of other arrays, and behind a product of the others.
    let told = explain((normal(&[6, 6], 0), normal(&[6, 6], 1)), |(x, y): (Array, Array)| {
        let sum = x.add(&y)?;
        Ok::<_, tacit_core::Error>([x.square()?, x.multiply(&y)?.add(sum.matmul(&x)?)?, sum.matmul(&y)?])
    })?;
    let programs = told.compiled.nodes.iter().flat_map(|node| &node.stages).filter(|(name, _)| *name == "RowProgram");
    assert_eq!(programs.count(), 3);
    Ok(())
}
