//! The book's files and what stands in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src")
}

/// The Markdown files of the book with their text.
pub(crate) fn chapters() -> Vec<(PathBuf, String)> {
    files(&source(), "md").into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Those that are written by hand: what is made from the program itself has a test of its own.
pub(crate) fn written() -> impl Iterator<Item = (PathBuf, String)> {
    let made = source().join("reference");
    chapters().into_iter().filter(move |(path, _)| !path.starts_with(&made))
}

/// Tables without their first column, which is what other projects call a thing.
pub(crate) fn without_first_cells(text: &str) -> String {
    let rest = |line: &str| line.strip_prefix("| ").and_then(|row| Some(row.split_once(" | ")?.1.to_owned()));
    text.lines().map(|line| rest(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

/// The files under a folder with this extension, at any depth, in order.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// What stands between each `open` and the next `close`.
pub(crate) fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split(close).next())
}

/// The identifiers in a text.
pub(crate) fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
        .map(str::to_owned)
        .collect()
}
