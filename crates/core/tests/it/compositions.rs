//! Every transform around every other one: the table in the docs of `tacit::transform`, cell by cell.

use std::cell::RefCell;
use std::rc::Rc;

use expect_test::expect;
use mlx_rs::{Array, ops, transforms};
use tacit::primitives::{Broadcast, Multiply};
use tacit::transform::{checkpoint, grad, grad_wrt, map_chunks, saved_as, vmap};
use tacit::{Counters, Error, Registry, Result, Value, compile, handler, implicit};

use crate::types::{Left, matrix, message, numbers, with_handlers};

/// A function of a scalar and an array that keeps the array's shape.
type Function = Rc<dyn Fn(&Array, &Array) -> Result<Array>>;

struct Transform {
    name: &'static str,
    of: fn(Function) -> Function,
}

/// Another transform becomes a row and a column of the table by its entry here.
const TRANSFORMS: [Transform; 7] = [
    Transform { name: "implicit", of: of_implicit },
    Transform { name: "grad", of: of_grad },
    Transform { name: "vmap", of: of_vmap },
    Transform { name: "compile", of: of_compile },
    Transform { name: "checkpoint", of: of_checkpoint },
    Transform { name: "map_chunks", of: of_map_chunks },
    Transform { name: "saved_as", of: of_saved_as },
];

#[handler]
fn multiply_left(_: &Multiply, x: &Left, y: &Array) -> Result<Value> {
    Ok(x.array.multiply(y)?.into())
}

#[handler]
fn broadcast_left(op: &Broadcast, x: &Left) -> Result<Value> {
    Ok(Left::of(&ops::broadcast_to(&x.array, &op.shape)?))
}

fn of_implicit(f: Function) -> Function {
    Rc::new(move |w, x| {
        let f = Rc::clone(&f);
        implicit((Left::of(w), x), move |(w, x)| f(&w, &x))?.dense()
    })
}

fn of_grad(f: Function) -> Function {
    Rc::new(move |w, x| {
        let f = Rc::clone(&f);
        let mut gradient = grad_wrt([1], move |(w, x): (Array, Array)| Ok::<_, Error>(f(&w, &x)?.sum(None)?));
        Ok(gradient.call((w, x))?.1.array()?.clone())
    })
}

fn of_vmap(f: Function) -> Function {
    Rc::new(move |w, x| {
        let f = Rc::clone(&f);
        vmap([None, Some(0)], 0, move |(w, x): (Array, Array)| f(&w, &x)).call((w, x))?.dense()
    })
}

/// Called twice, so that the second call is a replay where the first was a trace.
fn of_compile(f: Function) -> Function {
    let compiled = RefCell::new(compile(move |(w, x): (Array, Array)| f(&w, &x)));
    Rc::new(move |w, x| {
        compiled.borrow_mut().call((w, x))?;
        compiled.borrow_mut().call((w, x))?.dense()
    })
}

fn of_checkpoint(f: Function) -> Function {
    Rc::new(move |w, x| {
        let f = Rc::clone(&f);
        checkpoint(move |(w, x): (Array, Array)| f(&w, &x)).call((w, x))?.dense()
    })
}

fn of_map_chunks(f: Function) -> Function {
    Rc::new(move |w, x| {
        let f = Rc::clone(&f);
        map_chunks(x, w, 1, move |x: Array, w: Array| f(&w, &x))?.dense()
    })
}

/// In a form that loses nothing.
fn of_saved_as(f: Function) -> Function {
    Rc::new(move |w, x| {
        let f = Rc::clone(&f);
        saved_as(|x: &Array| Ok(x.into()), move |(w, x): (Array, Array)| f(&w, &x)).call((w, x))?.dense()
    })
}

/// `w x x`, or a derivative of it: no other transform changes the values.
fn expected(names: &[&str]) -> Vec<f32> {
    let values = (1..=6).map(|x| x as f32);
    match names.iter().filter(|name| **name == "grad").count() {
        0 => values.map(|x| 3.0 * x * x).collect(),
        1 => values.map(|x| 6.0 * x).collect(),
        2 => values.map(|_| 6.0).collect(),
        _ => values.map(|_| 0.0).collect(),
    }
}

/// What a composition gives in words, outermost first.
fn cell(transforms: &[&Transform]) -> String {
    let _scopes = with_handlers(Registry::new().with::<multiply_left>().with::<broadcast_left>());
    let mut f: Function = Rc::new(|w, x| Ok(w.multiply(x)?.multiply(x)?));
    for transform in transforms.iter().rev() {
        f = (transform.of)(f);
    }
    let names: Vec<&str> = transforms.iter().map(|transform| transform.name).collect();
    // An axis for each of three nested maps.
    let x = matrix(3, 2).reshape(&[3, 2, 1]).expect("six elements");
    let (outcome, counters) = Counters::during(|| f(&Array::from_f32(3.0), &x));
    let outcome = match outcome {
        Ok(found) if numbers(&found) == expected(&names) => "works".to_owned(),
        Ok(found) => format!("gives {:?} and not {:?}", numbers(&found), expected(&names)),
        Err(error) => message(&error),
    };
    let intercepted = if counters.handled > 0 { ", intercepted" } else { "" };
    format!("{}: {outcome}{intercepted}\n", names.join(" around "))
}

#[test]
fn each_around_each() {
    let cells: String =
        TRANSFORMS.iter().flat_map(|outer| TRANSFORMS.iter().map(move |inner| cell(&[outer, inner]))).collect();
    expect![[r#"
        implicit around implicit: works, intercepted
        implicit around grad: works, intercepted
        implicit around vmap: works, intercepted
        implicit around compile: works, intercepted
        implicit around checkpoint: works, intercepted
        implicit around map_chunks: works, intercepted
        implicit around saved_as: works, intercepted
        grad around implicit: works, intercepted
        grad around grad: works
        grad around vmap: works
        grad around compile: works
        grad around checkpoint: works
        grad around map_chunks: works
        grad around saved_as: works
        vmap around implicit: works, intercepted
        vmap around grad: works
        vmap around vmap: works
        vmap around compile: works
        vmap around checkpoint: works
        vmap around map_chunks: works
        vmap around saved_as: works
        compile around implicit: works, intercepted
        compile around grad: works
        compile around vmap: works
        compile around compile: works
        compile around checkpoint: works
        compile around map_chunks: works
        compile around saved_as: works
        checkpoint around implicit: works, intercepted
        checkpoint around grad: works
        checkpoint around vmap: works
        checkpoint around compile: works
        checkpoint around checkpoint: works
        checkpoint around map_chunks: works
        checkpoint around saved_as: works
        map_chunks around implicit: works, intercepted
        map_chunks around grad: works
        map_chunks around vmap: works
        map_chunks around compile: works
        map_chunks around checkpoint: works
        map_chunks around map_chunks: works
        map_chunks around saved_as: works
        saved_as around implicit: works, intercepted
        saved_as around grad: works
        saved_as around vmap: works
        saved_as around compile: works
        saved_as around checkpoint: works
        saved_as around map_chunks: works
        saved_as around saved_as: works
    "#]]
    .assert_eq(&cells);
}

#[test]
fn three_deep() {
    let mut others = String::new();
    for outer in &TRANSFORMS {
        for middle in &TRANSFORMS {
            for inner in &TRANSFORMS {
                let cell = cell(&[outer, middle, inner]);
                if !cell.contains(": works") {
                    others += &cell;
                }
            }
        }
    }
    expect![[r#"
        grad around grad around saved_as: a derivative is taken of a gradient that read saved activations
        help: take derivatives of gradients without `saved`, whose activations are encoded
    "#]]
    .assert_eq(&others);
}

/// A function of an array that captures two others, `x w v`, and which transform it goes through.
type Capturing = fn(Array, Array, &Array) -> Result<Array>;

const CAPTURING: [(&str, Capturing); 5] = [
    ("compile", |w, v, x| compile(move |x: Array| x.multiply(&w)?.multiply(&v)).call(x)?.dense()),
    ("checkpoint", |w, v, x| checkpoint(move |x: Array| x.multiply(&w)?.multiply(&v)).call(x)?.dense()),
    ("map_chunks", |w, v, x| map_chunks(x, (), 8, move |x: Array, ()| x.multiply(&w)?.multiply(&v))?.dense()),
    ("saved_as", |w, v, x| {
        saved_as(|x: &Array| Ok(x.into()), move |x: Array| x.multiply(&w)?.multiply(&v)).call(x)?.dense()
    }),
    ("eval", |w, v, x| {
        let product = x.multiply(&w)?.multiply(&v)?;
        transforms::eval([&product])?;
        Ok(product)
    }),
];

/// A gradient inside another one takes from MLX what marks the arrays of the outer one: what captures them afterwards would hold
/// constants. So does every other transform here, before every one that captures.
#[test]
fn what_a_transform_leaves_is_captured_with_its_derivative() {
    let _scopes = with_handlers(Registry::new().with::<multiply_left>().with::<broadcast_left>());
    let x = matrix(3, 2);
    let mut wrong = Vec::new();
    for before in &TRANSFORMS {
        let slope = |x: f32| if before.name == "grad" { 4.0 * x * x } else { 2.0 * x * x * x };
        let expected: f32 = numbers(&x).into_iter().map(|x| 3.0 * slope(x)).sum();
        for (name, capturing) in CAPTURING {
            let first = (before.of)(Rc::new(|w, x| Ok(w.multiply(x)?.multiply(x)?)));
            let x = x.clone();
            let slope = move |w: Array| -> Result<Array> {
                let mut gradient = grad(|w: Array| {
                    let v = first(&w, &x)?;
                    Ok::<_, Error>(capturing(w, v, &x)?.sum(None)?)
                });
                Ok(gradient.call(w)?.array()?.clone())
            };
            let w = Array::from_f32(3.0);
            let mut outcomes = vec![("grad", slope(w.clone()))];
            // A trace has nothing to evaluate.
            if name != "eval" {
                let mapped = vmap(0, 0, slope.clone()).call(w.reshape(&[1]).expect("one element"));
                outcomes.push(("grad in vmap", mapped.and_then(|found| found.dense())));
                outcomes.push(("grad in compile", compile(slope).call(w).and_then(|found| found.dense())));
            }
            for (around, outcome) in outcomes {
                let found = outcome.map(|found| numbers(&found)).map_err(|error| message(&error));
                if found != Ok(vec![expected]) {
                    wrong.push(format!("{around}, {} and then {name}: {found:?} and not {expected}", before.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
