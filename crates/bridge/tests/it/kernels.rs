//! Rust functions as MLX primitives.

mod rules;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::transforms::compile::compile;
use mlx_rs::transforms::{fallible_jvp, fallible_vjp, grad};
use mlx_rs::{Array, Device, Dtype, Stream, ops, with_stream};
use tacit_bridge::kernel::{Input, Kernel, KernelError, Output, apply};
use tacit_bridge::{Aval, BoxError, Scope, Tape, recover, vmap};

use crate::arrays::{aval, matrix, names, numbers, placeholders, vector};
use crate::turns;

type Vjp = fn(&[Array], &[Array], &[usize]) -> Result<Vec<Array>, BoxError>;

/// An error that panics when its text is asked for.
#[derive(Debug)]
struct Untold;

impl fmt::Display for Untold {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("the error's own panic")
    }
}

impl std::error::Error for Untold {}

/// Sum and difference; what else it does is told by its field.
#[derive(Default)]
struct Butterfly {
    own_vjp: Option<Vjp>,
    fails: Option<&'static str>,
    /// What the decomposition gives instead.
    decomposed: Option<fn(&Array) -> Vec<Array>>,
}

impl Kernel for Butterfly {
    fn name(&self) -> &'static str {
        "butterfly"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        match inputs {
            [a, b] if a == b && a.dtype == Dtype::Float32 => Ok(vec![a.clone(), a.clone()]),
            _ => Err("two f32 inputs of one shape are needed".into()),
        }
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        match self.fails {
            Some("error") => return Err("the butterfly's own words".into()),
            Some("panic") => panic!("the butterfly's own panic"),
            Some("untold") => return Err(Box::new(Untold)),
            Some("dtype") => return Ok(inputs[0].elements::<u8>().map(drop)?),
            _ => {}
        }
        let (a, b) = (inputs[0].elements::<f32>()?, inputs[1].elements::<f32>()?);
        let [sum, difference] = outputs else { return Err("two outputs".into()) };
        assert_eq!((sum.aval(), inputs[0].aval()), (inputs[1].aval(), inputs[1].aval()));
        for (y, (a, b)) in sum.elements::<f32>()?.iter_mut().zip(a.iter().zip(b)) {
            *y = a + b;
        }
        for (y, (a, b)) in difference.elements::<f32>()?.iter_mut().zip(a.iter().zip(b)) {
            *y = a - b;
        }
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        if let Some(decomposed) = self.decomposed {
            return Ok(decomposed(&inputs[0]));
        }
        Ok(vec![inputs[0].add(&inputs[1])?, inputs[0].subtract(&inputs[1])?])
    }

    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        self.own_vjp.map(|vjp| vjp(primals, cotangents, argnums))
    }
}

fn butterfly(a: &Array, b: &Array) -> Vec<Array> {
    apply(Arc::new(Butterfly::default()), &[a.clone(), b.clone()]).expect("fits")
}

#[test]
fn it_computes_every_result() {
    let results = butterfly(&vector(&[5.0, 7.0]), &vector(&[1.0, 10.0]));
    assert_eq!(results.iter().map(numbers).collect::<Vec<_>>(), [[6.0, 17.0], [4.0, -3.0]]);
}

#[test]
fn inputs_are_row_major_whatever_they_were() {
    let (a, zeros) = (matrix(2, 3), ops::zeros::<f32>(&[3, 2]).expect("builds"));
    assert_eq!(numbers(&butterfly(&a.t(), &zeros)[0]), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let evaluated = a.t();
    evaluated.eval().expect("evaluates");
    assert_eq!(numbers(&butterfly(&evaluated, &zeros)[0]), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let broadcast = ops::broadcast_to(vector(&[1.0, 2.0]), &[3, 2]).expect("builds");
    broadcast.eval().expect("evaluates");
    assert_eq!(numbers(&butterfly(&broadcast, &zeros)[1]), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    let sliced = ops::as_strided(&a, &[2, 2], &[3, 2], 0).expect("builds");
    sliced.eval().expect("evaluates");
    assert_eq!(numbers(&butterfly(&sliced, &matrix(2, 2))[0]), [2.0, 5.0, 7.0, 10.0]);
}

#[test]
fn inputs_may_begin_at_any_address() {
    let numbers_of = [1.0_f32, -2.0, 3.5, f32::MIN_POSITIVE];
    for offset in 0..4 {
        let mut bytes = vec![0_u8; offset];
        bytes.extend(numbers_of.iter().flat_map(|number| number.to_ne_bytes()));
        let stored = Array::from_slice(&bytes, &[bytes.len() as i32]);
        let end = bytes.len() as i32;
        let part = stored.try_index(offset as i32..end).expect("builds");
        let view = part.view_dtype(Dtype::Float32).expect("builds");
        let zeros = ops::zeros::<f32>(&[4]).expect("builds");
        // Built before the view is evaluated, and after.
        assert_eq!(numbers(&butterfly(&view, &zeros)[0]), numbers_of, "{offset}");
        view.eval().expect("evaluates");
        assert_eq!(numbers(&butterfly(&view, &zeros)[0]), numbers_of, "{offset}");
        let reversed = view.reshape(&[2, 2]).expect("builds").t();
        let zeros = zeros.reshape(&[2, 2]).expect("builds");
        let expected = [numbers_of[0], numbers_of[2], numbers_of[1], numbers_of[3]];
        assert_eq!(numbers(&butterfly(&reversed, &zeros)[0]), expected, "{offset}");
    }
}

#[test]
fn no_node_copies_an_input_whose_strides_nobody_knows_yet() {
    let scope = Scope::new().expect("memory");
    let [x, y] = placeholders(&scope, [&[2, 3], &[3, 2]]);
    let out = butterfly(&x.t(), &y).remove(1);
    let tape = Tape::walk(&[out], &[x, y], &[]).expect("memory");
    assert_eq!(names(&tape), ["Transpose", "butterfly"]);
}

#[test]
fn arrays_without_elements_and_without_axes() {
    let empty = ops::zeros::<f32>(&[0, 3]).expect("builds");
    let results = butterfly(&empty, &empty);
    results[1].eval().expect("evaluates");
    assert_eq!(results[1].shape(), [0, 3]);
    let scalar = |x| Array::from_f32(x);
    assert_eq!(numbers(&butterfly(&scalar(3.0), &scalar(1.0))[1]), [2.0]);
}

#[test]
fn it_is_one_node_of_its_name() {
    let scope = Scope::new().expect("memory");
    let [x, y] = placeholders(&scope, [&[2], &[2]]);
    let out = butterfly(&x, &y).remove(1);
    let tape = Tape::walk(&[out], &[x, y], &[]).expect("memory");
    assert_eq!(names(&tape).last(), Some(&"butterfly"));
    let node = tape.len() - 1;
    assert_eq!(tape.results(node).len(), 2);
    let primitive = tape.primitive(node).expect("memory");
    assert_eq!((primitive.to_string(), primitive.params().expect("known")), ("butterfly".to_owned(), vec![]));
    let outputs = primitive.emit(&[vector(&[1.0; 3]), vector(&[2.0; 3])]).expect("it has a shape rule");
    assert_eq!(outputs.iter().map(numbers).collect::<Vec<_>>(), [[3.0; 3], [-1.0; 3]]);
}

fn gradients(own_vjp: Option<Vjp>) -> mlx_rs::error::Result<Vec<Array>> {
    let f = |args: &[Array]| {
        let kernel = Butterfly { own_vjp, ..Butterfly::default() };
        let results =
            apply(Arc::new(kernel), args).map_err(|error| mlx_rs::error::Exception::custom(error.to_string()))?;
        Ok(vec![results[0].multiply(&results[1])?])
    };
    fallible_vjp(f, &[vector(&[5.0, 7.0]), vector(&[1.0, 2.0])], &[vector(&[1.0, 1.0])]).map(|(_, gradients)| gradients)
}

#[test]
fn the_default_gradients_are_those_of_the_decomposition() {
    let gradients = gradients(None).expect("differentiates");
    assert_eq!(gradients.iter().map(numbers).collect::<Vec<_>>(), [[10.0, 14.0], [-2.0, -4.0]]);
    let mut second_alone = grad(|b: &Array| butterfly(&vector(&[5.0, 7.0]), b)[1].square()?.sum(None));
    assert_eq!(numbers(&second_alone(&vector(&[1.0, 2.0])).expect("differentiates")), [-8.0, -10.0]);
}

#[test]
fn a_kernel_may_have_its_own_vjp() {
    let vjp: Vjp = |primals, cotangents, argnums| {
        assert_eq!((primals.len(), cotangents.len()), (2, 2));
        Ok(argnums.iter().map(|&argnum| primals[argnum].clone()).collect())
    };
    let gradients = gradients(Some(vjp)).expect("differentiates");
    assert_eq!(gradients.iter().map(numbers).collect::<Vec<_>>(), [[5.0, 7.0], [1.0, 2.0]]);
}

#[test]
fn gradients_that_do_not_fit_are_errors() {
    let cases: [(Vjp, &str); 4] = [
        (|_, _, _| Ok(vec![]), "the vjp of butterfly gave 0 gradients for 2 arguments"),
        (|primals, _, _| Ok(vec![primals[0].clone(); 3]), "the vjp of butterfly gave 3 gradients for 2 arguments"),
        (
            |primals, _, _| Ok(vec![primals[0].clone(), primals[1].sum(None)?]),
            "the vjp of butterfly gave f32[] as the gradient of argument 1, which is f32[2]",
        ),
        (|_, _, _| panic!("the vjp's own"), "panicked: the vjp's own"),
    ];
    for (vjp, message) in cases {
        let error = gradients(Some(vjp)).expect_err("does not fit");
        assert!(error.what().contains(message), "{error}");
    }
}

#[test]
fn jvp_is_that_of_the_decomposition() {
    let f = |args: &[Array]| Ok(butterfly(&args[0], &args[1]));
    let primals = [vector(&[5.0]), vector(&[1.0])];
    let (values, tangents) = fallible_jvp(f, &primals, &[vector(&[1.0]), vector(&[0.25])]).expect("differentiates");
    assert_eq!(values.iter().map(numbers).collect::<Vec<_>>(), [[6.0], [4.0]]);
    assert_eq!(tangents.iter().map(numbers).collect::<Vec<_>>(), [[1.25], [0.75]]);
}

fn mapped(args: [&Array; 2], axes: [Option<i32>; 2]) -> Vec<Array> {
    let mut f = |args: Vec<Array>| Ok(butterfly(&args[0], &args[1]));
    vmap(&args.map(Clone::clone), &axes, |count| vec![0; count], &mut f).expect("maps")
}

#[test]
fn vmap_is_that_of_the_decomposition() {
    let (rows, columns, shift) = (matrix(2, 3), matrix(3, 2), vector(&[10.0, 20.0, 30.0]));
    let results = mapped([&rows, &columns], [Some(0), Some(1)]);
    assert_eq!(numbers(&results[0]), [2.0, 5.0, 8.0, 6.0, 9.0, 12.0]);
    assert_eq!(numbers(&results[1]), [0.0, -1.0, -2.0, 2.0, 1.0, 0.0]);
    let results = mapped([&rows, &shift], [Some(0), None]);
    assert_eq!(numbers(&results[0]), [11.0, 22.0, 33.0, 14.0, 25.0, 36.0]);
}

#[test]
fn a_decomposition_gives_what_the_kernel_does() {
    type Given = fn(&Array) -> Vec<Array>;
    let cases: [(Given, &str); 3] = [
        (|_| vec![], "nothing"),
        (|x| vec![x.clone(); 3], "f32[2] f32[2] f32[2]"),
        (|x| vec![x.clone(), x.as_dtype(Dtype::Float16).expect("builds")], "f32[2] f16[2]"),
    ];
    for (decomposed, given) in cases {
        let applied = |args: &[Array]| {
            let kernel = Butterfly { decomposed: Some(decomposed), ..Butterfly::default() };
            apply(Arc::new(kernel), &[args[0].clone(), args[0].clone()]).expect("fits")
        };
        let expected = format!(
            "the decomposition of butterfly gave {given} and not f32[2] f32[2]\nhelp: let it give what `output_avals` says"
        );
        let all = |count| vec![0; count];
        let error = vmap(&[matrix(3, 2)], &[Some(0)], all, &mut |args| Ok(applied(&args))).expect_err("does not fit");
        assert!(error.to_string().starts_with(&expected), "{error}");
        let x = [vector(&[1.0, 2.0])];
        let error = fallible_jvp(|args: &[Array]| Ok(applied(args)), &x, &x).expect_err("does not fit");
        assert!(error.what().contains(&expected), "{error}");
    }
}

#[test]
fn it_compiles() {
    let f = |(a, b): (&Array, &Array)| -> Result<Array, mlx_rs::error::Exception> {
        butterfly(&a.exp()?, b)[0].multiply(Array::from_f32(2.0))
    };
    let mut compiled = compile(f, None);
    for shift in [0.0, 1.0] {
        let result = compiled((&vector(&[0.0]), &vector(&[shift]))).expect("compiles");
        assert_eq!(numbers(&result), [2.0 + 2.0 * shift]);
    }
}

#[test]
fn inputs_that_do_not_fit_are_an_error_at_once() {
    let error =
        apply(Arc::new(Butterfly::default()), &[vector(&[1.0]), vector(&[1.0, 2.0])]).expect_err("does not fit");
    assert_eq!(error.to_string(), "two f32 inputs of one shape are needed");
    let error = apply(Arc::new(Butterfly::default()), &[]).expect_err("does not fit");
    assert_eq!(error.to_string(), "two f32 inputs of one shape are needed");
}

#[test]
fn an_error_and_a_panic_become_errors_of_the_eval_and_the_process_goes_on() {
    let _turn = turns::of_errors();
    for (fails, message) in [
        ("error", "kernel butterfly failed: the butterfly's own words"),
        ("panic", "kernel butterfly failed: panicked: the butterfly's own panic"),
        ("untold", "kernel butterfly failed: panicked: the error's own panic"),
        ("dtype", "kernel butterfly failed: the array is f32[1], not u8"),
    ] {
        let kernel = Butterfly { fails: Some(fails), ..Butterfly::default() };
        let results = apply(Arc::new(kernel), &[vector(&[1.0]), vector(&[1.0])]).expect("fits");
        let error = results[0].eval().expect_err("it fails");
        assert!(error.what().contains(message), "{error}");
        let own = recover(error.what()).expect("kept");
        assert_eq!(own.downcast_ref::<KernelError>().map(|error| error.kernel), Some("butterfly"));
        assert_eq!(numbers(&butterfly(&vector(&[1.0]), &vector(&[2.0]))[0]), [3.0]);
    }
}

#[test]
fn it_goes_to_the_stream_that_mlx_rs_was_told_to_use() {
    /// Says on which thread it ran; MLX has one for each stream of the CPU.
    struct Located(Arc<Mutex<Option<ThreadId>>>);
    impl Kernel for Located {
        fn name(&self) -> &'static str {
            "located"
        }
        fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
            Ok(vec![aval(&[1])])
        }
        fn eval_cpu(&self, _: &[Input<'_>], _: &mut [Output<'_>]) -> Result<(), BoxError> {
            *self.0.lock().map_err(|error| error.to_string())? = Some(thread::current().id());
            Ok(())
        }
        fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
            Ok(vec![vector(&[0.0])])
        }
    }
    let run = || {
        let place = Arc::new(Mutex::new(None));
        let result = apply(Arc::new(Located(Arc::clone(&place))), &[]).expect("fits").remove(0);
        result.eval().expect("evaluates");
        place.lock().map(|place| *place).expect("not poisoned").expect("it ran")
    };
    let stream = Stream::new_with_device(&Device::cpu());
    let (first, again) = (with_stream(&stream, run), with_stream(&stream, run));
    assert_eq!(first, again);
    assert_ne!(first, run());
}

#[test]
fn many_failed_evals_do_not_hold_up_later_ones() {
    for _ in 0..300 {
        let mut y = apply(
            Arc::new(Butterfly { fails: Some("error"), ..Butterfly::default() }),
            &[vector(&[1.0]), vector(&[2.0])],
        )
        .expect("fits")
        .remove(0);
        for _ in 0..30 {
            y = y.exp().expect("builds");
        }
        assert!(y.eval().is_err());
        // Enough ops that MLX waits for the ones before it.
        let mut y = vector(&[0.5]);
        for _ in 0..300 {
            y = y.sin().expect("builds");
        }
        y.eval().expect("evaluates");
    }
}

#[test]
fn a_kernel_lives_as_long_as_its_graph() {
    struct Counted(Arc<()>);
    impl Kernel for Counted {
        fn name(&self) -> &'static str {
            "counted"
        }
        fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
            Ok(vec![aval(&[1])])
        }
        fn eval_cpu(&self, _: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
            outputs[0].elements::<f32>()?.fill(Arc::strong_count(&self.0) as f32);
            Ok(())
        }
        fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
            Ok(vec![vector(&[0.0])])
        }
    }
    let count = Arc::new(());
    let result = apply(Arc::new(Counted(Arc::clone(&count))), &[]).expect("fits").remove(0);
    assert_eq!(Arc::strong_count(&count), 2);
    assert_eq!(numbers(&result), [2.0]);
    drop(result);
    assert_eq!(Arc::strong_count(&count), 1);
    let result = apply(Arc::new(Counted(Arc::clone(&count))), &[]).expect("fits");
    drop(result);
    assert_eq!(Arc::strong_count(&count), 1);
}
