//! Checkpoints of floats of eight bits.

use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect;
use mlx_rs::{Array, Dtype};
use serde_json::{Value as Json, json};
use tacit_bridge::Primitive;
use tacit_core::{Policy, Value, implicit};
use tacit_io::{FileKind, hugging_face, read};

use crate::scratch::Scratch;

/// What a byte of OCP's 8-bit floats stands for, by its fields: bits of mantissa, bias of the exponent.
fn float(byte: u8, mantissa: u32, bias: i32) -> f64 {
    let exponent = i32::from((byte & 0x7f) >> mantissa);
    let fraction = f64::from(byte & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
    let magnitude =
        if exponent == 0 { fraction * 2f64.powi(1 - bias) } else { (1.0 + fraction) * 2f64.powi(exponent - bias) };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

fn e4m3(byte: u8) -> f64 {
    float(byte, 3, 7)
}

fn e5m2(byte: u8) -> f64 {
    float(byte, 2, 15)
}

/// Bytes of finite values only.
fn codes(count: usize, dtype: &str) -> Vec<u8> {
    let most = if dtype == "F8_E4M3" { 0x7e } else { 0x7b };
    (0..count).map(|at| (at * 37 % (most + 1)) as u8 | if at % 3 == 0 { 0x80 } else { 0 }).collect()
}

struct Tensor {
    name: &'static str,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn tensor(name: &'static str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Tensor {
    Tensor { name, dtype, shape: shape.to_vec(), bytes }
}

fn floats(name: &'static str, shape: &[usize], of: impl Fn(usize) -> f32) -> Tensor {
    let count = shape.iter().product();
    tensor(name, "F32", shape, (0..count).flat_map(|at| of(at).to_le_bytes()).collect())
}

/// A folder with these tensors and a configuration.
fn folder(scratch: &Scratch, tensors: &[Tensor], config: &Json) -> PathBuf {
    let (mut header, mut elements) = (serde_json::Map::new(), Vec::new());
    for Tensor { name, dtype, shape, bytes } in tensors {
        let end = elements.len() + bytes.len();
        header
            .insert((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": [elements.len(), end]}));
        elements.extend(bytes);
    }
    let mut text = Json::Object(header).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let file = [(text.len() as u64).to_le_bytes().to_vec(), text.into_bytes(), elements].concat();
    fs::write(scratch.join("model.safetensors"), file).expect("writes");
    fs::write(scratch.join("config.json"), config.to_string()).expect("writes");
    scratch.join("")
}

fn numbers(array: &Array) -> Vec<f64> {
    let wide = array.as_dtype(Dtype::Float32).and_then(|array| array.contiguous()).expect("casts");
    wide.eval().expect("evaluates");
    wide.as_slice::<f32>().iter().map(|&number| f64::from(number)).collect()
}

/// Reads the weight and compares it with what its elements and scales are; and a product of it, for which nothing is built.
#[track_caller]
fn assert_reads(folder: &Path, expected: &[f64], shape: &[i32], shown: &str) {
    let parameters = read(folder).expect("reads");
    assert_eq!(parameters.keys().collect::<Vec<_>>(), ["w.weight"]);
    let value = &parameters["w.weight"];
    assert_eq!(value.to_string(), shown);
    let dense = {
        let _allow = Policy::Allow.scope();
        value.dense().expect("builds")
    };
    assert_eq!(dense.shape(), shape);
    let step = if dense.dtype() == Dtype::Float32 { 1e-6 } else { 1.0 / 256.0 };
    for (found, expected) in numbers(&dense).iter().zip(expected) {
        assert!((found - expected).abs() <= step * expected.abs(), "{found} for {expected}");
    }
    let [n, k] = [shape[0], shape[1]];
    let x = Array::from_slice(&(0..k).map(|at| (at as f32 * 0.7).sin()).collect::<Vec<_>>(), &[1, k]);
    let _deny = Policy::Deny.scope();
    let y = implicit((&x, value), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense()).expect("nothing is built");
    let x = numbers(&x);
    for (row, found) in numbers(&y).into_iter().enumerate() {
        let row = &expected[row * k as usize..][..k as usize];
        let (exact, size) =
            row.iter().zip(&x).fold((0.0, 0.0), |(sum, size), (w, x)| (sum + w * x, size + (w * x).abs()));
        assert!((found - exact).abs() <= 1e-5 * size, "{found} for {exact} of {n} rows");
    }
}

const BF16: &str = r#"{"torch_dtype": "bfloat16"}"#;

fn config(text: &str) -> Json {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn every_code_has_its_value() {
    for (dtype, of, name) in [("F8_E4M3", e4m3 as fn(u8) -> f64, "E4m3"), ("F8_E5M2", e5m2, "E5m2")] {
        let scratch = Scratch::new();
        let bytes = codes(512, dtype);
        let expected: Vec<f64> = bytes.iter().map(|&byte| of(byte)).collect();
        let folder = folder(&scratch, &[tensor("w.weight", dtype, &[8, 64], bytes)], &config(BF16));
        // Every value is a bf16 as it is.
        let value = hugging_face::read(&folder).expect("reads").remove("w.weight").expect("is there");
        assert_eq!(numbers(&value.dense().expect("dense")), expected);
        assert_reads(&folder, &expected, &[8, 64], &format!("{name}(bf16[8,64])"));
        assert_eq!(FileKind::detect(&folder).expect("opens"), FileKind::Floats);
    }
    let scratch = Scratch::new();
    let vector = folder(&scratch, &[tensor("w.weight", "F8_E4M3", &[3], vec![0x38, 0xb8, 0x01])], &config(BF16));
    let vector = hugging_face::read(vector).expect("reads").remove("w.weight").expect("is there");
    assert_eq!(vector.to_string(), "bf16[3]");
    assert_eq!(numbers(&vector.dense().expect("dense")), [1.0, -1.0, 2f64.powi(-9)]);
    // What has no elements has whatever other extents.
    let scratch = Scratch::new();
    let wide = [65_536, 65_536, 0];
    let tensors = [tensor("w.weight", "F8_E4M3", &wide, vec![]), tensor("w.weight_scale", "F8_E8M0", &[1], vec![127])];
    let nothing = hugging_face::read(folder(&scratch, &tensors, &config(BF16))).expect("reads");
    assert_eq!(nothing["w.weight"].to_string(), "bf16[65536,65536,0]");
}

/// The configuration says the float type and the blocks: without it others are taken, and a broken one is none that is not there.
#[test]
fn a_broken_configuration_is_an_error() {
    let scratch = Scratch::new();
    let folder = folder(&scratch, &[tensor("w.weight", "F8_E4M3", &[2, 64], codes(128, "F8_E4M3"))], &config(BF16));
    fs::write(folder.join("config.json"), "{\"torch_dtype\": \"bflo").expect("writes");
    let error = hugging_face::read(&folder).expect_err("is broken").to_string();
    assert!(error.contains("config.json: it is no JSON"), "{error}");
    fs::remove_file(folder.join("config.json")).expect("is there");
    assert_eq!(hugging_face::read(&folder).expect("reads")["w.weight"].to_string(), "E4m3(bf16[2,64])");
}

/// Which scale is that of an element.
type At = fn(usize, usize) -> usize;

/// Scales of the whole, of rows, and of blocks, which need not divide the weight, under each of their names.
#[test]
fn scales_are_those_that_stand_beside_a_weight() {
    let (n, k) = (200, 320);
    let scale = |at: usize| 0.5 + at as f32 / 8.0;
    let kinds: [(&'static str, Vec<usize>, &str, At); 10] = [
        ("w.weight_scale", vec![], "{}", |_, _| 0),
        ("w.weight_scale", vec![1], "{}", |_, _| 0),
        ("w.weight_scale", vec![200, 1], "{}", |row, _| row),
        ("w.weight_scale", vec![200], "{}", |row, _| row),
        ("w.scale_weight", vec![], "{}", |_, _| 0),
        ("w.weight_scale_inv", vec![2, 3], "{}", |row, column| row / 128 * 3 + column / 128),
        ("w.scale", vec![2, 3], "{}", |row, column| row / 128 * 3 + column / 128),
        (
            "w.weight_scale_inv",
            vec![4, 5],
            r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}"#,
            |row, column| row / 64 * 5 + column / 64,
        ),
        ("w.weight_scale", vec![1, 320], "{}", |_, column| column),
        ("w.weight_scale", vec![200, 10], "{}", |row, column| row * 10 + column / 32),
    ];
    for (dtype, of, name) in [("F8_E4M3", e4m3 as fn(u8) -> f64, "E4m3"), ("F8_E5M2", e5m2, "E5m2")] {
        for (scale_name, shape, said, at) in &kinds {
            let scratch = Scratch::new();
            let bytes = codes(n * k, dtype);
            let element = |(place, &byte): (usize, &u8)| of(byte) * f64::from(scale(at(place / k, place % k)));
            let expected: Vec<f64> = bytes.iter().enumerate().map(element).collect();
            let tensors = [
                tensor("w.weight", dtype, &[n, k], bytes),
                floats(scale_name, shape, scale),
                // Static activations and caches.
                floats("w.input_scale", &[], scale),
                floats("self_attn.k_scale", &[1], scale),
            ];
            let folder = folder(&scratch, &tensors, &config(said));
            assert_reads(&folder, &expected, &[200, 320], &format!("{name}(f32[200,320])"));
        }
    }
}

/// With a scale for each block of a row they take a 32nd of the bytes of the weight.
#[test]
fn scales_of_squares_are_those_of_rows_when_they_are_used() {
    let scratch = Scratch::new();
    let codes = tensor("w.weight", "F8_E4M3", &[256, 256], codes(256 * 256, "F8_E4M3"));
    let tensors = [codes, floats("w.weight_scale_inv", &[2, 2], |at| at as f32)];
    let parameters = read(folder(&scratch, &tensors, &config(BF16))).expect("reads");
    let Value::Implicit(weight) = &parameters["w.weight"] else { panic!("it is dense") };
    let mut parts = weight.children().into_iter().filter_map(|(_, part)| part.as_dense().cloned());
    let scales = parts.find(|part| part.dtype() == Dtype::Float32).expect("scales");
    assert_eq!(scales.size(), 256 * 2);
    assert!(Primitive::making(&scales).expect("memory").is_some());
}

#[test]
fn scales_may_be_half_floats_and_powers_of_two() {
    let bytes = codes(64 * 64, "F8_E4M3");
    let expected = |scale: f64| bytes.iter().map(|&byte| e4m3(byte) * scale).collect::<Vec<_>>();
    let scratch = Scratch::new();
    let half = tensor("w.weight_scale", "BF16", &[1], vec![0x00, 0x3f]);
    let path = folder(&scratch, &[tensor("w.weight", "F8_E4M3", &[64, 64], bytes.clone()), half], &config("{}"));
    assert_reads(&path, &expected(0.5), &[64, 64], "E4m3(bf16[64,64])");
    let scratch = Scratch::new();
    let power = tensor("w.weight_scale_inv", "F8_E8M0", &[1, 1], vec![129]);
    let path = folder(&scratch, &[tensor("w.weight", "F8_E4M3", &[64, 64], bytes.clone()), power], &config("{}"));
    let value = read(path).expect("reads").remove("w.weight").expect("is there");
    let _allow = Policy::Allow.scope();
    for (found, expected) in numbers(&value.dense().expect("dense")).into_iter().zip(expected(4.0)) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{found} for {expected}");
    }
}

/// Experts in one tensor, with a scale for all of them, for each, and for blocks of each.
#[test]
fn weights_of_more_axes_have_scales_as_well() {
    let (shape, config) = ([2, 3, 256], config(BF16));
    let bytes = codes(2 * 3 * 256, "F8_E4M3");
    let scale = |at: usize| 0.5 + at as f32;
    let kinds: [(Vec<usize>, At); 4] = [
        (vec![1], |_, _| 0),
        (vec![2, 1, 1], |expert, _| expert),
        (vec![2, 3, 1], |expert, place| expert * 3 + place / 256),
        (vec![2, 1, 2], |expert, place| expert * 2 + place % 256 / 128),
    ];
    for (scales, at) in kinds {
        let scratch = Scratch::new();
        let tensors =
            [tensor("experts.up", "F8_E4M3", &shape, bytes.clone()), floats("experts.up_scale", &scales, scale)];
        let value = read(folder(&scratch, &tensors, &config)).expect("reads").remove("experts.up").expect("is there");
        let _allow = Policy::Allow.scope();
        let found = numbers(&value.dense().expect("dense"));
        for (place, (found, &byte)) in found.iter().zip(&bytes).enumerate() {
            let expected = e4m3(byte) * f64::from(scale(at(place / 768, place % 768)));
            assert!((found - expected).abs() <= expected.abs() / 256.0, "{scales:?}: {found} for {expected}");
        }
    }
}

/// The message of the error, and a line's end.
#[track_caller]
fn refused(tensors: &[Tensor]) -> String {
    let scratch = Scratch::new();
    let path = folder(&scratch, tensors, &config("{}"));
    let error = read(&path).expect_err("refused").to_string();
    error.replace(&path.display().to_string(), "") + "\n"
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let weight = || tensor("w.weight", "F8_E4M3", &[2, 4], vec![0x38; 8]);
    let said = [
        refused(&[tensor("w.weight", "F8_E4M3FNUZ", &[2, 4], vec![0x38; 8])]),
        refused(&[tensor("w.weight", "F8_E8M0", &[2, 4], vec![0x38; 8])]),
        refused(&[weight(), floats("w.weight_scale", &[3], |_| 1.0)]),
        refused(&[weight(), tensor("w.weight_scale", "U8", &[1], vec![1])]),
        refused(&[weight(), floats("w.weight_scale", &[1], |_| 1.0), floats("w.weight_scale_2", &[1], |_| 1.0)]),
        refused(&[weight(), floats("w.qscale", &[1], |_| 1.0)]),
        refused(&[weight(), floats("w.scale", &[1], |_| 1.0), floats("w.weight_scale", &[1], |_| 1.0)]),
        // NVFP4 of compressed-tensors, and its integers.
        refused(&[
            tensor("w.weight_packed", "U8", &[2, 2], vec![1; 4]),
            tensor("w.weight_scale", "F8_E4M3", &[2, 1], vec![0x38; 2]),
        ]),
        refused(&[tensor("w.weight", "I8", &[2, 4], vec![1; 8]), floats("w.weight_scale", &[2, 1], |_| 1.0)]),
        // FP4 of DeepSeek's, two elements a byte.
        refused(&[tensor("w.weight", "I8", &[2, 4], vec![1; 8]), tensor("w.scale", "F8_E8M0", &[2, 1], vec![127; 2])]),
    ]
    .concat();
    expect![[r#"
        model.safetensors: w.weight: it is F8_E4M3FNUZ, which has other values than F8_E4M3 and F8_E5M2
        help: convert the checkpoint to one of these, or to floats
        model.safetensors: w.weight: it is F8_E8M0, which has other values than F8_E4M3 and F8_E5M2
        help: convert the checkpoint to one of these, or to floats
        model.safetensors: w.weight_scale: it is f32[3], which fits no rows or blocks of f32[2,4]
        help: fetch the checkpoint again, or in floats
        model.safetensors: w.weight_scale: it is u8[1], and a scale of floats in eight bits is of floats
        help: fetch the checkpoint again, or in floats
        model.safetensors: w.weight: how its scales go together is not known: w.weight_scale, w.weight_scale_2
        help: fetch the checkpoint in floats, or convert it with its own program
        model.safetensors: w.weight: how its scales go together is not known: w.qscale
        help: fetch the checkpoint in floats, or convert it with its own program
        model.safetensors: w.weight: how its scales go together is not known: w.weight_scale, w.scale
        help: fetch the checkpoint in floats, or convert it with its own program
        model.safetensors: w.weight_packed: it is codes u8[2,2] with the scale w.weight_scale, of a format that is not read
        help: fetch the checkpoint in FP8 or in floats, or convert it with its own program
        model.safetensors: w.weight: it is codes i8[2,4] with the scale w.weight_scale, of a format that is not read
        help: fetch the checkpoint in FP8 or in floats, or convert it with its own program
        model.safetensors: w.weight: it is codes i8[2,4] with the scale w.scale, of a format that is not read
        help: fetch the checkpoint in FP8 or in floats, or convert it with its own program
    "#]]
    .assert_eq(&said);
}

#[test]
fn scales_without_a_weight_or_of_more_than_it_are_refused() {
    let said = [
        refused(&[tensor("w.weight_scale", "F8_E8M0", &[1], vec![127])]),
        refused(&[tensor("w.weight", "F8_E4M3", &[3], vec![0x38; 3]), floats("w.weight_scale", &[3], |_| 1.0)]),
    ];
    expect![[r#"
        model.safetensors: w.weight_scale: it is a scale in eight bits, of no weight that is read
        help: convert the checkpoint to floats, or to F8_E4M3 with float scales
        model.safetensors: w.weight_scale: it is f32[3], which is no scale of f32[3]
        help: fetch the checkpoint again, or in floats
    "#]]
    .assert_eq(&said.concat());
}

/// A scale of a tensor beside the weight says nothing of the weight.
#[test]
fn scales_of_another_tensor_stay_parameters() {
    let scratch = Scratch::new();
    let tensors = [
        tensor("w.weight", "F8_E4M3", &[1, 64], vec![0x38; 64]),
        floats("w.bias", &[1], |_| 1.0),
        floats("w.bias_scale", &[1], |_| 1.0),
        floats("w.weight_scale", &[1], |_| 2.0),
    ];
    let parameters = read(folder(&scratch, &tensors, &config("{}"))).expect("reads");
    assert_eq!(parameters.keys().collect::<Vec<_>>(), ["w.bias", "w.bias_scale", "w.weight"]);
    let _allow = Policy::Allow.scope();
    assert_eq!(numbers(&parameters["w.weight"].dense().expect("dense")), [2.0; 64]);
}
