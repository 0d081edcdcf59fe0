//! A pipe at the place of a file. It is made by another program, which has all locks of this one for a moment: so no other test
//! is here.

use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, id};
use std::{env, fs, thread};

use expect_test::expect;
use tacit_files::{Commit, make_folder, replace};

#[test]
fn a_pipe_is_given_the_bytes_and_stays_one() {
    let folder = env::temp_dir().join(format!("tacit-files-pipe-{}", id()));
    let _new = make_folder(&folder).expect("makes");
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
    let mut commit = Commit::begin(&folder).expect("begins");
    let error = commit.place_last("pipe", b"one of several").expect_err("is no file");
    expect![[r#"
        FOLDER/pipe is a device or a pipe, which is not replaced
        help: name a file, or remove what is there"#]]
    .assert_eq(&error.to_string().replace(&folder.display().to_string(), "FOLDER"));
    assert!(fs::symlink_metadata(&pipe).expect("is there").file_type().is_fifo());
    drop(commit);
    // One that nobody writes to is not waited for.
    let record = folder.join(".tacit-save.json");
    fs::rename(pipe, &record).expect("is there");
    let error = replace(folder.join("file"), b"new").expect_err("is no record").to_string();
    assert_eq!(error, format!("cannot read {}: it is no regular file", record.display()));
    fs::remove_file(record).expect("is there");
}
