//! What the program does to files: nothing is lost, and nothing is left.

#[path = "files/interrupted.rs"]
mod interrupted;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use expect_test::expect;
use mlx_rs::{Array, nn, ops};
use tacit_arrays::format::Nf4;
use tacit_arrays::{AffineArray, Lora, format::Affine};
use tacit_bridge::process::{Signal, signal, with_default_signals};
use tacit_core::Value;
use tacit_io::json::Json;
use tacit_io::mlx_lm::{self, ConfigFile};
use tacit_io::{Metadata, ModelFile, Tensors, Training, save, write};
use tacit_nn::{Model, ParameterFilter, Parameters};
use tempfile::TempDir;

/// A folder of a test, which is gone after it.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("makes a folder"))
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a path that is text").to_owned()
    }

    /// A checkpoint of one matrix.
    fn checkpoint(&self, name: &str) -> String {
        let path = self.at(name);
        let weight = ops::ones::<f32>(&[8, 64]).expect("ones");
        save(&path, &Parameters::from([("layer.weight".to_owned(), weight.into())])).expect("saves");
        path
    }

    /// A folder of mlx-lm's.
    fn mlx_lm(&self, name: &str) -> String {
        let path = self.at(name);
        let weight = ops::ones::<f32>(&[8, 64]).expect("ones");
        let weight = AffineArray::quantize(&weight, Affine { bits: 4, group: 32 }).expect("quantizes");
        let config = ConfigFile::new(Json::parse(r#"{"model_type": "llama"}"#).expect("JSON"));
        mlx_lm::write(&path, &Parameters::from([("layer.weight".to_owned(), weight.into())]), &config).expect("writes");
        path
    }

    /// All files in it and in its folders, with what they hold.
    fn held(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let (mut held, mut left) = (Vec::new(), vec![self.0.path().to_owned()]);
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(folder).expect("reads").flatten() {
                let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
                if kind.is_dir() {
                    left.push(path);
                } else {
                    held.push((path.clone(), fs::read(&path).unwrap_or_default()));
                }
            }
        }
        held.sort();
        held
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).expect("reads").flatten().map(|entry| entry.file_name());
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Runs the program, which is to fail and to change nothing; what it says, with the folder left out.
    fn refused(&self, arguments: &[&str]) -> String {
        let before = self.held();
        let output = tacit(arguments);
        let said =
            String::from_utf8(output.stderr).expect("text").replace(self.0.path().to_str().expect("text"), "FOLDER");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(self.held() == before, "{arguments:?} changed something");
        format!("{}\n{said}", arguments[0])
    }
}

fn tacit(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tacit")).args(arguments).output().expect("starts")
}

fn ok(arguments: &[&str]) -> String {
    let output = tacit(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_is_there_is_replaced_only_by_force() {
    let folder = Folder::new();
    let (dense, out, json, mlx) =
        (folder.checkpoint("dense.safetensors"), folder.at("out.safetensors"), folder.at("out.json"), folder.at("mlx"));
    let commands: [&[&str]; 8] = [
        &["convert", &dense, "--as", "tacit", "-o", &out],
        &["convert", &dense, "--as", "floats", "-o", &out],
        &["convert", &dense, "--as", "bitsandbytes", "-o", &out],
        &["convert", &dense, "--as", "mlx-lm", "-o", &mlx],
        &["quantize", &dense, "--format", "nf4:64", "-o", &out],
        &["advise", &dense, "--bits", "8", "-o", &json],
        &["compare", &dense, &dense, "--svg", &out],
        &["explain", &dense, "--svg", &out, "--html", &json],
    ];
    let said = folder.refused(&["explain", &dense, "--svg", &out, "--html", &out]);
    assert!(said.contains("the drawing and the page are one file"), "{said}");
    fs::write(&out, "mine").expect("writes");
    fs::write(&json, "mine").expect("writes");
    fs::create_dir(&mlx).expect("makes");
    fs::write(folder.0.path().join("mlx/config.json"), r#"{"model_type": "mine"}"#).expect("writes");
    let said = commands.map(|command| folder.refused(command)).concat();
    expect![[r#"
        convert
        error: FOLDER/out.safetensors is there already
        help: write to another place, or replace it with `--force`
        convert
        error: FOLDER/out.safetensors is there already
        help: write to another place, or replace it with `--force`
        convert
        error: FOLDER/out.safetensors is there already
        help: write to another place, or replace it with `--force`
        convert
        error: FOLDER/mlx/config.json is there already
        help: write to another place, or replace it with `--force`
        quantize
        error: FOLDER/out.safetensors is there already
        help: write to another place, or replace it with `--force`
        advise
        error: FOLDER/out.json is there already
        help: write to another place, or replace it with `--force`
        compare
        error: FOLDER/out.safetensors is there already
        help: write to another place, or replace it with `--force`
        explain
        error: FOLDER/out.safetensors is there already
        help: write to another place, or replace it with `--force`
    "#]]
    .assert_eq(&said);
    for command in commands {
        ok(&[command, &["--force"]].concat());
    }
    assert!(fs::read_to_string(&json).expect("reads").contains("<table>"), "the last one wrote it");
    assert_eq!(folder.names(), ["dense.safetensors", "mlx", "out.json", "out.safetensors"]);
}

#[test]
fn the_input_is_never_replaced() {
    let folder = Folder::new();
    let (dense, mlx) = (folder.checkpoint("dense.safetensors"), folder.mlx_lm("mlx"));
    let model = folder.at("mlx/model.safetensors");
    fs::hard_link(&dense, folder.0.path().join("hard.safetensors")).expect("links");
    symlink(&folder.0, folder.0.path().join("around")).expect("links");
    symlink("mlx", folder.0.path().join("linked")).expect("links");
    let (hard, around) = (folder.at("hard.safetensors"), folder.at("around/dense.safetensors"));
    let (linked, config) = (folder.at("linked"), folder.at("mlx/config.json"));
    // Beside an index the tensors are in other files.
    let commands: [&[&str]; 10] = [
        &["quantize", &dense, "--format", "nf4:64", "-o", &dense],
        &["quantize", &dense, "--format", "nf4:64", "-o", &hard],
        &["convert", &dense, "--as", "tacit", "-o", &around],
        &["convert", &around, "--as", "floats", "-o", &dense],
        &["convert", &mlx, "--as", "mlx-lm", "-o", &mlx],
        &["convert", &mlx, "--as", "mlx-lm", "-o", &linked],
        &["convert", &model, "--as", "mlx-lm", "-o", &mlx],
        &["convert", &mlx, "--as", "floats", "-o", &model],
        &["convert", &mlx, "--as", "floats", "-o", &config],
        &["compare", &dense, &mlx, "--svg", &model],
    ];
    for command in commands {
        let said = folder.refused(&[command, &["--force"]].concat());
        assert!(said.contains(" is what is read, and would be overwritten\nhelp: write to another place\n"), "{said}");
    }
    assert!(ok(&["inspect", &mlx]).contains("Affine(f32[8,64])"));
}

/// A name that is no text is protected as others are. A Mac has no such names.
#[test]
#[cfg(target_os = "linux")]
fn names_that_are_no_text_are_not_overwritten_either() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = Folder::new();
    let dense = folder.checkpoint("dense.safetensors");
    let name = OsStr::from_bytes(b"m\xff.safetensors");
    let own = folder.0.path().join(name);
    fs::copy(&dense, &own).expect("copies");
    let before = fs::read(&own).expect("reads");
    for place in [Path::new(name), own.as_path()] {
        for force in [&[] as &[&str], &["--force"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
            command.current_dir(&folder.0).arg("quantize").arg(place).args(["--format", "nf4:64", "-o"]).arg(place);
            let output = command.args(force).output().expect("starts");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("is what is read, and would be overwritten"), "{said}");
            assert!(fs::read(&own).expect("reads") == before, "the input was replaced");
        }
    }
    // What is not there is written.
    let new = folder.0.path().join(OsStr::from_bytes(b"new\xff.safetensors"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
    let output = command.args(["quantize", &dense, "--format", "nf4:64", "-o"]).arg(&new).output().expect("starts");
    assert!(output.status.success() && new.is_file(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn only_files_are_replaced_and_only_where_they_can_be() {
    let folder = Folder::new();
    let dense = folder.checkpoint("dense.safetensors");
    fs::create_dir(folder.0.path().join("folder")).expect("makes");
    fs::write(folder.0.path().join("mine.txt"), "mine").expect("writes");
    symlink("mine.txt", folder.0.path().join("link.safetensors")).expect("links");
    let (inner, link, absent) = (folder.at("folder"), folder.at("link.safetensors"), folder.at("no/out.safetensors"));
    let (mine, named) = (folder.at("mine.txt"), folder.at("new/"));
    let said = [
        folder.refused(&["quantize", &dense, "--format", "nf4:64", "-o", &inner]),
        folder.refused(&["quantize", &dense, "--format", "nf4:64", "-o", &link, "--force"]),
        folder.refused(&["quantize", &dense, "--format", "nf4:64", "-o", &absent]),
        folder.refused(&["quantize", &dense, "--format", "nf4:64", "-o", &named]),
        folder.refused(&["convert", &dense, "--as", "floats", "-o", &inner, "--force"]),
        folder.refused(&["convert", &dense, "--as", "mlx-lm", "-o", &mine, "--force"]),
    ];
    expect![[r#"
        quantize
        error: FOLDER/folder is a folder
        help: name a file in it
        quantize
        error: FOLDER/link.safetensors is a link to mine.txt, and links are not replaced
        help: name the file itself
        quantize
        error: cannot write FOLDER/no/out.safetensors: No such file or directory (os error 2)
        quantize
        error: FOLDER/new/ is the name of a folder, and a file is written
        help: leave the `/` out
        convert
        error: FOLDER/folder is a folder
        help: name a file in it
        convert
        error: FOLDER/mine.txt is no folder, and mlx-lm reads one
        help: name a folder, which is made if it is not there
    "#]]
    .assert_eq(&said.concat());
    // Where older versions wrote, a link leads nowhere, and what cannot be written blocks nothing.
    symlink("mine.txt", folder.0.path().join(".page.svg.partial")).expect("links");
    symlink("mine.txt", folder.0.path().join(".out.safetensors.partial")).expect("links");
    ok(&["compare", &dense, &dense, "--svg", &folder.at("page.svg")]);
    ok(&["convert", &dense, "--as", "tacit", "-o", &folder.at("out.safetensors")]);
    assert_eq!(fs::read(folder.0.path().join("mine.txt")).expect("reads"), b"mine");
    // The folder of what is made one by one is none that somebody put there.
    fs::create_dir(folder.0.path().join("theirs")).expect("makes");
    fs::write(folder.0.path().join("theirs/0.safetensors"), "mine").expect("writes");
    symlink("theirs", folder.0.path().join(".packed.parts")).expect("links");
    let packed = folder.at("packed");
    let said = folder.refused(&["quantize", &dense, "--format", "nf4:64", "-o", &packed]);
    expect![[r#"
        quantize
        error: FOLDER/.packed.parts: it is not what an interrupted run leaves there
        help: remove it, or write to another place
    "#]]
    .assert_eq(&said);
}

#[test]
fn devices_are_written_through() {
    let folder = Folder::new();
    let (dense, mlx) = (folder.checkpoint("dense.safetensors"), folder.mlx_lm("mlx"));
    for target in ["tacit", "floats", "bitsandbytes"] {
        ok(&["convert", &dense, "--as", target, "-o", "/dev/null"]);
    }
    ok(&["quantize", &dense, "--format", "nf4:64", "-o", "/dev/null"]);
    ok(&["compare", &dense, &dense, "--svg", "/dev/null"]);
    ok(&["explain", &mlx, "--html", "/dev/null"]);
    assert!(fs::symlink_metadata("/dev/null").expect("is there").file_type().is_char_device());
    let whole = folder.at("whole.safetensors");
    ok(&["convert", &mlx, "--as", "tacit", "-o", &whole]);
    let whole = fs::read(whole).expect("reads");
    // Into a pipe, where the report would be a part of the file.
    let report = ok(&["convert", &mlx, "--as", "tacit", "-o", "/dev/null"]);
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let Output { stdout, stderr, .. } = tacit(&["convert", &mlx, "--as", "tacit", "-o", name]);
        assert!(stdout == whole, "{name}: {} bytes", stdout.len());
        assert_eq!(String::from_utf8(stderr).expect("text"), report, "{name}");
    }
    // Some programs that start others have the other end of a socket there.
    let (mut ours, theirs) = UnixStream::pair().expect("a socket");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tacit"))
        .args(["convert", &mlx, "--as", "tacit", "-o", "/dev/stdout"])
        .stdout(OwnedFd::from(theirs))
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let mut read = Vec::new();
    ours.read_to_end(&mut read).expect("reads");
    assert!(child.wait().expect("ends").success() && read == whole, "{} bytes", read.len());
    // Into a file that the shell has open, which holds something already, and where the report goes as well.
    for (name, on_stdout) in [("/dev/stdout", true), ("/dev/stderr", false)] {
        let mut file = File::create(folder.0.path().join("shell")).expect("makes");
        file.write_all(b"of the shell, ").expect("writes");
        let number = file.metadata().expect("is there").ino();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
        command.args(["convert", &mlx, "--as", "tacit", "-o", name]);
        let output = if on_stdout {
            command.stdout(file).stderr(Stdio::piped())
        } else {
            command.stderr(file).stdout(Stdio::piped())
        };
        let Output { status, stdout, stderr } = output.spawn().and_then(Child::wait_with_output).expect("starts");
        assert!(status.success());
        assert_eq!(String::from_utf8([stdout, stderr].concat()).expect("text"), report, "{name}");
        assert!(
            fs::read(folder.0.path().join("shell")).expect("reads") == [&b"of the shell, "[..], &whole].concat(),
            "{name}"
        );
        assert_eq!(fs::metadata(folder.0.path().join("shell")).expect("is there").ino(), number);
    }
    // A drawing goes there as well as a checkpoint.
    let drawn = tacit(&["compare", &dense, &dense, "--svg", "/dev/stdout"]);
    let (drawing, table) = (drawn.stdout, String::from_utf8(drawn.stderr).expect("text"));
    assert!(drawing.starts_with(b"<svg") && drawing.trim_ascii_end().ends_with(b"</svg>"), "{} bytes", drawing.len());
    assert!(table.contains("layer.weight"), "{table}");
    assert!(fs::symlink_metadata("/dev/stdout").expect("is there").is_symlink());
}

/// Nobody writes to it, and a checkpoint is read in any order.
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = Folder::new();
    let pipe = folder.at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("starts").success());
    let (child, code) = ended(&["inspect", &pipe], Signal::Terminate, || false).expect("fails");
    assert_eq!(code, Some(1));
    expect![[r#"
        error: cannot map FOLDER/pipe: it is no regular file
    "#]]
    .assert_eq(&stderr(child).replace(folder.0.path().to_str().expect("text"), "FOLDER"));
}

#[test]
fn a_file_of_mlx_lm_s_keeps_the_configuration_beside_it() {
    let folder = Folder::new();
    let (mlx, copy) = (folder.mlx_lm("mlx"), folder.at("copy"));
    let model = Path::new(&mlx).join("model.safetensors");
    ok(&["convert", model.to_str().expect("text"), "--as", "mlx-lm", "-o", &copy]);
    let config = |folder: &str| fs::read_to_string(Path::new(folder).join("config.json")).expect("is there");
    assert_eq!(config(&copy), config(&mlx));
    assert!(config(&copy).contains("llama"));
}

/// Starts the program, and gives it a signal when `reached`. Nothing where it was faster.
fn ended(arguments: &[&str], with: Signal, reached: impl Fn() -> bool) -> Option<(Child, Option<i32>)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
    // Whoever started this test may have it ignore them.
    with_default_signals(&mut command);
    let mut child = command.spawn().expect("starts");
    let begin = Instant::now();
    while !reached() && child.try_wait().expect("runs").is_none() {
        assert!(begin.elapsed() < Duration::from_mins(2), "it writes nothing");
        sleep(Duration::from_micros(100));
    }
    drop(signal(child.id(), with));
    let status = child.wait().expect("ends");
    if status.success() { None } else { Some((child, status.code().or(status.signal().map(|number| -number)))) }
}

fn stderr(child: Child) -> String {
    String::from_utf8(child.wait_with_output().expect("ended").stderr).expect("text")
}

#[test]
fn files_of_leaves_and_of_types_that_are_not_here_are_inspected() {
    let folder = Folder::new();
    let (adapter, run, strange, packed) =
        (folder.at("adapter"), folder.at("run"), folder.at("strange"), folder.at("packed"));
    let linear = nn::Linear::new(64, 8).expect("a layer");
    let mut model =
        Model::new(linear).expect("a model").quantize("weight", Nf4 { block: 64, double: false }).expect("fits");
    model
        .replace("weight", |_, base: Value| {
            let (a, b) = (ops::ones::<f32>(&[2, 64])?, ops::zeros::<f32>(&[8, 2])?);
            Ok(Some(Lora::new(base, a, b, 8.0)?.into()))
        })
        .expect("fits");
    model.save(&adapter, ParameterFilter::Lora).expect("saves");
    Training::new(3).with_model(&model, &ParameterFilter::Lora).expect("has leaves").save(&run).expect("saves");
    let structure = r#"{"a":{"array":"a"},"w":{"implicit":{"type":"strange.Array","codes":{"array":"w.codes"}}}}"#;
    let said = [("tacit.version", "1"), ("tacit.values", structure)];
    let said: Metadata = said.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
    let tensors = vec![
        ("a".to_owned(), ops::ones::<f32>(&[4]).expect("ones")),
        ("w.codes".to_owned(), Array::from_slice(&[1_u8, 2, 3], &[3])),
    ];
    write(&strange, tensors, &said).expect("writes");
    let mut text = String::new();
    for file in [&adapter, &run, &strange] {
        text += &ok(&["inspect", file]);
    }
    for file in [&adapter, &run, &strange] {
        text += &folder.refused(&["quantize", file, "--format", "nf4:64", "-o", &packed]);
    }
    expect![[r#"
        parameter  value      format    bits  bytes
        weight.a   f32[2,64]          32.000    512
        weight.b   f32[8,2]           32.000     64
        2 leaves, 144 elements, 576 bytes, 32.000 bits an element; read by ModelFile::load or Training::load
        parameter        value      format    bits  bytes
        leaves.weight.a  f32[2,64]          32.000    512
        leaves.weight.b  f32[8,2]           32.000     64
        2 leaves, 144 elements, 576 bytes, 32.000 bits an element; read by ModelFile::load or Training::load
        parameter  value                                        format    bits  bytes
        a          f32[4]                                               32.000     16
        w          strange.Array, which is not in this program                      3
        2 parameters, 4 elements, 19 bytes, 32.000 bits an element; read by load
        quantize
        error: FOLDER/adapter: it has leaves or states of a model, and no parameters
        help: load it into the model that it was saved from, by `ModelFile::load` or `Training::load`
        quantize
        error: FOLDER/run: it has leaves or states of a model, and no parameters
        help: load it into the model that it was saved from, by `ModelFile::load` or `Training::load`
        quantize
        error: FOLDER/strange: w: this program has no array type "strange.Array"
        help: use the crate that declares the type, or a newer Tacit
    "#]]
    .assert_eq(&text);
    assert!(Tensors::open(&adapter).is_ok());
    assert_eq!(folder.names(), ["adapter", "run", "strange"]);
}
