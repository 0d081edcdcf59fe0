//! Prompt caches in files.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use expect_test::expect;
use mlx_rs::ops;
use tacit_core::Value;
use tacit_io::mlx_prompt_cache::{self, PromptCache, StoredBuffers, StoredCache};

use super::{model, printed, tacit};

/// Whoever reads only the beginning of an answer keeps its caches.
#[test]
fn a_closed_pipe_loses_no_prompt_cache() {
    let folder = tempfile::tempdir().expect("makes a folder");
    for command in ["generate", "chat"] {
        let cache = folder.path().join(command);
        let options = ["--prompt", "Hello", "--max-tokens", "12", "--prompt-cache", cache.to_str().expect("text")];
        let mut program = tacit(command, &options);
        let mut program = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        drop(program.stdout.take());
        let output = program.wait_with_output().expect("ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(" (the output was closed)"), "{said}");
        assert!(cache.exists(), "{said}");
    }
}

/// A Mac has no such names.
#[test]
#[cfg(target_os = "linux")]
fn a_prompt_cache_knows_a_model_again_whose_name_is_no_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().expect("makes a folder");
    let (own, cache) = (folder.path().join(OsStr::from_bytes(b"m\xff.gguf")), folder.path().join("cache"));
    std::fs::copy(model(), &own).expect("copies");
    let options = ["--prompt", "Hello", "--max-tokens", "2", "--prompt-cache"];
    for _ in 0..2 {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tacit"));
        program.arg("generate").arg(&own).args(options).arg(&cache);
        let output = program.output().expect("starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// It keeps what mlx-lm has written in it, and is of one model.
#[test]
fn a_prompt_cache_keeps_what_it_says_and_is_of_one_model() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let file = folder.path().join("cache.safetensors");
    let options = ["--prompt", "Hello", "--max-tokens", "2", "--prompt-cache", file.to_str().expect("text")];
    let metadata = || tacit_io::mlx_prompt_cache::read(&file).expect("reads").metadata;
    printed("generate", &options);
    let own = metadata();
    let names: Vec<_> = own.keys().map(String::as_str).collect();
    assert_eq!(names, ["model", "tacit.adapter", "tacit.files", "tokenizer_config"]);
    let mut cache = tacit_io::mlx_prompt_cache::read(&file).expect("reads");
    for (model, fits) in [("mlx-community/some-model", true), ("/another/model", false)] {
        cache.metadata.insert("model".to_owned(), model.to_owned());
        cache.metadata.insert("more".to_owned(), "said".to_owned());
        tacit_io::mlx_prompt_cache::write(&file, &cache).expect("writes");
        let output = tacit("generate", &options).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), fits, "{said}");
        assert!(fits || said.contains("it is of the model /another/model"), "{said}");
        assert_eq!(metadata(), cache.metadata);
    }
}

/// The keys and values of an adapted model are not those of the plain one.
#[test]
fn a_prompt_cache_goes_on_with_the_adapter_that_it_was_made_with() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    std::fs::write(at("data.jsonl"), "{\"text\": \"Hello, world!\"}\n").expect("writes");
    let options = ["--data", &at("data.jsonl"), "-o", &at("adapter"), "--steps", "1", "--lora", "2"];
    let trained = tacit("train", &options).output().expect("starts");
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let (with, without, cache) = (at("adapter"), at("plain.safetensors"), at("adapted.safetensors"));
    let generated = |options: &[&str]| {
        let options = [&["--prompt", "Hello", "--max-tokens", "2"], options].concat();
        let output = tacit("generate", &options).output().expect("starts");
        let said = String::from_utf8_lossy(&output.stderr).replace(folder.path().to_str().expect("text"), "FOLDER");
        (output.status.success(), said)
    };
    for _ in 0..2 {
        assert!(generated(&["--lora", &with, "--prompt-cache", &cache]).0);
        assert!(generated(&["--prompt-cache", &without]).0);
    }
    let (done, said) = generated(&["--prompt-cache", &cache]);
    assert!(!done);
    expect![[r#"
        error: FOLDER/adapted.safetensors: it is of the model with FOLDER/adapter
        help: give a file that was written with this model, or another name
    "#]]
    .assert_eq(&said);
    let (done, said) = generated(&["--lora", &with, "--prompt-cache", &without]);
    assert!(!done);
    expect![[r#"
        error: FOLDER/plain.safetensors: it is of the model with no adapter
        help: give a file that was written with this model, or another name
    "#]]
    .assert_eq(&said);
    let trained = tacit("train", &[&options[..], &["--seed", "1", "--force"]].concat()).output().expect("starts");
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let (done, said) = generated(&["--lora", &with, "--prompt-cache", &cache]);
    assert!(!done);
    expect![[r#"
        error: FOLDER/adapted.safetensors: the files of the model or of the adapter are others than it was written with
        help: give a file that was written with this model, or another name
    "#]]
    .assert_eq(&said);
}

/// What a file holds is of this model, layer by layer, and a conversation that has begun keeps its system message.
#[test]
fn a_prompt_cache_that_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let file = folder.path().join("cache.safetensors");
    let path = file.to_str().expect("text");
    let options = ["--prompt", "Hello", "--max-tokens", "2", "--prompt-cache", path];
    printed("generate", &options);
    let own = mlx_prompt_cache::read(&file).expect("reads");
    let longer = PromptCache { layers: [&own.layers[..], &own.layers[..1]].concat(), ..own.clone() };
    let keys: Value = ops::zeros::<f32>(&[1, 3, 4, 8]).expect("zeros").into();
    let other = StoredCache::Kv { held: Some(StoredBuffers { keys: keys.clone(), values: keys }), offset: 2 };
    let of_heads = PromptCache { layers: vec![other; own.layers.len()], ..own.clone() };
    let mut unread = own.clone();
    unread.metadata.insert("tacit.chat".to_owned(), "hello".to_owned());
    let cases = [
        ("generate", &longer, &[][..]),
        ("generate", &of_heads, &[]),
        ("generate", &unread, &[]),
        ("chat", &own, &["--system", "be brief"]),
    ];
    let said = cases.map(|(command, cache, more)| {
        mlx_prompt_cache::write(&file, cache).expect("writes");
        let output = tacit(command, &[&options[..], more].concat()).output().expect("starts");
        let said = String::from_utf8(output.stderr).expect("text").replace(path, "FILE");
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    });
    expect![[r#"
        error: FILE: it holds 2 layers, and the model has 1
        help: give a file that was written with this model, or another name
        error: FILE: layer 0 is no cache of f16[1,1,0,8] in Everything
        help: give a file that was written with this model, or another name
        error: FILE: its entry tacit.chat is no conversation: expected value at line 1 column 1
        help: give a file that was written with this model, or another name
        error: the conversation in the prompt cache has begun already
        help: leave `--system` out, or begin with another file
    "#]]
    .assert_eq(&said.concat());
}

/// Of two conversations in one file the one that is written last would be the only one.
#[test]
fn a_prompt_cache_that_another_program_wrote_stays() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let file = folder.path().join("cache.safetensors");
    let path = file.to_str().expect("text");
    let mut chat = tacit("chat", &["--max-tokens", "2", "--prompt-cache", path]);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
    let (mut said, stderr) = (chat.stdin.take().expect("a pipe"), chat.stderr.take().expect("a pipe"));
    let mut lines = BufReader::new(stderr).lines();
    writeln!(said, "one").expect("is read");
    while !lines.next().expect("a report").expect("reads").starts_with("peak memory ") {}
    // It is written after the report, and looked at once more. Of a blank line that is longer than what a pipe holds the end can be
    // written only once the program has come to the next message.
    let blank = " ".repeat(4 << 20);
    writeln!(said, "{blank}").expect("is read");
    assert!(file.is_file());
    std::fs::write(&file, "another conversation").expect("writes");
    writeln!(said, "two").expect("is read");
    drop(said);
    let report: Vec<String> = lines.map(|line| line.expect("reads")).collect();
    assert_eq!(chat.wait().expect("ends").code(), Some(1));
    let error = report.iter().rev().take(2).rev().map(|line| line.replace(path, "FILE")).collect::<Vec<_>>();
    assert_eq!(
        error,
        [
            "error: FILE: another program has written it since it was read, and it stays as that left it",
            "help: give each conversation a file of its own",
        ]
    );
    assert_eq!(std::fs::read(&file).expect("reads"), b"another conversation");
}
