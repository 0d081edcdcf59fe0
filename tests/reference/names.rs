//! The pages of names: the prelude, and the methods of what programs call most.

use std::fmt::Write;

use syn::{Item, UseTree};

use crate::check;
use crate::sources::Sources;

/// Where the sources of a module of the facade are.
const MODULES: [(&str, &[&str]); 5] = [
    ("arrays", &["crates/arrays/src"]),
    ("format", &["crates/arrays/src/format", "crates/arrays/src/format.rs"]),
    ("io", &["crates/io/src"]),
    ("model", &["crates/nn/src"]),
    ("", &["crates/core/src", "crates/bridge/src", "crates/macros/src", "crates/arrays/src"]),
];

#[test]
fn the_prelude_with_what_each_name_is() {
    let facade = Sources::of("crates/tacit/lib.rs");
    let mut names = Vec::new();
    for item in facade.module("prelude").expect("the facade has a prelude") {
        let Item::Use(item) = item else { panic!("the prelude has more than imports") };
        leaves(&item.tree, "tacit", &mut names);
    }
    let mut page =
        "# The prelude\n\n`use tacit::prelude::*;` imports these names. Everything else is imported by its path.\n\n\
                    | Name | Path | What it is |\n|---|---|---|\n"
            .to_owned();
    names.sort();
    for (name, path) in names {
        let module =
            path.strip_prefix("tacit::").and_then(|rest| rest.split_once("::")).map_or("", |(module, _)| module);
        let (_, places) =
            MODULES.iter().find(|(own, _)| *own == module).unwrap_or_else(|| panic!("{module} has sources"));
        let sentence = places.iter().find_map(|place| Sources::of(place).sentence(&name));
        let sentence = sentence.unwrap_or_else(|| panic!("{path} is documented"));
        let _ = writeln!(page, "| `{name}` | `{path}` | {sentence} |");
    }
    check("prelude.md", &page);
}

/// The names that a tree of imports brings, with their paths.
fn leaves(tree: &UseTree, path: &str, names: &mut Vec<(String, String)>) {
    match tree {
        UseTree::Path(of) if of.ident == "crate" => leaves(&of.tree, path, names),
        UseTree::Path(of) => leaves(&of.tree, &format!("{path}::{}", of.ident), names),
        UseTree::Name(of) => names.push((of.ident.to_string(), format!("{path}::{}", of.ident))),
        UseTree::Group(of) => of.items.iter().for_each(|tree| leaves(tree, path, names)),
        UseTree::Rename(_) | UseTree::Glob(_) => panic!("the prelude names each name as it is"),
    }
}

/// A title, and the types of it: path in the facade, and where the sources are.
type Part = (&'static str, &'static [(&'static str, &'static str)]);

const PARTS: [Part; 6] = [
    (
        "Values",
        &[
            ("Value", "crates/core/src"),
            ("Aval", "crates/bridge/src"),
            ("Policy", "crates/core/src"),
            ("Counters", "crates/core/src"),
            ("dispatch::Registry", "crates/core/src"),
        ],
    ),
    (
        "Models",
        &[
            ("model::Model", "crates/nn/src"),
            ("io::ModelFile", "crates/io/src"),
            ("model::Rules", "crates/nn/src"),
            ("model::Pattern", "crates/nn/src"),
            ("model::ParameterFilter", "crates/nn/src"),
            ("model::LoraConfig", "crates/nn/src"),
            ("model::QatConfig", "crates/nn/src"),
            ("model::Advisor", "crates/nn/src"),
            ("io::Training", "crates/io/src"),
        ],
    ),
    (
        "Training loops",
        &[
            ("model::training::Schedule", "crates/nn/src/training"),
            ("model::training::Accumulated", "crates/nn/src/training"),
            ("model::training::EarlyStopping", "crates/nn/src/training"),
            ("model::QuantizedState", "crates/nn/src"),
            ("io::Rotation", "crates/io/src"),
        ],
    ),
    (
        "Caches and generation",
        &[
            ("model::KvCache", "crates/nn/src"),
            ("model::ArraysCache", "crates/nn/src"),
            ("model::Cache", "crates/nn/src"),
            ("model::Window", "crates/nn/src"),
            ("model::PaddingSide", "crates/nn/src/cache"),
            ("model::generate::Sequences", "crates/nn/src/generate"),
            ("model::generate::GenerateOptions", "crates/nn/src/generate"),
            ("model::generate::Sampler", "crates/nn/src/generate"),
            ("model::generate::Draft", "crates/nn/src/generate"),
            ("model::generate::DraftModel", "crates/nn/src/generate"),
            ("model::generate::Lookup", "crates/nn/src/generate"),
            ("model::generate::Trim", "crates/nn/src/generate"),
        ],
    ),
    (
        "Compiled functions and executables",
        &[
            ("compile::CompileOptions", "crates/core/src/compile"),
            ("compile::CompileStats", "crates/core/src/compile"),
            ("executable::Executable", "crates/executable/src"),
            ("executable::Builder", "crates/executable/src"),
        ],
    ),
    (
        "Several processes",
        &[
            ("distributed::Group", "crates/distributed/src"),
            ("distributed::GroupOptions", "crates/distributed/src"),
            ("distributed::Sharded", "crates/distributed/src"),
            ("distributed::Shard", "crates/distributed/src"),
            ("distributed::FullyShard", "crates/distributed/src"),
        ],
    ),
];

#[test]
fn the_methods_of_what_programs_call_most() {
    let mut page = "# Methods\n\nMethods, public fields and variants of the types that programs use most. `.name()` is called on a value, \
                    `::name()` on the type; the documentation of the crate has the types of the arguments, the errors and an example of each.\n"
        .to_owned();
    for (title, types) in PARTS {
        let _ = write!(page, "\n## {title}\n");
        for (path, place) in types {
            let name = path.rsplit("::").next().unwrap_or(path);
            let sources = Sources::of(place);
            let sentence = sources.sentence(name).unwrap_or_else(|| panic!("{path} is in {place}"));
            let members = sources.members(name);
            assert!(!members.is_empty(), "{path} has methods or fields");
            let _ = write!(page, "\n### {path}\n\n{sentence}\n\n| | |\n|---|---|\n");
            for (call, sentence) in members {
                let _ = writeln!(page, "| `{call}` | {sentence} |");
            }
        }
    }
    check("methods.md", &page);
}
