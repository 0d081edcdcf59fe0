//! `tacit launch`: one program as several ranks of a group.

mod hosts;
mod input;
mod lines;
mod supervise;
mod warden;

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tacit_core::Error;
use tempfile::TempDir;

use crate::output::{Failure, Output};
use crate::shell::quoted;
use crate::variables::VARIABLES;
use hosts::{Host, Places};
use supervise::{Ended, Process};

#[derive(Args)]
pub(crate) struct Options {
    /// How many ranks to start on this machine
    #[arg(short = 'n', long = "ranks", required_unless_present_any = ["hosts", "as_rank", "as_warden"], conflicts_with = "hosts")]
    ranks: Option<usize>,
    /// What carries the collectives
    #[arg(long, value_enum, default_value_t = Backend::Ring)]
    backend: Backend,
    /// A file with a line for each machine: its IPv4 address and its number of ranks. Without `--host` the command prints what to run on
    /// each machine
    #[arg(long)]
    hosts: Option<PathBuf>,
    /// Start the ranks of the machine of `--hosts` with this address; by mpi those of all machines, from the first one
    // Beside what excludes it, an option that is required is not asked for: so each says itself what it excludes.
    #[arg(long, requires = "hosts", conflicts_with = "ranks")]
    host: Option<String>,
    /// The name of this start of the program on the machines of `--hosts`, the same on each: ranks of another are refused
    #[arg(long, requires = "hosts", conflicts_with = "ranks")]
    job: Option<String>,
    /// The first of the ports that the machines of `--hosts` use: one more than they have ranks each
    #[arg(long, default_value_t = 7300, requires = "hosts", conflicts_with = "ranks")]
    port: u16,
    /// How many threads a rank may use; where it is not given, `TACIT_THREADS` or its share of the cores
    #[arg(long)]
    threads: Option<NonZero<usize>>,
    /// How many seconds the other ranks have to end by themselves once one has failed. Where the launcher is asked to end, it passes the
    /// signal on, and ranks of a ring have as long, but at least 3, until they are sent a stronger one
    #[arg(long, default_value = "10", value_parser = seconds)]
    grace: Duration,
    /// How often all ranks are started again at most, where one has failed; a program that loads its latest checkpoint goes on there.
    /// What was given to rank 0 by the standard input is not given again
    #[arg(long, default_value_t = 0, conflicts_with = "hosts")]
    restarts: u32,
    /// Runs one rank of `mpirun`
    #[arg(long, hide = true, conflicts_with_all = ["ranks", "hosts"])]
    as_rank: bool,
    /// Ends what a launcher has started that was killed
    #[arg(long, hide = true, conflicts_with_all = ["ranks", "hosts", "as_rank"])]
    as_warden: bool,
    /// The program and its arguments
    #[arg(required_unless_present = "as_warden", trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// TCP connections between neighbors, which need nothing installed
    Ring,
    /// Open MPI, whose `mpirun` is found in the search path
    Mpi,
}

/// The value of `--grace`.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "give a number of seconds, such as 10".to_owned())
}

/// Runs the ranks, and gives the code of the first that failed.
///
/// Each rank's lines carry its number. Rank 0 has the standard input, and where the standard error is a terminal that as
/// well, so that the one progress bar is its own. What was passed on to it is not given again after a restart.
pub(crate) fn launch(options: &Options) -> Result<ExitCode, Failure> {
    if options.as_warden {
        return Ok(warden::run(options.program.first().map(PathBuf::from)));
    }
    if options.as_rank {
        let of_environment = |name: &str| env::var(name).ok().and_then(|number| number.parse().ok());
        let mut command = program(options);
        // Machines may have cores in other numbers.
        command.env("TACIT_THREADS", threads(options, of_environment("OMPI_COMM_WORLD_LOCAL_SIZE").unwrap_or(1)));
        let rank = of_environment("OMPI_COMM_WORLD_RANK").unwrap_or(0);
        let process = Process { rank: Some(rank), command, leads: false };
        return Ok(supervise::run(vec![process], options.grace, None)?.code());
    }
    let Some(file) = &options.hosts else { return here(options) };
    let hosts = hosts::read(file)?;
    let machines = hosts::machines(&hosts);
    let places = Places::on(&hosts, options.port)?;
    let Some(name) = &options.host else {
        return print(options, file, &machines).map(|()| ExitCode::SUCCESS);
    };
    let machine = machines.iter().position(|machine| machine.address.to_string() == *name).ok_or_else(|| {
        Error::invalid(format!("{} has no machine {name}", file.display()), "name one as its line does")
    })?;
    let job = Job::named(options.job.as_deref());
    let ended = match options.backend {
        Backend::Ring => ring(options, &places, &places.ranks_of(machines[machine].address), &job),
        Backend::Mpi if machine == 0 => mpi(options, &places, Some(&machines), &job),
        Backend::Mpi => Err(Error::invalid(
            format!("{name} is not the first machine of {}", file.display()),
            "start the first one alone: `mpirun` starts the ranks of all machines from there",
        )
        .into()),
    };
    Ok(ended?.code())
}

/// Starts the ranks on this machine, and again where one failed, as often as that is allowed.
fn here(options: &Options) -> Result<ExitCode, Failure> {
    let mut restarts = 0;
    loop {
        // Each start has ports and a name of its own: what is left of the one before is refused.
        let places = Places::here(options.ranks.unwrap_or(1))?;
        let job = Job::new()?;
        let ended = match options.backend {
            Backend::Ring => ring(options, &places, &places.ranks(), &job),
            Backend::Mpi => mpi(options, &places, None, &job),
        }?;
        if !ended.has_failed() || restarts == options.restarts {
            return Ok(ended.code());
        }
        restarts += 1;
        supervise::say(&format!("all ranks are started again, restart {restarts} of {}", options.restarts));
    }
}

/// What tells this start of a program from others: the ranks hear it by `TACIT_JOB`, and refuse whoever does not know it.
struct Job(Option<String>);

impl Job {
    /// A name that nobody guesses.
    fn new() -> Result<Self, Failure> {
        Ok(Self(Some(format!("{:016x}", random()?))))
    }

    /// The job of this name. Without a name the ranks take the one that the environment has, such as a batch system's.
    fn named(name: Option<&str>) -> Self {
        Self(name.map(str::to_owned))
    }

    fn tell(&self, command: &mut Command) {
        if let Some(name) = &self.0 {
            command.env("TACIT_JOB", name);
        }
    }
}

fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| {
        Error::invalid(format!("the system gives no random number: {error}"), "see that /dev/urandom can be read")
    })
}

fn program(options: &Options) -> Command {
    let mut command = Command::new(&options.program[0]);
    command.args(&options.program[1..]);
    command
}

/// The variables by which ranks recognize another engine than the ring, before they look for the ring. Where this program
/// was itself started by `mpirun`, as in the script of a batch system, each rank would take itself for the one rank of that.
const OF_OTHER_ENGINES: [&str; 5] =
    ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "NCCL_HOST_IP"];

/// Starts these ranks, which are those of one machine, over the ring.
fn ring(options: &Options, places: &Places, here: &[usize], job: &Job) -> Result<Ended, Failure> {
    let folder = private_folder()?;
    let file = folder.path().join("hosts.json");
    fs::write(&file, places.ring()).map_err(Error::file("write", &file))?;
    let threads = threads(options, here.len());
    let processes = here.iter().map(|&rank| {
        let mut command = program(options);
        command.env("TACIT_THREADS", &threads);
        for name in OF_OTHER_ENGINES {
            command.env_remove(name);
        }
        if places.is_one() {
            for name in ["MLX_RANK", "MLX_HOSTFILE", "TACIT_WATCH", "TACIT_JOB"] {
                command.env_remove(name);
            }
        } else {
            command.env("MLX_RANK", rank.to_string()).env("MLX_HOSTFILE", &file).env("TACIT_WATCH", places.watch());
            job.tell(&mut command);
        }
        Process { rank: Some(rank), command, leads: true }
    });
    supervise::run(processes.collect(), options.grace, Some(folder.path()))
}

/// Starts `mpirun`, which starts this program for each rank, so that lines carry the rank here as well; on these machines,
/// where they are given.
fn mpi(options: &Options, places: &Places, machines: Option<&[Host]>, job: &Job) -> Result<Ended, Failure> {
    let mpirun = search_path("mpirun").ok_or_else(|| {
        Error::invalid("mpirun is not in the search path", "install Open MPI, or leave `--backend` out for the ring")
    })?;
    let folder = private_folder()?;
    let mut command = Command::new(&mpirun);
    // More ranks than cores are welcome, and a rank's threads may use any of them.
    command.args(["-n", &places.ranks().len().to_string(), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]);
    job.tell(&mut command);
    command.env("TACIT_WATCH", places.watch());
    if env::var_os("MLX_MPI_LIBNAME").is_none() {
        command.env("MLX_MPI_LIBNAME", library_of(&mpirun));
    }
    if let Some(machines) = machines {
        let file = folder.path().join("machines");
        let lines = machines.iter().map(|Host { address, ranks }| format!("{address} slots={ranks}\n"));
        fs::write(&file, lines.collect::<String>()).map_err(Error::file("write", &file))?;
        command.arg("--hostfile").arg(&file);
        // Ranks of other machines have the variables that are named, and no others.
        let known = VARIABLES.iter().map(|variable| OsString::from(variable.name));
        let known = known.filter(|name| env::var_os(name).is_some());
        let of_mlx = env::vars_os().map(|(name, _)| name).filter(|name| name.as_encoded_bytes().starts_with(b"MLX_"));
        let named = command.get_envs().filter(|(_, value)| value.is_some()).map(|(name, _)| name.to_owned());
        let names: BTreeSet<OsString> = named.chain(known).chain(of_mlx).collect();
        for name in names {
            command.arg("-x").arg(name);
        }
    }
    // `?` alone would take it for an error of writing the output.
    let program = env::current_exe().map_err(Error::file("find", Path::new("tacit")))?;
    command.arg(program).args(["launch", "--as-rank", "--grace", &options.grace.as_secs_f64().to_string()]);
    if let Some(threads) = options.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    command.arg("--").args(&options.program);
    let process = Process { rank: None, command, leads: true };
    supervise::run(vec![process], options.grace, Some(folder.path()))
}

fn search_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The library of an installation: beside it, where the system does not look, or else by its version's name, which needs no
/// development files: without these there is no `libmpi.so`, and where there is one it may be a linker's script.
fn library_of(mpirun: &Path) -> PathBuf {
    const NAMES: [&str; 2] = ["libmpi.so.40", "libmpi.40.dylib"];
    let folder = mpirun.parent().and_then(Path::parent).map(|folder| folder.join("lib"));
    let beside = folder.into_iter().flat_map(|folder| NAMES.map(|name| folder.join(name))).find(|file| file.exists());
    beside.unwrap_or_else(|| NAMES[usize::from(cfg!(target_os = "macos"))].into())
}

/// What `TACIT_THREADS` is for each of so many ranks of a machine.
fn threads(options: &Options, ranks: usize) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (cores / ranks.max(1)).max(1);
    options.threads.map(NonZero::get).or_else(tacit_kernels::threads::named).unwrap_or(share).to_string()
}

/// What each machine is to run; over MPI the first starts the ranks of all.
fn print(options: &Options, file: &Path, machines: &[Host]) -> Result<(), Failure> {
    let job = match &options.job {
        Some(name) => Job::named(Some(name)),
        None => Job::new()?,
    };
    let job = job.0.map(|name| format!(" --job {}", quoted(&name))).unwrap_or_default();
    let (port, grace) = (options.port, options.grace.as_secs_f64());
    let program: Vec<String> = options.program.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    let threads = options.threads.map(|threads| format!(" --threads {threads}")).unwrap_or_default();
    let (machines, backend) = match options.backend {
        Backend::Ring => (machines, ""),
        Backend::Mpi => (&machines[..1], " --backend mpi"),
    };
    let commands = machines.iter().map(|Host { address, ranks }| {
        let which = match options.backend {
            Backend::Ring => format!("{ranks} rank{}", if *ranks == 1 { "" } else { "s" }),
            Backend::Mpi => "for all machines".to_owned(),
        };
        format!(
            "# on {address}, {which}\ntacit launch{backend} --hosts {} --host {address} --port {port}{job} --grace \
             {grace}{threads} -- {}\n",
            quoted(&file.to_string_lossy()),
            program.join(" ")
        )
    });
    Output::new(false).bytes(commands.collect::<Vec<_>>().concat().as_bytes())
}

/// A folder that nobody else may look into, until it is dropped.
fn private_folder() -> Result<TempDir, Error> {
    // Launchers of one number may share a folder for temporary files: in containers.
    let owned = Permissions::from_mode(0o700);
    tempfile::Builder::new()
        .prefix("tacit-launch-")
        .permissions(owned)
        .tempdir()
        .map_err(Error::file("make", &env::temp_dir()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_looks_into_the_folder_of_a_launch() {
        let folder = private_folder().expect("is made");
        let mode = fs::metadata(folder.path()).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{mode:o}");
    }
}
