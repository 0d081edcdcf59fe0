//! What Tacit leans on in mlx-rs: one test a line of the book's page `understand/mlx_rs.md`.

use std::mem::size_of;

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::random::{RandomState, with_random_state};
use mlx_rs::transforms::compile::compile;
use mlx_rs::{Array, Stream, nn, ops, random, thread_local_default_stream, transforms, with_stream};
use tacit_bridge::mlx::{Refusal, refusal};
use tacit_bridge::{Outcome, PanicError, Program, Scope, Tape, array_id};

use crate::arrays::{names, numbers, placeholders, vector};

/// The names of the primitives that a function of one array records.
fn recorded(shape: &[i32], f: impl FnOnce(&Array) -> Result<Array, Exception>) -> Vec<&'static str> {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [shape]);
    let result = f(&x).expect("records");
    names(&Tape::walk(&[result], &[x], &[]).expect("memory"))
}

#[test]
fn every_line_of_the_page_has_its_test_here() {
    let page = include_str!("../../../../book/src/understand/mlx_rs.md");
    let mut named: Vec<&str> = page.split("`mlx_rs::").skip(1).filter_map(|rest| rest.split('`').next()).collect();
    let source = include_str!("mlx_rs.rs");
    let tests = source.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split("()").next());
    let mut tests: Vec<&str> = tests.filter(|test| !test.starts_with("every_line")).collect();
    named.sort_unstable();
    tests.sort_unstable();
    assert_eq!(named, tests);
    assert!(tests.len() > 8, "{tests:?}");
}

#[test]
fn an_array_is_one_handle_of_mlx_c() {
    assert_eq!(size_of::<Array>(), size_of::<*mut ()>());
    let array = vector(&[1.0, 2.0]);
    let (handle, id) = (array.as_ptr(), array_id(&array));
    std::mem::forget(array);
    // SAFETY: the handle is that of the array that was forgotten, so that nothing else frees it.
    let again = unsafe { Array::from_ptr(handle) };
    assert_eq!((array_id(&again), numbers(&again)), (id, vec![1.0, 2.0]));
}

#[test]
fn a_clone_is_another_handle_of_the_same_array() {
    let array = vector(&[1.0]);
    let other = array.clone();
    assert_eq!(array_id(&array), array_id(&other));
    assert_ne!(array.as_ptr().ctx, other.as_ptr().ctx);
}

#[test]
fn an_op_records_the_primitives_of_mlx_and_computes_nothing() {
    assert_eq!(recorded(&[2, 3], |x| x.sum_axis(1, true)), ["Sum"]);
    assert_eq!(recorded(&[2, 3], |x| ops::softmax_axis(x, -1, None)), ["Softmax"]);
    assert_eq!(recorded(&[2, 3], |x| ops::concatenate(&[x, x], 1)), ["Concatenate"]);
    assert_eq!(recorded(&[2, 3], |x| x.matmul(x.t())), ["Transpose", "Matmul"]);
}

#[test]
fn a_linear_layer_is_a_transpose_and_a_product() {
    for (bias, product) in [(false, "Matmul"), (true, "AddMM")] {
        let mut layer = nn::LinearBuilder::new(3, 2).bias(bias).build().expect("a layer");
        let scope = Scope::new().expect("memory");
        let [x, w] = placeholders(&scope, [&[4, 3], &[2, 3]]);
        layer.weight.value = w.clone();
        let result = layer.forward(&x).expect("records");
        let recorded = names(&Tape::walk(&[result], &[x, w], &[]).expect("memory"));
        assert_eq!((recorded.first(), recorded.contains(&product)), (Some(&"Transpose"), true), "{recorded:?}");
    }
}

#[test]
fn a_parameter_has_the_path_of_its_fields_with_dots() {
    let attention = nn::MultiHeadAttention::new(8, 2).expect("a layer");
    let mut paths: Vec<String> = attention.parameters().flatten().keys().map(ToString::to_string).collect();
    paths.sort();
    assert_eq!(paths, ["key_proj.weight", "output_proj.weight", "query_proj.weight", "value_proj.weight"]);
}

#[test]
fn a_frozen_parameter_is_listed_and_is_not_trainable() {
    let mut layer = nn::Linear::new(3, 2).expect("a layer");
    layer.freeze_parameters(true);
    assert_eq!((layer.parameters().flatten().len(), layer.trainable_parameters().flatten().len()), (2, 0));
    layer.unfreeze_parameters(true);
    assert_eq!(layer.trainable_parameters().flatten().len(), 2);
}

#[test]
fn a_stream_of_mlx_rs_is_told_and_leaves_the_one_of_mlx_alone() {
    assert!(thread_local_default_stream().is_none());
    let own = Stream::new();
    with_stream(&own, || assert_eq!(thread_local_default_stream().as_ref(), Some(&own)));
    assert!(thread_local_default_stream().is_none());
}

#[test]
fn a_random_state_serves_one_closure() {
    let draw = || numbers(&random::uniform::<_, f32>(0.0, 1.0, &[3], None).expect("draws"));
    let with_key = || with_random_state(RandomState::from_key(random::key(7).expect("a key")), draw);
    random::seed(1).expect("seeds");
    let expected = draw();
    random::seed(1).expect("seeds");
    let first = with_key();
    assert_eq!((draw(), with_key()), (expected.clone(), first.clone()));
    assert_ne!(first, expected);
}

#[test]
fn an_error_of_a_closure_is_the_error_of_the_transform() {
    let mut gradient = transforms::grad(|_: &Array| -> Result<Array, Exception> { Err(Exception::custom("my own")) });
    let error = gradient(&vector(&[1.0])).expect_err("the closure fails");
    assert!(error.what().contains("my own"), "{error}");
}

#[test]
fn a_number_of_a_traced_array_is_a_panic_with_the_words_of_mlx() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[]]);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| x.item_exact::<f32>())).expect_err("no data");
    assert_eq!(refusal(&PanicError::from_payload(&*panic).0), Refusal::Traced);
}

#[test]
fn compile_counts_its_functions_and_ours_are_addresses() {
    // Both are in the one table of this thread: no id may be both.
    let mut ours = Program::new(false).expect("memory");
    let mut theirs = (0..64).map(|_| compile(|x: &Array| x.negative(), None)).collect::<Vec<_>>();
    let x = vector(&[1.0]);
    let mut call = |outcome| {
        let mut outputs = Vec::new();
        let found = ours.call(&[&x], &mut outputs, &mut |args| Ok(vec![args[0].exp()?])).expect("runs");
        assert_eq!((found, numbers(&outputs[0])), (outcome, vec![1f32.exp()]));
    };
    call(Outcome::Traced);
    for compiled in &mut theirs {
        assert_eq!(numbers(&compiled(&x).expect("runs")), [-1.0]);
    }
    call(Outcome::Replayed);
}
