//! Adapters beyond the plain sum: magnitudes, biases of groups, sets.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_arrays::format::{Affine, Symmetric};
use tacit_arrays::{Adapter, AffineArray, Dora, Lora, LoraSet, Packed, QaLora, SymmetricArray};
use tacit_conformance::assert_close;
use tacit_core::transform::{Wrt, grad_wrt};
use tacit_core::{Counters, Policy, Result, Value, compile, implicit};

use crate::messages::{check, said_of};
use crate::operands::{FLOATS, affine, both, nf4, normal, normal_of, oracle};
use crate::structured::lora_on;

const F32: Dtype = Dtype::Float32;

fn x(shape: &[i32]) -> Value {
    normal(1, shape).into()
}

fn factors(base: &Value) -> [Array; 2] {
    let shape = base.aval().expect("an aval").shape;
    [normal(15, &[3, shape[1]]), normal(16, &[shape[0], 3])]
}

pub(crate) fn dora_on(base: Value) -> Value {
    let [a, b] = factors(&base);
    let m = normal(17, &[b.dim(0)]);
    Dora::with_magnitudes(base, a, b, m, 2.0).expect("fits").into()
}

pub(crate) fn qa_lora_on(base: Value, groups: i32) -> Value {
    let rows = base.aval().expect("an aval").shape[0];
    QaLora::new(base, normal(15, &[3, groups]), normal(16, &[rows, 3]), 2.0).expect("fits").into()
}

pub(crate) fn lora_set_on(base: &Value, index: Array) -> LoraSet {
    let shape = base.aval().expect("an aval").shape;
    let lora = |seed, rank, alpha| {
        let (a, b) = (normal(seed, &[rank, shape[1]]), normal(seed + 1, &[shape[0], rank]));
        Lora::new(base.clone(), a, b, alpha).expect("fits")
    };
    LoraSet::new(&[lora(20, 2, 1.0), lora(30, 3, 6.0)], index).expect("of one shape")
}

fn number(index: u32) -> Array {
    Array::from_slice(&[index], &[])
}

/// On `[40, 96]` over packed bases.
fn adapters(dtype: Dtype) -> Vec<Value> {
    let [nf4, affine] = both(dtype, 2, &[40, 96]);
    vec![
        dora_on(nf4.clone()),
        dora_on(affine.clone()),
        dora_on(normal_of(dtype, 2, &[40, 96]).into()),
        qa_lora_on(affine.clone(), 3),
        lora_set_on(&nf4, number(1)).into(),
        lora_set_on(&affine, number(2)).into(),
    ]
}

#[test]
fn products_and_rows_without_a_dense_matrix() {
    for w in adapters(F32).into_iter().chain(both(F32, 2, &[40, 96]).map(lora_on)) {
        for left in [&[3, 96][..], &[2, 3, 96], &[96]] {
            oracle(F32).check("x W^T", &[x(left), w.clone()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
        }
        oracle(F32).check("x W", &[x(&[3, 40]), w.clone()], |a| Ok(vec![a[0].matmul(&a[1])?]));
        oracle(F32).check("W x", &[w.clone(), x(&[96, 2])], |a| Ok(vec![a[0].matmul(&a[1])?]));
        oracle(F32).check("W^T x", &[w.clone(), x(&[40])], |a| Ok(vec![a[0].t().matmul(&a[1])?]));
        oracle(F32).check("x W^T + c", &[x(&[3, 96]), w.clone(), x(&[40])], |a| {
            Ok(vec![ops::addmm(&a[2], &a[0], a[1].t(), 0.5, -2.0)?])
        });
        let rows = Array::from_slice(&[3i32, -1, 39], &[3]);
        oracle(F32).check("rows", &[w.clone(), rows.into()], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
        let (y, counters) = Counters::during(|| {
            let _deny = Policy::Deny.scope();
            implicit((x(&[3, 96]), &w), |(x, w)| x.matmul(w.t()))
        });
        assert_eq!(y.expect("is handled").to_string(), "f32[3,40]");
        assert_eq!(counters.materialized, 0, "{w}");
    }
}

/// Also where the lengths of its rows are those of what was built.
#[test]
fn the_base_of_a_dora_is_built_once() {
    let _allow = Policy::Allow.scope();
    for base in [nf4(&normal(2, &[40, 96]), 32), lora_on(normal(2, &[40, 96]).into())] {
        let dora = dora_on(base);
        let (made, counters) = Counters::during(|| dora.dense());
        made.expect("is built");
        assert_eq!(counters.materialized, 2, "{dora}: itself and its base");
    }
}

#[test]
fn half_types() {
    for dtype in FLOATS {
        for w in adapters(dtype) {
            oracle(dtype)
                .check("x W^T", &[normal_of(dtype, 1, &[3, 96]).into(), w], |a| Ok(vec![a[0].matmul(a[1].t())?]));
        }
    }
}

#[test]
fn gradients_go_to_what_is_trained_under_deny() {
    let loss = |(w, x): (Array, Array)| x.matmul(w.t())?.square()?.sum(None);
    for w in adapters(F32) {
        let trained = w.family::<dyn Adapter>().expect("an adapter").trained();
        let wrt = Wrt::paths(move |path| trained.iter().any(|name| path.ends_with(&format!(".{name}"))));
        let _deny = Policy::Deny.scope();
        let (gradient, _) = grad_wrt(wrt, loss).call((w.clone(), x(&[3, 96]))).expect("builds no dense matrix");
        for name in trained {
            assert!(gradient.to_string().contains(&format!("{name}: f32[")), "{name} of {gradient}");
        }
    }
}

#[test]
fn dora_is_that_of_mlx_lm() {
    let _allow = Policy::Allow.scope();
    let base = nf4(&normal(2, &[40, 96]), 64);
    let [a, b] = factors(&base);
    let start = Dora::new(base.clone(), a.clone(), ops::zeros::<f32>(&[40, 3]).expect("zeros"), 2.0).expect("fits");
    // With a zero factor it is the base, to the bit.
    let y = |w: Value| implicit((x(&[5, 96]), w), |(x, w)| x.matmul(w.t())).expect("runs").dense().expect("dense");
    assert!(
        y(start.clone().into()).eq(y(base.clone())).expect("compares").all(None).expect("all").item_exact::<bool>()
    );
    let w = Dora::with_magnitudes(base.clone(), a.clone(), b.clone(), start.m().clone(), 2.0).expect("fits");
    let dense = base.dense().expect("dense");
    let sum = b.multiply(Array::from_f32(2.0 / 3.0)).expect("scaled").matmul(&a).expect("a product");
    let adapted = dense.add(sum).expect("a sum");
    let norm = |array: &Array| array.square().and_then(|a| a.sum_axis(1, true)).and_then(|a| a.sqrt()).expect("a norm");
    let expected = adapted.multiply(norm(&dense).divide(norm(&adapted)).expect("a factor")).expect("scaled");
    assert_close!(Value::from(w).dense().expect("dense"), expected, 1e-5);
}

#[test]
fn a_change_of_biases_merges_without_loss() {
    for dtype in FLOATS {
        let base = affine(&normal_of(dtype, 2, &[40, 96]), 32, 4);
        let w = qa_lora_on(base.clone(), 3);
        let merged = w.downcast::<QaLora>().expect("one").merged().expect("merges");
        let (before, after) =
            (base.downcast::<AffineArray>().expect("affine"), merged.downcast::<AffineArray>().expect("affine"));
        assert_eq!(before.codes().as_slice::<u32>(), after.codes().as_slice::<u32>());
        let same = |a: &Array, b: &Array| a.eq(b).expect("compares").all(None).expect("all").item_exact::<bool>();
        assert!(same(
            &before.scales().expect("scales").dense().expect("dense"),
            &after.scales().expect("scales").dense().expect("dense")
        ));
        assert!(!same(before.biases().expect("biases"), after.biases().expect("biases")));
        let y = |w: &Value| {
            let x = normal_of(dtype, 1, &[3, 96]);
            implicit((x, w), |(x, w)| x.matmul(w.t())).expect("runs").dense().expect("dense")
        };
        assert!(same(&y(&w), &y(&merged)));
    }
}

#[test]
fn an_index_for_each_sequence() {
    let base = nf4(&normal(2, &[40, 96]), 64);
    let w = lora_set_on(&base, Array::from_slice(&[1u32, 2, 0], &[3]));
    let y = |x: &Value, w: Value| {
        let _deny = Policy::Deny.scope();
        implicit((x, w), |(x, w)| x.matmul(w.t())).expect("runs").dense().expect("dense")
    };
    let batch = x(&[3, 4, 96]);
    let made = y(&batch, w.clone().into());
    for (row, index) in [1, 2, 0].into_iter().enumerate() {
        let single = w.with_index(number(index)).expect("fits");
        let of_row = |array: &Array| array.take_axis(Array::from_slice(&[row as u32], &[1]), 0).expect("a row");
        let alone = y(&of_row(batch.as_dense().expect("dense")).into(), single.into());
        assert_close!(of_row(&made), alone, 1e-5);
    }
    let none = y(&batch, w.with_index(number(2)).expect("fits").into());
    assert_close!(none, y(&batch, base), 1e-6);
}

/// An adapter that diverged is that of who chose it.
#[test]
fn an_index_of_no_adapter_uses_none_of_their_numbers() {
    let base = nf4(&normal(2, &[40, 96]), 64);
    let lora = |b: f32| {
        let b = ops::full::<f32>(&[40, 2], Array::from_f32(b)).expect("a constant");
        Lora::new(base.clone(), normal(3, &[2, 96]), b, 1.0).expect("fits")
    };
    let set = LoraSet::new(&[lora(1.0), lora(f32::NAN)], number(2)).expect("of one shape");
    let y = |w: Value| implicit((x(&[3, 4, 96]), w), |(x, w)| x.matmul(w.t())).expect("runs").dense().expect("dense");
    let expected = y(base.clone());
    assert_close!(y(set.clone().into()), expected.clone(), 1e-6);
    let each = set.with_index(Array::from_slice(&[2u32, 7, 9], &[3])).expect("fits");
    assert_close!(y(each.into()), expected, 1e-6);
    let _allow = Policy::Allow.scope();
    assert_close!(Value::from(set).dense().expect("is built"), base.dense().expect("is built"), 1e-6);
}

#[test]
fn another_index_takes_no_retrace() {
    let w = lora_set_on(&nf4(&normal(2, &[40, 96]), 64), number(0));
    let traces = std::cell::Cell::new(0);
    let f = |(x, w): (Array, Array)| {
        traces.set(traces.get() + 1);
        x.matmul(w.t())
    };
    let mut compiled = compile(f);
    let mut results = Vec::new();
    for index in [0, 1, 2, 0] {
        let w = Value::from(w.with_index(number(index)).expect("fits"));
        let y = compiled.call((x(&[3, 96]), w.clone())).expect("runs").dense().expect("dense");
        assert_close!(
            y,
            implicit((x(&[3, 96]), w), |(x, w)| x.matmul(w.t())).expect("runs").dense().expect("dense"),
            1e-5
        );
        results.push(y.as_slice::<f32>().to_vec());
    }
    assert_eq!(traces.get(), 1);
    assert!(results[0] == results[3] && results[0] != results[1]);
}

#[test]
fn dropout_does_not_change_the_lengths() {
    let _allow = Policy::Allow.scope();
    let plain = dora_on(nf4(&normal(2, &[40, 96]), 64));
    let key = random::key(17).expect("a key");
    let w = plain.downcast::<Dora>().expect("one").clone().with_dropout(0.5, key).expect("a probability");
    oracle(F32).check("x W^T", &[x(&[3, 96]), w.clone().into()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
    let still = w.with_key(None).expect("has none");
    let dense = |w: Value| w.dense().expect("dense");
    assert_close!(dense(still.into()), dense(plain.clone()), 1e-6);
    let apart =
        dense(w.into()).subtract(dense(plain)).expect("a difference").abs().expect("abs").max(None).expect("max");
    assert!(apart.item_exact::<f32>() > 0.1);
}

/// Adapters that were trained in half floats alone have such.
#[test]
fn magnitudes_of_half_floats_are_what_they_are_as_floats() {
    let base = Value::from(normal(2, &[8, 12]));
    let [a, b] = factors(&base);
    let half = normal_of(Dtype::Bfloat16, 17, &[8]);
    let [narrow, wide] = [half.clone(), half.as_dtype(F32).expect("casts")].map(|m| {
        let dora = Dora::with_magnitudes(base.clone(), a.clone(), b.clone(), m, 2.0).expect("fits");
        implicit((x(&[5, 12]), dora), |(x, w)| x.matmul(w.t())).expect("runs").dense().expect("dense")
    });
    assert!(narrow.eq_values(&wide).expect("compares"));
}

#[test]
fn bad_arguments() {
    let of = |m: &[i32]| {
        Dora::with_magnitudes(normal(1, &[8, 9]), normal(2, &[2, 9]), normal(3, &[8, 2]), normal(4, m), 1.0)
    };
    check(
        of(&[9]),
        expect![[r#"
        m is f32[9], where a Dora of f32[8,9] has f32[8]
        help: take the parts of one array, with its shape and block size"#]],
    );
    check(
        of(&[8]).and_then(|dora| dora.with_dropout(1.0, random::key(1).expect("a key"))),
        expect![[r#"
        the dropout probability is 1
        help: give one that is at least 0 and below 1"#]],
    );
    let grouped = || AffineArray::quantize(&normal(2, &[40, 96]), Affine { bits: 4, group: 32 }).expect("quantizes");
    let said = [
        said_of(QaLora::new(normal(1, &[8, 9]), normal(2, &[2, 9]), normal(3, &[8, 2]), 1.0)),
        said_of(QaLora::new(nf4(&normal(2, &[40, 96]), 64), normal(2, &[2, 3]), normal(3, &[40, 2]), 1.0)),
        said_of(QaLora::new(grouped(), normal(2, &[2, 96]), normal(3, &[40, 2]), 1.0)),
        said_of(QaLora::new(grouped(), normal(2, &[2, 3]), normal(3, &[40, 2]), f32::INFINITY)),
    ];
    expect![[r#"
        the base is f32[8,9], which has no biases to move
        help: give a matrix in the affine format, or adapt this one by a `Lora`
        the base is Nf4(f32[40,96]), which has no biases to move
        help: give a matrix in the affine format, or adapt this one by a `Lora`
        a is f32[2,96] and b is f32[40,2], which do not fit a base of f32[40,96] in groups of 32
        help: give a: [r, in / group] and b: [out, r] for a base [out, in]
        alpha is inf
        help: give a finite one; the rank is the usual choice
    "#]]
    .assert_eq(&said.concat());
    let lora = |k: i32| Lora::new(normal(1, &[8, k]), normal(2, &[2, k]), normal(3, &[8, 2]), 1.0).expect("fits");
    let said = [
        said_of(LoraSet::new(&[], number(0))),
        said_of(LoraSet::new(&[lora(9), lora(10)], number(0))),
        said_of(LoraSet::new(&[lora(9)], Array::from_slice(&[1i32], &[1]))),
    ];
    expect![[r#"
        there are no adapters in the set
        help: give at least one
        adapters of f32[8,9] and f32[8,10] are in no set
        help: give adapters of one shape, in one float type, that are not transposed
        the index is i32[1], which chooses no adapters
        help: give u32[] for all rows, or u32[n] for n parts of them
    "#]]
    .assert_eq(&said.concat());
    let set = LoraSet::new(&[lora(9)], Array::from_slice(&[0u32, 0], &[2])).expect("fits");
    check(
        implicit((x(&[3, 9]), set.clone()), |(x, w)| x.matmul(w.t())),
        expect![[r#"
        3 rows are not 2 parts of one length, each with an adapter of its own
        help: give an index for each sequence of the batch"#]],
    );
    let _allow = Policy::Allow.scope();
    check(
        Value::from(set).dense(),
        expect![[r#"
        tacit.LoraSet refuses to be materialized: each part of the rows has an adapter of its own, so that there is no one matrix
        help: write a handler for this primitive and this type"#]],
    );
}

#[test]
fn another_base() -> Result<()> {
    let [nf4, affine] = both(F32, 2, &[40, 96]);
    for (w, other) in [
        (dora_on(nf4.clone()), affine.clone()),
        (lora_set_on(&nf4, number(1)).into(), affine.clone()),
        (qa_lora_on(affine, 3), crate::operands::affine(&normal(3, &[40, 96]), 32, 8)),
    ] {
        let adapter = w.family::<dyn Adapter>().expect("an adapter");
        let moved = Value::from(adapter.with_base(other.clone())?);
        let moved = moved.family::<dyn Adapter>().expect("an adapter");
        assert_eq!(moved.base().to_string(), other.to_string());
        assert!(adapter.with_base(normal(1, &[3, 4]).into()).is_err());
    }
    Ok(())
}

/// Rounded once: a product of halves is as near to the exact one as its own rounding, and elements are those of rows and of
/// the merged array to the last bit.
#[test]
fn dora_of_halves_is_rounded_once() {
    let _allow = Policy::Allow.scope();
    for (dtype, half_step) in [(Dtype::Bfloat16, 2f32.powi(-8)), (Dtype::Float16, 2f32.powi(-11))] {
        for base in [nf4(&normal_of(dtype, 2, &[40, 96]), 32), normal_of(dtype, 2, &[40, 96]).into()] {
            let w = dora_on(base.clone());
            let dense = w.dense().expect("is built");
            let rows = ops::arange::<_, i32>(None, 40, None).expect("rows");
            let taken =
                implicit((&w, rows), |(w, rows)| w.take_axis(&rows, 0)).and_then(|rows| rows.dense()).expect("rows");
            assert!(taken.eq_exact(&dense).expect("compares"), "{w} of {base}");
            if base.is_implicit() {
                // It is rounded by itself where it is built.
                continue;
            }
            let wide = implicit(&base, |base| base.as_dtype(F32)).expect("casts");
            let exact = dora_on(wide).dense().expect("is built");
            for (found, exact) in floats(&dense).iter().zip(floats(&exact)) {
                assert!(
                    (found - exact).abs() <= 1.01 * half_step * exact.abs().max(1e-4),
                    "{found} and {exact} in {dtype:?}"
                );
            }
        }
    }
}

fn floats(array: &Array) -> Vec<f32> {
    let wide = array.as_dtype(F32).and_then(|wide| wide.contiguous()).expect("f32");
    wide.as_slice::<f32>().to_vec()
}

/// A row of zeros has no direction, whatever its magnitude: it stays zero, and so do its gradients, which are numbers.
#[test]
fn a_row_of_zeros_of_a_dora_stays_one() {
    let _allow = Policy::Allow.scope();
    let base = ops::concatenate(&[ops::zeros::<f32>(&[1, 8]).expect("zeros"), normal(1, &[3, 8])], 0).expect("joins");
    let (a, b) = (normal(2, &[2, 8]), ops::zeros::<f32>(&[4, 2]).expect("zeros"));
    let m = Array::from_slice(&[1e30f32, 5.0, 1.0, 2.0], &[4]);
    let w = Value::from(Dora::with_magnitudes(base, a, b, m, 2.0).expect("fits"));
    let y = implicit((x(&[3, 8]), &w), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense()).expect("runs");
    for made in [y, w.dense().expect("is built")] {
        assert!(floats(&made).iter().all(|number| number.is_finite()), "{made:?}");
    }
    assert!(floats(&w.dense().expect("is built"))[..8].iter().all(|&number| number == 0.0));
    let loss = |(w, x): (Array, Array)| x.matmul(w.t())?.sum(None);
    let wrt = Wrt::paths(|path| path.ends_with(".m") || path.ends_with(".b"));
    let (gradient, _) = grad_wrt(wrt, loss).call((w, x(&[3, 8]))).expect("has gradients");
    assert!(!gradient.to_string().contains("NaN"), "{gradient}");
}

/// A base without biases, as of a GGUF file's `Q8_0`, gets some that are moved.
#[test]
fn a_symmetric_base_gets_biases() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let base = SymmetricArray::quantize(&normal(1, &[8, 64]), Symmetric { bits: 8, group: 32 })?;
    let (a, b) = (normal(2, &[2, 2]), normal(3, &[8, 2]));
    let of_affine = QaLora::new(base.to_affine()?, a.clone(), b.clone(), 4.0)?;
    let x = normal(4, &[3, 64]);
    let product = |w: QaLora| implicit((&x, w), |(x, w)| x.matmul(w.t()))?.dense();
    assert_close!(product(QaLora::new(base, a, b, 4.0)?)?, product(of_affine)?, 0.0);
    Ok(())
}

#[test]
fn a_symmetric_base_that_rounds_activations_rounds_them_with_biases() -> Result<()> {
    let base = SymmetricArray::quantize(&normal(1, &[8, 64]), Symmetric { bits: 8, group: 32 })?;
    let rounding = base.clone().with_int8_activations()?;
    assert!(rounding.to_affine()?.int8_activations());
    let (a, b, x) = (normal(2, &[2, 2]), normal(3, &[8, 2]), normal(4, &[3, 64]));
    let product = |w: QaLora| implicit((&x, w), |(x, w)| x.matmul(w.t()))?.dense();
    let expected = QaLora::new(base.to_affine()?.with_int8_activations()?, a.clone(), b.clone(), 4.0)?;
    assert_close!(product(QaLora::new(rounding, a, b, 4.0)?)?, product(expected)?, 0.0);
    Ok(())
}
