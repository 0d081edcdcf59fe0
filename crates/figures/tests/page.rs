//! The page of the book is what was recorded; `UPDATE_EXPECT=1` draws it anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use expect_test::expect_file;
use tacit_figures::{accuracy, page};

#[test]
fn the_page_of_the_book_is_what_was_recorded() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    check("figures", page::files(&root).unwrap());
}

#[test]
fn the_page_of_accuracy_is_what_was_recorded() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    check("accuracy", accuracy::files(&root).unwrap());
}

/// The files of a page and the charts in its folder.
fn check(folder: &str, files: Vec<(String, String)>) {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page::FOLDER);
    for (name, text) in &files {
        expect_file![place.join(name)].assert_eq(text);
    }
    let within = format!("{folder}/");
    let drawn: BTreeSet<String> =
        files.into_iter().map(|(name, _)| name).filter(|name| name.starts_with(&within)).collect();
    let kept = fs::read_dir(place.join(folder)).unwrap();
    let kept: BTreeSet<String> =
        kept.map(|entry| format!("{within}{}", entry.unwrap().file_name().to_string_lossy())).collect();
    assert_eq!(drawn, kept, "a chart that nothing draws any more");
}
