//! Gradients of scales and offsets beside the subject, and of a master behind a straight-through function.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_core::transform::{intercept, vmap};
use tacit_core::{Aval, Policy, Result, Value};

use crate::call::{dense, helpful, text};
use crate::case::Case;
use crate::exact::Exact;
use crate::report::Report;
use crate::subject::{Subject, normal};

/// Compares the gradients of scales and offsets that are learned beside the subject, such as `s` in `x (w * s)`, with those
/// beside the dense array, in each dtype and with the bound of [`extents`](crate::extents()).
///
/// With a [straight-through](Subject::straight_through) function the subject is tried behind it as well: its master must have the
/// gradient of the dense array, and in `f32` its directional derivatives and Hessian-vector products. Two masters that are mapped
/// must give what each gives alone.
#[must_use]
pub fn gradients(subject: &Subject) -> Report {
    let mut report = Report::new(format!("gradients of {}", subject.name()));
    let Some(shapes) = report.shapes(subject) else { return report };
    for &dtype in &shapes.dtypes {
        let aval = Aval::new(&shapes.plain(), dtype);
        let Some(scene) = Scene::new(subject, &aval) else { continue };
        for form in FORMS.iter().filter(|form| aval.shape.len() >= form.axes) {
            for tail in TAILS.iter().filter(|tail| aval.shape.len() >= tail.axes) {
                let function = Function { form, tail };
                report.compare(format_args!("{} {} of {aval}", tail.name, form.name), || scene.beside(&function));
                if subject.through(&scene.master).is_some() {
                    report.compare(format_args!("{} {} through {aval}", tail.name, form.name), || {
                        scene.through(&function)
                    });
                }
            }
        }
        if dtype == Dtype::Float32 && subject.through(&scene.master).is_some() {
            for tail in TAILS.iter().filter(|tail| aval.shape.len() >= tail.axes) {
                let function = Function { form: &FORMS[0], tail };
                let checks: [(&str, Check); 3] =
                    [("derivative", directional), ("Hessian-vector product", curved), ("mapped master", mapped)];
                for (name, check) in checks {
                    report.compare(format_args!("{name} of {} through {aval}", tail.name), || check(&scene, &function));
                }
            }
        }
    }
    report
}

type Binary = fn(&Array, &Array) -> Result<Array, Exception>;
type Check = fn(&Scene, &Function) -> Result<(), String>;

/// The weight with a learned operand.
struct Form {
    name: &'static str,
    /// The least number of axes of the weight.
    axes: usize,
    second: fn(&[i32]) -> Vec<i32>,
    run: Binary,
}

const FORMS: [Form; 7] = [
    Form { name: "(w * s)", axes: 0, second: |_| vec![], run: |w, s| w.multiply(s) },
    Form { name: "(s * w)", axes: 0, second: |_| vec![], run: |w, s| s.multiply(w) },
    Form { name: "(w * row)", axes: 1, second: row, run: |w, s| w.multiply(s) },
    Form { name: "(w * column)", axes: 2, second: column, run: |w, s| w.multiply(s) },
    Form { name: "(w / s)", axes: 0, second: |_| vec![], run: |w, s| w.divide(s) },
    Form { name: "(w / row)", axes: 1, second: row, run: |w, s| w.divide(s) },
    Form { name: "(w + row)", axes: 1, second: row, run: |w, s| w.add(s) },
];

fn row(shape: &[i32]) -> Vec<i32> {
    shape[shape.len() - 1..].to_vec()
}

fn column(shape: &[i32]) -> Vec<i32> {
    vec![shape[shape.len() - 2], 1]
}

/// The result that depends on the weight: the weight itself, or its product with rows.
struct Tail {
    name: &'static str,
    /// The least number of axes of the weight.
    axes: usize,
    /// Which axis of the weight, from the last, the rows are as long as.
    along: usize,
    run: Binary,
}

const TAILS: [Tail; 3] = [
    Tail { name: "1", axes: 0, along: 1, run: |_, w| Ok(w.clone()) },
    Tail { name: "x W^T of", axes: 2, along: 1, run: |x, w| x.matmul(w.swap_axes(-1, -2)?) },
    Tail { name: "x W of", axes: 2, along: 2, run: |x, w| x.matmul(w) },
];

struct Function {
    form: &'static Form,
    tail: &'static Tail,
}

impl Function {
    /// `[w, s, x]` to the result.
    fn run(&self, arrays: &[Array]) -> Result<Array, Exception> {
        (self.tail.run)(&arrays[2], &(self.form.run)(&arrays[0], &arrays[1])?)
    }
}

/// A subject, its dense master, and the weight that stands for it.
struct Scene<'a> {
    subject: &'a Subject,
    aval: Aval,
    master: Array,
    w: Value,
}

impl<'a> Scene<'a> {
    fn new(subject: &'a Subject, aval: &Aval) -> Option<Self> {
        let master = normal(1, &aval.shape, aval.dtype);
        Some(Self { subject, aval: aval.clone(), w: subject.stand_in(&master)?, master })
    }

    fn direction(&self) -> Array {
        normal(5, &self.aval.shape, self.aval.dtype)
    }

    /// A learned operand, away from zero, and the rows that the weight is multiplied with.
    fn operands(&self, function: &Function) -> Result<[Array; 2], String> {
        let case = Case::rows(&self.aval);
        let shape = &self.aval.shape;
        let rows = [3, shape.get(shape.len().wrapping_sub(function.tail.along)).copied().unwrap_or(1)];
        let second = case.array(&(function.form.second)(&self.aval.shape), 2);
        let second = second.abs().and_then(|second| second.add(Array::from_f32(0.5).as_dtype(self.aval.dtype)?));
        Ok([second.map_err(text)?, case.array(&rows, 3)])
    }

    /// The gradients for the operands beside the subject.
    fn beside(&self, function: &Function) -> Result<(), String> {
        let w = self.w.clone();
        self.compare(function, &[1, 2], &move |arrays: &[Array]| {
            intercepted(function, &[w.clone(), (&arrays[1]).into(), (&arrays[2]).into()])
        })
    }

    /// The gradients for the master and for the operands beside it.
    fn through(&self, function: &Function) -> Result<(), String> {
        self.compare(function, &[0, 1, 2], &|arrays: &[Array]| self.passed(function, arrays))
    }

    /// The function of a master, a learned operand and rows.
    fn passed(&self, function: &Function, arrays: &[Array]) -> Result<Array> {
        let Some(w) = self.subject.through(&arrays[0]) else { return Ok(function.run(arrays)?) };
        intercepted(function, &[w?, (&arrays[1]).into(), (&arrays[2]).into()])
    }

    /// The dense array, a learned operand and rows.
    fn arguments(&self, function: &Function) -> Result<Vec<Array>, String> {
        let [second, x] = self.operands(function)?;
        Ok(vec![dense(&self.w)?, second, x])
    }

    fn compare(
        &self,
        function: &Function,
        argnums: &[i32],
        found: &dyn Fn(&[Array]) -> Result<Array>,
    ) -> Result<(), String> {
        let _allow = Policy::Allow.scope();
        let arguments = self.arguments(function)?;
        let plain = |arrays: &[Array]| gradient(&|arrays| Ok(function.run(arrays)?), argnums, arrays);
        let on_dense = plain(&arguments).map_err(text)?;
        let exact = Exact::compute(plain, &arguments)?.granting(&on_dense)?;
        let mut with_master = arguments;
        with_master[0] = self.master.clone();
        exact.near(&gradient(found, argnums, &with_master).map_err(text)?)
    }
}

fn intercepted(function: &Function, values: &[Value]) -> Result<Array> {
    let mut results = intercept(values, |arrays| Ok(vec![function.run(&arrays)?]))?;
    results.swap_remove(0).dense()
}

/// The gradients of a sum of the results with positive weights.
fn gradient(f: &dyn Fn(&[Array]) -> Result<Array>, argnums: &[i32], arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let loss = |arrays: &[Array]| {
        let result = f(arrays)?;
        let wide = if result.dtype() == Dtype::Float64 { Dtype::Float64 } else { Dtype::Float32 };
        let weights: Vec<f32> = (0..result.size()).map(|i| 0.5 + (i % 3) as f32 / 2.0).collect();
        let weights = Array::from_slice(&weights, result.shape()).as_dtype(wide)?;
        Ok(vec![result.as_dtype(wide)?.multiply(weights)?.sum(None)?])
    };
    transforms::value_and_grad_with_argnums(loss, argnums)(arrays).map(|(_, gradients)| gradients)
}

/// The derivative in a direction of the master is that in the same direction of the dense array.
fn directional(scene: &Scene, function: &Function) -> Result<(), String> {
    along(
        scene,
        |f, arrays| {
            let f = |master: &[Array]| Ok(vec![f(&with_first(&master[0], arrays))?]);
            transforms::fallible_jvp(f, &arrays[..1], &[scene.direction()])
                .map(|(_, mut changes)| changes.swap_remove(0))
        },
        function,
    )
}

/// So is the derivative of the gradient of a sum of squares.
fn curved(scene: &Scene, function: &Function) -> Result<(), String> {
    along(
        scene,
        |f, arrays| {
            let squares = |arrays: &[Array]| Ok(f(arrays)?.square()?);
            let slope = |master: &[Array]| gradient(&squares, &[0], &with_first(&master[0], arrays));
            transforms::fallible_jvp(slope, &arrays[..1], &[scene.direction()])
                .map(|(_, mut changes)| changes.swap_remove(0))
        },
        function,
    )
}

/// Compares what a transform makes of the function of a master with what it makes of that of the dense array.
fn along(
    scene: &Scene,
    transformed: impl Fn(&dyn Fn(&[Array]) -> Result<Array>, &[Array]) -> Result<Array, Exception>,
    function: &Function,
) -> Result<(), String> {
    let _allow = Policy::Allow.scope();
    let mut arguments = scene.arguments(function)?;
    let plain = |arrays: &[Array]| Ok(function.run(arrays)?);
    let expected = transformed(&plain, &arguments).map_err(text)?;
    arguments[0] = scene.master.clone();
    let passed = |arrays: &[Array]| scene.passed(function, arrays);
    let found = transformed(&passed, &arguments).map_err(text)?;
    scene.subject.near_transformed(&found, &expected)
}

/// Two masters at once are each of them alone, or the error says what to do.
fn mapped(scene: &Scene, function: &Function) -> Result<(), String> {
    let _allow = Policy::Allow.scope();
    let arguments = scene.arguments(function)?;
    let masters = [scene.master.clone(), normal(2, &scene.aval.shape, scene.aval.dtype)];
    let one = |master: &Array| scene.passed(function, &with_first(master, &arguments));
    let alone = masters.iter().map(one).collect::<Result<Vec<_>>>().map_err(text)?;
    let stacked = |arrays: &[Array]| ops::stack(arrays, 0).map_err(text);
    let together = vmap(0, 0, |master: Array| one(&master)).call(stacked(&masters)?);
    match together.and_then(|found| found.dense()) {
        Ok(found) => scene.subject.near_transformed(&found, &stacked(&alone)?),
        Err(error) => helpful(&text(error)),
    }
}

fn with_first(first: &Array, arrays: &[Array]) -> Vec<Array> {
    [std::slice::from_ref(first), &arrays[1..]].concat()
}
