//! At every operation in turn: it fails, all fail from there on, the machine stops.

use std::io::Write;
use std::path::Path;

use tacit_core::{Error, Result};
use tacit_files::faults::{Fault, inject};
use tacit_files::{Commit, Staged, replace};

use crate::folder::{Folder, Held, held};

const OLD: [(&str, &str); 5] = [
    ("config.json", "4:64"),
    ("model.safetensors", "codes of 4:64"),
    ("model-00001-of-00002.safetensors", "a part"),
    ("thesis.txt", "years of work"),
    ("other.safetensors", "another model"),
];
const NEW: [(&str, &str); 5] = [
    ("config.json", "8:32"),
    ("model.safetensors", "codes of 8:32"),
    ("model.safetensors.index.json", "an index"),
    ("thesis.txt", "years of work"),
    ("other.safetensors", "another model"),
];

/// No space, an error of the disk, a file system that may not be written.
const FAULTS: [Fault; 7] = [
    Fault::Fails(28),
    Fault::Fails(5),
    Fault::Fails(13),
    Fault::FailsFromHere(28),
    Fault::FailsFromHere(5),
    Fault::FailsFromHere(30),
    Fault::Stops,
];

fn save(folder: &Path) -> Result<()> {
    let place = folder.join("model.safetensors");
    let mut tensors = Staged::beside(&place)?;
    for part in ["codes", " of ", "8:32"] {
        tensors.write_all(part.as_bytes()).map_err(Error::file("write", &place))?;
    }
    let mut commit = Commit::begin(folder)?;
    commit.place_last("config.json", b"8:32")?;
    commit.place(tensors, "model.safetensors")?;
    commit.place_content("model.safetensors.index.json", b"an index")?;
    commit.remove("model-00001-of-00002.safetensors");
    commit.remove("model.safetensors");
    commit.finish()
}

/// Has each operation of `save` fail in each way, and checks that the folder is the old one or the new one.
fn at_every_operation(
    old: &Held,
    new: &Held,
    before: impl Fn() -> Folder,
    save: impl Fn(&Path) -> Result<()>,
) -> usize {
    let mut cases = 0;
    for fault in FAULTS {
        for at in 0.. {
            let folder = before();
            let (saved, steps) = inject(at, fault, || save(&folder));
            let what = format!("{fault:?} at {at}: {saved:?}");
            let now = folder.current();
            assert!(now == *old || now == *new, "{what}: {:?}", folder.raw());
            assert!(saved.is_err() || now == *new, "{what}: it is said to be saved");
            // Other programs find the old pair, the new one, or none.
            let raw = folder.raw();
            if let (Some(config), Some(tensors)) = (raw.get("config.json"), raw.get("model.safetensors")) {
                assert!(tensors.ends_with(config), "{what}: {raw:?}");
            }
            // The next save, of something else, finishes this one and leaves nothing hidden.
            inject(usize::MAX, Fault::Stops, || replace(folder.join("next"), b"next")).0.expect("saves");
            let mut raw = folder.raw();
            assert_eq!(raw.remove("next").as_deref(), Some(&b"next"[..]), "{what}");
            assert!(raw == now, "{what}: {raw:?}");
            cases += 1;
            if steps <= at {
                assert!(saved.is_ok(), "{what}");
                break;
            }
        }
    }
    cases
}

#[test]
fn a_set_of_files_is_the_old_one_or_the_new_one() {
    let cases = at_every_operation(&held(&OLD), &held(&NEW), || Folder::with(&OLD), save);
    assert!(cases > 7 * 20, "{cases}");
}

#[test]
fn a_set_of_files_appears_whole_where_nothing_was() {
    let new = held(&NEW[..3]);
    at_every_operation(&Held::new(), &new, Folder::new, save);
}

#[test]
fn one_file_is_the_old_one_or_the_new_one() {
    let old = {
        let mut old = held(&OLD);
        old.remove("config.json");
        old
    };
    let mut new_alone = old.clone();
    new_alone.insert("model.safetensors".to_owned(), b"new".to_vec());
    let before = || {
        let folder = Folder::with(&OLD);
        std::fs::remove_file(folder.join("config.json")).expect("is ours");
        folder
    };
    at_every_operation(&old, &new_alone, before, |folder| replace(folder.join("model.safetensors"), b"new"));
}

/// What the machine leaves at a second stop, while the next save finishes the first, is finished by the third.
#[test]
fn what_finishes_a_save_may_be_stopped_too() {
    let (old, new) = (held(&OLD), held(&NEW));
    let mut stopped = 0;
    for first in 0.. {
        let probe = Folder::with(&OLD);
        let (_, steps) = inject(first, Fault::Stops, || save(&probe));
        let committed = probe.current() == new;
        for second in 0.. {
            let folder = Folder::with(&OLD);
            inject(first, Fault::Stops, || save(&folder)).0.ok();
            let (saved, steps) = inject(second, Fault::Stops, || replace(folder.join("next"), b"next"));
            let expected = if committed { &new } else { &old };
            let mut now = folder.current();
            now.remove("next");
            assert!(now == *expected, "{first}, {second}: {:?}", folder.raw());
            inject(usize::MAX, Fault::Stops, || replace(folder.join("third"), b"3")).0.expect("saves");
            let mut raw = folder.raw();
            assert_eq!(raw.remove("third").as_deref(), Some(&b"3"[..]), "{first}, {second}");
            assert!(raw.remove("next").is_some() || saved.is_err(), "{first}, {second}: {raw:?}");
            assert!(raw == *expected, "{first}, {second}: {raw:?}");
            stopped += 1;
            if steps <= second {
                assert!(saved.is_ok());
                break;
            }
        }
        if steps <= first {
            break;
        }
    }
    assert!(stopped > 100, "{stopped}");
}
