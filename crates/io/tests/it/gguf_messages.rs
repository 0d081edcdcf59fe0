//! What is said of GGUF files, and of models that are written as one, that nothing else here meets.

use std::collections::BTreeSet;

use expect_test::expect;
use tacit_core::Error;
use tacit_io::Gguf;
use tacit_nn::Parameters;

use crate::gguf_malformed::{Maker, text};
use crate::gguf_written_malformed::{embedding, llama, numbers, parameters, refused};
use crate::scratch::Scratch;

/// A file with entries and tensors of every kind, to be cut.
fn whole() -> Vec<u8> {
    let list = [&4_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &7_u32.to_le_bytes()].concat();
    Maker::default()
        .value("general.name", 8, &text("whole"))
        .value("number", 4, &1_u32.to_le_bytes())
        .value("list", 9, &list)
        .tensor("w", &[8], 0, 0)
        .elements(32)
        .bytes()
}

#[test]
fn a_file_that_ends_says_in_what() {
    let folder = Scratch::new();
    let bytes = whole();
    Gguf::open(folder.file("model.gguf", &bytes)).expect("is whole");
    let mut said = BTreeSet::new();
    for length in 0..bytes.len() {
        let error = Gguf::open(folder.file("model.gguf", &bytes[..length])).expect_err("is cut");
        let Error::Checkpoint { reason, .. } = error else { panic!("{error}") };
        let words =
            reason.split(' ').map(|word| if word.starts_with(|c: char| c.is_ascii_digit()) { "N" } else { word });
        said.insert(words.collect::<Vec<_>>().join(" "));
    }
    expect![[r#"
        F32 of [8] at N behind the header, which ends at N is not within the N bytes of the file
        N is given as the length of a key, and the N bytes that are left hold N at most
        N is given as the length of a list, and the N bytes that are left hold N at most
        N is given as the length of the name of a tensor, and the N bytes that are left hold N at most
        N is given as the number of keys, and the N bytes that are left hold N at most
        N is given as the number of tensors, and the N bytes that are left hold N at most
        the file ends in a number: N bytes are needed at byte N and N are left
        the file ends in a place: N bytes are needed at byte N and N are left
        the file ends in a type: N bytes are needed at byte N and N are left
        the file ends in an extent: N bytes are needed at byte N and N are left
        the file ends in the length of a key: N bytes are needed at byte N and N are left
        the file ends in the length of a list: N bytes are needed at byte N and N are left
        the file ends in the length of the name of a tensor: N bytes are needed at byte N and N are left
        the file ends in the magic number: N bytes are needed at byte N and N are left
        the file ends in the number of extents: N bytes are needed at byte N and N are left
        the file ends in the number of tensors: N bytes are needed at byte N and N are left
        the file ends in the type of a list: N bytes are needed at byte N and N are left
        the file ends in the version: N bytes are needed at byte N and N are left"#]]
    .assert_eq(&said.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn tensors_that_no_model_has_are_refused() {
    let folder = Scratch::new();
    let of = |architecture: &str| Maker::default().value("general.architecture", 8, &text(architecture));
    let net = of("qwen3next").value("qwen3next.ssm.group_count", 4, &1_u32.to_le_bytes()).value(
        "qwen3next.ssm.state_size",
        4,
        &2_u32.to_le_bytes(),
    );
    let cases = [
        ("gains in blocks", of("gemma").tensor("output_norm.weight", &[32], 8, 0).elements(34)),
        (
            "gates of another type",
            net.clone()
                .tensor("blk.0.attn_qkv.weight", &[32, 6], 0, 0)
                .tensor("blk.0.attn_gate.weight", &[32, 2], 1, 768)
                .elements(896),
        ),
        ("filters in blocks", net.tensor("blk.0.ssm_conv1d.weight", &[32, 2], 8, 0).elements(68)),
    ];
    let said = cases.map(|(name, made)| {
        let file = Gguf::open(folder.file("model.gguf", made.bytes())).expect(name);
        format!("{name}: {}\n", folder.message(&file.hugging_face().map(|_| ()).expect_err(name)))
    });
    expect![[r#"
        gains in blocks: FOLDER/model.gguf: output_norm.weight: it is Symmetric(f32[32]), and not dense
        help: convert the model again: llama.cpp leaves such tensors as floats
        gates of another type: FOLDER/model.gguf: blk.0.attn_gate.weight: it is F16 [2, 32], and blk.0.attn_qkv.weight is F32 [6, 32]
        help: convert the model again, with one type for both
        filters in blocks: FOLDER/model.gguf: blk.0.ssm_conv1d.weight: it is Symmetric(f32[2,32]), and not dense
        help: convert the model again: llama.cpp leaves such tensors as floats
    "#]].assert_eq(&said.concat());
}

#[test]
fn configurations_that_metadata_do_not_give_are_refused() {
    let folder = Scratch::new();
    let count = |count: u32| count.to_le_bytes();
    let gemma = || {
        Maker::default()
            .value("general.architecture", 8, &text("gemma3"))
            .value("gemma3.block_count", 4, &count(1))
            .value("gemma3.attention.sliding_window", 4, &count(512))
            .tensor("token_embd.weight", &[32, 1], 0, 0)
            .elements(128)
    };
    let factors = |kind: u32, extents: &[u64]| {
        Maker::default()
            .value("general.architecture", 8, &text("llama"))
            .value("llama.embedding_length", 4, &count(32))
            .value("llama.attention.head_count", 4, &count(4))
            .tensor("token_embd.weight", &[32, 1], 0, 0)
            .tensor("rope_freqs.weight", extents, kind, 128)
            .elements(160)
    };
    let cases = [
        ("a word for windows", gemma().value("gemma3.attention.sliding_window_pattern", 8, &text("each"))),
        ("factors of halves", factors(1, &[4])),
        ("a matrix of factors", factors(0, &[2, 2])),
    ];
    let said = cases.map(|(name, made)| {
        let file = Gguf::open(folder.file("model.gguf", made.bytes())).expect(name);
        format!("{name}: {}\n", folder.message(&file.configuration().map(|_| ()).expect_err(name)))
    });
    expect![[r#"
        a word for windows: FOLDER/model.gguf: gemma3.attention.sliding_window_pattern: it is "each", and should be true or false of each layer, or a number
        help: convert the model again
        factors of halves: FOLDER/model.gguf: rope_freqs.weight: it is F16 [4], and should be a list of F32
        help: convert the model again
        a matrix of factors: FOLDER/model.gguf: rope_freqs.weight: it is F32 [2, 2], and should be a list of F32
        help: convert the model again
    "#]].assert_eq(&said.concat());
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let part = |number: u8, tensors: u8, name: &str| {
        Maker::default()
            .value("split.no", 2, &[number, 0])
            .value("split.count", 2, &[2, 0])
            .value("split.tensors.count", 2, &[tensors, 0])
            .tensor(name, &[2], 0, 0)
            .elements(8)
            .bytes()
    };
    let cases =
        [("a tensor twice", [part(0, 2, "v"), part(1, 2, "v")]), ("too few", [part(0, 3, "v"), part(1, 3, "w")])];
    let said = cases.map(|(name, [first, second])| {
        let folder = Scratch::new();
        let path = folder.file("m-00001-of-00002.gguf", first);
        folder.file("m-00002-of-00002.gguf", second);
        format!("{name}: {}\n", folder.message(&Gguf::open(path).expect_err(name)))
    });
    expect![[r#"
        a tensor twice: FOLDER/m-00002-of-00002.gguf: v: an earlier part has a tensor of this name
        help: fetch all parts of the model again
        too few: FOLDER/m-00001-of-00002.gguf: split.tensors.count: it is 3, and the parts have 2
        help: fetch all parts of the model again
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn models_that_llama_cpp_has_otherwise_are_refused() {
    let net = |keys: &str| format!(r#"{{"model_type": "qwen3_next"{keys}}}"#);
    let cases: [(String, Parameters); 3] = [
        (net(r#", "num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]"#), embedding()),
        (
            llama(
                r#""max_position_embeddings": 4096, "rope_scaling": {"rope_type": "longrope", "long_factor": [0.0, 1.0, 1.0, 1.0], "short_factor": [0.0, 1.0, 1.0, 1.0]}"#,
            ),
            embedding(),
        ),
        // MLX has no such filter.
        (net(""), parameters([("model.layers.0.linear_attn.conv1d.weight", numbers(&[8, 4]))])),
    ];
    expect![[r#"
        FOLDER/config.json: layer_types: full_attention is not in the last of every 4 layers, and there alone
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.long_factor: it is no list of numbers above 0
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/made.gguf: model.layers.0.linear_attn.conv1d.weight: it cannot be written: mlx: [squeeze] Cannot squeeze axis -1 with size 4 which is not equal to 1.
        help: the configuration is that of another model: fetch both again
    "#]].assert_eq(&refused(cases.iter().map(|(config, given)| (&**config, given.clone()))));
}
