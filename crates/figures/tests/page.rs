//! The page of the book is what was recorded; `UPDATE_EXPECT=1` draws it anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use expect_test::expect_file;
use tacit_figures::page;

#[test]
fn the_page_of_the_book_is_what_was_recorded() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = page::files(&root).unwrap();
    for (name, text) in &files {
        expect_file![root.join(page::FOLDER).join(name)].assert_eq(text);
    }
    let drawn: BTreeSet<String> =
        files.into_iter().map(|(name, _)| name).filter(|name| name.starts_with("figures/")).collect();
    let kept = fs::read_dir(root.join(page::FOLDER).join("figures")).unwrap();
    let kept: BTreeSet<String> =
        kept.map(|entry| format!("figures/{}", entry.unwrap().file_name().to_string_lossy())).collect();
    assert_eq!(drawn, kept, "a chart that nothing draws any more");
}
