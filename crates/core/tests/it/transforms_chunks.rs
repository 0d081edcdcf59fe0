//! `map_chunks`: some of the rows at a time.

use std::cell::Cell;
use std::rc::Rc;

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, random};
use tacit::transform::{checkpoint, grad, jvp, map_chunks, value_and_grad, vmap};
use tacit::{Error, Policy, Result, Value, compile};

use crate::transforms_shared::{check, registry};
use crate::types::{Left, error, matrix, numbers, said_of, vector, with_handlers};

fn rows() -> Array {
    matrix(7, 3)
}

fn weights() -> Array {
    Array::from_slice(&[1f32, -2.0, 3.0, 0.5, 1.5, -1.0], &[2, 3])
}

/// Scores of rows, and one number of each.
fn scored(x: &Array, w: &Array) -> Result<(Array, Array)> {
    let scores = x.matmul(w.t())?.multiply(Array::from_f32(0.1))?.sin()?;
    Ok((scores.sum_axis(-1, None)?, scores))
}

fn loss(sums: &Array, scores: &Array) -> Result<Array> {
    Ok(sums.square()?.sum(None)?.add(scores.multiply(Array::from_f32(0.5))?.sum(None)?)?)
}

fn in_chunks(rows: i32) -> impl Fn((Array, Array)) -> Result<Array> {
    move |(x, w)| {
        let (sums, scores) = map_chunks(x, w, rows, |x: Array, w: Array| scored(&x, &w))?;
        loss(&sums.dense()?, &scores.dense()?)
    }
}

fn whole((x, w): (Array, Array)) -> Result<Array> {
    let (sums, scores) = scored(&x, &w)?;
    loss(&sums, &scores)
}

fn close(found: &Array, expected: &Array) {
    assert_eq!(found.shape(), expected.shape());
    let all = found.all_close(expected, 1e-5, 1e-5, None).expect("compares");
    assert!(all, "{:?} is not {:?}", numbers(found), numbers(expected));
}

#[test]
fn chunks_of_any_size_give_what_all_rows_give() {
    let plain = grad(whole).call((rows(), weights())).expect("differentiates");
    let value = whole((rows(), weights())).expect("runs");
    for size in [1, 2, 3, 7, 100] {
        close(&in_chunks(size)((rows(), weights())).expect("runs"), &value);
        let (dx, dw) = grad(in_chunks(size)).call((rows(), weights())).expect("differentiates");
        close(dx.array().expect("dense"), plain.0.array().expect("dense"));
        close(dw.array().expect("dense"), plain.1.array().expect("dense"));
    }
    let (tangents, x) = ((rows().sin().expect("sines"), weights().cos().expect("cosines")), (rows(), weights()));
    let pushed = |f: &dyn Fn((Array, Array)) -> Result<Array>| {
        jvp(x.clone(), tangents.clone(), |args: (Array, Array)| f(args)).expect("pushes").1.dense().expect("dense")
    };
    close(&pushed(&in_chunks(3)), &pushed(&whole));
    let compiled = |f: fn((Array, Array)) -> Result<Array>| {
        let mut gradient = grad(f);
        let mut compiled = compile(move |args: (Array, Array)| Ok::<_, Error>(gradient.call(args)?.1.array()?.clone()));
        compiled.call((rows(), weights())).expect("traces");
        compiled.call((rows(), weights())).expect("replays").dense().expect("dense")
    };
    close(&compiled(|args| in_chunks(2)(args)), &compiled(whole));
}

#[test]
fn a_mapped_function_has_its_chunks_in_both_passes() {
    let all = ops::stack(&[rows(), rows().multiply(Array::from_f32(-0.5)).expect("halves")], 0).expect("stacks");
    let of = |f: fn((Array, Array)) -> Result<Array>| {
        let mut gradient = grad(f);
        let mapped = move |(x, w): (Array, Array)| {
            let (dx, dw) = gradient.call((x, w))?;
            Ok::<_, Error>((dx.array()?.clone(), dw.array()?.clone()))
        };
        let (dx, dw) = vmap([Some(0), None], 0, mapped).call((all.clone(), weights())).expect("maps");
        (dx.dense().expect("dense"), dw.dense().expect("dense"))
    };
    let (found, expected) = (of(|args| in_chunks(3)(args)), of(whole));
    close(&found.0, &expected.0);
    close(&found.1, &expected.1);
    let again = of(|(x, w)| {
        let mut again = checkpoint(whole);
        again.call((x, w))?.dense()
    });
    close(&again.1, &expected.1);
}

#[test]
fn implicit_arrays_meet_their_handlers_in_both_passes() {
    let _scopes = with_handlers(registry());
    let _deny = Policy::Deny.scope();
    let calls = Rc::new(Cell::new(0));
    let counted = Rc::clone(&calls);
    let w = Left::of(&vector(&[2.0, -1.0]));
    let loss = move |x: Array| -> Result<Array> {
        let counted = Rc::clone(&counted);
        let result = map_chunks(x, &w, 2, move |x: Array, w: Array| {
            counted.set(counted.get() + 1);
            w.multiply(x.square()?)
        })?;
        Ok(result.dense()?.sum(None)?)
    };
    let x = vector(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let found = grad(loss).call(x).expect("differentiates");
    assert_eq!(calls.get(), 6);
    assert_eq!(numbers(found.array().expect("dense")), [4.0, -4.0, 12.0, -8.0, 20.0, -12.0]);
}

#[test]
fn gradients_of_half_floats_are_summed_in_f32() {
    let (x, w) = (ops::ones::<f32>(&[1024, 1]).expect("ones"), Array::from_slice(&[1f32], &[1]));
    let half = |array: &Array| array.as_dtype(Dtype::Bfloat16).expect("casts");
    let loss = |(x, w): (Array, Array)| -> Result<Array> {
        let result = map_chunks(x, w, 1, |x: Array, w: Array| x.multiply(w))?;
        Ok(result.dense()?.as_dtype(Dtype::Float32)?.sum(None)?)
    };
    let (_, dw) = grad(loss).call((half(&x), half(&w))).expect("differentiates");
    let dw = dw.array().expect("dense");
    // Ones that are added in `bf16` stay at 256.
    assert_eq!((dw.dtype(), numbers(&dw.as_dtype(Dtype::Float32).expect("casts"))), (Dtype::Bfloat16, vec![1024.0]));
}

#[test]
fn what_the_function_captures_keeps_its_gradient() {
    let captures = |w: Array| {
        let result = map_chunks(rows(), (), 2, move |x: Array, (): ()| x.matmul(w.t()))?;
        Ok::<_, Error>(result.dense()?.sum(None)?)
    };
    let plain = |w: Array| Ok::<_, Error>(rows().matmul(w.t())?.sum(None)?);
    let gradient = |found: tacit::tree::Gradient| found.array().expect("dense").clone();
    let expected = gradient(grad(plain).call(weights()).expect("differentiates"));
    close(&gradient(grad(captures).call(weights()).expect("differentiates")), &expected);
}

#[test]
fn integers_go_along_and_no_rows_are_one_chunk() {
    let picked = |xs: (Array, Array), shared: Array| -> Result<(Array, Array)> {
        Ok((xs.0.multiply(shared.take_axis(&xs.1, 0)?)?, xs.1))
    };
    let table = vector(&[10.0, 20.0]);
    let (x, places) = (vector(&[1.0, 2.0, 3.0]), Array::from_slice(&[1i32, 0, 1], &[3]));
    let (result, back) = map_chunks((&x, &places), &table, 2, picked).expect("runs");
    assert_eq!(numbers(&result.dense().expect("dense")), [20.0, 20.0, 60.0]);
    assert_eq!(back.dense().expect("dense").as_slice::<i32>(), [1, 0, 1]);
    let loss = move |(x, table): (Array, Array)| -> Result<Array> {
        Ok(map_chunks((x, places.clone()), table, 2, picked)?.0.dense()?.sum(None)?)
    };
    let (dx, dtable) = grad(loss).call((x, table.clone())).expect("differentiates");
    assert_eq!(numbers(dx.array().expect("dense")), [20.0, 10.0, 20.0]);
    assert_eq!(numbers(dtable.array().expect("dense")), [2.0, 4.0]);

    let (x, places) = (vector(&[1.0, 2.0, 3.0]), Array::from_slice(&[1i32, 0, 1], &[3]));
    let pushed = |table: Array| map_chunks((&x, &places), table, 1, picked)?.0.dense();
    let (_, tangent) = jvp(&table, vector(&[1.0, 100.0]), pushed).expect("pushes");
    assert_eq!(numbers(&tangent.dense().expect("dense")), [100.0, 2.0, 300.0]);

    let none = (ops::zeros::<f32>(&[0]).expect("none"), ops::zeros::<i32>(&[0]).expect("none"));
    let (result, _) = map_chunks((&none.0, &none.1), &table, 2, picked).expect("runs");
    assert_eq!(result.to_string(), "f32[0]");
}

#[test]
fn what_is_wrong_is_said() {
    let double = |x: Array, (): ()| Ok::<_, Error>(x.add(&x)?);
    check(
        &expect![[r#"
            chunks of 0 rows
            help: give a chunk at least one row"#]],
        map_chunks(rows(), (), 0, double),
    );
    check(
        &expect![[r#"
            xs at the root is f32[], which has no rows
            help: give it an axis 0 of rows, or pass it in `shared`"#]],
        map_chunks(Array::from_f32(1.0), (), 2, double),
    );
    let first = |(x, _): (Array, Array), (): ()| Ok::<_, Error>(x);
    let said = [
        said_of(map_chunks((rows(), vector(&[1.0, 2.0])), (), 2, first)),
        said_of(map_chunks((), rows(), 2, |(): (), w: Array| Ok::<_, Error>(w))),
        said_of(map_chunks(rows(), (), 2, |x: Array, (): ()| x.sum(None))),
    ];
    expect![[r#"
        xs at `1` is f32[2], and xs at `0` has 7 rows
        help: give every array of `xs` the same number of rows, and pass others in `shared`
        `xs` holds no array
        help: give what has rows as `xs`, and what each chunk takes whole as `shared`
        the function of `map_chunks` made f32[] of a chunk of 2 rows
        help: return arrays with a row for each row of the chunk; sum them outside
    "#]]
    .assert_eq(&said.concat());
    let calls = Rc::new(Cell::new(0));
    let fails = move |x: Array| {
        let calls = Rc::clone(&calls);
        let result = map_chunks(x, (), 4, move |x: Array, (): ()| -> Result<Array> {
            calls.set(calls.get() + 1);
            if calls.get() == 4 { Err(Error::refuse("of its own")) } else { Ok(x.square()?) }
        })?;
        Ok::<_, Error>(result.dense()?.sum(None)?)
    };
    let backward = error(grad(fails).call(rows()));
    assert!(matches!(backward, Error::Refused { .. }), "{backward:?}");
    let _: Value = map_chunks(rows(), (), 4, double).expect("runs");
}

/// A mask that is drawn without a key, and `x x` where it is.
fn masked(x: &Array) -> Result<(Array, Array)> {
    let mask = random::bernoulli(&Array::from_f32(0.5), x.shape(), None)?.as_dtype(Dtype::Float32)?;
    Ok((x.square()?.multiply(&mask)?, mask))
}

/// The gradient of the masked squares and the mask of the forward pass, each row by itself in `rows` rows.
fn gradient_and_mask(x: &Array, masked: fn(Array) -> Result<(Array, Array)>) -> Result<(Array, Array)> {
    let mut step = value_and_grad(|x: Array| {
        let (squares, mask) = masked(x)?;
        Ok::<_, Error>((squares.sum(None)?, mask))
    });
    let ((_, mask), gradient) = step.call(x)?;
    Ok((gradient.array()?.clone(), mask.dense()?))
}

fn checkpointed(x: Array) -> Result<(Array, Array)> {
    let (squares, mask) = checkpoint(|x: Array| masked(&x)).call(x)?;
    Ok((squares.dense()?, mask.dense()?))
}

fn in_rows(x: Array) -> Result<(Array, Array)> {
    let (squares, mask) = map_chunks(x, (), 8, |x: Array, ()| masked(&x))?;
    Ok((squares.dense()?, mask.dense()?))
}

/// With a draw that decides what is computed, and does not enter the results.
fn in_depth(x: Array) -> Result<(Array, Array)> {
    let deep = |x: Array| -> Result<(Array, Array)> {
        let mut mask = ops::zeros::<f32>(x.shape())?;
        for bit in 0..16 {
            if random::uniform::<_, f32>(0.0, 1.0, &[], None)?.item_exact::<f32>() < 0.5 {
                mask = mask.add(Array::from_f32((1 << bit) as f32))?;
            }
        }
        Ok((x.square()?.multiply(&mask)?, mask))
    };
    let (squares, mask) = checkpoint(deep).call(x)?;
    Ok((squares.dense()?, mask.dense()?))
}

#[test]
fn both_passes_draw_the_same_random_numbers() -> Result<()> {
    random::seed(11)?;
    let x = ops::ones::<f32>(&[64, 4])?;
    let mut seen = Vec::new();
    for masked in [checkpointed, in_rows, in_depth] {
        for _ in 0..2 {
            let (gradient, mask) = gradient_and_mask(&x, masked)?;
            assert_eq!(numbers(&gradient), numbers(&mask.multiply(Array::from_f32(2.0))?));
            seen.push(numbers(&mask));
        }
    }
    let mut compiled = compile(|x: Array| gradient_and_mask(&x, in_rows));
    for _ in 0..3 {
        let (gradient, mask) = compiled.call(&x)?;
        assert_eq!(numbers(&gradient.dense()?), numbers(&mask.dense()?.multiply(Array::from_f32(2.0))?));
        seen.push(numbers(&mask.dense()?));
    }
    // Each call draws anew, and each chunk.
    for (i, one) in seen.iter().enumerate() {
        assert!(seen[..i].iter().all(|other| other != one), "call {i} drew what another had drawn");
    }
    assert_ne!(seen[2][..32], seen[2][32..64]);
    Ok(())
}

#[test]
fn what_draws_nothing_leaves_the_random_numbers_as_they_are() -> Result<()> {
    let x = ops::ones::<f32>(&[4, 4])?;
    let after = |run: bool| -> Result<Vec<f32>> {
        random::seed(7)?;
        if run {
            checkpoint(|x: Array| x.square()).call(&x)?;
            map_chunks(&x, (), 2, |x: Array, ()| x.square())?;
        }
        Ok(numbers(&random::uniform::<_, f32>(0.0, 1.0, &[4], None)?))
    };
    assert_eq!(after(true)?, after(false)?);
    Ok(())
}

/// In the second pass MLX counts every array as a tracer: what is captured by a function inside is one no more than in the first.
#[test]
fn a_function_inside_another_one_that_is_called_again_draws_the_same() -> Result<()> {
    fn chunks_inside(x: Array) -> Result<(Array, Array)> {
        let outer = |x: Array| -> Result<(Array, Array)> {
            let twice = Array::from_f32(2.0);
            let (squares, mask) = map_chunks(x, (), 8, move |x: Array, ()| {
                let (squares, mask) = masked(&x)?;
                Ok::<_, Error>((squares.multiply(&twice)?.divide(&twice)?, mask))
            })?;
            Ok((squares.dense()?, mask.dense()?))
        };
        let (squares, mask) = checkpoint(outer).call(x)?;
        Ok((squares.dense()?, mask.dense()?))
    }
    let x = ops::ones::<f32>(&[64, 4])?;
    for _ in 0..3 {
        let (gradient, mask) = gradient_and_mask(&x, chunks_inside)?;
        assert_eq!(numbers(&gradient), numbers(&mask.multiply(Array::from_f32(2.0))?));
    }
    // What it captures of the outer function has its derivative in both passes.
    let outer = |x: Array| -> Result<Array> {
        let factor = x.sum(None)?;
        checkpoint(move |x: Array| x.multiply(&factor)).call(x)?.dense()
    };
    let mut gradient = grad(move |x: Array| checkpoint(outer).call(x)?.dense()?.sum(None).map_err(Error::from));
    assert_eq!(numbers(gradient.call(vector(&[1.0, 2.0]))?.array()?), [6.0, 6.0]);
    Ok(())
}

#[test]
fn functions_that_draw_inside_each_other_are_not_called_without_end() -> Result<()> {
    fn nested(depth: usize, calls: &Rc<Cell<usize>>, x: Array) -> Result<Array> {
        calls.set(calls.get() + 1);
        if depth == 0 {
            return Ok(masked(&x)?.0);
        }
        let calls = Rc::clone(calls);
        checkpoint(move |x: Array| nested(depth - 1, &calls, x)).call(x)?.dense()
    }
    let calls = Rc::default();
    nested(8, &calls, vector(&[1.0, 2.0]))?;
    assert!(calls.get() < 50, "{} calls", calls.get());
    Ok(())
}

#[test]
fn second_derivatives_of_what_takes_indices_or_draws() -> Result<()> {
    let twice = |f: fn(Array) -> Result<Array>| -> Result<Vec<f32>> {
        let mut once = grad(move |x: Array| Ok::<_, Error>(checkpoint(f).call(x)?.dense()?.sum(None)?));
        let slope = move |x: Array| Ok::<_, Error>(once.call(x)?.array()?.sum(None)?);
        Ok(numbers(grad(slope).call(vector(&[1.0, 2.0, 3.0]))?.array()?))
    };
    random::seed(3)?;
    let kept = twice(|x| Ok(masked(&x)?.0))?;
    assert!(kept.iter().all(|number| [0.0, 2.0].contains(number)), "{kept:?}");
    let chosen = twice(|x| {
        let rows = Array::from_slice(&[2i32, 0, 2], &[3]);
        let mut taken = checkpoint(|(x, rows): (Array, Array)| x.take_axis(rows, 0)?.square());
        taken.call((x, rows))?.dense()
    })?;
    assert_eq!(chosen, [2.0, 0.0, 4.0]);
    Ok(())
}

#[test]
fn results_without_rows_are_refused_where_a_tracer_is_captured_too() -> Result<()> {
    let x = ops::ones::<f32>(&[4, 3])?;
    let loss = move |w: Array| {
        let captured = w.clone();
        map_chunks(&x, (), 2, move |x: Array, (): ()| x.multiply(&captured)?.sum(None))?.dense()
    };
    let error = grad(loss).call(Array::from_f32(2.0)).expect_err("a sum has no rows");
    assert!(error.to_string().contains("made f32[] of a chunk of 2 rows"), "{error}");
    Ok(())
}
