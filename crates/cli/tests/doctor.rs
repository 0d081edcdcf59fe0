//! `tacit doctor` on set-ups that are broken: what is wrong is named, with the cure.

use std::process::Command;
use std::{env, fs, process};

/// Runs it with these variables, and returns the exit code and what it prints.
fn doctor(variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
    let output = command.arg("doctor").envs(variables.iter().copied()).output().expect("starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

/// Checks the exit code, and that one line tells what is wrong and the next one what to do.
fn check(variables: &[(&str, &str)], code: i32, wrong: &str, help: &str) {
    let (found, text) = doctor(variables);
    let lines: Vec<String> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let at = lines.iter().position(|line| line.starts_with(wrong)).unwrap_or_else(|| panic!("no {wrong} in {text}"));
    assert!(lines[at + 1].starts_with(&format!("help: {help}")), "{text}");
    assert_eq!(found, Some(code), "{text}");
}

#[test]
fn on_a_sound_machine_nothing_is_broken() {
    let (code, text) = doctor(&[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("mlx") && !text.contains("broken"), "{text}");
}

#[test]
fn without_a_compiler() {
    let help = if cfg!(target_os = "macos") {
        "run `xcode-select --install`, which brings g++"
    } else {
        "install g++ (debian: apt-get install g++)"
    };
    check(&[("PATH", "")], 0, "slow compiler g++ is not in the search path", help);
}

#[test]
fn without_python() {
    let help = if cfg!(target_os = "macos") {
        "run `python3 -m ensurepip`, or `xcode-select --install`"
    } else {
        "run `python3 -m ensurepip` (debian: apt-get install"
    };
    check(&[("PATH", "")], 0, "slow python python3 does not start", help);
}

#[cfg(unix)]
#[test]
fn without_pip() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let python = folder.path().join("python3");
    // A process of its own writes it: what another test starts meanwhile would hold a file of this one open for writing, and such a
    // file does not run.
    let written = r#"printf '#!/bin/sh\nexit 1\n' >"$0" && chmod 755 "$0""#;
    assert!(Command::new("sh").args(["-c", written]).arg(&python).status().expect("a shell").success());
    let path = format!("{}:{}", folder.path().display(), env::var("PATH").expect("a search path"));
    check(&[("PATH", &path)], 0, "slow python python3 has no pip", "run `python3 -m ensurepip`");
}

#[test]
fn with_folders_that_cannot_be_written() {
    // In a file no folder can be made, not even by root.
    let file = tempfile::NamedTempFile::new().expect("makes a file");
    let blocked = file.path().display();
    let (inside, variable) = (format!("{blocked}/cache"), "TACIT_CACHE_DIR");
    check(&[(variable, &inside)], 0, &format!("slow cache folder {inside}: "), "set TACIT_CACHE_DIR to a folder");
    check(&[(variable, &inside)], 0, &format!("slow loop folder {inside}/jit: "), "set TACIT_MLX_TMPDIR to a folder");
    let odd = env::temp_dir().join(format!("tacit-doctor-$x-{}", process::id()));
    let path = odd.to_str().expect("text");
    let wrong = format!("slow loop folder {path}: MLX gives the path to a shell");
    check(&[("TACIT_MLX_TMPDIR", path)], 0, &wrong, "set TACIT_MLX_TMPDIR to a folder");
    drop(fs::remove_dir(odd));
    let without = [("TACIT_CACHE_DIR", ""), ("XDG_CACHE_HOME", ""), ("HOME", "")];
    check(&without, 0, "slow cache folder no variable names a place", "set TACIT_CACHE_DIR");
    let relative = "slow cache folder TACIT_CACHE_DIR=cache is a relative path";
    check(&[(variable, "cache")], 0, relative, "set TACIT_CACHE_DIR to an absolute path");
    let inside = format!("{blocked}/tmp");
    check(&[("TMPDIR", &inside)], 1, &format!("broken scratch folder {inside}: "), "set TMPDIR to a folder");
}

/// Programs load no loops from where others may have put them.
#[test]
#[cfg(target_os = "linux")]
fn with_a_folder_of_loops_that_is_everybodys() {
    use std::os::unix::fs::{PermissionsExt, chown};

    let folder = tempfile::tempdir().expect("makes a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).expect("sets");
    let path = folder.path().to_str().expect("text");
    let wrong = format!("slow loop folder {path}: it is a link, or others may write to it");
    check(
        &[("TACIT_MLX_TMPDIR", path)],
        0,
        &wrong,
        "set TACIT_MLX_TMPDIR to a folder that you alone can write to (chmod go-w)",
    );
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("sets");
    // Root alone can give it away, and write to it then.
    if chown(&folder, Some(65534), None).is_ok() {
        let wrong = format!("slow loop folder {path}: it belongs to another user");
        check(&[("TACIT_MLX_TMPDIR", path)], 0, &wrong, "set TACIT_MLX_TMPDIR to a folder");
    }
}

/// Nothing can be loaded from there, and loops are kept elsewhere. Where nobody may mount, nothing is tried.
#[test]
#[cfg(target_os = "linux")]
fn with_a_folder_of_loops_that_is_mounted_noexec() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let script =
        r#"mount -t tmpfs -o noexec,mode=700 tmpfs "$TACIT_MLX_TMPDIR" || exit; echo mounted; exec "$0" doctor"#;
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_tacit")]);
    let ended = command.env("TACIT_MLX_TMPDIR", folder.path()).output();
    fs::remove_dir(&folder).expect("is empty");
    let Ok(ended) = ended else { return };
    let said = String::from_utf8_lossy(&ended.stdout);
    if !said.starts_with("mounted") {
        println!("skipped: {}", String::from_utf8_lossy(&ended.stderr));
        return;
    }
    let wrong =
        format!("{}: nothing that lies there can be run, as where it is mounted noexec", folder.path().display());
    assert!(ended.status.success() && said.contains(&wrong), "{said}");
}

/// Scripts and containers set a variable to nothing to unset it, and so programs read it.
#[test]
fn with_variables_that_are_empty() {
    let all = [
        "TACIT_MATERIALIZE",
        "TACIT_DEVICE_FALLBACK",
        "TACIT_GPU_SOURCES",
        "TACIT_COMPILE",
        "TACIT_PASSES",
        "TACIT_MODE",
        "TACIT_THREADS",
        "TACIT_MLX_TMPDIR",
        "TACIT_WATCH",
        "TACIT_WATCH_LIMITS",
        "TACIT_JOB",
    ];
    let (code, text) = doctor(&all.map(|variable| (variable, "")));
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("is not one of"), "{text}");
    check(&[("TACIT_MODE", "fast")], 1, "broken TACIT_MODE", "eager, lazy or compiled");
}

#[test]
fn with_a_limit_that_is_no_time() {
    for limit in ["join=inf", "wait=1e30", "silence=1e-30"] {
        check(
            &[("TACIT_WATCH_LIMITS", limit)],
            1,
            &format!("broken TACIT_WATCH_LIMITS {limit}"),
            "join, silence and wait",
        );
    }
}

/// Each with all of its help. A Mac has others.
#[test]
#[cfg(target_os = "linux")]
fn all_that_is_wrong_is_said_at_once() {
    let file = tempfile::NamedTempFile::new().expect("makes a file");
    let blocked = file.path().display().to_string();
    // The program makes it where nobody has.
    let scratch = tempfile::tempdir().expect("makes a folder");
    let folder = scratch.path().display().to_string();
    let (code, text) = doctor(&[
        ("PATH", ""),
        ("TACIT_CACHE_DIR", "cache"),
        ("TACIT_MLX_TMPDIR", &format!("{folder}/$x")),
        ("TMPDIR", &format!("{blocked}/tmp")),
        ("TACIT_MODE", "fast"),
        ("TACIT_GPU_SOURCES", "none"),
        ("TACIT_PASSES", "bogus"),
        ("MLX_DISABLE_COMPILE", "1"),
    ]);
    assert_eq!(code, Some(1), "{text}");
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let wrong = lines.filter(|line| ["slow ", "broken ", "help: "].iter().any(|begin| line.starts_with(begin)));
    let said = wrong.collect::<Vec<_>>().join("\n").replace(&blocked, "FILE").replace(&folder, "FOLDER");
    expect_test::expect![[r#"
        slow compiler g++ is not in the search path
        help: install g++ (debian: apt-get install g++): builds want it or CXX, and compiled functions fuse more with it
        slow python python3 does not start: No such file or directory (os error 2)
        help: run `python3 -m ensurepip` (debian: apt-get install python3-pip), or set MLX_DIR: a build fetches MLX with it
        broken scratch folder FILE/tmp: Not a directory (os error 20)
        help: set TMPDIR to a folder that can be written
        slow cache folder TACIT_CACHE_DIR=cache is a relative path
        help: set TACIT_CACHE_DIR to an absolute path: a build refuses this one
        slow loop folder FOLDER/$x: MLX gives the path to a shell, to which one of its characters is special
        help: set TACIT_MLX_TMPDIR to a folder that you alone can write to (chmod go-w): until then every process compiles loops anew
        broken TACIT_GPU_SOURCES none
        help: on or off
        slow MLX_DISABLE_COMPILE 1
        help: unset it: MLX compiles nothing in this process, and compiled functions run as they are written
        slow TACIT_PASSES bogus
        help: only a program that registers such a pass has it: Tacit has none of this name
        broken TACIT_MODE fast
        help: eager, lazy or compiled
        help: install g++ to have MLX compile for the CPU"#]].assert_eq(&said);
    let (_, text) = doctor(&[("TACIT_CACHE_DIR", &format!("{blocked}/cache"))]);
    let lines = text.lines().map(str::trim).skip_while(|line| !line.contains("cache folder")).take(4);
    let said = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
    expect_test::expect![[r#"
        slow cache folder FILE/cache: Not a directory (os error 20)
        help: set TACIT_CACHE_DIR to a folder that can be written: a build unpacks MLX there
        slow loop folder FILE/cache/jit: Not a directory (os error 20)
        help: set TACIT_MLX_TMPDIR to a folder that you alone can write to (chmod go-w): until then every process compiles loops anew"#]].assert_eq(&said.join("\n").replace(&blocked, "FILE"));
}

#[test]
fn with_more_threads_than_cores() {
    let help = "set TACIT_THREADS to at most the number of cores";
    check(&[("TACIT_THREADS", "512")], 0, "slow threads 512 on ", help);
}

#[test]
fn with_a_variable_that_says_nothing() {
    check(&[("TACIT_PASSES", "cse,,all")], 1, "broken TACIT_PASSES cse,,all", "off, or names with commas");
    // It may be a pass of the user's program.
    check(
        &[("TACIT_PASSES", "bogus")],
        0,
        "slow TACIT_PASSES bogus",
        "only a program that registers such a pass has it",
    );
    check(&[("TACIT_PASSES", "cse,off")], 0, "slow TACIT_PASSES cse,off", "only a program that registers");
    let (code, text) = doctor(&[("TACIT_PASSES", "programs, cse")]);
    assert_eq!(code, Some(0), "{text}");
    check(&[("TACIT_MODE", "fast")], 1, "broken TACIT_MODE fast", "eager, lazy or compiled");
    check(&[("TACIT_GPU_SOURCES", "none")], 1, "broken TACIT_GPU_SOURCES none", "on or off");
}

#[test]
fn without_sources_for_gpus() {
    let (code, text) = doctor(&[("TACIT_GPU_SOURCES", "off")]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("off: `off` runs kernels on a GPU as if they had no source for it"), "{text}");
}

#[test]
fn where_mlx_compiles_nothing() {
    let variable = "MLX_DISABLE_COMPILE";
    check(&[(variable, "1")], 0, "slow MLX_DISABLE_COMPILE 1", "unset it: MLX compiles nothing in this process");
}

/// Another MLX in the place of the one that the program was built with.
#[cfg(target_os = "linux")]
#[test]
fn with_another_mlx() {
    let other = tempfile::tempdir().expect("makes a folder");
    let (source, library) = (other.path().join("version.cpp"), other.path().join("libother.so"));
    fs::write(&source, "namespace mlx::core { const char* version() { return \"0.31.1\"; } }").expect("writes");
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let made = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(made.expect("a compiler, as every build of Tacit needs it").success());
    let (code, text) = doctor(&[("LD_PRELOAD", library.to_str().expect("text"))]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("but the loaded libmlx is 0.31.1\nhelp: rebuild the program (`cargo clean -p mlx-sys`)"),
        "{text}"
    );
}

/// Whoever started it may have it ignore the ends of what it starts.
#[cfg(unix)]
#[test]
fn what_it_starts_is_waited_for() {
    let command = format!("trap '' CHLD; exec '{}' doctor", env!("CARGO_BIN_EXE_tacit"));
    let ended = Command::new("bash").args(["-c", &command]).output().expect("starts");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(said.contains("python") && !said.contains("No child processes"), "{said}");
}

/// As on a disk that is full, on which a file can be made and not written.
#[cfg(unix)]
#[test]
fn what_cannot_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let command = format!("ulimit -f 0; exec '{}' doctor", env!("CARGO_BIN_EXE_tacit"));
    let ended =
        Command::new("bash").args(["-c", &command]).env("TACIT_CACHE_DIR", folder.path()).output().expect("starts");
    let names = fs::read_dir(&folder).expect("reads").flatten().map(|entry| entry.file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(".tacit-doctor-")).collect();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.code().is_some() && said.contains("mlx"), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    assert!(left.is_empty(), "{left:?}");
}
