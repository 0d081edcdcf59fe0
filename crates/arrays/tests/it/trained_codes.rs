//! Weights that are trained as their codes: what a step makes of them, and what they are between steps.

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, random, transforms};
use tacit_arrays::format::quantize_by_key;
use tacit_arrays::{Prepared, TrainedCodes};
use tacit_core::{ImplicitArray, Policy, Result, Value, implicit, store};

use crate::messages::check;
use crate::operands::{normal, normal_of};
use crate::prepared::{dense, format, same};

fn key(seed: u64) -> Array {
    random::key(seed).expect("a key")
}

fn trained(x: &Array, text: &str) -> TrainedCodes {
    TrainedCodes::from_value(&x.into(), text, &key(5)).expect("fits")
}

/// The values of a step, less by so much.
fn moved(w: &TrainedCodes, by: f32) -> Result<TrainedCodes> {
    let moving = w.for_step()?;
    let value = moving.value().expect("it is moved").subtract(Array::from_f32(by))?;
    Ok(moving.with_value(value))
}

#[test]
fn a_step_rounds_by_one_half_of_the_key_and_keeps_the_other() {
    let _allow = Policy::Allow.scope();
    let x = normal(1, &[64, 128]);
    for text in ["int8", "int8:columns", "affine:8:64", "nf4:64", "bf16", "rotated:int8"] {
        let drawn = format!("{text}+stochastic");
        let w = trained(&x, &drawn);
        assert!(
            *w.codes() == format(text).quantize(&x).expect("quantizes"),
            "{text}: it begins with the nearest codes"
        );
        let moving = moved(&w, 0.001).expect("is moved");
        let value = moving.value().expect("it is moved").clone();
        let stepped = moving.stepped().expect("steps");
        let (kept, half) = random::split(w.key(), 2).expect("splits");
        assert!(*stepped.codes() == quantize_by_key(format(text), &value, &half).expect("quantizes"), "{text}");
        assert!(same(stepped.key(), &kept) && stepped.value().is_none(), "{text}");
        // What is not moved keeps its codes, and one that is at rest its key.
        if text == "nf4:64" {
            let still = w.for_step().and_then(TrainedCodes::stepped).expect("steps");
            assert!(still.codes() == w.codes());
        }
        assert!(same(w.clone().stepped().expect("is at rest").key(), w.key()), "{text}");
    }
}

/// One in the same format goes on from the codes that it stands for, and in another one from its master.
#[test]
fn what_was_prepared_needs_no_floats_but_its_master() {
    let _deny = Policy::Deny.scope();
    let x = normal(8, &[8, 64]);
    let prepared = |text: &str| Prepared::new(&x, text).and_then(Prepared::with_trained_scales).expect("fits");
    let of = |prepared: Prepared| TrainedCodes::from_value(&prepared.into(), "int8+stochastic", &key(1)).expect("fits");
    let nearest = format("int8").quantize(&x).expect("quantizes");
    assert!(*of(prepared("affine:4:64")).codes() == nearest);
    let alike = prepared("int8");
    assert!(*of(alike.clone()).codes() == alike.convert().expect("converts"));
}

/// In a narrow type the floats of a step are not rounded to it.
#[test]
fn steps_of_half_floats_are_those_of_floats() {
    let _allow = Policy::Allow.scope();
    let x = normal_of(Dtype::Bfloat16, 2, &[64, 128]);
    for text in ["nf4:64+stochastic", "bf16+stochastic"] {
        let w = trained(&x, text);
        // A hundredth of the distance of two numbers around 1 in bf16.
        let step = 1e-4;
        let mut stepped = w.clone();
        for _ in 0..100 {
            stepped = moved(&stepped, step).and_then(TrainedCodes::stepped).expect("steps");
        }
        assert_eq!(Value::from(stepped.clone()).aval().expect("an aval").dtype, Dtype::Bfloat16);
        let wide = |w: &TrainedCodes| w.for_step().expect("decodes").value().expect("has one").clone();
        let lost = wide(&w).subtract(wide(&stepped)).and_then(|lost| lost.mean(None)).expect("a mean");
        let lost = lost.item_exact::<f32>();
        assert!((lost - 100.0 * step).abs() < 3e-3, "{text}: {lost}");
    }
}

/// The largest of a block is its scale, which grows by less than its own type has numbers for.
#[test]
fn the_largest_of_a_block_grows_in_half_floats_too() {
    let _allow = Policy::Allow.scope();
    let row: Vec<f32> = (0..64).map(|at| if at == 0 { 1.0 } else { 0.25 }).collect();
    for dtype in [Dtype::Bfloat16, Dtype::Float16] {
        let x = Array::from_slice(&row, &[1, 64]).as_dtype(dtype).expect("casts");
        for text in ["int8+stochastic", "nf4:64+stochastic"] {
            let mut w = trained(&x, text);
            for _ in 0..20 {
                w = moved(&w, -1e-4).and_then(TrainedCodes::stepped).expect("steps");
            }
            let largest = w.for_step().expect("decodes").value().expect("has one").max(None).expect("a number");
            let largest = largest.item_exact::<f32>();
            assert!((largest - 1.002).abs() < 2e-4, "{text} of {dtype:?}: {largest}");
            assert_eq!(w.codes().aval().expect("an aval").dtype, dtype);
        }
    }
}

/// By the format's own scales it is beyond the codes of its block there, and would stay or move inward.
#[test]
fn what_is_at_an_end_of_its_block_moves_outward() {
    let _allow = Policy::Allow.scope();
    for (text, ends, at, by) in [
        ("affine:8:64", [-1.0f32, 0.7], 1, -1e-4),
        ("symmetric:8:64", [-1.0, 127.0 / 128.0], 1, -1e-4),
        ("dynamic:8:64", [-1.0, 0.5], 0, 1e-4),
    ] {
        let row: Vec<f32> = ends.into_iter().chain([0.25; 62]).collect();
        let mut w = trained(&Array::from_slice(&row.repeat(512), &[512, 64]), &format!("{text}+stochastic"));
        let end = |w: &TrainedCodes| {
            let values = w.for_step().expect("decodes").value().expect("has one").clone();
            let column = values.take_axis(Array::from_slice(&[at], &[1]), 1).and_then(|column| column.mean(None));
            column.expect("a mean").item_exact::<f32>()
        };
        let start = end(&w);
        for _ in 0..20 {
            w = moved(&w, by).and_then(TrainedCodes::stepped).expect("steps");
        }
        let (found, expected) = (end(&w), start - 20.0 * by);
        assert!((found - expected).abs() < 5e-4, "{text}: {start} to {found}, and not to {expected}");
    }
}

/// The half-quadratic method leaves outliers to themselves.
#[test]
fn what_a_fit_cuts_off_is_reached_by_a_step() {
    let _allow = Policy::Allow.scope();
    let rest = normal(10, &[63]);
    let row: Vec<f32> = std::iter::once(-1.0).chain(rest.as_slice::<f32>().iter().map(|x| 0.05 * x)).collect();
    let x = Array::from_slice(&row, &[1, 64]);
    for text in ["nf4:64+hqq", "int8:64+hqq"] {
        let w = trained(&x, &format!("{text}+stochastic"));
        let stepped = w.with_value(x.clone()).stepped().expect("steps");
        let found = dense(stepped.codes().clone()).as_slice::<f32>()[0];
        assert!((found + 1.0).abs() < 1e-2, "{text}: {found}");
    }
}

/// Nor do tables that end nearer to zero on one side shrink, or scales that are a mean magnitude.
#[test]
fn codes_that_nothing_moves_stay() {
    let _allow = Policy::Allow.scope();
    let x = normal(9, &[16, 128]);
    for text in ["nf4:64", "dynamic:8:64", "dynamic:4:64", "symmetric:4:32", "ternary:32"] {
        let w = trained(&x, &format!("{text}+stochastic"));
        let mut still = w.clone();
        for _ in 0..10 {
            still = still.for_step().and_then(TrainedCodes::stepped).expect("steps");
        }
        let [before, after] = [&w, &still].map(|w| dense(w.codes().clone()));
        let size = |array: &Array| array.abs().and_then(|array| array.mean(None)).expect("a mean").item_exact::<f32>();
        let lost = size(&before.subtract(&after).expect("subtracts"));
        assert!(lost < 1e-3 * size(&before), "{text}: {lost} of {}", size(&before));
    }
}

#[test]
fn the_gradient_is_that_of_the_floats_and_none_are_built() {
    let _deny = Policy::Deny.scope();
    let (x, w) = (normal(3, &[5, 128]), trained(&normal(4, &[64, 128]), "int8+stochastic"));
    let product = |w: Value| implicit((&x, w), |(x, w)| x.matmul(w.t())?.square()?.sum(None))?.dense();
    let lent = w.for_gradient().expect("is lent");
    let value = lent.value().expect("it has one").clone();
    let lend = |value: &Array| Value::from(lent.clone().with_value(value.clone()));
    let found = transforms::grad(|value: &Array| Ok(product(lend(value))?))(&value).expect("a gradient");
    let decoded = dense(w.codes().clone());
    let plain = |w: &Array| -> Result<Array, Exception> { x.matmul(w.t())?.square()?.sum(None) };
    let expected = transforms::grad(plain)(&decoded).expect("a gradient");
    assert!(found.all_close(&expected, 1e-4, 1e-3, None).expect("compares"));
    // Between steps it is its codes.
    let [own, codes] = [w.clone().into(), w.codes().clone()].map(|w| product(w).expect("multiplies"));
    assert!(same(&own, &codes));
}

#[test]
fn it_is_saved_with_its_key() {
    let w: Box<dyn ImplicitArray> = Box::new(trained(&normal(5, &[8, 64]), "int8+stochastic"));
    let (json, arrays) = store::collect(|| serde_json::to_string(&w).expect("is stored"));
    let read = |json: &str| store::provide(arrays.clone(), || serde_json::from_str::<Box<dyn ImplicitArray>>(json));
    assert!(Value::from(read(&json).expect("is read")) == Value::from(w));
    assert!(read(&json.replace("int8+stochastic", "int8")).is_err(), "{json}");
    let other = read(&json.replace("int8+stochastic", "nf4:64+stochastic")).map_err(|error| error.to_string());
    assert!(other.is_err_and(|error| error.contains("is not in the format nf4:64+stochastic")), "{json}");
}

/// What is at an end of its block would move inward in a half of all steps.
#[test]
fn formats_whose_scales_are_rounded_are_refused() {
    let x = normal(6, &[8, 256]);
    let of = |text: &str| TrainedCodes::from_value(&(&x).into(), format!("{text}+stochastic").as_str(), &key(1));
    for text in ["fp4:64:double", "k:4", "nvfp4", "mxfp4:floor", "mxfp8:round", "rotated:nf4:64:double"] {
        let message = of(text).map(drop).expect_err(text).to_string();
        assert!(
            message.contains(&format!("in the format {text}+stochastic, whose scales are rounded too")),
            "{message}"
        );
    }
    for text in ["fp4:64", "affine:4:64", "mxfp4", "mxfp8", "f16", "rotated:nf4:64", "nf4:64+search"] {
        of(text).expect(text);
    }
    check(
        of("nf4:64:double"),
        expect![[r#"
            codes are not trained in the format nf4:64:double+stochastic, whose scales are rounded too: a step would cut off ends of blocks
            help: take a format whose scales are floats, such as int8+stochastic or nf4:64+stochastic, or mxfp4+stochastic"#]],
    );
}

#[test]
fn bad_input() {
    let x = normal(6, &[8, 64]);
    check(
        TrainedCodes::from_value(&(&x).into(), "int8", &key(1)),
        expect![[r#"
            codes are not trained in the format int8, which rounds small steps away
            help: write int8+stochastic"#]],
    );
    check(
        TrainedCodes::from_value(&(&x).into(), "int8+stochastic", &Array::from_f32(1.0)),
        expect![[r#"
            its key is f32[], where a weight of trained codes of f32[8,64] has u32[2]
            help: take the parts of one array, with its shape and block size"#]],
    );
    let w = trained(&x, "int8+stochastic").with_value(normal(7, &[8, 32]));
    check(
        w.stepped(),
        expect![[r#"
            its value is f32[8,32], where a weight of trained codes of f32[8,64] has f32[8,64]
            help: take the parts of one array, with its shape and block size"#]],
    );
}
