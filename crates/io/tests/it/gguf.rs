//! GGUF files of gguf-py, and what it reads in them.

use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use expect_test::expect;
use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Policy, Value, implicit};
use tacit_io::json::Json;
use tacit_io::{Gguf, GgufValue, Library, Tensors, load, save};
use tacit_nn::Parameters;

use crate::gguf_malformed::{Maker, list, text};
use crate::golden::{dense, golden};
use crate::scratch::Scratch;

fn types() -> Gguf {
    Gguf::open(golden("gguf/types.gguf")).expect("opens")
}

fn expected() -> Tensors {
    Tensors::open(golden("gguf/expected.safetensors")).expect("opens")
}

/// Equal but for the sign of zero, which codes and scales of the same value may have differently.
#[track_caller]
fn assert_equal(found: &Array, expected: &Array, name: &str) {
    assert_eq!(Aval::from(found), Aval::from(expected), "{name}");
    assert!(found.eq_values(expected).expect("compares"), "{name}: {found:?}\n{expected:?}");
}

#[test]
fn every_type_has_the_values_of_gguf_py() {
    let (file, expected) = (types(), expected());
    let mut quantized = 0;
    for name in file.names().filter(|&name| name != "unread") {
        let value = file.get(name).unwrap_or_else(|error| panic!("{error}"));
        let theirs = expected.get(name).expect("is there");
        if name.starts_with("dense") {
            assert!(matches!(value, Value::Dense(_)), "{name}");
            assert_equal(&dense(&value).as_dtype(theirs.dtype()).expect("casts"), &theirs, name);
            continue;
        }
        quantized += 1;
        assert!(value.is_implicit(), "{name}");
        assert_equal(&dense(&value), &theirs, name);
    }
    assert_eq!(quantized, 37);
    let dtype = |name| file.aval(name).expect("is there").dtype;
    assert_eq!(
        ["dense.f32", "dense.f16", "dense.bf16", "dense.i32"].map(dtype),
        [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Int32]
    );
}

#[test]
fn a_vector_of_blocks_has_all_of_them() {
    let folder = Scratch::new();
    // Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K, IQ4_NL, MXFP4.
    for (kind, width) in [(2, 64), (3, 64), (6, 64), (8, 64), (12, 512), (14, 512), (20, 64), (39, 64)] {
        let read = |extents: &[u64]| {
            let bytes = Maker::default().tensor("w", extents, kind, 0).elements(512).bytes();
            let path = folder.file(&format!("{kind}-{}.gguf", extents.len()), bytes);
            dense(&Gguf::open(path).and_then(|file| file.get("w")).expect("reads"))
        };
        let (vector, matrix) = (read(&[width]), read(&[width, 1]));
        assert_equal(&vector, &matrix.reshape(&[-1]).expect("one row"), &format!("type {kind}"));
    }
}

#[test]
fn every_quantized_type_is_multiplied_in_its_codes() {
    let file = types();
    let _deny = Policy::Deny.scope();
    for name in file.names().filter(|name| !name.starts_with("dense") && *name != "unread") {
        let w = file.get(name).expect("reads");
        let theirs = dense(&w);
        let x: Vec<f32> = (0..2 * theirs.dim(1)).map(|at| (at as f32).sin()).collect();
        let x = Array::from_slice(&x, &[2, theirs.dim(1)]);
        let y = implicit((&x, &w), |(x, w)| x.matmul(w.t())).expect("nothing is built");
        let plain = x.matmul(theirs.t()).expect("multiplies");
        let most = plain.abs().and_then(|y| y.max(None)).expect("a number").item_exact::<f32>();
        let apart = y.dense().expect("dense").subtract(&plain).and_then(|d| d.abs()?.max(None)).expect("a number");
        assert!(apart.item_exact::<f32>() <= 1e-5 * most, "{name}: {apart:?} of {most}");
    }
}

#[test]
fn the_bits_of_an_element_as_they_are_held() {
    let file = types();
    let table = file.names().filter(|name| !name.contains('.') && *name != "unread").map(|name| {
        let value = file.get(name).expect("reads");
        let Value::Implicit(array) = &value else { panic!("{name} is dense") };
        let bits = (8 * array.nbytes()) as f64 / file.aval(name).expect("is there").size() as f64;
        let kind = file.kind(name).expect("is there");
        format!("{kind:7} {bits} bits, {} in the file, {value}\n", kind.bits())
    });
    expect![[r#"
        IQ4_NL  5 bits, 4.5 in the file, Codebook(f32[3,64])
        IQ4_XS  5 bits, 4.25 in the file, Codebook(f32[2,256])
        MXFP4   4.25 bits, 4.25 in the file, Mxfp4(f32[3,64])
        Q2_K    3.25 bits, 2.625 in the file, KQuant(f32[2,256])
        Q3_K    3.625 bits, 3.4375 in the file, KQuant(f32[2,256])
        Q4_0    4.5 bits, 4.5 in the file, Symmetric(f32[3,64])
        Q4_1    5 bits, 5 in the file, Affine(f32[3,64])
        Q4_K    4.75 bits, 4.5 in the file, KQuant(f32[2,256])
        Q5_0    5.5 bits, 5.5 in the file, Symmetric(f32[3,64])
        Q5_1    6 bits, 6 in the file, Affine(f32[3,64])
        Q5_K    5.75 bits, 5.5 in the file, KQuant(f32[2,256])
        Q6_K    6.625 bits, 6.5625 in the file, KQuant(f32[2,256])
        Q8_0    8.5 bits, 8.5 in the file, Symmetric(f32[3,64])
        TQ1_0   2.125 bits, 1.6875 in the file, Codebook(f32[2,256])
        TQ2_0   2.125 bits, 2.0625 in the file, Codebook(f32[2,256])
    "#]]
    .assert_eq(&table.collect::<String>());
}

/// For mlx-lm, whose format has biases, symmetric codes are affine ones; biases that no half holds are in `f32`.
#[test]
fn symmetric_codes_are_written_with_biases() {
    let file = types();
    for (name, dtype) in [
        ("Q4_0", Dtype::Float16),
        ("Q8_0", Dtype::Float16),
        ("Q8_0.large", Dtype::Float32),
        ("Q4_1.large", Dtype::Float16),
    ] {
        let value = file.get(name).expect("reads");
        let path = format!("{name}.weight");
        let parameters = Parameters::from([(path.clone(), value.clone())]);
        let held = Library::MlxLm.holdable("model.gguf", parameters).expect("has a format for it");
        let array = held[&path].downcast::<tacit_arrays::AffineArray>().expect("is affine");
        assert_eq!(array.biases().expect("has biases").dtype(), dtype, "{name}");
        let _allow = Policy::Allow.scope();
        assert!(
            held[&path].dense().expect("dense").eq_exact(value.dense().expect("dense")).expect("compares"),
            "{name}"
        );
    }
}

#[test]
fn metadata_of_every_type_is_read() {
    let file = types();
    let all: Vec<String> =
        file.keys().map(|key| format!("{key} = {:?}\n", file.metadata(key).expect("reads"))).collect();
    expect![[r#"
        general.architecture = Text("golden")
        test.bool = Bool(true)
        test.f32 = Float(0.5)
        test.f64 = Float(0.1)
        test.i16 = Signed(-30000)
        test.i32 = Signed(-2000000000)
        test.i64 = Signed(-4611686018427387904)
        test.i8 = Signed(-100)
        test.list = List([Signed(1), Signed(2), Signed(3)])
        test.string = Text("täcit")
        test.strings = List([Text("a"), Text(""), Text("bc")])
        test.u16 = Unsigned(60000)
        test.u32 = Unsigned(4000000000)
        test.u64 = Unsigned(9223372036854775808)
        test.u8 = Unsigned(200)
    "#]]
    .assert_eq(&all.concat());
    assert_eq!(file.metadata("test.u8").expect("reads"), GgufValue::Unsigned(200));
    assert_eq!(file.version(), 3);
}

#[test]
fn a_llama_has_the_names_and_the_rows_of_hugging_face() {
    let model = Gguf::open(golden("gguf/llama.gguf")).and_then(|file| file.hugging_face()).expect("reads");
    let expected = expected();
    let prefix = "llama.";
    let names: Vec<&str> = expected.names().filter_map(|name| name.strip_prefix(prefix)).collect();
    assert_eq!(model.keys().collect::<Vec<_>>(), names);
    for (name, value) in &model {
        assert_equal(&dense(value), &expected.get(&format!("{prefix}{name}")).expect("is there"), name);
    }
}

#[test]
fn what_is_not_there_or_not_read_is_told() {
    let file = types();
    let told =
        |error: tacit_core::Error| error.to_string().replace(&golden("gguf/types.gguf").display().to_string(), "FILE");
    let said = [
        file.get("unread").map(|_| ()),
        file.get("absent").map(|_| ()),
        file.metadata("absent").map(|_| ()),
        file.hugging_face().map(|_| ()),
    ];
    let said: Vec<String> = said.into_iter().map(|result| told(result.expect_err("is refused"))).collect();
    expect![[r#"
        FILE: unread: its type, IQ2_XXS, is not read; Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0 and MXFP4 are
        help: make the file anew with llama-quantize and one of these
        FILE: absent: there is no tensor of this name
        help: ask for one of `names`
        FILE: absent: there is no such key
        help: ask for one of `keys`
        FILE: general.architecture: it is "golden", and the names of llama, qwen2, qwen3, qwen3moe, qwen3next, gemma, gemma2, gemma3, phi3, olmo2, granite and smollm3 are known
        help: take `parameters`, whose names are those of the file"#]].assert_eq(&said.join("\n"));
}

#[test]
fn the_same_rows_are_gathered_from_codes() {
    let file = types();
    let _deny = Policy::Deny.scope();
    for name in ["Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"] {
        let w = file.get(name).expect("reads");
        let rows = Array::from_slice(&[1_i32, 0, 1], &[3]);
        let taken = implicit((&w, &rows), |(w, rows)| w.take_axis(rows, 0)).expect("nothing is built");
        let plain = dense(&w).take_axis(&rows, 0).expect("takes");
        assert_equal(&taken.dense().expect("dense"), &plain, name);
    }
}

#[test]
fn what_was_read_is_saved_and_loaded() {
    let folder = Scratch::new();
    let file = types();
    let names = ["Q4_0", "Q5_1", "Q2_K", "Q4_K.large", "Q6_K", "IQ4_XS", "MXFP4"];
    let parameters: Parameters =
        names.iter().map(|name| ((*name).to_owned(), file.get(name).expect("reads"))).collect();
    let path = folder.join("model.safetensors");
    save(&path, &parameters).expect("saves");
    let loaded = load(&path).expect("loads");
    for (name, value) in &parameters {
        let (Value::Implicit(old), Value::Implicit(new)) = (value, &loaded[name]) else { panic!("{name} is dense") };
        assert!(old.aux_eq(&**new), "{name}");
        assert_equal(&dense(&loaded[name]), &dense(value), name);
    }
}

/// As in llama.cpp, which knows such a model by its name.
#[test]
fn spaces_behind_the_tokens_of_a_phi_3_are_left_out() {
    let folder = Scratch::new();
    let stripped = |name: &str| {
        let types = [3_u32, 3, 1].map(|kind| kind.to_le_bytes().to_vec());
        let made = Maker::default()
            .value("general.name", 8, &text(name))
            .value("tokenizer.ggml.model", 8, &text("llama"))
            .value("tokenizer.ggml.tokens", 9, &list(8, &["<s>", "<|user|>", "hi"].map(text)))
            .value("tokenizer.ggml.scores", 9, &list(6, &types))
            .value("tokenizer.ggml.token_type", 9, &list(5, &types));
        let file = Gguf::open(folder.file("model.gguf", made.bytes())).expect("opens");
        let tokenizer = file.tokenizer().expect("reads");
        let Some(Json::List(added)) = tokenizer.get("added_tokens") else { panic!("no list") };
        added.iter().map(|token| token.get("rstrip").and_then(Json::flag)).collect::<Vec<_>>()
    };
    assert_eq!(stripped("Phi3 Mini"), [Some(false), Some(true)]);
    assert_eq!(stripped("Phi 3 Mini"), [Some(false), Some(false)]);
}

/// Nobody writes to it.
#[test]
fn a_pipe_in_the_place_of_a_part_is_refused_and_not_waited_for() {
    let folder = Scratch::new();
    let part = Maker::default().value("split.no", 2, &[0, 0]).value("split.count", 2, &[2, 0]);
    let first = folder.file("m-00001-of-00002.gguf", part.tensor("w", &[2], 0, 0).elements(8).bytes());
    let pipe = folder.join("m-00002-of-00002.gguf");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("starts").success());
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(Gguf::open(first).map(drop).map_err(|error| error.to_string())));
    let error = told.recv_timeout(Duration::from_mins(1)).expect("it does not wait").expect_err("it is a pipe");
    assert!(error.ends_with("m-00002-of-00002.gguf: it is no regular file"), "{error}");
}
