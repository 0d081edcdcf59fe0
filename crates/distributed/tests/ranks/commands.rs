//! The commands that start this program on the ranks of a group: over the ring, or over Open MPI.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt, fs, io, process};

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

/// A command for each rank, or that of `mpirun` for all of them. What they read is written to the folder.
pub(crate) fn commands(engine: Engine, ranks: usize, folder: &Path) -> io::Result<Vec<Command>> {
    let program = env::current_exe()?;
    match engine {
        Engine::Ring => {
            let file = folder.join("hosts.json");
            let hosts: Vec<String> = free_ports(ranks).map(|port| format!("[\"127.0.0.1:{port}\"]")).collect();
            fs::write(&file, format!("[{}]", hosts.join(",")))?;
            let of_rank = |rank: usize| {
                let mut command = Command::new(&program);
                command.env("MLX_RANK", rank.to_string()).env("MLX_HOSTFILE", &file);
                command
            };
            Ok((0..ranks).map(of_rank).collect())
        }
        Engine::Mpi => {
            let mpirun = mpirun().ok_or_else(|| io::Error::other("there is no mpirun"))?;
            let mut command = Command::new(&mpirun);
            command.args(["-n", &ranks.to_string(), "--oversubscribe", "--bind-to", "none"]);
            command.args(["--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", "127.0.0.1/8"]);
            // As a launcher of containers is.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            if let Some(library) = library_beside(&mpirun) {
                command.env("MLX_MPI_LIBNAME", library);
            }
            command.env_remove("MLX_RANK").env_remove("MLX_HOSTFILE").arg(&program);
            Ok(vec![command])
        }
    }
}

/// The program that starts ranks of MPI, if there is one.
pub(crate) fn mpirun() -> Option<PathBuf> {
    if let Some(named) = env::var_os("TACIT_MPI") {
        return Some(named.into());
    }
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join("mpirun")).find(|file| file.is_file())
}

/// Ports that nobody listens on, below those that the system gives to connections.
fn free_ports(count: usize) -> impl Iterator<Item = u16> {
    let from = 20_000 + (process::id() * 16 % 10_000) as u16;
    (from..32_000).filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).take(count)
}

/// The library of an installation that is in no folder where the system looks. A wheel's `libmpi.so` is a linker's script.
fn library_beside(mpirun: &Path) -> Option<PathBuf> {
    let folder = mpirun.parent()?.parent()?.join("lib");
    let names = ["libmpi.so.40", "libmpi.so", "libmpi.40.dylib", "libmpi.dylib"];
    names.iter().map(|name| folder.join(name)).find(|file| file.exists())
}
