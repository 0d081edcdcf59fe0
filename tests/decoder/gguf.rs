//! Decoders from GGUF files, beside the same ones from folders of Hugging Face and what llama.cpp makes of the files
//! (`tests/decoder/golden/make_gguf.py`).

use std::fs;
use std::path::Path;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use tacit::io::json::Json;
use tacit::io::{Library, ModelFolder, Tensors, read};
use tacit::prelude::*;
use tacit_models::{Config, Decoder, Positions, caches, load};

use crate::golden::{difference, folder, loaded, reserve};

/// What is between the logits of a file and others, at most, in terms of the largest one.
struct Bounds {
    /// Those of the folder.
    folder: f32,
    /// Those of llama.cpp.
    llama_cpp: f32,
}

const EXACT: Bounds = Bounds { folder: 0.0, llama_cpp: 1e-4 };
/// A file has numbers that are computed of those in the folder: factors of frequencies, a logarithm.
const COMPUTED: Bounds = Bounds { folder: 1e-5, ..EXACT };
/// ggml looks GELU up in a table of halves.
const GELU: Bounds = Bounds { llama_cpp: 2e-3, ..EXACT };

const MODELS: [(&str, Bounds); 14] = [
    ("llama", COMPUTED),
    ("mistral", EXACT),
    ("qwen2", EXACT),
    ("qwen3", EXACT),
    ("qwen3_moe", EXACT),
    ("qwen3_next", COMPUTED),
    ("gemma", GELU),
    ("gemma2", GELU),
    ("gemma3_text", GELU),
    ("mixtral", EXACT),
    ("phi3", EXACT),
    ("olmo2", EXACT),
    ("granite", EXACT),
    ("smollm3", EXACT),
];

fn logits((config, mut model): (Config, Model<Decoder>), prompt: &Array) -> Result<Array> {
    let dtype = model.get("model.embed_tokens.weight")?.aval()?.dtype;
    let mut caches = caches(&config, 1, dtype)?;
    reserve(&mut caches, prompt.dim(1))?;
    let logits = model.run_with(&mut caches, |decoder, caches| decoder.forward(prompt, caches, Positions::All))?;
    Ok(logits.squeeze_axes(&[0])?)
}

fn golden() -> Result<(Tensors, Array)> {
    let tensors = Tensors::open(folder("gguf/logits.safetensors"))?;
    let prompt = tensors.get("prompt")?.reshape(&[1, -1])?;
    Ok((tensors, prompt))
}

#[test]
fn a_file_gives_the_logits_of_its_folder_and_of_llama_cpp() -> Result<()> {
    tacit::compile::disable_fusion();
    let _deny = Policy::Deny.scope();
    let (expected, prompt) = golden()?;
    for (name, bounds) in MODELS {
        let of_file = logits(load(folder(&format!("gguf/{name}.gguf")))?, &prompt)?;
        let of_folder = logits(loaded(&format!("gguf/{name}"))?, &prompt)?;
        let far = difference(&of_file, &of_folder)?;
        assert!(far <= bounds.folder, "{name}: the logits of the folder differ by {far}");
        let theirs = expected.get(name)?;
        let far = difference(&of_file.try_index((-theirs.dim(0).., ..))?, &theirs)?;
        assert!(far <= bounds.llama_cpp, "{name}: the logits of llama.cpp differ by {far}");
    }
    Ok(())
}

/// The folders that are written of a file for other libraries have its logits.
#[test]
fn a_file_becomes_a_folder_of_each_library() -> Result<()> {
    tacit::compile::disable_fusion();
    let (_, prompt) = golden()?;
    for (name, _) in MODELS {
        let file = folder(&format!("gguf/{name}.gguf"));
        let expected = logits(load(&file)?, &prompt)?;
        for library in [Library::Tacit, Library::MlxLm, Library::HuggingFace] {
            let holder = tempfile::tempdir().expect("a folder");
            let parameters = library.holdable(&holder, read(&file)?)?;
            ModelFolder::open(&file)?.write(&holder, &parameters, library)?;
            let far = difference(&logits(load(&holder)?, &prompt)?, &expected)?;
            // A gain that is stored less 1 may lose its last bit.
            let bound = if (name, library) == ("qwen3_next", Library::HuggingFace) { 1e-6 } else { 0.0 };
            assert!(far <= bound, "{name}, {library:?}: the logits differ by {far}");
        }
    }
    Ok(())
}

/// A model is loaded by its GGUF file, by a folder that holds it, by a file of tensors beside its configuration, and by the folder of
/// these.
#[test]
fn a_model_is_loaded_from_whatever_holds_it() -> Result<()> {
    tacit::compile::disable_fusion();
    let (_, prompt) = golden()?;
    let holder = tempfile::tempdir().expect("a folder");
    fs::copy(folder("gguf/gemma3_text.gguf"), holder.path().join("any-name.gguf")).expect("copies");
    let own = folder("gguf/gemma3_text");
    for paths in [[folder("gguf/gemma3_text.gguf"), holder.path().to_owned()], [own.join("model.safetensors"), own]] {
        let [one, other] = &paths;
        assert!(logits(load(one)?, &prompt)?.eq_values(logits(load(other)?, &prompt)?)?, "{}", one.display());
        for path in &paths {
            assert!(Config::is_known(path)?, "{}", path.display());
        }
    }
    Ok(())
}

/// The parts of a model that was split are one model, whichever of them is named.
#[test]
fn parts_of_a_model_are_loaded_as_one() -> Result<()> {
    tacit::compile::disable_fusion();
    let (_, prompt) = golden()?;
    let whole = logits(load(folder("gguf/mistral.gguf"))?, &prompt)?;
    for part in 1..=3 {
        let parts = logits(load(folder(&format!("gguf/mistral-{part:05}-of-00003.gguf")))?, &prompt)?;
        assert!(parts.eq_values(&whole)?, "by part {part}");
    }
    Ok(())
}

/// llama.cpp widens the gains of a model whose matrices are bf16; the decoder computes in bf16 nevertheless, as the one of the
/// folder does, to the bit.
#[test]
fn halves_are_computed_in_halves() -> Result<()> {
    tacit::compile::disable_fusion();
    let (_, prompt) = golden()?;
    let found = logits(load(folder("gguf/gemma2_bf16.gguf"))?, &prompt)?;
    let expected = logits(load(folder("gguf/gemma2"))?, &prompt)?;
    assert_eq!(found.dtype(), Dtype::Bfloat16);
    assert!(found.eq_values(&expected)?);
    Ok(())
}

/// A golden file in which some bytes stand in the place of others.
fn changed(name: &str, changes: &[(&[u8], &[u8])]) -> Vec<u8> {
    changed_in("gguf", name, changes)
}

fn changed_in(holder: &str, name: &str, changes: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut bytes = fs::read(folder(&format!("{holder}/{name}.gguf"))).expect("a golden file");
    for (old, new) in changes {
        assert_eq!(old.len(), new.len());
        let at = bytes.windows(old.len()).position(|found| found == *old).expect("is there");
        bytes[at..at + old.len()].copy_from_slice(new);
    }
    bytes
}

/// A key with a number, as the file has it.
fn number(key: &str, value: u32) -> Vec<u8> {
    [key.as_bytes(), &4_u32.to_le_bytes(), &value.to_le_bytes()].concat()
}

/// A golden file with one more key, a list of so many words; the tensors stay where they are aligned.
fn with_words(name: &str, count: usize) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut entry = text("tokenizer.ggml.tokens");
    entry.extend([9_u32.to_le_bytes(), 8_u32.to_le_bytes()].concat());
    entry.extend((count as u64).to_le_bytes());
    entry.extend((1..count).flat_map(|number| text(&format!("w{number:03}"))));
    let rest = (entry.len() + 8).next_multiple_of(32) - entry.len() - 8;
    entry.extend(text(&"x".repeat(rest)));
    let mut bytes = changed(name, &[]);
    let keys = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
    bytes[16..24].copy_from_slice(&(keys + 1).to_le_bytes());
    bytes.splice(24..24, entry);
    bytes
}

#[test]
fn what_no_decoder_is_made_of_is_told_in_the_words_of_the_file() -> Result<()> {
    let holder = tempfile::tempdir().expect("a folder");
    let file = holder.path().join("model.gguf");
    let heads = "qwen3.attention.head_count";
    let files = [
        changed("qwen3", &[(b"qwen3", b"mamba")]),
        changed("qwen3", &[(b"qwen3.block_count", b"qwen3.block_cound")]),
        changed("qwen3", &[(&number("qwen3.block_count", 2), &number("qwen3.block_count", 5))]),
        changed("qwen3", &[(b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight")]),
        changed("qwen3", &[(b"blk.1.ffn_up.weight", b"blk.1.ffn_xy.weight")]),
        changed("qwen3", &[(b"token_embd.weight", b"token_embx.weight")]),
        changed("qwen3", &[(&number(heads, 4), &number(heads, 3))]),
        changed("qwen3", &[(b"yarn", b"spin")]),
        changed("llama", &[(&number("llama.attention.head_count", 4), &number("llama.attention.head_count", 3))]),
        changed("llama", &[(&number("llama.attention.value_length", 8), &number("llama.attention.value_length", 4))]),
        changed("qwen3_next", &[(&number("qwen3next.ssm.inner_size", 32), &number("qwen3next.ssm.inner_size", 31))]),
        changed("qwen3_next", &[(&number("qwen3next.ssm.group_count", 2), &number("qwen3next.ssm.group_count", 3))]),
        with_words("gemma", 47),
        with_words("gemma", 49),
    ];
    let mut said = String::new();
    for bytes in files {
        fs::write(&file, bytes).expect("writes");
        let error = load(&file).expect_err("it is refused").to_string();
        said += &error.replace(&file.display().to_string(), "FILE");
        said.push('\n');
    }
    fs::write(&file, with_words("gemma", 48)).expect("writes");
    load(&file)?;
    fs::write(holder.path().join("other.gguf"), b"GGUF").expect("writes");
    let part = |number: usize| folder(&format!("gguf/mistral-{number:05}-of-00003.gguf"));
    let lone = tempfile::tempdir().expect("a folder");
    fs::copy(part(1), lone.path().join("model.gguf")).expect("copies");
    let missing = tempfile::tempdir().expect("a folder");
    fs::copy(part(1), missing.path().join("m-00001-of-00003.gguf")).expect("copies");
    fs::copy(part(3), missing.path().join("m-00003-of-00003.gguf")).expect("copies");
    let twice = tempfile::tempdir().expect("a folder");
    for number in 1..=3 {
        fs::copy(part(number.min(2)), twice.path().join(format!("m-{number:05}-of-00003.gguf"))).expect("copies");
    }
    for folder in [holder, lone, missing, twice] {
        let error = load(&folder).expect_err("it is refused").to_string();
        said += &error.replace(&folder.path().display().to_string(), "FOLDER");
        said.push('\n');
    }
    expect![[r#"
        FILE: general.architecture: it is "mamba", and the names of llama, qwen2, qwen3, qwen3moe, qwen3next, gemma, gemma2, gemma3, phi3, olmo2, granite and smollm3 are known
        help: take `parameters`, whose names are those of the file
        FILE: qwen3.block_count: it is not there
        help: fetch or convert the model again
        FILE: qwen3.block_count: it is 5, and there are tensors of 2 layers
        help: fetch or convert the model again
        FILE: blk.1.ffn_up.weight: it is not there, and the configuration asks for f32[24,16]
        help: fetch or convert the model again
        FILE: blk.1.ffn_xy.weight: it is no tensor of this architecture
        help: take `parameters`, with the names of the file
        FILE: token_embd.weight: there is no tensor of this name
        help: ask for one of `names`
        FILE: qwen3.attention.head_count_kv: 2 heads of keys do not serve 3 heads of queries in equal parts
        help: fetch or convert the model again
        FILE: qwen3.rope.scaling.type: spin is not read
        help: there are default, linear, llama3, yarn and longrope: take a model of one of these, or remove the entry if its context is not longer than that of the first training
        FILE: blk.0.attn_q.weight: its 32 rows are not those of 3 heads
        help: the metadata are those of another model: convert it again
        FILE: llama.attention.value_length: it is 4, and that of keys is 8: heads of one width are read
        help: convert the model again
        FILE: qwen3next.ssm.inner_size: it is 31, which is no whole number of ssm.time_step_rank heads
        help: convert the model again
        FILE: qwen3next.ssm.time_step_rank: 3 heads of keys do not serve 4 heads of values in equal parts
        help: fetch or convert the model again
        FILE: tokenizer.ggml.tokens: it has 47 tokens, and token_embd.weight has 48 rows
        help: convert the model again
        FILE: tokenizer.ggml.tokens: it has 49 tokens, and token_embd.weight has 48 rows
        help: convert the model again
        FOLDER: it holds 2 models, among them model.gguf and other.gguf
        help: name the file of one of them
        FOLDER/model.gguf: split.count: it is 3, and the name of the file does not say which of them it is
        help: call the files NAME-00001-of-00003.gguf and so on, as llama.cpp does
        cannot open FOLDER/m-00002-of-00003.gguf: No such file or directory (os error 2)
        FOLDER/m-00003-of-00003.gguf: split.no: it is not part 3 of 3
        help: fetch all parts of the model again
    "#]].assert_eq(&said);
    Ok(())
}

/// A golden tokenizer with a byte behind a key in the place of another.
fn with_byte(name: &str, key: &str, behind: usize, byte: u8) -> Vec<u8> {
    let mut bytes = changed_in("tokenizers", name, &[]);
    let at = bytes.windows(key.len()).position(|found| found == key.as_bytes()).expect("is there");
    bytes[at + key.len() + behind] = byte;
    bytes
}

/// A golden tokenizer with another text in the place of the first of a list. Behind a tokenizer there is nothing that is aligned.
fn with_first(bytes: Vec<u8>, key: &str, text: &str) -> Vec<u8> {
    let mut bytes = bytes;
    let at = bytes.windows(key.len()).position(|found| found == key.as_bytes()).expect("is there") + key.len() + 16;
    let length = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    bytes.splice(at..at + 8 + length, [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat());
    bytes
}

fn with_empty_token(name: &str) -> Vec<u8> {
    with_first(changed_in("tokenizers", name, &[]), "tokenizer.ggml.tokens", "")
}

#[test]
fn what_no_tokenizer_is_made_of_is_told() -> Result<()> {
    let holder = tempfile::tempdir().expect("a folder");
    let file = holder.path().join("model.gguf");
    // Behind a key are its type and, of a list, the type and the number of its elements, and the length of the first one.
    let first = 4 + 4 + 8 + 8;
    let files = [
        changed("gemma", &[]),
        changed_in("tokenizers", "qwen2", &[(b"gpt2", b"bert")]),
        changed_in("tokenizers", "gpt-2", &[(b"gpt-2", b"gpt-9")]),
        changed_in("tokenizers", "qwen2", &[(b"tokenizer.ggml.merges", b"tokenizer.ggml.mergex")]),
        changed_in("tokenizers", "spm", &[(b"tokenizer.ggml.scores", b"tokenizer.ggml.scorex")]),
        changed_in("tokenizers", "spm", &[(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenx")]),
        with_byte("qwen2", "tokenizer.ggml.merges", first, b'x'),
        with_byte("qwen2", "tokenizer.ggml.tokens", first, b'"'),
        with_byte("qwen2", "tokenizer.ggml.bos_token_id", 5, 77),
        // A merge whose result is one of its halves, where nothing is a token as well.
        with_first(with_empty_token("qwen2"), "tokenizer.ggml.merges", "a "),
        with_first(with_empty_token("qwen2"), "tokenizer.ggml.merges", "a"),
        with_first(with_empty_token("qwen2"), "tokenizer.ggml.merges", ""),
    ];
    let mut said = String::new();
    for bytes in files {
        fs::write(&file, bytes).expect("writes");
        let error = tacit::io::Gguf::open(&file)?.tokenizer().expect_err("it is refused").to_string();
        said += &error.replace(&file.display().to_string(), "FILE");
        said.push('\n');
    }
    expect![[r#"
        FILE: tokenizer.ggml.tokens: there are no tokens
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.model: it is "bert", and llama and gpt2 are read
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.pre: it is "gpt-9", and the pre-tokenizers default, llama-bpe, llama3, llama-v3, falcon3, dbrx, smaug-bpe, qwen2, deepseek-r1-qwen, stablelm2, megrez, gpt-2, phi-2, mpt, olmo, smollm, starcoder, refact, command-r, tekken are known
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.merges: it is not there
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.scores: it has 0 scores, and there are 884 tokens
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.tokens: there are no tokens
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.merges: "x a" is of "xa", which is no token
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.tokens: "\"" is token 0 and 1
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.bos_token_id: it is 19720, and there are 526 tokens
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.merges: "a " is not of two parts, and what has one is merged into itself
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.merges: "a" is not of two parts, and what has one is merged into itself
        help: convert the model again, or take the tokenizer of its folder
        FILE: tokenizer.ggml.merges: "" is not of two parts, and what has one is merged into itself
        help: convert the model again, or take the tokenizer of its folder
    "#]].assert_eq(&said);
    Ok(())
}

/// `YaRN` that stretches nothing and factors that are all 1 are plain positions with queries and keys scaled, in a folder and in the
/// file that is written of it.
#[test]
fn queries_and_keys_are_scaled_whatever_says_it() -> Result<()> {
    tacit::compile::disable_fusion();
    let (_, prompt) = golden()?;
    let original = folder("gguf/mistral");
    let of = |scaling: &str| {
        let holder = tempfile::tempdir().expect("a folder");
        fs::copy(original.join("model.safetensors"), holder.path().join("model.safetensors")).expect("copies");
        let mut config = Json::open(original.join("config.json"))?;
        config.set("rope_scaling", Json::parse(scaling).expect("JSON"));
        fs::write(holder.path().join("config.json"), config.line()).expect("writes");
        let file = holder.path().join("written");
        ModelFolder::open(&holder)?.write_gguf(&file, read(&holder)?, None)?;
        let of = |path: &Path| Ok::<_, Error>(logits(load(path)?, &prompt)?.as_dtype(Dtype::Float32)?);
        Ok::<_, Error>([of(holder.path())?, of(&file)?])
    };
    let [plain, _] = of("null")?;
    let ones = "[1.0, 1.0, 1.0, 1.0]";
    let [first, others @ ..] = [
        r#"{"rope_type": "yarn", "factor": 1.0, "attention_factor": 1.5}"#,
        &format!(
            r#"{{"rope_type": "longrope", "long_factor": {ones}, "short_factor": {ones}, "attention_factor": 1.5}}"#
        ),
    ]
    .map(of);
    let [scaled, file] = first?;
    assert!(difference(&scaled, &plain)? > 1e-2);
    let others = others.into_iter().collect::<Result<Vec<_>>>()?;
    for other in others.into_iter().flatten().chain([file]) {
        assert!(difference(&other, &scaled)? < 1e-5);
    }
    Ok(())
}
