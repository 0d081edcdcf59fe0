//! Kernels with a jvp or a vmap of their own.

use std::sync::{Arc, Mutex};

use mlx_rs::transforms::{fallible_jvp, fallible_vjp};
use mlx_rs::{Array, Dtype};
use tacit_bridge::kernel::{Fallback, Input, Kernel, Output, apply};
use tacit_bridge::{Aval, BoxError, Mapped, vmap};

use super::Untold;
use crate::arrays::{aval, matrix, numbers, vector};

type OwnJvp = fn(&[Array], &[usize]) -> Vec<Array>;

/// A sum whose own jvp is told by its field, and which remembers what stood for it.
struct Remembering {
    own_jvp: Option<OwnJvp>,
    reasons: Arc<Mutex<Vec<Fallback>>>,
}

impl Kernel for Remembering {
    fn name(&self) -> &'static str {
        "remembering"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![inputs[0].clone()])
    }

    fn eval_cpu(&self, _: &[Input<'_>], _: &mut [Output<'_>]) -> Result<(), BoxError> {
        Err("it is not evaluated".into())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(vec![inputs[0].add(&inputs[1])?])
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Result<Vec<Array>, BoxError> {
        self.reasons.lock().map_err(|error| error.to_string())?.push(reason);
        self.decompose(inputs)
    }

    fn jvp(&self, _: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        self.own_jvp.map(|jvp| Ok(jvp(tangents, argnums)))
    }
}

/// What stood for the kernel while `f` ran on it.
fn reasons_of<R>(own_jvp: Option<OwnJvp>, f: impl FnOnce(&dyn Fn(&[Array]) -> Vec<Array>) -> R) -> (R, Vec<Fallback>) {
    let reasons = Arc::new(Mutex::default());
    let kernel = || Arc::new(Remembering { own_jvp, reasons: Arc::clone(&reasons) });
    let result = f(&|args| apply(kernel(), args).expect("fits"));
    let reasons = reasons.lock().map(|reasons| reasons.clone()).expect("not poisoned");
    (result, reasons)
}

#[test]
fn the_fallback_is_told_what_it_stands_for() {
    let args = [vector(&[1.0, 2.0]), vector(&[3.0, 4.0])];
    let (_, reasons) = reasons_of(None, |sum| fallible_vjp(|a: &[Array]| Ok(sum(a)), &args, &args[..1]));
    assert_eq!(reasons, [Fallback::Vjp]);
    let (_, reasons) = reasons_of(None, |sum| fallible_jvp(|a: &[Array]| Ok(sum(a)), &args, &args));
    assert_eq!(reasons, [Fallback::Jvp]);
    let (results, reasons) = reasons_of(None, |sum| {
        let rows = [matrix(3, 2), args[0].clone()];
        vmap(&rows, &[Some(0), None], |count| vec![0; count], &mut |a| Ok(sum(&a))).expect("maps")
    });
    assert_eq!(reasons, [Fallback::Vmap { examples: 3 }]);
    assert_eq!(numbers(&results[0]), [2.0, 4.0, 4.0, 6.0, 6.0, 8.0]);
}

#[test]
fn a_kernel_may_have_its_own_jvp() {
    let args = [vector(&[1.0, 2.0]), vector(&[3.0, 4.0])];
    let second = |args: &[Array], own_jvp: OwnJvp| {
        reasons_of(Some(own_jvp), |sum| {
            let f = |b: &[Array]| Ok(sum(&[args[0].clone(), b[0].clone()]));
            fallible_jvp(f, &args[1..], &args[..1]).map(|(_, tangents)| numbers(&tangents[0]))
        })
    };
    let (tangents, reasons) = second(&args, |tangents, argnums| {
        assert_eq!(argnums, [1]);
        vec![tangents[0].add(&tangents[0]).expect("builds")]
    });
    assert_eq!((tangents.expect("differentiates"), reasons), (vec![2.0, 4.0], vec![]));
    let (misfit, _) = second(&args, |_, _| vec![vector(&[1.0])]);
    let error = misfit.expect_err("does not fit");
    let expected = "the jvp of remembering gave f32[1] as the tangent of result 0, which is f32[2]";
    assert!(error.what().contains(expected), "{error}");
}

/// Rows to their sums; mapped, all at once.
struct Sums(Rule);

type Rule = fn(&[Array], &[Option<usize>]) -> Result<Mapped, BoxError>;

impl Kernel for Sums {
    fn name(&self) -> &'static str {
        "sums"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![aval(&inputs[0].shape[..1])])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let columns = inputs[0].aval().shape[1] as usize;
        let rows = inputs[0].elements::<f32>()?.chunks_exact(columns);
        outputs[0].elements::<f32>()?.iter_mut().zip(rows).for_each(|(y, row)| *y = row.iter().sum());
        Ok(())
    }

    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err("the decomposition is not asked".into())
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Result<Mapped, BoxError>> {
        Some(self.0(inputs, axes))
    }
}

fn mapped_sums(rule: Rule) -> Result<Vec<Array>, String> {
    let x = matrix(4, 3).reshape(&[2, 2, 3]).expect("builds");
    let mut f = |args: Vec<Array>| Ok(apply(Arc::new(Sums(rule)), &args)?);
    vmap(&[x], &[Some(1)], |_| vec![-1], &mut f).map_err(|error| error.to_string())
}

#[test]
fn a_kernel_may_have_its_own_vmap() {
    let result = mapped_sums(|inputs, axes| {
        assert_eq!((inputs[0].shape(), axes), (&[2, 2, 3][..], &[Some(1)][..]));
        let rows = inputs[0].reshape(&[4, 3])?;
        Ok((vec![apply(Arc::new(Sums(|_, _| Err("not mapped".into()))), &[rows])?[0].reshape(&[2, 2])?], vec![1]))
    });
    assert_eq!(numbers(&result.expect("maps")[0]), [6.0, 15.0, 24.0, 33.0]);
    let refused = mapped_sums(|_, _| Err("the rule's own words".into())).expect_err("fails");
    assert_eq!(refused, "the rule's own words");
    let misplaced = mapped_sums(|inputs, _| Ok((inputs.to_vec(), vec![3]))).expect_err("does not fit");
    assert_eq!(
        misplaced,
        "the vmap of sums gave 1 results, f32[2,2,3], with the mapped axes [3]\n\
         help: give what each of 2 examples has, f32[2], with an axis more for them"
    );
    let others: [(Rule, &str); 4] = [
        (|_, _| Ok((vec![], vec![])), "0 results, nothing, with the mapped axes []"),
        (|_, _| Ok((vec![matrix(2, 2); 2], vec![0, 0])), "2 results, f32[2,2] f32[2,2], with the mapped axes [0, 0]"),
        (|_, _| Ok((vec![matrix(3, 2)], vec![0])), "1 results, f32[3,2], with the mapped axes [0]"),
        (
            |_, _| Ok((vec![matrix(2, 2).as_dtype(Dtype::Int32)?], vec![0])),
            "1 results, i32[2,2], with the mapped axes [0]",
        ),
    ];
    for (rule, given) in others {
        let error = mapped_sums(rule).expect_err("does not fit");
        assert!(error.starts_with(&format!("the vmap of sums gave {given}\n")), "{error}");
    }
    let panicked = mapped_sums(|_, _| panic!("the rule's own panic")).expect_err("panics");
    assert_eq!(panicked, "panicked: the rule's own panic");
    let untold = mapped_sums(|_, _| Err(Box::new(Untold))).expect_err("panics");
    assert_eq!(untold, "panicked: the error's own panic");
}
