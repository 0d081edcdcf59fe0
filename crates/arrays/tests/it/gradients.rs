//! The gradient of every handler against differences, and transforms over quantized arguments.

use std::collections::BTreeSet;

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::transforms::fallible_vjp;
use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_arrays::format::{Affine, Parts};
use tacit_arrays::{AffineArray, Nf4Array, Ste, ste};
use tacit_conformance::assert_close;
use tacit_conformance::difference;
use tacit_conformance::oracle::relative_error;
use tacit_core::transform::{checkpoint, grad, grad_wrt, jvp, value_and_grad, vmap};
use tacit_core::tree::{self, Gradient, Open};
use tacit_core::{Counters, Policy, Registry, Result, Taker, Value, explain, implicit};

use crate::operands::{FORMATS, affine, nf4, normal};

mod packed;
mod structured;
mod views;

const BLOCK: usize = 32;
const ROWS: i32 = 4;
const COLUMNS: i32 = 64;

type Plain = fn(&[Array]) -> Result<Array>;

/// Handlers of primitives that are recorded on a GPU alone, with a test beside them, and in functions without shapes, whose
/// gradients are in `shapeless.rs`.
const ELSEWHERE: [&str; 5] = [
    "stored_attention",
    "broadcast_beside",
    "broadcast_axes_beside",
    "linear_broadcast_axes",
    "int8_training_broadcast",
];

/// A call that one handler takes.
struct Case {
    handler: &'static str,
    operands: Vec<Value>,
    f: Plain,
    expected: Expected,
}

enum Expected {
    /// The differences, within this relative error.
    Differences(f64),
    /// Zero: the handler stops gradients.
    Zero,
}

fn case(handler: &'static str, operands: Vec<Value>, f: Plain) -> Case {
    Case { handler, operands, f, expected: Expected::Differences(1e-5) }
}

fn weight() -> Array {
    normal(2, &[ROWS, COLUMNS])
}

fn x(shape: &[i32]) -> Value {
    normal(1, shape).into()
}

fn straight(quantize: fn(&Array) -> Result<Value>) -> Value {
    ste(weight(), quantize).expect("quantizes")
}

/// A narrower type; `f64`, in which the differences are taken, stays.
fn narrowed(array: &Array) -> Result<Array> {
    let dtype = if array.dtype() == Dtype::Float64 { Dtype::Float64 } else { Dtype::Float16 };
    Ok(array.as_dtype(dtype)?)
}

fn rows() -> Value {
    Array::from_slice(&[3i32, 0, 3], &[3]).into()
}

/// A case for each handler.
fn cases() -> Vec<Case> {
    let nf4 = || nf4(&weight(), BLOCK);
    let stopped: Plain = |a| Ok(stop_gradient(&a[0])?.multiply(&a[1])?);
    let copied: Plain = |a| {
        let (x, w) = (a[1].clone(), &a[0]);
        let one = ops::ones_like(w.matmul(&x)?)?;
        Ok(fallible_vjp(|w: &[Array]| Ok(vec![w[0].matmul(&x)?]), std::slice::from_ref(w), &[one])?.0.swap_remove(0))
    };
    let product: Plain = |a| Ok(a[0].matmul(a[1].t())?);
    let again: Plain = |a| {
        let layer = |(x, w): (Array, Array)| ops::tanh(x.matmul(w.t())?);
        checkpoint(layer).call((&a[0], &a[1]))?.dense()
    };
    let (wide, tall) = (x(&[2, COLUMNS]), x(&[COLUMNS, 2]));
    let mut cases = vec![
        case("checkpointed", vec![wide.clone(), nf4()], again),
        case("default of tacit.Ste", vec![wide, straight(|w| Ok(Nf4Array::quantize(w, BLOCK)?.into()))], product),
        case("copy", vec![nf4(), tall], copied),
    ];
    let straight = || straight(|w| Ok(AffineArray::quantize(w, Affine { bits: 4, group: 32 })?.into()));
    for (handler, weight) in [("stop_gradient", nf4()), ("ste_stop_gradient", straight())] {
        let operands = vec![weight, ops::ones::<bool>(&[ROWS, COLUMNS]).expect("ones").into()];
        cases.push(Case { expected: Expected::Zero, ..case(handler, operands, stopped) });
    }
    cases.extend(FORMATS.iter().flat_map(packed::cases));
    cases.extend(structured::cases());
    cases.extend(views::cases());
    cases
}

/// A sum that tells the elements apart.
fn weighted(y: &Array) -> Result<Array> {
    let weights: Vec<f32> = (1..=y.size()).map(|i| (i as f32).sin()).collect();
    Ok(y.multiply(Array::from_slice(&weights, y.shape()).as_dtype(y.dtype())?)?.sum(None)?)
}

fn wide(array: &Array) -> Array {
    if array.dtype().is_float() { array.as_dtype(Dtype::Float64).expect("f64") } else { array.clone() }
}

/// The dense array in `f64` plain ops; `leaves` are those of the value in `f64`.
fn rebuilt(value: &Value, leaves: &mut std::slice::Iter<'_, Array>) -> Result<Array> {
    let Value::Implicit(array) = value else {
        return Ok(leaves.next().expect("a leaf").clone());
    };
    if let Some(dense) = views::rebuilt(value, |child| rebuilt(child, leaves)) {
        return dense;
    }
    if let Some(dense) = structured::rebuilt(&**array, leaves)? {
        return Ok(dense);
    }
    let aval = array.aval()?;
    if let Some(ste) = value.downcast::<Ste>() {
        // The inner value, with the change of the master; what the inner array holds gets no gradient.
        let change = leaves.next().expect("a leaf").subtract(wide(ste.master()))?;
        let own: Vec<Array> = fully(ste.inner()).iter().map(wide).collect();
        leaves.by_ref().take(own.len()).for_each(drop);
        return Ok(rebuilt(ste.inner(), &mut own.iter())?.add(change)?);
    }
    // A packed array is linear in its float leaves; with one of them 1 and the others 0 it is exact in `f32`.
    let stored = fully(value);
    let own: Vec<Array> = leaves.by_ref().take(stored.len()).cloned().collect();
    let size = aval.size();
    let mut dense: Option<Array> = None;
    for (at, leaf) in own.iter().enumerate().filter(|(_, leaf)| leaf.dtype().is_float()) {
        let unit = |(i, leaf): (usize, &Array)| {
            if leaf.dtype().is_float() {
                ops::broadcast_to(Array::from_f32(if i == at { 1.0 } else { 0.0 }), leaf.shape())
            } else {
                Ok(leaf.clone())
            }
        };
        let units = stored.iter().enumerate().map(unit).collect::<Result<Vec<_>, _>>()?;
        let units = wide(&replaced(value, &mut units.iter())?.dense()?).reshape(&[-1])?;
        let block = size.div_ceil(leaf.size()) as i32;
        let repeated = ops::broadcast_to(leaf.reshape(&[-1, 1])?, &[leaf.size() as i32, block])?;
        let part = units.multiply(repeated.reshape(&[-1])?.try_index(..size as i32)?)?;
        dense = Some(dense.map_or(Ok(part.clone()), |dense| dense.add(&part))?);
    }
    let dense = dense.map_or_else(|| Ok(wide(&value.dense()?)), Ok::<_, tacit_core::Error>)?;
    Ok(dense.reshape(&aval.shape)?)
}

/// The value with other leaves.
fn replaced(value: &Value, leaves: &mut std::slice::Iter<'_, Array>) -> Result<Value> {
    let Value::Implicit(array) = value else { return Ok(leaves.next().expect("a leaf").into()) };
    let children = array.children().iter().map(|(_, child)| replaced(child, leaves)).collect::<Result<Vec<_>>>()?;
    Ok(array.with_children(children)?.into())
}

fn fully(value: &Value) -> Vec<Array> {
    tree::leaves(value, Open::Fully).expect("leaves").iter().map(|leaf| leaf.dense().expect("dense")).collect()
}

/// The gradients of the leaves of the operands, from `f64` differences.
fn differences(case: &Case, leaves: &[Array], position: usize) -> Array {
    let f = |leaves: &[Array]| {
        let mut leaves = leaves.iter();
        let dense = case.operands.iter().map(|value| rebuilt(value, &mut leaves)).collect::<Result<Vec<_>>>()?;
        Ok::<_, Exception>(weighted(&(case.f)(&dense)?)?)
    };
    difference::gradient(f, leaves, position, 1e-3).expect("evaluates")
}

/// The gradient of each leaf, in order.
fn listed(gradient: &Gradient, into: &mut Vec<Option<Array>>) {
    match gradient {
        Gradient::Nothing => into.push(None),
        Gradient::Dense(array) => into.push(Some(array.clone())),
        Gradient::Node { children, .. } => children.iter().for_each(|(_, child)| listed(child, into)),
    }
}

fn check(case: &Case) {
    let _allow = Policy::Allow.scope();
    let f = case.f;
    let explained = explain(&case.operands, move |operands| f(&operands)).expect("runs");
    let taken = explained.equations.iter().any(|equation| match &equation.taker {
        Taker::Handler(site) => site.name == case.handler,
        Taker::Default(name) => format!("default of {name}") == case.handler,
        Taker::Materialized | Taker::Computed | Taker::Dense => false,
    });
    assert!(taken, "{} takes nothing of\n{explained}", case.handler);

    let mut found = Vec::new();
    let loss = move |operands: Vec<Array>| weighted(&f(&operands)?);
    for gradient in grad(loss).call(case.operands.clone()).expect("has a gradient") {
        listed(&gradient, &mut found);
    }
    let leaves: Vec<Array> = case.operands.iter().flat_map(fully).map(|leaf| wide(&leaf)).collect();
    assert_eq!(found.len(), leaves.len());
    for (position, (found, leaf)) in found.iter().zip(&leaves).enumerate() {
        let Some(found) = found else {
            assert!(!leaf.dtype().is_float(), "{}: leaf {position} has no gradient", case.handler);
            continue;
        };
        let (expected, tolerance) = match case.expected {
            Expected::Differences(tolerance) => (differences(case, &leaves, position), tolerance),
            Expected::Zero => (ops::zeros_like(leaf).expect("zeros"), 0.0),
        };
        let found = found.as_dtype(Dtype::Float32).expect("f32");
        let expected = expected.as_dtype(Dtype::Float32).expect("f32");
        let error = relative_error(&found, &expected).expect("floats");
        assert!(error <= tolerance, "{}: the gradient of leaf {position} is off by {error}", case.handler);
    }
}

#[test]
fn the_gradient_of_every_handler_is_that_of_differences() {
    let cases = cases();
    cases.iter().for_each(check);
    let covered: BTreeSet<&str> = cases.iter().map(|case| case.handler).collect();
    let missing: Vec<&str> = Registry::current()
        .handlers()
        .iter()
        .map(|handler| handler.site.name)
        .filter(|name| !covered.contains(name) && !ELSEWHERE.contains(name))
        .collect();
    assert!(missing.is_empty(), "write a case for {missing:?}");
}

/// `sum(tanh(x W^T))`
fn loss((w, x): (Array, Array)) -> Result<Array> {
    Ok(ops::tanh(x.matmul(w.t())?)?.sum(None)?)
}

#[test]
fn a_quantized_argument_gets_a_gradient_at_its_scales() {
    let _allow = Policy::Allow.scope();
    let args = |w: Value| (w, x(&[2, COLUMNS]));
    let (value, (dw, dx)) = value_and_grad(loss).call(args(nf4(&weight(), BLOCK))).expect("is handled");
    assert_eq!(value.to_string(), "f32[]");
    assert_eq!(dw.to_string(), "tacit.Nf4{codes: nothing, scales: f32[8]}");
    assert_eq!(dx.to_string(), "f32[2,64]");
    let (dw, _) = grad(loss).call(args(affine(&weight(), 32, 4))).expect("is handled");
    assert_eq!(dw.to_string(), "tacit.Affine{codes: nothing, scales: f32[4,2], biases: f32[4,2]}");
}

#[test]
fn a_step_on_the_scales_lessens_the_loss() {
    let mut args = (nf4(&weight(), BLOCK), x(&[2, COLUMNS]));
    let (before, (dw, _)) = value_and_grad(loss).call(args.clone()).expect("runs");
    let step =
        |_: &tree::Path, own: &Array, gradient: &Array| Ok(own.subtract(gradient.multiply(Array::from_f32(1e-3))?)?);
    tree::update(&mut args.0, &dw, step).expect("fits");
    let (after, _) = value_and_grad(loss).call(args).expect("runs");
    let number = |value: &Value| value.dense().expect("dense").item_exact::<f32>();
    assert!(number(&after) < number(&before));
}

fn built(w: &Value) -> Array {
    let _allow = Policy::Allow.scope();
    w.dense().expect("dense")
}

#[test]
fn a_jvp_of_a_quantized_product() {
    let _deny = Policy::Deny.scope();
    let (dx, dabsmax) = (normal(5, &[2, COLUMNS]), normal(6, &[8]));
    for w in [nf4(&weight(), BLOCK), affine(&weight(), 32, 4)] {
        let product = |(w, x): (Array, Array)| x.matmul(w.t());
        let tangents = (Gradient::Nothing, dx.clone());
        let (_, change) = jvp((w.clone(), x(&[2, COLUMNS])), tangents, product).expect("runs");
        let expected = dx.matmul(built(&w).t()).expect("plain");
        assert_close!(change.dense().expect("dense"), expected, 1e-5);
    }
    let w = nf4(&weight(), BLOCK);
    let children = vec![("codes".into(), Gradient::Nothing), ("scales".into(), dabsmax.clone().into())];
    let dw = Gradient::Node { name: "tacit.Nf4", children };
    let product = |(w, x): (Array, Array)| x.matmul(w.t());
    let (_, change) = jvp((w.clone(), x(&[2, COLUMNS])), (dw, Gradient::Nothing), product).expect("runs");
    // The product is linear in the scales.
    let packed = w.downcast::<Nf4Array>().expect("nf4").codes().clone();
    let scaled = Nf4Array::from_parts(Parts::new(packed, dabsmax), BLOCK, w.aval().expect("aval")).expect("fits");
    let expected = normal(1, &[2, COLUMNS]).matmul(built(&scaled.into()).t()).expect("plain");
    assert_close!(change.dense().expect("dense"), expected, 1e-5);
}

#[test]
fn a_mapped_quantized_product_is_that_of_a_loop() {
    let _deny = Policy::Deny.scope();
    let batch = normal(1, &[5, 3, COLUMNS]);
    let small = normal(3, &[5, 3, ROWS]);
    for w in [nf4(&weight(), BLOCK), affine(&weight(), 32, 4)] {
        for (x, product) in [
            (&batch, (|(w, x): (Array, Array)| x.matmul(w.t())) as fn((Array, Array)) -> Result<Array, Exception>),
            (&small, |(w, x): (Array, Array)| x.matmul(w)),
        ] {
            for axis in 0..2 {
                let mut mapped = vmap([None, Some(axis)], 0, product);
                let (found, counters) = Counters::during(|| mapped.call((w.clone(), x)));
                let found = found.expect("is handled").dense().expect("dense");
                assert_eq!(counters.materialized, 0);
                let examples = ops::split_equal(x, x.dim(axis), axis).expect("splits");
                let expected: Vec<Array> = examples
                    .iter()
                    .map(|x| {
                        let x = x.squeeze_axes(&[axis]).expect("one example");
                        implicit((&w, x), product).expect("is handled").dense().expect("dense")
                    })
                    .collect();
                let expected = ops::stack(&expected, 0).expect("stacks");
                assert_close!(found, expected, 1e-6);
            }
        }
    }
}

#[test]
fn a_gradient_for_each_example() {
    let _allow = Policy::Allow.scope();
    let batch = normal(1, &[5, 3, COLUMNS]);
    for w in [nf4(&weight(), BLOCK), affine(&weight(), 32, 4)] {
        let gradient = |(w, x): (Array, Array)| -> Result<Array> {
            let (_, dx) = grad_wrt([1], loss).call((w, x))?;
            Ok(dx.array()?.clone())
        };
        let found = vmap([None, Some(0)], 0, gradient).call((w.clone(), &batch)).expect("runs");
        // The loss of the batch is the sum of those of the examples.
        let (_, expected) = grad(loss).call((w, batch.clone())).expect("runs");
        let error = relative_error(&found.dense().expect("dense"), expected.array().expect("dense"));
        assert!(error.expect("floats") < 1e-5);
    }
}

#[test]
fn a_checkpointed_quantized_layer_has_the_same_gradient() {
    let _deny = Policy::Deny.scope();
    for w in [nf4(&weight(), BLOCK), affine(&weight(), 32, 4)] {
        let args = (w, x(&[2, COLUMNS]));
        let (_, dx) = grad_wrt([1], loss).call(args.clone()).expect("runs");
        let outer = args.0.clone();
        let again = move |x: Array| checkpoint(loss).call((outer.clone(), x))?.dense();
        let found = grad(again).call(args.1).expect("runs");
        let error = relative_error(found.array().expect("dense"), dx.array().expect("dense"));
        assert!(error.expect("floats") < 1e-6);
    }
}

/// Fails where the gradient of a mapped `f(w, x)` is not that of the whole, for the master of a straight-through `w`.
fn check_master(x: &Array, f: fn((Array, Array)) -> Result<Array, Exception>, tolerance: f64) {
    let quantized = |master: &Array| ste(master, |w: &Array| AffineArray::quantize(w, Affine { bits: 4, group: 32 }));
    let mapped = |master: Array| -> Result<Array> {
        weighted(&vmap([None, Some(0)], 0, f).call((quantized(&master)?, x))?.dense()?)
    };
    let whole = |master: Array| -> Result<Array> { weighted(&implicit((quantized(&master)?, x), f)?.dense()?) };
    let found = grad(mapped).call(weight()).expect("runs");
    let expected = grad(whole).call(weight()).expect("runs");
    let error = relative_error(found.array().expect("dense"), expected.array().expect("dense"));
    assert!(error.expect("floats") < tolerance);
}

#[test]
fn a_mapped_product_with_a_straight_through_weight_reaches_the_master() {
    let _deny = Policy::Deny.scope();
    check_master(&normal(1, &[5, 3, COLUMNS]), |(w, x)| x.matmul(w.t()), 1e-5);
}

#[test]
fn mapped_indices_into_a_straight_through_weight_reach_the_master() {
    let _allow = Policy::Allow.scope();
    let rows = Array::from_slice(&[0u32, 2, 2, 1], &[2, 2]);
    check_master(&rows, |(w, rows)| w.take_axis(&rows, 0), 1e-6);
}

#[test]
fn a_checkpointed_quantized_product_is_mapped_and_has_tangents() {
    let _deny = Policy::Deny.scope();
    let (w, batch) = (affine(&weight(), 32, 4), normal(1, &[5, 3, COLUMNS]));
    let product = |(w, x): (Array, Array)| x.matmul(w.t());
    let outer = w.clone();
    let layer = move |x: Array| checkpoint(product).call((outer.clone(), x))?.dense();
    let expected = implicit((w, &batch), product).expect("runs").dense().expect("dense");
    let mapped = vmap(0, 0, layer.clone()).call(&batch).expect("is mapped").dense().expect("dense");
    assert_close!(mapped, expected, 1e-6);
    // The product is linear in `x`.
    let (_, change) = jvp(&batch, Gradient::Dense(batch.clone()), layer).expect("has a tangent");
    assert_close!(change.dense().expect("dense"), expected, 1e-6);
}
