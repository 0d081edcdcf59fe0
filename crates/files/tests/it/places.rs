//! What is at the place of a file.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;

use expect_test::expect;
use tacit_files::{Commit, Place, Staged, make_folder, replace};

use crate::folder::Folder;

#[test]
fn only_regular_files_are_replaced() {
    let folder = Folder::with(&[("file", "old")]);
    fs::create_dir(folder.join("folder")).expect("makes");
    symlink("file", folder.join("link")).expect("links");
    symlink("nothing", folder.join("dangling")).expect("links");
    let before = folder.raw();
    let mut said = String::new();
    for name in ["folder", "link", "dangling", "no/folder", "file/in", ".."] {
        let error = replace(folder.join(name), b"new").expect_err(name);
        said += &folder.message(&error);
        said.push('\n');
        if name.bytes().all(|byte| byte.is_ascii_lowercase()) {
            let mut commit = Commit::begin(&folder).expect("begins");
            let staged = Staged::beside(&folder.join(name)).expect("begins");
            assert_eq!(commit.place(staged, name).expect_err(name).to_string(), error.to_string());
        }
    }
    expect![[r#"
        FOLDER/folder is a folder
        help: name a file in it
        FOLDER/link is a link to file, and links are not replaced
        help: name the file itself
        FOLDER/dangling is a link to nothing, and links are not replaced
        help: name the file itself
        cannot write FOLDER/no/folder: No such file or directory (os error 2)
        cannot write FOLDER/file/in: Not a directory (os error 20)
        FOLDER/.. is a folder
        help: name a file in it
    "#]]
    .assert_eq(&said);
    assert_eq!(folder.raw(), before);
    assert!(fs::symlink_metadata(folder.join("link")).expect("is there").is_symlink());
}

/// What is refused is the file that was named, and not the hidden one on its way.
#[test]
fn where_nothing_can_be_made_the_place_is_named() {
    // Nobody makes a file among the processes, whatever they may.
    let error = Staged::beside(Path::new("/proc/a")).expect_err("nobody does");
    expect!["cannot write /proc/a: No such file or directory (os error 2)"].assert_eq(&error.to_string());
}

#[test]
fn a_device_is_given_the_bytes_and_stays_one() {
    replace("/dev/null", b"nothing").expect("takes it");
    assert!(fs::symlink_metadata("/dev/null").expect("is there").file_type().is_char_device());
    assert_eq!(Place::at(Path::new("/dev/stdout")).expect("is open"), Place::Stream);
}

#[test]
fn what_is_open_is_written_behind_what_it_holds() {
    let folder = Folder::new();
    let mut file = fs::File::create(folder.join("open")).expect("makes");
    file.write_all(b"a header, ").expect("writes");
    replace(format!("/dev/fd/{}", file.as_raw_fd()), b"and the rest").expect("is written");
    assert_eq!(fs::read(folder.join("open")).expect("reads"), b"a header, and the rest");
}

#[test]
fn folders_are_made_with_those_that_they_are_in_and_go_where_nothing_came() {
    let folder = Folder::new();
    let new = make_folder(&folder.join("a/b/c")).expect("makes");
    drop(make_folder(&folder.join("a/b/c")).expect("is there"));
    replace(folder.join("a/b/file"), b"new").expect("writes");
    assert!(folder.join("a/b/c").is_dir());
    drop(new);
    assert!(folder.join("a/b/file").is_file(), "what holds something stays");
    assert!(!folder.join("a/b/c").exists(), "what holds nothing goes");
    symlink("nothing", folder.join("dangling")).expect("links");
    for name in ["dangling", "dangling/in"] {
        expect![[r"
            FOLDER/dangling is a link to nothing, where nothing is
            help: name another folder, or remove the link"]]
        .assert_eq(&folder.message(&make_folder(&folder.join(name)).expect_err("leads nowhere")));
    }
}
