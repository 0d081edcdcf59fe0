//! The commands that start this program on the ranks of a group: over the ring, or over Open MPI.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt, fs, io};

use tacit_bridge::ports::Held;

/// What carries the words between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Ring,
    Mpi,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Mpi => "mpi",
        })
    }
}

/// What starts the ranks of a group.
pub(crate) struct Commands {
    /// One for each rank, or that of `mpirun` for all of them.
    pub(crate) each: Vec<Command>,
    /// The ports of the ranks, and one more where they may meet: theirs until the ranks have begun.
    pub(crate) held: Held,
}

/// The commands that run `program`, its arguments with it, as so many ranks. What they read is written to the folder.
pub(crate) fn commands(engine: Engine, ranks: usize, folder: &Path, program: &[OsString]) -> io::Result<Commands> {
    let held = Held::new(ranks + 1)?;
    let each = match engine {
        Engine::Ring => {
            let file = folder.join("hosts.json");
            let hosts: Vec<String> =
                held.numbers()[..ranks].iter().map(|port| format!("[\"127.0.0.1:{port}\"]")).collect();
            fs::write(&file, format!("[{}]", hosts.join(",")))?;
            let of_rank = |rank: usize| {
                let mut command = Command::new(&program[0]);
                command.args(&program[1..]).env("MLX_RANK", rank.to_string()).env("MLX_HOSTFILE", &file);
                command
            };
            (0..ranks).map(of_rank).collect()
        }
        Engine::Mpi => {
            let mpirun = mpirun().ok_or_else(|| io::Error::other("there is no mpirun"))?;
            let mut command = Command::new(&mpirun);
            command.args(["-n", &ranks.to_string(), "--oversubscribe", "--bind-to", "none"]);
            command.args(["--mca", "btl_tcp_if_include", "127.0.0.1/8"]);
            // As a launcher of containers is.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.env("MLX_MPI_LIBNAME", library_of(&mpirun));
            command.env_remove("MLX_RANK").env_remove("MLX_HOSTFILE").args(program);
            vec![command]
        }
    };
    Ok(Commands { each, held })
}

/// The program that starts ranks of MPI, if `TACIT_MPI` names one: not all that a machine has can do what the tests want.
pub(crate) fn mpirun() -> Option<PathBuf> {
    env::var_os("TACIT_MPI").map(PathBuf::from)
}

/// The library of an installation, beside it or where the system looks. A wheel's `libmpi.so` is a linker's script, and a
/// package without development files has none.
fn library_of(mpirun: &Path) -> PathBuf {
    const NAMES: [&str; 2] = ["libmpi.so.40", "libmpi.40.dylib"];
    let folder = mpirun.parent().and_then(Path::parent).map(|folder| folder.join("lib"));
    let beside = folder.into_iter().flat_map(|folder| NAMES.map(|name| folder.join(name))).find(|file| file.exists());
    beside.unwrap_or_else(|| NAMES[usize::from(cfg!(target_os = "macos"))].into())
}
