//! Stages of plans: what each computes, where it lies, and what a failure leaves.

use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexMutOp, TryIndexOp, argmax_axis, argmin_axis, scatter_add_single};
use mlx_rs::{Array, Dtype, ops};
use tacit_core::Result;
use tacit_core::compile::{CompileOptions, CompiledWithState, compile_with, compile_with_state};
use tacit_core::extra_ops::{checked_indices, dynamic_slice, dynamic_slice_update};
use tacit_core::pass::Passes;

use crate::same::{assert_close, check, compiled, nodes, normal};

fn one() -> Array {
    Array::from_f32(1.0)
}

/// Checks a function bit for bit, and gives the nodes that plans stand for.
#[track_caller]
fn planned(f: impl Fn(&[Array]) -> Result<Vec<Array>>, inputs: &[Array]) -> usize {
    nodes(&check(&f, inputs, 0.0), "plan")
}

#[test]
fn arrays_may_lie_in_any_way() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(one())?;
        let heads = x.reshape(&[2, 6, 4, 5])?.transpose_axes(&[0, 2, 1, 3])?.multiply(&inputs[1])?;
        let some = heads.try_index((.., 1..4, (..).stride_by(2), ..))?.negative()?;
        let back = heads.try_index((.., .., (..).stride_by(-1), 2..))?.add(one())?;
        let wide = ops::broadcast_to(&heads.try_index((.., .., ..1, ..))?, &[2, 4, 6, 5])?.abs()?;
        let joined = ops::concatenate(&[&heads, &wide.add(one())?], 2)?.square()?;
        Ok(vec![some, back, wide, joined.transpose_axes(&[3, 2, 1, 0])?, heads.flatten(None, None)?, joined])
    };
    assert!(planned(f, &[normal(&[2, 6, 20], 0), normal(&[6, 5], 1)]) >= 6);
}

#[test]
fn whole_numbers_and_truth_values_are_computed_in_plans() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [a, b] = inputs else { unreachable!() };
        let (less, most) = (a.lt(b)?, ops::maximum(a, b)?);
        let both = less.logical_and(a.eq(b)?.logical_not()?)?.logical_or(a.ne(b)?)?;
        let chosen = ops::select(&both, &most.multiply(a)?, &ops::minimum(a, b)?.subtract(b)?)?;
        let cast = both.as_dtype(a.dtype())?.add(chosen.as_dtype(Dtype::Bool)?.as_dtype(a.dtype())?)?;
        // None is 0, and none the least number over -1, where MLX ends the program.
        let divisor = a.as_dtype(Dtype::Bool)?.logical_not()?.as_dtype(a.dtype())?.add(a)?;
        let three = Array::from_int(3).as_dtype(a.dtype())?;
        let cast = cast.add(b.remainder(divisor)?)?.subtract(a.remainder(three)?)?;
        Ok(vec![chosen, cast, a.ge(b)?, a.le(b)?.logical_or(a.gt(b)?)?, both.as_dtype(Dtype::Float32)?.add(one())?])
    };
    let (a, b) = ([3, -4, 7, i32::MAX, i32::MIN, 0], [3, 5, -7, 2, -1, 0]);
    let signed = [Array::from_slice(&a, &[2, 3]), Array::from_slice(&b, &[2, 3])];
    let unsigned = [a, b].map(|numbers| Array::from_slice(&numbers.map(i32::cast_unsigned), &[6]));
    assert!(planned(f, &signed) >= 12);
    assert!(planned(f, &unsigned) >= 12);
}

#[test]
fn the_first_of_equal_numbers_is_the_greatest_as_in_mlx() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one())?;
        let half = x.as_dtype(Dtype::Float16)?;
        let best = [argmax_axis(&x, -1, false)?, argmin_axis(&x, -1, true)?, argmax_axis(&half, -1, false)?];
        Ok(best.into_iter().collect())
    };
    let rows = [
        [1.0, 3.0, 3.0, 2.0],
        [f32::NAN, 5.0, 7.0, 1.0],
        [2.0, f32::NAN, 9.0, -1.0],
        [f32::NEG_INFINITY; 4],
        [0.0, -0.0, 0.0, -0.0],
    ];
    assert!(planned(f, &[Array::from_slice(&rows.concat(), &[5, 4])]) >= 4);
}

#[test]
fn products_take_their_operands_as_they_are_stored() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [a, b, c] = inputs else { unreachable!() };
        let (a, b, c) = (a.add(one())?, b.add(one())?, c.add(one())?);
        let plain = a.matmul(&b)?;
        let left = a.swap_axes(-1, -2)?.matmul(&c)?;
        let right = a.matmul(a.swap_axes(-1, -2)?)?;
        let repeated = a.matmul(ops::broadcast_to(&b.try_index(..1)?, b.shape())?)?;
        Ok(vec![plain.exp()?, left.add(one())?, right.add(one())?, repeated.add(one())?])
    };
    let inputs = [normal(&[3, 8, 16], 0), normal(&[3, 16, 12], 1), normal(&[3, 8, 5], 2)];
    assert!(nodes(&check(&f, &inputs, 1e-5), "plan") >= 9);
    let flat = [normal(&[8, 16], 0), normal(&[16, 12], 1), normal(&[8, 5], 2)];
    assert!(nodes(&check(&f, &flat, 1e-5), "plan") >= 9);
}

#[test]
fn an_op_that_no_plan_knows_lies_between_two() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(one())?.transpose_axes(&[1, 0])?.multiply(&inputs[1])?;
        let greatest = x.cummax(-1, None, None)?.add(&x)?;
        let sums = ops::partition_axis(&greatest, 2, 1)?.multiply(&greatest)?;
        // What both take, of the first plan.
        Ok(vec![sums.subtract(&x)?.exp()?.sum_axes(&[-1], false)?, x.square()?.add(&sums)?])
    };
    let inputs = [normal(&[6, 4], 0), normal(&[6], 1)];
    let done = check(&f, &inputs, 1e-6);
    assert!(nodes(&done, "plan") >= 2, "{done:?}");
    assert_eq!(["CumMax", "Partition"].map(|name| beside(f, &inputs, name)), [1, 1]);
}

/// A cache that each step writes at a place of its own.
type Cache = (Array, Array);

#[allow(clippy::needless_pass_by_value, reason = "a compiled function owns its arguments")]
fn put((cache, place): &mut Cache, x: Array) -> Result<Array> {
    *cache = dynamic_slice_update(cache, &x.exp()?, &place.reshape(&[1])?, &[1])?;
    *place = place.add(Array::from_int(1))?;
    Ok(cache.add(one())?.sum(None)?)
}

fn empty() -> Cache {
    let cache = (ops::zeros::<f32>(&[2, 5, 3]).expect("zeros"), Array::from_int(0));
    mlx_rs::transforms::eval([&cache.0, &cache.1]).expect("an eval");
    cache
}

#[test]
fn a_state_that_nobody_else_holds_is_written_where_it_lies() {
    let mut step = compile_with_state(CompileOptions::default(), put);
    let (mut state, mut plain) = (empty(), empty());
    for token in 0..5 {
        let x = normal(&[2, 1, 3], token);
        let before = state.0.as_slice::<f32>().as_ptr();
        let sum = step.call(&mut state, &x).expect("a step").dense().expect("an array");
        let expected = put(&mut plain, x).expect("a step");
        mlx_rs::transforms::eval([&sum, &state.0, &state.1]).expect("an eval");
        assert_close(&state.0, &plain.0, 1e-6);
        assert_close(&sum, &expected, 1e-5);
        if token > 0 {
            assert_eq!(state.0.as_slice::<f32>().as_ptr(), before, "no copy was made");
        }
    }
    assert!(nodes(&step.stats().rewritten, "plan") >= 4);
}

#[test]
fn a_state_that_somebody_holds_stays_as_it_was() {
    let mut step = compile_with_state(CompileOptions::default(), put);
    let mut state = empty();
    for token in 0..3 {
        let held = state.0.clone();
        let before = held.as_slice::<f32>().to_vec();
        step.call(&mut state, normal(&[2, 1, 3], token)).expect("a step");
        mlx_rs::transforms::eval([&state.0, &state.1]).expect("an eval");
        assert_eq!(held.as_slice::<f32>(), before);
        assert_ne!(state.0.as_slice::<f32>(), before);
    }
}

#[test]
fn an_array_that_is_read_after_its_update_is_not_written() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let old = inputs[0].add(one())?;
        let mut new = old.clone();
        new.try_index_mut((1..3, ..), inputs[1].negative()?)?;
        let mut newer = new.clone();
        newer.try_index_mut((.., 0..1), &inputs[2])?;
        let mut input = inputs[0].clone();
        input.try_index_mut((0..2, ..), &inputs[1])?;
        Ok(vec![old.add(&new)?, new.multiply(&newer)?, newer, input.subtract(&inputs[0])?, input])
    };
    assert!(planned(f, &[normal(&[4, 3], 0), normal(&[2, 3], 1), normal(&[4, 1], 2)]) >= 6);
}

#[test]
fn a_part_that_an_array_says_is_taken_and_put() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, at] = inputs else { unreachable!() };
        let at = at.add(Array::from_int(1))?;
        let part = dynamic_slice(&x.add(one())?, &at, &[0, 2], &[2, 3, 2])?.negative()?;
        Ok(vec![dynamic_slice_update(x, &part, &at, &[0, 2])?, part])
    };
    assert!(planned(f, &[normal(&[4, 3, 5], 0), Array::from_slice(&[0, 2], &[2])]) >= 4);
    let (_, done) = compiled(&f, &[normal(&[4, 3, 5], 0), Array::from_slice(&[0, 2], &[2])], Passes::All).unwrap();
    assert!(nodes(&done, "plan") >= 4);
}

#[test]
fn a_step_that_fails_leaves_what_is_held_and_the_next_one_goes_on() {
    let checked = |(cache, place): &mut Cache, x: Array| -> Result<Array> {
        let at = checked_indices(&place.reshape(&[1])?, 5)?;
        *cache = dynamic_slice_update(cache, &x.exp()?, &at, &[1])?;
        *place = place.add(Array::from_int(1))?;
        Ok(cache.add(one())?.sum(None)?)
    };
    let mut step = compile_with_state(CompileOptions::default(), checked);
    let run = |step: &mut CompiledWithState<'_, Cache, Array, Array>, state: &mut Cache, token: u64| -> Result<()> {
        let sum = step.call(state, normal(&[2, 1, 3], token))?.dense()?;
        Ok(mlx_rs::transforms::eval([&sum, &state.0, &state.1])?)
    };
    let mut state = empty();
    for token in 0..5 {
        run(&mut step, &mut state, token).expect("a step");
    }
    let held = state.clone();
    let before = held.0.as_slice::<f32>().to_vec();
    let error = run(&mut step, &mut state, 5).expect_err("the cache is full");
    assert!(
        error.to_string().contains("kernel Indices failed: index 5 (entry 0) is outside an extent of 5"),
        "{error}"
    );
    state.0.eval().expect_err("it comes of what failed");
    assert_eq!(held.0.as_slice::<f32>(), before);
    state = (held.0, Array::from_int(0));
    run(&mut step, &mut state, 6).expect("a step");
    assert_ne!(state.0.as_slice::<f32>(), before);
}

#[test]
fn a_stage_that_fails_is_named_and_nothing_of_it_is_read() {
    let f = |(x, at): (Array, Array)| -> Result<Array> {
        let rows = checked_indices(&at, 4)?;
        Ok(x.exp()?.take_axis(rows, 0)?.add(one())?)
    };
    let mut step = compile_with(CompileOptions::default(), f);
    let x = normal(&[4, 3], 0);
    for (at, fine) in [(2, true), (7, false), (-1, true)] {
        let result = step.call((&x, &Array::from_slice(&[at, 0], &[2]))).and_then(|y| y.dense());
        let result = result.and_then(|y| Ok(y.eval()?));
        assert_eq!(result.is_ok(), fine, "{at}");
        if let Err(error) = result {
            assert!(error.to_string().contains("kernel Indices failed: index 7"));
        }
    }
}

#[test]
fn a_donated_array_of_another_shape_is_copied() {
    let f = |(x, u): (Array, Array)| -> Result<Array> {
        let greatest = x.cummax(-1, None, None)?;
        let mut y = greatest.reshape(&[2, 3])?;
        y.try_index_mut((0..1, ..), u.exp()?)?;
        Ok(y)
    };
    let (x, u) = (normal(&[6], 0), normal(&[1, 3], 1));
    let plain = f((x.clone(), u.clone())).expect("it runs");
    let mut step = compile_with(CompileOptions::default(), f);
    for _ in 0..2 {
        let y = step.call((&x, &u)).expect("a step").dense().expect("an array");
        y.eval().expect("an eval");
        assert_eq!(y.strides(), [3, 1]);
        assert_close(&y.t().add(one()).expect("a sum"), &plain.t().add(one()).expect("a sum"), 1e-6);
    }
}

#[test]
fn arrays_without_elements_are_joined_cut_and_put() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, empty, at] = inputs else { unreachable!() };
        let none = empty.add(one())?;
        let joined = ops::concatenate(&[&none, &none], 0)?;
        let cut = none.try_index((.., (..).stride_by(-1)))?;
        let part = dynamic_slice(&x.add(one())?, at, &[0], &[0, 3])?;
        let put = dynamic_slice_update(&x.square()?, &part, at, &[0])?;
        Ok(vec![joined.sum(None)?, cut.reshape(&[3, 0])?.sum(None)?, put.negative()?])
    };
    planned(f, &[normal(&[4, 3], 0), ops::zeros::<f32>(&[0, 3]).expect("zeros"), Array::from_slice(&[1], &[1])]);
}

#[test]
fn results_are_taken_one_now_and_one_later() {
    let mut step = compile_with(CompileOptions::default(), |x: Array| -> Result<Vec<Array>> {
        let y = x.add(one())?.transpose_axes(&[1, 0])?.square()?;
        Ok(vec![y.negative()?, y.clone(), argmax_axis(&y, -1, false)?])
    });
    let x = normal(&[3, 4], 0);
    let plain = x.add(one()).expect("a sum").t().square().expect("squares");
    for _ in 0..2 {
        let mut results = step.call(&x).expect("a step");
        // Nobody ever takes the last one.
        results.pop();
        let [now, later] = [0, 1].map(|at| results[at].dense().expect("an array"));
        drop(results);
        mlx_rs::transforms::async_eval([&now]).expect("an eval");
        assert_close(&now, &plain.negative().expect("the other sign"), 0.0);
        drop(now);
        assert_close(&later, &plain, 0.0);
    }
}

/// The nodes of this name that a compiled function has beside plans.
fn beside(f: impl Fn(&[Array]) -> Result<Vec<Array>>, inputs: &[Array], name: &str) -> usize {
    let mut step = compile_with(CompileOptions::default(), |inputs: Vec<Array>| f(&inputs));
    step.call(inputs.to_vec()).expect("a call");
    assert!(step.stats().nodes.contains_key("Plan"));
    step.stats().nodes.get(name).copied().unwrap_or(0)
}

#[test]
fn sums_along_any_axes_are_stages() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(one())?;
        let sums = [&[0][..], &[1], &[0, 1], &[1, 2], &[0, 1, 2], &[0, 2]];
        sums.into_iter().map(|axes| Ok(x.sum_axes(axes, false)?.multiply(one())?)).collect()
    };
    check(&f, &[normal(&[3, 200, 70], 0)], 1e-5);
    // Longer than a run of additions, in one column and in many.
    let inputs = [normal(&[2, 3000, 5], 1)];
    check(&f, &inputs, 1e-5);
    check(&f, &[ops::zeros::<f32>(&[2, 0, 3]).expect("zeros")], 0.0);
    // That along the first and the last axis.
    assert_eq!(beside(f, &inputs, "Sum"), 1);
    // MLX adds up what is repeated without making it.
    let repeated = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = ops::broadcast_to(&inputs[0].add(one())?, &[100, 7])?;
        Ok(vec![x.sum_axes(&[0], false)?.add(one())?, inputs[0].add(one())?.square()?])
    };
    check(&repeated, &[normal(&[7], 2)], 1e-5);
    assert_eq!(beside(repeated, &[normal(&[7], 2)], "Sum"), 1);
}

#[test]
fn a_product_is_added_to_a_row_or_to_a_matrix() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, w, row, all] = inputs else { unreachable!() };
        let (x, row) = (x.add(one())?, row.add(one())?);
        let w = w.swap_axes(-1, -2)?;
        let biased = ops::addmm(&row, &x, &w, 1.0, 1.0)?;
        let scaled = ops::addmm(&all.add(one())?, &x, &w, 0.5, -2.0)?;
        let [ones, column] = [&[6][..], &[5, 1]].map(|shape| ops::ones::<f32>(shape).expect("ones"));
        let constant = ops::addmm(&ones, &x, &w, 1.0, 1.0)?.add(ops::addmm(&column, &x, &w, 1.0, 3.0)?)?;
        Ok(vec![biased.exp()?, scaled.swap_axes(-1, -2)?.square()?, constant.abs()?])
    };
    let inputs = |k: i32| [normal(&[5, k], 0), normal(&[6, k], 1), normal(&[6], 2), normal(&[5, 6], 3)];
    check(&f, &inputs(16), 1e-5);
    assert_eq!(beside(f, &inputs(16), "AddMM"), 0);
    // Of nothing, the addend is left.
    check(&f, &inputs(0), 1e-5);
    // Batches, and none of them.
    for batch in [2, 0] {
        let of = |shape: [i32; 3], seed| {
            if batch == 0 { ops::zeros::<f32>(&shape).expect("zeros") } else { normal(&shape, seed) }
        };
        let inputs = [of([batch, 5, 8], 0), of([batch, 6, 8], 1), normal(&[6], 2), of([batch, 5, 6], 3)];
        check(&f, &inputs, 1e-5);
    }
}

#[test]
fn indices_choose_elements_and_rows_and_add_to_them() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, along, rows] = inputs else { unreachable!() };
        let loss = |args: &[Array]| -> mlx_rs::error::Result<Vec<Array>> {
            let picked = args[0].square()?.take_along_axis(along, 1)?;
            let taken = args[0].exp()?.take_axis(rows, 0)?;
            Ok(vec![picked.square()?.sum(None)?.add(taken.square()?.sum(None)?)?])
        };
        let (sums, gradients) = mlx_rs::transforms::value_and_grad(loss)(std::slice::from_ref(x))?;
        let picked = x.abs()?.take_along_axis(along, 1)?.add(one())?;
        let taken = x.abs()?.take_axis(rows, 0)?.add(one())?;
        Ok(vec![sums[0].clone(), gradients[0].clone(), picked, taken])
    };
    // The same place twice, places from the end, and no place at all.
    let along = Array::from_slice(&[0, 2, 2, -1, 1, 0], &[3, 2, 1]);
    let along = ops::broadcast_to(&along, &[3, 2, 4]).expect("indices").multiply(Array::from_int(1)).expect("a copy");
    let rows = Array::from_slice(&[1, 1, -3, 0], &[2, 2]);
    let inputs = [normal(&[3, 5, 4], 0), along.clone(), rows];
    check(&f, &inputs, 1e-6);
    for name in ["Gather", "GatherAxis", "Scatter Sum", "ScatterAxis Sum"] {
        assert_eq!(beside(f, &inputs, name), 0, "{name}");
    }
    check(&f, &[normal(&[3, 5, 4], 0), along, ops::zeros::<u32>(&[0]).expect("zeros")], 1e-6);
}

/// What each node is, is asked once: a chain of nodes that look at what they take costs by its length.
#[test]
fn a_long_chain_of_gathers_is_one_plan() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let mut x = inputs[0].add(one())?;
        for _ in 0..2000 {
            x = x.take_along_axis(&inputs[1], 0)?;
        }
        Ok(vec![x])
    };
    let inputs = [normal(&[3, 2], 0), Array::from_slice(&[1, 2, 0, 0, 2, 1], &[3, 2])];
    check(&f, &inputs, 0.0);
    assert_eq!(beside(f, &inputs, "GatherAxis"), 0);
}

#[test]
fn an_index_that_is_not_there_is_told() {
    let add = |(table, _): &mut (Array, Array), rows: Array| -> Result<Array> {
        let updates = ops::broadcast_to(one(), &[rows.size() as i32, 1, 3])?;
        *table = scatter_add_single(&*table, &rows, &updates, 0)?;
        Ok(table.add(one())?.sum(None)?)
    };
    let mut step = compile_with_state(CompileOptions::default(), add);
    let mut state = (ops::zeros::<f32>(&[4, 3]).expect("zeros"), one());
    let good = step.call(&mut state, Array::from_slice(&[0, -1], &[2])).expect("a step").dense().expect("a sum");
    good.eval().expect("an eval");
    assert_eq!(good.as_slice::<f32>(), [18.0]);
    // Somebody holds the table, which stays.
    let kept = state.0.clone();
    kept.eval().expect("an eval");
    let bad = step.call(&mut state, Array::from_slice(&[0, 4], &[2])).expect("a step").dense().expect("a sum");
    let told = bad.eval().expect_err("4 is not there").to_string();
    let parts = ["the index 4 is not among the 4 along its axis", "help: give indices from -4 to 3"];
    assert!(parts.into_iter().all(|part| told.contains(part)), "{told}");
    assert_eq!(kept.as_slice::<f32>(), [[1.0; 3], [0.0; 3], [0.0; 3], [1.0; 3]].concat());
    assert!(state.0.eval().is_err(), "what the step would have left is no value");
}

#[test]
fn what_only_passes_an_operand_on_is_left_out() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(one())?;
        let stopped = mlx_rs::stop_gradient(&mlx_rs::stop_gradient(&x)?)?;
        // One that is a result stays.
        Ok(vec![stopped.multiply(&x)?, stopped, mlx_rs::stop_gradient(&inputs[0])?])
    };
    assert_eq!(nodes(&check(&f, &[normal(&[3, 4], 0)], 0.0), "identities"), 1);
}

#[test]
fn a_step_of_training_is_one_node() {
    let mut step =
        compile_with_state(CompileOptions::default(), |(w, b): &mut (Array, Array), (x, labels): (Array, Array)| {
            let loss = |args: &[Array]| -> mlx_rs::error::Result<Vec<Array>> {
                let logits = ops::addmm(&args[1], &x, args[0].t(), 1.0, 1.0)?;
                let picked = logits.take_along_axis(labels.expand_dims(1)?, 1)?.squeeze_axes(&[1])?;
                Ok(vec![ops::logsumexp_axis(&logits, -1, false)?.subtract(picked)?.mean(None)?])
            };
            let (losses, gradients) =
                mlx_rs::transforms::value_and_grad_with_argnums(loss, &[0, 1][..])(&[w.clone(), b.clone()])?;
            *w = w.subtract(gradients[0].multiply(Array::from_f32(0.1))?)?;
            *b = b.subtract(gradients[1].multiply(Array::from_f32(0.1))?)?;
            Ok::<_, tacit_core::Error>(losses[0].clone())
        });
    let mut state = (normal(&[6, 16], 0), ops::zeros::<f32>(&[6]).expect("zeros"));
    let batch = (normal(&[8, 16], 1), Array::from_slice(&[0_u32, 1, 2, 3, 4, 5, 0, 1], &[8]));
    let mut losses = (0..20).map(|_| {
        let loss = step.call(&mut state, batch.clone()).expect("a step").dense().expect("a loss");
        loss.eval().expect("an eval");
        loss.as_slice::<f32>()[0]
    });
    let (first, last) = (losses.next().expect("a loss"), losses.last().expect("a loss"));
    assert!(last < 0.7 * first, "{first} to {last}");
    assert_eq!(step.stats().nodes, [("Plan", 1)].into());
}
