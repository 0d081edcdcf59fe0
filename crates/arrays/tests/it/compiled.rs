//! Compiled functions on the real array types: without shapes, and as state.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::compile::{CompileOptions, Constants};
use tacit_core::{Policy, Value, compile_with, compile_with_state};

use crate::operands::{every, normal};

fn options(shapeless: bool) -> CompileOptions {
    CompileOptions { shapeless, constants: Constants::Deny, ..CompileOptions::default() }
}

/// The greatest difference between two arrays.
fn apart(a: &Array, b: &Array) -> f32 {
    assert_eq!(a.shape(), b.shape());
    a.subtract(b).and_then(|d| d.abs()?.max(None)).expect("they have a difference").item_exact()
}

#[test]
fn a_quantized_product_has_one_trace_for_every_batch() {
    let _deny = Policy::Deny.scope();
    for w in every(Dtype::Float32, 1, &[40, 64]) {
        let mut f = compile_with(options(true), |(x, w): (Array, Array)| ops::softmax_axis(x.matmul(w.t())?, -1, None));
        for rows in [2, 5, 33, 2] {
            let x = normal(rows as u64, &[rows, 64]);
            let made = f.call((&x, w.clone())).expect("runs").dense().expect("is dense");
            let expected = tacit_core::implicit((x, &w), |(x, w)| ops::softmax_axis(x.matmul(w.t())?, -1, None))
                .expect("runs")
                .dense()
                .expect("is dense");
            assert!(apart(&made, &expected) < 1e-6, "{w} at {rows} rows");
        }
        assert_eq!((f.stats().traces, f.stats().checked), (1, 2), "{w}");
    }
}

type Arguments = (Array, Array, Array, Array, Array, Array);

#[test]
fn a_gathered_product_has_one_trace_for_every_batch() {
    // MLX's own op on the codes of two experts.
    let experts = normal(3, &[2, 8, 64]);
    let (codes, scales, biases) = ops::quantize(&experts, 64, 4).expect("quantizes");
    // Without the rows' own indices MLX writes their number into the graph, which is an error that says so.
    let product = |(x, row, expert, codes, scales, biases): Arguments| {
        ops::gather_qmm(&x, &codes, &scales, &biases, &row, &expert, true, 64, 4, None)
    };
    let mut f = compile_with(options(true), product);
    for rows in [2, 7] {
        let x = normal(rows as u64, &[rows, 1, 64]);
        let row = Array::from_iter(0..rows as u32, &[rows]);
        let expert = row.remainder(Array::from_slice(&[2u32], &[])).expect("indices");
        let [x, row, expert] = [&x, &row, &expert].map(Value::from);
        let [c, s, b] = [&codes, &scales, &biases].map(Value::from);
        let args = (x, row, expert, c, s, b);
        let expected = tacit_core::implicit(&args, product).expect("runs").dense().expect("is dense");
        let made = f.call(&args).expect("runs").dense().expect("is dense");
        assert!(apart(&made, &expected) < 1e-6);
    }
    assert_eq!((f.stats().traces, f.stats().checked), (1, 1));
}

#[test]
fn a_quantized_state_stays_in_its_codes() {
    let _deny = Policy::Deny.scope();
    for w in every(Dtype::Float32, 1, &[40, 64]) {
        let mut f = compile_with_state(options(false), |(w, total): &mut (Value, Array), x: Array| {
            let y = x.matmul(w.dense()?.t())?;
            *total = total.add(y.sum(None)?)?;
            Ok::<_, tacit_core::Error>(y)
        });
        let mut state = (w.clone(), Array::from_f32(0.0));
        for _ in 0..3 {
            f.call(&mut state, normal(2, &[3, 64])).expect("runs");
        }
        assert_eq!((state.0.to_string(), state.0.nbytes()), (w.to_string(), w.nbytes()));
        assert_eq!(f.stats().traces, 1);
    }
}
