//! A CPU that plays a GPU: the kernels' text compiled by the host's C++ compiler, one program for many launches.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_rs::Dtype;
use tacit_core::Aval;

use super::source::{Parts, Target};

/// The order in which the threads of a group run between barriers: from the first to the last, from the last to the first, or one of
/// the others, which are drawn.
pub(crate) type Turns = u32;

/// Launches before they are compiled.
#[derive(Default)]
pub(crate) struct Program {
    common: Vec<&'static str>,
    instances: Vec<String>,
    by_name: HashMap<String, u32>,
}

/// A launch of a compiled program.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    instance: u32,
    sizes: Vec<i32>,
    grid: [usize; 3],
    group: [usize; 3],
}

impl Program {
    /// Adds what a launch runs, if it is not there yet. `inputs` and `outputs` are what MLX would type the parameters by.
    pub(crate) fn add(&mut self, parts: Parts, inputs: &[Aval], outputs: &[Dtype]) -> Compiled {
        assert_eq!(parts.target, Target::Host);
        assert_eq!((parts.inputs.len(), parts.outputs.len()), (inputs.len(), outputs.len()));
        for text in &parts.common {
            if !self.common.contains(text) {
                self.common.push(text);
            }
        }
        let description = parts.description.clone();
        let launch = parts.launch();
        // A name has no types.
        let types: Vec<&str> = inputs.iter().map(|input| c_type(input.dtype)).collect();
        let next = self.instances.len() as u32;
        let instance = *self.by_name.entry(format!("{} {types:?}", launch.name)).or_insert_with(|| {
            let mut text = format!("namespace instance_{next} {{\n{description}");
            text += "void kernel(char** inputs, char** outputs, const int* sizes_shape) {\n";
            for (at, (name, kind)) in launch.inputs.iter().zip(&types).enumerate() {
                let _ = writeln!(text, "  const {kind}* {name} = (const {kind}*)inputs[{at}]; (void){name};");
            }
            for (at, (name, &dtype)) in launch.outputs.iter().zip(outputs).enumerate() {
                let _ = writeln!(text, "  {0}* {name} = ({0}*)outputs[{at}];", c_type(dtype));
            }
            let _ = writeln!(text, "{}}}\n}}", launch.body);
            self.instances.push(text);
            next
        });
        Compiled { instance, sizes: launch.sizes, grid: launch.grid, group: launch.group }
    }

    /// Compiles it, in a folder that goes with what is returned. None, with a line that says so, where there is no C++ compiler:
    /// a machine that builds Tacit has one, and one that only runs its tests may have none.
    ///
    /// With `TACIT_GPU_RACES=on` it is [watched](Self::compile_watched), and there is no None.
    pub(crate) fn compile(&self) -> Option<Emulator> {
        let watched = std::env::var("TACIT_GPU_RACES").is_ok_and(|races| races == "on");
        let emulator = self.compile_with(watched);
        // Tests that were skipped would look like such that found no race.
        assert!(!watched || emulator.is_some(), "TACIT_GPU_RACES=on: no program that is watched can be had");
        emulator
    }

    /// The same with `-fsanitize=thread`, to which each thread of a group is a thread, whatever the order in which they run: what
    /// no barrier orders is a race, also where the results are right. None too where no such program can be had.
    pub(crate) fn compile_watched(&self) -> Option<Emulator> {
        self.compile_with(true)
    }

    fn compile_with(&self, watched: bool) -> Option<Emulator> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        if Command::new(&compiler).arg("--version").output().is_err() {
            println!("skipped: there is no C++ compiler `{compiler}`, and nothing plays a GPU");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tacit-emulator-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (source, program) = (folder.join("kernels.cpp"), folder.join("kernels"));
        let names: Vec<String> = (0..self.instances.len()).map(|at| format!("instance_{at}::kernel")).collect();
        let text = [
            Target::Host.header(),
            self.common.concat(),
            self.instances.concat(),
            include_str!("source/host_main.h").to_owned(),
            format!(
                "static const host::Instance instances[] = {{{}}};\nint main() {{ return host::serve(instances, {}); }}\n",
                names.join(", "),
                names.len()
            ),
        ]
        .concat();
        std::fs::write(&source, text).expect("writes");
        // A product and a sum are rounded each; what jumps between stacks is no overflow.
        let options = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-U_FORTIFY_SOURCE", "-pthread"];
        let watching: &[&str] = if watched { &["-fsanitize=thread", "-DTACIT_WATCHED", "-g1"] } else { &[] };
        let mut command = Command::new(compiler);
        command.args(options).args(watching).arg("-o").args([&program, &source]);
        let status = command.status().expect("a C++ compiler");
        assert!(watched || status.success(), "{} does not compile", source.display());
        let emulator = Emulator { folder };
        // The library of ThreadSanitizer may not be there, or not run on this system.
        if watched && !(status.success() && emulator.run(&[]).is_ok()) {
            println!("skipped: no program that ThreadSanitizer watches can be had");
            return None;
        }
        Some(emulator)
    }
}

/// A compiled program.
pub(crate) struct Emulator {
    folder: PathBuf,
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A run of a launch: its inputs and the bytes of its results.
pub(crate) struct Job {
    pub launch: Compiled,
    pub order: Turns,
    /// Whether arrays end where no byte can be read behind them, rather than begin at a multiple of 16.
    pub at_end: bool,
    /// Whether subnormal numbers are taken for zero.
    pub flushes: bool,
    /// How many bytes behind a multiple of 16 the inputs and then the results begin; 0 for those that are not named.
    pub offsets: Vec<usize>,
    pub inputs: Vec<Vec<u8>>,
    pub lengths: Vec<usize>,
}

impl Emulator {
    /// The results of all jobs, or what the program says of the first that fails.
    pub(crate) fn run(&self, jobs: &[Job]) -> Result<Vec<Vec<Vec<u8>>>, String> {
        let mut child = Command::new(self.folder.join("kernels"))
            .env("TSAN_OPTIONS", "halt_on_error=1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut input = child.stdin.take().expect("a pipe");
        let results = std::thread::scope(|scope| {
            scope.spawn(move || {
                for job in jobs {
                    // A program that ended says why by itself.
                    if input.write_all(&job.bytes()).is_err() {
                        return;
                    }
                }
            });
            read_results(&mut child, jobs)
        });
        let status = child.wait().expect("ends");
        let mut said = String::new();
        let _ = child.stderr.take().expect("a pipe").read_to_string(&mut said);
        if status.success() { Ok(results) } else { Err(format!("{status}: {said}")) }
    }
}

fn read_results(child: &mut Child, jobs: &[Job]) -> Vec<Vec<Vec<u8>>> {
    let mut output = child.stdout.take().expect("a pipe");
    let mut results = Vec::new();
    for job in jobs {
        let mut of_job: Vec<Vec<u8>> = job.lengths.iter().map(|&length| vec![0; length]).collect();
        if of_job.iter_mut().any(|result| output.read_exact(result).is_err()) {
            break;
        }
        results.push(of_job);
    }
    results
}

impl Job {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut word = |value: u32| bytes.extend(value.to_le_bytes());
        word(self.launch.instance);
        word(self.order);
        word(u32::from(self.at_end));
        word(u32::from(self.flushes));
        for at in 0..8 {
            word(self.launch.sizes.get(at).map_or(0, |&size| size.cast_unsigned()));
        }
        for extent in self.launch.grid.iter().chain(&self.launch.group) {
            word(*extent as u32);
        }
        word(self.inputs.len() as u32);
        let mut offsets = self.offsets.iter().copied().chain(std::iter::repeat(0)).map(|offset| offset as u64);
        let mut place = |bytes: &mut Vec<u8>, length: usize| {
            bytes.extend((length as u64).to_le_bytes());
            bytes.extend(offsets.next().unwrap_or(0).to_le_bytes());
        };
        for input in &self.inputs {
            place(&mut bytes, input.len());
            bytes.extend(input);
        }
        bytes.extend((self.lengths.len() as u32).to_le_bytes());
        for length in &self.lengths {
            place(&mut bytes, *length);
        }
        bytes
    }
}

fn c_type(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bool => "bool",
        Dtype::Uint8 => "tacit::u8",
        Dtype::Int8 => "tacit::i8",
        Dtype::Uint16 => "tacit::u16",
        Dtype::Uint32 => "tacit::u32",
        Dtype::Float16 => "tacit::f16",
        Dtype::Bfloat16 => "tacit::bf16",
        Dtype::Float32 => "float",
        other => unreachable!("no child is of {other:?}"),
    }
}
