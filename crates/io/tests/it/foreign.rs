//! What torchao, GPTQ and AWQ write, and what it stands for.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use expect_test::expect;
use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Policy, Result, Value, implicit};
use tacit_io::{Metadata, Tensors, awq, gptq, torchao, write};
use tacit_nn::Parameters;

use crate::scratch::Scratch;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// What a value stands for.
fn dense(value: &Value) -> Array {
    let _allow = Policy::Allow.scope();
    value.dense().expect("builds")
}

/// Compares the quantized parameters with the expected ones, and their products under a policy that builds nothing.
#[track_caller]
fn assert_reads(parameters: &Parameters, expected: &Tensors, prefix: &str) -> usize {
    let mut quantized = 0;
    for name in expected.names().filter(|name| name.starts_with(prefix)) {
        let theirs = expected.get(name).expect("is there");
        let value = &parameters[&name[prefix.len()..]];
        let own = dense(value);
        assert_eq!(Aval::from(&own), Aval::from(&theirs), "{name}");
        assert!(own.eq_values(&theirs).expect("compares"), "{name}: {own:?}\n{theirs:?}");
        if !value.is_implicit() {
            continue;
        }
        quantized += 1;
        let _deny = Policy::Deny.scope();
        let x: Vec<f32> = (0..own.dim(1)).map(|at| (at as f32).sin()).collect();
        let x = Array::from_slice(&x, &[1, own.dim(1)]);
        let y = implicit((&x, value), |(x, w)| x.matmul(w.t())).expect("nothing is built");
        let plain = x.matmul(own.as_dtype(Dtype::Float32).expect("casts").t()).expect("multiplies");
        let most = plain.abs().and_then(|y| y.max(None)).expect("a number").item_exact::<f32>();
        let apart = y.dense().expect("dense").subtract(&plain).and_then(|d| d.abs()?.max(None)).expect("a number");
        // Half types round the weight that is built, and not the one that is multiplied.
        let tolerance = if own.dtype() == Dtype::Float32 { 1e-5 } else { 1e-2 };
        assert!(apart.item_exact::<f32>() <= tolerance * most, "{name}: {apart:?} of {most}");
    }
    quantized
}

#[test]
fn torchao_int4_and_nf4_have_their_values() {
    let expected = Tensors::open(golden("torchao/expected.safetensors")).expect("opens");
    let int4 = torchao::read(golden("torchao/int4.safetensors")).expect("reads");
    assert_eq!(int4.len(), 4);
    assert_eq!(assert_reads(&int4, &expected, "int4."), 3);
    let nf4 = torchao::read(golden("torchao/nf4.safetensors")).expect("reads");
    assert_eq!(assert_reads(&nf4, &expected, "nf4."), 3);
    let all = int4.iter().chain(&nf4).map(|(name, value)| format!("{name} {value}\n"));
    expect![[r#"
        layers.0.proj.bias bf16[3]
        layers.0.proj.weight Affine(bf16[3,64])
        layers.1.proj.weight Affine(f16[2,128])
        layers.2.proj.weight Affine(bf16[2,256])
        a.weight Codebook(f32[8,64])
        b.weight Codebook(bf16[8,64])
        c.weight Codebook(f16[8,64])
    "#]]
    .assert_eq(&all.collect::<String>());
}

#[test]
fn gptq_and_awq_have_their_values() {
    let mut table = String::new();
    for folder in [
        "gptq/bits2",
        "gptq/bits3",
        "gptq/bits4",
        "gptq/bits4_symmetric",
        "gptq/bits8",
        "gptq/whole_columns",
        "awq/group32",
        "awq/group64",
    ] {
        let read = if folder.starts_with("awq") { awq::read(golden(folder)) } else { gptq::read(golden(folder)) };
        let parameters = read.unwrap_or_else(|error| panic!("{error}"));
        let expected = Tensors::open(golden(folder).join("expected.safetensors")).expect("opens");
        assert_eq!(assert_reads(&parameters, &expected, ""), 1, "{folder}");
        let weight = &parameters["layers.0.proj.weight"];
        let Value::Implicit(array) = weight else { panic!("{folder} is dense") };
        let bits = (8 * array.nbytes()) as f64 / dense(weight).size() as f64;
        let others: Vec<&str> =
            parameters.iter().filter(|(_, value)| !value.is_implicit()).map(|(name, _)| name.as_str()).collect();
        table += &format!("{folder}: {weight}, {bits} bits, beside {}\n", others.join(", "));
    }
    expect![[r#"
        gptq/bits2: Affine(f16[32,64]), 4 bits, beside layers.0.proj.bias, norm.weight
        gptq/bits3: Affine(f16[32,64]), 5 bits, beside layers.0.proj.bias, norm.weight
        gptq/bits4: Affine(f16[32,64]), 6 bits, beside layers.0.proj.bias, norm.weight
        gptq/bits4_symmetric: Affine(f16[32,64]), 4.5 bits, beside layers.0.proj.bias, norm.weight
        gptq/bits8: Affine(f16[32,64]), 10 bits, beside layers.0.proj.bias, norm.weight
        gptq/whole_columns: Affine(f16[32,128]), 4.5 bits, beside layers.0.proj.bias, norm.weight
        awq/group32: Affine(f16[32,64]), 6 bits, beside norm.weight
        awq/group64: Affine(f16[32,64]), 5 bits, beside norm.weight
    "#]]
    .assert_eq(&table);
}

/// A folder with the tensors and the configuration of a golden one, after changes.
fn changed(
    folder: &Scratch,
    from: &str,
    tensors: impl Fn(&mut BTreeMap<String, Array>),
    config: impl Fn(String) -> String,
) -> PathBuf {
    let old = Tensors::open(golden(from)).expect("opens");
    let mut arrays: BTreeMap<String, Array> =
        old.names().map(|name| (name.to_owned(), old.get(name).expect("is there"))).collect();
    tensors(&mut arrays);
    let metadata: Metadata = old.metadata().iter().map(|(key, value)| (key.clone(), config(value.clone()))).collect();
    write(folder.join("model.safetensors"), arrays.into_iter().collect(), &metadata).expect("writes");
    if let Ok(text) = fs::read_to_string(golden(from).join("config.json")) {
        folder.file("config.json", config(text));
    }
    folder.to_path_buf()
}

type Read = fn(PathBuf) -> Result<Parameters>;

/// What is said of each change, by a name.
fn said(
    read: Read,
    from: &str,
    changes: &[(&str, &dyn Fn(&mut BTreeMap<String, Array>), &dyn Fn(String) -> String)],
) -> String {
    let mut table = String::new();
    for (name, tensors, config) in changes {
        let folder = Scratch::new();
        let error = read(changed(&folder, from, tensors, config)).map(|_| ()).expect_err(name);
        table += &format!("{name}: {}\n", folder.message(&error).replace("FOLDER/", ""));
    }
    table
}

fn same(_: &mut BTreeMap<String, Array>) {}

fn as_is(text: String) -> String {
    text
}

fn zeros(shape: &[i32], dtype: Dtype) -> Array {
    mlx_rs::ops::zeros_dtype(shape, dtype).expect("zeros")
}

#[test]
fn what_is_wrong_with_a_gptq_model_is_named() {
    let absent = |part: &'static str| {
        move |tensors: &mut BTreeMap<String, Array>| drop(tensors.remove(&format!("layers.0.proj.{part}")))
    };
    let put = |part: &'static str, shape: &'static [i32], dtype: Dtype| {
        move |tensors: &mut BTreeMap<String, Array>| {
            drop(tensors.insert(format!("layers.0.proj.{part}"), zeros(shape, dtype)))
        }
    };
    let with = |old: &'static str, new: &'static str| move |text: String| text.replace(old, new);
    let table = said(
        |path| gptq::read(path),
        "gptq/bits4",
        &[
            ("no qzeros", &absent("qzeros"), &as_is),
            ("no scales", &absent("scales"), &as_is),
            ("qweight of floats", &put("qweight", &[8, 32], Dtype::Float32), &as_is),
            ("qweight of a vector", &put("qweight", &[8], Dtype::Int32), &as_is),
            ("short qweight", &put("qweight", &[7, 32], Dtype::Int32), &as_is),
            ("no outputs", &put("qweight", &[8, 0], Dtype::Int32), &as_is),
            ("short scales", &put("scales", &[1, 32], Dtype::Float16), &as_is),
            ("scales of integers", &put("scales", &[2, 32], Dtype::Int32), &as_is),
            ("wide qzeros", &put("qzeros", &[2, 5], Dtype::Int32), &as_is),
            ("g_idx of zeros", &put("g_idx", &[64], Dtype::Int32), &as_is),
            ("g_idx of floats", &put("g_idx", &[64], Dtype::Float32), &as_is),
            ("bits 5", &same, &with("\"bits\": 4", "\"bits\": 5")),
            ("groups of 24", &same, &with("\"group_size\": 32", "\"group_size\": 24")),
            ("groups of -2", &same, &with("\"group_size\": 32", "\"group_size\": -2")),
            ("awq", &same, &with("\"gptq\",\n    \"bits\"", "\"awq\",\n    \"bits\"")),
            ("marlin", &same, &with("\"checkpoint_format\": \"gptq\"", "\"checkpoint_format\": \"marlin\"")),
            ("no configuration", &same, &with("quantization_config", "other")),
            ("no JSON", &same, &with("{", "")),
        ],
    );
    expect![[r#"
        no qzeros: model.safetensors: layers.0.proj.qzeros: there is no such tensor
        help: there are layers.0.proj.bias, layers.0.proj.g_idx, layers.0.proj.qweight, layers.0.proj.scales, norm.weight
        no scales: model.safetensors: layers.0.proj.scales: there is no such tensor
        help: there are layers.0.proj.bias, layers.0.proj.g_idx, layers.0.proj.qweight, layers.0.proj.qzeros, norm.weight
        qweight of floats: model.safetensors: layers.0.proj.qweight: it is f32[8,32], and must be a matrix of 32-bit words
        help: the file and its configuration do not fit: fetch both again
        qweight of a vector: model.safetensors: layers.0.proj.qweight: it is i32[8], and must be a matrix of 32-bit words
        help: the file and its configuration do not fit: fetch both again
        short qweight: model.safetensors: layers.0.proj.qweight: 7 rows of words are not the codes of whole groups of 32 inputs
        help: the file and its configuration do not fit: fetch both again
        no outputs: model.safetensors: layers.0.proj.scales: it is f16[2,32], and 2 groups of 0 columns have [2,0]
        help: the file and its configuration do not fit: fetch both again
        short scales: model.safetensors: layers.0.proj.scales: it is f16[1,32], and 2 groups of 32 columns have [2,32]
        help: the file and its configuration do not fit: fetch both again
        scales of integers: model.safetensors: layers.0.proj.scales: it is i32[2,32], and must be a matrix of floats
        help: the file and its configuration do not fit: fetch both again
        wide qzeros: model.safetensors: layers.0.proj.qzeros: it has 2 by 5 words, and must have 2 by 4
        help: the file and its configuration do not fit: fetch both again
        g_idx of zeros: model.safetensors: layers.0.proj.g_idx: its inputs are in an order of their own (desc_act), and an array has groups along its rows
        help: quantize the model again without desc_act
        g_idx of floats: model.safetensors: layers.0.proj.g_idx: it is f32[64], and must be a vector of i32
        help: the file and its configuration do not fit: fetch both again
        bits 5: model.safetensors: layers.0.proj.qweight: its configuration says 5 bits, and GPTQ has 2, 3, 4 and 8
        help: the file and its configuration do not fit: fetch both again
        groups of 24: model.safetensors: layers.0.proj.qweight: its columns of 64 are not whole groups of 24, as its configuration says
        help: the file and its configuration do not fit: fetch both again
        groups of -2: model.safetensors: layers.0.proj.qweight: its columns of 64 are not whole groups of -2, as its configuration says
        help: the file and its configuration do not fit: fetch both again
        awq: config.json: its quant_method is awq, not gptq
        help: name the folder of a model that was quantized so
        marlin: model.safetensors: layers.0.proj.qweight: its checkpoint_format is marlin, and gptq and gptq_v2 are read
        help: write the model again in one of these
        no configuration: config.json: it has no quantization_config of gptq: invalid type: null, expected struct Config
        help: name the folder of a model that was quantized so
        no JSON: config.json: it has no quantization_config of gptq: trailing characters at line 2 column 24
        help: name the folder of a model that was quantized so
    "#]].assert_eq(&table);
    let error = gptq::read(golden("gptq/reordered")).expect_err("is refused").to_string();
    expect![[r#"
        gptq/reordered/model.safetensors: layers.0.proj.g_idx: its inputs are in an order of their own (desc_act), and an array has groups along its rows
        help: quantize the model again without desc_act"#]].assert_eq(&error.replace(&golden("").display().to_string(), ""));
}

#[test]
fn what_is_wrong_with_an_awq_model_is_named() {
    let with = |old: &'static str, new: &'static str| move |text: String| text.replace(old, new);
    let put = |part: &'static str, shape: &'static [i32], dtype: Dtype| {
        move |tensors: &mut BTreeMap<String, Array>| {
            drop(tensors.insert(format!("layers.0.proj.{part}"), zeros(shape, dtype)))
        }
    };
    let table = said(
        |path| awq::read(path),
        "awq/group32",
        &[
            ("narrow qweight", &put("qweight", &[64, 3], Dtype::Int32), &as_is),
            ("short qzeros", &put("qzeros", &[1, 4], Dtype::Int32), &as_is),
            ("bits 8", &same, &with("\"bits\": 4", "\"bits\": 8")),
            ("gemv", &same, &with("gemm", "gemv")),
            (
                "groups of 16",
                &put("qweight", &[32, 4], Dtype::Int32),
                &with("\"group_size\": 32", "\"group_size\": 16"),
            ),
        ],
    );
    expect![[r#"
        narrow qweight: model.safetensors: layers.0.proj.scales: it is f16[2,32], and 2 groups of 24 columns have [2,24]
        help: the file and its configuration do not fit: fetch both again
        short qzeros: model.safetensors: layers.0.proj.qzeros: it has 1 by 4 words, and must have 2 by 4
        help: the file and its configuration do not fit: fetch both again
        bits 8: model.safetensors: layers.0.proj.qweight: its configuration says 8 bits, and AWQ has 4
        help: the file and its configuration do not fit: fetch both again
        gemv: model.safetensors: layers.0.proj.qweight: its version is gemv, and the layout of gemm is read
        help: write the model again as gemm
        groups of 16: model.safetensors: layers.0.proj.qweight: its groups are of 16 elements, and MLX has groups of 32, 64 and 128
        help: quantize the model again in groups of 32, 64 or 128
    "#]].assert_eq(&table);
}

#[test]
fn what_is_wrong_with_a_file_of_torchao_is_named() {
    let file = |path: PathBuf| torchao::read(path.join("model.safetensors"));
    let with = |old: &'static str, new: &'static str| move |text: String| text.replace(old, new);
    let put = |name: &'static str, shape: &'static [i32], dtype: Dtype| {
        move |tensors: &mut BTreeMap<String, Array>| drop(tensors.insert(name.to_owned(), zeros(shape, dtype)))
    };
    let absent = |name: &'static str| move |tensors: &mut BTreeMap<String, Array>| drop(tensors.remove(name));
    let int4 = said(
        file,
        "torchao/int4.safetensors",
        &[
            ("another subclass", &same, &with("Int4Tensor", "Float8Tensor")),
            ("no JSON", &same, &with("{\"_type\": \"Int4", "\"_type\": \"Int4")),
            ("no names", &same, &with("[\"layers", "{\"layers")),
            ("no scale", &absent("layers.0.proj._weight_scale"), &as_is),
            ("three axes", &same, &with("\"shape\": [3, 64]", "\"shape\": [1, 3, 64]")),
            ("a negative extent", &same, &with("\"shape\": [3, 64]", "\"shape\": [3, -64]")),
            ("groups of 24", &same, &with("[1, 32]", "[1, 24]")),
            (
                "groups of 16",
                &put("layers.0.proj._weight_scale", &[4, 3], Dtype::Bfloat16),
                &with("[1, 32]", "[1, 16]"),
            ),
            ("short qdata", &put("layers.0.proj._weight_qdata", &[3, 31], Dtype::Int8), &as_is),
            ("zero points of floats", &put("layers.0.proj._weight_zero_point", &[2, 3], Dtype::Float32), &as_is),
            ("a scale of activations", &same, &with("\"zero_point\"]", "\"zero_point\", \"act_pre_scale\"]")),
        ],
    );
    expect![[r#"
        another subclass: model.safetensors: layers.0.proj.weight: it is of torchao's Float8Tensor, and Int4Tensor and NF4Tensor are read
        help: save it as one of these, or dequantized
        no JSON: model.safetensors: layers.0.proj.weight: the file's metadata of it are not torchao's: invalid type: string "_type", expected struct Subclass at line 1 column 7
        help: the tensors and the file's metadata do not fit: write the file again
        no names: model.safetensors: tensor_names: the file's metadata of it are not torchao's: invalid type: map, expected a sequence at line 1 column 0
        help: the tensors and the file's metadata do not fit: write the file again
        no scale: model.safetensors: layers.0.proj._weight_scale: there is no such tensor
        help: there are layers.0.proj._weight_qdata, layers.0.proj._weight_zero_point, layers.0.proj.bias, layers.1.proj._weight_qdata, layers.1.proj._weight_scale, layers.1.proj._weight_zero_point, layers.2.proj._weight_qdata, layers.2.proj._weight_scale and 1 more
        three axes: model.safetensors: layers.0.proj.weight: its metadata have no shape of a matrix and no block_size of whole groups of its rows
        help: the tensors and the file's metadata do not fit: write the file again
        a negative extent: model.safetensors: layers.0.proj.weight: its metadata have no shape of a matrix and no block_size of whole groups of its rows
        help: the tensors and the file's metadata do not fit: write the file again
        groups of 24: model.safetensors: layers.0.proj.weight: its metadata have no shape of a matrix and no block_size of whole groups of its rows
        help: the tensors and the file's metadata do not fit: write the file again
        groups of 16: model.safetensors: layers.0.proj._weight_zero_point: it is bf16[2,3], and must be bf16[4,3]
        help: the tensors and the file's metadata do not fit: write the file again
        short qdata: model.safetensors: layers.0.proj._weight_qdata: it is i8[3,31], and must be i8[3,32] or u8[3,32]
        help: the tensors and the file's metadata do not fit: write the file again
        zero points of floats: model.safetensors: layers.0.proj._weight_zero_point: it is f32[2,3], and must be bf16[2,3]
        help: the tensors and the file's metadata do not fit: write the file again
        a scale of activations: model.safetensors: layers.0.proj._weight_act_pre_scale: it changes the activations, which an array of weights does not hold
        help: the tensors and the file's metadata do not fit: write the file again
    "#]].assert_eq(&int4);
    let nf4 = said(
        file,
        "torchao/nf4.safetensors",
        &[
            ("no block size", &same, &with("\"block_size\": 32", "\"other\": 32")),
            ("blocks of 0", &same, &with("\"block_size\": 32", "\"block_size\": 0")),
            ("blocks of 7 scales", &same, &with("\"scaler_block_size\": 8", "\"scaler_block_size\": 7")),
            ("blocks of 0 scales", &same, &with("\"scaler_block_size\": 8", "\"scaler_block_size\": 0")),
            ("a huge shape", &same, &with("[8, 64]", "[65536, 65536]")),
            ("a table of zeros", &put("a._weight_nf4", &[16], Dtype::Float32), &as_is),
            ("a short table", &put("a._weight_nf4", &[8], Dtype::Float32), &as_is),
            ("scales of floats", &put("a._weight_quantized_scalers", &[16], Dtype::Float32), &as_is),
        ],
    );
    expect![[r#"
        no block size: model.safetensors: a.weight: 512 elements are not whole blocks of 0, and these not of 8 scales
        help: the tensors and the file's metadata do not fit: write the file again
        blocks of 0: model.safetensors: a.weight: 512 elements are not whole blocks of 0, and these not of 8 scales
        help: the tensors and the file's metadata do not fit: write the file again
        blocks of 7 scales: model.safetensors: a.weight: 512 elements are not whole blocks of 32, and these not of 7 scales
        help: the tensors and the file's metadata do not fit: write the file again
        blocks of 0 scales: model.safetensors: a.weight: its metadata have no shape, block_size and scaler_block_size of whole numbers
        help: the tensors and the file's metadata do not fit: write the file again
        a huge shape: model.safetensors: a.weight: its metadata have no shape, block_size and scaler_block_size of whole numbers
        help: the tensors and the file's metadata do not fit: write the file again
        a table of zeros: model.safetensors: a._weight_nf4: a codebook of the 16 values [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] codes nothing
        help: give 2, 4, 8 or 16 finite values, not all of them zero
        help: the tensors and the file's metadata do not fit: write the file again
        a short table: model.safetensors: a._weight_nf4: it is f32[8], and must be f32[16] or f16[16] or bf16[16]
        help: the tensors and the file's metadata do not fit: write the file again
        scales of floats: model.safetensors: a._weight_quantized_scalers: it is f32[16], and must be i8[16]
        help: the tensors and the file's metadata do not fit: write the file again
    "#]].assert_eq(&nf4);
}
