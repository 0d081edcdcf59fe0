//! Formats as values: what they make, how they read, and what is refused.

use std::collections::HashSet;

use expect_test::expect;
use mlx_rs::Array;
use tacit_arrays::format::{
    self, Affine, AnyFormat, FloatScales, Fp4, Granularity, Int8, Mxfp4, Mxfp8, Nf4, Nvfp4, Quantizer, Ternary,
    TextForm,
};
use tacit_arrays::{Adapter, Lora, Nf4Array, Prepared, ScaleRule, register_format};
use tacit_core::{Policy, Result, Value, implicit};

use crate::operands::normal;
use crate::prepared::TEXTS;

/// More forms than those that are prepared.
const MORE: [&str; 17] = [
    "nf4:128:double",
    "symmetric:2:64",
    "symmetric:3:32",
    "symmetric:5:32",
    "symmetric:6:64",
    "symmetric:8:128",
    "binary:8",
    "dynamic:8:256",
    "dynamic:8:256:unsigned",
    "dynamic:4:128",
    "k:2",
    "mxfp4:floor",
    "rotated:nf4:64:double",
    "nf4:64+search:5",
    "rotated:affine:4:64+hqq",
    "dynamic:8:256+reach",
    "rotated:dynamic:4:64+reach",
];

#[test]
fn every_text_is_read_makes_an_array_and_is_printed_again() {
    let w = normal(1, &[64, 128]);
    for text in TEXTS.into_iter().chain(MORE) {
        let format = format::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(format.to_string(), text);
        let made = format.quantize(&w).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(made.aval().expect("an aval").shape, [64, 128]);
        let json = serde_json::to_string(&format).expect("is text");
        let read: AnyFormat = serde_json::from_str(&json).expect("is read");
        assert!(read == format, "{json}");
    }
    let parsed = TEXTS.into_iter().chain(MORE).map(|text| format::parse(text).expect("is read"));
    assert_eq!(parsed.collect::<HashSet<AnyFormat>>().len(), TEXTS.len() + MORE.len());
}

#[test]
fn zeros_stay_positive_in_small_floats_that_have_both() {
    let mut numbers = vec![0f32; 128];
    (numbers[1], numbers[2]) = (3.0, -1.0);
    let w = Array::from_slice(&numbers, &[2, 64]);
    let _allow = Policy::Allow.scope();
    for text in ["e4m3:64", "e5m2:64"] {
        let made = format::parse(text).and_then(|format| format.quantize(&w)).expect("quantizes");
        let dense = made.dense().expect("dense");
        let found = dense.as_slice::<f32>();
        assert!(found[0].to_bits() == 0 && found[3..].iter().all(|zero| zero.to_bits() == 0), "{text}");
    }
}

#[test]
fn a_value_makes_what_its_type_makes() {
    let w = normal(2, &[8, 128]);
    let _allow = Policy::Allow.scope();
    let dense = |value: Value| value.dense().expect("dense");
    let nf4 = dense(Nf4 { block: 64, double: true }.quantize(&w).expect("quantizes"));
    let own = dense(Nf4Array::quantize(&w, Nf4 { block: 64, double: true }).expect("quantizes").into());
    assert!(nf4.eq_exact(&own).expect("compares"));
    assert_eq!("affine:4:64".parse::<Affine>().expect("is read"), Affine { bits: 4, group: 64 });
    assert_eq!("fp4".parse::<Fp4>().expect("is read"), Fp4 { block: 64, double: false });
    assert_eq!("int8:columns".parse::<Int8>().expect("is read"), Int8 { granularity: Granularity::Column });
    assert_eq!("mxfp4:floor".parse::<Mxfp4>().expect("is read"), Mxfp4 { rule: ScaleRule::Floor });
    assert_eq!("mxfp8".parse::<Mxfp8>().expect("is read"), Mxfp8 { rule: ScaleRule::Ceil });
    assert_eq!("nvfp4:global".parse::<Nvfp4>().expect("is read"), Nvfp4 { global: true });
}

#[test]
fn what_is_no_format_is_told_with_what_there_is() {
    let said = |text: &str| match format::parse(text) {
        Ok(format) => panic!("{format}"),
        Err(error) => error.to_string(),
    };
    expect![[r#"
        no format is named nf5
        help: name one of affine, bf16, binary, codebook, dynamic, e4m3, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, quarters, rotated, symmetric, ternary, thirds
        the format affine:4 has no such options
        help: write affine:BITS:GROUP of 2 to 6 or 8 bits, in groups of 32, 64 or 128
        the format nf4:many has no such options
        help: write nf4 for blocks of 64, nf4:BLOCK, or nf4:BLOCK:double for quantized scales
        the format rotated has no such options
        help: write rotated:FORMAT with the options of that format behind it, such as rotated:nf4:64
        the format rotated:nf5 has no such options
        help: write rotated:FORMAT with the options of that format behind it, such as rotated:nf4:64
        the format rotated:rotated:int8 has no such options
        help: write rotated:FORMAT with the options of that format behind it, such as rotated:nf4:64"#]]
    .assert_eq(&["nf5", "affine:4", "nf4:many", "rotated", "rotated:nf5", "rotated:rotated:int8"].map(said).join("\n"));
    assert!("affine:4:64".parse::<Nf4>().is_err());
    assert!(format::parse("nf4:7").expect("reads").quantize(&normal(1, &[8, 64])).is_err());
    assert!(Ternary { granularity: Granularity::Column }.quantize(&normal(1, &[2, 8, 64])).is_err());
    assert!(serde_json::from_str::<Affine>("\"affine:4\"").is_err());
}

/// A stranger's format.
#[derive(Clone, Copy, Debug)]
struct Thirds;

/// Has a name that a registration could take for its own.
mod private {
    pub(super) use super::Thirds;
}

register_format!(private::Thirds);

impl TextForm for Thirds {
    const NAME: &'static str = "thirds";
    const FORMS: &'static str = "thirds";

    fn options(&self) -> String {
        String::new()
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        options.is_empty().then_some(Self)
    }
}

impl Quantizer for Thirds {
    fn quantize(&self, x: &Array) -> Result<Value> {
        let three = Array::from_f32(3.0);
        Ok(x.multiply(&three)?.round(None)?.divide(&three)?.into())
    }
}

#[test]
fn a_strangers_format_is_read_by_its_name() {
    let thirds = format::parse("thirds").expect("is registered");
    let made = thirds.quantize(&Array::from_slice(&[0.3f32], &[1])).expect("quantizes");
    assert!((made.dense().expect("dense").item_exact::<f32>() - 1.0 / 3.0).abs() < 1e-6);
}

/// Zeros, numbers that no scale divides, and all between: of every format, and of sums that are not built.
#[test]
fn zeros_and_the_smallest_numbers_are_stored() {
    let _allow = Policy::Allow.scope();
    // How far a number may be from itself, as a share of the largest one.
    let shares = [
        ("nf4:64", 0.16),
        ("fp4:64", 0.17),
        ("affine:4:32", 0.08),
        ("symmetric:4:32", 0.13),
        ("symmetric:8:32", 0.009),
        ("int8", 0.005),
        ("mxfp4", 0.26),
        ("mxfp8", 0.07),
        ("nvfp4", 0.26),
        ("nvfp4:global", 0.26),
        ("ternary", 0.8),
        ("binary", 0.8),
        ("codebook:32:-1,-0.25,0.25,1", 0.38),
        ("dynamic:8:32", 0.015),
        ("dynamic:4:32", 0.13),
        ("dynamic:4:32+reach", 0.13),
        ("e4m3:32", 0.07),
        ("e5m2:32", 0.13),
        ("k:4", 0.1),
    ];
    for (text, share) in shares {
        let format = format::parse(text).expect("a format");
        for largest in [0.0, 1e-45, 1e-40, 1e-38, 1e-36, 7e-36, 4e-35, 5e-35, 1e-30, 1.0, 1e30] {
            if text == "nvfp4" && largest > 1.0 {
                // Its scales reach no further than 448.
                continue;
            }
            let x = normal(1, &[4, 256]).multiply(Array::from_f32(largest / 4.0)).expect("scales");
            let sum =
                Lora::new(x.clone(), normal(2, &[1, 256]), mlx_rs::ops::zeros::<f32>(&[4, 1]).expect("zeros"), 1.0);
            let sum = Value::from(sum.expect("a Lora"));
            for made in [format.quantize(&x), format.quantize_sum(sum.family::<dyn Adapter>().expect("an adapter"))] {
                let made = made.and_then(|made| made.dense()).expect("quantizes");
                made.eval().unwrap_or_else(|error| panic!("{text} of numbers up to {largest}: {error}"));
                for (found, x) in made.as_slice::<f32>().iter().zip(x.as_slice::<f32>()) {
                    // The least scale that these have.
                    let least = match text {
                        "nvfp4" => 0.02,
                        // A code is taken by the reciprocal of a scale of 1e-38 at least, and the largest code is 57,344.
                        "e5m2:32" => 6e-34,
                        // Here it is 448.
                        "e4m3:32" => 5e-36,
                        // 128.
                        "symmetric:8:32" => 1.3e-36,
                        _ if text.starts_with("affine") || text.starts_with('k') => 1e-6,
                        _ => 1e-37,
                    };
                    let near = (found - x).abs() <= (share * largest).max(least);
                    assert!(near, "{text}: {found} of {x} where the largest is {largest}");
                }
            }
        }
    }
    // Where the scale is as fine as the numbers want it, they are as near as greater ones.
    let global = format::parse("nvfp4:global").expect("a format");
    let error = |largest: f32| {
        let x = normal(1, &[4, 256]).multiply(Array::from_f32(largest / 4.0)).expect("scales");
        let made = global.quantize(&x).and_then(|made| made.dense()).expect("quantizes");
        let pairs = made.as_slice::<f32>().iter().zip(x.as_slice::<f32>());
        pairs.map(|(found, x)| (found - x).abs() / largest).max_by(f32::total_cmp).expect("elements")
    };
    assert!((error(1e-37) - error(1.0)).abs() < 0.02, "{} and {}", error(1e-37), error(1.0));
}

/// A NaN is named, not what it makes of the largest magnitude.
#[test]
fn what_nvfp4_global_refuses_is_the_element() {
    for value in [f32::NAN, f32::INFINITY] {
        let mut numbers = vec![1.0; 64];
        numbers[37] = value;
        let made = format::parse("nvfp4:global").expect("a format").quantize(&Array::from_slice(&numbers, &[4, 16]));
        let error = made.and_then(|made| Ok(made.dense()?.eval()?)).expect_err("no code holds it").to_string();
        assert!(error.contains(&format!("element 37 is {value}, which no code can hold")), "{error}");
    }
}

/// Options that are no options are an error of whoever codes by them, too.
#[test]
fn a_block_of_nothing_is_an_error_of_every_way_to_code() {
    let x = normal(1, &[4, 64]);
    for text in [
        "dynamic:8:0",
        "int8:0",
        "ternary:0",
        "binary:0",
        "e4m3:0",
        "e5m2:0",
        "codebook:0:-1,1",
        "nf4:0",
        "fp4:0",
        "affine:4:0",
    ] {
        let Ok(format) = text.parse::<AnyFormat>() else { continue };
        assert!(format.supported().is_err() && format.quantize(&x).is_err(), "{text}");
        assert!(Prepared::new(&x, &format).is_err(), "{text}");
        let Some(trained) = format.trained_scales() else { continue };
        let scales = FloatScales { scales: normal(2, &[4]), biases: None, global_scale: None };
        assert!(trained.quantize_by(&x, &scales).is_err(), "{text}");
    }
}

/// Blocks along columns are not those of the same size that are counted along rows.
#[test]
fn the_text_of_a_value_is_a_format_that_stores_it() -> Result<()> {
    let w = normal(1, &[40, 96]);
    for (text, told) in [
        ("int8", "int8:96"),
        ("int8:columns", "int8:columns"),
        ("ternary:columns", "ternary:columns"),
        ("nf4:64", "nf4:64"),
    ] {
        let made = format::parse(text)?.quantize(&w)?;
        assert_eq!(format::of_value(&made).as_deref(), Some(told));
        assert!(format::parse(told)?.stores(&made), "{text}");
    }
    for (text, told) in [("int8", Some("int8:columns")), ("int8:32", None), ("nf4:64", None)] {
        let made = format::parse(text)?.quantize(&w)?;
        let transposed = implicit(&made, |made| Ok::<_, tacit_core::Error>(made.t()))?;
        assert_eq!(format::of_value(&transposed).as_deref(), told, "{text}");
    }
    Ok(())
}
