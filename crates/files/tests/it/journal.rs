//! Parts that are made one by one: what is found is whole, and what was said to be kept is found, whenever the program ends.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use expect_test::expect;
use tacit_core::{Error, Result};
use tacit_files::faults::{Fault, inject};
use tacit_files::{Journal, Part};

use crate::folder::Folder;

const SAYS: [&str; 3] = ["one", "two", "three"];

/// The bytes of a part.
fn bytes(of: &str, says: &str) -> Vec<u8> {
    format!("{says} of {of}\n").repeat(9).into_bytes()
}

fn open(work: &Path, of: &str) -> Result<(Journal, Vec<(Part, String)>)> {
    Ok(Journal::open(work, of, work)?.expect("nobody works here"))
}

fn append(journal: &mut Journal, of: &str, says: &str) -> Result<Part> {
    journal.append(says, |file| {
        bytes(of, says)
            .chunks(40)
            .try_for_each(|chunk| file.write_all(chunk))
            .map_err(Error::file("write", "part".as_ref()))
    })
}

/// Makes the parts that are not there, and adds those that are kept to `kept`.
fn make(work: &Path, of: &str, kept: &mut Vec<&str>) -> Result<()> {
    let (mut journal, parts) = open(work, of)?;
    for says in SAYS {
        if !parts.iter().any(|(_, other)| other == says) {
            append(&mut journal, of, says)?;
        }
        kept.push(says);
    }
    Ok(())
}

/// What the parts say that are found, each of which is whole.
fn found(work: &Path, of: &str) -> Vec<String> {
    let (journal, parts) = open(work, of).expect("opens");
    let whole = |(part, says): (Part, String)| {
        let segment = fs::read(journal.path(part.segment)).expect("is there");
        assert_eq!(segment[part.bytes.start as usize..part.bytes.end as usize], bytes(of, &says), "{says}");
        says
    };
    parts.into_iter().map(whole).collect()
}

/// The disk is full, or ends, at one operation or from there on, or the machine stops.
const FAULTS: [Fault; 5] =
    [Fault::Fails(28), Fault::Fails(5), Fault::FailsFromHere(28), Fault::FailsFromHere(5), Fault::Stops];

#[test]
fn at_every_operation_what_is_kept_is_found_and_what_is_found_is_whole() {
    let nothing = |_: &Path| {};
    let of_others = |work: &Path| make(work, "others", &mut Vec::new()).expect("is made");
    let some = |work: &Path| {
        let (mut journal, _) = open(work, "these").expect("opens");
        append(&mut journal, "these", "two").expect("is kept");
    };
    let torn = |work: &Path| {
        some(work);
        let text = fs::read(work.join("journal")).expect("reads");
        fs::write(work.join("journal"), [&*text, b"{\"part\":{\"segm"].concat()).expect("writes");
    };
    let mut cases = 0;
    for before in [&nothing as &dyn Fn(&Path), &of_others, &some, &torn] {
        for fault in FAULTS {
            for at in 0.. {
                let folder = Folder::new();
                let work = folder.join("work");
                before(&work);
                let mut kept = Vec::new();
                let (made, steps) = inject(at, fault, || make(&work, "these", &mut kept));
                let what = format!("{fault:?} at {at}: {made:?}");
                let now = found(&work, "these");
                assert!(kept.iter().all(|says| now.iter().any(|now| now == says)), "{what}: {kept:?}, {now:?}");
                // It goes on, and nothing that is not named takes room.
                make(&work, "these", &mut Vec::new()).expect("is made");
                let mut all = found(&work, "these");
                all.sort();
                assert_eq!(all, ["one", "three", "two"], "{what}");
                open(&work, "these").expect("opens").0.remove();
                assert!(folder.raw().is_empty(), "{what}: {:?}", folder.raw());
                cases += 1;
                if steps <= at {
                    assert!(made.is_ok(), "{what}");
                    break;
                }
            }
        }
    }
    assert!(cases > 300, "{cases}");
}

#[test]
fn cut_at_any_byte_a_file_loses_what_lay_behind_it() {
    let folder = Folder::new();
    let work = folder.join("work");
    make(&work, "these", &mut Vec::new()).expect("is made");
    let files = ["journal", "0.segment"].map(|name| (name, fs::read(work.join(name)).expect("reads")));
    let ends: Vec<u64> = open(&work, "these").expect("opens").1.into_iter().map(|(part, _)| part.bytes.end).collect();
    for (cut, whole) in &files {
        for length in 0..=whole.len() {
            let folder = Folder::new();
            let work = folder.join("work");
            fs::create_dir(&work).expect("makes");
            for (name, content) in &files {
                let content = if name == cut { &content[..length] } else { &content[..] };
                fs::write(work.join(name), content).expect("writes");
            }
            let expected = if *cut == "journal" {
                // The first line says what the parts are of.
                whole[..length].split(|&byte| byte == b'\n').skip(2).count()
            } else {
                ends.iter().filter(|&&end| end <= length as u64).count()
            };
            assert_eq!(found(&work, "these"), SAYS[..expected], "{cut} of {length} bytes");
            make(&work, "these", &mut Vec::new()).expect("goes on");
            assert_eq!(found(&work, "these"), SAYS, "{cut} of {length} bytes");
        }
    }
}

/// A line that names lost bytes must not name later ones.
#[test]
fn the_number_of_a_lost_segment_is_not_given_again() {
    let folder = Folder::new();
    let work = folder.join("work");
    make(&work, "these", &mut Vec::new()).expect("is made");
    fs::remove_file(work.join("0.segment")).expect("removes");
    let (mut journal, parts) = open(&work, "these").expect("opens");
    assert!(parts.is_empty());
    assert_eq!(append(&mut journal, "these", "three").expect("is kept").segment, 1);
    drop(journal);
    assert_eq!(found(&work, "these"), ["three"]);
}

#[test]
fn the_parts_of_another_version_stay() {
    let folder = Folder::new();
    let work = folder.join("work");
    make(&work, "these", &mut Vec::new()).expect("is made");
    let journal = work.join("journal");
    let text = fs::read_to_string(&journal).expect("reads");
    let other = text.replacen("[1,", "[2,\"and more\",", 1);
    fs::write(&journal, &other).expect("writes");
    let error = open(&work, "these").expect_err("is of another version");
    expect![[r#"
        FOLDER/work: another version of Tacit began the work there
        help: let that version finish it, or remove the folder to begin anew"#]]
    .assert_eq(&error.to_string().replace(&*folder.to_string_lossy(), "FOLDER"));
    assert_eq!(fs::read_to_string(&journal).expect("reads"), other);
    fs::write(&journal, text).expect("writes");
    assert_eq!(found(&work, "these"), SAYS);
}

#[test]
fn a_part_that_is_not_written_leaves_nothing() {
    let folder = Folder::new();
    let work = folder.join("work");
    let (mut journal, _) = open(&work, "these").expect("opens");
    let fails = |journal: &mut Journal| {
        let half = journal.append("half", |file| {
            file.write_all(b"half").expect("writes");
            Err(Error::invalid("no", "none"))
        });
        half.expect_err("fails");
    };
    fails(&mut journal);
    drop(journal);
    assert!(!work.exists());
    let (mut journal, _) = open(&work, "these").expect("opens");
    let part = append(&mut journal, "these", "one").expect("is kept");
    fails(&mut journal);
    assert_eq!(fs::metadata(journal.path(part.segment)).expect("is there").len(), part.bytes.end);
    append(&mut journal, "these", "two").expect("is kept");
    drop(journal);
    assert_eq!(found(&work, "these"), ["one", "two"]);
}

#[test]
fn one_program_works_there_and_strangers_stay() {
    let folder = Folder::with(&[("mine", "years of work")]);
    let work = folder.join("work");
    let (mut journal, _) = open(&work, "these").expect("opens");
    assert!(Journal::open(&work, "these", &work).expect("no link").is_none());
    append(&mut journal, "these", "one").expect("is kept");
    drop(journal);
    // What has the name of a segment and is none is neither read nor followed.
    fs::remove_file(work.join("0.segment")).expect("removes");
    symlink(folder.join("mine"), work.join("0.segment")).expect("links");
    fs::create_dir(work.join("7.segment")).expect("makes");
    fs::write(work.join("notes"), "mine").expect("writes");
    assert!(found(&work, "these").is_empty());
    make(&work, "these", &mut Vec::new()).expect("is made");
    open(&work, "these").expect("opens").0.remove();
    let names: Vec<_> = fs::read_dir(&work).expect("reads").map(|entry| entry.expect("reads").file_name()).collect();
    assert!(names.len() == 3 && !names.iter().any(|name| name == "0.segment"), "{names:?}");
    assert_eq!(fs::read(folder.join("mine")).expect("reads"), b"years of work");
}
