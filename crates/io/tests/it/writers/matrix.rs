//! The writers in these folders, without faults and with each.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tacit_core::Result;
use tacit_files::faults::{Fault, inject};
use tacit_files::{Current, replace};
use tacit_io::bitsandbytes::{self, BitsAndBytesLayout};
use tacit_io::json::Json;
use tacit_io::mlx_lm::{self, ConfigFile};
use tacit_io::{
    Metadata, Progress, Tensors, Writing, hugging_face, load, mlx_adapter, peft, save, save_with, write_sharded,
};
use tacit_nn::Parameters;

use super::situations::{MINE, copied, goldens, half_made, neighbours, saved_before, strange};
use super::{MODEL, Writer, raw, writers};
use crate::golden::golden;
use crate::scratch::Scratch;

/// Writes as it would be without a fault; the disk itself is left out.
fn written(writer: &Writer, folder: &Path) {
    let (written, _) = inject(usize::MAX, Fault::Stops, || (writer.write)(folder));
    written.unwrap_or_else(|error| panic!("{} in {}: {error}", writer.name, folder.display()));
}

/// What of a folder is there for whoever reads it through what a save that was stopped left.
fn current(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let current = Current::read(folder).expect("reads");
    let mut held: BTreeMap<String, Vec<u8>> = raw(folder).into_iter().filter(|(name, _)| name.contains('/')).collect();
    for name in current.names().expect("reads") {
        let path = current.path(&folder.join(&name));
        held.insert(name, if path.is_dir() { Vec::new() } else { fs::read(path).expect("is there") });
    }
    held.retain(|name, _| !name.starts_with('.'));
    held
}

fn is_its_own(writer: &Writer, name: &str) -> bool {
    writer.files.iter().any(|own| name.starts_with(own))
}

#[test]
fn every_writer_over_every_golden_folder_and_over_itself() {
    let writers = writers();
    for golden in goldens() {
        for writer in &writers {
            let folder = copied(&golden);
            let before = raw(&folder);
            written(writer, &folder);
            (writer.check)(&folder);
            let once = raw(&folder);
            for (name, content) in &before {
                let same = once.get(name) == Some(content) || is_its_own(writer, name);
                assert!(same, "{} in {}: {name}", writer.name, golden.display());
            }
            for name in once.keys() {
                let expected = before.contains_key(name) || is_its_own(writer, name);
                assert!(expected, "{} in {}: {name}", writer.name, golden.display());
            }
            // Whatever is opened of the folder is whole.
            if writer.files.contains(&MODEL) {
                Tensors::open(&*folder).expect("opens");
                let index = folder.join("model.safetensors.index.json");
                if index.exists() {
                    Tensors::open(index).expect("opens");
                }
            }
            written(writer, &folder);
            (writer.check)(&folder);
            written(writer, &folder);
            (writer.check)(&folder);
        }
    }
}

/// Arrays of a file are read when they are used: here, when they are written over it.
#[test]
fn what_is_read_of_a_checkpoint_is_written_over_it() {
    type Over = fn(&Path) -> Result<()>;
    let mlx_lm: Over = |at| mlx_lm::write(at, &mlx_lm::read(at)?, &ConfigFile::read(at)?);
    let shards: Over = |at| hugging_face::write(at.join("model.safetensors"), &hugging_face::read(at)?);
    let bits: Over = |at| {
        bitsandbytes::write(
            at.join("4bit.safetensors"),
            &bitsandbytes::read(at.join("4bit.safetensors"))?,
            BitsAndBytesLayout::default(),
        )
    };
    let mlx_adapter: Over = |at| mlx_adapter::write(at, &mlx_adapter::read(at, &base("mlx_lm/shards")?)?, &config(at)?);
    let peft: Over = |at| peft::write(at, &peft::read(at, &base("peft/base.safetensors")?)?, &config(at)?);
    let cases = [
        ("mlx_lm/uniform", "model.safetensors", mlx_lm),
        ("mlx_lm/mixed", "model.safetensors", mlx_lm),
        ("mlx_lm/grid_float16", "model.safetensors", mlx_lm),
        ("mlx_lm/text_config", "model.safetensors", mlx_lm),
        ("mlx_lm/shards", "", shards),
        ("bitsandbytes", "4bit.safetensors", bits),
        ("mlx_lm/adapters/lora", "adapters.safetensors", mlx_adapter),
        ("peft/lora", "adapter_model.safetensors", peft),
    ];
    for (name, file, write) in cases {
        let folder = copied(&golden(name));
        for _ in 0..2 {
            write(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
            let [ours, theirs] =
                [folder.to_path_buf(), golden(name)].map(|at| Tensors::open(at.join(file)).expect("opens"));
            assert!(ours.names().eq(theirs.names()), "{name}");
            for tensor in theirs.names() {
                assert!(
                    ours.bytes(tensor).expect("is there") == theirs.bytes(tensor).expect("is there"),
                    "{name}: {tensor}"
                );
            }
            for config in ["config.json", "adapter_config.json"] {
                assert_eq!(fs::read(folder.join(config)).ok(), fs::read(golden(name).join(config)).ok(), "{name}");
            }
        }
    }
}

fn config(adapter: &Path) -> Result<Json> {
    Json::open(adapter.join("adapter_config.json"))
}

/// The model that the adapters of a golden folder are for.
fn base(name: &str) -> Result<Parameters> {
    hugging_face::read(golden(name))
}

#[test]
fn a_name_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;

    let folder = Scratch::in_memory();
    let place = folder.join(std::ffi::OsStr::from_bytes(b"\xff.safetensors"));
    let values = Parameters::from([("a".to_owned(), mlx_rs::Array::from_f32(1.0).into())]);
    for _ in 0..2 {
        save(&place, &values).expect("saves");
        assert_eq!(load(&place).expect("loads").len(), 1);
        hugging_face::write(&place, &values).expect_err("it would need an index");
    }
}

/// Arrays take long to write: what cannot come beside them is seen before.
#[test]
fn a_link_beside_the_tensors_is_seen_before_anything_is_written() {
    let folder = Scratch::in_memory();
    let values =
        || vec![("a".to_owned(), mlx_rs::Array::from_f32(1.0)), ("b".to_owned(), mlx_rs::Array::from_f32(2.0))];
    let link = |name: &str| std::os::unix::fs::symlink("elsewhere", folder.join(name)).expect("links");
    link("config.json");
    link("model.safetensors.index.json");
    let parameters: Parameters = values().into_iter().map(|(name, array)| (name, array.into())).collect();
    let config = || ConfigFile::new(Json::parse("{}").expect("JSON"));
    let place = folder.join("model.safetensors");
    let beside = inject(usize::MAX, Fault::Stops, || mlx_lm::write(&*folder, &parameters, &config()));
    let index = inject(usize::MAX, Fault::Stops, || write_sharded(&place, values(), &Metadata::new(), 4));
    for ((written, steps), name) in [(beside, "config.json"), (index, "model.safetensors.index.json")] {
        let error = written.expect_err("is a link").to_string();
        assert!(error.contains(&format!("{name} is a link to elsewhere")), "{error}");
        // The folder is made where there is none, and nothing else is done.
        assert!(steps < 2, "{name}: {steps}");
    }
    assert_eq!(folder.names(), ["config.json", "model.safetensors.index.json"]);
    // Without an index it is nobody's.
    save(&place, &parameters).expect("saves");
}

/// The disk may have room for the old file and a new one, and for no third.
#[test]
fn what_a_killed_save_left_goes_before_the_next_is_written() {
    let folder = Scratch::in_memory();
    let place = folder.join("model.safetensors");
    let values = Parameters::from([("a".to_owned(), mlx_rs::Array::from_f32(1.0).into())]);
    save(&place, &values).expect("saves");
    let hidden = || folder.names().into_iter().filter(|name| name.ends_with(".partial")).collect::<Vec<_>>();
    inject(3, Fault::Stops, || save(&place, &values)).0.expect_err("is stopped");
    let left = hidden();
    assert_eq!(left.len(), 1);
    let mut seen = Vec::new();
    let mut look = |_: Progress| seen = hidden();
    save_with(&place, &values, Writing { progress: Some(&mut look), ..Writing::default() }).expect("saves");
    assert!(seen.len() == 1 && seen != left, "{seen:?}");
    assert_eq!(folder.names(), ["model.safetensors"]);
}

#[test]
fn every_writer_leaves_its_neighbours() {
    for writer in writers() {
        let folder = neighbours();
        let before = raw(&folder);
        for _ in 0..2 {
            written(&writer, &folder);
            (writer.check)(&folder);
        }
        for stem in ["model.2", "model-00001", "models", "model.2.2", "mod", "ckpt", "ckpt.100"] {
            let index = folder.join(format!("{stem}.safetensors.index.json"));
            assert_eq!(Tensors::open(index).expect("opens").names().count(), 2, "{} beside {stem}", writer.name);
        }
        for (name, content) in raw(&folder) {
            let theirs = before.get(&name).is_some_and(|old| *old == content);
            assert!(theirs || is_its_own(&writer, &name), "{}: {name}", writer.name);
        }
    }
}

#[test]
fn no_writer_removes_what_a_strange_index_names() {
    for writer in writers() {
        let folder = strange();
        written(&writer, &folder);
        (writer.check)(&folder);
        for name in MINE {
            assert_eq!(fs::read(folder.join(name)).expect(name), b"years of work", "{}: {name}", writer.name);
        }
    }
}

/// The disk is full at one operation or from there on, or the machine stops.
const FAULTS: [Fault; 3] = [Fault::Fails(28), Fault::FailsFromHere(28), Fault::Stops];

/// Has every operation of every writer fail in each way, in copies of a folder.
fn at_every_operation(folder: &Scratch) {
    let old = current(folder);
    let mut cases = 0;
    for writer in writers() {
        let clean = copied(folder);
        written(&writer, &clean);
        let new = current(&clean);
        for fault in FAULTS {
            for at in 0.. {
                let folder = copied(folder);
                let (saved, steps) = inject(at, fault, || (writer.write)(&folder));
                let what = format!("{}, {fault:?} at {at}, {saved:?}", writer.name);
                let now = current(&folder);
                let names: Vec<String> = raw(&folder).into_keys().collect();
                assert!(now == old || now == new, "{what}: {names:?}");
                assert!(saved.is_err() || now == new, "{what}: it is said to be saved");
                if now == new && now != old {
                    (writer.check)(&folder);
                }
                // The next save there finishes it, and leaves nothing hidden but values that are made.
                inject(usize::MAX, Fault::Stops, || replace(folder.join("next"), b"next")).0.expect("saves");
                let mut after = raw(&folder);
                after.remove("next");
                after.retain(|name, _| !name.starts_with(".model.safetensors.parts"));
                let now: BTreeMap<_, _> =
                    now.into_iter().filter(|(name, _)| !name.starts_with(".model.safetensors.parts")).collect();
                assert!(after == now, "{what}: {:?}", after.keys());
                cases += 1;
                if steps <= at {
                    assert!(saved.is_ok(), "{what}");
                    break;
                }
            }
        }
    }
    assert!(cases > 500, "{cases}");
}

#[test]
fn at_every_operation_an_empty_folder_stays_so_or_is_written() {
    at_every_operation(&Scratch::in_memory());
}

#[test]
fn at_every_operation_a_folder_of_mlx_lm_s_is_the_old_one_or_the_new_one() {
    at_every_operation(&copied(&golden("mlx_lm/uniform")));
}

#[test]
fn at_every_operation_a_checkpoint_of_several_files_is_the_old_one_or_the_new_one() {
    at_every_operation(&copied(&golden("mlx_lm/shards")));
}

#[test]
fn at_every_operation_what_was_saved_before_is_there_or_the_new_one() {
    at_every_operation(&saved_before());
    at_every_operation(&half_made());
}
