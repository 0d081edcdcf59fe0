//! Transforms of functions that capture the subject instead of taking it as an argument.

use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops, transforms};
use tacit_core::transform::{Wrt, checkpoint, grad_wrt, vmap};
use tacit_core::{Policy, Result, Value, compile};

use crate::call::{dense, helpful, product, text};
use crate::case::Case;
use crate::oracle::Structure;
use crate::report::Report;
use crate::subject::Subject;

/// Holds the subject in a function of one dense array and transforms that: `grad`, `vmap`, `compile`, `checkpoint`.
///
/// Then differentiates with respect to the subject's own children a function that holds it inside a second transform. Each
/// result must be right, or an error that says what to do.
#[must_use]
pub fn captures(subject: &Subject) -> Report {
    let mut report = Report::new(format!("captures of {}", subject.name()));
    let Some(shapes) = report.shapes(subject) else { return report };
    let case = Case::plain(&shapes);
    let Some(scene) = Scene::new(subject, &case) else { return report };
    for (name, transform, same) in TRANSFORMS {
        report.compare(format_args!("{name} of a function that holds it"), || scene.transformed(transform));
        // Where the function stays the same, the reference needs no second transform, which may be wrong for both.
        let reference = if same { TRANSFORMS[0].1 } else { transform };
        report.compare(format_args!("a gradient for it around {name}"), || scene.differentiated(transform, reference));
    }
    report
}

type Function = Rc<dyn Fn(&Array) -> Result<Array>>;

type Transform = fn(Function, &Array) -> Result<Array>;

/// With its name, and whether the transformed function is the same function.
const TRANSFORMS: [(&str, Transform, bool); 5] = [
    ("no transform", |f, x| f(x), true),
    (
        "grad",
        |f, x| {
            let mut gradient =
                grad_wrt(Wrt::All, move |x: Array| Ok::<_, tacit_core::Error>(f(&x)?.square()?.sum(None)?));
            Ok(gradient.call(x)?.array()?.clone())
        },
        false,
    ),
    (
        "vmap",
        |f, x| {
            let two = ops::stack(&[x, &x.square()?], 0)?;
            vmap(0, 0, move |x: Array| f(&x)).call(two)?.dense()
        },
        false,
    ),
    ("compile", |f, x| compile(move |x: Array| f(&x)).call(&x)?.dense(), true),
    ("checkpoint", |f, x| checkpoint(move |x: Array| f(&x)).call(x)?.dense(), true),
];

struct Scene<'a> {
    subject: &'a Subject,
    w: Value,
    x: Array,
}

impl<'a> Scene<'a> {
    fn new(subject: &'a Subject, case: &Case) -> Option<Self> {
        let w = subject.normal(&case.aval, case.seed)?;
        Some(Self { subject, w, x: case.array(&[3, *case.aval.shape.last()?], 1) })
    }

    fn with(w: Value) -> Function {
        Rc::new(move |x| product(x, &w, true))
    }

    fn transformed(&self, transform: Transform) -> Result<(), String> {
        let _allow = Policy::Allow.scope();
        let expected = transform(Self::with(dense(&self.w)?.into()), &self.x).map_err(text)?;
        self.right_or_helpful(transform(Self::with(self.w.clone()), &self.x), &expected)
    }

    /// The gradients for the float children of the subject, which the inner function holds.
    fn differentiated(&self, transform: Transform, reference: Transform) -> Result<(), String> {
        let _allow = Policy::Allow.scope();
        let structure = Structure::from_operands(std::slice::from_ref(&self.w));
        let argnums = structure.float_leaves();
        if argnums.is_empty() {
            return Ok(());
        }
        let gradients = |built: &dyn Fn(Value) -> Result<Value>, transform: Transform| {
            let loss = |leaves: &[Array]| -> Result<Vec<Array>, Exception> {
                let w = built(structure.values(leaves)?.swap_remove(0))?;
                Ok(vec![transform(Self::with(w), &self.x)?.square()?.sum(None)?])
            };
            let both = transforms::value_and_grad_with_argnums(loss, argnums.as_slice())(&structure.leaves);
            both.and_then(|(_, gradients)| transforms::eval(&gradients).map(|()| gradients))
        };
        let expected = gradients(&|w| Ok(w.dense()?.into()), reference).map_err(text)?;
        match gradients(&|w| Ok(w), transform) {
            Ok(found) => found
                .iter()
                .zip(expected)
                .try_for_each(|(found, expected)| self.subject.near_transformed(found, &expected)),
            Err(error) => helpful(&text(error)),
        }
    }

    fn right_or_helpful(&self, found: Result<Array>, expected: &Array) -> Result<(), String> {
        match found.and_then(|found| Ok(found.eval().map(|()| found)?)) {
            Ok(found) => self.subject.near_transformed(&found, expected),
            Err(error) => helpful(&text(error)),
        }
    }
}
