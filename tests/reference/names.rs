//! The pages of names: the prelude, and the methods of what programs call most.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

use crate::check;
use crate::facade::{Module, Named};
use crate::sources::Sources;

#[test]
fn the_prelude_with_what_each_name_is() {
    let mut page =
        "# The prelude\n\n`use tacit::prelude::*;` imports these names. Everything else is imported by its path.\n\n\
                    | Name | Path | What it is |\n|---|---|---|\n"
            .to_owned();
    let facade = Module::facade();
    let prelude = &facade.names()["prelude"].module.clone().expect("it is a module");
    let names = prelude.names();
    let mut imports = prelude.imports();
    imports.sort();
    for (name, path) in imports {
        let sentence = of(&name, &names[&name]);
        let _ = writeln!(page, "| `{name}` | `{path}` | {sentence} |");
    }
    check("prelude.md", &page);
}

/// What is said of a name, which may be that of a module alone.
fn of(name: &str, named: &Named) -> String {
    let module = || named.module.as_ref().and_then(Module::sentence);
    named.sentence.clone().or_else(module).unwrap_or_else(|| panic!("{name} is public and not documented"))
}

#[test]
fn every_public_name() {
    let mut page = "# All public names\n\nThe modules of `tacit` with the first sentence of what each name is. The documentation of the crate has \
                    signatures, shapes, errors and examples; [Methods](methods.md) has what the types that programs use most can do.\n"
        .to_owned();
    // Of two paths to a module the shorter one counts.
    let mut waiting = VecDeque::from([("tacit".to_owned(), Module::facade())]);
    let (mut seen, mut sections) = (BTreeSet::new(), BTreeMap::new());
    while let Some((path, module)) = waiting.pop_front() {
        // These have their pages.
        if ["tacit::prelude", "tacit::primitives"].contains(&&*path) || !seen.insert(module.place()) {
            continue;
        }
        let mut section = format!("\n## {path}\n\n");
        if let Some(sentence) = module.sentence().filter(|_| path != "tacit") {
            let _ = write!(section, "{sentence}\n\n");
        }
        let _ = writeln!(section, "| | |\n|---|---|");
        let names = module.names();
        for (name, named) in &names {
            let written = named.written.clone().unwrap_or_else(|| format!("{path}::{name}"));
            let _ = writeln!(section, "| `{written}` | {} |", of(name, named));
        }
        let inside = names.into_iter().filter_map(|(name, named)| Some((format!("{path}::{name}"), named.module?)));
        waiting.extend(inside);
        sections.insert(path, section);
    }
    page.extend(sections.into_values());
    check("names.md", &page);
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
            ("model::Apollo", "crates/nn/src"),
            ("io::CheckpointRotation", "crates/io/src"),
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
