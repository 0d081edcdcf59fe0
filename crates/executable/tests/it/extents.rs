//! The leading rows of a batch: equal to those of the whole, or refused.

use std::cell::RefCell;

use expect_test::expect;
use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexOp};
use mlx_rs::{Array, Dtype, ops};
use tacit::transform::apply;
use tacit::{Aval, Policy, Registry, Result, compile};
use tacit_executable::{Executable, Mode, Named};

use crate::gradients::Square;
use crate::types::{Left, aval, dense, matrix, message, numbers, said_of, with_handlers};

const UPPER: i32 = 4;

type Function = fn(&Array, &Array) -> Result<Array>;

/// A function of `x: f32[4,6]` and of the parameter `w: f32[4,6]`, whose extents are those of a batch by chance.
fn rows(mode: Mode, f: Function) -> Executable<'static> {
    let mut executable = Executable::builder("rows")
        .parameter("w", aval(&[4, 6]))
        .input("x", aval(&[UPPER, 6]))
        .output("y")
        .mode(mode)
        .build(move |given: &Named<'_>| Ok(vec![f(given.get("x")?, given.get("w")?)?]))
        .expect("builds");
    executable.set_parameter("w", weight()).expect("fits");
    executable
}

fn weight() -> Array {
    matrix(4, 6).subtract(Array::from_f32(11.5)).and_then(|w| w.multiply(Array::from_f32(0.1))).expect("builds")
}

fn input() -> Array {
    matrix(UPPER, 6).sin().expect("builds")
}

/// Each function runs on 1 and on 3 of 4 rows, in two modes, and gives the leading rows of its whole result.
fn keeps(axis: usize, f: Function) {
    for mode in [Mode::Lazy, Mode::Compiled] {
        let mut executable = rows(mode, f);
        let x = input();
        let whole = executable.run(&[("x", &x)]).expect("runs").get("y").expect("is returned").dense().expect("dense");
        for actual in [1, 3] {
            executable.active_extent(actual, UPPER).expect("rows keep apart");
            let cut =
                executable.run(&[("x", &x)]).expect("runs").get("y").expect("is returned").dense().expect("dense");
            let inner = whole.shape()[axis] / UPPER;
            let expected = whole.split_at_indices(&[actual * inner], axis as i32).expect("splits").swap_remove(0);
            assert_eq!(Aval::from(&cut), Aval::from(&expected));
            // Kernels that MLX fuses for other shapes round differently.
            let close = |(a, b): (&f32, &f32)| a.total_cmp(b).is_eq() || (a - b).abs() <= 1e-6 * (1.0 + b.abs());
            let (cut, expected) = (floats(&cut), floats(&expected));
            assert!(cut.iter().zip(&expected).all(close), "{actual} rows in {mode:?}: {cut:?}, not {expected:?}");
        }
        executable.active_extent(UPPER, UPPER).expect("is the end of it");
        assert_eq!(
            executable.run(&[("x", &x)]).expect("runs").get("y").expect("is returned").to_string(),
            Aval::from(&whole).to_string()
        );
    }
}

fn floats(array: &Array) -> Vec<f32> {
    numbers(&array.as_dtype(Dtype::Float32).expect("builds"))
}

#[test]
fn elements_of_a_row_stay_in_it() {
    keeps(0, |x, _| Ok(ops::maximum(x.exp()?.add(x)?, Array::from_f32(1.0))?));
    keeps(0, |x, w| Ok(x.multiply(rows_of(w, x)?)?));
    keeps(0, |x, _| Ok(x.add(ops::arange::<_, f32>(0, x.shape()[0], None)?.reshape(&[-1, 1])?)?));
    keeps(0, |x, _| Ok(ops::select(x.gt(Array::from_f32(0.0))?, x, ops::zeros_like(x)?)?));
    keeps(0, |x, _| Ok(x.floor()?.as_dtype(Dtype::Int32)?));
}

#[test]
fn an_extent_that_the_function_reads_is_that_of_the_rows() {
    keeps(0, |x, _| Ok(x.reshape(&[x.shape()[0] * 2, 3])?));
    keeps(0, |x, w| Ok(ops::concatenate(&[x, &rows_of(w, x)?, x], 1)?));
}

/// As many rows of a parameter as `x` has.
fn rows_of(parameter: &Array, x: &Array) -> Result<Array> {
    Ok(parameter.try_index(..x.shape()[0])?)
}

#[test]
fn products_keep_the_rows_of_one_side() {
    keeps(0, |x, w| Ok(x.matmul(w.t())?));
    keeps(1, |x, w| Ok(w.matmul(x.t())?));
    keeps(0, |x, w| Ok(ops::addmm(x, x, w.reshape(&[6, 4])?.matmul(w)?, 2.0, 0.5)?));
    keeps(0, |x, w| Ok(x.reshape(&[-1, 2, 3])?.matmul(rows_of(w, x)?.reshape(&[-1, 3, 2])?)?));
    keeps(0, |x, w| Ok(rows_of(w, x)?.reshape(&[-1, 2, 3])?.matmul(x.reshape(&[-1, 3, 2])?)?));
    keeps(0, |x, w| Ok(x.reshape(&[-1, 2, 3])?.matmul(w.reshape(&[3, 8])?)?));
    keeps(0, |x, _| Ok(x.reshape(&[-1, 2, 3])?.matmul(x.reshape(&[-1, 3, 2])?)?));
}

#[test]
fn other_axes_are_reduced_sorted_and_scanned() {
    keeps(0, |x, _| Ok(x.sum_axis(1, true)?));
    keeps(0, |x, _| Ok(x.mean_axis(-1, None)?));
    keeps(0, |x, _| Ok(ops::softmax_axis(x, -1, None)?));
    keeps(0, |x, _| Ok(x.logsumexp_axis(-1, None)?));
    keeps(0, |x, _| Ok(ops::indexing::argmax_axis(x, 1, None)?));
    keeps(0, |x, _| Ok(ops::sort_axis(x, 1)?));
    keeps(0, |x, _| Ok(ops::argsort_axis(x, -1)?));
    keeps(0, |x, w| Ok(ops::sort(w.flatten(None, None)?)?.search_sorted(x, ops::SearchSide::Left)?));
    keeps(0, |x, _| Ok(x.cumsum(1, true, None)?));
    keeps(0, |x, _| Ok(x.cummax(1, None, false)?));
    keeps(0, |x, _| Ok(x.reshape(&[-1, 2, 3])?.max_axis(2, None)?));
}

#[test]
fn the_rows_are_followed_where_they_go() {
    keeps(1, |x, _| Ok(x.t().multiply(Array::from_f32(2.0))?));
    keeps(0, |x, _| Ok(x.t().sum_axis(0, None)?));
    keeps(1, |x, _| Ok(x.expand_dims(0)?));
    keeps(0, |x, _| Ok(x.reshape(&[1, 1, -1, 6])?.squeeze_axes(&[0, 1])?));
    keeps(1, |x, _| Ok(ops::broadcast_to(x, &[3, x.shape()[0], 6])?));
    keeps(0, |x, _| Ok(x.flatten(None, None)?));
    keeps(0, |x, _| Ok(x.flatten(None, None)?.reshape(&[-1, 3, 2])?.transpose_axes(&[0, 2, 1])?));
    keeps(0, |x, _| Ok(x.try_index((.., 1..4))?));
    keeps(0, |x, _| Ok(x.try_index((.., -1))?));
    keeps(0, |x, _| Ok(ops::split_equal(x, 2, 1)?.swap_remove(1)));
    keeps(0, |x, _| Ok(ops::pad(x, &[(0, 0), (1, 2)], None, None)?));
}

#[test]
fn indices_are_rows_too() {
    keeps(0, |x, w| {
        let picked = ops::indexing::argmax_axis(x, 1, None)?.remainder(Array::from_slice(&[4u32], &[1]))?;
        Ok(w.take_axis(picked, 0)?)
    });
    keeps(0, |x, _| Ok(x.take_along_axis(ops::argsort_axis(x, 1)?, 1)?));
    keeps(0, |x, w| Ok(rows_of(w, x)?.put_along_axis(ops::argsort_axis(x, 1)?, x, 1)?));
}

#[test]
fn a_quantized_matrix_serves_all_rows() {
    keeps(0, |x, _| {
        let w = ops::ones::<f32>(&[8, 64])?.cumsum(1, None, None)?.sin()?;
        let (codes, scales, biases) = ops::quantize(w, 32, 4)?;
        let x = ops::concatenate(&[x, x, x, x, x, x, x, x, x, x, x], 1)?.try_index((.., ..64))?;
        Ok(ops::quantized_matmul(x, codes, scales, &biases, true, 32, 4)?)
    });
}

#[test]
fn a_derivative_of_its_own_does_not_matter() {
    keeps(0, |x, _| Ok(mlx_rs::stop_gradient(x)?.square()?));
    keeps(0, |x, _| Ok(apply(&[x.exp()?], Square)?.remove(0)));
}

/// The first line of each refusal; all rows are computed as before.
fn refused<const N: usize>(functions: [Function; N]) -> String {
    let said = functions.map(|f| {
        let mut executable = rows(Mode::Compiled, f);
        let x = input();
        let whole = dense(executable.run(&[("x", &x)]).expect("runs").get("y").expect("is returned"));
        let error = executable.active_extent(3, UPPER).expect_err("rows mix");
        assert_eq!(dense(executable.run(&[("x", &x)]).expect("runs as before").get("y").expect("is returned")), whole);
        message(&error).lines().next().unwrap_or_default().to_owned() + "\n"
    });
    said.concat()
}

#[test]
fn a_node_that_mixes_rows_is_named() {
    let said = refused([
        |x, _| Ok(x.sum_axis(0, None)?),
        |x, _| Ok(x.subtract(x.mean(None)?)?),
        |x, _| Ok(ops::softmax_axis(x.t(), -1, None)?),
        |x, _| Ok(x.cumsum(0, None, None)?),
        |x, _| Ok(ops::sort_axis(x, 0)?),
        |x, _| Ok(x.matmul(x.t())?),
        |x, _| Ok(x.t().matmul(x)?),
        |x, _| Ok(x.reshape(&[6, x.shape()[0]])?),
        |x, w| Ok(ops::concatenate(&[x, w], 0)?),
        |x, _| Ok(x.try_index(1..)?),
        |x, w| Ok(x.try_index(..2)?.add(w.try_index(..2)?)?),
        |x, _| Ok(ops::pad(x, &[(1, 0), (0, 0)], None, None)?),
        |x, w| Ok(x.take_axis(w.try_index(0)?.abs()?.as_dtype(Dtype::Uint32)?, 0)?),
        |x, _| Ok(x.expand_dims(1)?.multiply(x)?),
        |x, _| Ok(x.flatten(None, None)?.try_index(3..)?.try_index(..x.shape()[0])?),
        |x, _| Ok(x.try_index((..).stride_by(-1))?),
    ]);
    expect![[r#"
        3 of 4 rows cannot be computed alone: sum[axes=(0)] of f32[4,6] mixes them
        3 of 4 rows cannot be computed alone: sum[axes=(0,1)] of f32[4,6] mixes them
        3 of 4 rows cannot be computed alone: softmax[precise=false] of f32[6,4] mixes them
        3 of 4 rows cannot be computed alone: cum_sum[axis=0,reverse=false,inclusive=true] of f32[4,6] mixes them
        3 of 4 rows cannot be computed alone: sort[axis=0] of f32[4,6] mixes them
        3 of 4 rows cannot be computed alone: matmul of f32[4,6], f32[6,4] mixes them
        3 of 4 rows cannot be computed alone: matmul of f32[6,4], f32[4,6] mixes them
        3 of 4 rows cannot be computed alone: reshape[shape=(6,4)] of f32[4,6] mixes them
        3 of 4 rows cannot be computed alone: concatenate[axis=0] of f32[4,6], f32[4,6] mixes them
        3 of 4 rows cannot be computed alone: slice[start_indices=(1,0),end_indices=(4,6),strides=(1,1)] of f32[4,6] mixes them
        3 of 4 rows cannot be computed alone: slice[start_indices=(0,0),end_indices=(2,6),strides=(1,1)] of f32[4,6] mixes them
        3 of 4 rows cannot be computed alone: pad[axes=(0,1),low_pad_size=(1,0),high_pad_size=(0,0)] of f32[4,6], f32[] mixes them
        3 of 4 rows cannot be computed alone: gather[axes=(0),slice_sizes=(1,6)] of f32[4,6], u32[6] mixes them
        3 of 4 rows cannot be computed alone: broadcast[shape=(4,4,6)] of f32[4,1,6] mixes them
        3 of 4 rows cannot be computed alone: slice[start_indices=(3),end_indices=(24),strides=(1)] of f32[24] mixes them
        3 of 4 rows cannot be computed alone: slice[start_indices=(3,0),end_indices=(-5,6),strides=(-1,1)] of f32[4,6] is another for them
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_node_that_is_left_out_where_it_does_nothing_is_no_difference() {
    keeps(0, |x, w| Ok(x.add(w.try_index(..1)?)?));
    keeps(0, |x, w| Ok(rows_of(w, x)?.add(x.try_index((.., 1..2))?)?.multiply(rows_of(w, x)?)?));
    keeps(0, |x, _| Ok(ops::broadcast_to(x.sum_axis(1, true)?, x.shape())?.reshape(&[x.shape()[0], 6])?));
}

#[test]
fn a_function_that_is_another_on_fewer_rows_is_refused() {
    let said = refused([
        |x, _| Ok(x.divide(Array::from_f32(x.shape()[0] as f32))?),
        |x, _| Ok(x.add(ops::arange::<_, f32>(-x.shape()[0], 0, None)?.reshape(&[-1, 1])?)?),
        |x, _| Ok(x.reshape(&[4, 2, 3])?),
        |x, w| Ok(x.multiply(w)?),
        |x, _| if x.shape()[0] == 4 { Ok(x.exp()?) } else { Ok(x.sin()?) },
        |x, w| Ok(w.multiply(Array::from_f32(x.shape()[0] as f32))?),
    ]);
    expect![[r#"
        3 of 4 rows cannot be computed alone: an operand of divide is a constant f32[4,6] that is another for them
        3 of 4 rows cannot be computed alone: an operand of add is a constant f32[4,6] that is another for them
        3 of 4 rows cannot be computed alone: the function fails on them: mlx: [reshape] Cannot reshape array of size 18 into shape (4,2,3).
        3 of 4 rows cannot be computed alone: the function fails on them: mlx: [broadcast_shapes] Shapes (3,6) and (4,6) cannot be broadcast.
        3 of 4 rows cannot be computed alone: the function has Sin for them where it has Exp for all
        3 of 4 rows cannot be computed alone: an operand of multiply is a constant f32[4,6] that is another for them
    "#]]
    .assert_eq(&said);
}

#[test]
fn an_extent_in_a_parameter_of_a_node_is_another_function() {
    let said = refused([
        |x, _| Ok(x.try_index((.., x.shape()[0]..x.shape()[0] + 1))?),
        |x, w| Ok(x.add(w.try_index((x.shape()[0] - 1, ..))?)?),
        |x, w| Ok(ops::addmm(x, x, w.t().matmul(w)?, x.shape()[0] as f32, 1.0)?),
        |x, _| if x.shape()[0] == 4 { Ok(x.try_index((.., (..).stride_by(-1)))?) } else { Ok(x.clone()) },
    ]);
    expect![[r#"
        3 of 4 rows cannot be computed alone: slice[start_indices=(0,4),end_indices=(4,5),strides=(1,1)] of f32[4,6] is another for them
        3 of 4 rows cannot be computed alone: slice[start_indices=(3,0),end_indices=(4,6),strides=(1,1)] of f32[4,6] is another for them
        3 of 4 rows cannot be computed alone: addmm[alpha=4,beta=1] of f32[4,6], f32[6,6], f32[4,6] is another for them
        3 of 4 rows cannot be computed alone: slice[start_indices=(0,5),end_indices=(4,-7),strides=(1,-1)] of f32[4,6] is another for them
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_refusal_says_what_to_do() {
    let functions: [Function; 5] = [
        |x, _| Ok(x.sum_axis(0, None)?),
        |x, _| Ok(x.divide(Array::from_f32(x.shape()[0] as f32))?),
        |x, _| Ok(x.try_index((.., x.shape()[0]..x.shape()[0] + 1))?),
        |x, _| Ok(x.reshape(&[4, 2, 3])?),
        |x, _| if x.shape()[0] == 4 { Ok(x.exp()?) } else { Ok(x.sin()?) },
    ];
    let said = functions.map(|f| said_of(rows(Mode::Compiled, f).active_extent(3, UPPER)));
    expect![[r#"
        3 of 4 rows cannot be computed alone: sum[axes=(0)] of f32[4,6] mixes them
        help: keep rows apart in the function, or run all of them
        3 of 4 rows cannot be computed alone: an operand of divide is a constant f32[4,6] that is another for them
        help: let the function read no extent into a value and draw no random numbers, or run all rows
        3 of 4 rows cannot be computed alone: slice[start_indices=(0,4),end_indices=(4,5),strides=(1,1)] of f32[4,6] is another for them
        help: let the function read no extent into a parameter, or run all rows
        3 of 4 rows cannot be computed alone: the function fails on them: mlx: [reshape] Cannot reshape array of size 18 into shape (4,2,3).
        help: let it read the extent, as `x.shape()[0]`, where it names one
        3 of 4 rows cannot be computed alone: the function has Sin for them where it has Exp for all
        help: let it do the same for every extent, or run all of them
    "#]].assert_eq(&said.concat());
}

#[test]
fn a_fed_output_whose_rows_lie_along_another_axis_is_refused() {
    let mut turned = Executable::builder("turned")
        .input("x", aval(&[UPPER, 4]))
        .resident("cache", aval(&[4, 4]))
        .output("cache")
        .feed("cache", "cache")
        .build(|given| Ok(vec![given.get("cache")?.add(given.get("x")?)?.t()]))
        .expect("builds");
    turned.set_input("cache", matrix(4, 4)).expect("fits");
    turned.active_extent(2, UPPER).expect("rows keep apart");
    expect![[r#"
        output cache is f32[4,2] in 2 of 4 rows and cannot be fed to cache, which is f32[4,4]
        help: let the rows of a fed output be its leading axis
    "#]]
    .assert_eq(&said_of(turned.run(&[("x", &matrix(UPPER, 4))])));
}

#[test]
fn rows_that_are_not_there_are_refused() {
    let mut executable = rows(Mode::Compiled, |x, _| Ok(x.clone()));
    let mut refusal = |actual, upper| message(&executable.active_extent(actual, upper).expect_err("is refused"));
    expect![[r#"
        0 of 4 rows cannot be computed
        help: name at least one row, and no more than there are
        5 of 4 rows cannot be computed
        help: name at least one row, and no more than there are
        no input of rows has the leading extent 6
        help: name the leading extent of one of x f32[4,6]"#]]
    .assert_eq(&[refusal(0, 4), refusal(5, 4), refusal(2, 6)].join("\n"));
}

#[test]
fn extents_are_traced_once_each() {
    let mut executable = rows(Mode::Compiled, |x, w| Ok(x.matmul(w.t())?));
    for _ in 0..3 {
        for actual in 1..=UPPER {
            executable.active_extent(actual, UPPER).expect("rows keep apart");
            executable.run(&[("x", &input())]).expect("runs");
        }
    }
    assert_eq!((executable.stats().calls, executable.stats().traces), (12, 4));
}

#[test]
fn rows_of_an_implicit_parameter_are_handled_and_not_cut() {
    let _registry = with_handlers(Registry::new());
    let _allow = Policy::Allow.scope();
    let mut executable = rows(Mode::Compiled, |x, w| Ok(x.matmul(w.t())?));
    executable.set_parameter("w", Left::of(&weight())).expect("fits");
    executable.active_extent(2, UPPER).expect("rows keep apart");
    assert_eq!(
        executable.run(&[("x", &input())]).expect("runs").get("y").expect("is returned").to_string(),
        "f32[2,4]"
    );
}

#[test]
fn a_fed_cache_keeps_the_rows_that_are_not_computed() {
    for mode in [Mode::Eager, Mode::Lazy, Mode::Compiled] {
        let mut executable = Executable::builder("cache")
            .input("x", aval(&[UPPER, 1]))
            .resident("cache", aval(&[UPPER, 1]))
            .output("cache")
            .output("twice")
            .feed("cache", "cache")
            .mode(mode)
            .build(|given| {
                let cache = given.get("cache")?.add(given.get("x")?)?;
                Ok(vec![cache.clone(), cache.add(&cache)?])
            })
            .expect("builds");
        let x = matrix(UPPER, 1);
        executable.set_input("cache", x.clone()).expect("fits");
        executable.active_extent(2, UPPER).expect("rows keep apart");
        let outputs = executable.run(&[("x", &x)]).expect("runs");
        assert_eq!(dense(outputs.get("twice").expect("is returned")), [4.0, 8.0]);
        assert_eq!(dense(executable.resident("cache").expect("is set")), [2.0, 4.0, 3.0, 4.0]);
        executable.active_extent(UPPER, UPPER).expect("ends it");
        executable.run(&[("x", &x)]).expect("runs");
        assert_eq!(dense(executable.resident("cache").expect("is set")), [3.0, 6.0, 6.0, 8.0]);
    }
}

#[test]
fn an_output_that_is_returned_twice_and_fed_has_its_rows() {
    let mut cached = Executable::builder("cached")
        .input("x", aval(&[4, 2]))
        .resident("cache", aval(&[4, 2]))
        .output("cache")
        .output("y")
        .feed("cache", "cache")
        .build(|given| {
            let cache = given.get("cache")?.add(given.get("x")?)?;
            Ok(vec![cache.clone(), cache])
        })
        .expect("builds");
    cached.set_input("cache", matrix(4, 2)).expect("fits");
    cached.active_extent(2, 4).expect("rows do not mix");
    let outputs = cached.run(&[("x", &matrix(4, 2))]).expect("runs");
    assert_eq!(dense(outputs.get("y").expect("is returned")), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(dense(cached.resident("cache").expect("is set")), [2.0, 4.0, 6.0, 8.0, 5.0, 6.0, 7.0, 8.0]);
}

#[test]
fn a_compiled_function_inside_is_followed() {
    let inner = RefCell::new(compile(|x: Array| x.exp()?.multiply(Array::from_f32(2.0))));
    let mut nested = Executable::builder("nested")
        .input("x", aval(&[4, 2]))
        .output("y")
        .build(move |given| Ok(vec![inner.borrow_mut().call(given.get("x")?)?.dense()?]))
        .expect("builds");
    nested.active_extent(1, 4).expect("rows do not mix");
    let outputs = nested.run(&[("x", &matrix(4, 2))]).expect("runs");
    let expected = matrix(4, 2).exp().expect("exp");
    let expected: Vec<f32> = expected.as_slice::<f32>()[..2].iter().map(|x| 2.0 * x).collect();
    for (a, b) in dense(outputs.get("y").expect("is returned")).iter().zip(&expected) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}
