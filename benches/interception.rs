//! What interception costs: microseconds a node above building the plain graph, and nanoseconds a look-up.

mod figures;

use std::time::Instant;

use figures::{Figure, median};
use mlx_rs::Array;
use tacit::dispatch::Registry;
use tacit::op;
use tacit::prelude::*;

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

/// Seconds a node of building and dropping the plain graph, and of the same under `implicit`; pairs taken in turn.
fn per_node(length: usize, w: &Value, rounds: usize) -> (f64, f64) {
    let x = Array::from_slice(&[1f32; 16], &[4, 4]);
    let dense = w.dense().expect("the operand is dense at heart");
    let plain = || {
        let start = Instant::now();
        let graph = chain(length, &x, &dense);
        (start.elapsed().as_secs_f64() / length as f64, graph)
    };
    let traced = || {
        let start = Instant::now();
        let graph = implicit((&x, w), |(x, w)| Ok::<_, Error>(chain(length, &x, &w))).expect("adding works");
        (start.elapsed().as_secs_f64() / length as f64, graph)
    };
    // Which comes first changes from round to round, and each graph is dropped before the next is built: what the
    // allocator was left with weighs as much as what is measured.
    let mut pairs: Vec<(f64, f64)> = (0..=rounds)
        .map(|round| {
            if round % 2 == 0 {
                let first = plain().0;
                (first, traced().0)
            } else {
                let first = traced().0;
                (plain().0, first)
            }
        })
        .skip(1)
        .collect();
    pairs.sort_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)));
    pairs[pairs.len() / 2]
}

fn main() {
    let _allow = Policy::Allow.scope();
    let array = Array::from_slice(&[2f32; 16], &[4, 4]);
    let implicit_operand = Value::from(Held { aval: Aval::from(&array), array: array.clone() });
    for (case, operand, length, rounds) in [
        ("extra_per_op", &implicit_operand, 1_000, 401),
        ("extra_per_op/dense", &Value::from(&array), 1_000, 401),
        ("extra_per_op/100000", &implicit_operand, 100_000, 21),
        ("extra_per_op/100000/dense", &Value::from(&array), 100_000, 21),
    ] {
        let (plain, traced) = per_node(length, operand, rounds);
        Figure {
            bench: "interception",
            case,
            value: (traced - plain) * 1e6,
            unit: "us/op",
            baseline: "building the plain graph",
            ratio: traced / plain,
        }
        .record();
    }

    let registry = Registry::global();
    let matmul = tacit_bridge::NameId::of(<op::Matmul as op::TypedPrimitive>::NAME).expect("the name has no NUL");
    let types = [None, Some(<Nf4Array as tacit::types::StaticType>::TYPE)];
    let lookup = median(31, 100_000, || {
        std::hint::black_box(registry.resolve(std::hint::black_box(matmul), std::hint::black_box(&types)));
    });
    let add = median(31, 1_000, || {
        std::hint::black_box(&array + &array);
    });
    Figure {
        bench: "interception",
        case: "lookup",
        value: lookup.as_secs_f64() * 1e9,
        unit: "ns",
        baseline: "building one MLX op",
        ratio: lookup.as_secs_f64() / add.as_secs_f64(),
    }
    .record();
}
