//! The loaded MLX is as `tacit_bridge::mlx` takes it to be.

use std::process::Stdio;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, io};

use mlx_rs::error::{Exception, Result};
use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexMutOp, TryIndexOp};
use mlx_rs::transforms::compile::compile;
use mlx_rs::{Array, Dtype, Stream, linalg, ops, transforms, with_stream};
use tacit_bridge::mlx::{Feature, Refusal, VERSION, refusal, without_place};
use tacit_bridge::{Aval, Scope, Tape, typed};

use crate::itself;

#[allow(dead_code, reason = "the build asks for more of it")]
#[path = "../../../mlx-sys/build/versions.rs"]
mod versions;

fn vector() -> Array {
    Array::from_slice(&[1f32, 2.0, 3.0], &[3])
}

fn of_ones(shape: &[i32]) -> Array {
    ops::ones::<f32>(shape).expect("records")
}

#[test]
fn the_table_of_primitives_is_of_the_versions_that_are_tested_and_this_is_one_of_them() {
    let [oldest, .., newest] = versions::TESTED else { panic!("two versions at least") };
    let begin = format!("# Every primitive of MLX {oldest} to {newest}, ");
    assert!(include_str!("../../primitives.tbl").starts_with(&begin), "{begin}");
    assert!(versions::TESTED.iter().any(|tested| tested.to_string() == VERSION), "no test was ever run with {VERSION}");
}

#[test]
fn what_differs_between_versions_is_in_their_table() {
    let version = versions::TESTED.iter().find(|tested| tested.to_string() == VERSION).expect("a tested one");
    for feature in Feature::ALL {
        assert!(versions::DIFFERENCES.iter().any(|known| known.define == feature.define()), "{feature:?}");
        let here = versions::defines(*version).any(|define| define == feature.define());
        assert_eq!(feature.is_there(), here, "{feature:?}");
    }
}

#[test]
fn the_place_of_the_greatest_is_that_of_a_nan_from_some_version_on() -> Result<()> {
    let x = Array::from_slice(&[1f32, f32::NAN, 3.0, f32::NAN], &[4]);
    let expected = if Feature::PlaceOfNan.is_there() { 1 } else { 2 };
    assert_eq!(ops::indexing::argmax(&x, false)?.as_slice::<u32>(), [expected]);
    Ok(())
}

#[test]
fn an_eval_of_a_traced_array_is_told_from_other_errors() {
    static INSIDE: Mutex<Vec<Exception>> = Mutex::new(Vec::new());
    let function = |x: &Array| {
        let errors = [x.eval().err(), transforms::async_eval([x]).err()];
        INSIDE.lock().expect("not poisoned").extend(errors.into_iter().flatten());
        x.negative()
    };
    compile(function, None)(&vector()).expect("the errors are not passed on");
    let inside = std::mem::take(&mut *INSIDE.lock().expect("not poisoned"));
    assert_eq!(inside.len(), 2, "it evaluates a tracer twice");
    for error in inside {
        assert_eq!(refusal(error.what()), Refusal::Traced, "{error}");
    }
    let scope = Scope::new().expect("memory");
    let placeholder = scope.placeholder(&Aval::from(&vector())).expect("a placeholder");
    let outside = placeholder.exp().and_then(|y| y.eval()).expect_err("it has no data");
    assert_eq!(refusal(outside.what()), Refusal::Traced, "{outside}");
}

#[test]
#[cfg(target_os = "linux")]
fn memory_that_no_machine_has_is_an_error_of_each_eval() {
    use tacit_bridge::kernel::GpuBackend;

    // In a process of its own: MLX counts it as memory in use.
    if env::var_os("TACIT_TEST_NO_MEMORY").is_none() {
        let name = "mlx::memory_that_no_machine_has_is_an_error_of_each_eval";
        let output =
            itself::command().args(["--exact", name]).env("TACIT_TEST_NO_MEMORY", "1").output().expect("starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let vast = ops::ones::<f32>(&[1 << 20, 1 << 20, 1 << 10]).expect("is lazy");
    let negative = vast.negative().expect("is lazy");
    for array in [&vast, &negative, &vast] {
        let error = array.eval().expect_err("it has no memory");
        // CUDA has words of its own.
        let is_cuda = GpuBackend::available() == Some(GpuBackend::Cuda);
        assert!(is_cuda || error.what().contains("[malloc] Unable to allocate 4503599627370496 bytes"), "{error}");
    }
    let after = vector().negative().expect("is lazy");
    assert_eq!(after.as_slice::<f32>(), [-1.0, -2.0, -3.0]);
}

#[test]
fn a_lazy_array_of_another_thread_is_told_from_other_errors() {
    let lazy = thread::spawn(|| vector().negative()).join().expect("no panic").expect("an op");
    let error = lazy.eval().expect_err("its stream is the other thread's");
    assert_eq!(refusal(error.what()), Refusal::OtherThread, "{error}");
}

#[test]
fn a_primitive_without_a_rule_for_shapes_is_told_from_other_errors() {
    let function = |x: &Array| ops::pad(x, (1, 1), None, None);
    let error = compile(function, true)(&vector()).expect_err("Pad has no rule");
    assert_eq!(refusal(error.what()), Refusal::Shapeless, "{error}");
    // No CPU builds a kernel from source; `shapeless.cpp` asserts that it has none either, and this is what MLX then says.
    assert_eq!(refusal(&error.what().replace("Pad", "CustomKernel")), Refusal::Shapeless);
}

#[test]
fn the_place_in_mlx_c_stands_at_the_end_of_a_message() {
    let error = vector().reshape(&[2]).expect_err("three elements");
    let words = without_place(error.what());
    assert!(words.len() < error.what().len() && !words.contains(".cpp"), "{}", error.what());
    // Whoever prints the error itself learns nothing of the machine that compiled it.
    assert!(!error.what().contains('/'), "{}", error.what());
    assert_eq!((refusal(words), without_place(words)), (Refusal::Other, words));
}

#[test]
fn the_reductions_are_those_of_the_ops() {
    let x = vector();
    let results = [
        ops::sum(&x, None),
        ops::prod(&x, None),
        ops::min(&x, None),
        ops::max(&x, None),
        ops::all(&x, None),
        ops::any(&x, None),
    ];
    let names = results.map(|result| {
        let result = result.expect("a reduction");
        let tape = Tape::walk(std::slice::from_ref(&result), std::slice::from_ref(&x), &[]).expect("a tape");
        tape.name(0).text().to_owned()
    });
    let known = |name: &String| typed::describe(name).is_some_and(|row| row.class == typed::Class::Reduction);
    assert!(names.iter().all(known), "{names:?}");
}

/// Ops of MLX's own that fail while the thread that used MLX first queues more work leave no task counted for ever: MLX
/// would then wait for it in every eval that runs ahead of its stream.
#[test]
fn evals_go_on_after_ops_of_mlx_failed() {
    const CHILD: &str = "TACIT_FAIL_IN_THIS_PROCESS";
    if env::var_os(CHILD).is_some() {
        return fail_and_go_on();
    }
    // In another process, where no other thread was first.
    let name = format!("{}::evals_go_on_after_ops_of_mlx_failed", module_path!().split_once("::").expect("a module").1);
    let mut child = itself::command()
        .args(["--exact", &name, "--test-threads=1"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None if begin.elapsed() < Duration::from_mins(2) => thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill().expect("it runs");
                panic!("an eval waits for ever");
            }
        }
    };
    let said = io::read_to_string(child.stdout.take().expect("a pipe")).expect("text");
    assert!(status.success() && said.contains("1 passed"), "{said}");
}

fn fail_and_go_on() {
    let chain = |length: usize| (0..length).try_fold(vector(), |x, _| x.negative()).expect("ops");
    for round in 0..2000 {
        // The failure is met at another task each time.
        let singular = ops::zeros::<f32>(&[1 + round % 32, 1 + round % 32]).expect("an op");
        let beside = chain(round as usize % 10);
        let inverse = linalg::inv(&singular).expect("an op");
        let failed = inverse.sum(None).and_then(|sum| (0..30).try_fold(sum, |x, _| x.negative())).expect("ops");
        let error = transforms::eval([&beside, &failed]).expect_err("it is singular");
        assert!(error.what().contains("Inverse"), "{error}");
    }
    for _ in 0..20 {
        chain(1000).eval().expect("nothing fails");
    }
}

#[test]
fn a_hadamard_transform_of_a_length_without_a_matrix_is_an_error_of_the_op() {
    for length in [1, 2, 48, 112, 320, 1024] {
        let row = of_ones(&[2, length]);
        assert!(row.hadamard_transform(0.5).and_then(|y| y.eval()).is_ok(), "{length}");
    }
    for length in [7, 36, 520, 560 * 3] {
        let row = of_ones(&[2, length]);
        let error =
            row.hadamard_transform(0.5).expect_err("MLX would write behind the array, or refuse it in the eval");
        let text = format!("The last axis has {length} elements, which is not m * 2^k with an m of 1, 12, 20 or 28.");
        assert_eq!(without_place(error.what()), format!("[hadamard_transform] {text}"));
    }
    let empty = of_ones(&[0, 7]);
    let error = empty.hadamard_transform(0.5).expect_err("it has no elements");
    assert!(error.what().contains("empty"), "{error}");
}

#[test]
fn a_reduction_without_shapes_may_be_over_axes_of_one_element() {
    let rows = Array::from_iter((0..12).map(|i| i as f32 - 5.0), &[3, 1, 4]);
    let columns = rows.swap_axes(0, 2).expect("a view");
    let [halves, bytes] = [Dtype::Float16, Dtype::Int8].map(|dtype| columns.as_dtype(dtype).expect("a cast"));
    let reductions: [fn(&Array) -> Result<Array>; 5] = [
        |x| x.sum_axis(1, true),
        |x| x.prod_axis(1, true),
        |x| x.max_axis(1, true),
        |x| x.min_axis(1, true),
        |x| x.any_axis(1, true),
    ];
    for reduction in reductions {
        for x in [&rows, &columns, &halves, &bytes] {
            let expected = reduction(x).expect("MLX leaves it out");
            let result = compile(reduction, true)(x).expect("a result");
            assert!(result.eq_values(&expected).expect("one shape"), "{result} and not {expected}");
        }
    }
}

/// MLX divides by the extents of these.
#[test]
fn ops_on_nothing_have_results() -> Result<()> {
    let (none, rows) = (of_ones(&[0]), of_ones(&[3, 0]));
    let (w, scales, biases) = ops::quantize(of_ones(&[2, 32]), 32, 4)?;
    let product = |x: &Array| ops::quantized_matmul(x, &w, &scales, &biases, true, 32, 4);
    let matrices = of_ones(&[2, 0, 0]);
    let on_cpu = |f: fn(&Array) -> Result<Array>| with_stream(&Stream::cpu(), || f(&matrices));
    let cases: [(&str, Result<Array>, &[i32]); 17] = [
        ("sort", ops::sort(&rows), &[0]),
        ("sort along an axis", ops::sort_axis(&rows, -1), &[3, 0]),
        ("argsort", ops::argsort(&none), &[0]),
        ("argsort along an axis", ops::argsort_axis(&rows, 1), &[3, 0]),
        ("cumsum", none.cumsum(0, None, None), &[0]),
        ("cumsum before an empty axis", rows.cumsum(0, None, None), &[3, 0]),
        ("cumprod", none.cumprod(0, None, None), &[0]),
        ("cummax", ops::cummax(&none, 0, None, None), &[0]),
        ("inverse", on_cpu(|a| linalg::inv(a)), &[2, 0, 0]),
        ("inverse of triangles", on_cpu(|a| linalg::tri_inv(a, None)), &[2, 0, 0]),
        ("inverse by a factor", on_cpu(|a| linalg::cholesky_inv(a, None)), &[2, 0, 0]),
        ("solution", on_cpu(|a| linalg::solve(a, of_ones(&[2, 0, 3]))), &[2, 0, 3]),
        ("solution by triangles", on_cpu(|a| linalg::solve_triangular(a, of_ones(&[2, 0, 3]), None)), &[2, 0, 3]),
        ("product of no rows", product(&of_ones(&[0, 32])), &[0, 2]),
        ("convolution of no channels", ops::conv1d(of_ones(&[1, 8, 0]), of_ones(&[2, 3, 0]), 1, 0, 1, 1), &[1, 6, 2]),
        (
            "convolution of images of no channels",
            ops::conv2d(of_ones(&[1, 8, 8, 0]), of_ones(&[2, 3, 3, 0]), None, None, None, None),
            &[1, 6, 6, 2],
        ),
        ("convolution to no channels", ops::conv1d(of_ones(&[1, 8, 2]), of_ones(&[0, 3, 2]), 1, 0, 1, 1), &[1, 6, 0]),
    ];
    for (name, found, shape) in cases {
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        found.eval()?;
        assert_eq!(found.shape(), shape, "{name}");
    }
    // What MLX refuses is refused.
    assert!(ops::sort_axis(&none, 1).is_err());
    let sum = of_ones(&[2, 3]).cumsum(1, None, None)?;
    assert_eq!(sum.as_slice::<f32>(), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    Ok(())
}

/// MLX takes each part for its first number, again and again.
#[test]
fn parts_of_what_goes_backwards_are_its_elements() -> Result<()> {
    let x = Array::from_iter((0..12).map(|i| i as f32), &[12]);
    let backwards = || x.try_index((..).stride_by(-1));
    let there = backwards()?;
    there.eval()?;
    let views = [
        ops::as_strided(&x, &[12], &[-1], 11)?,
        backwards()?.reshape(&[2, 6])?.t(),
        x.reshape(&[3, 4])?.try_index((.., (..).stride_by(-1)))?,
        x.as_dtype(Dtype::Int32)?.try_index((..).stride_by(-1))?.floor()?,
        x.as_dtype(Dtype::Uint32)?.try_index((..).stride_by(-1))?.abs()?,
        backwards()?,
        there,
    ];
    for view in views {
        let rows = view.contiguous()?;
        for (part, expected) in view.split_equal(3, 0)?.iter().zip(rows.split_equal(3, 0)?) {
            assert!(part.negative()?.eq_values(expected.negative()?)?, "{part}");
        }
        let (first, expected) = (ops::split_at_indices(&view, &[1], 0)?, ops::split_at_indices(&rows, &[1], 0)?);
        assert!(first[0].exp()?.eq_values(expected[0].exp()?)?, "{}", first[0]);
    }
    Ok(())
}

/// MLX would divide by 0, leave its arrays, or throw what ends the process.
#[test]
fn what_mlx_does_not_check_is_an_error_of_the_op() -> Result<()> {
    let (x, row, wide) = (of_ones(&[3, 4]), of_ones(&[4]), of_ones(&[2, 32]));
    let (w, scales, biases) = ops::quantize(&wide, 32, 4)?;
    let (scale, bias) = (scales.try_index(..1)?, biases.try_index(..1)?);
    let by_mask = || {
        let mut put = row.clone();
        put.try_index_mut((&row.gt(Array::from_f32(0.0))?,), Array::from_f32(2.0)).map(|()| put)
    };
    let several = || {
        let [w, scales, biases] = [&w, &scales, &biases].map(|part| ops::stack(&[part, part], 0));
        ops::quantized_matmul(&wide, w?, scales?, &biases?, true, 32, 4)
    };
    let segments = Array::from_slice(&[0u32, 2], &[1, 2]);
    let convolution = ops::conv1d(of_ones(&[1, 8, 2]), of_ones(&[3, 3, 2]), 1, 0, 1, 0);
    let cases = [
        (x.try_index((.., (..).stride_by(0))), "[slice] A stride is 0."),
        (by_mask(), "[scatter] Boolean indices not supported."),
        (ops::unflatten(&x, 1, &[0, -1]), "[unflatten] Cannot infer the shape of an empty array."),
        (ops::as_strided(&x, &[3, 5], &[4, 1], 0), "[as_strided] The view reaches outside of the 12 elements."),
        (ops::as_strided(&x, &[4], &[-1], 2), "[as_strided] The view reaches outside of the 12 elements."),
        (
            ops::segmented_mm(&x, of_ones(&[3, 2]), &segments),
            "[segmented_mm] The inner axes of the inputs have not the same extent.",
        ),
        (convolution, "[conv] The number of groups is not above 0."),
        (ops::quantize(&wide, 0, 4).map(|(w, ..)| w), "[quantize] The group size is not above 0."),
        (
            ops::quantized_matmul(&wide, &w, &scales, &biases, true, 32, 0),
            "[quantized_matmul] The group size or the bits are not above 0.",
        ),
        (
            ops::quantized_matmul(&wide, w.try_index(0)?, &scale, &bias, true, 32, 4),
            "[quantized_matmul] The weight has fewer than two axes.",
        ),
        (
            ops::quantized_matmul(&wide, &w, &scale, &bias, true, 32, 4),
            "[quantized_matmul] The weight and the scales have not the same rows.",
        ),
        (
            ops::gather_qmm(&wide, &w, &scale, &bias, None, &Array::from_slice(&[0u32], &[1]), true, 32, 4, None),
            "[gather_qmm] The weight and the scales have not the same rows.",
        ),
        (
            with_stream(&Stream::cpu(), || linalg::lu(of_ones(&[2, 0, 0])).map(|(p, ..)| p)),
            "[linalg::lu] The matrices have no elements.",
        ),
        (several(), "[quantized_matmul] There are several matrices, and the input has no axis for them."),
    ];
    for (found, message) in cases {
        let error = found.expect_err(message);
        assert_eq!(without_place(error.what()), message);
    }
    let reversed = ops::as_strided(Array::from_slice(&[1i32, 2, 3], &[3]), &[3], &[-1], 2)?;
    assert!(reversed.all_close(Array::from_slice(&[3i32, 2, 1], &[3]), None, None, None)?);
    Ok(())
}

/// The flat view of such an array is no copy, and MLX refused it in the eval.
#[test]
fn a_view_by_strides_is_of_an_array_that_lies_in_steps() -> Result<()> {
    let x = Array::from_slice(&[0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &[8]);
    let cases = [
        ("every other element", x.try_index((..).stride_by(2))?, [0f32, 2.0, 4.0, 6.0]),
        ("backwards", x.try_index((..).stride_by(-2))?, [7.0, 5.0, 3.0, 1.0]),
        ("a column", x.reshape(&[4, 2])?.try_index((.., ..1))?, [0.0, 2.0, 4.0, 6.0]),
        ("one element", ops::broadcast_to(Array::from_f32(3.0), &[2, 2])?, [3.0; 4]),
    ];
    for (name, whole, expected) in cases {
        let view = ops::as_strided(whole, &[2, 2], &[2, 1], 0)?;
        view.eval()?;
        assert_eq!(view.as_slice::<f32>(), expected, "{name}");
    }
    Ok(())
}
