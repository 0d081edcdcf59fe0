//! Compiled functions: when they trace, what they keep, what an error leaves.

use std::cell::Cell;
use std::fmt;

use mlx_rs::transforms::vjp;
use mlx_rs::{Array, Dtype, Stream, memory, ops};
use tacit_bridge::{BoxError, BridgeError, Outcome, PanicError, Program, any_tracer};

use crate::arrays::{matrix, numbers, vector};
use crate::turns;

type Traced = Result<Vec<Array>, BoxError>;

fn called(
    program: &mut Program,
    inputs: &[&Array],
    mut trace: impl FnMut(Vec<Array>) -> Traced,
) -> (Outcome, Vec<Vec<f32>>) {
    let mut outputs = Vec::new();
    let outcome = program.call(inputs, &mut outputs, &mut trace).expect("runs");
    (outcome, outputs.iter().map(numbers).collect())
}

fn failure(program: &mut Program, inputs: &[&Array], mut trace: impl FnMut(Vec<Array>) -> Traced) -> BridgeError {
    program.call(inputs, &mut Vec::new(), &mut trace).expect_err("fails")
}

/// `exp(x) + y` and `x - y`.
fn both(args: Vec<Array>) -> Traced {
    let [x, y] = <[Array; 2]>::try_from(args).expect("two arguments");
    Ok(vec![x.exp()?.add(&y)?, x.subtract(y)?])
}

fn untraced(_: Vec<Array>) -> Traced {
    Err("traced again".into())
}

#[test]
fn it_traces_once_and_then_replays_on_other_values() {
    let mut program = Program::new(false).expect("memory");
    let (zero, one, two) = (vector(&[0.0]), vector(&[1.0]), vector(&[2.0]));
    assert!(!program.matches(&[&zero, &one]));
    assert_eq!(called(&mut program, &[&zero, &one], both), (Outcome::Traced, vec![vec![2.0], vec![-1.0]]));
    assert!(program.matches(&[&one, &two]));
    assert_eq!(called(&mut program, &[&zero, &two], untraced), (Outcome::Replayed, vec![vec![3.0], vec![-2.0]]));
}

/// From 0.32.3 on MLX finds a trace by the stream that the thread has already, and this thread has none yet.
#[test]
fn the_first_use_of_mlx_on_a_thread_is_not_traced_again() {
    let mut program = Program::new(false).expect("memory");
    let mut outputs = Vec::new();
    let mut constant = |_: Vec<Array>| -> Traced { Ok(vec![Array::from_slice(&[4f32], &[1]).negative()?]) };
    let outcome = program.call(&[], &mut outputs, &mut constant).expect("runs");
    assert_eq!(outcome, Outcome::Traced);
    let outcome = program.call(&[], &mut outputs, &mut untraced).expect("runs");
    assert_eq!(outcome, Outcome::Replayed);
    assert_eq!(outputs.iter().map(numbers).collect::<Vec<_>>(), [[-4.0], [-4.0]]);
}

#[test]
fn results_are_appended() {
    let mut program = Program::new(false).expect("memory");
    let mut outputs = vec![vector(&[5.0])];
    program.call(&[&vector(&[0.0]), &vector(&[1.0])], &mut outputs, &mut both).expect("runs");
    assert_eq!(outputs.iter().map(numbers).collect::<Vec<_>>(), [[5.0], [2.0], [-1.0]]);
}

/// MLX's own compile fails with `_Map_base::at`.
#[test]
fn results_may_be_constants_of_one_value() {
    let mut program = Program::new(false).expect("memory");
    let (zero, one) = (Array::from_f32(0.0), Array::from_f32(1.0));
    let constants = |args: Vec<Array>| {
        let next = args[0].add(Array::from_f32(0.0))?;
        Ok(vec![zero.clone(), next, Array::from_f32(0.0), one.clone(), zero.clone()])
    };
    let expected = |next| [vec![0.0], vec![next], vec![0.0], vec![1.0], vec![0.0]].to_vec();
    assert_eq!(called(&mut program, &[&vector(&[2.0])], constants), (Outcome::Traced, expected(2.0)));
    assert_eq!(called(&mut program, &[&vector(&[3.0])], untraced), (Outcome::Replayed, expected(3.0)));
}

#[test]
fn it_matches_the_avals_of_its_latest_trace() {
    let mut program = Program::new(false).expect("memory");
    let (small, large) = (vector(&[1.0]), vector(&[1.0, 2.0]));
    called(&mut program, &[&small, &small], both);
    assert!(program.matches(&[&small, &small]));
    let whole = small.as_dtype(Dtype::Int32).expect("builds");
    for other in [&large, &matrix(1, 1), &whole] {
        assert!(!program.matches(&[&small, other]));
    }
    assert!(!program.matches(&[&small]) && !program.matches(&[]));
    assert_eq!(called(&mut program, &[&large, &large], both).0, Outcome::Traced);
    assert!(program.matches(&[&large, &large]) && !program.matches(&[&small, &small]));
}

#[test]
fn shapeless_it_matches_by_rank() {
    let mut program = Program::new(true).expect("memory");
    assert!(program.is_shapeless());
    let sum = |args: Vec<Array>| -> Traced { Ok(vec![args[0].exp()?.sum(None)?]) };
    called(&mut program, &[&matrix(2, 3)], sum);
    assert!(program.matches(&[&matrix(4, 5)]) && !program.matches(&[&vector(&[1.0])]));
    let (outcome, results) = called(&mut program, &[&ops::zeros::<f32>(&[4, 5]).expect("builds")], untraced);
    assert_eq!((outcome, results), (Outcome::Replayed, vec![vec![20.0]]));
}

#[test]
fn shapeless_a_layer_with_a_bias_is_right_at_every_batch_size() {
    let (weight, bias) = (matrix(6, 5), vector(&[1.0, 2.0, 3.0, 4.0, 5.0]));
    let layer = |x: &Array| ops::addmm(&bias, x, &weight, None, None);
    for shapes in [[vec![2, 6], vec![7, 6], vec![1, 6]], [vec![3, 2, 6], vec![5, 4, 6], vec![1, 1, 6]]] {
        let mut program = Program::new(true).expect("memory");
        let mut traces = 0;
        for shape in shapes {
            let x = ops::ones::<f32>(&shape).expect("builds");
            let (_, results) = called(&mut program, &[&x], |args| {
                traces += 1;
                Ok(vec![layer(&args[0])?])
            });
            assert_eq!(results[0], numbers(&layer(&x).expect("builds")));
        }
        assert_eq!(traces, 1);
    }
}

#[test]
fn an_error_of_the_trace_comes_back_itself_and_the_next_call_traces() {
    let mut program = Program::new(false).expect("memory");
    let x = vector(&[0.0]);
    let BridgeError::Callback(error) = failure(&mut program, &[&x, &x], |_| Err(Box::new(Own))) else {
        panic!("not the function's error");
    };
    assert!(error.is::<Own>());
    assert!(!program.matches(&[&x, &x]));
    let BridgeError::Callback(error) = failure(&mut program, &[&x, &x], |_| panic!("the function's own panic")) else {
        panic!("not the function's panic");
    };
    assert!(error.is::<PanicError>());
    assert_eq!(error.to_string(), "panicked: the function's own panic");
    assert_eq!(called(&mut program, &[&x, &x], both), (Outcome::Traced, vec![vec![1.0], vec![0.0]]));
    assert_eq!(called(&mut program, &[&x, &x], untraced).0, Outcome::Replayed);
}

#[test]
fn an_error_of_the_replay_leaves_no_trace_behind() {
    let mut program = Program::new(true).expect("memory");
    let x = vector(&[1.0, 2.0]);
    // MLX finds out only after the trace that this has no shape rule.
    let padded = |args: Vec<Array>| -> Traced { Ok(vec![ops::pad(&args[0], &[(1, 1)][..], None, None)?]) };
    for _ in 0..2 {
        assert!(matches!(failure(&mut program, &[&x], padded), BridgeError::Mlx(_)));
        assert!(!program.matches(&[&x]));
    }
    let exp = |args: Vec<Array>| -> Traced { Ok(vec![args[0].negative()?]) };
    assert_eq!(called(&mut program, &[&x], exp), (Outcome::Traced, vec![vec![-1.0, -2.0]]));
}

#[test]
fn programs_nest() {
    let (mut outer, mut inner) = (Program::new(false).expect("memory"), Program::new(false).expect("memory"));
    let x = vector(&[0.0]);
    let mut inlined = None;
    let (outcome, results) = called(&mut outer, &[&x], |args| {
        let mut outputs = Vec::new();
        inlined = Some(inner.call(&[&args[0], &args[0]], &mut outputs, &mut both)?);
        Ok(vec![outputs[0].add(&outputs[1])?])
    });
    // A program on tracers is a part of the program that is being traced.
    assert_eq!((outcome, inlined, results), (Outcome::Traced, Some(Outcome::Inlined), vec![vec![1.0]]));
    let mut another = Program::new(false).expect("memory");
    let (_, results) = called(&mut outer, &[&vector(&[0.0, 1.0])], |args| {
        let mut outputs = Vec::new();
        let own = another.call(&[&x, &x], &mut outputs, &mut both)?;
        assert_eq!(own, Outcome::Traced);
        Ok(vec![args[0].add(&outputs[0])?])
    });
    assert_eq!(results, [[1.0, 2.0]]);
}

#[test]
fn tracers_are_told_while_they_are_traced() {
    let x = vector(&[1.0]);
    assert!(!any_tracer(&[&x]) && !any_tracer(&[]));
    let program = Cell::new(Some(Program::new(false).expect("memory")));
    let square = |args: &[Array]| {
        let mut program = program.take().expect("is there");
        assert!(any_tracer(&[&x, &args[0]]) && !program.matches(&[&args[0], &args[0]]));
        let mut outputs = Vec::new();
        let outcome = program.call(&[&args[0], &args[0]], &mut outputs, &mut both).expect("runs");
        assert_eq!(outcome, Outcome::Inlined);
        outputs
    };
    let (_, gradients) =
        vjp(square, std::slice::from_ref(&x), &[vector(&[1.0]), vector(&[5.0])]).expect("differentiates");
    assert!((numbers(&gradients[0])[0] - (1.0_f32.exp() + 1.0)).abs() < 1e-6);
}

#[test]
fn its_results_differentiate_and_outlive_it_on_another_thread() {
    let mut program = Program::new(false).expect("memory");
    let mut outputs = Vec::new();
    program.call(&[&vector(&[1.0]), &vector(&[2.0])], &mut outputs, &mut both).expect("runs");
    drop(program);
    let kept = outputs.remove(1);
    std::thread::spawn(move || drop(outputs)).join().expect("drops");
    assert_eq!(numbers(&kept), [-1.0]);
}

#[test]
fn dropped_it_frees_its_constants() {
    let _turn = turns::of_memory();
    let x = vector(&[1.0]);
    let large = || Array::from_slice(&vec![1.0_f32; 1 << 18], &[1 << 18]);
    let before = memory::active_memory().expect("counts");
    let mut program = Program::new(false).expect("memory");
    called(&mut program, &[&x], |args| Ok(vec![large().multiply(&args[0])?.sum(None)?]));
    let held = memory::active_memory().expect("counts");
    drop(program);
    let after = memory::active_memory().expect("counts");
    // Other tests run meanwhile, with arrays that are much smaller.
    assert!(held > before + (1 << 19) && after < before + (1 << 19), "{before} {held} {after}");
}

#[test]
fn inputs_are_not_kept() {
    let _turn = turns::of_memory();
    let mut program = Program::new(false).expect("memory");
    let before = memory::active_memory().expect("counts");
    let large = Array::from_slice(&vec![1.0_f32; 1 << 18], &[1 << 18]);
    called(&mut program, &[&large], |args| Ok(vec![args[0].sum(None)?]));
    drop(large);
    assert!(memory::active_memory().expect("counts") < before + (1 << 19));
}

#[derive(Debug)]
struct Own;

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the function's own words")
    }
}

impl std::error::Error for Own {}

/// MLX's own product with chosen experts in MXFP4, which has no biases; mlx-rs has the affine mode alone.
fn gathered(args: &[Array], transpose: bool) -> Result<Array, BoxError> {
    let [x, codes, scales, rows, experts] = args else { return Err("five operands".into()) };
    let none = mlx_sys::mlx_array { ctx: std::ptr::null_mut() };
    let [group, bits] = [32, 4].map(|value| mlx_sys::mlx_optional_int { value, has_value: true });
    let stream = Stream::thread_local_or_default();
    let mut result = none;
    // SAFETY: every handle, the text and the stream are live for the call, which stores a new array.
    let status = unsafe {
        mlx_sys::mlx_gather_qmm(
            &raw mut result,
            x.as_ptr(),
            codes.as_ptr(),
            scales.as_ptr(),
            none,
            rows.as_ptr(),
            experts.as_ptr(),
            transpose,
            group,
            bits,
            c"mxfp4".as_ptr(),
            false,
            stream.as_ptr(),
        )
    };
    // SAFETY: the call succeeded, so the handle is a new array that is ours.
    if status == 0 { Ok(unsafe { Array::from_ptr(result) }) } else { Err("MLX refuses the operands".into()) }
}

/// What MLX's pull request for shapeless `gather_qmm` is about, in a mode without biases and in both orientations.
#[test]
fn a_gathered_product_in_a_mode_without_biases_is_one_trace_for_every_batch() {
    let words: Vec<u32> = (0..2 * 64 * 8u32).map(|word| word.wrapping_mul(0x9E37_79B9)).collect();
    let codes = Array::from_slice(&words, &[2, 64, 8]);
    let scales = Array::from_slice(&[127u8; 2 * 64 * 2], &[2, 64, 2]);
    for transpose in [true, false] {
        let mut program = Program::new(true).expect("memory");
        for (rows, outcome) in [(2, Outcome::Traced), (7, Outcome::Replayed), (3, Outcome::Replayed)] {
            let x = Array::from_iter((0..rows * 64).map(|i| i as f32), &[rows, 1, 64]);
            let row = Array::from_iter(0..rows as u32, &[rows]);
            let expert = Array::from_iter((0..rows as u32).map(|row| row % 2), &[rows]);
            let args = [x, codes.clone(), scales.clone(), row, expert];
            let expected = numbers(&gathered(&args, transpose).expect("multiplies"));
            let result = called(&mut program, &args.each_ref(), |args| Ok(vec![gathered(&args, transpose)?]));
            assert_eq!(result, (outcome, vec![expected]), "{rows} rows, transposed: {transpose}");
        }
    }
}
