//! What a compiled function traces again for, and what it gives.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::cell::Cell;

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexOp};
use mlx_rs::{Array, Dtype, Stream, ops, random, transforms, with_stream};
use tacit::compile::{CompileOptions, Constants};
use tacit::pass::Passes;
use tacit::{
    Aval, Error, ImplicitArray, Materialize, Policy, Result, Value, compile, compile_with, compile_with_state, implicit,
};

use crate::traced::{denied, ones, row};

/// An array in blocks, whose size is static.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "compiling.Blocked")]
struct Blocked {
    array: Array,
    #[implicit(aux)]
    block_size: usize,
    #[implicit(aux)]
    aval: Aval,
}

impl Blocked {
    fn of(array: &Array, block_size: usize) -> Value {
        Self { array: array.clone(), block_size, aval: Aval::from(array) }.into()
    }
}

impl Materialize for Blocked {
    fn materialize(&self) -> Result<Value> {
        Ok((&self.array).into())
    }
}

fn shapeless() -> CompileOptions {
    CompileOptions { shapeless: true, ..denied() }
}

#[test]
fn one_trace_serves_every_call_of_a_structure() -> Result<()> {
    let calls = Cell::new(0);
    let mut f = compile(|(x, y): (Array, Array)| {
        calls.set(calls.get() + 1);
        x.add(&y)?.exp()
    });
    for i in 0..5 {
        let (x, y) = (row(&[i as f32]), row(&[1.0]));
        let result = f.call((&x, &y))?.dense()?;
        assert_eq!(result.item_exact::<f32>(), x.add(&y)?.exp()?.item_exact::<f32>());
    }
    assert_eq!((calls.get(), f.stats().traces, f.stats().calls), (1, 1, 5));
    Ok(())
}

#[test]
fn ten_thousand_alternations_between_two_structures_make_two_traces() -> Result<()> {
    // MLX's own Python front end takes one for the other here.
    let mut f = compile(|lists: Vec<Vec<Array>>| lists[0].iter().try_fold(Array::from_f32(0.0), |sum, x| sum.add(x)));
    let [a, b] = [1.0, 10.0].map(|x| Value::from(Array::from_f32(x)));
    let (apart, together) = (vec![vec![a.clone()], vec![b.clone()]], vec![vec![a, b]]);
    for _ in 0..5_000 {
        assert_eq!(f.call(&apart)?.dense()?.item_exact::<f32>(), 1.0);
        assert_eq!(f.call(&together)?.dense()?.item_exact::<f32>(), 11.0);
    }
    assert_eq!(f.stats().traces, 2);
    Ok(())
}

#[test]
fn every_retrace_says_why() -> Result<()> {
    let mut f =
        compile_with(CompileOptions { constants: Constants::Allow, ..denied() }, |(x, w): (Array, Option<Array>)| {
            w.map_or_else(|| x.exp(), |w| x.matmul(w))
        });
    let _allow = Policy::Allow.scope();
    let (x, w) = (ones(&[2, 4]), ones(&[4, 4]));
    f.call((&x, None::<Array>))?;
    f.call((&x, Some(&w)))?;
    f.call((&x, Some(Blocked::of(&w, 64))))?;
    f.call((&x, Some(Blocked::of(&w, 32))))?;
    f.call(((&ones(&[3, 4])), Some(Blocked::of(&w, 32))))?;
    f.call(((&ones(&[1, 3, 4])), Some(Blocked::of(&w, 32))))?;
    f.call((&ones(&[1, 3, 4]).as_dtype(Dtype::Float16)?, Some(Blocked::of(&w, 32))))?;
    {
        let _warn = Policy::Warn.scope();
        f.call((ones(&[1, 3, 4]).as_dtype(Dtype::Float16)?, Some(Blocked::of(&w, 32))))?;
    }
    // All of these are still there.
    let traces = f.stats().traces;
    f.call((&x, Some(Blocked::of(&w, 64))))?;
    f.call((&x, None::<Array>))?;
    assert_eq!(f.stats().traces, traces);
    let reasons: Vec<&str> = f.stats().retraces().collect();
    expect![[r#"
        None -> Some at `args.1`
        an array -> Blocked at `args.1`
        static block_size 64 -> 32 at `args.1`
        shape of `args.0` f32[2,4] -> f32[3,4]
        rank of `args.0` f32[3,4] -> f32[1,3,4]
        dtype of `args.0` f32[1,3,4] -> f16[1,3,4]
        policy Allow -> Warn"#]]
    .assert_eq(&reasons.join("\n"));
    Ok(())
}

#[test]
fn implicit_arguments_are_opened_and_their_children_are_inputs() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let mut f = compile_with(denied(), |(x, w): (Array, Array)| x.matmul(w));
    let x = row(&[1.0, 2.0]);
    for scale in [1.0, 3.0] {
        let w = ones(&[2, 1]).multiply(Array::from_f32(scale))?;
        let y = f.call((&x, Blocked::of(&w, 64)))?.dense()?;
        assert_eq!(y.item_exact::<f32>(), 3.0 * scale);
    }
    assert_eq!(f.stats().traces, 1);
    Ok(())
}

#[test]
fn an_implicit_argument_that_is_returned_stays_implicit() -> Result<()> {
    let mut f = compile(|(x, w): (Array, Array)| Ok::<_, Exception>((x.exp()?, w)));
    for _ in 0..2 {
        let (_, w) = f.call((row(&[1.0]), Blocked::of(&ones(&[4, 4]), 64)))?;
        assert_eq!(w.to_string(), "Blocked(f32[4,4])");
    }
    assert_eq!(f.stats().traces, 1);
    Ok(())
}

#[test]
fn the_oldest_trace_makes_room() -> Result<()> {
    let mut f = compile_with(CompileOptions { capacity: 2, ..denied() }, |x: Array| x.exp());
    for size in [1, 2, 1, 3, 1, 2] {
        f.call(ones(&[size]))?;
    }
    // 3 drops 2, which was used before 1, and 2 comes back in place of 3.
    assert_eq!((f.stats().traces, f.stats().evicted), (4, 2));
    Ok(())
}

#[test]
fn state_goes_in_and_comes_out() -> Result<()> {
    type State = (Vec<Array>, Option<Array>);
    let mut f = compile_with_state(denied(), |(list, last): &mut State, x: Array| {
        if list.len() < 3 {
            list.push(x.clone());
        }
        *last = Some(x.clone());
        list.iter().try_fold(x, |sum, item| sum.add(item))
    });
    let mut state: State = (Vec::new(), None);
    let mut sums = Vec::new();
    for i in 1..=5 {
        sums.push(f.call(&mut state, Array::from_f32(i as f32))?.dense()?.item_exact::<f32>());
    }
    assert_eq!(sums, [2.0, 5.0, 9.0, 10.0, 11.0]);
    assert_eq!(state.0.len(), 3);
    assert_eq!(state.1.map(|last| last.item_exact::<f32>()), Some(5.0));
    // Empty, with one, with two, and with three from then on.
    assert_eq!(f.stats().traces, 4);
    // An earlier structure is still there.
    let mut state: State = (Vec::new(), None);
    f.call(&mut state, Array::from_f32(7.0))?;
    assert_eq!((state.0.len(), f.stats().traces), (1, 4));
    assert_eq!(state.0[0].item_exact::<f32>(), 7.0);
    Ok(())
}

#[test]
fn an_implicit_state_that_is_left_alone_stays_implicit() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let mut f = compile_with_state(denied(), |(w, count): &mut (Value, Array), x: Array| {
        *count = count.add(Array::from_f32(1.0))?;
        x.matmul(w.dense()?).map_err(Error::from)
    });
    let mut state = (Blocked::of(&ones(&[2, 1]), 64), Array::from_f32(0.0));
    for _ in 0..3 {
        let y = f.call(&mut state, row(&[1.0, 2.0]))?.dense()?;
        assert_eq!(y.item_exact::<f32>(), 3.0);
    }
    assert_eq!(state.0.to_string(), "Blocked(f32[2,1])");
    assert_eq!(state.1.item_exact::<f32>(), 3.0);
    assert_eq!(f.stats().traces, 1);
    Ok(())
}

#[test]
fn a_failing_trace_leaves_the_state_and_traces_again() -> Result<()> {
    let fails = Cell::new(true);
    let mut f = compile_with_state(denied(), |state: &mut Vec<Array>, x: Array| {
        state.push(x.clone());
        state[0] = x.clone();
        if fails.get() {
            return Err(Error::invalid("not now", "try again"));
        }
        Ok(x)
    });
    let mut state = vec![Array::from_f32(1.0)];
    let error = f.call(&mut state, Array::from_f32(2.0)).expect_err("it fails");
    expect![[r#"
        not now
        help: try again"#]]
    .assert_eq(&error.to_string());
    assert_eq!((state.len(), state[0].item_exact::<f32>()), (1, 1.0));
    fails.set(false);
    f.call(&mut state, Array::from_f32(2.0))?;
    assert_eq!((state.len(), state[0].item_exact::<f32>()), (2, 2.0));
    Ok(())
}

#[test]
fn a_panicking_trace_leaves_the_state() -> Result<()> {
    let mut f = compile_with_state(denied(), |state: &mut Array, x: Array| -> Result<Array> {
        *state = x;
        panic!("in the middle")
    });
    let mut state = Array::from_f32(1.0);
    let error = f.call(&mut state, Array::from_f32(2.0)).expect_err("it panics");
    assert_eq!(error.to_string(), "panicked: in the middle");
    assert_eq!(state.item_exact::<f32>(), 1.0);
    Ok(())
}

#[test]
fn captured_arrays_are_reported_with_their_avals() -> Result<()> {
    let (w, scalar) = (Array::from_slice(&[1f32; 6], &[2, 3]), Array::from_f32(2.0));
    let mut f = compile_with(denied(), |x: Array| x.multiply(&scalar)?.matmul(&w));
    let error = f.call(row(&[1.0, 2.0])).expect_err("w is captured");
    expect![[r#"
        f is compiled and holds 2 arrays that are not among its arguments: f32[2,3], f32[]; their present values become constants
        help: pass them as arguments or as part of the state, such as the `Model` that holds them, or allow it with `Constants::Allow`"#]]
    .assert_eq(&error.to_string());
    // A lazy one too, and one inside an implicit array.
    let lazy = w.add(&w)?;
    let mut f = compile_with(denied(), |x: Array| x.matmul(&lazy));
    assert!(matches!(f.call(row(&[1.0, 2.0])), Err(Error::Constants { .. })));
    let blocked = Blocked::of(&w, 64);
    let _allow = Policy::Allow.scope();
    let mut f = compile_with(denied(), |x: Array| implicit((x, &blocked), |(x, w)| x.matmul(w))?.dense());
    assert!(matches!(f.call(row(&[1.0, 2.0])), Err(Error::Constants { .. })));
    // Arrays that the function computes are not captured.
    let mut f = compile_with(denied(), |x: Array| x.matmul(ones(&[2, 3])));
    f.call(row(&[1.0, 2.0]))?;
    // A warning lets it pass.
    let mut f = compile_with(CompileOptions::default(), |x: Array| x.matmul(&w));
    f.call(row(&[1.0, 2.0]))?;
    Ok(())
}

#[test]
fn inside_other_transforms_the_function_itself_runs() -> Result<()> {
    let mut inner = compile_with(denied(), |x: Array| x.square()?.sum(None));
    let mut calls = |x: &Array| inner.call(&x)?.dense();
    let gradient = transforms::grad(|x: &Array| Ok(calls(x)?))(&row(&[1.0, 2.0]))?;
    assert_eq!(gradient.as_slice::<f32>(), [2.0, 4.0]);
    let mut outer = compile_with(denied(), |x: Array| calls(&x.multiply(&x)?));
    assert_eq!(outer.call(row(&[1.0, 2.0]))?.dense()?.item_exact::<f32>(), 17.0);
    drop(outer);
    let _allow = Policy::Allow.scope();
    let y = implicit(Blocked::of(&row(&[1.0, 2.0]), 64), |x| calls(&x))?.dense()?;
    assert_eq!(y.item_exact::<f32>(), 5.0);
    assert_eq!((inner.stats().traces, inner.stats().inlined), (0, 3));
    Ok(())
}

#[test]
fn a_gradient_compiles() -> Result<()> {
    let mut f = compile_with(denied(), |x: Array| transforms::grad(|x: &Array| x.square()?.sum(None))(&x));
    for _ in 0..2 {
        assert_eq!(f.call(row(&[1.0, 2.0]))?.dense()?.as_slice::<f32>(), [2.0, 4.0]);
    }
    assert_eq!(f.stats().traces, 1);
    Ok(())
}

#[test]
fn the_number_of_results_may_depend_on_the_shape() -> Result<()> {
    let mut f = compile_with(denied(), |x: Array| (0..x.shape()[0]).map(|_| x.exp()).collect::<Result<Vec<_>, _>>());
    for size in [2, 3, 2, 3] {
        assert_eq!(f.call(ones(&[size]))?.len(), size as usize);
    }
    assert_eq!(f.stats().traces, 2);
    Ok(())
}

#[test]
fn a_trace_that_mlx_dropped_is_made_again() -> Result<()> {
    let mut f = compile_with(denied(), |x: Array| x.exp());
    for _ in 0..2 {
        f.call(row(&[0.0]))?;
        transforms::compile::clear_cache();
    }
    assert_eq!(f.call(row(&[0.0]))?.dense()?.item_exact::<f32>(), 1.0);
    assert_eq!((f.stats().traces, f.stats().retraces().last()), (3, Some("the trace was dropped")));
    // One without shapes, called with another one.
    let mut f = compile_with(shapeless(), |x: Array| x.exp());
    f.call(ones(&[2]))?;
    transforms::compile::clear_cache();
    f.call(ones(&[3]))?;
    assert_eq!(f.stats().traces, 2);
    Ok(())
}

#[test]
fn a_trace_whose_results_do_not_fit_outside_is_not_kept() -> Result<()> {
    let mut f = compile_with_state(denied(), |(count, w): &mut (Array, Array), x: Array| {
        *count = count.add(Array::from_f32(1.0))?;
        *w = x;
        count.square()
    });
    let mut state = (Array::from_f32(0.0), Array::from_f32(0.0));
    for _ in 0..2 {
        let error = f.call(&mut state, Blocked::of(&ones(&[4, 4]), 64)).expect_err("a dense field takes no Blocked");
        assert!(
            error.to_string().contains("Blocked(f32[4,4]) stands where the structure holds a dense array"),
            "{error}"
        );
        assert_eq!((state.0.item_exact::<f32>(), state.1.item_exact::<f32>()), (0.0, 0.0));
    }
    assert_eq!(f.stats().traces, 0);
    Ok(())
}

#[test]
fn another_stream_is_another_trace() -> Result<()> {
    let mut f = compile_with(denied(), |x: Array| x.exp());
    let stream = Stream::cpu();
    for _ in 0..2 {
        f.call(row(&[0.0]))?;
        with_stream(&stream, || f.call(row(&[0.0])))?;
    }
    assert_eq!(f.stats().traces, 2);
    Ok(())
}

#[test]
fn an_eval_inside_is_an_error_of_its_own() {
    let mut f = compile_with(denied(), |x: Array| x.multiply(Array::from_f32(x.item_exact::<f32>())));
    assert!(matches!(f.call(Array::from_f32(1.0)), Err(Error::EvalInTrace)));
}

#[test]
fn foreign_state_is_a_state() -> Result<()> {
    struct Cache(Vec<Array>);
    tacit::register_node!(CacheNode(Cache) as Vec<Array>, |cache| cache.0.clone(), |arrays| Ok(Cache(arrays)),);
    let mut f = compile_with_state(denied(), |cache: &mut CacheNode, x: Array| {
        cache.0.0.push(x.clone());
        Ok::<_, Error>(x)
    });
    let mut cache = CacheNode(Cache(Vec::new()));
    for i in 0..3 {
        f.call(&mut cache, Array::from_f32(i as f32))?;
    }
    assert_eq!(cache.0.0.iter().map(Array::item_exact::<f32>).collect::<Vec<_>>(), [0.0, 1.0, 2.0]);
    Ok(())
}

#[test]
fn one_shapeless_trace_serves_other_shapes() -> Result<()> {
    let softmax = |(x, w): (Array, Array)| {
        let y = x.matmul(&w)?.add(&x.sum_axis(-1, true)?)?;
        ops::softmax_axis(y.multiply(Array::from_f32(0.5))?, -1, None)?.mean_axis(0, false)
    };
    let mut f = compile_with(shapeless(), softmax);
    let w = random::uniform::<_, f32>(0.0, 1.0, &[4, 5], &random::key(1)?)?;
    // An extent of 1 has a trace of its own: MLX's sum over it would crash.
    for rows in [2, 7, 1, 7, 30, 2, 1] {
        let x = random::uniform::<_, f32>(0.0, 1.0, &[rows, 4], &random::key(rows as u64)?)?;
        let result = f.call((&x, &w))?.dense()?;
        let expected = softmax((x, w.clone()))?;
        for (a, b) in result.as_slice::<f32>().iter().zip(expected.as_slice::<f32>()) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
    }
    assert_eq!((f.stats().traces, f.stats().checked), (2, 2));
    Ok(())
}

/// The error of calling `f`, compiled without shapes, on 15 rows after 6.
fn shapeless_error<E: Into<Error>>(f: impl FnMut(Array) -> Result<Array, E>, shapes: [&[i32]; 2]) -> String {
    let mut f = compile_with(shapeless(), f);
    let [first, second] = shapes.map(|shape| f.call(ones(shape)).and_then(|y| y.dense()?.eval().map_err(Error::from)));
    let ((Err(error), _) | (Ok(()), Err(error))) = (first, second) else { panic!("both shapes went through") };
    assert!(matches!(error, Error::Shapeless { .. }), "{error}");
    error.to_string()
}

#[test]
fn a_shape_in_the_graph_is_an_error_that_names_the_node() {
    let mean = shapeless_error(|x: Array| x.sum(None)?.divide(Array::from_f32(x.shape()[0] as f32)), [&[2], &[4]]);
    expect![[r#"
        f was compiled without shapes and cannot be: the constants differ: 2 f32[] became 4 f32[]
        help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`"#]].assert_eq(&mean);
    let reshape = shapeless_error(|x: Array| x.reshape(&[x.shape()[0] * x.shape()[1], -1]), [&[2, 3, 10], &[3, 5, 4]]);
    expect![[r#"
        f was compiled without shapes and cannot be: the static parameters of a node differ: reshape[shape=(6,-1)] became reshape[shape=(15,-1)]
        help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`"#]].assert_eq(&reshape);
    let quantized = shapeless_error(
        |x: Array| {
            let (w, scales, biases) = ops::quantize(&x, 64, 4)?;
            ops::dequantize(&w, &scales, &biases, 64, 4)
        },
        [&[4, 64], &[8, 64]],
    );
    expect![[r#"
        f was compiled without shapes and cannot be: the static parameters of a node differ: reshape[shape=(4,-1,64)] became reshape[shape=(8,-1,64)]
        help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`"#]].assert_eq(&quantized);
    let cut = shapeless_error(|x: Array| ops::pad(&x, 1, None, None), [&[2, 3], &[4, 3]]);
    expect![[r#"
        f was compiled without shapes and cannot be: [Primitive::output_shapes] Pad cannot infer output shapes.
        help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`"#]].assert_eq(&cut);
}

/// MLX takes each part of what goes backwards for its first number. Where passes run, they leave no split.
#[test]
fn parts_of_an_argument_that_goes_backwards_are_its_elements() -> Result<()> {
    let x = row(&[1.0, 2.0, 3.0, 4.0]);
    let backwards = x.try_index((.., (..).stride_by(-1)))?;
    let options = CompileOptions { passes: Passes::Off, ..denied() };
    let mut second = compile_with(options, |x: Array| x.split_equal(2, 1)?.swap_remove(1).negative());
    for (x, expected) in [(&x, [-3f32, -4.0]), (&backwards, [-2.0, -1.0])] {
        assert_eq!(second.call(x)?.dense()?.as_slice::<f32>(), expected);
    }
    assert_eq!(second.stats().traces, 1);
    Ok(())
}
