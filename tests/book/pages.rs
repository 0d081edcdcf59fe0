//! The pages of the book: what they include, link and name exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{between, chapters, files, source, without_first_cells, words, written};

#[test]
fn every_include_names_a_file_and_an_anchor_that_exist() {
    let mut missing = Vec::new();
    let mut found = BTreeSet::new();
    for (chapter, text) in chapters() {
        for argument in between(&text, "include ", "}}") {
            let mut parts = argument.trim().splitn(2, ':');
            let file = chapter.parent().unwrap().join(parts.next().unwrap());
            let Ok(included) = fs::read_to_string(&file) else {
                missing.push(format!("{}: {argument}", chapter.display()));
                continue;
            };
            found.insert(file.canonicalize().unwrap());
            if let Some(anchor) = parts.next() {
                for marker in [format!("// ANCHOR: {anchor}"), format!("// ANCHOR_END: {anchor}")] {
                    if included.lines().filter(|line| line.trim() == marker).count() != 1 {
                        missing.push(format!("{}: {argument} has no `{marker}`", chapter.display()));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    let outputs = ["txt", "svg"].into_iter().flat_map(|kind| files(&source().join("output"), kind));
    for output in outputs.filter(|output| !output.ends_with("models/drawing.svg")) {
        assert!(found.contains(&output.canonicalize().unwrap()), "no chapter shows {}", output.display());
    }
}

#[test]
fn no_code_in_the_book_is_typed_in_by_hand() {
    for (chapter, text) in written() {
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(language) = line.strip_prefix("```") else { continue };
            for inside in lines.by_ref().take_while(|line| *line != "```") {
                // A command line is for the reader's shell.
                assert!(language == "sh" || inside.starts_with("{{#include "), "{}: {inside}", chapter.display());
            }
        }
    }
}

#[test]
fn the_summary_links_every_chapter_and_every_link_exists() {
    let summary = fs::read_to_string(source().join("SUMMARY.md")).unwrap();
    let linked: BTreeSet<PathBuf> = between(&summary, "](", ")").map(|link| source().join(link)).collect();
    let written: BTreeSet<PathBuf> =
        chapters().into_iter().map(|(path, _)| path).filter(|path| !path.ends_with("SUMMARY.md")).collect();
    assert_eq!(linked, written);
    for (chapter, text) in chapters() {
        for link in between(&text, "](", ")").filter(|link| !link.starts_with("https:")) {
            let file = link.split('#').next().unwrap_or(link);
            assert!(chapter.parent().unwrap().join(file).exists(), "{}: {link}", chapter.display());
        }
    }
}

/// The sections of other systems' features link to what is shown and run here.
#[test]
fn each_line_of_where_things_are_links_to_a_section_with_a_snippet() {
    let page = fs::read_to_string(source().join("how_to/come_from.md")).unwrap();
    let table = page.split("\n## Where each thing of these systems is\n").nth(1).expect("the page has the table");
    let (mut lines, mut wrong) = (0, Vec::new());
    for line in table.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| Tacit |")) {
        lines += 1;
        let Some(link) = between(line, "](", ")").next() else {
            wrong.push(format!("no link: {line}"));
            continue;
        };
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let text = fs::read_to_string(source().join("how_to").join(file)).unwrap_or_default();
        // The page is split at its headings; the first part stands below the title.
        let section = text.split("\n## ").enumerate().find(|(at, part)| {
            let title = part.lines().next().unwrap_or_default().to_lowercase();
            let plain: String = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect();
            if heading.is_empty() { *at == 0 } else { *at > 0 && plain.replace(' ', "-") == heading }
        });
        if !section.is_some_and(|(_, part)| part.contains("{{#include ") && part.contains("examples/")) {
            wrong.push(format!("no snippet: {link}"));
        }
    }
    assert!(lines > 50, "{lines} lines");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Every word of a code span is the name of a source file, or in one; what is mlx-rs's own is in some example.
#[test]
fn the_book_names_nothing_that_does_not_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let known: BTreeSet<String> = ["crates", "examples", "tests"]
        .into_iter()
        .flat_map(|folder| files(&root.join(folder), "rs"))
        .filter(|file| !file.starts_with(root.join("tests/book")))
        .chain(["tests/scripts", "tests/gpu"].into_iter().flat_map(|folder| files(&root.join(folder), "sh")))
        .chain(files(&root.join("crates/bridge/cpp"), "cpp"))
        .chain(["Cargo.toml", "README.md", ".ci/run", ".ci/needs.sh"].map(|file| root.join(file)))
        .flat_map(|file| words(&format!("{} {}", file.display(), fs::read_to_string(&file).unwrap())))
        .collect();
    let mut unknown = Vec::new();
    for (chapter, text) in written() {
        // Blocks are includes, which have a test of their own; splitting at back-quotes leaves the spans at odd places.
        let prose: String = text.split("```").step_by(2).collect();
        let prose = if chapter.ends_with("come_from.md") { without_first_cells(&prose) } else { prose };
        for span in prose.split('`').skip(1).step_by(2) {
            for word in words(span).into_iter().filter(|word| !known.contains(word)) {
                unknown.push(format!("{}: {word} in `{span}`", chapter.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[test]
fn the_code_of_the_readme_is_at_most_25_lines() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let code = between(&readme, "```rust\n", "```").next().unwrap();
    assert!(code.lines().count() <= 25);
}
