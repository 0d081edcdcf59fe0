//! What a save finds in its folder: other saves, what is left of them, and strangers.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use expect_test::expect;
use tacit_files::faults::{Fault, inject};
use tacit_files::{Commit, Current, Output, Staged, current, current_if_there, replace};

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

/// The disk may have room for the old file and a new one, and for no third.
#[test]
fn what_a_killed_save_left_goes_before_the_next_is_written() {
    let folder = Folder::with(&[("a", "old")]);
    inject(3, Fault::Stops, || replace(folder.join("a"), b"new")).0.expect_err("is stopped");
    let left = on_their_way(&folder);
    assert_eq!(left.len(), 1);
    let output = Output::create(folder.join("a")).expect("begins");
    let now = on_their_way(&folder);
    assert!(now.len() == 1 && now != left, "{now:?}");
    drop(output);
    assert_eq!(folder.raw(), held(&[("a", "old")]));
}

/// It has the folder only while it gives the file its name.
#[test]
fn what_is_written_waits_for_no_other_save() {
    let folder = Folder::with(&[("a", "old")]);
    let begin = Instant::now();
    let other = Commit::begin(&folder).expect("begins");
    let mut output = Output::create(folder.join("a")).expect("waits for nobody");
    output.write_all(b"new").expect("writes");
    assert!(begin.elapsed() < Duration::from_secs(10));
    // What dies meanwhile goes with the next save.
    let left = ".tacit-11111111-11111111111111.partial";
    let dead = File::create(folder.join(left)).expect("makes");
    dead.set_modified(SystemTime::now() - Duration::from_hours(48)).expect("is ours");
    drop((other, dead));
    output.finish().expect("saves");
    assert_eq!(folder.raw(), held(&[("a", "new"), (left, "")]));
    replace(folder.join("a"), b"newer").expect("saves");
    assert_eq!(folder.raw(), held(&[("a", "newer")]));
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

/// Stops a save in a folder of these files when its record is there, and nothing has its name.
fn stopped(before: &[(&str, &str)], save: impl Fn(&Folder) -> tacit_core::Result<()>) -> Folder {
    for at in 0.. {
        let folder = Folder::with(before);
        inject(at, Fault::Stops, || save(&folder)).0.expect_err("is stopped");
        if folder.raw().contains_key(".tacit-save.json") {
            return folder;
        }
    }
    unreachable!("some operation puts the record there")
}

fn interrupted() -> Folder {
    stopped(&[("tensors", "old"), ("config.json", "old")], |folder| pair(folder, "new"))
}

#[test]
fn what_a_killed_save_was_to_remove_is_not_there() {
    let folder = stopped(&[("a", "old"), ("b", "old"), ("c", "old")], |folder| {
        let mut commit = Commit::begin(folder)?;
        commit.place_content("a", b"new")?;
        commit.remove("b");
        commit.finish()
    });
    let read = |name: &str| {
        let at = current_if_there(&folder.join(name)).expect("looks");
        at.map(|at| fs::read(at).expect("is there"))
    };
    assert_eq!(["a", "b", "c", "d"].map(read), [Some(b"new".to_vec()), None, Some(b"old".to_vec()), None]);
    assert!(folder.join("b").is_file());
}

#[test]
fn what_is_gone_before_it_has_its_name_is_an_error() {
    let (folder, other) = (Folder::with(&[("a", "old"), ("b", "old")]), Folder::new());
    let staged = |folder: &Folder| {
        let mut staged = Staged::beside(&folder.join("a")).expect("begins");
        staged.write_all(b"new").expect("writes");
        staged
    };
    let (gone, elsewhere) = (staged(&folder), staged(&other));
    for name in folder.raw().keys().filter(|name| name.starts_with('.')) {
        fs::remove_file(folder.join(name)).expect("is there");
    }
    let mut said = String::new();
    for (lost, name) in [(gone, "a"), (elsewhere, "b")] {
        let mut commit = Commit::begin(&folder).expect("begins");
        commit.place_content("c", b"new").expect("is written");
        said += &folder.message(&commit.place(lost, name).expect_err("is lost"));
        said += "\n";
    }
    expect![[r#"
        FOLDER/a: what was written for it is gone, or in another folder
        help: save it again, and let nothing remove hidden files
        FOLDER/b: what was written for it is gone, or in another folder
        help: save it again, and let nothing remove hidden files
    "#]]
    .assert_eq(&said);
    assert_eq!(folder.raw(), held(&[("a", "old"), ("b", "old")]));
}

/// A new file is not locked yet when another save may look at it.
#[test]
fn what_is_just_made_is_not_taken_for_a_leftover() {
    let folder = Folder::new();
    let (barrier, made) = (Barrier::new(4), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                barrier.wait();
                while !made.load(Ordering::Relaxed) {
                    drop(Commit::begin(&folder).expect("begins"));
                }
            });
        }
        barrier.wait();
        let mut lost = 0;
        for round in 0..2000 {
            let name = format!("a{}", round % 4);
            let mut staged = Staged::beside(&folder.join(&name)).expect("begins");
            staged.write_all(b"new").expect("writes");
            lost += usize::from(!folder.raw().keys().any(|name| name.starts_with('.')));
        }
        made.store(true, Ordering::Relaxed);
        assert_eq!(lost, 0);
    });
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
        FOLDER/.tacit-save.json: files of the save that it records are gone, or are others: this is a copy, or something changed them
        help: open what is here and save it into another folder, or remove this file, and what is read is what the files are named"#]]
    .assert_eq(&copy.message(&error));
    // What the record does not name is written all the same, and leaves what it names.
    replace(copy.join("other"), b"other").expect("saves");
    let error = replace(copy.join("tensors"), b"newer").expect_err("is not ours");
    assert!(error.to_string().contains("this is a copy"), "{error}");
    let several = || {
        let mut commit = Commit::begin(&copy)?;
        commit.place_content("more", b"more")?;
        commit.place_content("still more", b"more")?;
        commit.finish()
    };
    several().expect_err("there is one record");
    assert_eq!(copy.current(), held(&[("tensors", "new"), ("config.json", "new"), ("other", "other")]));
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
            r#"{{"version":1,"files":[{{"from":"{hidden}","to":"{to}","last":false,"inode":1,"bytes":4,"modified":[0,0]}}],"removed":[{{"name":"{removed}","inode":1,"bytes":5,"modified":[0,0]}}]}}"#
        )
    };
    let said = |record: &str| {
        fs::write(folder.join(".tacit-save.json"), record).expect("writes");
        let read = Current::read(&folder).err().or(pair(&folder, "new").err());
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
        FOLDER/.tacit-save.json: files of the save that it records are gone, or are others: this is a copy, or something changed them
        help: open what is here and save it into another folder, or remove this file, and what is read is what the files are named"#]]
    .assert_eq(&messages);
    assert_eq!(fs::read(folder.join("thesis.txt")).expect("is there"), b"years");
    assert_eq!(fs::read(folder.join("config.json")).expect("is there"), b"old");
}

/// In a folder that everybody shares, nobody says what becomes of the files of others. Only root can make files of others.
#[test]
fn a_record_of_files_of_another_user_is_passed_over() {
    const STRANGER: u32 = 54_321;
    for (all, text) in [(false, "old"), (true, "new")] {
        let folder = interrupted();
        fs::set_permissions(&*folder, fs::Permissions::from_mode(0o1777)).expect("is ours");
        let named = if all { folder.raw().into_keys().collect() } else { vec![".tacit-save.json".to_owned()] };
        if named.iter().any(|name| chown(folder.join(name), Some(STRANGER), None).is_err()) {
            return;
        }
        let files = [("tensors", text), ("config.json", text)];
        assert_eq!(folder.current(), held(&files));
        replace(folder.join("more"), b"more").expect("saves");
        assert_eq!(folder.current(), held(&[&files[..], &[("more", "more")]].concat()));
        pair(&folder, "newer").expect("saves");
        assert_eq!(folder.raw(), held(&[("tensors", "newer"), ("config.json", "newer"), ("more", "more")]));
    }
}

/// Where the record says that files are on their way, the names that they were given.
fn on_their_way(folder: &Folder) -> Vec<String> {
    folder.raw().into_keys().filter(|name| name.ends_with(".partial")).collect()
}

#[test]
fn a_save_of_which_a_file_is_lost_is_neither_read_nor_finished() {
    let folder = interrupted();
    let tensors = current(&folder.join("tensors")).expect("reads");
    fs::remove_file(tensors).expect("is there");
    let before = folder.raw();
    let read = folder.message(&Current::read(&folder).expect_err("is not whole"));
    expect![[r#"
        FOLDER/.tacit-save.json: files of the save that it records are gone, or are others: this is a copy, or something changed them
        help: open what is here and save it into another folder, or remove this file, and what is read is what the files are named"#]]
    .assert_eq(&read);
    assert_eq!(folder.message(&pair(&folder, "newer").expect_err("is not whole")), read);
    assert_eq!(folder.raw(), before, "nothing of the old pair is gone");
}

#[test]
fn a_record_of_which_nothing_is_left_to_be_done_goes() {
    let folder = interrupted();
    for name in ["tensors", "config.json"] {
        let from = current(&folder.join(name)).expect("reads");
        fs::rename(from, folder.join(name)).expect("has its name");
    }
    // By somebody who knows nothing of records.
    fs::write(folder.join("config.json"), "edited").expect("writes");
    assert_eq!(folder.current(), held(&[("tensors", "new"), ("config.json", "edited")]));
    replace(folder.join("more"), b"more").expect("saves");
    assert_eq!(folder.raw(), held(&[("tensors", "new"), ("config.json", "edited"), ("more", "more")]));
}

#[test]
fn a_file_that_came_after_the_save_stays() {
    let save = |folder: &Folder| {
        let mut commit = Commit::begin(folder)?;
        commit.place_content("index", b"new")?;
        for name in ["shard", "other", "absent", "folder"] {
            commit.remove(name);
        }
        commit.finish()
    };
    let folder = stopped(&[("shard", "old"), ("other", "old")], |folder| {
        fs::create_dir(folder.join("folder")).expect("makes");
        save(folder)
    });
    assert_eq!(on_their_way(&folder).len(), 1);
    fs::write(folder.join("shard"), "of another program").expect("writes");
    fs::write(folder.join("absent"), "came later").expect("writes");
    replace(folder.join("more"), b"more").expect("saves");
    assert!(folder.join("folder").is_dir(), "a folder is no file that a save removes");
    fs::remove_dir(folder.join("folder")).expect("is empty");
    let expected = [("index", "new"), ("shard", "of another program"), ("absent", "came later"), ("more", "more")];
    assert_eq!(folder.raw(), held(&expected));
}

#[test]
fn what_only_goes_goes() {
    let folder = Folder::with(&[("a", "old"), ("b", "old")]);
    let mut commit = Commit::begin(&folder).expect("begins");
    commit.remove("a");
    commit.finish().expect("removes");
    assert_eq!(folder.raw(), held(&[("b", "old")]));
}

/// Nothing waits twice for the disk.
#[test]
fn what_is_on_the_disk_is_not_brought_there_again() {
    let folder = Folder::new();
    let steps = |written: &dyn Fn(&mut Staged)| {
        let save = || {
            let mut staged = Staged::beside(&folder.join("a")).expect("begins");
            written(&mut staged);
            let mut commit = Commit::begin(&folder).expect("begins");
            commit.place(staged, "a").expect("is there");
            commit.finish().expect("saves");
        };
        inject(usize::MAX, Fault::Stops, save).1
    };
    let once = steps(&|_| {});
    assert_eq!(steps(&|staged| staged.sync().expect("syncs")), once);
    let written_after = |staged: &mut Staged| {
        staged.sync().expect("syncs");
        staged.write_all(b"more").expect("writes");
    };
    assert_eq!(steps(&written_after), once + 2, "a write, and the disk again");
}

#[test]
fn where_a_file_is_is_told() {
    let folder = interrupted();
    assert_eq!(fs::read(current(&folder.join("tensors")).expect("reads")).expect("is there"), b"new");
    assert_eq!(current(&folder.join("absent")).expect("reads"), folder.join("absent"));
    assert_eq!(Current::read(&folder).expect("reads").names().expect("reads"), ["config.json", "tensors"]);
}
