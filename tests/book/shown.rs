//! The examples run, and print and draw what the book shows.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tacit::record::Record;

use crate::output::{check, compare, compare_words, in_examples};
use crate::source::source;
use crate::{
    adapters, array_types, bytes, caches, compile_cache, compiled_functions, compiled_steps, control_flow, dispatch,
    distributed, executables, exercises, families, first_layer, how_to, models, own_array_type, own_format, own_kernel,
    qat, saving, splits, straight_through, trees,
};

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
    let drawing = in_examples(&models::drawing().unwrap());
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
        command.args(["--exact", "shown::a_rank_of_the_chapter"]).env(RANK, &folder).stdout(Stdio::null());
        command
    });
    fs::remove_dir_all(&folder).unwrap();
    for ((name, _), [first, second]) in distributed::SECTIONS.iter().zip(shown.unwrap()) {
        let shown = if first == second { first } else { format!("{first}\n{second}") };
        let file = source().join(format!("output/distributed/{name}.txt"));
        compare(&file, &format!("{}\n", in_examples(&shown)));
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
