//! `tacit launch`: one program as several ranks of a group.

mod hosts;
mod lines;
mod supervise;

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tacit_core::Error;

use crate::output::Failure;
use hosts::{Host, Places};
use supervise::Process;

#[derive(Args)]
pub(crate) struct Options {
    /// How many ranks to start on this machine
    #[arg(short = 'n', long = "ranks", required_unless_present_any = ["hosts", "as_rank"], conflicts_with = "hosts")]
    ranks: Option<usize>,
    /// What carries the collectives
    #[arg(long, value_enum, default_value_t = Backend::Ring)]
    backend: Backend,
    /// A file with a line for each machine, its IP address and how many ranks it has: prints what each machine is to run
    #[arg(long)]
    hosts: Option<PathBuf>,
    /// Start the ranks of this machine of `--hosts`
    #[arg(long, requires = "hosts")]
    host: Option<String>,
    /// The first of the ports that the machines of `--hosts` use: one more than they have ranks each
    #[arg(long, default_value_t = 7300, requires = "hosts")]
    port: u16,
    /// How many threads a rank may use; where it is not given, `TACIT_THREADS` or its share of the cores
    #[arg(long)]
    threads: Option<usize>,
    /// How many seconds the other ranks have to end by themselves once one has failed
    #[arg(long, default_value_t = 10.0)]
    grace: f64,
    /// Runs one rank of `mpirun`
    #[arg(long, hide = true, conflicts_with_all = ["ranks", "hosts"])]
    as_rank: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// TCP connections between neighbors, which need nothing installed
    Ring,
    /// Open MPI, whose `mpirun` is found in the search path
    Mpi,
}

/// Runs the ranks, and gives the code of the first that failed.
///
/// Each rank's lines carry its number. Rank 0 has the standard input, and where the standard error is a terminal that as
/// well, so that the one progress bar is its own.
pub(crate) fn launch(options: &Options) -> Result<ExitCode, Failure> {
    let grace = Duration::try_from_secs_f64(options.grace).map_err(|_| {
        Error::invalid(format!("--grace {} is no time", options.grace), "give seconds, as in `--grace 10`")
    })?;
    if options.as_rank {
        let number = env::var("OMPI_COMM_WORLD_RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
        return supervise::run(vec![Process::of_mpi(number, program(options))], grace);
    }
    let Some(file) = &options.hosts else {
        let ranks = options.ranks.unwrap_or(1);
        return match options.backend {
            Backend::Ring => ring(options, &Places::here(ranks)?, 0, grace),
            Backend::Mpi => mpi(options, ranks, grace),
        };
    };
    let machines = hosts::read(file)?;
    let places = Places::on(&machines, options.port)?;
    if let Some(name) = &options.host {
        let at = machines.iter().position(|host| host.address.to_string() == *name);
        let at = at.ok_or_else(|| {
            Error::invalid(format!("{} has no machine {name}", file.display()), "name one as its line does")
        })?;
        return ring(options, &places, at, grace);
    }
    print(options, file, &machines).map(|()| ExitCode::SUCCESS)
}

fn program(options: &Options) -> Command {
    let mut command = Command::new(&options.program[0]);
    command.args(&options.program[1..]);
    command
}

/// Starts the ranks of one machine over the ring.
fn ring(options: &Options, places: &Places, machine: usize, grace: Duration) -> Result<ExitCode, Failure> {
    let folder = Folder::new()?;
    let file = folder.0.join("hosts.json");
    fs::write(&file, places.ring()).map_err(Error::file("write", &file))?;
    let here = places.ranks(machine);
    let threads = threads(options, here.len());
    let processes = here.map(|rank| {
        let mut command = program(options);
        command.env("TACIT_THREADS", &threads);
        if places.is_one() {
            for name in ["MLX_RANK", "MLX_HOSTFILE", "TACIT_WATCH"] {
                command.env_remove(name);
            }
        } else {
            command.env("MLX_RANK", rank.to_string()).env("MLX_HOSTFILE", &file).env("TACIT_WATCH", places.watch());
        }
        Process::of_ring(rank, command)
    });
    supervise::run(processes.collect(), grace)
}

/// Starts `mpirun`, which starts this program for each rank, so that lines carry the rank here as well.
fn mpi(options: &Options, ranks: usize, grace: Duration) -> Result<ExitCode, Failure> {
    let mpirun = search_path("mpirun").ok_or_else(|| {
        Error::invalid("mpirun is not in the search path", "install Open MPI, or leave `--backend` out for the ring")
    })?;
    let places = Places::here(ranks)?;
    let mut command = Command::new(&mpirun);
    // More ranks than cores are welcome, and a rank's threads may use any of them.
    command.args(["-n", &ranks.to_string(), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]);
    command.arg(env::current_exe()?).args(["launch", "--as-rank", "--grace", &options.grace.to_string(), "--"]);
    command.args(&options.program);
    command.env("TACIT_THREADS", threads(options, ranks)).env("TACIT_WATCH", places.watch());
    if let Some(library) = library_beside(&mpirun).filter(|_| env::var_os("MLX_MPI_LIBNAME").is_none()) {
        command.env("MLX_MPI_LIBNAME", library);
    }
    supervise::run(vec![Process::of_itself(command)], grace)
}

fn search_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The library of an installation that is in no folder where the system looks. `libmpi.so` may be a linker's script.
fn library_beside(mpirun: &Path) -> Option<PathBuf> {
    let folder = mpirun.parent()?.parent()?.join("lib");
    ["libmpi.so.40", "libmpi.40.dylib"].map(|name| folder.join(name)).into_iter().find(|file| file.exists())
}

/// What `TACIT_THREADS` is for each of so many ranks of a machine.
fn threads(options: &Options, ranks: usize) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (cores / ranks.max(1)).max(1);
    match options.threads {
        Some(threads) => threads.to_string(),
        None => env::var("TACIT_THREADS").ok().filter(|text| !text.is_empty()).unwrap_or_else(|| share.to_string()),
    }
}

/// What each machine is to run.
fn print(options: &Options, file: &Path, machines: &[Host]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let (port, grace) = (options.port, options.grace);
    let program: Vec<String> = options.program.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    let threads = options.threads.map(|threads| format!(" --threads {threads}")).unwrap_or_default();
    for Host { address, ranks } in machines {
        let s = if *ranks == 1 { "" } else { "s" };
        writeln!(out, "# on {address}, {ranks} rank{s}")?;
        writeln!(
            out,
            "tacit launch --hosts {} --host {address} --port {port} --grace {grace}{threads} -- {}",
            quoted(&file.to_string_lossy()),
            program.join(" ")
        )?;
    }
    Ok(out.flush()?)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A folder that nobody else may look into, until it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let path = env::temp_dir().join(format!("tacit-launch-{}", std::process::id()));
        // One that a process of this number has left.
        drop(fs::remove_dir_all(&path));
        DirBuilder::new().mode(0o700).create(&path).map_err(Error::file("make", &path))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}
