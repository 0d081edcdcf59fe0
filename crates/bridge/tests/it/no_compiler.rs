//! What happens where no compiler is installed, MLX is told not to compile, or another processor's program compiled before, in
//! processes of their own.

use std::ffi::OsStr;
use std::path::Path;
use std::{env, fs};

use mlx_rs::{Array, ops};
use tacit_bridge::{BoxError, Outcome, Program, array_id, compiler_available, record_shapeless};

use crate::arrays::{matrix, numbers, vector};
use crate::itself;

/// Runs the ignored test `name` with a search path that leads nowhere.
fn without_compiler(name: &str) {
    apart(name, "PATH", env::temp_dir().join("no-such-folder").as_os_str());
}

/// Runs the ignored test `name` in a process of its own, with this variable.
fn apart(name: &str, variable: &str, value: &OsStr) {
    let out = itself::command()
        .args([&format!("no_compiler::{name}"), "--exact", "--ignored", "--test-threads=1"])
        .env(variable, value)
        .output()
        .expect("starts");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn the_recorded_graph_is_replayed() {
    assert!(compiler_available());
    without_compiler("replays");
}

#[test]
#[ignore = "is run without a compiler by another test"]
fn replays() {
    assert!(!compiler_available());
    let mut program = Program::new(true).expect("memory");
    assert!(!program.is_shapeless());
    let shift = vector(&[10.0, 20.0, 30.0]);
    let mut traces = 0;
    let mut call = |program: &mut Program, x: &Array| {
        let mut outputs = Vec::new();
        let trace = &mut |args: Vec<Array>| -> Result<Vec<Array>, BoxError> {
            traces += 1;
            assert!(args[0].eval().is_err());
            let parts = ops::split_equal(&args[0], 2, 0)?;
            let shifted = shift.negative()?.negative()?;
            let sum = parts[1].exp()?.subtract(&parts[0])?.add(shifted)?;
            Ok(vec![sum.clone(), args[0].clone(), sum.sum(None)?, shift.clone()])
        };
        let outcome = program.call(&[x], &mut outputs, trace).expect("runs");
        (outcome, outputs.iter().map(numbers).collect::<Vec<_>>())
    };
    let zeros = ops::zeros::<f32>(&[2, 3]).expect("builds");
    let expected =
        |results: &[f32], x: Vec<f32>| vec![results.to_vec(), x, vec![results.iter().sum()], vec![10.0, 20.0, 30.0]];
    assert_eq!(call(&mut program, &zeros), (Outcome::Traced, expected(&[11.0, 21.0, 31.0], vec![0.0; 6])));
    assert!(program.matches(&[&matrix(2, 3)]) && !program.matches(&[&matrix(4, 3)]));
    let x = Array::from_slice(&[1.0_f32, 2.0, 3.0, 0.0, 0.0, 0.0], &[2, 3]);
    let (outcome, results) = call(&mut program, &x);
    assert_eq!((outcome, &results[0]), (Outcome::Replayed, &vec![10.0, 19.0, 28.0]));
    assert_eq!(call(&mut program, &ops::zeros::<f32>(&[4, 3]).expect("builds")).0, Outcome::Traced);
    assert_eq!(traces, 2);
}

#[test]
fn errors_and_nested_programs_are_as_with_a_compiler() {
    without_compiler("fails_and_nests");
}

#[test]
#[ignore = "is run without a compiler by another test"]
fn fails_and_nests() {
    let (mut outer, mut inner) = (Program::new(false).expect("memory"), Program::new(false).expect("memory"));
    let x = vector(&[0.0]);
    let mut outputs = Vec::new();
    let error = outer.call(&[&x], &mut outputs, &mut |_| Err("own words".into())).expect_err("fails");
    assert_eq!((error.to_string().as_str(), outer.matches(&[&x])), ("own words", false));
    let mut inlined = None;
    let trace = &mut |args: Vec<Array>| {
        let mut results = Vec::new();
        inlined = Some(inner.call(&[&args[0]], &mut results, &mut |args| Ok(vec![args[0].exp()?]))?);
        Ok(results)
    };
    assert_eq!(outer.call(&[&x], &mut outputs, trace).expect("runs"), Outcome::Traced);
    assert_eq!((inlined, numbers(&outputs[0])), (Some(Outcome::Inlined), vec![1.0]));
    let (tracers, results) = record_shapeless(&[&x], &mut |args| Ok(vec![args[0].exp()?])).expect("records");
    assert_eq!((tracers.len(), results.len()), (1, 1));
    assert!(results[0].eval().is_err());
}

#[test]
fn a_function_gets_the_inputs_themselves_where_mlx_is_told_not_to_compile() {
    apart("gets_the_inputs_themselves", "MLX_DISABLE_COMPILE", OsStr::new("1"));
}

#[test]
#[ignore = "is run by another test, which tells MLX not to compile"]
fn gets_the_inputs_themselves() {
    let mut program = Program::new(false).expect("memory");
    let x = vector(&[0.0]).exp().expect("builds");
    for _ in 0..2 {
        let (mut outputs, mut given) = (Vec::new(), None);
        let function = &mut |args: Vec<Array>| {
            given = Some(array_id(&args[0]));
            Ok(vec![args[0].negative()?])
        };
        let outcome = program.call(&[&x], &mut outputs, function).expect("runs");
        assert_eq!((outcome, given), (Outcome::Inlined, Some(array_id(&x))));
        assert_eq!(numbers(&outputs[0]), [-1.0]);
    }
}

/// Puts files of the same names there that no loader takes.
#[cfg(target_os = "linux")]
fn spoil(file: &Path) {
    if file.is_dir() {
        fs::read_dir(file).expect("a folder").for_each(|entry| spoil(&entry.expect("an entry").path()));
    } else {
        fs::remove_file(file).and_then(|()| fs::write(file, "another processor's")).expect("writes");
    }
}

/// A home that machines share, or a program that is emulated, has kernels of several processors.
#[test]
#[cfg(target_os = "linux")]
fn kernels_of_another_processor_are_left_alone() {
    let folder = env::temp_dir().join(format!("tacit-kernels-{}", std::process::id()));
    let compile = || apart("compiles", "TACIT_MLX_TMPDIR", folder.as_os_str());
    compile();
    let kernels = "mlx";
    let own = fs::read_dir(folder.join(env::consts::ARCH))
        .expect("a folder")
        .next()
        .expect("of a C library")
        .expect("reads")
        .path();
    assert!(own.join(kernels).is_dir());
    // Beside, and where kernels of all processors were once.
    fs::rename(own.join(kernels), folder.join(kernels)).expect("moves");
    spoil(&folder.join(kernels));
    compile();
    assert!(own.join(kernels).is_dir());
    fs::remove_dir_all(&folder).expect("removes");
}

/// As `/tmp` is root's: it stays everybody's, and kernels that anybody could have put there are not loaded.
#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_others_may_write_to_keeps_its_rights_and_no_kernels() {
    use std::os::unix::fs::PermissionsExt;

    const OPEN: u32 = 0o1777;
    let folder = env::temp_dir().join(format!("tacit-open-{}", std::process::id()));
    fs::create_dir(&folder).expect("makes");
    fs::set_permissions(&folder, fs::Permissions::from_mode(OPEN)).expect("sets");
    apart("compiles", "TACIT_MLX_TMPDIR", folder.as_os_str());
    let mode = fs::metadata(&folder).expect("is there").permissions().mode();
    assert_eq!((mode & 0o7777, fs::read_dir(&folder).expect("reads").count()), (OPEN, 0));
    fs::remove_dir_all(&folder).expect("removes");
}

/// Where groups may write to what is made, one that is made as any other would keep no kernels.
#[test]
#[cfg(target_os = "linux")]
fn a_folder_of_kernels_is_made_for_its_owner_alone_however_its_path_ends() {
    use std::os::unix::fs::PermissionsExt;

    let folder = env::temp_dir().join(format!("tacit-made-{}", std::process::id()));
    apart("compiles", "TACIT_MLX_TMPDIR", folder.join("").as_os_str());
    let mode = fs::metadata(&folder).expect("is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "{mode:o}");
    fs::remove_dir_all(&folder).expect("removes");
}

/// As in a home that is mounted to be read alone: this folder is its owner's, and nothing can be made there.
#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_cannot_be_written_to_keeps_no_kernels() {
    apart("compiles", "TACIT_MLX_TMPDIR", OsStr::new("/proc/self/fd"));
}

/// Whoever names a folder for kernels may have other things in it.
#[test]
#[cfg(target_os = "linux")]
fn of_a_folder_of_kernels_only_what_dead_processes_left_is_removed() {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    let folder = env::temp_dir().join(format!("tacit-swept-{}", std::process::id()));
    fs::create_dir(&folder).expect("makes");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("sets");
    // No process has such a number.
    let (left, others) = ("tacit-99999999-abcdef", ["99999999-results", "99999999", "tacit-99999999-results"]);
    for name in others.into_iter().chain([left]) {
        fs::create_dir(folder.join(name)).expect("makes");
        let file = fs::File::open(folder.join(name)).expect("opens");
        file.set_modified(SystemTime::now() - Duration::from_hours(48)).expect("sets");
    }
    apart("compiles", "TACIT_MLX_TMPDIR", folder.as_os_str());
    assert!(others.into_iter().all(|name| folder.join(name).is_dir()) && !folder.join(left).exists());
    fs::remove_dir_all(&folder).expect("removes");
}

#[test]
#[ignore = "is run by another test, with a folder for kernels"]
fn compiles() {
    let mut program = Program::new(false).expect("memory");
    let mut outputs = Vec::new();
    let function = &mut |args: Vec<Array>| Ok(vec![args[0].exp()?.negative()?]);
    program.call(&[&vector(&[0.0, 0.0])], &mut outputs, function).expect("runs");
    assert_eq!(numbers(&outputs[0]), [-1.0, -1.0]);
}
