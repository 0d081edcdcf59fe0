//! Templates of conversations.

use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::expect;

use super::model;

/// The model's file with another template of chats, of at most its length.
fn with_template(folder: &Path, template: &str) -> PathBuf {
    let own = "{{ bos_token }}{% for message in messages %}<user>{{ message.content }}{% endfor %}";
    let mut bytes = std::fs::read(model()).expect("reads");
    let at = bytes.windows(own.len()).position(|found| found == own.as_bytes()).expect("is there");
    bytes[at..at + own.len()].copy_from_slice(format!("{template:<width$}", width = own.len()).as_bytes());
    let file = folder.join("model.gguf");
    std::fs::write(&file, bytes).expect("writes");
    file
}

#[test]
fn a_template_that_does_not_end_or_fails_is_named() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut said = String::new();
    for template in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('x') }}",
        "{{ 'x' * 100000000000 }}",
        "{{ raise_exception('not for this') }}",
        "{{ messages.nothing.at }}",
        "{{ unknown(1) }}",
        "{% for message in",
    ] {
        let file = with_template(folder.path(), template);
        let mut program = Command::new(env!("CARGO_BIN_EXE_tacit"));
        let output = program.arg("chat").arg(&file).args(["--prompt", "Hello"]).output().expect("starts");
        assert_eq!(output.status.code(), Some(1), "{template}");
        said += &String::from_utf8_lossy(&output.stderr).replace(&file.display().to_string(), "FILE");
    }
    expect![[r#"
        error: FILE: chat_template: the template does not come to an end, or makes a text without measure
        help: use `tacit generate`, which continues texts, or leave the system message out
        error: FILE: chat_template: the template does not come to an end, or makes a text without measure
        help: use `tacit generate`, which continues texts, or leave the system message out
        error: FILE: chat_template: the template does not come to an end, or makes a text without measure
        help: use `tacit generate`, which continues texts, or leave the system message out
        error: FILE: chat_template: the template cannot be rendered: invalid operation: not for this (in <string>:1)
        help: use `tacit generate`, which continues texts, or leave the system message out
        error: FILE: chat_template: the template cannot be rendered: undefined value (in <string>:1)
        help: use `tacit generate`, which continues texts, or leave the system message out
        error: FILE: chat_template: the template cannot be rendered: unknown function: unknown is unknown (in <string>:1)
        help: use `tacit generate`, which continues texts, or leave the system message out
        error: FILE: chat_template: the template cannot be rendered: syntax error: unexpected end of input, expected expression (in <string>:1)
        help: use `tacit generate`, which continues texts, or leave the system message out
    "#]].assert_eq(&said);
}
