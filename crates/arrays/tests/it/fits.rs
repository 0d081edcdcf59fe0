//! Scales by least errors: never worse than the format's own, near the best that there are, and in every format alike.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{self, AnyFormat, Codebook, Fit, Fitted, Granularity, Int8, Nf4, Quantizer, Rotation};
use tacit_arrays::{Int8Array, Prepared};
use tacit_core::compile::compile;
use tacit_core::{Policy, Result, Value, implicit};

use crate::operands::{FLOATS, normal_of};
use crate::prepared::{TEXTS, dense, format, same};

/// The sum of the powers of all errors.
fn error(x: &Array, made: impl Into<Value>, power: f32) -> f64 {
    let wide = |array: &Array| array.as_dtype(Dtype::Float32).expect("casts");
    let lost = wide(x).subtract(wide(&dense(made))).expect("subtracts");
    let lost: Vec<f32> = lost.as_slice::<f32>().to_vec();
    lost.iter().map(|lost| f64::from(lost.abs()).powf(f64::from(power))).sum()
}

/// Weights of a layer: most of them small, some far out.
fn weights(dtype: Dtype, seed: u64) -> Array {
    let x = normal_of(Dtype::Float32, seed, &[64, 128]);
    let cubed = x.multiply(x.square().expect("squares")).expect("multiplies");
    let tailed = x.add(cubed.multiply(Array::from_f32(0.2)).expect("scales")).expect("adds");
    tailed.multiply(Array::from_f32(0.02)).and_then(|x| x.as_dtype(dtype)).expect("casts")
}

fn fitted(text: &str, fit: Fit) -> Fitted {
    Fitted::new(format(text), fit).expect("has scales")
}

#[test]
fn no_format_is_worse_than_with_its_own_scales() {
    let _deny = Policy::Deny.scope();
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        let x = weights(dtype, 1);
        for text in TEXTS.into_iter().filter(|text| !text.contains('+')) {
            let own = format(text);
            if !own.fits(Fit::search()) {
                assert!(text.ends_with("f16"), "{text} has scales");
                continue;
            }
            for (fit, power) in [(Fit::search(), 2.0), (Fit::half_quadratic(), 0.7)] {
                let made = fitted(text, fit).quantize(&x).expect("quantizes");
                assert!(own.stores(&made), "{text}");
                assert_eq!(made.nbytes(), own.quantize(&x).expect("quantizes").nbytes(), "{text}");
                let (before, after) = (error(&x, own.quantize(&x).expect("quantizes"), power), error(&x, made, power));
                // A rotation and its return round as well.
                assert!(after <= before * (1.0 + 1e-5), "{text}+{fit} of {dtype:?}: {after} above {before}");
            }
        }
    }
}

/// A table may end nearer to zero on one side, where absmax cuts elements off.
#[test]
fn by_reach_one_end_of_each_block_stays_and_none_is_cut_off() {
    let _deny = Policy::Deny.scope();
    let numbers = |array: &Array| array.as_dtype(Dtype::Float32).expect("casts").as_slice::<f32>().to_vec();
    let made = |format: &dyn Quantizer, x: &Array| format.quantize(x).expect("quantizes");
    for dtype in FLOATS {
        let x = weights(dtype, 7);
        for text in ["dynamic:8:64", "dynamic:4:64", "codebook:64:-2,-0.5,0.25,1.75"] {
            let (own, reaching) = (format(text), fitted(text, Fit::Reach));
            assert!(own.stores(&made(&reaching, &x)), "{text}");
            let without_an_end = |format: &dyn Quantizer| {
                let (x, found) = (numbers(&x), numbers(&dense(made(format, &x))));
                let blocks = x.chunks(64).zip(found.chunks(64));
                let loses = |(x, found): &(&[f32], &[f32])| {
                    let ends = [x.iter().copied().fold(0.0, f32::min), x.iter().copied().fold(0.0, f32::max)];
                    let mut pairs = x.iter().zip(*found);
                    !pairs.any(|(x, found)| ends.contains(x) && (x - found).abs() <= f32::EPSILON * x.abs())
                };
                blocks.filter(loses).count()
            };
            assert_eq!(without_an_end(&reaching), 0, "{text} of {dtype:?}");
            assert!(without_an_end(&*own) > 20, "{text} of {dtype:?}");
            // The outermost value of the last table is below zero.
            let x = x.abs().expect("magnitudes");
            assert_eq!(made(&reaching, &x) == made(&*own, &x), text.starts_with("dynamic"), "{text} of {dtype:?}");
        }
        // As far on both sides, or of one alone.
        for text in ["codebook:64:-1,1", "e4m3:64", "e5m2:64", "dynamic:8:64:unsigned"] {
            assert!(made(&fitted(text, Fit::Reach), &x) == made(&*format(text), &x), "{text} of {dtype:?}");
        }
    }
    let both = Array::from_slice(&[1.0_f32, -1.0].repeat(32), &[64]);
    for text in ["dynamic:8:64", "dynamic:4:64"] {
        let lost = |format: &dyn Quantizer| {
            let found = numbers(&dense(made(format, &both)));
            found.iter().map(|found| (1.0 - found.abs()).abs()).max_by(f32::total_cmp).expect("elements")
        };
        assert!(lost(&fitted(text, Fit::Reach)) <= f32::EPSILON, "{text}");
        assert!(lost(&*format(text)) > 0.005, "{text}");
    }
}

/// Where the codes are few and the tails long the gain is large.
#[test]
fn a_search_gains_most_where_codes_are_few() {
    let x = weights(Dtype::Float32, 2);
    for (text, most) in [("affine:2:64", 0.8), ("ternary:32", 0.7), ("nf4:64", 0.93), ("k:2", 0.7), ("nvfp4", 0.95)] {
        let own = error(&x, format(text).quantize(&x).expect("quantizes"), 2.0);
        let after = error(&x, fitted(text, Fit::search()).quantize(&x).expect("quantizes"), 2.0);
        assert!(after < most * own, "{text}: {after} of {own}");
    }
}

/// All scales from a hundredth of the largest magnitude on, for each block.
#[test]
fn a_search_is_near_the_best_scale_of_all() {
    let x = weights(Dtype::Float32, 3);
    let values = [-1.0, -0.4, 0.3, 1.0];
    let made = Fitted::new(Codebook::new(32, &values).expect("a table"), Fit::search()).expect("has scales");
    let after = error(&x, made.quantize(&x).expect("quantizes"), 2.0);
    let mut best = 0.0;
    for block in x.as_slice::<f32>().chunks(32) {
        let most = block.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        let error = |scale: f32| -> f64 {
            let nearest =
                |x: f32| values.iter().map(|v| f64::from(x - v * scale).powi(2)).fold(f64::INFINITY, f64::min);
            block.iter().map(|&x| nearest(x)).sum()
        };
        best += (10..=1200).map(|step| error(most * step as f32 / 1000.0)).fold(f64::INFINITY, f64::min);
    }
    assert!(after >= best * 0.999 && after <= best * 1.02, "{after} beside {best}");
}

#[test]
fn what_a_format_holds_exactly_stays_as_it_is() {
    for text in [
        "nf4:64",
        "affine:4:64",
        "symmetric:4:64",
        "int8",
        "mxfp4",
        "nvfp4",
        "dynamic:8:64",
        "e4m3:64",
        "e5m2:64",
        "k:6",
        "nf4:64:double",
    ] {
        let held = dense(format(text).quantize(&weights(Dtype::Float32, 4)).expect("quantizes"));
        let whole = error(&held, ops::zeros_like(&held).expect("zeros"), 2.0);
        for fit in [Fit::search(), Fit::half_quadratic()] {
            let again = error(&held, fitted(text, fit).quantize(&held).expect("quantizes"), 2.0);
            let own = error(&held, format(text).quantize(&held).expect("quantizes"), 2.0);
            assert!(again <= own + 1e-10 * whole, "{text}+{fit}: {again}");
        }
    }
    for x in [ops::zeros::<f32>(&[2, 64]).expect("zeros"), ops::ones::<f32>(&[2, 64]).expect("ones")] {
        for text in ["nf4:64", "affine:4:64", "int8", "ternary", "mxfp4", "k:4"] {
            for fit in [Fit::search(), Fit::half_quadratic()] {
                assert!(error(&x, fitted(text, fit).quantize(&x).expect("quantizes"), 2.0) < 1e-6, "{text}+{fit}");
            }
        }
    }
}

/// Two steps by hand: a block of a few elements where least squares is a short sum.
#[test]
fn least_squares_follow_by_hand() {
    // By the largest magnitude 1 has the code 127, and the others are the integers nearest to multiples of 1 / 127.
    let x = Array::from_slice(&[1.0_f32, 0.5, -0.25, 0.1], &[1, 4]);
    let made = Int8Array::fitted(&x, Granularity::Row, Fit::search()).expect("quantizes");
    let scale = dense(made.scales().expect("scales").clone()).as_slice::<f32>()[0] / 127.0;
    let codes: Vec<f32> = made.codes().as_slice::<i8>().iter().map(|&code| f32::from(code)).collect();
    let x = x.as_slice::<f32>();
    let along: f32 = codes.iter().zip(x).map(|(q, x)| q * x).sum();
    let own: f32 = codes.iter().map(|q| q * q).sum();
    assert!((scale - along / own).abs() < 1e-6 * scale, "{scale} beside {}", along / own);
}

#[test]
fn a_compiled_function_fits_as_an_eager_one() {
    let _deny = Policy::Deny.scope();
    let x = weights(Dtype::Float32, 5);
    for text in ["nf4:64+search:2", "affine:4:64+hqq:1"] {
        let format: AnyFormat = text.parse().expect("is read");
        let eager = format.quantize(&x).expect("quantizes");
        let product = |w: Value, x: &Array| implicit((x, w), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense());
        let expected = product(eager, &x).expect("multiplies");
        let own = format.clone();
        let mut compiled = compile(move |x: Array| -> Result<Array> { product(own.quantize(&x)?, &x) });
        let found = compiled.call(&x).expect("runs").dense().expect("dense");
        let lost = expected.subtract(&found).and_then(|lost| lost.abs()?.max(None)).expect("compares");
        assert!(lost.item_exact::<f32>() < 1e-4, "{text}");
    }
}

#[test]
fn training_begins_with_the_fitted_scales() {
    let master = weights(Dtype::Float32, 6);
    let own = format("affine:4:64+search");
    let prepared = Prepared::new(&master, own.clone()).expect("fits").with_trained_scales().expect("has scales");
    let (trained, made) = (prepared.convert().expect("converts"), own.quantize(&master).expect("quantizes"));
    assert!(same(&dense(trained), &dense(made)));
}

#[test]
fn a_fit_is_read_printed_and_refused_by_its_text() {
    let said = |text: &str| match format::parse(text) {
        Ok(format) => format.to_string(),
        Err(error) => error.to_string(),
    };
    let texts = [
        "nf4:64+search",
        "nf4:64 + search : 20",
        "affine:4:64+hqq:7",
        "codebook:32:-1,+1",
        "k:4+absmax",
        "dynamic:4:64 + reach",
    ];
    let wrong = [
        "f16+search",
        "nf4:64+reach",
        "nf4:64+search:0",
        "nf4:64+search+hqq",
        "rotated:nf4:64+search+search",
        "nf5+hqq",
    ];
    expect![[r#"
        nf4:64+search
        nf4:64+search
        affine:4:64+hqq:7
        codebook:32:-1,1
        k:4
        dynamic:4:64+reach
        the format f16 has no scales to choose by search
        help: leave the fit out, or take a format with scales, such as nf4:64
        the format nf4:64 has no scales to choose by reach
        help: leave the fit out, or take a format of a table, such as dynamic:8:256
        the format nf4:64+search:0 has no such options
        help: write nf4 for blocks of 64, nf4:BLOCK, or nf4:BLOCK:double for quantized scales
        the format nf4:64+search has no such options
        help: write nf4 for blocks of 64, nf4:BLOCK, or nf4:BLOCK:double for quantized scales
        the format rotated:nf4:64+search has no scales to choose by search
        help: leave the fit out, or take a format with scales, such as nf4:64
        no format is named nf5
        help: name one of affine"#]]
    .assert_eq(&texts.into_iter().chain(wrong).map(said).collect::<Vec<_>>().join("\n").replace(
        ", bf16, binary, codebook, dynamic, e4m3, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, quarters, rotated, symmetric, ternary, thirds",
        "",
    ));
    let fits: Result<Vec<Fit>> = ["absmax", "reach", "search:3", "hqq"].map(str::parse).into_iter().collect();
    assert_eq!(fits.expect("are read"), [Fit::Absmax, Fit::Reach, Fit::Search { steps: 3 }, Fit::half_quadratic()]);
    expect![[r#"
        scales are not fitted by best
        help: write absmax, reach, search, search:STEPS, hqq or hqq:ROUNDS, with a number from 1 to 1000"#]]
    .assert_eq(&"best".parse::<Fit>().expect_err("is none").to_string());
    let rotation = Rotation::new(Nf4::from(64)).expect("rotates");
    assert!(Fitted::new(rotation, Fit::search()).is_ok());
    let twice = Fitted::new(fitted("int8", Fit::search()), Fit::half_quadratic()).expect_err("is fitted");
    assert!(twice.to_string().contains("int8+search has no scales to choose by hqq"), "{twice}");
    assert_eq!(Fitted::new(Int8::default(), Fit::Absmax).expect("plain").to_string(), "int8");
}

/// A format is saved by its text.
#[test]
fn what_is_built_is_read_again() {
    let (search, hqq) = (|steps| Fit::Search { steps }, |rounds| Fit::HalfQuadratic { rounds });
    for fit in [search(1), search(1000), hqq(1), hqq(1000)] {
        let fitted = Fitted::new(Nf4::from(64), fit).expect("has scales");
        let read: AnyFormat = fitted.to_string().parse().expect("is read");
        assert_eq!(read, AnyFormat::from(fitted));
    }
    for fit in [search(0), search(1001), hqq(0), hqq(5000)] {
        let error = Fitted::new(Nf4::from(64), fit).expect_err("no text says so").to_string();
        assert!(error.contains("with a number from 1 to 1000"), "{error}");
    }
}
