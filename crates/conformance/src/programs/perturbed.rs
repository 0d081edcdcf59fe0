//! The tolerance of a result, by a pass over its graph: each op that passes compute in another way is given an error.
//!
//! A graph of random ops has no error bound that is worth writing down. So its results are computed again with the
//! error that each single op may have: a few units in the last place of an elementary function, a unit for each term of
//! a sum. How far the results move by this is their tolerance.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::pass::{Graph, Nodes, Slot};
use tacit_core::primitives::{Errors, TypedPrimitive, View, describe};
use tacit_core::{Result, array_id};

use super::draw::Rng;
use crate::elements::unit;

/// How near a result is to what another pass makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// The same bits.
    Exact,
    /// The error that its ops are granted comes through.
    Near,
    /// It may be anything: a rounding or a comparison decides over it.
    Any,
}

tacit_core::register_pass!("perturbed", 1000, run);

thread_local! {
    /// The seed of the errors; without one the pass does nothing.
    static ARMED: Cell<Option<u64>> = const { Cell::new(None) };
    static CLASSES: RefCell<Vec<Class>> = const { RefCell::new(Vec::new()) };
}

/// The seeds with which all errors have one sign, as where equal numbers are computed alike.
const UPWARD: u64 = 3;
const DOWNWARD: u64 = 4;

/// The first of the seeds with which an error is a part of what is granted, and of four units of the result at most. Some of these
/// let numbers cancel that do so in another order: equal ones deviate from their mean by its last bits or by 0, where the tangent of
/// their deviation is NaN.
pub(super) const FEW_UNITS: u64 = 17;

/// Runs `f`, whose compiled functions err where the pass `perturbed` is chosen, and gives the classes of the results of the
/// graph that was rewritten last; nothing where there was none.
pub(crate) fn armed<R>(seed: u64, f: impl FnOnce() -> R) -> (R, Vec<Class>) {
    CLASSES.take();
    ARMED.set(Some(seed));
    let _armed = Armed;
    let result = f();
    (result, CLASSES.take())
}

/// The pass errs while this lives: also a function that panics leaves it as it was.
struct Armed;

impl Drop for Armed {
    fn drop(&mut self) {
        ARMED.set(None);
    }
}

fn run(graph: &mut Graph) -> Result<usize> {
    let Some(seed) = ARMED.get() else { return Ok(0) };
    let mut rng = Rng::new(seed);
    let mut nodes = graph.nodes()?;
    let mut classes = vec![Class::Exact; nodes.values()];
    let mut slots = HashMap::new();
    let mut erring = Vec::new();
    for node in 0..nodes.len() {
        let worst = nodes.operands(node).flatten().map(|slot| classes[slot.index()]).max().unwrap_or(Class::Exact);
        for slot in nodes.results(node) {
            let result = nodes.current(slot)?;
            let class = own_class(nodes.name(node), worst, result.dtype());
            classes[slot.index()] = worst.max(class);
            slots.insert(array_id(&result), slot);
            if class == Class::Near {
                erring.push((node, slot));
            }
        }
    }
    let of_output =
        |array: &Array| slots.get(&array_id(array)).map_or(Class::Exact, |slot: &Slot| classes[slot.index()]);
    CLASSES.set(graph.outputs().iter().map(of_output).collect());
    for &(node, slot) in &erring {
        if let Some(array) = with_error(&nodes, node, &nodes.current(slot)?, &mut rng)? {
            nodes.replace(slot, array);
        }
    }
    graph.rewire(nodes)?;
    Ok(erring.len())
}

/// The class of a result, as far as its own primitive makes it; `operands` is the worst of what it takes.
fn own_class(name: &str, operands: Class, result: Dtype) -> Class {
    let row = describe(name);
    // The sign and the payload of a NaN are nobody's.
    if row.is_some_and(|row| row.name == View::NAME) {
        return Class::Any;
    }
    let errors = row.map_or(Errors::Carried, |row| row.errors);
    // Floats that are compared, counted or rounded to integers are near no number.
    if operands > Class::Exact && (errors == Errors::Discontinuous || !result.is_inexact()) {
        return Class::Any;
    }
    if errors == Errors::Rounded && result.is_inexact() { Class::Near } else { Class::Exact }
}

/// Sums of `n` terms in two orders are `n` units of the sum of their magnitudes apart, at most; of this an eighth is put in,
/// because eight times what comes of it is granted.
const SHARE: f32 = 0.125;

/// A result with the error that is granted to its op.
fn with_error(nodes: &Nodes, node: usize, result: &Array, rng: &mut Rng) -> Result<Option<Array>> {
    let dtype = result.dtype();
    if !dtype.is_float() || result.size() == 0 {
        return Ok(None);
    }
    let size = result.size();
    let seed = ARMED.get();
    let sign = |rng: &mut Rng| -> f32 { if rng.below(2) == 0 { 1.0 } else { -1.0 } };
    let parts: Vec<f32> = match seed {
        Some(UPWARD) => vec![1.0; size],
        Some(DOWNWARD) => vec![-1.0; size],
        Some(FEW_UNITS..) => (0..size).map(|_| (rng.below(8) + 1) as f32 / 8.0 * sign(rng)).collect(),
        _ => (0..size).map(|_| sign(rng)).collect(),
    };
    let parts = Array::from_slice(&parts, result.shape());
    let wide = result.as_dtype(Dtype::Float32)?;
    let unit = unit(dtype);
    let first = nodes.operand(node, 0)?;
    let granted = match nodes.name(node) {
        "Sum" => {
            let terms = (first.size() / size).max(1) as f32;
            largest(&first)?.multiply(Array::from_f32(SHARE * terms * terms * unit))?
        }
        "Matmul" | "AddMM" | "GatherMM" | "SegmentedMM" | "BlockMaskedMM" | "Convolution" => {
            let (a, b) = (first, nodes.operand(node, 1)?);
            let terms = a.shape().last().copied().unwrap_or(1).max(1) as f32;
            largest(&a)?.multiply(largest(&b)?)?.multiply(Array::from_f32(SHARE * terms * terms * unit))?
        }
        // MLX's polynomial is off by 5.65e-7, also near zero; the one of programs by four units of the result.
        "Erf" => wide.abs()?.multiply(Array::from_f32(0.5 * unit))?.add(Array::from_f32(0.6 * unit))?,
        "LogSumExp" => ops::maximum(wide.abs()?, Array::from_f32(1.0))?.multiply(Array::from_f32(8.0 * unit))?,
        // The halves' elementary functions are rounded `f32`: the neighbor at most.
        _ => wide.abs()?.multiply(Array::from_f32(if dtype == Dtype::Float32 { 8.0 * unit } else { unit }))?,
    };
    // What is less than a unit of the result would be rounded away.
    let one = wide.abs()?.multiply(Array::from_f32(unit))?;
    let mut granted = ops::maximum(granted, &one)?;
    if seed >= Some(FEW_UNITS) {
        granted = ops::minimum(granted, one.multiply(Array::from_f32(4.0))?)?;
    }
    Ok(Some(wide.add(granted.multiply(parts)?)?.as_dtype(dtype)?))
}

/// The largest finite magnitude.
fn largest(array: &Array) -> Result<Array, Exception> {
    if array.size() == 0 {
        return Ok(Array::from_f32(0.0));
    }
    let magnitudes = array.as_dtype(Dtype::Float32)?.abs()?;
    ops::select(&magnitudes.is_finite()?, &magnitudes, Array::from_f32(0.0))?.max(None)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tacit_core::Value;
    use tacit_core::compile::{CompileOptions, compile_with};
    use tacit_core::pass::Passes;

    use super::*;

    /// The results of a compiled function that errs by this seed, and their classes.
    fn erred(
        seed: u64,
        args: &[Array],
        f: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static,
    ) -> (Vec<Array>, Vec<Class>) {
        let options =
            CompileOptions { passes: Passes::Only(vec!["perturbed".to_owned()]), ..CompileOptions::default() };
        let mut compiled = compile_with(options, move |args: Vec<Array>| f(&args));
        let values: Vec<Value> = args.iter().map(Value::from).collect();
        let (results, classes) = armed(seed, || compiled.call(&values));
        let results = results.expect("it is compiled");
        (results.iter().map(|result| result.dense().expect("a dense result")).collect(), classes)
    }

    fn numbers(shape: &[i32]) -> Array {
        let numbers: Vec<f32> = (0..shape.iter().product()).map(|i| (i as f32 * 1.7).sin()).collect();
        Array::from_slice(&numbers, shape)
    }

    #[test]
    fn a_product_with_an_addend_errs_as_the_product() {
        let (a, b, c) = (numbers(&[3, 64]), numbers(&[64, 3]), Array::from_f32(0.0));
        let (plain, _) = erred(1, &[a.clone(), b.clone()], |x| Ok(vec![x[0].matmul(&x[1])?]));
        let (added, _) = erred(1, &[a, b, c], |x| Ok(vec![ops::addmm(&x[2], &x[0], &x[1], None, None)?]));
        let far = plain[0].subtract(&added[0]).and_then(|far| far.abs()?.max(None)).expect("a difference");
        // An error of 64 terms is 512 units here, and the two products are in the same order.
        assert!(far.item_exact::<f32>() < 8.0 * unit(Dtype::Float32), "{far:?}");
    }

    #[test]
    fn classes_say_what_becomes_of_an_error() {
        let whole = Array::from_slice(&[3i32, 1, 2], &[3]);
        let (_, classes) = erred(1, &[numbers(&[3, 3]), whole], |x| {
            let near = x[0].exp()?;
            Ok(vec![
                x[1].sum(None)?,
                x[0].floor()?,
                near.clone(),
                ops::tanh(&near)?,
                ops::cummax(&near, 0, None, None)?,
                near.floor()?,
                ops::indexing::argmax(&near, None)?,
                ops::gt(&near, Array::from_f32(0.5))?,
            ])
        });
        let (exact, near, any) = (Class::Exact, Class::Near, Class::Any);
        assert_eq!(classes, [exact, exact, near, near, near, any, any, any]);
    }

    #[test]
    fn an_error_of_few_units_is_none_in_some_sums() {
        let fours = |seed| {
            let ones = Array::from_slice(&[1f32; 256], &[64, 4]);
            let (sums, _) = erred(seed, &[ones], |x| Ok(vec![x[0].sum_axis(-1, None)?]));
            sums[0].as_slice::<f32>().iter().filter(|sum| sum.to_bits() == 4f32.to_bits()).count()
        };
        assert_eq!(fours(1), 0);
        let few = fours(FEW_UNITS);
        assert!(few > 0 && few < 64, "{few}");
    }

    #[test]
    fn nothing_errs_after_a_panic() {
        let panicked = catch_unwind(AssertUnwindSafe(|| armed(1, || panic!("by design"))));
        assert!(panicked.is_err());
        assert_eq!(ARMED.get(), None);
    }
}
