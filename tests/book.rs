//! What the book shows is real: its code runs, its outputs are those of the code, its includes and links exist.

#![allow(clippy::duplicate_mod, reason = "each example is a program, and several bring the same data")]

#[path = "../examples/adapters.rs"]
#[allow(dead_code, reason = "its `main` is the example's")]
mod adapters;
#[path = "../examples/array_types.rs"]
mod array_types;
#[path = "../examples/bytes.rs"]
mod bytes;
#[path = "../examples/caches.rs"]
mod caches;
#[path = "../examples/compile_cache.rs"]
mod compile_cache;
#[path = "../examples/compiled_functions.rs"]
mod compiled_functions;
#[path = "../examples/compiled_steps.rs"]
mod compiled_steps;
#[path = "../examples/control_flow.rs"]
mod control_flow;
#[path = "../examples/dispatch.rs"]
mod dispatch;
#[path = "../examples/distributed.rs"]
mod distributed;
#[path = "../examples/executables.rs"]
mod executables;
#[path = "../examples/exercises.rs"]
mod exercises;
#[path = "../examples/families.rs"]
mod families;
#[path = "../examples/first_layer.rs"]
mod first_layer;
#[path = "../examples/how_to.rs"]
mod how_to;
#[path = "../examples/models.rs"]
mod models;
#[path = "../examples/own_array_type.rs"]
mod own_array_type;
#[path = "../examples/own_format.rs"]
mod own_format;
#[path = "../examples/own_kernel.rs"]
mod own_kernel;
#[path = "../examples/qat.rs"]
mod qat;
#[path = "../examples/saving.rs"]
mod saving;
#[path = "../examples/splits.rs"]
mod splits;
#[path = "../examples/straight_through.rs"]
mod straight_through;
#[path = "../examples/trees.rs"]
mod trees;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use expect_test::expect_file;
use tacit::record::Record;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

type Sections<'a> = &'a [(&'a str, fn() -> tacit::Result<String>)];

/// Compares what each section returns with its file under `book/src/output`, and its warnings with another;
/// `UPDATE_EXPECT=1` writes the files.
fn check(example: &str, sections: Sections) {
    let mut warned = BTreeSet::new();
    for (name, section) in sections {
        let log = Log::default();
        let shown = {
            let _guard = tracing_subscriber::fmt()
                .with_writer(log.clone())
                .without_time()
                .with_level(false)
                .with_target(false)
                .with_ansi(false)
                .set_default();
            section().unwrap_or_else(|error| panic!("{example}, {name}: {error}"))
        };
        // This file includes the examples by a path that their readers do not see.
        let shown = shown.replace("tests/../", "");
        let folder = source().join("output").join(example);
        compare(&folder.join(format!("{name}.txt")), &format!("{shown}\n"));
        let warnings = log.text();
        // A chapter shows a warning where it comes first.
        if !warnings.is_empty() && warned.insert(warnings.clone()) {
            compare(&folder.join(format!("{name}.warning.txt")), &warnings);
        }
    }
}

/// Compares a text with a file; lines of Tacit's own sources may have moved.
fn compare(file: &Path, shown: &str) {
    let same = fs::read_to_string(file).is_ok_and(|known| without_lines(&known) == without_lines(shown));
    if !same {
        expect_file![file].assert_eq(shown);
    }
}

/// Compares the words of drawings with those of the files, and leaves the files what they are where these are equal: each machine
/// draws other lines, because training amplifies the last bit of a sum. What the book says of them is asserted instead. Where the
/// lines are to be others, copy what the example draws when it runs alone: memory is the whole process's.
fn compare_words(example: &str, drawings: Vec<(&str, String)>) {
    let words = |svg: &str| -> Vec<String> {
        let texts = svg.split("</text>").filter_map(|text| Some(text.rsplit_once('>')?.1.to_owned()));
        texts.filter(|text| text.parse::<f64>().is_err()).collect()
    };
    for (name, svg) in drawings {
        let file = source().join("output").join(example).join(format!("{name}.svg"));
        if fs::read_to_string(&file).map_or(true, |known| words(&known) != words(&svg)) {
            expect_file![file].assert_eq(&svg);
        }
    }
}

/// The text without the line after each `crates/..rs:`.
fn without_lines(text: &str) -> String {
    let mut pieces = text.split(".rs:");
    let mut made = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let own = made.rsplit([' ', '(']).next().is_some_and(|file| file.starts_with("crates/"));
        made.push_str(".rs:");
        made.push_str(if own { piece.trim_start_matches(|c: char| c.is_ascii_digit()) } else { piece });
    }
    made
}

/// A test of each example of which the book shows nothing but sections.
macro_rules! shown {
    ($($test:ident: $example:ident;)+) => {$(
        #[test]
        fn $test() {
            check(stringify!($example), &$example::SECTIONS);
        }
    )+};
}

shown! {
    the_first_layer_prints_what_the_book_shows: first_layer;
    the_array_types_print_what_the_book_shows: array_types;
    the_caches_print_what_the_book_shows: caches;
    the_compiled_functions_print_what_the_book_shows: compiled_functions;
    branches_and_loops_print_what_the_book_shows: control_flow;
    the_executables_print_what_the_book_shows: executables;
    the_recipes_on_trees_print_what_the_book_shows: trees;
    the_bytes_are_those_that_the_book_shows: bytes;
    dispatch_prints_what_the_book_shows: dispatch;
    the_answers_print_what_the_book_shows: exercises;
    the_saved_files_are_those_that_the_book_shows: saving;
    the_traces_are_counted_as_the_book_shows: compile_cache;
    the_own_array_type_prints_what_the_book_shows: own_array_type;
    the_own_format_prints_what_the_book_shows: own_format;
    the_own_kernel_prints_what_the_book_shows: own_kernel;
    the_families_print_what_the_book_shows: families;
    straight_through_prints_what_the_book_shows: straight_through;
}

#[test]
fn the_recipes_print_what_the_book_shows() {
    // A process warns once, so the program comes after what is shown.
    check("how_to", &how_to::sections());
    how_to::main().unwrap();
}

#[test]
fn the_models_print_what_the_book_shows() {
    check("models", &models::SECTIONS);
    let drawing = models::drawing().unwrap().replace("tests/../", "");
    compare(&source().join("output/models/drawing.svg"), &drawing);
}

#[test]
fn the_compiled_steps_do_what_the_book_shows() {
    check("compiled_steps", &compiled_steps::SECTIONS);
    compiled_steps::main().unwrap();
}

#[test]
fn the_runs_go_well_and_wrong_as_the_book_tells() {
    check("qat", &qat::SECTIONS);
    qat::main().unwrap();
    let folder = Path::new(qat::FOLDER);
    compare_words("qat", qat::drawings(folder).unwrap());
    let right = |name: &str| qat::right(folder, name).unwrap();
    let aware = right("aware");
    assert!(right("float") > 94.0 && aware > right("float") - 2.0, "{aware}");
    assert!(right("too fast") < aware - 5.0 && right("stale scales") < aware - 4.0);
    let [fine, coarse] = ["blocks of 32", "blocks of 64"].map(right);
    assert!(fine > 94.0 && coarse < fine - 3.0, "{fine} {coarse}");
    let loss = |name: &str| {
        let record = Record::read(folder.join(format!("{name}.jsonl"))).unwrap();
        record.scalar("loss").unwrap().means(30).last().unwrap()
    };
    assert!(loss("too slow") > 1.3 * loss("aware") && loss("stale scales") > 5.0 * loss("aware"));
    let scale = |name: &str| {
        let record = Record::read(folder.join(format!("{name}.jsonl"))).unwrap();
        let scales = record.histogram("scales/layers.0.weight").unwrap();
        scales.values().map(|histogram| histogram.quantile(0.5).unwrap()).collect::<Vec<f64>>()
    };
    let (trained, stale) = (scale("aware"), scale("stale scales"));
    assert!(stale.iter().all(|&scale| scale < trained[0] / 2.0 && scale.to_bits() == stale[0].to_bits()));
    let outputs = |name: &str| {
        let record = Record::read(folder.join(format!("{name}.jsonl"))).unwrap();
        ["weights/layers.0", "outputs/layers.0"].map(|error| record.scalar(error).unwrap().last().unwrap())
    };
    let ([of_weight, of_output], [coarse_weight, coarse_output]) = (outputs("blocks of 32"), outputs("blocks of 64"));
    assert!(coarse_weight < 1.2 * of_weight && coarse_output > 2.0 * of_output);
}

#[test]
fn the_adapters_learn_and_merge_as_the_book_tells() {
    check("adapters", &adapters::SECTIONS);
    let folder = Path::new(adapters::FOLDER);
    let told = adapters::run(folder).unwrap();
    compare_words("adapters", adapters::drawings(folder).unwrap());
    assert!(told.base < 30.0 && told.adapted.iter().all(|&right| right > 70.0), "{told:?}");
    let [eight, four, as_stored] = told.merged[..] else { panic!("{told:?}") };
    assert!((eight - told.adapted[0]).abs() < 3.0 && four < told.adapted[0] - 0.5, "{told:?}");
    let record = Record::read(folder.join("beside.jsonl")).unwrap();
    let lost = |into: &str| record.scalar(&format!("{into}/layers.0.weight")).unwrap().last().unwrap();
    assert!(lost("the 4 bits of the base") > 5.0 * lost("8 bits"));
    // Merged is what was trained, bit for bit.
    assert!((as_stored - told.adapted[1]).abs() < 1e-9, "{told:?}");
}

#[test]
fn two_ranks_print_what_the_book_shows() {
    let folder = std::env::temp_dir().join(format!("tacit-book-ranks-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    // This program again, for one of its tests.
    let shown = distributed::on_two_ranks(&folder, || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_rank_of_the_chapter"]).env(RANK, &folder).stdout(Stdio::null());
        command
    });
    fs::remove_dir_all(&folder).unwrap();
    for ((name, _), [first, second]) in distributed::SECTIONS.iter().zip(shown.unwrap()) {
        let shown = if first == second { first } else { format!("{first}\n{second}") };
        let file = source().join(format!("output/distributed/{name}.txt"));
        compare(&file, &format!("{}\n", shown.replace("tests/../", "")));
    }
}

/// Where a rank of the chapter puts what it shows.
const RANK: &str = "TACIT_BOOK_RANK";

/// Does something only where the test above starts it.
#[test]
fn a_rank_of_the_chapter() {
    if let Some(folder) = std::env::var_os(RANK) {
        distributed::rank(Path::new(&folder)).unwrap();
    }
}

#[test]
fn the_splits_cost_what_the_book_shows() {
    check("splits", &splits::SECTIONS);
    compare(&source().join("output/splits/drawing.svg"), &splits::drawing().unwrap());
}

#[test]
fn training_with_the_quantization_in_place_is_better_than_quantizing_afterwards() {
    let errors = straight_through::compared().unwrap();
    assert!(10.0 * errors.float32 < errors.quantized_after_training, "{errors:?}");
    assert!(2.0 * errors.quantization_aware < errors.quantized_after_training, "{errors:?}");
}

#[test]
fn every_example_of_the_book_runs_as_a_program() {
    array_types::main().unwrap();
    bytes::main().unwrap();
    compile_cache::main().unwrap();
    caches::main().unwrap();
    compiled_functions::main().unwrap();
    dispatch::main().unwrap();
    exercises::main().unwrap();
    families::main().unwrap();
    first_layer::main().unwrap();
    models::main().unwrap();
    own_array_type::main().unwrap();
    own_format::main().unwrap();
    own_kernel::main().unwrap();
    saving::main().unwrap();
    splits::main().unwrap();
    straight_through::main().unwrap();
}

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
        .filter(|file| !file.ends_with("tests/book.rs"))
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

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src")
}

/// The Markdown files of the book with their text.
fn chapters() -> Vec<(PathBuf, String)> {
    files(&source(), "md").into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Those that are written by hand: what is made from the program itself has a test of its own.
fn written() -> impl Iterator<Item = (PathBuf, String)> {
    let made = source().join("reference");
    chapters().into_iter().filter(move |(path, _)| !path.starts_with(&made))
}

/// Tables without their first column, which is what other projects call a thing.
fn without_first_cells(text: &str) -> String {
    let rest = |line: &str| line.strip_prefix("| ").and_then(|row| Some(row.split_once(" | ")?.1.to_owned()));
    text.lines().map(|line| rest(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

/// The files under a folder with this extension, at any depth, in order.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
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
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split(close).next())
}

/// The identifiers in a text.
fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
        .map(str::to_owned)
        .collect()
}

/// What a subscriber of `tracing` writes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).trim_start().to_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
