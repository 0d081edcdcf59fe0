//! What torchao, GPTQ and AWQ write, and what it stands for.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_bridge::Primitive;
use tacit_core::{Aval, Policy, Result, Value, implicit, tree};
use tacit_io::{Metadata, Tensors, awq, gptq, torchao, write};
use tacit_nn::Parameters;

use crate::golden::{dense, golden};
use crate::scratch::Scratch;
use Edit::{Put, Remove, Text};

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
    let folders = [
        "gptq/bits2",
        "gptq/bits3",
        "gptq/bits4",
        "gptq/bits4_symmetric",
        "gptq/bits8",
        "gptq/whole_columns",
        "awq/group32",
        "awq/group64",
    ];
    let table = folders.map(|folder| {
        let read = if folder.starts_with("awq") { awq::read(golden(folder)) } else { gptq::read(golden(folder)) };
        let parameters = read.unwrap_or_else(|error| panic!("{error}"));
        let expected = Tensors::open(golden(folder).join("expected.safetensors")).expect("opens");
        assert_eq!(assert_reads(&parameters, &expected, ""), 1, "{folder}");
        let weight = &parameters["layers.0.proj.weight"];
        let Value::Implicit(array) = weight else { panic!("{folder} is dense") };
        let bits = (8 * array.nbytes()) as f64 / dense(weight).size() as f64;
        let others: Vec<&str> =
            parameters.iter().filter(|(_, value)| !value.is_implicit()).map(|(name, _)| name.as_str()).collect();
        format!("{folder}: {weight}, {bits} bits, beside {}\n", others.join(", "))
    });
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
    .assert_eq(&table.concat());
}

/// Those of a large model are not all in memory as soon as it is read.
#[test]
fn codes_are_read_when_they_are_used() {
    let read = [
        gptq::read(golden("gptq/bits4")),
        awq::read(golden("awq/group32")),
        torchao::read(golden("torchao/int4.safetensors")),
        torchao::read(golden("torchao/nf4.safetensors")),
    ];
    for parameters in read {
        for (path, value) in &parameters.expect("reads") {
            let Value::Implicit(array) = value else { continue };
            let is_lazy = |part: &Value| Primitive::making(part.as_dense().expect("dense")).expect("memory").is_some();
            let lazy = || array.children().iter().filter(|(_, part)| is_lazy(part)).count();
            assert_ne!(lazy(), 0, "{path}");
            tree::eval(value).expect("reads");
            assert_eq!(lazy(), 0, "{path}");
        }
    }
}

/// What codes were read of is not in memory beside them, as long as another array holds the file.
#[test]
fn memory_of_a_file_goes_as_its_codes_are_read() {
    let folder = Scratch::new();
    let path = folder.join("model.safetensors");
    let zeros = |name: &str, shape: &[i32], dtype| (name.to_owned(), ops::zeros_dtype(shape, dtype).expect("zeros"));
    let tensors = vec![
        zeros("norm.weight", &[64], F32),
        zeros("proj.qweight", &[512, 1024], I32),
        zeros("proj.qzeros", &[32, 128], I32),
        zeros("proj.scales", &[32, 1024], F16),
    ];
    write(&path, tensors, &Metadata::new()).expect("writes");
    let config = r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}"#;
    folder.file("config.json", config);
    let parameters = gptq::read(&*folder).expect("reads");
    tree::eval(&parameters["proj.weight"]).expect("reads");
    let resident = || {
        let text = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let (_, own) = text.split_once(path.to_str()?)?;
        let kilobytes = own.lines().find_map(|line| line.strip_prefix("Rss:"))?;
        kilobytes.trim().trim_end_matches(" kB").parse::<usize>().ok()
    };
    // Of 2048 for the words of the codes. Other systems do not tell.
    if let Some(kilobytes) = resident() {
        assert!(kilobytes < 512, "{kilobytes} kB");
    }
    assert!(!parameters["norm.weight"].is_implicit());
}

/// A change of a golden file or of its configuration.
#[derive(Clone, Copy)]
enum Edit {
    /// Zeros in the place of a tensor.
    Put(&'static str, &'static [i32], Dtype),
    Remove(&'static str),
    /// One text for another, in the configuration and in the metadata.
    Text(&'static str, &'static str),
}

/// Changes a copy of a golden file in the folder.
fn change(folder: &Scratch, from: &str, edits: &[Edit]) {
    let old = Tensors::open(golden(from)).expect("opens");
    let mut arrays: BTreeMap<String, Array> =
        old.names().map(|name| (name.to_owned(), old.get(name).expect("is there"))).collect();
    let mut texts: Vec<(String, String)> = old.metadata().clone().into_iter().collect();
    texts.extend(fs::read_to_string(golden(from).join("config.json")).ok().map(|text| ("config".to_owned(), text)));
    for &edit in edits {
        match edit {
            Put(name, shape, dtype) => {
                let zeros = ops::zeros_dtype(shape, dtype).expect("zeros");
                arrays.insert(name.to_owned(), zeros);
            }
            Remove(name) => drop(arrays.remove(name)),
            Text(old, new) => texts.iter_mut().for_each(|(_, text)| *text = text.replace(old, new)),
        }
    }
    let mut metadata: Metadata = texts.into_iter().collect();
    if let Some(config) = metadata.remove("config") {
        folder.file("config.json", config);
    }
    write(folder.join("model.safetensors"), arrays.into_iter().collect(), &metadata).expect("writes");
}

/// What is said of each change, by a name.
fn said(read: impl Fn(PathBuf) -> Result<Parameters>, from: &str, changes: &[(&str, &[Edit])]) -> String {
    let said = changes.iter().map(|(name, edits)| {
        let folder = Scratch::new();
        change(&folder, from, edits);
        let error = read(folder.to_path_buf()).map(|_| ()).expect_err(name);
        format!("{name}: {}\n", folder.message(&error).replace("FOLDER/", ""))
    });
    said.collect()
}

const F16: Dtype = Dtype::Float16;
const F32: Dtype = Dtype::Float32;
const I32: Dtype = Dtype::Int32;

#[test]
fn what_is_wrong_with_a_gptq_model_is_named() {
    let [qweight, scales, qzeros, g_idx] =
        ["layers.0.proj.qweight", "layers.0.proj.scales", "layers.0.proj.qzeros", "layers.0.proj.g_idx"];
    let table = said(
        gptq::read,
        "gptq/bits4",
        &[
            ("no qzeros", &[Remove(qzeros)]),
            ("no scales", &[Remove(scales)]),
            ("qweight of floats", &[Put(qweight, &[8, 32], F32)]),
            ("qweight of a vector", &[Put(qweight, &[8], I32)]),
            ("short qweight", &[Put(qweight, &[7, 32], I32)]),
            ("no outputs", &[Put(qweight, &[8, 0], I32)]),
            ("nothing", &[Put(qweight, &[8, 0], I32), Put(scales, &[2, 0], F16), Put(qzeros, &[2, 0], I32)]),
            ("short scales", &[Put(scales, &[1, 32], F16)]),
            ("scales of integers", &[Put(scales, &[2, 32], I32)]),
            ("wide qzeros", &[Put(qzeros, &[2, 5], I32)]),
            ("g_idx of zeros", &[Put(g_idx, &[64], I32)]),
            ("short g_idx", &[Put(g_idx, &[1], I32)]),
            ("g_idx of floats", &[Put(g_idx, &[64], F32)]),
            ("bits 5", &[Text("\"bits\": 4", "\"bits\": 5")]),
            ("groups of 24", &[Text("\"group_size\": 32", "\"group_size\": 24")]),
            ("groups of -2", &[Text("\"group_size\": 32", "\"group_size\": -2")]),
            ("awq", &[Text("\"gptq\",\n    \"bits\"", "\"awq\",\n    \"bits\"")]),
            ("marlin", &[Text("\"checkpoint_format\": \"gptq\"", "\"checkpoint_format\": \"marlin\"")]),
            ("no configuration", &[Text("quantization_config", "other")]),
            ("no JSON", &[Text("{", "")]),
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
        nothing: model.safetensors: layers.0.proj.qweight: f16[0,64] has no elements to quantize
        help: quantize the model again in groups of 32, 64 or 128
        short scales: model.safetensors: layers.0.proj.scales: it is f16[1,32], and 2 groups of 32 columns have [2,32]
        help: the file and its configuration do not fit: fetch both again
        scales of integers: model.safetensors: layers.0.proj.scales: it is i32[2,32], and must be a matrix of floats
        help: the file and its configuration do not fit: fetch both again
        wide qzeros: model.safetensors: layers.0.proj.qzeros: it has 2 by 5 words, and must have 2 by 4
        help: the file and its configuration do not fit: fetch both again
        g_idx of zeros: model.safetensors: layers.0.proj.g_idx: its inputs are in an order of their own (desc_act), and an array has groups along its rows
        help: quantize the model again without desc_act
        short g_idx: model.safetensors: layers.0.proj.g_idx: its inputs are in an order of their own (desc_act), and an array has groups along its rows
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
        no configuration: config.json: it has no quantization_config of gptq: invalid type: null, expected bits and group_size
        help: name the folder of a model that was quantized so
        no JSON: config.json: it has no quantization_config of gptq: trailing characters at line 2 column 24
        help: name the folder of a model that was quantized so
    "#]].assert_eq(&table);
    let older = r#""meta": {"quantizer": ["gptqmodel:5.6.12"]}, "bits": 3"#;
    expect![[r"
        older: model.safetensors: layers.0.proj.qzeros: GPTQModel before its version 7 took the 1 of zeros of 3 bits from other bits than their lowest
        help: write the model again as gptq_v2
    "]].assert_eq(&said(gptq::read, "gptq/bits3", &[("older", &[Text("\"bits\": 3", older)])]));
    let error = gptq::read(golden("gptq/reordered")).expect_err("is refused").to_string();
    expect![[r#"
        gptq/reordered/model.safetensors: layers.0.proj.g_idx: its inputs are in an order of their own (desc_act), and an array has groups along its rows
        help: quantize the model again without desc_act"#]].assert_eq(&error.replace(&golden("").display().to_string(), ""));
}

#[test]
fn what_is_wrong_with_an_awq_model_is_named() {
    let [qweight, qzeros] = ["layers.0.proj.qweight", "layers.0.proj.qzeros"];
    let table = said(
        awq::read,
        "awq/group32",
        &[
            ("narrow qweight", &[Put(qweight, &[64, 3], I32)]),
            ("short qzeros", &[Put(qzeros, &[1, 4], I32)]),
            ("bits 8", &[Text("\"bits\": 4", "\"bits\": 8")]),
            ("gemv", &[Text("gemm", "gemv")]),
            ("groups of 16", &[Put(qweight, &[32, 4], I32), Text("\"group_size\": 32", "\"group_size\": 16")]),
            ("gptq", &[Text("\"awq\"", "\"gptq\"")]),
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
        gptq: config.json: its quant_method is gptq, not awq
        help: name the folder of a model that was quantized so
    "#]].assert_eq(&table);
}

#[test]
fn what_is_wrong_with_a_file_of_torchao_is_named() {
    let file = |path: PathBuf| torchao::read(path.join("model.safetensors"));
    let [qdata, scale, zero_point] =
        ["layers.0.proj._weight_qdata", "layers.0.proj._weight_scale", "layers.0.proj._weight_zero_point"];
    let int4 = said(
        file,
        "torchao/int4.safetensors",
        &[
            ("another subclass", &[Text("Int4Tensor", "Float8Tensor")]),
            ("no JSON", &[Text("{\"_type\": \"Int4", "\"_type\": \"Int4")]),
            ("no object", &[Text("{\"_type\": \"Tensor\"}", "3")]),
            ("no names", &[Text("[\"layers", "{\"layers")]),
            ("no scale", &[Remove(scale)]),
            ("three axes", &[Text("\"shape\": [3, 64]", "\"shape\": [1, 3, 64]")]),
            ("a negative extent", &[Text("\"shape\": [3, 64]", "\"shape\": [3, -64]")]),
            ("groups of 24", &[Text("[1, 32]", "[1, 24]")]),
            (
                "groups of 16",
                &[
                    Text("[1, 32]", "[1, 16]"),
                    Put(scale, &[4, 3], Dtype::Bfloat16),
                    Put(zero_point, &[4, 3], Dtype::Bfloat16),
                ],
            ),
            ("short qdata", &[Put(qdata, &[3, 31], Dtype::Int8)]),
            ("zero points of floats", &[Put(zero_point, &[2, 3], F32)]),
            ("a scale of activations", &[Text("\"zero_point\"]", "\"zero_point\", \"act_pre_scale\"]")]),
        ],
    );
    expect![[r#"
        another subclass: model.safetensors: layers.0.proj.weight: it is of torchao's Float8Tensor, and Int4Tensor and NF4Tensor are read
        help: save it as one of these, or dequantized
        no JSON: model.safetensors: layers.0.proj.weight: the file's metadata of it are not torchao's: invalid type: string "_type", expected an object with _type at line 1 column 7
        help: the tensors and the file's metadata do not fit: write the file again
        no object: model.safetensors: layers.0.proj.bias: the file's metadata of it are not torchao's: invalid type: integer `3`, expected an object with _type at line 1 column 1
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
        groups of 16: model.safetensors: layers.0.proj._weight_qdata: its groups are of 16 elements, and MLX has groups of 32, 64 and 128
        help: the tensors and the file's metadata do not fit: write the file again
        short qdata: model.safetensors: layers.0.proj._weight_qdata: it is i8[3,31], and must be i8[3,32] or u8[3,32]
        help: the tensors and the file's metadata do not fit: write the file again
        zero points of floats: model.safetensors: layers.0.proj._weight_zero_point: it is f32[2,3], and must be bf16[2,3]
        help: the tensors and the file's metadata do not fit: write the file again
        a scale of activations: model.safetensors: layers.0.proj._weight_act_pre_scale: it changes the activations, which an array of weights does not hold
        help: the tensors and the file's metadata do not fit: write the file again
    "#]].assert_eq(&int4);
    let block_size = "\"block_size\": 32";
    let nf4 = said(
        file,
        "torchao/nf4.safetensors",
        &[
            ("no block size", &[Text(block_size, "\"other\": 32")]),
            ("blocks of 0", &[Text(block_size, "\"block_size\": 0")]),
            ("blocks of text", &[Text(block_size, "\"block_size\": \"32\"")]),
            ("blocks of 7 scales", &[Text("\"scaler_block_size\": 8", "\"scaler_block_size\": 7")]),
            ("blocks of 0 scales", &[Text("\"scaler_block_size\": 8", "\"scaler_block_size\": 0")]),
            ("a huge shape", &[Text("[8, 64]", "[65536, 65536]")]),
            ("a table of zeros", &[Put("a._weight_nf4", &[16], F32)]),
            ("a short table", &[Put("a._weight_nf4", &[8], F32)]),
            ("scales of floats", &[Put("a._weight_quantized_scalers", &[16], F32)]),
        ],
    );
    expect![[r#"
        no block size: model.safetensors: a.weight: 512 elements are not whole blocks of 0, and these not of 8 scales
        help: the tensors and the file's metadata do not fit: write the file again
        blocks of 0: model.safetensors: a.weight: 512 elements are not whole blocks of 0, and these not of 8 scales
        help: the tensors and the file's metadata do not fit: write the file again
        blocks of text: model.safetensors: a.weight: the file's metadata of it are not torchao's: a number, or one for each axis at line 1 column 51
        help: the tensors and the file's metadata do not fit: write the file again
        blocks of 7 scales: model.safetensors: a.weight: 512 elements are not whole blocks of 32, and these not of 7 scales
        help: the tensors and the file's metadata do not fit: write the file again
        blocks of 0 scales: model.safetensors: a.weight: its metadata have no shape, block_size and scaler_block_size of whole numbers
        help: the tensors and the file's metadata do not fit: write the file again
        a huge shape: model.safetensors: a.weight: its metadata have no shape, block_size and scaler_block_size of whole numbers
        help: the tensors and the file's metadata do not fit: write the file again
        a table of zeros: model.safetensors: a._weight_nf4: a codebook of the 16 values [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] codes nothing
        help: the tensors and the file's metadata do not fit: write the file again
        a short table: model.safetensors: a._weight_nf4: it is f32[8], and must be f32[16] or f16[16] or bf16[16]
        help: the tensors and the file's metadata do not fit: write the file again
        scales of floats: model.safetensors: a._weight_quantized_scalers: it is f32[16], and must be i8[16]
        help: the tensors and the file's metadata do not fit: write the file again
    "#]].assert_eq(&nf4);
}
