//! From one format to another.

use expect_test::expect;
use mlx_rs::{Array, ops, random};
use tacit_arrays::format::{Affine, Int8, Nf4};
use tacit_arrays::{ActivationGranularity, Int8Array, Int8Inputs, Int8Training, Nf4Array};
use tacit_core::{Policy, Value};
use tacit_io::{Gguf, bitsandbytes, convert, dense, hugging_face, mlx_lm};
use tacit_nn::{Parameters, Rules};

use crate::golden::golden;
use crate::scratch::Scratch;

fn rules(format: Nf4) -> Rules {
    Rules::new().quantize("re:.*_proj\\.weight", format).expect("rules")
}

#[test]
fn a_parameter_that_has_the_format_keeps_its_codes_and_nothing_is_built() {
    let read = bitsandbytes::read(golden("bitsandbytes/storage.safetensors")).expect("reads");
    let _deny = Policy::Deny.scope();
    let (made, report) = convert(&read, &rules(Nf4 { block: 64, double: false })).expect("converts");
    let [row] = report.converted.as_slice() else { panic!("one parameter is named: {report}") };
    assert!(row.kept && row.error == 0.0 && row.nbytes == row.nbytes_before);
    let codes = |value: &Value| value.downcast::<Nf4Array>().expect("nf4").codes().clone();
    assert!(codes(&read["up_proj.weight"]).eq_values(codes(&made["up_proj.weight"])).unwrap());
}

#[test]
fn another_format_costs_what_the_report_says() {
    let read = bitsandbytes::read(golden("bitsandbytes/4bit.safetensors")).expect("reads");
    let rules = Rules::new().quantize("*.q_proj.weight", Affine { bits: 8, group: 64 }).unwrap();
    let rules = rules.quantize("*.k_proj.weight", Nf4 { block: 32, double: true }).unwrap();
    let rules = rules.quantize("*.o_proj.weight", Nf4 { block: 64, double: false }).unwrap();
    let (made, report) = convert(&read, &rules).expect("converts");
    for row in report.converted.iter().filter(|row| !row.kept) {
        let [was, is] = [&read, &made].map(|parameters| {
            let dense = parameters[&row.path].dense().unwrap().as_dtype(mlx_rs::Dtype::Float32).unwrap();
            dense.as_slice::<f32>().to_vec()
        });
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let error = norm(&mut was.iter().zip(&is).map(|(was, is)| was - is)) / norm(&mut was.iter().copied());
        assert!((f64::from(row.error) - error).abs() < 1e-5 * error, "{}: {} and {error}", row.path, row.error);
        assert!(error > 0.0);
    }
    expect_test::expect![[r#"
        model.layers.0.self_attn.k_proj.weight  Nf4(f16[80,112]) -> Nf4(f16[80,112]) nf4:32:double   kept
        model.layers.0.self_attn.o_proj.weight  Fp4(bf16[16,72]) -> Nf4(bf16[16,72]) nf4:64          error 7.23e-2
        model.layers.0.self_attn.q_proj.weight  Nf4(bf16[24,64]) -> Affine(bf16[24,64]) affine:8:64  error 6.50e-3
        3 converted, 1 kept, 6229 B -> 7052 B"#]]
    .assert_eq(&report.to_string());
}

#[test]
fn scales_alone_change_where_the_codes_are_the_same() {
    let read = bitsandbytes::read(golden("bitsandbytes/4bit.safetensors")).expect("reads");
    let nf4 = |double| Nf4 { block: 32, double };
    let rules = |double| Rules::new().quantize("*.k_proj.weight", nf4(double)).unwrap();
    let (floats, report) = convert(&read, &rules(false)).expect("converts");
    let [row] = report.converted.as_slice() else { panic!("one parameter is named: {report}") };
    assert!(row.kept && row.error.to_bits() == 0 && row.nbytes > row.nbytes_before, "{report}");

    let (doubled, report) = convert(&floats, &rules(true)).expect("converts");
    let [row] = report.converted.as_slice() else { panic!("one parameter is named: {report}") };
    assert!(row.kept && row.error > 0.0 && row.error < 5e-3, "the scales lose what they lose: {report}");
    expect![[r#"
        model.layers.0.self_attn.k_proj.weight  Nf4(f16[80,112]) -> Nf4(f16[80,112]) nf4:32:double  codes kept, error 2.94e-4
        1 converted, 1 kept, 5600 B -> 4772 B"#]].assert_eq(&report.to_string());
    let codes = |parameters: &Parameters| parameters[&row.path].downcast::<Nf4Array>().expect("nf4").codes().clone();
    assert!(codes(&read).eq_values(codes(&doubled)).unwrap());
}

/// To quantize what they stand for anew would change some.
#[test]
fn codes_with_products_that_round_are_kept_without_these() {
    let _deny = Policy::Deny.scope();
    let x = random::normal::<f32>(&[8, 64], None, None, &random::key(1).unwrap()).unwrap();
    let codes = Int8Array::quantize(&x, Int8::default()).unwrap();
    let parameters = Parameters::from([
        ("a.weight".to_owned(), Int8Training::new(codes.clone()).unwrap().into()),
        ("b.weight".to_owned(), Int8Inputs::new(codes.clone(), ActivationGranularity::Token).unwrap().into()),
    ]);
    let rules = Rules::new().quantize("*", Int8::default()).unwrap();
    let (made, report) = convert(&parameters, &rules).expect("converts");
    assert!(report.converted.iter().all(|row| row.kept && row.error == 0.0), "{report}");
    for path in ["a.weight", "b.weight"] {
        let kept = made[path].downcast::<Int8Array>().expect("int8").codes();
        assert!(kept.eq_values(codes.codes()).unwrap(), "{path}");
    }
}

#[test]
fn a_model_goes_from_one_library_to_the_other() {
    let folder = Scratch::new();
    // From bitsandbytes to mlx-lm: what has no format of MLX's is converted, and the rest is dense.
    let read = bitsandbytes::read(golden("bitsandbytes/int8.safetensors")).expect("reads");
    let affine = Rules::new().quantize("*.down_proj.weight", Affine { bits: 8, group: 32 }).unwrap();
    let error = convert(&read, &affine).expect_err("48 columns are no groups of 32");
    assert!(
        error.to_string().starts_with("the parameter model.layers.0.mlp.down_proj.weight: the last axis"),
        "{error}"
    );
    let floats = dense(&read).expect("dense");
    hugging_face::write(folder.join("model.safetensors"), &floats).expect("writes");
    let again = hugging_face::read(&*folder).expect("reads");
    for (name, value) in &floats {
        assert!(value.dense().unwrap().eq_values(again[name].dense().unwrap()).unwrap(), "{name}");
    }

    // From mlx-lm to bitsandbytes, and what that costs.
    let read = mlx_lm::read(golden("mlx_lm/uniform")).expect("reads");
    let nf4 = Nf4 { block: 64, double: false };
    let rules = rules(nf4).quantize("*embed_tokens*", nf4).unwrap().quantize("lm_head.weight", nf4).unwrap();
    let (made, report) = convert(&read, &rules).expect("converts");
    assert_eq!(report.converted.len(), 9);
    assert!(report.converted.iter().all(|row| row.error > 0.0 && row.error < 0.2), "{report}");
    let path = folder.join("bitsandbytes.safetensors");
    let error =
        bitsandbytes::write(&path, &read, bitsandbytes::BitsAndBytesLayout::default()).expect_err("affine is not its");
    expect_test::expect![[r#"
        FOLDER/bitsandbytes.safetensors: lm_head.weight: bitsandbytes cannot hold Affine(bf16[16,32])
        help: convert it to nf4, to fp4, or the matrix of a module's `weight` to int8, or make it dense"#]]
    .assert_eq(&folder.message(&error));
    bitsandbytes::write(&path, &made, bitsandbytes::BitsAndBytesLayout::default()).expect("writes");
    assert_eq!(bitsandbytes::read(&path).expect("reads").len(), made.len());
}

/// As a model is quantized: a filter in codes would be one that no loader takes.
#[test]
fn a_pattern_gives_matrices_alone_a_format() {
    let ones = |shape: &[i32]| Value::from(ops::ones::<f32>(shape).expect("ones"));
    let parameters = Parameters::from([
        ("a.linear_attn.conv1d.weight".to_owned(), ones(&[64, 4, 1])),
        ("a.norm.weight".to_owned(), ones(&[64])),
        ("a.up.weight".to_owned(), ones(&[8, 64])),
    ]);
    let converted = |pattern: &str| {
        let rules = Rules::new().quantize(pattern, "int8").expect("rules");
        let (made, report) = convert(&parameters, &rules).expect("converts");
        assert_eq!(made.len(), 3);
        report.converted.into_iter().map(|row| row.path).collect::<Vec<_>>()
    };
    assert_eq!(converted("*"), ["a.up.weight"]);
    assert_eq!(converted("a.linear_attn.conv1d.weight"), ["a.linear_attn.conv1d.weight"]);
}

/// The range of the numbers is more than a float holds, though each of them is one.
#[test]
fn what_a_format_loses_is_finite_or_said() {
    let wide = Array::from_slice(&[2e38f32, -2e38].repeat(64), &[2, 64]);
    let parameters = Parameters::from([("w".to_owned(), wide.into())]);
    let rules = Rules::new().quantize("*", Affine { bits: 4, group: 64 }).expect("rules");
    let error = convert(&parameters, &rules).expect_err("is refused").to_string();
    expect![[r#"
        the parameter w: what affine:4:64 loses of f32[2,64] is not finite
        help: leave it as it is, or choose a format whose scales hold its greatest numbers"#]]
    .assert_eq(&error);
}

#[test]
fn symmetric_codes_of_a_gguf_file_are_kept_by_a_rule_of_their_own_format() {
    let file = Gguf::open(golden("gguf/types.gguf")).expect("opens");
    for (name, format) in [
        ("Q4_0", "symmetric:4:32"),
        ("Q5_0", "symmetric:5:32"),
        ("Q8_0", "symmetric:8:32"),
        ("Q4_1", "affine:4:32"),
        ("Q6_K", "k:6"),
    ] {
        let read = Parameters::from([(name.to_owned(), file.get(name).expect("reads"))]);
        let rules = Rules::new().quantize("*", format).expect("rules");
        let (made, report) = {
            let _deny = Policy::Deny.scope();
            convert(&read, &rules).expect("converts")
        };
        let _allow = Policy::Allow.scope();
        let dense = |value: &Value| -> Array { value.dense().expect("dense") };
        // In the file an extreme has the code 0, and scales are in `f16`.
        assert!(dense(&made[name]).eq_exact(dense(&read[name])).expect("compares"), "{report}");
        assert!(report.converted[0].kept && report.converted[0].error == 0.0, "{report}");
    }
}
