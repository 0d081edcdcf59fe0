//! Weights that are quantized where they are used: what they stand for, once a trace, whatever the format.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, transforms};
use tacit_arrays::format::{self, Affine, AnyFormat, Nf4, Quantizer};
use tacit_arrays::{Nf4Array, Prepared, Ste, ste};
use tacit_core::compile::compile;
use tacit_core::tree::{self, Open};
use tacit_core::{Counters, Error, ImplicitArray, Policy, Result, Value, explain, implicit, store};

use crate::messages::check;
use crate::operands::{self, normal, normal_of};

type Function = dyn Fn(&[Array]) -> Result<Vec<Array>, Exception>;

/// A text of every format, in each of its forms.
pub(crate) const TEXTS: [&str; 34] = [
    "nf4:64",
    "nf4:64:double",
    "fp4:32",
    "fp4:64:double",
    "affine:4:64",
    "affine:2:32",
    "affine:3:32",
    "symmetric:4:32",
    "symmetric:8:64",
    "int8",
    "int8:columns",
    "int8:16",
    "ternary",
    "ternary:columns",
    "ternary:32",
    "binary",
    "dynamic:8:64",
    "dynamic:4:64",
    "e4m3:64",
    "e5m2:64",
    "f16",
    "bf16",
    "codebook:32:-1,-0.25,0.25,1",
    "k:4",
    "k:6",
    "mxfp4",
    "mxfp8:round",
    "nvfp4",
    "quarters",
    "nvfp4:global",
    "rotated:nf4:64",
    "rotated:affine:4:64",
    "affine:3:64+search:4",
    "dynamic:4:64+reach",
];

/// Whether there are no scales to train: they are quantized themselves, or there are none.
pub(crate) fn has_fixed_scales(text: &str) -> bool {
    text.ends_with("double") || text.starts_with("k:") || text.ends_with("f16")
}

pub(crate) fn format(text: &str) -> AnyFormat {
    text.parse().expect("is a format")
}

pub(crate) fn prepared(seed: u64, text: &str) -> Prepared {
    Prepared::new(&normal(seed, &[64, 128]), format(text)).expect("fits")
}

pub(crate) fn same(a: &Array, b: &Array) -> bool {
    a.shape() == b.shape() && a.dtype() == b.dtype() && a.eq_exact(b).expect("evaluates")
}

pub(crate) fn dense(value: impl Into<Value>) -> Array {
    operands::dense(&value.into())
}

fn product(x: &Array, w: impl Into<Value>) -> Array {
    implicit((x, w.into()), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense()).expect("multiplies")
}

#[test]
fn what_is_converted_is_bit_for_bit_what_the_forward_pass_used() {
    let tested: BTreeSet<&str> = TEXTS.iter().filter_map(|text| text.split(':').next()).collect();
    // The one of a stranger makes a dense array, and is registered by another test.
    let known: BTreeSet<&str> = format::names().into_iter().filter(|name| *name != "thirds").collect();
    assert_eq!(tested, known, "a format of each name is tested");
    let _deny = Policy::Deny.scope();
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        let (master, x) = (normal_of(dtype, 1, &[64, 128]), normal_of(dtype, 2, &[3, 128]));
        for text in TEXTS {
            let prepared = Prepared::new(&master, format(text)).expect("fits");
            let converted = prepared.convert().expect("converts");
            assert!(same(&product(&x, prepared.clone()), &product(&x, converted.clone())), "{text}");
            assert!(same(&dense(prepared.clone()), &dense(converted.clone())), "{text}");
            assert!(converted.nbytes() <= prepared.nbytes(), "{text}");
            if format(text).trained_scales().is_none() {
                assert!(has_fixed_scales(text), "{text} has scales that are trained");
                continue;
            }
            let trained = prepared.with_trained_scales().expect("has scales");
            let of_trained = trained.convert().expect("converts");
            assert!(same(&product(&x, trained), &product(&x, of_trained.clone())), "{text} with trained scales");
            if dtype == Dtype::Float32 {
                assert!(same(&dense(of_trained), &dense(converted)), "{text}: it begins as the format's own scales");
            }
        }
    }
}

#[test]
fn a_quantized_array_is_prepared_with_its_codes_and_scales() {
    for text in TEXTS {
        if format(text).trained_scales().is_none() {
            continue;
        }
        let converted = prepared(3, text).convert().expect("converts");
        check_denied(&converted, text);
        let _allow = Policy::Allow.scope();
        let again = Prepared::from_value(&converted, format(text)).expect("continues");
        let back = again.convert().expect("converts");
        assert!(same(&dense(back.clone()), &dense(converted.clone())), "{text}");
        let (Value::Implicit(back), Value::Implicit(converted)) = (back, converted) else { panic!("it is packed") };
        assert!(back.aux_eq(&*converted), "{text}");
        for ((name, back), (_, converted)) in back.children().into_iter().zip(converted.children()) {
            // FP4 has two codes of zero, and the sign of a zero decides nothing.
            let two_zeros = text.starts_with("fp4") && name.field == "codes";
            assert!(two_zeros || same(&dense(back), &dense(converted)), "{text}: {name}");
        }
    }
    let _allow = Policy::Allow.scope();
    let other =
        Prepared::from_value(&prepared(3, "nf4:64").convert().expect("converts"), format("int8")).expect("fits");
    assert!(other.scales().is_none(), "scales of another format are not its own");
    let same_master = Prepared::from_value(&prepared(3, "nf4:64").into(), format("int8")).expect("fits");
    assert!(same(same_master.master(), &normal(3, &[64, 128])), "a master stays");
}

/// The master of an implicit array is a dense one, which the policy is asked for.
fn check_denied(value: &Value, text: &str) {
    let _deny = Policy::Deny.scope();
    assert!(matches!(Prepared::from_value(value, format(text)), Err(Error::MaterializationDenied { .. })));
}

#[test]
fn value_and_gradient_are_those_of_ste() {
    let x = normal(4, &[3, 128]);
    for text in ["nf4:64", "affine:2:32", "mxfp4", "int8:columns"] {
        let loss = move |x: &Array, w: Value| -> Result<Array> {
            let _deny = Policy::Deny.scope();
            let y = implicit((x, w), |(x, w)| x.matmul(w.t())?.square()?.matmul(w)?.sum(None))?;
            y.dense()
        };
        let of = |prepare: fn(&Array, &'static str) -> Result<Value>| {
            let x = x.clone();
            move |arrays: &[Array]| Ok::<_, Exception>(vec![loss(&x, prepare(&arrays[0], text)?)?])
        };
        let own = of(|master, text| Ok(Prepared::new(master, format(text))?.into()));
        let plain = of(|master, text| {
            let format = format(text);
            ste(master, move |master: &Array| format.quantize(master))
        });
        let master = [normal(5, &[64, 128])];
        let step = |loss: &Function| {
            let (value, gradient) = transforms::value_and_grad_with_argnums(loss, &[0][..])(&master).expect("runs");
            [value, gradient].concat()
        };
        for (own, plain) in step(&own).iter().zip(&step(&plain)) {
            assert!(same(own, plain), "{text}");
        }
    }
}

/// A stranger's format, which counts.
#[derive(Debug)]
struct Counted;

static QUANTIZED: AtomicUsize = AtomicUsize::new(0);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counted")
    }
}

impl Quantizer for Counted {
    fn quantize(&self, x: &Array) -> Result<Value> {
        QUANTIZED.fetch_add(1, Ordering::Relaxed);
        Nf4 { block: 64, double: false }.quantize(x)
    }
}

#[test]
fn it_is_quantized_once_in_a_trace() {
    let _deny = Policy::Deny.scope();
    let w = Prepared::new(&normal(6, &[64, 128]), Counted).expect("fits");
    let x = normal(7, &[3, 128]);
    let rows = Array::from_slice(&[0u32, 5], &[2]);
    let before = QUANTIZED.load(Ordering::Relaxed);
    let (result, counters) = Counters::during(|| {
        implicit((&x, &w, &rows), |(x, w, rows)| {
            // An embedding that is the head as well, and a product with each side.
            let y = x.add(w.take_axis(rows, 0)?.sum(None)?)?.matmul(w.t())?;
            y.matmul(w)?.sum(None)
        })
    });
    result.expect("runs");
    assert_eq!(QUANTIZED.load(Ordering::Relaxed) - before, 1);
    assert_eq!((counters.materialized, counters.materialized_bytes), (0, 0));
}

#[test]
fn a_trace_shows_what_was_used() {
    let (x, w) = (normal(7, &[3, 128]), prepared(1, "nf4:64"));
    let told = explain((&x, &w), |(x, w)| x.matmul(w.t())).expect("runs").to_string();
    let operands = told.split("crates").next().unwrap_or_default();
    assert!(operands.contains("w:Prepared(f32[64,128])") || operands.contains("Prepared(f32[64,128])"), "{told}");
    assert!(told.contains("Ste(f32[128,64])") && told.contains("0 materialized"), "{told}");
}

#[test]
fn one_that_nothing_uses_is_itself() {
    let w = Value::from(prepared(1, "nf4:64"));
    let [kept, transposed] = implicit(&w, |w| Ok::<_, tacit_core::Error>([w.clone(), w.t()])).expect("runs");
    assert!(kept.downcast::<Prepared>().is_some() && transposed.downcast::<Ste>().is_some());
}

#[test]
fn several_in_one_primitive() {
    let (v, w) = (prepared(1, "nf4:64"), prepared(2, "int8"));
    let _allow = Policy::Allow.scope();
    let y = implicit((&v, &w), |(v, w)| v.matmul(w.t())).expect("runs").dense().expect("is dense");
    let [v, w] = [dense(v), dense(w)];
    let expected = v.matmul(w.t()).expect("multiplies");
    assert!(tacit_conformance::oracle::relative_error(&y, &expected).expect("floats") < 1e-5);
}

#[test]
fn switched_off_it_is_its_master() {
    let w = prepared(1, "nf4:64");
    let x = normal(2, &[3, 128]);
    let off = w.clone().switched(false);
    let expected = x.matmul(w.master().t()).expect("multiplies");
    let _deny = Policy::Deny.scope();
    assert!(same(&product(&x, off.clone()), &expected));
    assert!(same(&dense(off.convert().expect("converts")), &dense(w.clone())));
    let names = |w: &Prepared| w.children().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&off), names(&w), "a run that is switched keeps its parameters");
    assert!(!off.aux_eq(&w), "a compiled step is traced again");
    assert!(off.switched(true).aux_eq(&w));
}

#[test]
fn it_is_saved_with_its_format_and_scales() {
    for text in ["nf4:64:double", "affine:2:32", "nvfp4:global"] {
        let plain = prepared(1, text);
        let trained = plain.clone().with_trained_scales().unwrap_or_else(|_| plain.clone());
        for array in [plain.switched(false), trained] {
            let boxed: Box<dyn ImplicitArray> = Box::new(array.clone());
            let (json, arrays) = store::collect(|| serde_json::to_string(&boxed).expect("is stored"));
            let read: Box<dyn ImplicitArray> = store::provide(arrays, || serde_json::from_str(&json).expect("is read"));
            assert!(read.aux_eq(&array), "{json}");
            let read = Value::from(read);
            let read = read.downcast::<Prepared>().expect("is one");
            assert!(same(&dense(read.convert().expect("converts")), &dense(array.convert().expect("converts"))));
            assert_eq!(read.scales().is_some(), array.scales().is_some());
        }
    }
    let array: Box<dyn ImplicitArray> = Box::new(prepared(1, "nf4:64"));
    let (json, arrays) = store::collect(|| serde_json::to_string(&array).expect("is stored"));
    let broken = json.replace("nf4:64", "affine:4:48");
    assert!(store::provide(arrays, || serde_json::from_str::<Box<dyn ImplicitArray>>(&broken)).is_err(), "{broken}");
}

#[test]
fn its_gradient_is_the_same_structure() {
    let w = prepared(1, "affine:2:32").with_trained_scales().expect("has scales");
    let (leaves, def) = tree::flatten(&Value::from(w.clone()), Open::Fully).expect("flattens");
    assert_eq!(leaves.len(), 3);
    let again: Value = tree::unflatten(&def, leaves).expect("is one again");
    assert!(same(&dense(again), &dense(w)));
}

#[test]
fn a_compiled_step_is_traced_anew_for_another_format() {
    let x = normal(2, &[3, 128]);
    let mut step = compile(|(x, w): (Array, Array)| x.matmul(w.t()));
    let mut seen = HashSet::new();
    for text in ["nf4:64", "int8", "nf4:64"] {
        let w = prepared(1, text);
        let compiled = step.call((Value::from(&x), Value::from(w.clone()))).expect("runs").dense().expect("dense");
        let error = tacit_conformance::oracle::relative_error(&compiled, &product(&x, w)).expect("floats");
        assert!(error < 1e-6, "{text}: {error}");
        seen.insert(text);
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn what_does_not_fit_is_told() {
    check(
        Prepared::new(&normal(1, &[8, 40]), Affine { bits: 4, group: 64 }),
        expect![[r#"
            the last axis of f32[8,40] is not whole groups of 64, as affine has them
            help: use a smaller group size, or an array type whose blocks may straddle rows"#]],
    );
    check(
        prepared(1, "nf4:64:double").with_trained_scales(),
        expect![[r#"
            the format nf4:64:double has no scales that can be trained
            help: train the master alone, or take a format with one float or byte for each block, such as nf4:64"#]],
    );
    let quantized = Value::from(Nf4Array::quantize(&normal(1, &[8, 64]), 64).expect("quantizes"));
    let _deny = Policy::Deny.scope();
    check(
        Prepared::from_value(&quantized, Counted),
        expect![[r#"
            a dense array of Nf4(f32[8,64]) needs Nf4 materialized, which the policy forbids
            help: allow it here with `Policy::Allow.scope()`"#]],
    );
}

/// What a packed array that was multiplied by a negative number, or by zero, stores.
#[test]
fn scales_of_a_stored_array_may_be_negative_or_zero() {
    let _allow = Policy::Allow.scope();
    let formats = [
        "nf4:64",
        "fp4:32",
        "e4m3:64",
        "e5m2:64",
        "binary:64",
        "dynamic:8:64",
        "int8",
        "affine:4:64",
        "ternary:64",
        "nvfp4",
        "nvfp4:global",
    ];
    for (text, factor) in formats.into_iter().flat_map(|text| [(text, -0.5), (text, 0.0)]) {
        let format: AnyFormat = text.parse().expect("a format");
        let w = format.quantize(&normal(3, &[4, 64])).expect("quantizes");
        let w = implicit(w, |w| w.multiply(Array::from_f32(factor))).expect("multiplies");
        // Others are a view of what they were.
        if w.to_string().starts_with("Scaled") {
            continue;
        }
        let found = Prepared::from_value(&w, format);
        let Ok(found) = found else { panic!("{text}: {found:?}") };
        let (found, expected) = (Value::from(found).dense().expect("builds"), w.dense().expect("builds"));
        let error = tacit_conformance::oracle::relative_error(&found, &expected).expect("floats");
        assert!(error < 1e-6, "{text} times {factor}: {error}");
    }
}
