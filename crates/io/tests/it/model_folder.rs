//! Whole models, written for other libraries with what these need beside the tensors.

use std::collections::BTreeSet;
use std::fs;

use expect_test::expect;
use mlx_rs::ops;
use tacit_arrays::format::{Affine, KQuant, Nf4};
use tacit_arrays::{AffineArray, KQuantArray, Nf4Array};
use tacit_core::{Policy, Value};
use tacit_io::json::Json;
use tacit_io::{Distance, FileKind, Gguf, Library, ModelFolder, layout, read};
use tacit_nn::Parameters;

use crate::golden::of_decoders;
use crate::scratch::Scratch;

const ALL: [Library; 3] = [Library::Tacit, Library::MlxLm, Library::HuggingFace];

#[test]
fn a_file_with_a_tokenizer_becomes_a_folder_that_has_all() {
    let file = of_decoders("tokenizers/spm.gguf");
    let gguf = Gguf::open(&file).expect("opens");
    let mut said = BTreeSet::new();
    for library in ALL {
        let scratch = Scratch::new();
        let folder = scratch.join("model");
        let parameters = library.holdable(&folder, read(&file).expect("reads")).expect("is dense");
        let model = ModelFolder::open(&file).expect("reads");
        model.write(&folder, &parameters, library).expect("writes");
        let mut names: Vec<&str> = model.names().collect();
        names.sort_unstable();
        let mut found: Vec<String> = fs::read_dir(&folder)
            .expect("reads")
            .map(|entry| entry.expect("reads").file_name().into_string().expect("text"))
            .collect();
        found.sort();
        assert_eq!(found, names, "{library:?}");
        assert_eq!(
            names,
            ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
        );
        let json = |name: &str| Json::open(folder.join(name)).expect("is JSON");
        assert_eq!(json("tokenizer.json"), gguf.tokenizer().expect("is there"));
        assert!(read(&folder).expect("reads").keys().eq(parameters.keys()), "{library:?}");
        said.insert(
            ["config.json", "generation_config.json", "tokenizer_config.json"]
                .map(|name| json(name).line() + "\n")
                .concat(),
        );
    }
    // The same in all folders.
    expect![[r#"
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16", "rope_theta": 10000.0, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, "num_attention_heads": 1, "rms_norm_eps": 1e-06, "max_position_embeddings": 512, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 884, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": [2, 4]}
        {"bos_token_id": 1, "eos_token_id": [2, 4]}
        {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": "{{ bos_token }}{% for message in messages %}<user>{{ message.content }}{% endfor %}"}
    "#]].assert_eq(&said.into_iter().collect::<String>());
    let scratch = Scratch::new();
    let parameters = read(&file).expect("reads");
    for (library, kind) in ALL.into_iter().zip([FileKind::Tacit, FileKind::Floats, FileKind::Floats]) {
        ModelFolder::open(&file).and_then(|model| model.write(&*scratch, &parameters, library)).expect("writes again");
        assert_eq!(FileKind::detect(&*scratch).expect("tells"), kind);
    }
}

#[test]
fn what_stands_beside_the_tensors_of_a_folder_goes_along_byte_by_byte() {
    let (from, to) = (Scratch::new(), Scratch::new());
    let files = [
        ("tokenizer.json", &b"{ \"spaces\":   1 }"[..]),
        ("tokenizer.model", &[0, 159, 146, 150]),
        ("chat_template.jinja", b"{{ messages }}\n"),
        ("generation_config.json", b"{\"eos_token_id\": [7]}"),
    ];
    for (name, content) in files {
        from.file(name, content);
    }
    from.file("config.json", r#"{"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}}"#);
    from.file("readme.md", "is nobody's");
    let parameters = Parameters::from([("norm.weight".to_owned(), ops::ones::<f32>(&[8]).expect("ones").into())]);
    tacit_io::save(from.join("model.safetensors"), &parameters).expect("saves");
    for source in [from.to_path_buf(), from.join("model.safetensors")] {
        let model = ModelFolder::open(source).expect("reads");
        model.write(to.join("out"), &parameters, Library::HuggingFace).expect("writes");
        for (name, content) in files {
            assert_eq!(fs::read(to.join("out").join(name)).expect("reads"), content, "{name}");
        }
        assert_eq!(Json::open(to.join("out/config.json")).expect("is JSON").line(), r#"{"model_type": "llama"}"#);
        assert!(!to.join("out/readme.md").exists());
    }
}

#[test]
fn a_library_holds_the_codes_that_it_has_and_the_others_as_floats() {
    let x = ops::arange::<_, f32>(0, 8 * 256, None).and_then(|x| x.sin()?.reshape(&[8, 256])).expect("numbers");
    let values: [(&str, Value); 6] = [
        ("affine.weight", AffineArray::quantize(&x, Affine { bits: 5, group: 32 }).expect("whole groups").into()),
        ("affine.bias", AffineArray::quantize(&x, Affine { bits: 4, group: 64 }).expect("whole groups").into()),
        ("k4.weight", KQuantArray::quantize(&x, KQuant { bits: 4 }).expect("whole groups").into()),
        ("k5.weight", KQuantArray::quantize(&x, KQuant { bits: 5 }).expect("whole groups").into()),
        ("k6.weight", KQuantArray::quantize(&x, KQuant { bits: 6 }).expect("whole groups").into()),
        ("nf4.weight", Nf4Array::quantize(&x, Nf4 { block: 64, double: false }).expect("whole groups").into()),
    ];
    let parameters: Parameters = values.into_iter().map(|(path, value)| (path.to_owned(), value)).collect();
    let _allow = Policy::Allow.scope();
    for library in ALL {
        let held = library.holdable("model", parameters.clone()).expect("is made dense");
        let floats: Vec<&str> =
            held.iter().filter(|(_, value)| !value.is_implicit()).map(|(path, _)| path.as_str()).collect();
        let expected: &[&str] = match library {
            Library::Tacit => &[],
            Library::MlxLm => &["affine.bias", "k6.weight", "nf4.weight"],
            Library::HuggingFace => {
                &["affine.bias", "affine.weight", "k4.weight", "k5.weight", "k6.weight", "nf4.weight"]
            }
        };
        assert_eq!(floats, expected, "{library:?}");
        for (path, value) in &held {
            let [own, expected] = [value, &parameters[path]].map(|value| value.dense().expect("builds"));
            assert!(own.eq_values(expected).expect("compares"), "{library:?}: {path}");
        }
    }
    let scratch = Scratch::new();
    scratch.file("model.safetensors", "");
    let lone = ModelFolder::open(scratch.join("model.safetensors")).expect("nothing is there");
    let held = Library::HuggingFace.holdable("model", parameters.clone()).expect("is made dense");
    let said = [(Library::HuggingFace, &held), (Library::MlxLm, &parameters)]
        .map(|(library, parameters)| {
            let error = lone.write(scratch.join("out"), parameters, library).expect_err("is refused");
            scratch.message(&error) + "\n"
        })
        .concat();
    expect![[r#"
        FOLDER/out/model.safetensors: nothing says of what model it would be: FOLDER has no config.json
        help: name a GGUF file, or the folder of a model with its config.json
        FOLDER/out/model.safetensors: affine.bias: a folder of mlx-lm cannot hold Affine(f32[8,256])
        help: convert it to affine, mxfp4, mxfp8 or nvfp4, as the `weight` of a module, or make it dense
    "#]]
    .assert_eq(&said);
    assert!(!scratch.join("out").exists());
}

/// A library would draw a head that the configuration says is there.
#[test]
fn the_configuration_of_a_model_that_was_tied_says_so() {
    let scratch = Scratch::new();
    let parameters = |names: &[&str]| -> Parameters {
        let ones = || ops::ones::<f32>(&[8, 8]).expect("ones").into();
        names.iter().map(|&name| (name.to_owned(), ones())).collect()
    };
    let (embedding, head) = ("model.embed_tokens.weight", "lm_head.weight");
    for (class, names, tied) in [
        ("LlamaForCausalLM", &[embedding][..], true),
        ("LlamaForCausalLM", &[embedding, head][..], false),
        ("LlamaForSequenceClassification", &[embedding, "score.weight"][..], false),
    ] {
        let config =
            format!(r#"{{"architectures": ["{class}"], "tie_word_embeddings": false, "model_type": "llama"}}"#);
        scratch.file("config.json", &config);
        let model = ModelFolder::open(&*scratch).expect("a folder");
        for library in ALL {
            let out = scratch.join("out");
            model.write(&out, parameters(names), library).expect("writes");
            let written = Json::open(out.join("config.json")).expect("is JSON").line();
            let expected = if tied { config.replace("false", "true") } else { config.clone() };
            assert_eq!(written, expected, "{library:?}: {names:?}");
        }
    }
    // What is not said is the default, and that of Llama is a head of its own.
    scratch.file("config.json", r#"{"model_type": "llama"}"#);
    let model = ModelFolder::open(&*scratch).expect("a folder");
    for (names, said) in [(&[embedding][..], Some(&Json::Bool(true))), (&[embedding, head][..], None)] {
        let out = scratch.join("out");
        model.write(&out, parameters(names), Library::Tacit).expect("writes");
        let written = Json::open(out.join("config.json")).expect("is JSON");
        assert_eq!(written.get("tie_word_embeddings"), said, "{names:?}");
    }
}

/// Transformers passes over the key, and would rotate what belongs to other positions.
#[test]
fn transformers_has_no_heads_whose_neighbors_are_rotated_together() {
    let scratch = Scratch::new();
    let parameters = Parameters::from([("w.weight".to_owned(), ops::ones::<f32>(&[2, 2]).expect("ones").into())]);
    for (said, refused) in [("true", true), ("false", false)] {
        scratch.file("config.json", format!(r#"{{"model_type": "llama", "rope_traditional": {said}}}"#));
        let model = ModelFolder::open(&*scratch).expect("a folder");
        for library in ALL {
            let written = model.write(scratch.join("out"), &parameters, library);
            let error = written.err().map(|error| scratch.message(&error));
            let expected = (refused && library == Library::HuggingFace).then_some(
                "FOLDER/config.json: rope_traditional: it is true, and transformers rotates the halves of heads whatever it says\n\
                 help: write the model with `--as mlx-lm` or `--as tacit`",
            );
            assert_eq!(error.as_deref(), expected, "{library:?}");
        }
    }
}

/// Of experts and of a hybrid decoder, whose arrangements differ.
#[test]
fn the_layouts_of_libraries_are_converted_into_each_other() {
    for name in ["qwen3_moe", "qwen3_next", "gemma2", "mixtral"] {
        let of_file =
            Gguf::open(of_decoders(&format!("gguf/{name}.gguf"))).and_then(|file| file.hugging_face()).expect("reads");
        let own = read(of_decoders(&format!("gguf/{name}"))).expect("reads");
        let theirs = layout::as_hugging_face(of_file.clone()).expect("is dense");
        let together = layout::as_mlx_lm("model".as_ref(), theirs.clone()).expect("all experts are there");
        for (found, expected) in [(&theirs, layout::as_hugging_face(own).expect("is dense")), (&together, of_file)] {
            assert!(found.keys().eq(expected.keys()), "{name}: {:?}", found.keys());
            for (path, value) in found {
                let far = Distance::of_values(value, &expected[path]).expect("one shape").error;
                assert!(far < 1e-6, "{name}: {path}: {far}");
            }
        }
    }
}

#[test]
fn a_file_is_read_by_the_names_of_hugging_face_where_all_its_tensors_have_one() {
    let scratch = Scratch::new();
    let file = scratch.join("model.gguf");
    let mut bytes = fs::read(of_decoders("gguf/qwen3.gguf")).expect("a golden file");
    fs::write(&file, &bytes).expect("writes");
    assert!(read(&file).expect("reads").contains_key("model.layers.1.mlp.up_proj.weight"));
    let name = b"blk.1.ffn_up.weight";
    let at = bytes.windows(name.len()).position(|found| found == name).expect("is there");
    bytes[at..at + name.len()].copy_from_slice(b"blk.1.ffn_xy.weight");
    fs::write(&file, &bytes).expect("writes");
    let own = read(&file).expect("reads");
    assert!(own.contains_key("blk.1.ffn_xy.weight") && own.contains_key("blk.0.ffn_up.weight"), "{:?}", own.keys());
}
