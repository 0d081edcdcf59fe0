//! The reference pages of the book are what the program has that links Tacit; `UPDATE_EXPECT=1` writes them anew.

#[path = "../../examples/errors.rs"]
#[allow(dead_code, reason = "its `main` is the example's")]
mod errors;

#[path = "../../crates/cli/src/variables.rs"]
mod variables;

mod facade;
mod names;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use expect_test::expect_file;
use tacit::dispatch::{Handler, OperandPattern, Registry};
use tacit::format;
use tacit::primitives::{Description, TABLE};
use tacit::types::{ArrayType, array_types};

/// Says of every page where it comes from, so that nobody edits it by hand.
const MADE: &str = "<!-- Made by `UPDATE_EXPECT=1 cargo test --test reference`. -->\n";

fn check(page: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src/reference").join(page);
    expect_file![file].assert_eq(&format!("{MADE}{text}"));
}

/// The types of Tacit itself, by the name that they are saved under.
fn types() -> BTreeMap<&'static str, &'static ArrayType> {
    let own = array_types().into_iter().filter(|of| of.saved_as.starts_with("tacit."));
    own.map(|of| (&of.saved_as["tacit.".len()..], of)).collect()
}

/// The operand of a handler for which an array of this type may stand, the most specific first.
fn takes(handler: &Handler, of: &'static ArrayType) -> Option<u8> {
    let rank = |pattern: &OperandPattern| match pattern {
        OperandPattern::Type(_) => 0,
        OperandPattern::Family(..) => 1,
        _ => 2,
    };
    let operands = handler.signature.operands.iter();
    operands.filter(|pattern| rank(pattern) < 2 && pattern.matches(Some(of))).map(rank).min()
}

/// Whether a handler of Tacit's own takes the primitive.
fn printed(handler: &Handler, of: &Description) -> bool {
    handler.site.file.starts_with("crates/") && handler.signature.primitive.matches(of.name)
}

/// The program `tacit` has no passes, and names those of Tacit all the same.
#[test]
fn the_passes_that_the_program_knows_are_those_that_there_are() {
    let all: Vec<&str> = tacit_core::pass::Pass::all().iter().map(|pass| pass.name).collect();
    assert_eq!(all, variables::PASSES);
    let variable = variables::VARIABLES.iter().find(|variable| variable.name == "TACIT_PASSES").expect("it is there");
    assert!(variable.values.ends_with(&variables::PASSES.join(", ")));
}

#[test]
fn the_types_with_what_takes_them() {
    let registry = Registry::global();
    let types = types();
    let mut page = format!(
        "# Array types\n\n{} types. A primitive that is in no line of a type's table goes to the type's default handler \
         if it has one, and else materializes the array; what holds for every implicit array is left out. Which of \
         several handlers takes a call, `Registry` decides: the most specific first.\n",
        types.len()
    );
    for (name, of) in &types {
        let families: Vec<String> = of.families.iter().map(|family| format!("`{}`", last(family.name()))).collect();
        let _ = write!(page, "\n## {name}\n\nSaved as `{}`", of.saved_as);
        if !families.is_empty() {
            let _ = write!(page, "; of {}", families.join(", "));
        }
        let default = if of.default.is_some() { "; its default handler takes every primitive" } else { "" };
        let _ = writeln!(page, "{default}.\n");
        let mut taken: Vec<(u8, &Handler)> =
            registry.handlers().iter().filter_map(|handler| Some((takes(handler, of)?, handler))).collect();
        taken.sort_by_key(|(rank, handler)| (*rank, handler.site.name));
        if taken.is_empty() {
            continue;
        }
        page.push_str("| Call | Handler | In |\n|---|---|---|\n");
        for (_, handler) in taken {
            let _ = writeln!(page, "| {} | `{}` | `{}` |", handler.signature, handler.site.name, handler.site.file);
        }
    }
    check("types.md", &page);
}

#[test]
fn the_primitives_with_their_parameters() {
    let registry = Registry::global();
    let mut page = format!(
        "# Primitives\n\nThe {} primitives of MLX under the names that traces print, with the fields of the typed view \
         that a handler is given, and the number of handlers that a call of each may go to. Every other call on an \
         implicit array materializes it.\n\n| Primitive | Class | Parameters | Result | Handlers |\n|---|---|---|---|---|\n",
        TABLE.len()
    );
    for of in TABLE {
        let since = |version: Option<[u32; 3]>| {
            version.map_or_else(String::new, |version| {
                format!(" (since MLX {})", version.map(|part| part.to_string()).join("."))
            })
        };
        let fields: Vec<String> =
            of.fields.iter().map(|field| format!("`{}: {}`{}", field.name, field.ty, since(field.since))).collect();
        let count = registry.handlers().iter().filter(|handler| printed(handler, of)).count();
        let class = format!("{:?}", of.class).to_lowercase();
        let swapped = if of.commutative { ", commutative" } else { "" };
        let doc = of.doc.replace('|', "\\|");
        let _ = writeln!(
            page,
            "| `{}` | {class}{swapped}{} | {} | {doc} | {count} |",
            of.printed,
            since(of.since),
            fields.join(" ")
        );
    }
    page.push_str(
        "\n## Classes\n\nA handler whose first parameter is one of these takes all primitives of the class.\n\n\
         | Class | Primitives |\n|---|---|\n",
    );
    for (name, doc) in classes() {
        let _ = writeln!(page, "| `primitives::{name}` | {doc} |");
    }
    check("primitives.md", &page);
}

/// The views of classes with their documentation, as their source has them.
fn classes() -> Vec<(String, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/core/src/class.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let (_, views) = source.split_once("\nviews! {\n").unwrap();
    let (mut found, mut doc) = (Vec::new(), Vec::new());
    for line in views.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            doc.push(text);
        } else if let Some((name, _)) = line.split_once(':') {
            found.push((name.to_owned(), sources::without_links(&std::mem::take(&mut doc).join(" "))));
        }
    }
    found
}

#[test]
fn the_formats_with_their_texts() {
    let mut page = "# Formats\n\nThe texts that rules, the program `tacit` and `format::parse` read.\n\n\
         | Format | Texts |\n|---|---|\n"
        .to_owned();
    for (name, forms) in format::forms() {
        let _ = writeln!(page, "| {name} | {} |", forms.replace('|', "\\|"));
    }
    page.push_str(
        "\nBehind each but `f16` and `bf16` may stand how its scales are chosen: `+search` or `+search:STEPS` for the least squared \
         error, `+hqq` or `+hqq:ROUNDS` for the half-quadratic method. [Accuracy](accuracy.md) says what that gains. Behind \
         `codebook`, `dynamic`, `e4m3` and `e5m2` may stand `+reach`: scales by which a table that ends nearer to zero on one side \
         reaches both ends of a block, so that nothing is cut off.\n\n\
         Behind all of that may stand `+stochastic`: elements are rounded at random, by a key, as [the moments of an \
         optimizer](../how_to/moments.md) are.\n",
    );
    check("formats.md", &page);
}

/// The kinds of `tacit::Error` with the first sentence of each, in their order, as its source has them.
fn kinds() -> Vec<(String, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/core/src/error.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let (_, kinds) = source.split_once("pub enum Error {\n").unwrap();
    let (kinds, _) = kinds.split_once("\n}\n").unwrap();
    let (mut found, mut doc) = (Vec::new(), String::new());
    for line in kinds.lines().filter_map(|line| line.strip_prefix("    ")) {
        if let Some(text) = line.strip_prefix("/// ") {
            text.clone_into(&mut doc);
        } else if let Some(end) =
            line.find(['(', ' ', ',']).filter(|_| line.starts_with(|c: char| c.is_ascii_uppercase()))
        {
            found.push((line[..end].to_owned(), std::mem::take(&mut doc)));
        }
    }
    found
}

#[test]
fn the_kinds_of_error_with_what_raises_them() {
    let kinds = kinds();
    let names: Vec<&str> = kinds.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        errors::CASES.map(|(name, _)| name),
        "each kind of `tacit::Error` is raised in `examples/errors.rs`"
    );
    let mut page = format!(
        "# Errors\n\nEverything in Tacit returns a `tacit::Error`, whose {} kinds a program can match. The message says what was \
         wrong in the words of a trace, and, where there is one, the next step behind `help:`. The code is that of \
         `examples/errors.rs`.\n",
        kinds.len()
    );
    for ((name, doc), (_, case)) in kinds.iter().zip(errors::CASES) {
        let error = errors::raised(case);
        assert_eq!(errors::kind(&error), name);
        let text = error.to_string().replace(&format!("{}/", errors::folder().display()), "");
        let text = without_lines(&text).replace("tests/reference/../../", "");
        let _ = write!(
            page,
            "\n## {name}\n\n{doc}\n\n```rust,noplayground\n{{{{#include ../../../examples/errors.rs:{name}}}}}\n```\n\n\
             ```text\n{text}\n```\n"
        );
    }
    check("errors.md", &page);
}

/// The text without the numbers of lines, which move, and with 0 for a stream's.
fn without_lines(text: &str) -> String {
    let (mut made, mut rest) = (String::new(), text);
    while let Some((at, kept)) = [(".rs:", ".rs"), ("Stream(cpu, ", "Stream(cpu, 0")]
        .iter()
        .filter_map(|(mark, kept)| Some((rest.find(mark)?, (mark, kept))))
        .min()
    {
        let (mark, kept) = kept;
        made.push_str(&rest[..at]);
        made.push_str(kept);
        rest = rest[at + mark.len()..].trim_start_matches(|c: char| c.is_ascii_digit());
    }
    made + rest
}

/// The variables of the build, as the documentation of `mlx-sys` lists them: name and meaning.
fn of_the_build() -> Vec<(String, String)> {
    let rows = include_str!("../../crates/mlx-sys/src/lib.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.filter_map(|row| row.trim_end_matches(" |").split_once("` | "))
        .map(|(name, doc)| (name.to_owned(), doc.to_owned()))
        .collect()
}

#[test]
fn the_variables_of_the_environment() {
    let mut page = "# Environment variables\n\nRead when a program runs; `tacit doctor` judges those that are set.\n\n\
         | Variable | Values | Meaning |\n|---|---|---|\n"
        .to_owned();
    for variable in &variables::VARIABLES {
        assert!(!(variable.reads)("?"), "`tacit doctor` would take anything for {}", variable.name);
        let _ = writeln!(page, "| `{}` | {} | {} |", variable.name, variable.values, variable.doc);
    }
    page.push_str("\nRead when Tacit is built.\n\n| Variable | Meaning |\n|---|---|\n");
    for (name, doc) in of_the_build() {
        let _ = writeln!(page, "| `{name}` | {doc} |");
    }
    check("environment.md", &page);
}

/// A variable that the sources of a crate name as a text is one that the page lists.
#[test]
fn no_variable_is_left_out() {
    let build = of_the_build();
    let mut known: BTreeSet<&str> = build.iter().map(|(name, _)| name.split('=').next().unwrap_or(name)).collect();
    known.extend(variables::VARIABLES.iter().map(|variable| variable.name));
    // What the build tells the crate, and what suites and benchmarks read.
    known.extend([
        "TACIT_MLX_VERSION",
        "TACIT_MLX_DEFINES",
        "TACIT_SWEEP",
        "TACIT_SUITE_DEVICE",
        "TACIT_GPU_CASES",
        "TACIT_GPU_RACES",
        "TACIT_PROGRAMS",
        "TACIT_FUZZ",
        "TACIT_FUZZ_READER",
        "TACIT_FIGURES",
    ]);
    let mut unknown = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let source = entry.extension().is_some_and(|kind| ["rs", "cpp"].iter().any(|own| kind == *own));
            if entry.is_dir() && !entry.ends_with("tests") {
                folders.push(entry);
            } else if source && !entry.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&entry).unwrap();
                let texts = text.split('"').filter(|text| text.starts_with("TACIT_") && !known.contains(text));
                unknown.extend(
                    texts.filter(|text| text.chars().all(|c| c.is_ascii_uppercase() || c == '_')).map(str::to_owned),
                );
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Every type has a section and every primitive a line, whatever the pages look like.
#[test]
fn nothing_is_left_out() {
    let read = |page: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src/reference").join(page);
        std::fs::read_to_string(file).unwrap_or_default()
    };
    let (of_types, of_primitives) = (read("types.md"), read("primitives.md"));
    assert_eq!(of_types.matches("\n## ").count(), types().len());
    assert!(TABLE.iter().all(|of| of_primitives.contains(&format!("\n| `{}` |", of.printed))));
    let takers = |handler: &&Handler| types().values().any(|&of| takes(handler, of).is_some());
    for handler in Registry::global().handlers().iter().filter(takers) {
        assert!(of_types.contains(&format!("`{}`", handler.site.name)), "{}", handler.site.name);
    }
}

/// The last part of a path, `Packed` of `dyn tacit_arrays::families::packed::Packed`.
fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}
