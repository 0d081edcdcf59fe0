//! GGUF files that are written: of a file, of a folder that was made of it, and of Hugging Face's folders.

use std::fs;
use std::path::Path;

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, KQuant, Nf4};
use tacit_arrays::{AffineArray, F16Array, KQuantArray, Lora, Nf4Array, Stacked};
use tacit_core::{Policy, Value};
use tacit_io::json::Json;
use tacit_io::{Distance, Gguf, GgufType, GgufValue, Library, ModelFolder, read};
use tacit_nn::Parameters;

use crate::gguf_written_malformed::{folder, numbers};
use crate::golden::{golden, of_decoders};
use crate::scratch::Scratch;

const MODELS: &str = "llama mistral qwen2 qwen3 qwen3_moe qwen3_next gemma gemma2 gemma2_bf16 gemma3_text mixtral phi3 olmo2 \
                      granite smollm3";

/// The GGUF file of a model, a folder or another file.
fn written(source: &Path, to: &Path) -> Gguf {
    let parameters = read(source).expect("reads");
    ModelFolder::open(source).expect("a model").write_gguf(to, &parameters, None).expect("writes");
    Gguf::open(to).expect("opens")
}

/// The types of all tensors.
fn kinds(file: &Gguf) -> String {
    let kind = |name| format!("{name} {}\n", file.kind(name).expect("is there"));
    file.names().map(kind).collect::<Vec<_>>().concat()
}

/// The metadata that a file says and another one does not say so.
fn other_keys<'f>(file: &'f Gguf, other: &Gguf) -> Vec<&'f str> {
    file.keys().filter(|key| other.metadata(key).ok() != Some(file.metadata(key).expect("reads"))).collect()
}

#[test]
fn a_file_is_the_same_again_behind_a_folder_and_by_itself() {
    for name in MODELS.split(' ') {
        let scratch = Scratch::new();
        let source = of_decoders(&format!("gguf/{name}.gguf"));
        let original = Gguf::open(&source).expect("opens");
        let folder = scratch.join("folder");
        let parameters = read(&source).expect("reads");
        ModelFolder::open(&source).and_then(|model| model.write(&folder, &parameters, Library::Tacit)).expect("writes");
        for (way, from) in [("folder", &folder), ("file", &source)] {
            let made = written(from, &scratch.join("made.gguf"));
            assert_eq!(other_keys(&original, &made), [] as [&str; 0], "{name}, of a {way}");
            assert!(original.names().eq(made.names()), "{name}, of a {way}");
            for tensor in original.names() {
                assert_eq!(original.aval(tensor).ok(), made.aval(tensor).ok(), "{name}: {tensor}");
                let same = original.bytes_of(tensor).expect("is there") == made.bytes_of(tensor).expect("is there");
                if tensor.ends_with("ssm_a") {
                    // The exponential of a logarithm.
                    let far = far(&original, &made, tensor);
                    assert!(far < 1e-6, "{name}: {tensor}: {far}");
                } else {
                    assert!(same, "{name}, of a {way}: {tensor}");
                }
            }
        }
    }
}

fn far(a: &Gguf, b: &Gguf, tensor: &str) -> f64 {
    let [a, b] = [a, b].map(|file| {
        let value = file.get(tensor).and_then(|value| value.dense()).expect("reads");
        Value::from(value.as_dtype(Dtype::Float32).expect("casts"))
    });
    Distance::of_values(&a, &b).expect("one shape").error
}

/// What gguf-py wrote of the same folders, in F32.
#[test]
fn a_folder_of_hugging_face_is_what_its_converter_makes() {
    for name in MODELS.split(' ').filter(|name| *name != "gemma2_bf16") {
        let scratch = Scratch::new();
        let original = Gguf::open(of_decoders(&format!("gguf/{name}.gguf"))).expect("opens");
        let made = written(&of_decoders(&format!("gguf/{name}")), &scratch.join("made.gguf"));
        assert_eq!(other_keys(&original, &made), [] as [&str; 0], "{name}");
        assert!(original.names().eq(made.names()), "{name}");
        for tensor in original.names() {
            assert_eq!(original.aval(tensor).expect("is there").shape, made.aval(tensor).expect("is there").shape);
            let far = far(&original, &made, tensor);
            assert!(far < 1e-6, "{name}: {tensor}: {far}");
            let is_matrix = made.kind(tensor).expect("is there").name() == "BF16";
            let vector = original.aval(tensor).expect("is there").shape.len() < 2;
            let small = ["ffn_gate_inp.", "ssm_conv1d."].iter().any(|module| tensor.contains(module));
            assert_eq!(is_matrix, !vector && !small, "{name}: {tensor}");
        }
    }
}

/// To the bit, but that `TQ1_0` and `TQ2_0` are one array, which is written as the second.
#[test]
fn blocks_of_every_type_are_written_as_they_were_read() {
    let scratch = Scratch::new();
    let original = Gguf::open(golden("gguf/types.gguf")).expect("opens");
    let names: Vec<&str> = original.names().filter(|&name| name != "unread").collect();
    let parameters: Parameters =
        names.iter().map(|&name| (name.to_owned(), original.get(name).expect("reads"))).collect();
    let to = scratch.join("made.gguf");
    ModelFolder::open(golden("gguf/types.gguf"))
        .and_then(|model| model.write_gguf(&to, &parameters, None))
        .expect("writes");
    let made = Gguf::open(&to).expect("opens");
    assert_eq!(other_keys(&original, &made), [] as [&str; 0]);
    let mut others = Vec::new();
    for name in names {
        if original.bytes_of(name).expect("is there") != made.bytes_of(name).expect("is there") {
            let [own, theirs] = [&made, &original].map(|file| file.get(name).and_then(|v| v.dense()).expect("reads"));
            let theirs = theirs.as_dtype(own.dtype()).expect("casts");
            assert!(own.eq_values(&theirs).expect("compares"), "{name}");
            others.push(format!("{name} {}\n", made.kind(name).expect("is there")));
        }
    }
    expect![[r#"
        TQ1_0 TQ2_0
        TQ1_0.large TQ2_0
        TQ1_0.quantized TQ2_0
    "#]]
    .assert_eq(&others.concat());
}

#[test]
fn floats_are_quantized_as_ggml_does_it() {
    let original = Gguf::open(golden("gguf/types.gguf")).expect("opens");
    for kind in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"] {
        let scratch = Scratch::new();
        let name = format!("{kind}.quantized");
        let floats = original.get(&name).and_then(|value| value.dense()).expect("reads");
        let parameters = Parameters::from([(name.clone(), floats.into())]);
        let to = scratch.join("made.gguf");
        let model = ModelFolder::open(golden("gguf/types.gguf")).expect("a model");
        assert_eq!(model.write_gguf(&to, &parameters, GgufType::named(kind)).expect("writes"), 1);
        let made = Gguf::open(&to).expect("opens");
        assert_eq!(made.bytes_of(&name).expect("is there"), original.bytes_of(&name).expect("is there"), "{kind}");
    }
}

#[test]
fn a_tokenizer_of_a_folder_is_the_one_of_the_file() {
    let names = ["spm", "spm_unspaced", "gpt-2", "llama-bpe", "qwen2", "smaug-bpe", "smollm", "tekken", "default"];
    for name in names {
        let scratch = Scratch::new();
        let original = Gguf::open(of_decoders(&format!("tokenizers/{name}.gguf"))).expect("opens");
        let GgufValue::List(tokens) = original.metadata("tokenizer.ggml.tokens").expect("is there") else {
            panic!("{name}: no list")
        };
        let ends: Vec<String> = original.end_tokens().expect("tokens").iter().map(u32::to_string).collect();
        scratch.file("config.json", format!(r#"{{"model_type": "llama", "eos_token_id": [{}]}}"#, ends.join(", ")));
        scratch.file("tokenizer.json", original.tokenizer().expect("a tokenizer").line());
        scratch.file("tokenizer_config.json", original.tokenizer_config().expect("a tokenizer").line());
        let words = ops::zeros::<f32>(&[tokens.len() as i32, 8]).expect("zeros");
        let parameters = Parameters::from([("model.embed_tokens.weight".to_owned(), words.into())]);
        tacit_io::save(scratch.join("model.safetensors"), &parameters).expect("saves");
        let made = written(&scratch, &scratch.join("made.gguf"));
        for key in ["tokens", "token_type", "merges", "bos_token_id", "eos_token_id"]
            .map(|key| format!("tokenizer.ggml.{key}"))
        {
            assert_eq!(original.metadata(&key).ok(), made.metadata(&key).ok(), "{name}: {key}");
        }
        assert_eq!(made.tokenizer().expect("a tokenizer"), original.tokenizer().expect("a tokenizer"), "{name}");
        assert_eq!(made.tokenizer_config().ok(), original.tokenizer_config().ok(), "{name}");
        assert_eq!(made.end_tokens().ok(), original.end_tokens().ok(), "{name}");
    }
}

/// MLX's groups of 64 are two blocks of 32 with the same numbers, in halves.
#[test]
fn codes_of_mlx_are_kept_where_ggml_has_their_numbers() {
    let _allow = Policy::Allow.scope();
    let scratch = Scratch::new();
    scratch.file("config.json", r#"{"model_type": "qwen3_moe", "tie_word_embeddings": true}"#);
    let halves = numbers(&[4, 64]).as_dtype(Dtype::Float16).expect("casts");
    let affine = |bits, group| AffineArray::quantize(&halves, Affine { bits, group }).expect("whole groups");
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let expert = |expert| (layer(&format!("mlp.experts.{expert}.up_proj")), affine(4, 64).into());
    let f16 = F16Array::quantize(&halves, tacit_arrays::format::F16).expect("halves");
    let values: [(String, Value); 5] = [
        (layer("self_attn.q_proj"), affine(4, 64).into()),
        (layer("self_attn.k_proj"), affine(5, 32).into()),
        (layer("self_attn.v_proj"), f16.into()),
        expert(0),
        expert(1),
    ];
    let parameters: Parameters = values.into_iter().collect();
    let to = scratch.join("made.gguf");
    let model = ModelFolder::open(&*scratch).expect("a folder");
    model.write_gguf(&to, &parameters, None).expect("writes");
    let made = Gguf::open(&to).expect("opens");
    expect![[r#"
        blk.0.attn_k.weight Q5_0
        blk.0.attn_q.weight Q4_1
        blk.0.attn_v.weight F16
        blk.0.ffn_up_exps.weight Q4_1
    "#]]
    .assert_eq(&kinds(&made));
    let experts = Stacked::new(vec![affine(4, 64).into(), affine(4, 64).into()]).expect("one shape");
    let pairs = [
        ("blk.0.attn_q.weight", parameters[&layer("self_attn.q_proj")].clone()),
        ("blk.0.attn_k.weight", parameters[&layer("self_attn.k_proj")].clone()),
        ("blk.0.attn_v.weight", parameters[&layer("self_attn.v_proj")].clone()),
        ("blk.0.ffn_up_exps.weight", experts.into()),
    ];
    for (name, value) in pairs {
        // MLX rounds each element to a half.
        let far = Distance::of_values(&value, &made.get(name).expect("reads")).expect("one shape").error;
        assert!(far < 1e-3, "{name}: {far}");
    }
}

#[test]
fn what_llama_cpp_has_not_is_refused_by_name() {
    let x = numbers(&[8, 256]);
    let path = "model.layers.0.mlp.up_proj.weight";
    let one = |path: &str, value: Value| Parameters::from([(path.to_owned(), value)]);
    let nf4 = Nf4Array::quantize(&x, Nf4 { block: 64, double: false }).expect("whole groups");
    let wide = AffineArray::quantize(&x, Affine { bits: 4, group: 32 }).expect("whole groups");
    let k = KQuantArray::quantize(&x.multiply(Array::from_f32(1e6)).expect("numbers"), KQuant { bits: 4 })
        .expect("whole groups");
    let adapted = Lora::new(x.clone(), numbers(&[4, 256]), numbers(&[8, 4]), 8.0).expect("it fits");
    let dense = one(path, x.clone().into());
    let with = |more: &str| PLAIN.replace('}', &format!(", {more}}}"));
    let of = |kind: &str, more: &str| with(more).replace("llama", kind);
    let cases = [
        (PLAIN.to_owned(), one(path, nf4.into())),
        (PLAIN.to_owned(), one(path, wide.into())),
        (PLAIN.to_owned(), one(path, k.into())),
        (PLAIN.to_owned(), one(path, adapted.into())),
        (PLAIN.to_owned(), one("model.layers.0.mlp.strange.weight", x.clone().into())),
        (PLAIN.replace("4,", "3,"), one("model.layers.0.self_attn.q_proj.weight", x.clone().into())),
        (of("mamba", r#""a": 1"#), dense.clone()),
        (with(r#""hidden_act": "relu""#), dense.clone()),
        (with(r#""hidden_size": "x""#).replacen(r#""hidden_size": 32, "#, "", 1), dense.clone()),
        (with(r#""rope_scaling": {"rope_type": "dynamic", "factor": 2.0}"#), dense.clone()),
        (with(r#""rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 2.0}"#), dense.clone()),
        (
            with(r#""rope_scaling": {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [2.0]}"#),
            dense.clone(),
        ),
        (with(r#""rope_scaling": {"rope_type": "llama3", "factor": 8.0}"#), dense.clone()),
        (of("mistral", r#""sliding_window": 64, "max_position_embeddings": 512"#), dense.clone()),
        (of("gemma2", r#""final_logit_softcapping": null"#), dense.clone()),
        (of("gemma2", r#""query_pre_attn_scalar": 144"#), dense.clone()),
        (
            of(
                "gemma3_text",
                r#""query_pre_attn_scalar": 256, "layer_types": ["full_attention", "sliding_attention"]"#,
            ),
            dense.clone(),
        ),
        (of("qwen3_moe", r#""norm_topk_prob": false"#), dense.clone()),
    ];
    let mut said = String::new();
    for (config, parameters) in cases {
        let folder = folder(&config);
        let model = ModelFolder::open(&*folder).expect("a folder");
        let error = model.write_gguf(folder.join("made.gguf"), &parameters, None).expect_err("is refused");
        said += &(folder.message(&error) + "\n");
        assert!(!folder.join("made.gguf").exists());
    }
    expect![[r#"
        FOLDER/made.gguf: blk.0.ffn_up.weight: no type of GGUF has the numbers of Nf4(f32[8,256])
        help: quantize it to one anew by `--format q8_0`, or to another of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0
        FOLDER/made.gguf: blk.0.ffn_up.weight: no type of GGUF has the numbers of Affine(f32[8,256])
        help: quantize it to one anew by `--format q8_0`, or to another of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0
        FOLDER/made.gguf: blk.0.ffn_up.weight: no type of GGUF has the numbers of KQuant(f32[8,256])
        help: quantize it to one anew by `--format q8_0`, or to another of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0
        FOLDER/made.gguf: blk.0.ffn_up.weight: no type of GGUF has the numbers of Lora(f32[8,256])
        help: merge the adapter first, with `merge` or `merge_exactly` of the model, or quantize the sum by `--format q8_0`
        FOLDER/made.gguf: model.layers.0.mlp.strange.weight: llama.cpp's architecture llama has no such tensor
        help: leave the parameter out, if the model does not need it
        FOLDER/made.gguf: model.layers.0.self_attn.q_proj.weight: its 8 rows are not those of 3 heads
        help: the configuration is that of another model: fetch both again
        FOLDER/config.json: model_type: it is mamba, and mistral, llama, mixtral, qwen2, qwen3, qwen3_moe, qwen3_next, gemma, gemma2, gemma3_text, phi3, olmo2, granite and smollm3 are written
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: hidden_act: it is relu, and with llama.cpp silu
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: hidden_size: it is "x", which llama.embedding_length cannot be
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.rope_type: dynamic is not written
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.mscale: it is 2.0, and llama.cpp has no key for it
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.long_factor: it differs from short_factor
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.low_freq_factor: it is not there, or no number
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: sliding_window: it is 64, and llama.cpp has no windows in the architecture llama
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: final_logit_softcapping: it is null, and llama.cpp takes 30.0
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: query_pre_attn_scalar: it is 144, and with llama.cpp 256
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: layer_types: full_attention is not in the last of every so many layers, and there alone
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: norm_topk_prob: it is false, and with llama.cpp true
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&said);
}

const PLAIN: &str = r#"{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}"#;

#[test]
fn tokenizers_and_types_that_are_not_written_are_told() {
    let dense = Parameters::from([("model.norm.weight".to_owned(), numbers(&[8]).into())]);
    let embedding = Parameters::from([("model.embed_tokens.weight".to_owned(), numbers(&[8, 256]).into())]);
    let mut said = String::new();
    let tokenizers = [
        r#"{"model": {"type": "Unigram"}}"#,
        r#"{"model": {"type": "BPE", "vocab": {"a": 9}, "merges": []}}"#,
        r#"{"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["ab"]}}"#,
        r#"{"model": {"type": "BPE", "vocab": {"a": 1}, "merges": []}, "pre_tokenizer": {"type": "Whitespace"}}"#,
    ];
    for tokenizer in tokenizers {
        let folder = folder(PLAIN);
        folder.file("tokenizer.json", tokenizer);
        let model = ModelFolder::open(&*folder).expect("a folder");
        let error = model.write_gguf(folder.join("made.gguf"), &embedding, None).expect_err("is refused");
        said += &(folder.message(&error) + "\n");
    }
    let folder = folder(PLAIN);
    folder.file("tokenizer.model", "");
    let model = ModelFolder::open(&*folder).expect("a folder");
    said += &(folder.message(&model.write_gguf(folder.join("made.gguf"), &embedding, None).expect_err("is refused"))
        + "\n");
    fs::remove_file(folder.join("tokenizer.model")).expect("is there");
    let model = ModelFolder::open(&*folder).expect("a folder");
    let kind = GgufType::named("q4_k");
    said += &(folder.message(&model.write_gguf(folder.join("made.gguf"), &embedding, kind).expect_err("is refused"))
        + "\n");
    let lone = Scratch::new();
    lone.file("model.safetensors", "");
    let model = ModelFolder::open(lone.join("model.safetensors")).expect("nothing is there");
    said += &lone.message(&model.write_gguf(lone.join("made.gguf"), &dense, None).expect_err("is refused"));
    expect![[r#"
        FOLDER/tokenizer.json: model.type: it is Unigram, and BPE is written
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: model.vocab: "a" is token 9, and the embedding has 8 rows
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: model.merges: it is no list of pairs
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.json: pre_tokenizer: it is {"type": "Whitespace"}, and llama.cpp's default, llama-bpe, llama3, llama-v3, falcon3, dbrx, smaug-bpe, qwen2, deepseek-r1-qwen, stablelm2, megrez, gpt-2, phi-2, mpt, olmo, smollm, starcoder, refact, command-r, tekken are known
        help: llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`
        FOLDER/tokenizer.model: there is no tokenizer.json beside it, which alone is read
        help: make it with `save_pretrained` of the tokenizer in transformers
        there is no quantizing to Q4_K
        help: take one of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0
        FOLDER/made.gguf: nothing says of what model it would be: FOLDER has no config.json
        help: name a GGUF file, or the folder of a model with its config.json"#]].assert_eq(&said);
}

/// What no type of GGUF has is quantized where that is asked for, and rows that are no whole blocks stay.
#[test]
fn others_are_quantized_where_it_is_asked_for() {
    let _allow = Policy::Allow.scope();
    let folder = folder(r#"{"model_type": "qwen3"}"#);
    let x = numbers(&[8, 64]);
    let nf4 = Nf4Array::quantize(&x, Nf4 { block: 64, double: false }).expect("whole groups");
    let values: [(&str, Value); 4] = [
        ("model.layers.0.mlp.up_proj.weight", nf4.into()),
        ("model.layers.0.mlp.down_proj.weight", numbers(&[8, 24]).into()),
        ("model.embed_tokens.weight", x.into()),
        ("model.norm.weight", numbers(&[64]).into()),
    ];
    let parameters: Parameters = values.into_iter().map(|(path, value)| (path.to_owned(), value)).collect();
    let model = ModelFolder::open(&*folder).expect("a folder");
    let to = folder.join("made.gguf");
    assert_eq!(model.write_gguf(&to, &parameters, GgufType::named("q8_0")).expect("writes"), 2);
    let made = Gguf::open(&to).expect("opens");
    expect![[r#"
        blk.0.ffn_down.weight F32
        blk.0.ffn_up.weight Q8_0
        output_norm.weight F32
        token_embd.weight Q8_0
    "#]]
    .assert_eq(&kinds(&made));
}

/// As far as its file says it in known words, and with its own names.
#[test]
fn a_model_that_is_not_run_becomes_a_folder_of_tacit_and_a_file_again() {
    let scratch = Scratch::new();
    let mut bytes = fs::read(of_decoders("gguf/qwen3.gguf")).expect("a golden file");
    let at = bytes.windows(5).position(|found| found == b"qwen3").expect("is there");
    bytes[at..at + 5].copy_from_slice(b"mamba");
    let file = scratch.join("strange.gguf");
    fs::write(&file, bytes).expect("writes");
    let parameters = read(&file).expect("reads");
    let model = ModelFolder::open(&file).expect("a model");
    let folder = scratch.join("folder");
    model.write(&folder, &parameters, Library::Tacit).expect("writes");
    assert!(read(&folder).expect("reads").contains_key("blk.1.ffn_up.weight"));
    assert_eq!(model.names().filter(|name| folder.join(name).exists()).collect::<Vec<_>>(), ["model.safetensors"]);
    let made = written(&file, &scratch.join("made.gguf"));
    let original = Gguf::open(&file).expect("opens");
    assert_eq!(other_keys(&original, &made), [] as [&str; 0]);
    assert!(original.names().all(|name| original.bytes_of(name).ok() == made.bytes_of(name).ok()));
    let refused = [Library::MlxLm, Library::HuggingFace]
        .map(|library| model.write(scratch.join("other"), &parameters, library).expect_err("is refused"))
        .map(|error| scratch.message(&error) + "\n")
        .concat();
    expect![[r#"
        FOLDER/strange.gguf: general.architecture: it is "mamba", and the names of llama, qwen2, qwen3, qwen3moe, qwen3next, gemma, gemma2, gemma3, phi3, olmo2, granite and smollm3 are known
        help: take `parameters`, whose names are those of the file
        FOLDER/strange.gguf: general.architecture: it is "mamba", and the names of llama, qwen2, qwen3, qwen3moe, qwen3next, gemma, gemma2, gemma3, phi3, olmo2, granite and smollm3 are known
        help: take `parameters`, whose names are those of the file
    "#]].assert_eq(&refused);
}

#[test]
fn what_another_model_left_of_its_tokenizer_goes() {
    let scratch = Scratch::new();
    let file = of_decoders("gguf/qwen3.gguf");
    for name in ["chat_template.jinja", "generation_config.json", "notes.txt"] {
        scratch.file(name, "{}");
    }
    let model = ModelFolder::open(&file).expect("a model");
    assert_eq!(model.stale(&scratch), ["chat_template.jinja"]);
    let parameters = read(&file).expect("reads");
    for library in [Library::Tacit, Library::MlxLm, Library::HuggingFace] {
        scratch.file("chat_template.jinja", "of another model");
        model.write(&*scratch, &parameters, library).expect("writes");
        assert!(!scratch.join("chat_template.jinja").exists() && scratch.join("notes.txt").exists(), "{library:?}");
        let config = Json::open(scratch.join("generation_config.json")).expect("JSON");
        assert_eq!(config.get("eos_token_id"), Some(&Json::List(vec![Json::Integer(47)])));
    }
}
