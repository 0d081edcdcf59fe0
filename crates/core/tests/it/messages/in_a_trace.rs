//! Messages of what goes wrong while a function is recorded.

use std::cell::RefCell;
use std::collections::BTreeSet;

use expect_test::expect;
use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::transforms::grad;
use tacit::transform;
use tacit::{Error, Value, implicit};

use super::{left, said};
use crate::types::{Left, error, matrix, message, numbers, vector, without_handlers};

#[test]
fn a_lazy_array_is_used_on_another_thread() {
    let lazy = std::thread::spawn(|| vector(&[1.0, 2.0]).negative()).join().expect("it does not panic");
    let text = message(&error(lazy.and_then(|lazy| lazy.eval()).map_err(Error::from)));
    let (before, after) = text.split_once("Stream(cpu, ").expect("the stream's number");
    let after = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
    expect![[r"
        mlx: There is no Stream(cpu, N) in current thread.
        help: evaluate it before it is sent: call `eval` on the thread that made it"]]
    .assert_eq(&format!("{before}Stream(cpu, N{after}"));
}

#[test]
fn a_placeholder_is_kept() {
    let _scopes = without_handlers();
    let kept = RefCell::new(Vec::new());
    said(
        &expect![[r"
        1 placeholder of the trace outlived it: the function keeps an array that was computed from f32[2]
        help: return the array from the function instead of storing it, or store a copy made outside `implicit`"]],
        &error(implicit((left(), left()), |(x, y)| {
            kept.borrow_mut().push(x.clone());
            x.add(y)
        })),
    );
    assert!(kept.borrow()[0].eval().is_err(), "it has no data and never will");
}

#[test]
fn two_placeholders_are_kept() {
    let _scopes = without_handlers();
    let kept = RefCell::new(None);
    said(
        &expect![[r"
        2 placeholders of the trace outlived it: the function keeps an array that was computed from f32[2] or f32[1,2]
        help: return the array from the function instead of storing it, or store a copy made outside `implicit`"]],
        &error(implicit((left(), Left::of(&matrix(1, 2))), |(x, y)| {
            *kept.borrow_mut() = Some(x.exp()?.add(y.exp()?)?);
            x.add(y)
        })),
    );
}

#[test]
fn an_eval_in_a_trace() {
    let mut messages = BTreeSet::new();
    let f = |x: Array| {
        x.negative()?.eval()?;
        Ok::<_, Exception>(x)
    };
    messages.insert(message(&error(implicit(left(), f))));
    let f = |x: Array| {
        x.sum(None)?.try_item_exact::<f32>().map_err(|error| Exception::custom(error.to_string()))?;
        Ok::<_, Exception>(x)
    };
    messages.insert(message(&error(implicit(left(), f))));
    let f = |x: Array| {
        let _ = x.negative()?.as_slice::<f32>().len();
        Ok::<_, Exception>(x)
    };
    messages.insert(message(&error(implicit(left(), f))));
    let f = |x: Array| {
        let _ = x.sum(None)?.item_exact::<f32>();
        Ok::<_, Exception>(x)
    };
    messages.insert(message(&error(implicit(left(), f))));
    let messages: Vec<String> = messages.into_iter().collect();
    expect![[r"
        an array of a traced function is evaluated, and it has no data
        help: move `eval`, `item`, `as_slice` and the printing of arrays out of the function, and return its arrays instead of keeping them"]]
    .assert_eq(&messages.join("\n"));
}

#[test]
fn an_eval_in_a_transform_in_a_trace() {
    let f = |x: Array| {
        grad(|x: &Array| {
            x.eval()?;
            x.sum(None)
        })(&x)
    };
    said(
        &expect![[r"
        an array of a traced function is evaluated, and it has no data
        help: move `eval`, `item`, `as_slice` and the printing of arrays out of the function, and return its arrays instead of keeping them"]],
        &error(implicit(left(), f)),
    );
}

#[test]
fn an_array_that_is_printed_in_a_trace_is_evaluated() {
    type Print = fn(&Array) -> String;
    let prints: [Print; 5] = [
        |x| format!("{x:?}"),
        |x| format!("{x}"),
        |x| x.to_string(),
        |x| format!("{:?}", Some(x)),
        |x| {
            println!("{x:?}");
            String::new()
        },
    ];
    for print in prints {
        let f = |x: Array| {
            let _ = print(&x.negative()?);
            Ok::<_, Exception>(x)
        };
        let error = error(implicit(left(), f));
        assert!(matches!(error, Error::EvalInTrace), "{error}");
    }
}

#[test]
fn a_chain_of_ops_is_too_long() {
    const OPS: usize = 100_000;
    let chain = |x: Array| (0..OPS).try_fold(x, |x, _| x.negative());
    let off = tacit::compile::CompileOptions { passes: tacit::pass::Passes::Off, ..Default::default() };
    let x = || Value::from(vector(&[1.0, 2.0]));
    let refused = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        let compiled = error(tacit::compile_with(off, chain).call(x()));
        let mapped = error(transform::vmap(0, 0, chain).call(x()));
        let gradient = error(transform::grad(move |x: Array| chain(x)?.sum(None)).call(x()));
        let tangent = error(transform::jvp(x(), tacit::tree::Gradient::Dense(vector(&[1.0, 2.0])), chain));
        [compiled, mapped, gradient, tangent].map(|error| message(&error))
    });
    for text in refused.expect("a thread").join().expect("it does not panic") {
        // A loss is made a scalar of `f32`, and a stack is what the thread has left of it.
        let digits = |digit: char| digit.is_ascii_digit();
        let words: Vec<&str> = text.split(digits).filter(|word| !word.is_empty()).collect();
        expect![[r"
            a chain of N ops is too long for MLX, which calls itself for each: the stack of this thread has room for N
            help: evaluate in between, outside of what is traced, or run it on a thread with a larger stack"]]
        .assert_eq(&words.join("N"));
    }
}

/// As long as it may be: MLX would end the process if the stack were too small for it.
#[test]
fn a_chain_of_ops_that_is_not_too_long_is_run() {
    let tried = std::thread::Builder::new().stack_size(8 << 20).spawn(|| {
        let chain = |x: Array| (0..15_000).try_fold(x, |x, _| x.negative());
        let off = tacit::compile::CompileOptions { passes: tacit::pass::Passes::Off, ..Default::default() };
        let x = || Value::from(vector(&[1.0, 2.0]));
        let compiled = tacit::compile_with(off, chain).call(x()).expect("it fits");
        let mapped = transform::vmap(0, 0, chain).call(x()).expect("it fits");
        let gradient = transform::grad(move |x: Array| chain(x)?.sum(None)).call(x()).expect("it fits");
        [compiled.dense(), mapped.dense(), gradient.array().cloned()].map(|result| numbers(&result.expect("an array")))
    });
    let result = tried.expect("a thread").join().expect("it does not panic");
    assert_eq!(result, [[1.0, 2.0], [1.0, 2.0], [1.0, 1.0]]);
}
