//! The collectives: each against plain ops on the arrays of all ranks, which every rank can make for itself.

mod evaluated;

use std::time::Duration;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::transform::{jvp, vjp, vmap};
use tacit_core::{Error, Result, compile};
use tacit_distributed::{Backend, FullySharded, Group, Traffic};

use self::evaluated::{begun_from_either_end, calls_of_one_trace, calls_that_nothing_compiles};
use crate::case::{Apart, Case};

pub(crate) const CASES: &[Case] = &[
    Case::new("values", values),
    Case::new("extremes_of_nan", extremes_of_nan),
    Case::new("gradients", gradients),
    Case::new("entering", entering),
    Case::new("tangents", tangents),
    Case::new("mapped", mapped),
    Case::new("shared_extremes", shared_extremes),
    Case::new("compiled", compiled),
    Case::new("operands_that_one_rank_finds_equal", operands_that_one_rank_finds_equal),
    Case::new("messages", messages),
    Case::new("bytes_are_counted", bytes_are_counted),
    Case::new("many_sums", many_sums).within(Duration::from_mins(4)),
    Case::new("wrong_calls", wrong_calls),
    Case::new("what_a_failed_kernel_leaves", what_a_failed_kernel_leaves),
    Case::new("begun_from_either_end", begun_from_either_end),
    Case::new("calls_of_one_trace", calls_of_one_trace),
    // Where MLX finds no compiler, Tacit replays what was recorded itself.
    Case::new("calls_of_one_trace_that_nothing_compiles", calls_that_nothing_compiles).sizes(&[2]).apart(Apart {
        variables: &[("PATH", "/nowhere")],
        join: |_| Group::init(),
        lost: &[],
        judge: |ranks| {
            let failed = ranks.iter().find_map(|rank| rank.said.clone().unwrap_or(Err("it ended".to_owned())).err());
            failed.map_or(Ok(()), Err)
        },
    }),
];

/// A collective, and what it gives to a rank of the arrays of all.
struct Trial {
    name: &'static str,
    collective: fn(&Group, &Array) -> Result<Array>,
    plain: fn(&[Array], usize) -> Result<Array>,
    /// Whether it gives the same to every rank, whose cotangents are then one.
    replicated: bool,
}

const TRIALS: [Trial; 7] = [
    Trial {
        name: "all_sum",
        collective: Group::all_sum,
        plain: |all, _| folded(all, |sum, x| sum.add(x)),
        replicated: true,
    },
    Trial {
        name: "all_max",
        collective: Group::all_max,
        plain: |all, _| folded(all, |most, x| ops::maximum(most, x)),
        replicated: true,
    },
    Trial {
        name: "all_min",
        collective: Group::all_min,
        plain: |all, _| folded(all, |least, x| ops::minimum(least, x)),
        replicated: true,
    },
    Trial {
        name: "all_gather of rows",
        collective: |group, x| group.all_gather(x, 0),
        plain: |all, _| Ok(ops::concatenate(all, 0)?),
        replicated: true,
    },
    Trial {
        name: "all_gather of columns",
        collective: |group, x| group.all_gather(x, -1),
        plain: |all, _| Ok(ops::concatenate(all, -1)?),
        replicated: true,
    },
    Trial {
        name: "gather_parts",
        collective: Group::gather_parts,
        plain: |all, _| Ok(ops::concatenate(all, 0)?),
        replicated: false,
    },
    Trial {
        name: "sum_scatter",
        collective: Group::sum_scatter,
        plain: |all, rank| {
            let sum = folded(all, |sum, x| sum.add(x))?;
            Ok(sum.split_equal(all.len() as i32, 0)?.swap_remove(rank))
        },
        replicated: false,
    },
];

pub(crate) fn folded(
    all: &[Array],
    mut join: impl FnMut(&Array, &Array) -> std::result::Result<Array, mlx_rs::error::Exception>,
) -> Result<Array> {
    let mut joined = all[0].clone();
    for x in &all[1..] {
        joined = join(&joined, x)?;
    }
    Ok(joined)
}

/// Small numbers, whose sums are exact in every dtype and in every order; no two ranks have the same in one place, unless
/// the dtype is that of whole numbers. Sums of bytes fit into a byte: Open MPI ends at the largest and does not wrap.
pub(crate) fn numbers(rank: usize, shape: &[i32], dtype: Dtype) -> Result<Array> {
    let size: i32 = shape.iter().product();
    let least = if dtype == Dtype::Uint8 { 0 } else { -5 };
    let number = |at: i32| ((at * 7 + rank as i32 * 3) % 11 + least) as f32 + 0.25 * rank as f32;
    let own: Vec<f32> = (0..size).map(number).collect();
    Ok(Array::from_slice(&own, shape).as_dtype(dtype)?)
}

fn of_all(group: &Group, shape: &[i32], dtype: Dtype) -> Result<Vec<Array>> {
    (0..group.size()).map(|rank| numbers(rank, shape, dtype)).collect()
}

pub(crate) fn assert_equal(found: &Array, expected: &Array, what: &str) -> Result<()> {
    assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()), "{what}");
    assert!(found.eq(expected)?.all(None)?.item_exact::<bool>(), "{what}: {found:?}, expected {expected:?}");
    Ok(())
}

fn values(group: &Group) -> Result<()> {
    use Dtype::{Bfloat16, Bool, Float16, Float32, Int32, Uint8};
    assert!(group.rank() < group.size() && [2, 4].contains(&group.size()), "{group:?}");
    for trial in &TRIALS {
        for dtype in [Float32, Float16, Bfloat16, Int32, Uint8] {
            // Rows are cut into a part for each rank; a ring sums fewer elements than it has ranks in another way.
            for shape in [&[4, 1][..], &[8, 3], &[4, 25_001]] {
                let all = of_all(group, shape, dtype)?;
                let found = (trial.collective)(group, &all[group.rank()])?;
                let what = format!("{} of {dtype:?} {shape:?}", trial.name);
                assert_equal(&found, &(trial.plain)(&all, group.rank())?, &what)?;
            }
        }
    }
    // What is not cut may have any shape.
    for trial in &TRIALS[..3] {
        for shape in [&[][..], &[1], &[3], &[0], &[7, 5]] {
            let all = of_all(group, shape, Float32)?;
            let found = (trial.collective)(group, &all[group.rank()])?;
            assert_equal(&found, &(trial.plain)(&all, group.rank())?, &format!("{} {shape:?}", trial.name))?;
        }
    }
    let all = of_all(group, &[5], Bool)?;
    assert_equal(&group.all_gather(&all[group.rank()], 0)?, &ops::concatenate(&all, 0)?, "all_gather of bool")?;
    let all = of_all(group, &[8, 3], Bool)?;
    let any = folded(&all, |any, x| any.logical_or(x))?;
    let any = any.split_equal(group.size() as i32, 0)?.swap_remove(group.rank());
    assert_equal(&group.sum_scatter(&all[group.rank()])?, &any, "sum_scatter of bool")?;
    // Of a view, whose elements lie apart.
    let all = of_all(group, &[8, 6], Float32)?;
    let transposed: Vec<Array> = all.iter().map(Array::t).collect();
    assert_equal(&group.all_sum(&transposed[group.rank()])?, &(TRIALS[0].plain)(&transposed, 0)?, "all_sum of a view")
}

/// NaN is the extreme wherever it is: on any rank, in a place that is compared by itself or with others at once.
fn extremes_of_nan(group: &Group) -> Result<()> {
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        for (holder, size) in (0..group.size()).flat_map(|rank| [1, 3, 8, 1000].map(|size| (rank, size))) {
            for at in [0, size / 2, size - 1] {
                let number = |place| if (group.rank(), place) == (holder, at) { f32::NAN } else { group.rank() as f32 };
                let own: Vec<f32> = (0..size).map(number).collect();
                let own = Array::from_slice(&own, &[size as i32]).as_dtype(dtype)?;
                for (found, other) in [(group.all_max(&own)?, group.size() as f32 - 1.0), (group.all_min(&own)?, 0.0)] {
                    let found = found.as_dtype(Dtype::Float32)?;
                    for (place, found) in found.as_slice::<f32>().iter().enumerate() {
                        let right = if place == at { found.is_nan() } else { found.to_bits() == other.to_bits() };
                        assert!(right, "{found} at {place}, with NaN at {at} of rank {holder}, in {dtype:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

const SHAPE: [i32; 2] = [4, 3];

/// Cotangents of what a trial gives to a rank.
fn cotangents(trial: &Trial, all: &[Array]) -> Result<Vec<Array>> {
    let of = |rank: usize| {
        let result = (trial.plain)(all, rank)?;
        numbers(if trial.replicated { 7 } else { rank + 5 }, result.shape(), result.dtype())
    };
    (0..all.len()).map(of).collect()
}

/// The gradient of what all ranks make of their results together.
fn gradients(group: &Group) -> Result<()> {
    for trial in &TRIALS {
        for dtype in [Dtype::Float32, Dtype::Bfloat16] {
            let all = of_all(group, &SHAPE, dtype)?;
            let cotangents = cotangents(trial, &all)?;
            let own = |x: Array| (trial.collective)(group, &x);
            let (_, found) = vjp(&all[group.rank()], &cotangents[group.rank()], own)?;
            let together = |x: Array| -> Result<Array> {
                let mut all = all.clone();
                all[group.rank()] = x;
                let counted = if trial.replicated { 1 } else { group.size() };
                let of = |rank: usize| Ok((trial.plain)(&all, rank)?.multiply(&cotangents[rank])?.sum(None)?);
                folded(&(0..counted).map(of).collect::<Result<Vec<_>>>()?, |sum, x| sum.add(x))
            };
            let one = Array::from_f32(1.0).as_dtype(dtype)?;
            let (_, expected) = vjp(&all[group.rank()], one, together)?;
            assert_equal(found.array()?, expected.array()?, &format!("the gradient of {} of {dtype:?}", trial.name))?;
        }
    }
    Ok(())
}

/// A replicated array that each rank uses for its own has the sum of their gradients.
fn entering(group: &Group) -> Result<()> {
    let x = numbers(1, &SHAPE, Dtype::Float32)?;
    let cotangents = of_all(group, &SHAPE, Dtype::Float32)?;
    let (same, found) = vjp(&x, &cotangents[group.rank()], |x: Array| group.enter(&x))?;
    assert_equal(&same.dense()?, &x, "what enters")?;
    assert_equal(found.array()?, &(TRIALS[0].plain)(&cotangents, 0)?, "its gradient")
}

fn tangents(group: &Group) -> Result<()> {
    for trial in &TRIALS {
        let all = of_all(group, &SHAPE, Dtype::Float32)?;
        let along: Vec<Array> =
            (0..group.size()).map(|rank| numbers(rank + 3, &SHAPE, Dtype::Float32)).collect::<Result<_>>()?;
        let own = |x: Array| (trial.collective)(group, &x);
        let (_, found) = jvp(&all[group.rank()], &along[group.rank()], own)?;
        let plain = |all: Vec<Array>| (trial.plain)(&all, group.rank());
        let (_, expected) = jvp(all, along, plain)?;
        assert_equal(&found.dense()?, &expected.dense()?, &format!("the tangent of {}", trial.name))?;
    }
    Ok(())
}

fn mapped(group: &Group) -> Result<()> {
    for trial in &TRIALS {
        for axis in [0, 1, 2] {
            let mut shape = SHAPE.to_vec();
            shape.insert(axis, 5);
            let all = of_all(group, &shape, Dtype::Float32)?;
            let found = vmap(axis as i32, 0, |x: Array| (trial.collective)(group, &x)).call(&all[group.rank()])?;
            let example = |at: i32| {
                let all = all
                    .iter()
                    .map(|x| Ok(x.take_axis(Array::from_int(at), axis as i32)?))
                    .collect::<Result<Vec<_>>>()?;
                (trial.plain)(&all, group.rank())
            };
            let expected = ops::stack(&(0..5).map(example).collect::<Result<Vec<_>>>()?, 0)?;
            assert_equal(&found.dense()?, &expected, &format!("{} mapped over axis {axis}", trial.name))?;
        }
    }
    Ok(())
}

fn compiled(group: &Group) -> Result<()> {
    for trial in &TRIALS {
        let around = |collective: &dyn Fn(&Array) -> Result<Array>, x: &Array| -> Result<Array> {
            let one = Array::from_f32(1.0);
            Ok(collective(&x.multiply(x)?.add(&one)?)?.subtract(one)?)
        };
        let mut call = compile(|x: Array| around(&|x| (trial.collective)(group, x), &x));
        for round in 0..3 {
            let all = (0..group.size())
                .map(|rank| numbers(rank + round, &SHAPE, Dtype::Float32))
                .collect::<Result<Vec<_>>>()?;
            let found = call.call(&all[group.rank()])?.dense()?;
            let squares = all.iter().map(|x| around(&|x| Ok(x.clone()), x)).collect::<Result<Vec<_>>>()?;
            let ones = squares.iter().map(|x| Ok(x.add(Array::from_f32(1.0))?)).collect::<Result<Vec<_>>>()?;
            let expected = (trial.plain)(&ones, group.rank())?.subtract(Array::from_f32(1.0))?;
            assert_equal(&found, &expected, &format!("{} compiled, round {round}", trial.name))?;
        }
        assert_eq!(call.stats().traces, 1, "{}", trial.name);
    }
    Ok(())
}

/// Ranks that have the extreme share its derivative, forwards and backwards alike.
fn shared_extremes(group: &Group) -> Result<()> {
    let share = 1.0 / group.size() as f32;
    let x = Array::from_slice(&[3.0, group.rank() as f32], &[2]);
    for (extreme, holder) in
        [(Group::all_max as fn(&Group, &Array) -> Result<Array>, group.size() - 1), (Group::all_min, 0)]
    {
        let own = if group.rank() == holder { 5.0 } else { 0.0 };
        let (_, found) = vjp(&x, Array::from_slice(&[8.0f32, 5.0], &[2]), |x: Array| extreme(group, &x))?;
        assert_equal(found.array()?, &Array::from_slice(&[8.0 * share, own], &[2]), "the gradient")?;
        let along = Array::from_slice(&[group.rank() as f32, 2.0], &[2]);
        let (_, found) = jvp(&x, &along, |x: Array| extreme(group, &x))?;
        let mean = (0..group.size()).sum::<usize>() as f32 * share;
        assert_equal(&found.dense()?, &Array::from_slice(&[mean, 2.0], &[2]), "the tangent")?;
    }
    Ok(())
}

/// Two collectives are two on every rank, also where a number makes their operands equal on one rank alone.
fn operands_that_one_rank_finds_equal(group: &Group) -> Result<()> {
    let own = Array::from_f32(group.rank() as f32);
    let mut call = compile(|x: Array| {
        let one = group.all_sum(&x.multiply(&own)?)?;
        Ok::<_, Error>(one.subtract(group.all_sum(&x.multiply(Array::from_f32(1.0))?)?)?)
    });
    let ranks = group.size() as f32;
    for round in 1..5 {
        let found = call.call(Array::from_f32(round as f32))?.dense()?;
        let expected = round as f32 * (ranks * (ranks - 1.0) / 2.0 - ranks);
        assert_equal(&found, &Array::from_f32(expected), &format!("round {round}"))?;
    }
    assert_eq!(call.stats().traces, 1);
    Ok(())
}

/// Round a ring: each rank sends to the next one.
fn messages(group: &Group) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
    for shape in [&[1][..], &[3, 5], &[100_003]] {
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Int32] {
            let send = || Ok::<_, Error>(group.send(&numbers(rank, shape, dtype)?, next)?.eval()?);
            let receive = || {
                let found = group.recv(shape, dtype, last)?;
                assert_equal(&found, &numbers(last, shape, dtype)?, &format!("{dtype:?} {shape:?}"))
            };
            // A message that is long is sent only when it is received.
            if rank % 2 == 0 {
                send()?;
                receive()?;
            } else {
                receive()?;
                send()?;
            }
        }
    }
    Ok(())
}

/// Gradients as a model has them: many small arrays, and some that are larger than a bucket.
pub(crate) fn gradient_tree(rank: usize) -> Result<Vec<(Array, Array)>> {
    let layer = |at: usize| -> Result<(Array, Array)> {
        let rows = if at == 2 { 1200 } else { 16 + at as i32 };
        Ok((numbers(rank + at, &[rows, 256], Dtype::Float32)?, numbers(rank + 2 * at, &[rows], Dtype::Float16)?))
    };
    (0..6).map(layer).collect()
}

/// What is counted are the bytes that go into collectives when they are evaluated: of gradients, those of the gradients.
fn bytes_are_counted(group: &Group) -> Result<()> {
    let before = group.traffic();
    let tree = gradient_tree(group.rank())?;
    // Half floats travel as `f32`.
    let bytes: usize = tree.iter().map(|(weight, bias)| weight.nbytes() + 2 * bias.nbytes()).sum();
    let mean = group.mean(&tree)?;
    assert_eq!(group.traffic(), before, "nothing is evaluated yet");
    mlx_rs::transforms::eval(mean.iter().flat_map(|(weight, bias)| [weight, bias]))?;
    let counted = group.traffic();
    // The large one, and the small ones.
    let expected = Traffic { collectives: before.collectives + 2, bytes: before.bytes + bytes as u64 };
    assert_eq!(counted, expected);
    let x = numbers(0, &[8, 16], Dtype::Float32)?;
    group.all_gather(&x, 0)?.eval()?;
    group.sum_scatter(&x)?.eval()?;
    let expected = Traffic { collectives: expected.collectives + 2, bytes: expected.bytes + 2 * 8 * 16 * 4 };
    assert_eq!(group.traffic(), expected);
    // Entering sends nothing forward.
    group.enter(&x)?.eval()?;
    assert_eq!(group.traffic(), expected);
    Ok(())
}

/// Many sums in a row, in the shapes of gradients: 1,000, a tenth of it where ranks share cores, since a ring's threads spin
/// while they wait, and 10,000 where `TACIT_SOAK` is set.
fn many_sums(group: &Group) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let shared = group.backend() == Backend::Ring && group.size() > cores;
    let count = match std::env::var_os("TACIT_SOAK") {
        Some(_) => 10_000,
        None if shared => 100,
        None => 1000,
    };
    let shapes: [&[i32]; 5] = [&[64, 64], &[64], &[256, 64], &[1], &[33, 7]];
    let all = shapes.map(|shape| of_all(group, shape, Dtype::Float32));
    let all = all.into_iter().collect::<Result<Vec<_>>>()?;
    let expected = all.iter().map(|all| (TRIALS[0].plain)(all, 0)).collect::<Result<Vec<_>>>()?;
    let rounds = count / shapes.len();
    for round in 0..rounds {
        let sums = all.iter().map(|all| group.all_sum(&all[group.rank()])).collect::<Result<Vec<_>>>()?;
        mlx_rs::transforms::eval(&sums)?;
        if round % 20 == 0 || round + 1 == rounds {
            for (sum, expected) in sums.iter().zip(&expected) {
                assert_equal(sum, expected, &format!("round {round}"))?;
            }
        }
    }
    Ok(())
}

/// What cannot be is an error on each rank by itself, and the group goes on.
fn wrong_calls(group: &Group) -> Result<()> {
    let x = numbers(0, &[3, 2], Dtype::Float32)?;
    let refused = |result: Result<Array>, what: &str| {
        let error = result.and_then(|array| Ok(array.eval()?)).expect_err(what).to_string();
        assert!(error.contains("help:"), "{what}: {error}");
    };
    refused(group.all_gather(&x, 2), "an axis that is none");
    refused(group.gather_parts(&Array::from_f32(1.0)), "parts of a scalar");
    let long = ops::broadcast_to(Array::from_bool(true), &[1 << 30])?;
    refused(group.all_gather(&long, 0), "an axis that is too long");
    let long = ops::broadcast_to(Array::from_bool(true), &[1 << 16, 1 << 15])?;
    refused(FullySharded::new(long, group).and_then(|part| part.gathered()?.dense()), "more elements than MLX counts");
    refused(group.send(&x, group.rank()), "a message to itself");
    refused(group.send(&x, group.size()), "a message to nobody");
    refused(group.recv(&[2], Dtype::Float32, group.size()), "a message from nobody");
    assert_ne!(group.backend(), Backend::Alone);
    assert!(group.sum_scatter(&x).is_err(), "three rows are no part for each rank");
    assert_equal(&group.all_sum(&x)?, &x.multiply(Array::from_f32(group.size() as f32))?, "a sum after them")
}

/// A rank whose kernel fails has its error, and the others NaN, not what the kernel left behind; the group goes on.
fn what_a_failed_kernel_leaves(group: &Group) -> Result<()> {
    let table = numbers(1, &[4, 3], Dtype::Float32)?;
    for trial in &TRIALS {
        let failing = if group.rank() == 0 { 9 } else { 1 };
        let rows = tacit_core::extra_ops::checked_indices(&Array::from_slice(&[failing, 2, 3, 0], &[4]), 4)?;
        let found = (trial.collective)(group, &table.take_axis(&rows, 0)?)?;
        if group.rank() == 0 {
            let error = found.eval().map_err(Error::from).expect_err(trial.name).to_string();
            assert!(error.contains("index 9 (entry 0) is outside an extent of 4"), "{error}");
        } else {
            // Of what is joined, that of rank 0.
            let first = found.is_nan()?.flatten(None, None)?.take_axis(Array::from_int(0), 0)?;
            assert!(first.item_exact::<bool>(), "{}: {found}", trial.name);
        }
    }
    let one = numbers(1, &[3], Dtype::Float32)?;
    assert_equal(&group.all_max(&one)?, &one, "a maximum after them")
}
