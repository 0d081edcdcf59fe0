//! Branches and loops: eager, compiled, under grad, with implicit arrays in operands and carries.

use std::cell::Cell;
use std::time::{Duration, Instant};

use mlx_rs::memory::active_memory;
use mlx_rs::transforms::grad;
use mlx_rs::{Array, Dtype};
use tacit::control::{cond, fori_loop, scan, while_loop};
use tacit::primitives::{Gather, Matmul};
use tacit::{Counters, Error, Policy, Registry, Result, Value, compile, handler, implicit};
use tacit_conformance::opaque::Opaque;

use crate::turns;
use crate::types::{Left, Outer, dense, error, matrix, numbers, vector, with_handlers, without_handlers};

#[handler]
fn matmul_left(_: &Matmul, x: &Array, w: &Left) -> Result<Value> {
    Ok(x.matmul(&w.array)?.into())
}

#[handler]
fn gather_left(_: &Gather, x: &Left, rows: &Array) -> Result<Value> {
    // `x[rows]` keeps the gathered axis with its extent of one.
    Ok(x.array.take_axis(rows, 0)?.expand_dims(-2)?.into())
}

fn registry() -> Registry {
    Registry::new().with::<matmul_left>().with::<gather_left>()
}

fn scalar(x: f32) -> Array {
    Array::from_f32(x)
}

fn bool_of(x: bool) -> Array {
    Array::from_bool(x)
}

/// The one number of a value, in a list.
fn one(value: &Value) -> Vec<f32> {
    numbers(&value.dense().expect("allowed"))
}

mod branches {
    use super::*;

    #[test]
    fn only_the_branch_that_is_taken_runs() {
        let (mut held, mut not) = (0, 0);
        for x in [1.0, -1.0, 2.0] {
            // Lazy, and with an axis.
            let positive = scalar(x).gt(scalar(0.0)).and_then(|p| p.expand_dims(0)).expect("compares");
            let on_true = |x: Array| {
                held += 1;
                x.add(scalar(10.0))
            };
            let on_false = |x: Array| {
                not += 1;
                x.subtract(scalar(10.0))
            };
            let y = cond(&positive, scalar(x), on_true, on_false).expect("runs");
            assert_eq!(one(&y), [if x > 0.0 { x + 10.0 } else { x - 10.0 }]);
        }
        assert_eq!((held, not), (2, 1));
    }

    #[test]
    fn an_implicit_operand_is_intercepted_and_stays_implicit_where_it_is_returned() {
        let _scopes = with_handlers(registry());
        let _deny = Policy::Deny.scope();
        let (w, x) = (Left::of(&matrix(2, 2)), matrix(1, 2));
        let product = |(w, x): (Array, Array)| Ok::<_, Error>((x.matmul(&w)?, w));
        let neither = |(w, x): (Array, Array)| Ok::<_, Error>((x, w));
        let (y, w_) = cond(&bool_of(true), (w, x), product, neither).expect("runs");
        assert_eq!(dense(&y), [7.0, 10.0]);
        assert!(w_.downcast::<Left>().is_some(), "{w_}");
    }

    #[test]
    fn closures_capture_arrays_of_an_enclosing_trace() {
        let _scopes = with_handlers(registry());
        let (y, counters) = Counters::during(|| {
            implicit((Left::of(&matrix(2, 2)), matrix(1, 2)), |(w, x)| {
                let product = x.matmul(&w)?;
                let inner = Left::of(&matrix(2, 2));
                let add = |v: Array| product.matmul(&v)?.add(&x);
                cond(&bool_of(true), inner, add, |v: Array| v.exp())?.dense()
            })
        });
        assert_eq!(dense(&y.expect("runs")), [38.0, 56.0]);
        assert_eq!((counters.handled, counters.materialized), (2, 0));
    }

    #[test]
    fn compiled_it_selects_without_tracing_again() {
        let _scopes = with_handlers(registry());
        let runs = Cell::new(0);
        let mut f = compile(|(p, w, x): (Array, Array, Array)| {
            let on_true = |(w, x): (Array, Array)| {
                runs.set(runs.get() + 1);
                x.matmul(&w)
            };
            let on_false = |(_, x): (Array, Array)| {
                runs.set(runs.get() + 1);
                x.negative()
            };
            cond(&p, (w, x), on_true, on_false)?.dense()
        });
        for (p, expected) in [(true, [7.0, 10.0]), (false, [-1.0, -2.0])] {
            // One bool with axes of its own gives none to the result.
            let p = Array::from_slice(&[p], &[1, 1, 1]);
            let y = f.call((&p, Left::of(&matrix(2, 2)), matrix(1, 2))).expect("runs");
            assert_eq!((y.to_string(), dense(&y)), ("f32[1,2]".to_owned(), expected.to_vec()));
        }
        drop(f);
        assert_eq!(runs.get(), 2);
    }

    #[test]
    fn compiled_two_implicit_results_are_selected_child_by_child() {
        let _scopes = with_handlers(registry());
        let _deny = Policy::Deny.scope();
        let mut f = compile(|(p, a, b, x): (Array, Array, Array, Array)| {
            let straight = |[a, _]: [Array; 2]| Ok::<_, Error>(a);
            let crossed = |[_, b]: [Array; 2]| Ok::<_, Error>(b);
            let w = cond(&p, [Left::of(&a), Left::of(&b)], straight, crossed)?;
            assert!(w.downcast::<Left>().is_some(), "{w}");
            implicit((x, w), |(x, w)| x.matmul(&w))?.dense()
        });
        let (a, b) = (matrix(2, 2), matrix(2, 2).negative().expect("negates"));
        for (p, expected) in [(true, [7.0, 10.0]), (false, [-7.0, -10.0])] {
            let args = (bool_of(p), &a, &b, matrix(1, 2));
            assert_eq!(dense(&f.call(&args).expect("runs")), expected);
        }
    }

    #[test]
    fn a_predicate_of_an_implicit_argument_selects() {
        let _scopes = without_handlers();
        let f = |w: Array| {
            let large = w.sum(None)?.gt(scalar(5.0))?;
            cond(&large, &w, |w: Array| w.negative(), |w: Array| w.square())?.dense()
        };
        assert_eq!(dense(&implicit(Left::of(&vector(&[3.0, 4.0])), f).expect("runs")), [-3.0, -4.0]);
        assert_eq!(dense(&implicit(Opaque::new(vector(&[1.0, 2.0])), f).expect("runs")), [1.0, 4.0]);
    }

    #[test]
    fn a_captured_predicate_is_frozen_in_the_trace() {
        let above = Cell::new(0.0);
        let mut f = compile(|x: Array| {
            // It is lazy, and depends on no argument.
            let p = scalar(above.get()).lt(scalar(1.0))?;
            cond(&p, x, |x: Array| x.exp(), |x: Array| x.log())?.dense()
        });
        let x = Value::from(scalar(1.0));
        assert_eq!(one(&f.call(&x).expect("runs")), [1f32.exp()]);
        above.set(2.0);
        assert_eq!(one(&f.call(&x).expect("runs")), [1f32.exp()]);
    }

    /// `x * x` above 2, `-x` below.
    fn bent(x: &Array) -> Result<Array> {
        let above = x.gt(scalar(2.0))?;
        cond(&above, x, |x: Array| x.square(), |x: Array| x.negative())?.dense()
    }

    #[test]
    fn the_taken_branch_is_differentiated() {
        for (x, expected) in [(3.0, 6.0), (1.0, -1.0)] {
            assert_eq!(numbers(&grad(|x: &Array| Ok(bent(x)?))(&scalar(x)).expect("runs")), [expected]);
        }
    }

    #[test]
    fn compiled_the_gradient_goes_through_the_selection() {
        let mut f = compile(|x: Array| grad(|x: &Array| Ok(bent(x)?))(&x));
        for (x, expected) in [(3.0, 6.0), (1.0, -1.0), (4.0, 8.0)] {
            assert_eq!(one(&f.call(scalar(x)).expect("runs")), [expected]);
        }
        assert_eq!(f.stats().traces, 1);
    }
}

mod whiles {
    use super::*;

    #[test]
    fn it_steps_until_the_condition_no_longer_holds() {
        let below = |(_, x): (Array, Array)| x.lt(scalar(100.0));
        let double = |(n, x): (Array, Array)| Ok::<_, Error>((n.add(scalar(1.0))?, x.add(&x)?));
        let (n, x) = while_loop((scalar(0.0), scalar(3.0)), below, double).expect("runs");
        assert_eq!([one(&n), one(&x)], [[6.0], [192.0]]);
    }

    #[test]
    fn without_a_step_it_is_what_it_began_with() {
        let _deny = Policy::Deny.scope();
        let never = |_: Array| Ok::<_, Error>(bool_of(false));
        let w = while_loop(Left::of(&matrix(2, 2)), never, |w: Array| w.exp()).expect("runs");
        assert!(w.downcast::<Left>().is_some(), "{w}");
    }

    #[test]
    fn an_implicit_carry_is_intercepted_in_each_step_and_stays_implicit() {
        let _scopes = with_handlers(registry());
        let _deny = Policy::Deny.scope();
        let small = |(_, x): (Array, Array)| x.sum(None)?.lt(scalar(1000.0));
        let product = |(w, x): (Array, Array)| Ok::<_, Error>((w.clone(), x.matmul(&w)?));
        let (looped, counters) =
            Counters::during(|| while_loop((Left::of(&matrix(2, 2)), matrix(1, 2)), small, product));
        let (w, x) = looped.expect("runs");
        assert_eq!((dense(&x), counters.handled), (vec![1069.0, 1558.0], 4));
        assert!(w.downcast::<Left>().is_some(), "{w}");
    }

    #[test]
    fn a_condition_on_an_implicit_carry_is_materialized_and_read() {
        let _scopes = without_handlers();
        let positive = |(w, n): (Array, Array)| w.sum(None)?.gt(n);
        let count = |(w, n): (Array, Array)| Ok::<_, Error>((w, n.add(scalar(1.0))?));
        let begin = (Outer::of(Left::of(&vector(&[1.0, 2.0]))), scalar(0.0));
        assert_eq!(one(&while_loop(begin, positive, count).expect("runs").1), [3.0]);
    }

    #[test]
    fn ten_thousand_steps_hold_no_more_memory_than_one_thousand() {
        let _turn = turns::of_memory();
        let memory = Cell::new([0; 2]);
        let below = |(n, _): (Array, Array)| n.lt(scalar(10_000.0));
        let mut steps = 0;
        let step = |(n, x): (Array, Array)| {
            steps += 1;
            let [early, late] = memory.get();
            match steps {
                1_000 => memory.set([active_memory()?, late]),
                10_000 => memory.set([early, active_memory()?]),
                _ => {}
            }
            // A graph that was never evaluated would hold all of these.
            Ok::<_, Error>((n.add(scalar(1.0))?, x.add(vector(&[1.0; 256]))?))
        };
        let (n, x) = while_loop((scalar(0.0), vector(&[0.0; 256])), below, step).expect("runs");
        assert_eq!((one(&n), dense(&x)), (vec![10_000.0], vec![10_000.0; 256]));
        let [early, late] = memory.get();
        assert!(late < early + (2 << 20), "{early} B, then {late} B");
    }

    #[test]
    fn compiled_a_condition_that_has_data_leaves_the_carry_traced() {
        let mut f = compile(|x: Array| {
            let left = Cell::new(3);
            let some = |_: Array| Ok::<_, Error>(bool_of(left.get() > 0));
            let square = |x: Array| {
                left.set(left.get() - 1);
                x.square()
            };
            while_loop(x, some, square)?.dense()
        });
        for (x, expected) in [(2.0, 256.0), (1.0, 1.0)] {
            assert_eq!(one(&f.call(scalar(x)).expect("runs")), [expected]);
        }
        assert_eq!(f.stats().traces, 1);
    }

    #[test]
    fn the_steps_that_it_took_are_differentiated() {
        let power = |x: &Array| Ok(while_loop(x, |x: Array| x.lt(scalar(10.0)), |x: Array| x.square())?.dense()?);
        assert_eq!(numbers(&grad(power)(&scalar(2.0)).expect("runs")), [4.0 * 8.0]);
    }

    #[test]
    fn an_error_and_a_panic_of_a_closure_come_out_and_leave_nothing_behind() {
        let _scopes = with_handlers(registry());
        let begin = || (Left::of(&matrix(2, 2)), Value::from(matrix(1, 2)));
        let always = |_: (Array, Array)| Ok::<_, Error>(bool_of(true));
        let wrong = |(w, x): (Array, Array)| Ok::<_, Error>((w, x.matmul(scalar(1.0))?));
        assert!(matches!(error(while_loop(begin(), always, wrong)), Error::Mlx(text) if text.contains("[matmul]")));
        let panics = |_: (Array, Array)| -> Result<(Array, Array)> { panic!("on purpose") };
        assert!(error(while_loop(begin(), always, panics)).to_string().starts_with("panicked: on purpose"));
        let refuses = |_: (Array, Array)| -> Result<Array> { Err(Error::invalid("it is late", "come back tomorrow")) };
        let same = |carry: (Array, Array)| Ok::<_, Error>(carry);
        assert!(error(while_loop(begin(), refuses, same)).to_string().starts_with("it is late"));
        let product = implicit(begin(), |(w, x)| x.matmul(&w));
        assert_eq!(dense(&product.expect("nothing was left behind")), [7.0, 10.0]);
    }
}

mod counted {
    use super::*;

    #[test]
    fn the_body_sees_each_number_of_the_range() {
        let join = |i: i32, x: Array| x.multiply(scalar(10.0))?.add(scalar(i as f32));
        assert_eq!(one(&fori_loop(2..5, scalar(1.0), join).expect("runs")), [1234.0]);
        for empty in [3..3, std::ops::Range { start: 5, end: 2 }] {
            assert_eq!(one(&fori_loop(empty, scalar(7.0), join).expect("runs")), [7.0]);
        }
    }

    #[test]
    fn nothing_is_evaluated() {
        let late = |_: i32, x: Array| x.multiply(scalar(2.0));
        let looped = fori_loop(0..3, scalar(1.0), late).and_then(|x| x.dense()).expect("runs");
        assert!(tacit_bridge::Primitive::making(&looped).expect("looks").is_some());
    }

    #[test]
    fn compiled_and_differentiated_with_an_implicit_carry() {
        let _scopes = with_handlers(registry());
        let mut f = compile(|(w, x): (Array, Array)| {
            let product = |_: i32, (w, x): (Array, Array)| Ok::<_, Error>((w.clone(), x.matmul(&w)?));
            // A gradient of the dense argument, with the implicit one captured.
            grad(|x: &Array| fori_loop(0..3, (Value::from(&w), x), product)?.1.dense()?.sum(None))(&x)
        });
        for _ in 0..2 {
            let gradient = f.call((&Left::of(&matrix(2, 2)), matrix(1, 2))).expect("runs");
            // The row sums of the third power.
            assert_eq!(dense(&gradient), [37.0 + 54.0, 81.0 + 118.0]);
        }
        assert_eq!(f.stats().traces, 1);
    }

    #[test]
    fn a_placeholder_that_is_kept_is_found() {
        let _scopes = with_handlers(registry());
        let mut kept = None;
        let step = |_: i32, (w, x): (Array, Array)| {
            kept = Some(w.add(scalar(1.0))?);
            Ok::<_, Error>((w, x))
        };
        let failed = fori_loop(0..2, (Left::of(&matrix(2, 2)), matrix(1, 2)), step);
        assert!(matches!(error(failed), Error::PlaceholderLeaked { .. }));
    }
}

mod scans {
    use super::*;

    fn running(total: Array, x: Array) -> Result<(Array, Array)> {
        let sum = total + x;
        Ok((sum.clone(), sum))
    }

    #[test]
    fn it_collects_what_each_step_makes() {
        let (total, sums) = scan(vector(&[0.0, 0.0]), matrix(3, 2), None, running).expect("runs");
        assert_eq!(dense(&total), [9.0, 12.0]);
        assert_eq!((sums.to_string(), dense(&sums)), ("f32[3,2]".into(), vec![1.0, 2.0, 4.0, 6.0, 9.0, 12.0]));
    }

    #[test]
    fn it_goes_over_trees_and_over_none() {
        let step = |n: Array, (a, rows): (Array, Vec<Array>)| {
            let n = n.add(scalar(1.0))?;
            Ok::<_, Error>((n.clone(), (a.multiply(&n)?, [rows[0].sum(None)?])))
        };
        let xs = (vector(&[1.0, 2.0]), vec![matrix(2, 3)]);
        let (n, (scaled, [sums])) = scan(scalar(0.0), xs, Some(2), step).expect("runs");
        assert_eq!((one(&n), dense(&scaled), dense(&sums)), (vec![2.0], vec![1.0, 4.0], vec![6.0, 15.0]));
        let double = |x: Array, (): ()| Ok::<_, Error>((x.add(&x)?, x));
        let (x, before) = scan(scalar(1.0), (), Some(4), double).expect("runs");
        assert_eq!((one(&x), dense(&before)), (vec![16.0], vec![1.0, 2.0, 4.0, 8.0]));
    }

    #[test]
    fn an_implicit_array_gives_its_rows_by_its_handler() {
        let _scopes = with_handlers(registry());
        let _deny = Policy::Deny.scope();
        let (scanned, counters) =
            Counters::during(|| scan(vector(&[0.0, 0.0]), Left::of(&matrix(3, 2)), None, running));
        assert_eq!(dense(&scanned.expect("runs").1), [1.0, 2.0, 4.0, 6.0, 9.0, 12.0]);
        assert_eq!(counters.handled, 3);
    }

    #[test]
    fn without_a_handler_it_is_materialized_once() {
        let _scopes = without_handlers();
        let xs = Opaque::new(matrix(3, 2));
        let (scanned, counters) = Counters::during(|| scan(vector(&[0.0, 0.0]), xs, None, running));
        assert_eq!(dense(&scanned.expect("runs").0), [9.0, 12.0]);
        assert_eq!(counters.materialized, 1);
    }

    #[test]
    fn an_implicit_carry_stays_and_an_implicit_result_is_stacked_dense() {
        let _scopes = with_handlers(registry());
        let step = |w: Array, x: Array| Ok::<_, Error>((w.clone(), (x.matmul(&w)?, w)));
        let (w, (products, ws)) = scan(Left::of(&matrix(2, 2)), matrix(2, 2), None, step).expect("runs");
        assert!(w.downcast::<Left>().is_some(), "{w}");
        assert_eq!(dense(&products), [7.0, 10.0, 15.0, 22.0]);
        assert_eq!((ws.to_string(), dense(&ws)[4..].to_vec()), ("f32[2,2,2]".into(), vec![1.0, 2.0, 3.0, 4.0]));
    }

    #[test]
    fn of_no_steps_the_results_have_no_rows() {
        let step = |w: Array, x: Array| Ok::<_, Error>((w, (x.sum(None)?.as_dtype(Dtype::Int32)?, [x])));
        let none = Array::zeros::<f32>(&[0, 5]).expect("makes it");
        let (w, (sums, [rows])) = scan(Left::of(&matrix(2, 2)), none, None, step).expect("runs");
        assert!(w.downcast::<Left>().is_some(), "{w}");
        assert_eq!((sums.to_string(), rows.to_string()), ("i32[0]".to_owned(), "f32[0,5]".to_owned()));
        let (_, rows) =
            scan(scalar(1.0), (), Some(0), |n: Array, (): ()| Ok::<_, Error>((n.clone(), n))).expect("runs");
        assert_eq!(rows.to_string(), "f32[0]");
    }

    #[test]
    fn compiled_and_differentiated() {
        let weighted = |x: &Array| -> Result<Array> {
            let step = |total: Array, x: Array| {
                let total = total.multiply(&x)?;
                Ok::<_, Error>((total.clone(), total))
            };
            let (last, products) = scan(scalar(1.0), x, None, step)?;
            Ok(last.dense()?.add(products.dense()?.sum(None)?)?)
        };
        // a + ab + 2abc
        assert_eq!(
            numbers(&grad(|x: &Array| Ok(weighted(x)?))(&vector(&[2.0, 3.0, 5.0])).expect("runs")),
            [34.0, 22.0, 12.0]
        );
        let mut f = compile(|x: Array| grad(|x: &Array| Ok(weighted(x)?))(&x));
        for (x, expected) in [([2.0, 3.0, 5.0], [34.0, 22.0, 12.0]), ([1.0, 1.0, 1.0], [4.0, 3.0, 2.0])] {
            assert_eq!(dense(&f.call(vector(&x)).expect("runs")), expected);
        }
        assert_eq!(f.stats().traces, 1);
    }
}

mod many {
    use super::*;

    #[test]
    fn conditions_on_what_is_traced_take_time_by_their_number() {
        let begun = Instant::now();
        let mut compiled = compile(|mut x: Array| -> Result<Array> {
            for _ in 0..16_000 {
                let negative = x.lt(scalar(0.0))?;
                x = cond(&negative, &x, |x: Array| x.negative(), |x: Array| x.add(scalar(1.0)))?.dense()?;
            }
            // Only the recording is timed: MLX is not to compile it.
            Err(Error::invalid("that will do", "none"))
        });
        assert!(error(compiled.call(scalar(1.0))).to_string().contains("that will do"));
        // Some tenths of a second, and minutes if each looks at all that came before it.
        assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
    }
}
