//! What interception costs: microseconds a node above building the plain graph, and nanoseconds a look-up.

use std::hint::black_box;
use std::time::Instant;

use mlx_rs::Array;
use tacit::dispatch::Registry;
use tacit::prelude::*;
use tacit::primitives;
use tacit_figures::{Bench, Unit};

/// A type without handlers, whose dense form is there already.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "bench.Held")]
struct Held {
    array: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Held {
    fn materialize(&self) -> Result<Value> {
        Ok((&self.array).into())
    }
}

fn chain(length: usize, x: &Array, w: &Array) -> Array {
    let mut y = x.clone();
    for _ in 0..length {
        y = &y + w;
    }
    y
}

/// The seconds a node of building a graph. It is dropped before the next one is built, and that is not timed: what the
/// allocator was left with weighs as much as what is measured.
fn seconds<T>(length: usize, graph: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    let graph = graph()?;
    let seconds = start.elapsed().as_secs_f64() / length as f64;
    drop(graph);
    Ok(seconds)
}

/// A node of building the plain graph, and of the same under `implicit`.
fn per_node(bench: &Bench, case: &str, length: usize, w: &Value) -> Result<()> {
    let x = Array::from_slice(&[1f32; 16], &[4, 4]);
    let dense = w.dense()?;
    let intercepted = || implicit((&x, w), |(x, w)| Ok::<_, Error>(chain(length, &x, &w)));
    let rounds = bench
        .turns()
        .measure("intercepted", || seconds(length, intercepted))
        .measure("building the plain graph", || seconds(length, || Ok(chain(length, &x, &dense))))
        .take()?;
    rounds.record(case, Unit::above("us/op"));
    Ok(())
}

fn main() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let bench = tacit_figures::bench!("interception");
    let array = Array::from_slice(&[2f32; 16], &[4, 4]);
    let implicit_operand = Value::from(Held { aval: Aval::from(&array), array: array.clone() });
    for (case, operand, length) in [
        ("extra_per_op", &implicit_operand, 1_000),
        ("extra_per_op/dense", &Value::from(&array), 1_000),
        ("extra_per_op/100000", &implicit_operand, 100_000),
        ("extra_per_op/100000/dense", &Value::from(&array), 100_000),
    ] {
        per_node(&bench, case, length, operand)?;
    }

    let registry = Registry::global();
    let matmul = tacit_bridge::NameId::intern(<primitives::Matmul as primitives::TypedPrimitive>::NAME)
        .expect("the name has no NUL");
    let types = [None, Some(<Nf4Array as tacit::types::StaticType>::TYPE)];
    let rounds = bench
        .turns()
        .run("a look-up", || {
            black_box(registry.resolve(black_box(matmul), black_box(&types)));
            Ok::<_, Error>(())
        })
        .run("building one MLX op", || {
            black_box(&array + &array);
            Ok(())
        })
        .take()?;
    rounds.record("lookup", Unit::time("ns"));
    Ok(())
}
