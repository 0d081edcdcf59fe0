//! Stages of what samplers, dropout and losses are made of, to the bit as the plain ops compute them.

use std::collections::BTreeMap;

use mlx_rs::ops::indexing::{TryIndexOp, put_along_axis};

use mlx_rs::ops::SearchSide;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::Result;
use tacit_core::compile::{CompileOptions, Constants, compile_with};

use crate::same::{Function, assert_close, check, nodes, normal, of, one};

const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// The nodes that a compiled function has beside plans.
fn beside(f: Function<'_>, inputs: &[Array]) -> BTreeMap<&'static str, usize> {
    let options = CompileOptions { constants: Constants::Allow, ..CompileOptions::default() };
    let mut step = compile_with(options, |inputs: Vec<Array>| f(&inputs));
    step.call(inputs.to_vec()).expect("a call");
    let mut nodes = step.stats().nodes.clone();
    assert!(nodes.remove("Plan").is_some(), "{nodes:?}");
    nodes
}

/// Checks a function bit for bit, and that plans compute all of it.
#[track_caller]
fn whole(f: Function<'_>, inputs: &[Array]) {
    check(f, inputs, 0.0);
    assert_eq!(beside(f, inputs), BTreeMap::new());
}

/// Ties, both zeros, infinities and NaN.
fn odd() -> Array {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let numbers =
        [3.0, -1.0, nan, 0.0, 3.0, -0.0, infinity, -infinity, 2.0, nan, -1.0, 3.0, 1.5, -infinity, 0.0, 7.0, 3.0, 3.0];
    Array::from_slice(&numbers, &[2, 9])
}

/// Many numbers, of which few differ.
fn many(shape: &[i32]) -> Array {
    ops::floor(normal(shape, 7).multiply(Array::from_f32(20.0)).expect("numbers")).expect("numbers")
}

#[test]
fn numbers_are_sorted_and_partitioned_as_in_mlx() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one(&inputs[0]))?;
        let mut results = Vec::new();
        for axis in [-1, 0] {
            let extent = x.dim(axis);
            results.extend([ops::sort_axis(&x, axis)?, ops::argsort_axis(&x, axis)?]);
            for kth in [0, extent / 3, extent - 1, -1] {
                results.push(ops::argpartition_axis(&x, kth, axis)?);
            }
        }
        results.iter().map(|array| Ok(array.add(array)?)).collect()
    };
    for dtype in FLOATS {
        for x in [odd(), many(&[3, 700]), normal(&[1, 1], 0), normal(&[5, 40, 6], 1)] {
            whole(&f, &[of(dtype, &x)]);
        }
    }
    let whole_numbers = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(Array::from_int(1).as_dtype(inputs[0].dtype())?)?;
        Ok(vec![ops::sort_axis(&x, 0)?.add(&x)?, ops::argsort_axis(&x, -1)?.as_dtype(Dtype::Int32)?])
    };
    let x = Array::from_slice(&[3, -1, 3, i32::MAX - 1, i32::MIN, 0, 3, -1], &[2, 4]);
    whole(&whole_numbers, std::slice::from_ref(&x));
    whole(&whole_numbers, &[x.as_dtype(Dtype::Uint32).expect("a cast")]);
    // MLX fails on an axis without elements.
    let empty = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(&inputs[0])?;
        Ok(vec![ops::sort_axis(&x, 1)?.sum(None)?, ops::argsort_axis(&x, 1)?.as_dtype(Dtype::Float32)?.sum(None)?])
    };
    check(&empty, &[ops::zeros::<f32>(&[0, 3]).expect("zeros")], 0.0);
}

#[test]
fn running_sums_and_products_are_taken_one_after_the_other() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one(&inputs[0]))?;
        let mut results = Vec::new();
        for (axis, reverse, inclusive) in
            [(-1, false, true), (-1, true, true), (0, false, false), (0, true, false), (0, false, true)]
        {
            results.push(x.cumsum(axis, reverse, inclusive)?.add(&x)?);
            results.push(x.cumprod(axis, reverse, inclusive)?.add(&x)?);
        }
        Ok(results)
    };
    for dtype in FLOATS {
        for x in [odd(), normal(&[3, 700], 0), normal(&[1], 1), normal(&[4, 5, 6], 2)] {
            whole(&f, &[of(dtype, &x)]);
        }
    }
    let whole_numbers = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(&inputs[0])?;
        let product = x.cumprod(0, true, false)?.add(&x.cumprod(0, false, true)?)?;
        Ok(vec![x.cumsum(0, false, true)?.subtract(&inputs[0])?, product])
    };
    whole(&whole_numbers, &[Array::from_slice(&[i32::MAX, 5, -7, i32::MIN], &[4])]);
}

#[test]
fn random_bits_are_those_of_mlx() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let (next, key) = random::split(&inputs[0], 2)?;
        let uniform = random::uniform::<_, f32>(-1.0, 1.0, &[5, 7], &key)?;
        let normal = random::normal::<f32>(&[3], None, None, &key)?;
        let kept = random::bernoulli(&Array::from_f32(0.3), &[2, 3, 5], &key)?.as_dtype(Dtype::Float32)?;
        let half = random::uniform::<_, half::f16>(0.0, 1.0, &[9], &key)?;
        let none = random::uniform::<_, f32>(0.0, 1.0, &[0, 4], &key)?.sum(None)?;
        Ok(vec![next.add(&inputs[0])?, uniform.square()?, normal, kept.add(Array::from_f32(1.0))?, half, none])
    };
    for seed in [0, 1, u64::MAX] {
        let key = random::key(seed).expect("a key");
        let done = check(&f, std::slice::from_ref(&key), 1e-5);
        assert!(!done.is_empty());
        let left = beside(&f, &[key]);
        assert_eq!((left.get("RandomBits"), left.get("ErfInv")), (None, None));
    }
    // Each of a batch of keys has bits of its own.
    let batch = |inputs: &[Array]| -> Result<Vec<Array>> {
        let (a, b) = random::split(&inputs[0], 2)?;
        let keys = ops::stack(&[&a, &b, &inputs[0]], 0)?;
        let draw = |(key,): (Array,)| random::uniform::<_, f32>(0.0, 1.0, &[5], &key);
        let drawn = tacit_core::transform::vmap(0, 0, draw).call((&keys,))?.dense()?;
        Ok(vec![drawn.add(Array::from_f32(1.0))?])
    };
    whole(&batch, &[random::key(5).expect("a key")]);
}

#[test]
fn places_in_a_sorted_line_are_found() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [line, values] = inputs else { unreachable!() };
        // That of `random::categorical` for one row.
        let drawn = random::categorical(&values.expand_dims(0)?.add(one(values))?, -1, None, &random::key(3)?)?;
        let sorted = ops::sort_axis(line.multiply(one(line))?, 0)?;
        // A line that is in no order is searched as MLX does, too.
        let mut results = vec![drawn.add(&drawn)?];
        for line in [&sorted, &line.multiply(one(line))?] {
            for side in [SearchSide::Left, SearchSide::Right] {
                let found = line.search_sorted(&values.multiply(one(values))?, side)?;
                results.push(found.add(&found)?);
            }
        }
        Ok(results)
    };
    for dtype in FLOATS {
        for seed in 0..5 {
            let inputs = [normal(&[30], seed), normal(&[50], seed + 1)].map(|array| of(dtype, &array));
            check(&f, &inputs, 0.0);
            assert_eq!(beside(&f, &inputs).get("SearchSorted"), None);
        }
        let odd = of(dtype, &odd().reshape(&[18]).expect("a shape"));
        check(&f, &[odd.clone(), odd], 0.0);
    }
}

#[test]
fn the_greatest_least_and_truth_along_any_axes_are_stages() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one(&inputs[0]))?;
        let mut results = Vec::new();
        for axes in [&[0][..], &[1], &[0, 1], &[0, 1, 2], &[1, 2]] {
            results.push(x.max_axes(axes, false)?.add(one(&x))?);
            results.push(x.min_axes(axes, true)?.add(one(&x))?);
            let large = x.gt(one(&x))?;
            let any = large.any_axes(axes, false)?.logical_not()?;
            results.extend([any, large.all_axes(axes, false)?.as_dtype(x.dtype())?.add(one(&x))?]);
        }
        Ok(results)
    };
    for dtype in FLOATS {
        for x in [odd().reshape(&[2, 3, 3]).expect("a shape"), normal(&[4, 5, 6], 0), normal(&[1, 1, 2], 1)] {
            whole(&f, &[of(dtype, &x)]);
        }
    }
    let truth = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(&inputs[0])?;
        Ok(vec![x.any_axes(&[0], false)?.logical_not()?, x.all_axes(&[1], false)?.logical_not()?])
    };
    let numbers = [[0.0, f32::NAN, -0.0, 1e-40], [0.0, 0.0, 0.0, f32::INFINITY], [1.0; 4]];
    whole(&truth, &[Array::from_slice(&numbers.concat(), &[3, 4])]);
    whole(&truth, &[Array::from_slice(&[0, 3, 0, 0, i32::MIN, 0], &[3, 2]).abs().expect("numbers")]);
    let whole_numbers = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(&inputs[0])?;
        Ok(vec![x.max(None)?.add(&x)?, x.min_axes(&[1], false)?.add(Array::from_int(1))?])
    };
    whole(&whole_numbers, &[Array::from_slice(&[3, -4, 8, 100, -7, 0], &[2, 3])]);
}

#[test]
fn sums_of_half_floats_are_rounded_once() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one(&inputs[0]))?;
        Ok(vec![x.sum_axes(&[0], false)?.add(one(&x))?, x.sum_axes(&[1], false)?.add(one(&x))?])
    };
    for (dtype, relative) in [(Dtype::Float16, 1e-3), (Dtype::Bfloat16, 8e-3)] {
        let x = of(dtype, &normal(&[3, 500, 8], 0));
        let (found, _) =
            crate::same::compiled(&f, std::slice::from_ref(&x), tacit_core::pass::Passes::All).expect("it runs");
        let expected = f(&[of(Dtype::Float32, &x)]).expect("it runs");
        for (found, expected) in found.iter().zip(&expected) {
            assert_close(found, &of(dtype, expected), relative);
        }
        assert_eq!(beside(&f, &[x]), BTreeMap::new());
    }
}

#[test]
fn elements_and_rows_are_put_and_added_in_any_float_type() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, along, rows] = inputs else { unreachable!() };
        let x = x.multiply(one(x))?;
        let updates = x.try_index((..2, ..))?.square()?;
        let put = put_along_axis(&x, along, &updates, 0)?.add(one(&x))?;
        let table = ops::indexing::scatter_single(&x, rows, &updates.expand_dims(1)?, 0)?.add(one(&x))?;
        let added = ops::indexing::scatter_add_single(&x, rows, &updates.expand_dims(1)?, 0)?.add(one(&x))?;
        Ok(vec![put, table, added])
    };
    for dtype in FLOATS {
        let x = of(dtype, &normal(&[4, 3], 0));
        // The same place twice, and one from the end.
        let along = Array::from_slice(&[0, 3, -1, 0, 1, 3], &[2, 3]);
        whole(&f, &[x, along, Array::from_slice(&[2, 2], &[2])]);
    }
}

/// Sums are taken in single precision and rounded once, as in MLX, and in another order.
#[test]
fn products_of_half_floats_are_stages() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, w, row, all] = inputs else { unreachable!() };
        let (x, w) = (x.multiply(one(x))?, w.multiply(one(w))?);
        let transposed = w.swap_axes(-1, -2)?;
        let plain = x.matmul(&transposed)?;
        let of_transposed = x.swap_axes(-1, -2)?.matmul(&plain)?;
        let biased = ops::addmm(row, &x, &transposed, 1.0, 1.0)?;
        let scaled = ops::addmm(all, &x, &transposed, 0.5, -2.0)?;
        Ok(vec![plain.abs()?, of_transposed.abs()?, biased.abs()?, scaled.abs()?])
    };
    for (dtype, relative) in [(Dtype::Float16, 2e-3), (Dtype::Bfloat16, 1.6e-2)] {
        for (batch, m, k) in [(None, 1, 64), (None, 7, 48), (None, 40, 0), (Some(3), 5, 16), (Some(2), 1, 33)] {
            let shaped = |rows: i32, columns: i32, seed| {
                let shape: Vec<i32> = batch.into_iter().chain([rows, columns]).collect();
                let numbers =
                    if columns == 0 { ops::zeros::<f32>(&shape).expect("zeros") } else { normal(&shape, seed) };
                of(dtype, &numbers)
            };
            let row = of(dtype, &normal(&[6], 3));
            let inputs = [shaped(m, k, 0), shaped(6, k, 1), row, shaped(m, 6, 2)];
            check(&f, &inputs, relative);
            let left = beside(&f, &inputs);
            assert!(!left.contains_key("Matmul") && !left.contains_key("AddMM"), "{left:?}");
        }
    }
}

#[test]
fn a_result_that_lies_in_another_way_is_the_plan_s_own() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(one(&inputs[0]))?.swap_axes(0, 1)?.square()?;
        let bits = x.view_dtype(Dtype::Int32)?.add(Array::from_int(1))?;
        let best = ops::indexing::argmax_axis(&x, -1, true)?;
        let rows = x.negative()?.try_index((1.., ..))?;
        Ok(vec![best.squeeze_axes(&[-1])?, bits.view_dtype(Dtype::Float32)?.reshape(&[-1])?, rows])
    };
    whole(&f, &[normal(&[3, 4], 0)]);
    // A large part of what a stage makes stays a part of it.
    let part = |inputs: &[Array]| -> Result<Vec<Array>> {
        Ok(vec![inputs[0].add(one(&inputs[0]))?.swap_axes(0, 1)?.square()?.try_index((1.., ..))?])
    };
    check(&part, &[normal(&[3000, 4], 0)], 0.0);
    assert_eq!(beside(&part, &[normal(&[3000, 4], 0)]), [("Slice", 1)].into());
    check(&part, &[normal(&[30, 4], 0)], 0.0);
    whole(&part, &[normal(&[30, 4], 0)]);
    // One that is a result in both ways is one of them, and MLX shows it as the other.
    let both = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(one(&inputs[0]))?.swap_axes(0, 1)?.square()?;
        Ok(vec![x.reshape(&[-1])?, x])
    };
    check(&both, &[normal(&[3, 4], 0)], 0.0);
    assert_eq!(beside(&both, &[normal(&[3, 4], 0)]), [("Reshape", 1)].into());
}

#[test]
fn what_is_only_written_out_is_no_node() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(one(&inputs[0]))?;
        let transposed = x.swap_axes(0, 1)?.contiguous()?.square()?;
        let filled = ops::full_like(&transposed, x.sum(None)?, None)?.add(&transposed)?;
        let repeated = ops::broadcast_to(&x, &[2, 3, 4])?.contiguous()?;
        Ok(vec![transposed.sum_axes(&[0], false)?.abs()?, filled, repeated.negative()?, x.contiguous()?])
    };
    for dtype in FLOATS {
        let inputs = [of(dtype, &normal(&[3, 4], 0))];
        let relative = if dtype == Dtype::Float32 { 1e-6 } else { 1.6e-2 };
        check(&f, &inputs, relative);
        assert_eq!(beside(&f, &inputs), BTreeMap::new());
    }
}

#[test]
fn matrices_that_indices_choose_are_multiplied_where_they_are() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, w, chosen] = inputs else { unreachable!() };
        let (x, w) = (x.multiply(one(x))?, w.multiply(one(w))?);
        let of_all = ops::gather_mm(&x, w.swap_axes(-1, -2)?, None::<&Array>, chosen, None)?;
        let of_some = ops::gather_mm(&x, w.swap_axes(-1, -2)?, chosen, chosen, None)?;
        Ok(vec![of_all.abs()?, of_some.abs()?])
    };
    let inputs = [normal(&[4, 1, 16], 0), normal(&[5, 6, 16], 1), Array::from_slice(&[3_u32, 0, 0, 2], &[4])];
    check(&f, &inputs, 1e-5);
    assert_eq!(beside(&f, &inputs), BTreeMap::new());
}

#[test]
fn chosen_matrices_without_elements_have_products_of_zeros() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, w, chosen] = inputs else { unreachable!() };
        let (x, w) = (x.multiply(one(x))?, w.multiply(one(w))?);
        let of_some = ops::gather_mm(&x, &w, chosen, chosen, None)?;
        Ok(vec![ops::gather_mm(&x, &w, None::<&Array>, chosen, None)?.abs()?, of_some.abs()?])
    };
    let zeros = |shape| ops::zeros::<f32>(shape).expect("zeros");
    let inputs = [zeros(&[4, 2, 0]), zeros(&[5, 0, 3]), Array::from_slice(&[3_u32, 0, 0, 2], &[4])];
    check(&f, &inputs, 0.0);
    assert_eq!(beside(&f, &inputs).get("GatherMM"), None);
}

#[test]
fn an_addend_whose_factor_is_zero_is_read_where_mlx_reads_it() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, w, c] = inputs else { unreachable!() };
        Ok(vec![ops::addmm(c, x.multiply(one(x))?, w.multiply(one(w))?, 1.5, 0.0)?.abs()?])
    };
    for (dtype, relative) in [(Dtype::Float32, 1e-5), (Dtype::Float16, 2e-3), (Dtype::Bfloat16, 1.6e-2)] {
        for k in [0, 1, 7] {
            let numbers = |rows, columns, seed| {
                let shape = [rows, columns];
                if k == 0 { ops::zeros::<f32>(&shape).expect("zeros") } else { normal(&shape, seed) }
            };
            let inputs = [numbers(2, k, 0), numbers(k, 9, 1), odd()].map(|array| of(dtype, &array));
            check(&f, &inputs, relative);
            assert_eq!(beside(&f, &inputs).get("AddMM"), None);
        }
    }
}

#[test]
fn exponentials_are_added_in_a_program() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].multiply(one(&inputs[0]))?;
        let zero = one(&x).subtract(one(&x))?;
        Ok(vec![ops::logaddexp(&x, &zero)?, ops::logaddexp(&x, &x)?, ops::logaddexp(&x.negative()?, &x)?])
    };
    for (dtype, relative) in [(Dtype::Float32, 1e-6), (Dtype::Float16, 1e-3), (Dtype::Bfloat16, 8e-3)] {
        for x in [odd(), normal(&[6, 70], 0)] {
            let inputs = [of(dtype, &x)];
            let done = check(&f, &inputs, relative);
            assert!(nodes(&done, "programs") >= 5, "{done:?}");
        }
    }
}

#[test]
fn parts_of_a_split_are_slices() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = inputs[0].add(one(&inputs[0]))?;
        let rows = ops::split_equal(&x, 3, 0)?;
        let columns = ops::split_at_indices(&x, &[1, 4], 1)?;
        let mut results = vec![rows[1].add(&rows[0])?.square()?, columns[2].clone()];
        results.push(columns[1].matmul(columns[1].swap_axes(0, 1)?)?.add(one(&x))?.multiply(columns[0].abs()?)?);
        Ok(results)
    };
    let inputs = [normal(&[6, 7], 0)];
    check(&f, &inputs, 1e-5);
    assert_eq!(beside(&f, &inputs).get("Split"), None);
}

/// Heads of queries that share one of keys, as they are written with `broadcast_to`.
#[test]
fn matrices_that_a_batch_shares_are_multiplied_where_they_are() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [q, k] = inputs else { unreachable!() };
        let (q, k) = (q.multiply(one(q))?, k.multiply(one(k))?);
        let &[batch, heads, each, rows, width] = q.shape() else { unreachable!() };
        let length = k.dim(-2);
        let keys = ops::broadcast_to(&k.expand_dims(2)?.swap_axes(-1, -2)?, &[batch, heads, each, width, length])?;
        let values = ops::broadcast_to(&k.expand_dims(2)?, &[batch, heads, each, length, width])?;
        let scores = q.matmul(&keys)?;
        let left = ops::broadcast_to(&q.try_index((..1, .., .., .., ..))?, &[batch, heads, each, rows, width])?;
        let of_shared = left.matmul(&keys)?.abs()?;
        Ok(vec![ops::softmax_axis(&scores, -1, None)?.matmul(&values)?.abs()?, of_shared])
    };
    for (dtype, relative) in [(Dtype::Float32, 1e-5), (Dtype::Float16, 4e-3), (Dtype::Bfloat16, 3e-2)] {
        for (batch, rows) in [(1, 1), (2, 3)] {
            let inputs = [normal(&[batch, 2, 4, rows, 16], 0), normal(&[batch, 2, 9, 16], 1)].map(|x| of(dtype, &x));
            check(&f, &inputs, relative);
            assert_eq!(beside(&f, &inputs), BTreeMap::new());
        }
    }
    // What is broadcast within a matrix is left to MLX.
    let within = |inputs: &[Array]| -> Result<Vec<Array>> {
        let row = ops::broadcast_to(&inputs[0].add(one(&inputs[0]))?, &[5, 4])?;
        Ok(vec![inputs[1].abs()?.matmul(&row)?.abs()?, inputs[0].add(one(&inputs[0]))?.abs()?])
    };
    let inputs = [normal(&[1, 4], 0), normal(&[3, 5], 1)];
    check(&within, &inputs, 1e-5);
    assert_eq!(beside(&within, &inputs).get("Matmul"), Some(&1));
}
