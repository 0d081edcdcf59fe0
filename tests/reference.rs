//! The reference pages of the book are what the program has that links Tacit; `UPDATE_EXPECT=1` writes them anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use expect_test::expect_file;
use tacit::dispatch::{Handler, Pattern, Registry};
use tacit::format;
use tacit::op::{Description, TABLE};
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
    let rank = |pattern: &Pattern| match pattern {
        Pattern::Type(_) => 0,
        Pattern::Family(..) => 1,
        _ => 2,
    };
    let operands = handler.signature.operands.iter();
    operands.filter(|pattern| rank(pattern) < 2 && pattern.matches(Some(of))).map(rank).min()
}

fn printed(handler: &Handler, of: &Description) -> bool {
    handler.signature.primitive.matches(of.name)
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
        let fields: Vec<String> = of.fields.iter().map(|field| format!("`{}: {}`", field.name, field.ty)).collect();
        let count = registry.handlers().iter().filter(|handler| printed(handler, of)).count();
        let class = format!("{:?}", of.class).to_lowercase();
        let swapped = if of.commutative { ", commutative" } else { "" };
        let doc = of.doc.replace('|', "\\|");
        let _ = writeln!(page, "| `{}` | {class}{swapped} | {} | {doc} | {count} |", of.printed, fields.join(" "));
    }
    check("primitives.md", &page);
}

#[test]
fn the_formats_with_their_texts() {
    let mut page = "# Formats\n\nThe texts that rules, the program `tacit` and `format::parse` read.\n\n\
         | Format | Texts |\n|---|---|\n"
        .to_owned();
    for (name, forms) in format::forms() {
        let _ = writeln!(page, "| {name} | {} |", forms.replace('|', "\\|"));
    }
    check("formats.md", &page);
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

/// The last part of a path, `Packed` of `dyn tacit_arrays::packed::Packed`.
fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}
