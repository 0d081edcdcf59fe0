//! `tacit generate` and `tacit chat` on a tiny model with its tokenizer in one file; `tests/scripts/generate.sh` has more.

#[path = "told/numbers.rs"]
mod numbers;
#[path = "decoding/prompt_caches.rs"]
mod prompt_caches;
#[path = "decoding/templates.rs"]
mod templates;
#[path = "decoding/told.rs"]
mod told;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use expect_test::expect;
use tacit_bridge::process::{Signal, signal, with_default_signals};

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/tokenizers/spm.gguf")
}

fn tacit(command: &str, options: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tacit"));
    with_default_signals(&mut program);
    program.arg(command).arg(model()).args(options);
    program
}

fn printed(command: &str, options: &[&str]) -> String {
    let output = tacit(command, options).output().expect("starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_text_goes_on_and_json_tells_of_it() {
    let text = printed("generate", &["--prompt", "Hello", "--max-tokens", "12"]);
    let json = printed("generate", &["--prompt", "Hello", "--max-tokens", "12", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("json");
    assert_eq!(json["text"].as_str().map(|own| format!("{own}\n")), Some(text));
    assert_eq!((json["tokens"].as_array().map(Vec::len), &json["ended"]), (Some(12), &"length".into()));
    assert!(json["peak_bytes"].as_u64() > json["weight_bytes"].as_u64(), "{json}");
    // What is asked, in the model's template, is that text.
    let answer = printed("chat", &["--prompt", "Hello", "--max-tokens", "12"]);
    assert_eq!(answer, printed("generate", &["--prompt", "<user>Hello", "--max-tokens", "12"]));
}

/// Where a draft makes all tokens in the first step, no time has gone by since.
#[test]
fn a_rate_without_time_is_left_out() {
    let own = model();
    let options = ["--prompt", "Hello", "--max-tokens", "3", "--draft", own.to_str().expect("text")];
    let output = tacit("generate", &[&options[..], &["--json"]].concat()).output().expect("starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert!(json["tokens_per_second"].is_null() && json["prompt_tokens_per_second"].is_f64(), "{json}");
    assert!(said.contains("\n3 tokens (the limit of --max-tokens)\n"), "{said}");
}

/// The first Ctrl-C ends an answer, and one that comes between answers ends the program.
#[test]
fn an_interrupt_ends_an_answer_and_then_the_program() {
    let endless = ["--max-tokens", "1000000"];
    let begun = |command, options: &[&str]| {
        let mut program = tacit(command, &[&endless[..], options].concat());
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
    };
    let mut one = begun("generate", &["--prompt", "Hello"]);
    one.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 8]).expect("some text");
    signal(one.id(), Signal::Interrupt).expect("is ours");
    let output = one.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(output.stdout.ends_with(b"\n") && said.contains(" tokens (interrupted)"), "{said}");

    let mut chat = begun("chat", &[]);
    let (mut said, mut answers) = (chat.stdin.take().expect("a pipe"), chat.stdout.take().expect("a pipe"));
    let mut reports = BufReader::new(chat.stderr.take().expect("a pipe")).lines();
    let (tell, told) = mpsc::channel();
    // It reads whatever comes, so that the program never waits for that, and tells of it.
    let reader = thread::spawn(move || {
        let mut piece = [0; 64];
        while answers.read(&mut piece).expect("reads") > 0 && tell.send(()).is_ok() {}
    });
    // What a second answer shows depends on where the first one ended.
    writeln!(said, "one").expect("is read");
    told.recv().expect("an answer begins");
    signal(chat.id(), Signal::Interrupt).expect("is ours");
    let mut report = Vec::new();
    while report.last().is_none_or(|line: &String| !line.starts_with("peak memory ")) {
        report.push(reports.next().expect("a report").expect("reads"));
    }
    assert!(report.join("\n").contains(" tokens (interrupted)"), "{report:?}");
    // One that comes before the program is done with the answer ends nothing more.
    let ended = loop {
        drop(signal(chat.id(), Signal::Interrupt));
        thread::sleep(Duration::from_millis(50));
        if let Some(ended) = chat.try_wait().expect("is ours") {
            break ended;
        }
    };
    assert_eq!(ended.code(), Some(130));
    reader.join().expect("reads");
}

#[test]
fn an_input_that_is_no_text_is_named_as_such() {
    let mut said = String::new();
    for (command, options) in [("chat", &[][..]), ("generate", &["--prompt", "-"])] {
        let mut program = tacit(command, options);
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut program = program.expect("starts");
        program.stdin.take().expect("a pipe").write_all(b"\xff\n").expect("is read");
        let output = program.wait_with_output().expect("ends");
        assert_eq!(output.status.code(), Some(1));
        said += &String::from_utf8_lossy(&output.stderr);
    }
    expect![[r#"
        error: the standard input cannot be read: stream did not contain valid UTF-8
        help: give text in UTF-8
        error: the standard input cannot be read: stream did not contain valid UTF-8
        help: give text in UTF-8
    "#]]
    .assert_eq(&said);
}

/// What a program answers, which is told this.
fn answers(command: &str, said: &str, options: &[&str]) -> Vec<serde_json::Value> {
    let mut program = tacit(command, options);
    let program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut program = program.expect("starts");
    program.stdin.take().expect("a pipe").write_all(said.as_bytes()).expect("is read");
    let output = program.wait_with_output().expect("ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = |line: &str| serde_json::from_str(line).expect("json");
    String::from_utf8(output.stdout).expect("text").lines().map(json).collect()
}

fn tokens(answers: &[serde_json::Value]) -> Vec<&serde_json::Value> {
    answers.iter().map(|answer| &answer["tokens"]).collect()
}

/// The tokens are those of the model alone, whatever of its text was said before, also in a file that goes on.
#[test]
fn a_lookup_changes_no_token_of_texts_and_turns() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut accepted = 0;
    let mut check = |command: &str, said: &[&str], options: &[&str]| {
        let cache = |name: &str, more: &[&str]| {
            let file = folder.path().join(format!("{command}-{name}"));
            let file = file.to_str().expect("text").to_owned();
            let options = [options, &["--max-tokens", "30", "--json", "--prompt-cache", &file], more].concat();
            said.iter().flat_map(|said| answers(command, said, &options)).collect::<Vec<_>>()
        };
        let (alone, drafted) = (cache("alone", &[]), cache("lookup", &["--lookup", "--match-tokens", "1"]));
        assert_eq!(tokens(&alone), tokens(&drafted));
        assert!(drafted.iter().any(|answer| answer["drafted"].as_u64() > Some(0)), "{drafted:?}");
        accepted += drafted.iter().filter_map(|answer| answer["accepted"].as_u64()).sum::<u64>();
    };
    check("generate", &["Hello, Hello, Hello"], &["--prompt", "-"]);
    check("chat", &["one two\nand two\n", "one two\ntwo and one\n"], &[]);
    assert!(accepted > 0);
}

/// A program that goes on with a conversation begins with no draw that was made in it before.
#[test]
fn turns_are_drawn_alike_in_one_program_and_in_several() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let turns = |name: &str, said: &[&str]| {
        let file = folder.path().join(name);
        let file = file.to_str().expect("text");
        // The draws alone decide here, and not what the model has seen.
        let options = ["--max-tokens", "12", "--temp", "1000000", "--json", "--prompt-cache", file];
        said.iter().flat_map(|said| answers("chat", said, &options)).collect::<Vec<_>>()
    };
    let (together, apart) = (turns("together", &["one\none\n"]), turns("apart", &["one\n", "one\n"]));
    assert_ne!(tokens(&together)[0], tokens(&together)[1]);
    assert_eq!((together.len(), tokens(&together)), (2, tokens(&apart)));
}

/// The texts of four prompts, cut apart by the lines before them.
fn cut_apart(mut left: &str) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some((head, rest)) = left.split_once('\n') {
        let bytes = head.strip_prefix(&format!("== prompt {} of 4: ", texts.len() + 1));
        let bytes = bytes.and_then(|bytes| bytes.strip_suffix(" bytes ==")?.parse().ok());
        let (text, rest) = rest.split_at(bytes.unwrap_or_else(|| panic!("{head}")));
        texts.push(text.to_owned());
        left = rest.strip_prefix('\n').expect("the end of a text");
    }
    texts
}

/// Prompts of other lengths, whose texts end at other times.
#[test]
fn texts_of_several_prompts_are_those_of_each_alone() {
    let prompts = ["Hello, Hello", "x", "The quick brown fox jumps", "one two three"];
    let folder = tempfile::tempdir().expect("makes a folder");
    let file = folder.path().join("prompts");
    std::fs::write(&file, format!("\n{}\n  \n", prompts.join("\r\n"))).expect("writes");
    let of_file = ["--prompts", file.to_str().expect("text")];
    let together: Vec<&str> = prompts.into_iter().flat_map(|prompt| ["--prompt", prompt]).collect();
    for options in [&["--max-tokens", "12"][..], &["--max-tokens", "12", "--stop=.1"], &["--max-tokens", "0"]] {
        let json = |prompts: &[&str]| {
            let lines = printed("generate", &[prompts, options, &["--json"]].concat());
            let json = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("json");
            lines.lines().map(json).collect::<Vec<_>>()
        };
        let alone: Vec<_> = prompts.into_iter().flat_map(|prompt| json(&["--prompt", prompt])).collect();
        let answers = json(&together);
        assert_eq!((alone.len(), answers.len()), (4, 4));
        for (index, (own, answer)) in alone.iter().zip(&answers).enumerate() {
            assert_eq!(answer["index"], index);
            for key in ["text", "tokens", "ended", "prompt_tokens", "weight_bytes"] {
                assert_eq!(own[key], answer[key], "{key} of prompt {index}, {options:?}");
            }
            // No more than its index is said of one of several.
            assert_eq!(own.as_object().map(|own| own.len() + 1), answer.as_object().map(serde_json::Map::len));
        }
        let texts: Vec<_> = alone.iter().filter_map(|own| own["text"].as_str()).collect();
        for prompts in [&together[..], &of_file] {
            assert_eq!(cut_apart(&printed("generate", &[prompts, options].concat())), texts);
        }
    }
}

#[test]
fn equal_prompts_have_draws_of_their_own() {
    let equal = ["--prompt", "x"].repeat(4);
    let drawn = |seed: &str| {
        let options = ["--max-tokens", "12", "--temp", "2", "--seed", seed];
        cut_apart(&printed("generate", &[&equal[..], &options].concat()))
    };
    let once = drawn("1");
    assert!(once == drawn("1") && once != drawn("2") && once[0] != once[1], "{once:?}");
}

#[test]
fn prompts_that_are_no_batch_are_named() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (draft, empty, absent) =
        (text(&model()), text(&folder.path().join("empty")), text(&folder.path().join("absent")));
    std::fs::write(&empty, "\n  \n").expect("writes");
    let both = ["--prompt", "a", "--prompt", "b"];
    let cases = [
        [&both[..], &["--draft", &draft]].concat(),
        [&both[..], &["--lookup"]].concat(),
        [&both[..], &["--prompt-cache", &absent]].concat(),
        vec!["--prompt", "-", "--prompt", "-"],
        vec!["--prompts", &empty],
        vec!["--prompts", &absent],
    ];
    let mut said = String::new();
    for options in &cases {
        let output = tacit("generate", options).output().expect("starts");
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{options:?}");
        said += &String::from_utf8(output.stderr).expect("text").replace(&text(folder.path()), "FOLDER");
    }
    expect![[r#"
        error: `--draft` serves one prompt, and there are 2
        help: give one prompt, or leave `--draft` out
        error: `--lookup` serves one prompt, and there are 2
        help: give one prompt, or leave `--lookup` out
        error: `--prompt-cache` serves one prompt, and there are 2
        help: give one prompt, or leave `--prompt-cache` out
        error: the standard input is asked for as several prompts
        help: give `--prompt -` once, or a file of prompts with `--prompts`
        error: FOLDER/empty: there is no prompt in it
        help: write one prompt a line
        error: cannot read FOLDER/absent: No such file or directory (os error 2)
    "#]]
    .assert_eq(&said);
    let of_lookup = &["--prompt", "a", "--draft", "b", "--match-tokens", "2"];
    let of_drafts = &["--prompt", "a", "--draft-tokens", "2"];
    for options in [&[][..], &["--prompt", "a", "--prompts", "b"], of_lookup, of_drafts] {
        assert_eq!(tacit("generate", options).output().expect("starts").status.code(), Some(2), "{options:?}");
    }
}

/// What the program says where it refuses the arguments.
fn refused(command: &str, options: &[&str]) -> String {
    let output = tacit(command, options).output().expect("starts");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{options:?}");
    let folder = model().parent().expect("a folder").to_str().expect("text").to_owned();
    String::from_utf8(output.stderr).expect("text").replace(&folder, "FOLDER")
}

/// Whatever lies in the folder around it.
#[test]
fn a_model_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let of_another = ["config.json", "tokenizer.json"];
    for name in of_another {
        std::fs::write(folder.path().join(name), "{}").expect("writes");
    }
    let commands: [(&str, &[&str]); 4] = [
        ("generate", &["--prompt", "a"]),
        ("chat", &["--prompt", "a"]),
        ("perplexity", &["--tokens", "tokens"]),
        ("train", &["--lora", "2", "--data", "data.jsonl", "-o", "adapter"]),
    ];
    for (command, options) in commands {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tacit"));
        let output = program.current_dir(&folder).args([command, "none"]).args(options).output().expect("starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, "error: cannot open none: No such file or directory (os error 2)\n", "{command}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let own = model();
    let cache = std::env::temp_dir().join("tacit-no-such-cache.safetensors");
    let both =
        ["--prompt", "a", "--draft", own.to_str().expect("text"), "--prompt-cache", cache.to_str().expect("text")];
    let said = [
        refused("generate", &["--prompt", "a", "--top-p", "1.5"]),
        refused("generate", &["--prompt", "a", "--kv", "nf5"]),
        refused("generate", &["--prompt", "a", "--kv", "nf4:64"]),
        refused("generate", &["--prompt", "a", "--prompt-cache", "/no-such-folder/cache"]),
        // A folder in which nobody makes a file.
        refused("generate", &["--prompt", "a", "--prompt-cache", "/proc/cache"]),
        refused("generate", &both),
        refused("generate", &["--prompt", "a", "--lookup", "--draft-tokens", "0"]),
        refused("chat", &["--prompt", "a", "--lookup", "--match-tokens", "0"]),
    ]
    .concat();
    expect![[r#"
        error: top-p is 1.5
        help: give a probability, from 0 to 1
        error: no format is named nf5
        help: name one of affine, bf16, binary, codebook, dynamic, e4m3, e5m2, f16, fp4, int8, k, mxfp4, mxfp8, nf4, nvfp4, rotated, symmetric, ternary
        error: tokens of f16[1,1,1,8] are not kept in nf4:64: a row is no whole number of blocks
        help: choose a format whose blocks divide the width 8 and whose scales are numbers of their own, such as int8
        error: cannot write /no-such-folder/cache: No such file or directory (os error 2)
        error: cannot write /proc/cache: No such file or directory (os error 2)
        error: a draft has not seen what a prompt cache holds
        help: leave out `--draft` or `--prompt-cache`
        error: a draft of 0 tokens proposes nothing
        help: let it propose at least 1, or use `generate`
        error: a lookup of the last 0 tokens finds every place of a text
        help: let at least 1 match, such as the last 2
    "#]]
    .assert_eq(&said);
    // What the help of a format names is kept.
    printed("generate", &["--prompt", "a", "--max-tokens", "2", "--kv", "int8"]);
}

/// How many weights round activations is told beside the text, and why none does is an error.
#[test]
fn activations_of_8_bits_are_told_of() {
    let options = ["--prompt", "Hello", "--max-tokens", "4", "--int8"];
    for command in ["generate", "chat"] {
        let output = tacit(command, &[&options[..], &["--weights", "nf4:64"]].concat()).output().expect("starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !output.stdout.is_empty(), "{said}");
        assert!(said.lines().any(|line| line == "8 parameters round activations to 8 bits"), "{said}");
        expect![[r#"
            error: no parameter rounds activations to 8 bits; model.embed_tokens.weight and 7 more: f16 has no products with activations in 8 bits
            help: quantize weights first, in a format whose codes are multiplied as integers, such as nf4:64
        "#]]
        .assert_eq(&refused(command, &options));
    }
}

/// A `generation_config.json` that says nothing of the end does not take the tokenizer's end away.
#[test]
fn the_tokenizers_end_counts_unless_the_model_says_another() {
    let scratch = tempfile::tempdir().expect("makes a folder");
    let folder = scratch.path().join("model");
    let path = folder.to_str().expect("text");
    let converted = tacit("convert", &["--as", "hugging-face", "-o", path]).output().expect("starts");
    assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.join(name)).expect("reads")).expect("json")
    };
    let write =
        |name: &str, json: &serde_json::Value| std::fs::write(folder.join(name), json.to_string()).expect("writes");
    let generated = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        let output = command.args(["generate", path, "--prompt", "Hello", "--max-tokens", "8", "--json"]).output();
        let output = output.expect("starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("json")
    };
    // The third token that comes is made the tokenizer's end.
    drop(std::fs::remove_file(folder.join("generation_config.json")));
    let tokens = generated()["tokens"].as_array().expect("tokens").clone();
    let (third, vocabulary) = (tokens[2].as_u64().expect("a number"), json("tokenizer.json")["model"]["vocab"].clone());
    let name = match &vocabulary {
        serde_json::Value::Array(pieces) => pieces[third as usize][0].as_str().expect("text").to_owned(),
        pieces => {
            let pieces = pieces.as_object().expect("pieces");
            pieces.iter().find(|(_, id)| id.as_u64() == Some(third)).expect("is there").0.clone()
        }
    };
    let mut config = json("tokenizer_config.json");
    config["eos_token"] = name.into();
    // As Python writes a length without an end.
    config["model_max_length"] = "ENDLESS".into();
    let text = config.to_string().replace(r#""ENDLESS""#, "Infinity");
    std::fs::write(folder.join("tokenizer_config.json"), text).expect("writes");
    let ended = |json: &serde_json::Value| json["ended"].as_str().expect("text").to_owned();
    assert_eq!(ended(&generated()), "stop");
    write("generation_config.json", &serde_json::json!({"do_sample": true}));
    assert_eq!(ended(&generated()), "stop");
    // Where it says an end, that is the only one.
    write("generation_config.json", &serde_json::json!({"eos_token_id": 3}));
    assert_eq!(ended(&generated()), "length");
}
