//! Codes by what was seen of the inputs.

mod corrected;
mod experts;

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, AnyFormat, Quantizer};
use tacit_arrays::{AffineArray, Awq, Calibrate, Gptq, Observation, Observed, ScaledChannels};
use tacit_conformance::oracle::floats;
use tacit_core::tree::{self, Open};
use tacit_core::{Policy, Result, Value, implicit};

use crate::messages::{check, said_of};
use crate::nf4_format::CODEBOOK;
use crate::operands::normal;

const N: usize = 24;
const K: usize = 256;

/// Inputs that are mixtures of 32, and a little of their own.
fn inputs(seed: u64, k: i32) -> Array {
    let mixed = normal(seed, &[512, 32]).matmul(normal(100, &[32, k])).expect("mixes");
    mixed.add(normal(seed + 1, &[512, k])).expect("adds")
}

fn weight() -> Array {
    normal(7, &[N as i32, K as i32])
}

fn format(text: &str) -> AnyFormat {
    text.parse().expect("a format")
}

/// `|x (w - q)^T|^2`.
fn error(x: &Array, w: &Array, codes: &Value) -> f64 {
    let _allow = Policy::Allow.scope();
    let lost =
        codes.dense().and_then(|codes| Ok(codes.as_dtype(Dtype::Float32)?.subtract(w.as_dtype(Dtype::Float32)?)?));
    let lost = x.matmul(lost.expect("dense").swap_axes(-1, -2).expect("turns")).expect("multiplies");
    f64::from(lost.square().and_then(|lost| lost.sum(None)).expect("sums").item_exact::<f32>())
}

/// The numbers that a group of a row can be stored as, in plain floats.
type Levels = fn(&str, &[f64]) -> Vec<f64>;

fn levels(text: &str, group: &[f64]) -> Vec<f64> {
    let absmax = group.iter().fold(0f64, |most, x| most.max(x.abs()));
    if text.starts_with("nf4") {
        return CODEBOOK.iter().map(|&level| f64::from(level) * absmax).collect();
    }
    if text.starts_with("int8") {
        return (-127..=127).map(|level| f64::from(level) * absmax / 127.0).collect();
    }
    let floats: Vec<f32> = group.iter().map(|&x| x as f32).collect();
    let array = Array::from_slice(&floats, &[1, group.len() as i32]);
    let bits = text.split(':').nth(1).and_then(|bits| bits.parse().ok()).expect("bits");
    let made = AffineArray::quantize(&array, Affine { bits, group: group.len() }).expect("quantizes");
    let number = |array: &Array| f64::from(array.reshape(&[]).expect("a number").item_exact::<f32>());
    let scale = number(made.scales().and_then(Value::as_dense).expect("scales"));
    let bias = number(made.biases().expect("biases"));
    (0..1 << bits).map(|code| f64::from(code) * scale + bias).collect()
}

fn nearest(x: f64, levels: &[f64]) -> f64 {
    levels.iter().copied().min_by(|a, b| (a - x).abs().total_cmp(&(b - x).abs())).expect("a level")
}

/// GPTQ as the paper's algorithm 1 has it, a column after the other, in `f64`: the inverse of the damped Hessian by
/// Gauss and Jordan, and its upper Cholesky factor.
fn textbook(x: &Array, w: &Array, text: &str, group: usize, levels: Levels) -> Array {
    let gram = floats(&x.t().matmul(x).expect("multiplies")).expect("floats");
    let mut h: Vec<Vec<f64>> = gram.chunks(K).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect();
    let mean = (0..K).map(|i| h[i][i]).sum::<f64>() / K as f64;
    let mut inverse: Vec<Vec<f64>> = (0..K).map(|i| (0..K).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    (0..K).for_each(|i| h[i][i] += 0.01 * mean);
    for i in 0..K {
        let pivot = h[i][i];
        for j in 0..K {
            h[i][j] /= pivot;
            inverse[i][j] /= pivot;
        }
        for other in (0..K).filter(|&other| other != i) {
            let factor = h[other][i];
            for j in 0..K {
                h[other][j] -= factor * h[i][j];
                inverse[other][j] -= factor * inverse[i][j];
            }
        }
    }
    // `inverse = U^T U`, row by row.
    let mut upper = vec![vec![0f64; K]; K];
    for i in 0..K {
        for j in i..K {
            let before: f64 = (0..i).map(|row| upper[row][i] * upper[row][j]).sum();
            upper[i][j] = if i == j { (inverse[i][i] - before).sqrt() } else { (inverse[i][j] - before) / upper[i][i] };
        }
    }
    let flat = floats(w).expect("floats");
    let mut coded = Vec::new();
    for row in flat.chunks(K) {
        let mut row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
        let mut own = Vec::new();
        for i in 0..K {
            if i % group == 0 {
                own = levels(text, &row[i..i + group]);
            }
            let rounded = nearest(row[i], &own);
            let error = (row[i] - rounded) / upper[i][i];
            for j in i..K {
                row[j] -= error * upper[i][j];
            }
            coded.push(rounded as f32);
        }
    }
    Array::from_slice(&coded, &[N as i32, K as i32])
}

#[test]
fn the_layers_error_is_that_of_the_textbook_and_below_that_of_rounding() {
    let (x, w) = (inputs(1, K as i32), weight());
    let seen = Observation::from_inputs(&x).expect("finite");
    for (text, group, at_most) in [
        ("affine:3:64", 64, 0.5),
        ("affine:4:32", 32, 0.5),
        ("nf4:64", 64, 0.5),
        ("int8", K, 0.5),
        ("affine:2:128", 128, 0.6),
    ] {
        let format = format(text);
        let plain = error(&x, &w, &format.quantize(&w).expect("quantizes"));
        let codes = Gptq::default().quantize(&format, &w, &seen).expect("calibrates");
        assert!(format.stores(&codes), "{text}: {codes}");
        let found = error(&x, &w, &codes);
        let expected = error(&x, &w, &textbook(&x, &w, text, group, levels).into());
        assert!((found / expected - 1.0).abs() <= 0.01, "{text}: {found} where the textbook has {expected}");
        assert!(found <= at_most * plain, "{text}: {found} where rounding has {plain}");
    }
}

#[test]
fn every_format_gains() {
    // Two super-blocks of the K-quants.
    let (x, w) = (inputs(1, 512), normal(7, &[16, 512]));
    let seen = Observation::from_inputs(&x).expect("finite");
    for (text, at_most) in [
        ("fp4:64", 0.2),
        ("mxfp4", 0.2),
        ("nvfp4", 0.2),
        ("mxfp8", 0.2),
        ("e4m3:64", 0.2),
        ("int8:64", 0.2),
        ("int8:512", 0.2),
        ("int8:columns", 0.2),
        ("ternary:64", 0.2),
        ("affine:3:64+search", 0.2),
        ("nf4:64+hqq", 0.2),
        ("bf16", 0.2),
        // Scales that are quantized themselves.
        ("nf4:64:double", 0.2),
        ("k:2", 0.2),
        ("k:3", 0.2),
        ("k:3+search", 0.2),
        ("k:4", 0.2),
        ("k:6", 0.2),
    ] {
        let format = format(text);
        let plain = error(&x, &w, &format.quantize(&w).expect("quantizes"));
        let fitted = Gptq::default().with_refits(1).expect("one");
        for method in [Gptq::default(), Gptq::default().act_order(), fitted] {
            let codes = method.quantize(&format, &w, &seen).expect("calibrates");
            assert!(format.stores(&codes), "{text}: {codes}");
            let found = error(&x, &w, &codes);
            assert!(found <= at_most * plain, "{text}: {found} where rounding has {plain}");
            assert_eq!(codes.aval().expect("an aval"), (&w).into());
        }
    }
}

/// Rows of 160 are no whole super-blocks: these hold numbers of several rows, and still each column is rounded by itself.
#[test]
fn scales_that_are_quantized_stay_what_they_are() -> Result<()> {
    let (x, w) = (inputs(1, 160), normal(7, &[16, 160]));
    let seen = Observation::from_inputs(&x)?;
    for text in ["k:3", "k:2", "nf4:32:double"] {
        let format = format(text);
        let plain = format.quantize(&w)?;
        let codes = Gptq::default().quantize(&format, &w, &seen)?;
        let (before, after) = (tree::leaves(&plain, Open::Fully)?, tree::leaves(&codes, Open::Fully)?);
        for (leaf, (before, after)) in before.iter().zip(&after).enumerate() {
            let same = before.dense()?.eq_exact(after.dense()?)?;
            assert_eq!(same, leaf > 0, "{text}: leaf {leaf}, of which the first are the codes");
        }
        assert!(error(&x, &w, &codes) < 0.3 * error(&x, &w, &plain), "{text}");
    }
    Ok(())
}

/// The last super-block is not whole, when fitted scales are rounded.
#[test]
fn fitted_scales_of_a_part_of_a_super_block_are_rounded() -> Result<()> {
    let (x, w) = (inputs(1, 160), normal(7, &[3, 160]));
    let seen = Observation::from_inputs(&x)?;
    for text in ["k:3", "k:2", "nf4:32:double"] {
        let format = format(text);
        let codes = Gptq::default().with_refits(1)?.quantize(&format, &w, &seen)?;
        assert!(format.stores(&codes), "{text}: {codes}");
        let (found, plain) = (error(&x, &w, &codes), error(&x, &w, &format.quantize(&w)?));
        assert!(found < 0.3 * plain, "{text}: {found} where rounding has {plain}");
    }
    Ok(())
}

#[test]
fn half_floats_stay_half_floats() {
    let x = inputs(1, K as i32);
    let seen = Observation::from_inputs(&x).expect("finite");
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        let w = weight().as_dtype(dtype).expect("half");
        for text in ["affine:4:64", "nf4:64", "nf4:64:double", "int8:columns", "int8"] {
            let format = format(text);
            let plain = format.quantize(&w).expect("quantizes");
            for method in [&Gptq::default() as &dyn Calibrate, &Awq::default()] {
                let codes = method.quantize(&format, &w, &seen).expect("calibrates");
                assert_eq!(codes.aval().expect("an aval"), (&w).into(), "{text}");
                // Codes of eight bits are finer than the half floats that are compared.
                let compared = !text.starts_with("int8");
                assert!(!compared || error(&x, &w, &codes) < error(&x, &w, &plain), "{text} of {dtype:?}");
            }
            let codes = Gptq::default().quantize(&format, &w, &seen).expect("calibrates");
            assert!(format.stores(&codes) && codes.nbytes() == plain.nbytes(), "{text} of {dtype:?}: {codes}");
        }
    }
}

#[test]
fn inputs_that_were_always_zero_get_zeros_and_change_nothing() {
    let keep = Array::from_iter((0..K).map(|i| f32::from(u8::from(i % 5 != 0))), &[K as i32]);
    let (x, w) = (inputs(1, K as i32).multiply(&keep).expect("masked"), weight());
    let format = format("affine:4:64");
    let codes =
        Gptq::default().quantize(&format, &w, &Observation::from_inputs(&x).expect("finite")).expect("calibrates");
    let dead = codes.dense().and_then(|codes| Ok(codes.multiply(keep.eq(Array::from_f32(0.0))?)?)).expect("dense");
    assert!(dead.abs().and_then(|dead| dead.max(None)).expect("a maximum").item_exact::<f32>() < 0.2);
    let plain = error(&x, &w, &format.quantize(&w).expect("quantizes"));
    assert!(error(&x, &w, &codes) < 0.5 * plain);
}

#[test]
fn large_inputs_get_finer_codes() {
    let sizes = Array::from_iter((0..K).map(|i| if i % 16 == 0 { 30f32 } else { 1.0 }), &[K as i32]);
    let (x, w) = (normal(1, &[512, K as i32]).multiply(&sizes).expect("larger"), weight());
    let seen = Observation::from_inputs(&x).expect("finite");
    for (text, at_most) in [("affine:3:64", 0.4), ("nf4:64", 0.6), ("int8", 0.6), ("k:4", 0.6)] {
        let format = format(text);
        let plain = error(&x, &w, &format.quantize(&w).expect("quantizes"));
        let codes = Awq::default().quantize(&format, &w, &seen).expect("calibrates");
        let found = error(&x, &w, &codes);
        assert!(found <= at_most * plain, "{text}: {found} where rounding has {plain}");
        // The division by the scales is exact: products are those of the scaled codes, and nothing dense is built.
        let view = codes.downcast::<ScaledChannels>().expect("scaled");
        let _deny = Policy::Deny.scope();
        let y = implicit((&x, &codes), |(x, w)| x.matmul(w.t())).expect("multiplies").dense().expect("dense");
        let by_hand = x.multiply(view.factors()).expect("scales");
        let by_hand = implicit((by_hand, view.inner()), |(x, w)| x.matmul(w.t())).expect("multiplies");
        assert_eq!(floats(&y).expect("floats"), floats(&by_hand.dense().expect("dense")).expect("floats"));
    }
    // Where all inputs are alike there is nothing to scale.
    let x = ops::ones::<f32>(&[4, K as i32]).expect("ones");
    let plain = Awq::default().quantize(&format("nf4:64"), &w, &Observation::from_inputs(&x).expect("finite"));
    assert!(format("nf4:64").stores(&plain.expect("calibrates")));
}

#[test]
fn scales_that_a_half_weight_does_not_bear_are_passed_over() -> Result<()> {
    // One input is large where the weight is, and one was always zero: the largest scales are some hundreds.
    let first = |size: f32| Array::from_iter((0..K).map(|i| if i == 0 { size } else { 0.0 }), &[K as i32]);
    let sizes = first(29.0).add(Array::from_iter((0..K).map(|i| if i == 1 { 0f32 } else { 1.0 }), &[K as i32]))?;
    let x = normal(1, &[512, K as i32]).multiply(&sizes)?;
    let w = weight().add(first(150.0))?.as_dtype(Dtype::Float16)?;
    let (seen, format) = (Observation::from_inputs(&x)?, format("affine:4:64"));
    let codes = Awq::default().quantize(&format, &w, &seen)?;
    let (found, plain) = (error(&x, &w, &codes), error(&x, &w, &format.quantize(&w)?));
    assert!(found <= 1.1 * plain, "{found} where rounding has {plain}");
    Ok(())
}

/// A stranger's format: multiples of a step, coded by itself.
#[derive(Debug)]
struct Steps;

impl std::fmt::Display for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("steps")
    }
}

impl Quantizer for Steps {
    fn quantize(&self, x: &Array) -> Result<Value> {
        let step = Array::from_f32(0.25);
        Ok(x.divide(&step)?.round(None)?.multiply(step)?.into())
    }
}

#[test]
fn a_strangers_format_that_only_quantizes_gains() {
    let (x, w) = (inputs(1, K as i32), weight());
    let seen = Observation::from_inputs(&x).expect("finite");
    let plain = error(&x, &w, &Steps.quantize(&w).expect("quantizes"));
    let found = error(&x, &w, &Gptq::default().quantize(&Steps.into(), &w, &seen).expect("calibrates"));
    assert!(found < 0.9 * plain);
}

#[test]
fn bad_observations_and_formats() {
    let (x, w) = (inputs(1, K as i32), weight());
    let seen = Observation::from_inputs(&x).expect("finite");
    let gptq = |text: &str, w: &Array, seen: &Observation| Gptq::default().quantize(&format(text), w, seen);
    let said = [
        said_of(gptq("nf4:64", &normal(1, &[8, 128]), &seen)),
        said_of(gptq("nf4:64", &normal(1, &[256]), &seen)),
        said_of(gptq("nf4:64", &Array::from_slice(&[1i32], &[1, 1]), &seen)),
        said_of(gptq("rotated:nf4:64", &w, &seen)),
        said_of(gptq("nf4:512", &w, &seen)),
    ];
    expect![[r#"
        the weight is f32[8,128], and what was seen are inputs of f32[256,256]
        help: give what was seen of this weight
        the weight is f32[256], which is neither a matrix nor a stack of them
        help: calibrate a weight of two or three axes, and quantize others as they are
        the weight is i32[1,1], which is not float
        help: give an f32, f16 or bf16 array
        GPTQ does not code f32[24,256] in rotated:nf4:64: a rotation makes each element of all inputs
        help: take a format whose blocks lie along the rows and divide them, or another method
        GPTQ does not code f32[24,256] in nf4:512: its blocks straddle rows
        help: take a format whose blocks lie along the rows and divide them, or another method
    "#]]
    .assert_eq(&said.concat());
    let zeros = Observation::from_inputs(&ops::zeros::<f32>(&[4, K as i32]).expect("zeros")).expect("finite");
    let said = [
        said_of(gptq("nf4:64", &w, &zeros)),
        said_of(Gptq::default().with_damping(0.0)),
        said_of(Gptq::default().with_damping(f32::NAN)),
        said_of(Awq::default().quantize(&format("bf16"), &w, &seen)),
        said_of(Awq::new(0)),
    ];
    expect![[r#"
        the sums of squares of the inputs say nothing: all inputs were zero, or one was not finite
        help: observe the weight on inputs such as it is used with
        a damping of 0 is not from 0.001 to 1
        help: use 0.01, the usual choice, or more where few rows were observed
        a damping of NaN is not from 0.001 to 1
        help: use 0.01, the usual choice, or more where few rows were observed
        the format bf16 has no scales, and codes an input alike however that is scaled
        help: take a format with scales, such as affine:4:64, or quantize without AWQ
        0 exponents are not searched
        help: search among 20, the usual choice, and at most 1000
    "#]]
    .assert_eq(&said.concat());
    let experts = Observed::new(normal(1, &[2, 8, 64])).expect("a weight");
    let chosen = Array::from_slice(&[1u32], &[1]);
    implicit((normal(1, &[1, 4, 64]), &experts), |(x, w)| ops::gather_mm(x, w.swap_axes(1, 2)?, None, &chosen, None))
        .expect("multiplies");
    let said = [
        said_of(gptq("nf4:64", &normal(1, &[2, 8, 64]), &experts.finish().expect("products"))),
        said_of(ScaledChannels::new(&w, &normal(1, &[3]), -1)),
        said_of(ScaledChannels::new(&w, &normal(1, &[3]), 2)),
    ];
    expect![[r#"
        matrix 0 of f32[2,8,64] met no rows while it was observed
        help: observe more inputs, until each is chosen, or quantize the weight without them
        the factors are f32[3], and f32[24,256] is scaled along axis -1
        help: give a float vector with a factor for each position along an axis of the array
        the factors are f32[3], and f32[24,256] is scaled along axis 2
        help: give a float vector with a factor for each position along an axis of the array
    "#]]
    .assert_eq(&said.concat());
    let nan = Array::from_f32(f32::NAN);
    check(
        gptq("nf4:64", &w.multiply(&nan).expect("nan"), &seen),
        expect![[r#"
        kernel Nf4Quantize failed: element 0 is NaN, which no code can hold
        help: replace NaN and infinities before quantizing"#]],
    );
    check(
        Awq::default().quantize(&format("nf4:64"), &w.multiply(&nan).expect("nan"), &seen),
        expect![[r#"
        kernel Nf4Quantize failed: element 0 is NaN, which no code can hold
        help: replace NaN and infinities before quantizing"#]],
    );
}

#[test]
fn scales_that_are_fitted_lose_less() -> Result<()> {
    let (x, w) = (inputs(1, K as i32), weight());
    let seen = Observation::from_inputs(&x)?;
    for (text, at_most) in [
        ("affine:3:64", 0.9),
        ("affine:4:32", 0.8),
        ("nf4:64", 0.95),
        ("affine:2:64", 0.85),
        ("fp4:64", 0.95),
        ("int8:64", 0.95),
        ("int8", 0.98),
        ("nvfp4", 0.95),
    ] {
        let format = format(text);
        for method in [Gptq::default(), Gptq::default().act_order()] {
            let plain = error(&x, &w, &method.quantize(&format, &w, &seen)?);
            let codes = method.with_refits(2)?.quantize(&format, &w, &seen)?;
            assert!(format.stores(&codes), "{text}: {codes}");
            let found = error(&x, &w, &codes);
            assert!(found <= at_most * plain, "{text}: {found} where the format's own scales have {plain}");
        }
    }
    Ok(())
}

/// A group of zeros that makes up for what those before it lose has numbers then, and the scale of these.
#[test]
fn groups_have_the_scales_of_what_they_are_when_they_are_reached() -> Result<()> {
    let common = normal(1, &[512, 32]);
    let other = common.add(normal(2, &[512, 32]).multiply(Array::from_f32(0.1))?)?;
    let (x, zeros) = (ops::concatenate(&[&common, &other], 1)?, ops::zeros::<f32>(&[16, 32])?);
    let (w, seen) = (ops::concatenate(&[normal(3, &[16, 32]), zeros], 1)?, Observation::from_inputs(&x)?);
    for text in ["mxfp4", "mxfp8", "nvfp4", "affine:3:32", "nf4:32", "int8:32"] {
        let format = format(text);
        let rounded = error(&x, &w, &format.quantize(&w)?);
        for refits in [0, 1] {
            let codes = Gptq::default().with_refits(refits)?.quantize(&format, &w, &seen)?;
            let found = error(&x, &w, &codes);
            assert!(found < 0.25 * rounded, "{text} {refits}: {found} where rounding has {rounded}");
        }
    }
    Ok(())
}

/// Of each row the best is kept: those of the format's own scales are among them.
#[test]
fn no_row_loses_more_by_fitted_scales() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let (x, w) = (inputs(3, 512), normal(9, &[40, 512]));
    let seen = Observation::from_inputs(&x)?;
    for (text, dtype) in [("affine:2:64", Dtype::Float32), ("affine:4:128", Dtype::Bfloat16), ("mxfp4", Dtype::Float16)]
    {
        let (format, w) = (format(text), w.as_dtype(dtype)?);
        let rows = |method: Gptq| -> Result<Vec<f32>> {
            let value = method.quantize(&format, &w, &seen)?;
            // Fitted scales take no more bytes.
            assert_eq!(value.nbytes(), format.quantize(&w)?.nbytes(), "{text} {dtype:?}");
            let lost = w.as_dtype(Dtype::Float32)?.subtract(value.dense()?.as_dtype(Dtype::Float32)?)?;
            floats(&lost.matmul(seen.gram()?)?.multiply(lost)?.sum_axis(1, false)?)
        };
        let plain = rows(Gptq::default())?;
        for (row, (found, plain)) in rows(Gptq::default().with_refits(1)?)?.iter().zip(plain).enumerate() {
            // Codes of half floats are read in halves here, and were compared before that rounding.
            let slack = if dtype == Dtype::Float32 { 1.0001 } else { 1.01 };
            assert!(*found <= plain * slack, "{text} {row}: {found} where there was {plain}");
        }
    }
    // A row of zeros, as a pruned one is, has nothing to fit.
    let alive: Vec<f32> = (0..40).map(|row| if row == 5 { 0.0 } else { 1.0 }).collect();
    let w = w.multiply(Array::from_slice(&alive, &[40, 1]))?;
    for text in ["nf4:64", "int8", "affine:4:64", "affine:2:128"] {
        let codes = Gptq::default().with_refits(1)?.quantize(&format(text), &w, &seen)?.dense()?;
        assert_eq!(floats(&codes)?[5 * 512..6 * 512], [0.0; 512], "{text}");
    }
    check(
        Gptq::default().with_refits(101),
        expect![[r#"
        scales are not fitted 101 times
        help: fit them 2 or 3 times, after which little is gained"#]],
    );
    Ok(())
}
