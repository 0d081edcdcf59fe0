//! Compiled functions on the real array types: without shapes, and as state.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_arrays::Sparse24;
use tacit_conformance::assert_close;
use tacit_core::compile::{CompileOptions, Constants, disable_fusion};
use tacit_core::{Policy, Result, Value, compile_with, compile_with_state, implicit};

use crate::adapters::lora_set_on;
use crate::operands::{FORMATS, every, nf4, normal};

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
            let expected = implicit((x, &w), |(x, w)| ops::softmax_axis(x.matmul(w.t())?, -1, None))
                .expect("runs")
                .dense()
                .expect("is dense");
            assert!(apart(&made, &expected) < 1e-6, "{w} at {rows} rows");
        }
        assert_eq!((f.stats().traces, f.stats().checked), (1, 2), "{w}");
    }
}

/// `x` of so many rows, the row and the expert of each product.
fn chosen(rows: i32, inner: i32) -> [Array; 3] {
    let row = Array::from_iter(0..rows as u32, &[rows]);
    let expert = row.remainder(Array::from_slice(&[2u32], &[])).expect("indices");
    [normal(rows as u64, &[rows, 1, inner]), row, expert]
}

#[test]
fn a_bias_and_rows_have_one_trace_for_every_batch() {
    let _deny = Policy::Deny.scope();
    let bias = normal(5, &[40]);
    for w in every(Dtype::Float32, 1, &[40, 64]) {
        let product = |(bias, x, w): (Array, Array, Array)| ops::addmm(&bias, &x, w.t(), None, None);
        let rows_of = |(at, w): (Array, Array)| w.take_axis(at, 0);
        let (mut sum, mut taken) = (compile_with(options(true), product), compile_with(options(true), rows_of));
        for rows in [2, 5] {
            let (at, x) = (Array::from_iter(0..rows as u32, &[rows]), normal(2, &[rows, 64]));
            let made = sum.call((&bias, &x, w.clone())).expect("runs").dense().expect("is dense");
            let expected = implicit((&bias, &x, &w), product).expect("runs").dense().expect("is dense");
            assert!(apart(&made, &expected) < 1e-5, "{w} at {rows} rows");
            let made = taken.call((&at, w.clone())).expect("runs").dense().expect("is dense");
            let expected = implicit((&at, &w), rows_of).expect("runs").dense().expect("is dense");
            assert!(apart(&made, &expected) < 1e-6, "{w} at {rows} rows");
        }
        assert_eq!((sum.stats().traces, taken.stats().traces), (1, 1), "{w}");
    }
}

type Arguments = (Array, Array, Array, Array, Array, Array);

/// MLX's own op on the codes of two experts, of which its pull request for shapeless `gather_qmm` compiles both orientations.
#[test]
fn a_gathered_product_has_one_trace_for_every_batch() {
    for transpose in [true, false] {
        let experts = normal(3, if transpose { &[2, 8, 64] } else { &[2, 64, 64] });
        let (codes, scales, biases) = ops::quantize(&experts, 64, 4).expect("quantizes");
        let product = |(x, row, expert, codes, scales, biases): Arguments| {
            ops::gather_qmm(&x, &codes, &scales, &biases, &row, &expert, transpose, 64, 4, None)
        };
        let mut f = compile_with(options(true), product);
        for rows in [2, 7] {
            let [x, row, expert] = chosen(rows, 64).map(Value::from);
            let [c, s, b] = [&codes, &scales, &biases].map(Value::from);
            let args = (x, row, expert, c, s, b);
            let expected = implicit(&args, product).expect("runs").dense().expect("is dense");
            let made = f.call(&args).expect("runs").dense().expect("is dense");
            assert!(apart(&made, &expected) < 1e-6);
        }
        assert_eq!((f.stats().traces, f.stats().checked), (1, 1), "transposed: {transpose}");
    }
}

/// Without the rows' own indices MLX writes their number into the graph.
#[test]
fn a_gathered_product_with_default_indices_is_refused_by_name() {
    let (codes, scales, biases) = ops::quantize(normal(3, &[2, 8, 64]), 64, 4).expect("quantizes");
    let product = |(x, expert, codes, scales, biases): (Array, Array, Array, Array, Array)| {
        ops::gather_qmm(&x, &codes, &scales, &biases, None, &expert, true, 64, 4, None)
    };
    let mut f = compile_with(options(true), product);
    let mut call = |rows: i32| {
        let [x, _, expert] = chosen(rows, 64).map(Value::from);
        let [c, s, b] = [&codes, &scales, &biases].map(Value::from);
        f.call(&(x, expert, c, s, b)).map(|y| drop(y.dense().expect("is dense")))
    };
    call(2).expect("the shape of the trace");
    expect![[r#"
        the function was compiled without shapes and cannot be: the static parameters of a node differ: arange[start=0,stop=2,step=1] became arange[start=0,stop=7,step=1]
        help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`"#]].assert_eq(&call(7).expect_err("another number of rows").to_string());
}

/// Packed experts of every stored format through plain `gather_mm`, in both orientations: they are multiplied by their codes, and
/// indices that no row or expert of the shape at hand has are errors.
#[test]
fn packed_experts_have_one_trace_for_every_batch() {
    let _deny = Policy::Deny.scope();
    for format in &FORMATS {
        let w = (format.of)(&normal(1, &[2, 32, 64])).expect("quantizes");
        for transpose in [true, false] {
            let product = |(x, row, expert, w): (Array, Array, Array, Array)| {
                let w = if transpose { w.swap_axes(1, 2)? } else { w };
                ops::gather_mm(x, w, &row, &expert, None)
            };
            let args = |rows: i32| {
                let [x, row, expert] = chosen(rows, if transpose { 64 } else { 32 }).map(Value::from);
                (x, row, expert, w.clone())
            };
            let mut f = compile_with(options(true), product);
            for rows in [3, 7, 2, 40] {
                let expected = implicit(args(rows), product).expect("runs").dense().expect("is dense");
                let made = f.call(args(rows)).expect("runs").dense().expect("is dense");
                assert!(apart(&made, &expected) < 1e-5, "{} of {rows} rows, transposed: {transpose}", format.name);
            }
            assert_eq!((f.stats().traces, f.stats().checked), (1, 3), "{}, transposed: {transpose}", format.name);
            let outside = |row: [u32; 2], expert: [u32; 2], of: i32| {
                let (x, _, _, w) = args(of);
                let [row, expert] = [row, expert].map(|index| Value::from(Array::from_slice(&index, &[2])));
                let mut f = compile_with(options(true), product);
                f.call(args(3)).expect("the shape of the trace");
                let made = f.call((x, row, expert, w)).expect("is built").dense().expect("is dense");
                made.eval().expect_err("there is no such matrix").to_string()
            };
            let error = outside([6, 7], [0, 1], 7);
            assert!(error.contains("index 7 (entry 1) is outside an extent of 7"), "{}: {error}", format.name);
            let error = outside([2, 0], [1, 0], 2);
            assert!(error.contains("index 2 (entry 0) is outside an extent of 2"), "{}: {error}", format.name);
            let error = outside([0, 1], [1, 2], 7);
            assert!(error.contains("index 2 (entry 1) is outside an extent of 2"), "{}: {error}", format.name);
        }
    }
}

/// A function of rows and a weight.
type Function = fn((Array, Array)) -> Result<Array>;

/// A repeated batch of matrices, a set of adapters and sparse codes need index tables, which each trace makes anew.
#[test]
fn index_tables_of_handlers_are_not_captured() {
    let product: Function = |(x, w)| Ok(x.matmul(w.swap_axes(-1, -2)?)?);
    let gradient: Function =
        |(x, w)| Ok(transforms::grad(|x: &Array| x.matmul(w.swap_axes(-1, -2)?)?.square()?.sum(None))(&x)?);
    let _allow = Policy::Allow.scope();
    disable_fusion();
    let (batch, rows) = (normal(2, &[2, 3, 5, 64]), normal(2, &[5, 64]));
    let experts = every(Dtype::Float32, 1, &[3, 40, 64]).into_iter().map(|w| (&batch, w));
    let base = nf4(&normal(1, &[40, 64]), 64);
    let in_use = [Array::from_slice(&[1u32], &[]), Array::from_slice(&[0u32, 1, 2, 1, 0], &[5])];
    let sets = in_use.map(|index| (&rows, Value::from(lora_set_on(&base, index))));
    let sparse = Sparse24::prune(&normal(1, &[40, 64])).expect("groups of four");
    for (x, w) in experts.chain(sets).chain([(&rows, Value::from(sparse))]) {
        for f in [product, gradient] {
            let expected = implicit((x, &w), f).and_then(|made| made.dense()).expect("runs");
            let mut compiled = compile_with(options(false), f);
            for _ in 0..2 {
                let made = compiled.call((x, &w)).and_then(|made| made.dense());
                assert_close!(made.unwrap_or_else(|error| panic!("{w}: {error}")), expected, 1e-5, "{w}");
            }
        }
    }
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
