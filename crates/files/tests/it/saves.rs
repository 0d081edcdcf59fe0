//! What a save finds in its folder: other saves, what is left of them, and strangers.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Barrier;
use std::thread;

use expect_test::expect;
use tacit_files::faults::{Fault, inject};
use tacit_files::{Commit, Current, Staged, current, replace};

use crate::folder::{Folder, held};

fn pair(folder: &Folder, text: &str) -> tacit_core::Result<()> {
    let mut commit = Commit::begin(folder)?;
    commit.place_content("tensors", text.as_bytes())?;
    commit.place_last("config.json", text.as_bytes())?;
    commit.finish()
}

#[test]
fn saves_at_once_leave_one_of_them() {
    let folder = Folder::new();
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for writer in 0..4 {
            let (folder, barrier) = (&folder, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..8 {
                    pair(folder, &format!("{writer}.{round}")).expect("saves");
                }
            });
        }
    });
    let held = folder.raw();
    assert_eq!(held["tensors"], held["config.json"]);
    assert_eq!(held.len(), 2, "{held:?}");
}

#[test]
fn only_what_dead_saves_left_goes() {
    let folder = Folder::with(&[("a", "old")]);
    // One that was killed.
    inject(3, Fault::Stops, || replace(folder.join("a"), b"new")).0.expect_err("is stopped");
    // One that lives, and names that only look alike.
    let mut alive = Staged::beside(&folder.join("a")).expect("begins");
    alive.write_all(b"alive").expect("writes");
    for name in [".tacit-notes.partial", ".a.partial", ".tacit-00000000-00000000000000.partial"] {
        fs::write(folder.join(name), "mine").expect("writes");
    }
    fs::create_dir(folder.join(".tacit-11111111-11111111111111.partial")).expect("makes");
    symlink("a", folder.join(".tacit-22222222-22222222222222.partial")).expect("links");
    let before = folder.raw().len();
    replace(folder.join("b"), b"b").expect("saves");
    let after = folder.raw();
    assert_eq!(after.len(), before, "one came, one went: {after:?}");
    let mut commit = Commit::begin(&folder).expect("begins");
    commit.place(alive, "a").expect("is alive");
    commit.finish().expect("saves");
    assert_eq!(fs::read(folder.join("a")).expect("reads"), b"alive");
}

#[test]
fn a_file_keeps_who_may_read_it() {
    let folder = Folder::with(&[("a", "old")]);
    fs::set_permissions(folder.join("a"), fs::Permissions::from_mode(0o400)).expect("is ours");
    replace(folder.join("a"), b"new").expect("saves");
    let mode = |name: &str| fs::metadata(folder.join(name)).expect("is there").permissions().mode() & 0o777;
    assert_eq!((mode("a"), fs::read(folder.join("a")).expect("reads")), (0o400, b"new".to_vec()));
    // A new one is as any other program would make it.
    replace(folder.join("b"), b"new").expect("saves");
    File::create(folder.join("c")).expect("makes");
    assert_eq!(mode("b"), mode("c"));
}

/// Stops a save of a pair when its record is there, and nothing has its name.
fn interrupted() -> Folder {
    for at in 0.. {
        let folder = Folder::with(&[("tensors", "old"), ("config.json", "old")]);
        inject(at, Fault::Stops, || pair(&folder, "new")).0.expect_err("is stopped");
        if folder.raw().contains_key(".tacit-save.json") {
            return folder;
        }
    }
    unreachable!("some operation puts the record there")
}

#[test]
fn a_copy_of_a_folder_is_read_as_it_is_and_not_finished() {
    let folder = interrupted();
    let copy = Folder::new();
    for (name, content) in folder.raw() {
        fs::write(copy.join(name), content).expect("writes");
    }
    assert_eq!(copy.current(), held(&[("tensors", "new"), ("config.json", "new")]));
    let error = pair(&copy, "newer").expect_err("is not ours");
    expect![[r#"
        FOLDER/.tacit-save.json: it records a save that was interrupted in another folder, of which this is a copy
        help: open what is here and save it into another folder, or remove this file, and what is read is what the files are named"#]]
    .assert_eq(&copy.message(&error));
    assert_eq!(copy.current(), held(&[("tensors", "new"), ("config.json", "new")]));
    // Where it was interrupted the next save finishes it.
    replace(folder.join("more"), b"more").expect("saves");
    assert_eq!(folder.raw(), held(&[("tensors", "new"), ("config.json", "new"), ("more", "more")]));
}

#[test]
fn a_record_that_no_save_wrote_is_refused() {
    let hidden = ".tacit-00000000-00000000000000.partial";
    let folder = Folder::with(&[("thesis.txt", "years"), ("config.json", "old"), (hidden, "evil")]);
    let moved = |to: &str, removed: &str| {
        format!(
            r#"{{"version":1,"files":[{{"from":"{hidden}","to":"{to}","last":false,"inode":1,"bytes":4,"modified":[0,0]}}],"removed":["{removed}"]}}"#
        )
    };
    let said = |record: &str| {
        fs::write(folder.join(".tacit-save.json"), record).expect("writes");
        let read = Current::of(&folder).err().or(pair(&folder, "new").err());
        folder.message(&read.expect("is refused"))
    };
    let help = "\nhelp: remove it if no save of Tacit's was interrupted here";
    let mut messages = String::new();
    for record in [
        "",
        "[]",
        &moved("../x", "a"),
        &moved("a", "sub/deep.txt"),
        &moved(".tacit-save.json", "a"),
        &moved("a", "/etc/passwd"),
    ] {
        messages += &said(record).replace(help, "\n");
    }
    messages += &said(r#"{"version":2,"files":[],"removed":[]}"#);
    messages += "\n";
    // The names are such as a save has, and the files are not those that one wrote here.
    messages += &said(&moved("config.json", "thesis.txt"));
    expect![[r#"
        FOLDER/.tacit-save.json: it is no record of a save: EOF while parsing a value at line 1 column 0
        FOLDER/.tacit-save.json: it is no record of a save: invalid length 0, expected what a save wrote at line 1 column 2
        FOLDER/.tacit-save.json: it names "../x", which no save does
        FOLDER/.tacit-save.json: it names "sub/deep.txt", which no save does
        FOLDER/.tacit-save.json: it names ".tacit-save.json", which no save does
        FOLDER/.tacit-save.json: it names "/etc/passwd", which no save does
        FOLDER/.tacit-save.json: it has version 2 of records of saves, and this program reads 1
        help: use a newer Tacit
        FOLDER/.tacit-save.json: it records a save that was interrupted in another folder, of which this is a copy
        help: open what is here and save it into another folder, or remove this file, and what is read is what the files are named"#]]
    .assert_eq(&messages);
    assert_eq!(fs::read(folder.join("thesis.txt")).expect("is there"), b"years");
    assert_eq!(fs::read(folder.join("config.json")).expect("is there"), b"old");
}

#[test]
fn where_a_file_is_is_told() {
    let folder = interrupted();
    assert_eq!(fs::read(current(&folder.join("tensors")).expect("reads")).expect("is there"), b"new");
    assert_eq!(current(&folder.join("absent")).expect("reads"), folder.join("absent"));
    assert_eq!(Current::of(&folder).expect("reads").names().expect("reads"), ["config.json", "tensors"]);
}
