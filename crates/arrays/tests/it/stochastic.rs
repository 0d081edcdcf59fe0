//! Codes that are drawn by a key: of the two around each number, to the mean of the number, in every format alike.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_arrays::Packed;
use tacit_arrays::format::{self, AnyFormat, Fitted, Int8, Nf4, Rotation, Stochastic, quantize_by_key};
use tacit_core::compile::compile;
use tacit_core::transform::vmap;
use tacit_core::{Policy, Result, Value, tree};

use crate::messages::{check, said_of};
use crate::operands::{normal, normal_of};
use crate::prepared::{TEXTS, dense, format, same};

fn key(seed: u64) -> Array {
    random::key(seed).expect("a key")
}

fn drawn(text: &str, x: &Array, seed: u64) -> Value {
    quantize_by_key(format(text), x, &key(seed)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The elements, in the order of rows also where the codes are stored by columns.
fn floats(value: &Value) -> Vec<f32> {
    let flat = dense(value.clone()).flatten(None, None).expect("is flat");
    flat.as_slice::<f32>().to_vec()
}

/// What each element becomes for so many keys tells the two values around it, and how often the upper one is to be taken.
#[test]
fn the_mean_is_the_number_itself_in_every_format() {
    let keys = 64;
    let x = normal(1, &[8, 128]);
    for text in TEXTS.into_iter().filter(|text| !text.starts_with("rotated")) {
        let made: Vec<Vec<f32>> = (0..keys).map(|seed| floats(&drawn(text, &x, seed))).collect();
        let (mut sum, mut variance, mut drawn) = (0.0, 0.0, 0);
        for (at, x) in x.as_slice::<f32>().iter().enumerate() {
            let values = || made.iter().map(|made| made[at]);
            let (low, high) = (values().fold(f32::MAX, f32::min), values().fold(f32::MIN, f32::max));
            let count = values().filter(|value| *value > low).count();
            assert!(values().all(|value| value <= low || value >= high), "{text}: three values of {x}");
            if count == 0 {
                continue;
            }
            let part = f64::from(x - low) / f64::from(high - low);
            assert!((0.0..=1.0).contains(&part), "{text}: {low} and {high} of {x}");
            sum += count as f64 - keys as f64 * part;
            variance += keys as f64 * part * (1.0 - part);
            drawn += 1;
        }
        assert!(drawn > 500, "{text}: {drawn} are drawn");
        assert!(sum.abs() < 5.0 * variance.sqrt(), "{text}: {sum} where {} is usual", variance.sqrt());
    }
}

/// A table may end nearer to zero on one side, a mean magnitude is less than the largest, and a bias puts a code at zero.
#[test]
fn the_ends_of_a_block_are_reached() {
    for (text, ends, at) in [
        ("dynamic:8:64", [-1.0f32, 0.7], 0),
        ("dynamic:4:64", [-1.0, 0.7], 0),
        ("dynamic:4:64+reach", [-1.0, 0.7], 0),
        ("symmetric:4:64", [-1.0, 0.999], 1),
        ("affine:4:64", [-1.0, 0.7045], 1),
        ("affine:8:64", [-1.0, 0.7045], 1),
        ("ternary:64", [-1.0, 0.7], 0),
        ("nf4:64", [-1.0, 0.7], 0),
    ] {
        let row: Vec<f32> = ends.into_iter().chain([0.25; 62]).collect();
        let x = Array::from_slice(&row, &[1, 64]);
        for x in [&x, &x.negative().expect("negates")] {
            let (found, expected) = (floats(&drawn(text, x, 1))[at], x.as_slice::<f32>()[at]);
            assert!((found - expected).abs() < 1e-5, "{text}: {found} in place of {expected}");
        }
    }
    // What a fit cuts off stays cut off.
    let (x, text) = (normal(8, &[8, 128]), "affine:3:64+search:4");
    let scales = |value: Value| value.family::<dyn Packed>().expect("is packed").stored().scales;
    assert!(scales(drawn(text, &x, 1)) == scales(format(text).quantize(&x).expect("quantizes")));
}

/// Where a row is rotated the mean of the whole row is drawn, which each element has a part of.
#[test]
fn the_mean_of_rotated_rows_is_the_row() {
    let x = normal(2, &[4, 128]);
    let sum = |text: &str, keys: u64| {
        let add = |sum: Array, seed| sum.add(dense(drawn(text, &x, seed)));
        (0..keys).try_fold(ops::zeros_like(&x).expect("zeros"), add).expect("adds")
    };
    for text in ["rotated:nf4:64", "rotated:affine:4:64"] {
        let error = |keys: u64| {
            let mean = sum(text, keys).divide(Array::from_f32(keys as f32)).expect("divides");
            let lost = mean.subtract(&x).and_then(|lost| lost.square()?.mean(None)?.sqrt()).expect("an error");
            lost.item_exact::<f32>()
        };
        let (one, many) = (error(1), error(100));
        assert!(many < 0.2 * one, "{text}: {many} of {one}");
    }
}

#[test]
fn a_key_gives_the_bits_and_another_one_others() {
    let _deny = Policy::Deny.scope();
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        let x = normal_of(dtype, 3, &[64, 128]);
        for text in TEXTS {
            let own = format(text).quantize(&x).expect("quantizes");
            let [first, second, other] = [7, 7, 8].map(|seed| drawn(text, &x, seed));
            assert!(first == second, "{text} of {dtype:?}");
            assert_eq!(first.to_string(), own.to_string());
            assert_eq!(format(text).stores(&first), format(text).stores(&own), "{text} of {dtype:?}");
            if !text.ends_with("f16") || dtype == Dtype::Float32 {
                assert!(first != other, "{text} of {dtype:?}");
                assert!(first != own, "{text} of {dtype:?}");
            }
        }
    }
}

#[test]
fn what_has_a_code_keeps_it_and_zeros_are_zeros() {
    // The largest of each block is positive: not every table has its negative.
    let [edge, rest] = [ops::full::<f32>(&[128, 1], Array::from_f32(5.0)), Ok(normal(4, &[128, 63]))]
        .map(|part| part.expect("numbers"));
    let x = ops::concatenate(&[&edge, &rest], 1).expect("joins");
    for text in ["nf4:64", "fp4:64", "dynamic:8:64", "dynamic:4:64", "symmetric:4:64", "mxfp4"] {
        let held = dense(format(text).quantize(&x).expect("quantizes"));
        for seed in 0..10 {
            assert!(same(&dense(drawn(text, &held, seed)), &held), "{text}");
        }
    }
    let zeros = Array::from_slice(&[0.0f32, -0.0].repeat(512), &[8, 128]);
    for text in TEXTS {
        let made = floats(&drawn(text, &zeros, 1));
        assert!(made.iter().all(|value| *value == 0.0), "{text}");
    }
}

#[test]
fn it_is_drawn_alike_compiled_and_mapped() {
    let _allow = Policy::Allow.scope();
    let x = normal(5, &[3, 8, 128]);
    for text in ["nf4:64+stochastic", "affine:4:64+stochastic", "int8+stochastic", "bf16+stochastic"] {
        let quantized = format(text);
        let draw = |x: &Array, key: &Array| quantize_by_key(&quantized, x, key)?.dense();
        let mut compiled = compile(|(x, key): (Array, Array)| draw(&x, &key));
        for seed in [1, 2] {
            let found = compiled.call((&x, key(seed))).and_then(|found| found.dense()).expect("runs");
            assert!(same(&found, &draw(&x, &key(seed)).expect("draws")), "{text}");
        }
        assert_eq!(compiled.stats().traces, 1, "{text}");
        let mut mapped = vmap([Some(0), None], 0, |(x, key): (Array, Array)| draw(&x, &key));
        let found = mapped.call((&x, key(1))).and_then(|found| found.dense()).expect("is mapped");
        let rows = ops::split_equal(&x, 3, 0).expect("three");
        let one = |x: &Array| draw(&x.reshape(&[8, 128])?, &key(1));
        let expected: Vec<Array> = rows.iter().map(one).collect::<Result<_>>().expect("draws");
        assert!(same(&found, &ops::stack(&expected, 0).expect("stacks")), "{text}");
    }
}

#[test]
fn it_is_read_and_printed_by_its_text() {
    let said = |text: &str| match format::parse(text) {
        Ok(format) => format.to_string(),
        Err(error) => error.to_string(),
    };
    let texts = ["dynamic:8:256+reach+stochastic", "nf4:64 + search + stochastic", "rotated:int8+stochastic"];
    let wrong = ["nf4:64+stochastic+search", "nf4:64+stochastic+stochastic", "int8:stochastic"];
    expect![[r#"
        dynamic:8:256+reach+stochastic
        nf4:64+search+stochastic
        rotated:int8+stochastic
        the format nf4:64+stochastic has no such options
        help: write nf4 for blocks of 64, nf4:BLOCK, or nf4:BLOCK:double for quantized scales
        the format nf4:64+stochastic has no such options
        help: write nf4 for blocks of 64, nf4:BLOCK, or nf4:BLOCK:double for quantized scales
        the format int8:stochastic has no such options
        help: write int8 for rows, int8:columns, or int8:BLOCK"#]]
    .assert_eq(&texts.into_iter().chain(wrong).map(said).collect::<Vec<_>>().join("\n"));
    let format = AnyFormat::from(Stochastic::new(Nf4::from(64)).expect("draws"));
    let json = serde_json::to_string(&format).expect("is text");
    assert!(serde_json::from_str::<AnyFormat>(&json).expect("is read") == format, "{json}");
}

#[test]
fn bad_input() {
    let (x, nf4) = (normal(6, &[8, 64]), format("nf4:64+stochastic"));
    let said = [
        said_of(nf4.quantize(&x)),
        said_of(quantize_by_key(&nf4, &x, &Array::from_slice(&[1i32, 2], &[2]))),
        said_of(quantize_by_key(format("thirds+stochastic"), &x, &key(1))),
        said_of(quantize_by_key(Int8::default(), &ops::zeros::<f32>(&[0, 64]).expect("zeros"), &key(1))),
    ];
    expect![[r#"
        the format nf4:64+stochastic rounds by a random key, and there is none here
        help: give one to `format::quantize_by_key`, or round to the nearest codes by nf4:64
        the key to round by is i32[2], and a key is u32[2]
        help: make one with `mlx_rs::random::key`
        f32[8,64] has no codes to round to at random
        help: name a format of codes, such as int8 or dynamic:8:256
        f32[0,64] has no elements to quantize
        help: keep an empty array dense
    "#]]
    .assert_eq(&said.concat());
    let within = [
        Stochastic::new(&nf4).map(AnyFormat::from),
        Rotation::new(&nf4).map(AnyFormat::from),
        Fitted::new(&nf4, format::Fit::search()).map(AnyFormat::from),
    ];
    for within in within {
        check(
            within,
            expect![[r#"
                the format nf4:64+stochastic rounds at random, and cannot be part of another format
                help: say `+stochastic` once, behind the text of the whole format"#]],
        );
    }
    let nan = x.multiply(Array::from_f32(f32::NAN)).expect("multiplies");
    let made = quantize_by_key(&nf4, &nan, &key(1)).expect("is lazy");
    check(
        tree::eval(&made),
        expect![[r#"
            kernel Nf4Quantize failed: element 0 is NaN, which no code can hold
            help: replace NaN and infinities before quantizing"#]],
    );
}
