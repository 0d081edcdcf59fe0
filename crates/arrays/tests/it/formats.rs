//! Formats as values: what they make, how they read, and what is none.

use std::collections::HashSet;

use expect_test::expect;
use mlx_rs::Array;
use tacit_arrays::format::{self, Affine, Fp4, Int8, Mxfp4, Mxfp8, Nf4, Nvfp4, Per, Quantizer, Ternary, TextForm};
use tacit_arrays::{Nf4Array, ScaleRule, register_format};
use tacit_core::{Policy, Result, Value};

use crate::operands::normal;

const TEXTS: [&str; 31] = [
    "nf4:64",
    "nf4:128:double",
    "fp4:32",
    "fp4:64:double",
    "affine:4:64",
    "affine:3:32",
    "int8",
    "int8:columns",
    "int8:16",
    "ternary",
    "ternary:columns",
    "ternary:32",
    "binary",
    "binary:8",
    "e4m3:64",
    "e5m2:64",
    "f16",
    "bf16",
    "codebook:32:-1,-0.25,0.25,1",
    "k:2",
    "k:4",
    "k:6",
    "mxfp4",
    "mxfp4:floor",
    "mxfp8:round",
    "nvfp4",
    "nvfp4:global",
    "rotated:affine:4:64",
    "rotated:nf4:64:double",
    "nf4:64+search:5",
    "rotated:affine:4:64+hqq",
];

#[test]
fn every_text_is_read_makes_an_array_and_is_printed_again() {
    let w = normal(1, &[64, 128]);
    for text in TEXTS {
        let format = format::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(format.to_string(), text);
        let made = format.quantize(&w).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(made.aval().expect("an aval").shape, [64, 128]);
        let json = serde_json::to_string(&*format).expect("is text");
        let read: Box<dyn Quantizer> = serde_json::from_str(&json).expect("is read");
        assert!(*read == *format, "{json}");
    }
    let parsed = TEXTS.map(|text| format::parse(text).expect("is read"));
    assert_eq!(parsed.iter().map(|format| &**format).collect::<HashSet<&dyn Quantizer>>().len(), TEXTS.len());
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
    assert_eq!("int8:columns".parse::<Int8>().expect("is read"), Int8 { per: Per::Column });
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
        help: name one of affine, bf16, binary, codebook, e4m3, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, rotated, ternary, thirds
        the format affine:4 has no such options
        help: write affine:BITS:GROUP
        the format nf4:many has no such options
        help: write nf4:BLOCK, or nf4:BLOCK:double for quantized scales
        the format rotated has no such options
        help: write rotated:FORMAT with the options of that format behind it, such as rotated:nf4:64
        the format rotated:nf5 has no such options
        help: write rotated:FORMAT with the options of that format behind it, such as rotated:nf4:64
        the format rotated:rotated:int8 has no such options
        help: write rotated:FORMAT with the options of that format behind it, such as rotated:nf4:64"#]]
    .assert_eq(&["nf5", "affine:4", "nf4:many", "rotated", "rotated:nf5", "rotated:rotated:int8"].map(said).join("\n"));
    assert!("affine:4:64".parse::<Nf4>().is_err());
    assert!(format::parse("nf4:7").expect("reads").quantize(&normal(1, &[8, 64])).is_err());
    assert!(Ternary { per: Per::Column }.quantize(&normal(1, &[2, 8, 64])).is_err());
    assert!(serde_json::from_str::<Affine>("\"affine:4\"").is_err());
}

/// A stranger's format.
#[derive(Clone, Copy, Debug)]
struct Thirds;

register_format!(Thirds);

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
