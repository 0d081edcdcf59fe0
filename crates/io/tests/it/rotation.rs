//! Checkpoints of a run in one folder, of which the latest stay.

use expect_test::expect;
use tacit_io::{CheckpointRotation, Training};

use crate::scratch::Scratch;

#[test]
fn the_latest_stay_and_what_is_no_checkpoint_too() {
    let folder = Scratch::new();
    let runs = folder.join("runs");
    let rotation = CheckpointRotation::new(&runs, 2).expect("keeps some");
    assert!(rotation.load_latest().expect("reads").is_none());
    rotation.save(&Training::new(1)).expect("saves");
    for other in ["step-7.safetensors", "step-00000000.safetensors.bak", "notes.txt"] {
        std::fs::write(runs.join(other), "mine").expect("writes");
    }
    std::os::unix::fs::symlink("notes.txt", runs.join("step-00000000.safetensors")).expect("links");
    for step in [2, 30, 30] {
        rotation.save(&Training::new(step)).expect("saves");
    }
    let names: Vec<String> = std::fs::read_dir(&runs)
        .expect("reads")
        .map(|entry| entry.expect("reads").file_name().to_string_lossy().into_owned())
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    expect![[r#"
        notes.txt
        step-00000000.safetensors
        step-00000000.safetensors.bak
        step-00000002.safetensors
        step-00000030.safetensors
        step-7.safetensors"#]]
    .assert_eq(&names.join("\n"));
    assert_eq!(rotation.load_latest().expect("reads").expect("there is one").step, 30);
}

#[test]
fn what_cannot_be_rotated_is_told() {
    let folder = Scratch::new();
    expect![[r#"
        a rotation that keeps no checkpoint
        help: keep at least 1"#]]
    .assert_eq(&CheckpointRotation::new(&*folder, 0).expect_err("keeps none").to_string());
    let rotation = CheckpointRotation::new(&*folder, 1).expect("keeps some");
    rotation.save(&Training::new(30)).expect("saves");
    let error = rotation.save(&Training::new(20)).expect_err("a later one is there");
    expect![[r#"
        FOLDER has a checkpoint of step 30, which is after step 20
        help: go on from the latest checkpoint, or save this run in a folder of its own"#]]
    .assert_eq(&folder.message(&error));
    assert_eq!(folder.names(), ["step-00000030.safetensors"]);
}

/// As `Path::new("run.jsonl").parent()` has it: nothing was found there again, and nothing removed.
#[test]
fn the_folder_of_a_name_alone_is_the_one_that_the_program_is_in() {
    let rotation = CheckpointRotation::new("", 1).expect("keeps some");
    assert_eq!(format!("{rotation:?}"), format!("{:?}", CheckpointRotation::new(".", 1).expect("keeps some")));
    rotation.checkpoints().expect("it is listed");
}
