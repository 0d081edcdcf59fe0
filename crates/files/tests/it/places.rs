//! What is at the place of a file.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

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

#[test]
fn a_device_is_given_the_bytes_and_stays_one() {
    replace("/dev/null", b"nothing").expect("takes it");
    assert!(fs::symlink_metadata("/dev/null").expect("is there").file_type().is_char_device());
    assert_eq!(Place::of(Path::new("/dev/stdout")).expect("is open"), Place::Stream);
}

#[test]
fn a_pipe_is_given_the_bytes() {
    let folder = Folder::new();
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("starts").success());
    let reader = {
        let pipe = pipe.clone();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            fs::File::open(pipe).expect("opens").read_to_end(&mut bytes).expect("reads");
            bytes
        })
    };
    replace(&pipe, b"through").expect("takes it");
    assert_eq!(reader.join().expect("ends"), b"through");
    assert!(fs::symlink_metadata(&pipe).expect("is there").file_type().is_fifo());
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
}
