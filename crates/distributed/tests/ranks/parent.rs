//! The parent: starts the groups, judges what the ranks say, and prints it as a test program does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::case::{Apart, Case, Ended};
use crate::cases;
use crate::child;
use crate::commands::{Engine, mpirun};
use crate::processes::{Heard, Processes};

/// The groups that are tried; those whose ranks differ run every case in an order and at a speed of each rank's own.
const GROUPS: [Ranks; 6] = [
    Ranks { engine: Engine::Ring, size: 2, differ: false },
    Ranks { engine: Engine::Ring, size: 2, differ: true },
    Ranks { engine: Engine::Ring, size: 3, differ: true },
    Ranks { engine: Engine::Ring, size: 4, differ: true },
    Ranks { engine: Engine::Mpi, size: 2, differ: false },
    Ranks { engine: Engine::Mpi, size: 4, differ: true },
];
/// How long ranks may take to join, at the most.
const JOINING: Duration = Duration::from_mins(1);
/// How long the other ranks may take to say their errors after the first.
const GRACE: Duration = Duration::from_secs(2);
/// How long ranks may take to end after the last case.
const ENDING: Duration = Duration::from_mins(1);
/// How much longer than its connection a process may last, or `mpirun`, which says then what became of its ranks.
const EXITING: Duration = Duration::from_secs(20);

/// A group to be.
#[derive(Clone, Copy)]
struct Ranks {
    engine: Engine,
    size: usize,
    differ: bool,
}

impl Ranks {
    /// Such as `ring/2`.
    fn name(self) -> String {
        format!("{}/{}{}", self.engine, self.size, if self.differ { "/differing" } else { "" })
    }

    /// What the ranks are told beside what they read.
    fn variables(self) -> Vec<(&'static str, &'static str)> {
        if self.differ { vec![(child::DIFFER, "1")] } else { Vec::new() }
    }
}

/// A case by its whole name, such as `ring/2/collectives/all_sum`, by the name that the ranks know, and itself.
struct Chosen {
    full: String,
    name: String,
    case: &'static Case,
}

/// How cases went, by whole names.
#[derive(Default)]
struct Results {
    /// Whether seconds are printed.
    timed: bool,
    since: Option<Instant>,
    passed: usize,
    failed: BTreeMap<String, String>,
}

impl Results {
    fn add(&mut self, name: &str, result: Result<(), String>) {
        let since = self.since.replace(Instant::now()).filter(|_| self.timed);
        let seconds = since.map_or(String::new(), |since| format!(" <{:.3}s>", since.elapsed().as_secs_f64()));
        println!("test {name} ... {}{seconds}", if result.is_ok() { "ok" } else { "FAILED" });
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed.insert(name.to_owned(), error);
            }
        }
    }
}

/// Runs what the arguments of a test program choose.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| {
        let matches = |filter: &&String| if has("--exact") { name == **filter } else { name.contains(filter.as_str()) };
        filters.is_empty() || filters.iter().any(matches)
    };
    let mut all = 0;
    let mut chosen: Vec<(Ranks, Vec<Chosen>)> = Vec::new();
    for ranks in GROUPS {
        let of_size = cases().filter(|(_, case)| case.sizes.contains(&ranks.size));
        let named = of_size.map(|(name, case)| Chosen { full: format!("{}/{name}", ranks.name()), name, case });
        let named: Vec<Chosen> = named.inspect(|_| all += 1).filter(|chosen| wanted(&chosen.full)).collect();
        chosen.push((ranks, named));
    }
    if has("--list") {
        let listed = chosen.iter().flat_map(|(_, cases)| cases).filter(|_| !has("--ignored"));
        listed.for_each(|chosen| println!("{}: test", chosen.full));
        return ExitCode::SUCCESS;
    }
    let start = Instant::now();
    let count: usize = chosen.iter().map(|(_, cases)| cases.len()).sum();
    println!("\nrunning {count} tests");
    let mut results = Results { timed: has("--report-time"), since: Some(start), ..Results::default() };
    let mut ignored = 0;
    for (ranks, cases) in chosen {
        if ranks.engine == Engine::Mpi && mpirun().is_none() {
            for chosen in &cases {
                println!("test {} ... ignored, no mpirun on the PATH or in TACIT_MPI", chosen.full);
            }
            ignored += cases.len();
            continue;
        }
        let (apart, together): (Vec<Chosen>, Vec<Chosen>) =
            cases.into_iter().partition(|chosen| chosen.case.apart.is_some());
        run_together(ranks, &together, &mut results);
        for chosen in apart {
            if let Some(apart) = &chosen.case.apart {
                let result = run_apart(ranks, &chosen, apart);
                results.add(&chosen.full, result);
            }
        }
    }
    if !results.failed.is_empty() {
        println!("\nfailures:");
        results.failed.iter().for_each(|(name, error)| println!("\n---- {name} ----\n{error}"));
    }
    println!(
        "\ntest result: {}. {} passed; {} failed; {ignored} ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        if results.failed.is_empty() { "ok" } else { "FAILED" },
        results.passed,
        results.failed.len(),
        all - count,
        start.elapsed().as_secs_f64()
    );
    if results.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs cases in the same processes, and after a failure the rest in new ones.
fn run_together(group: Ranks, mut cases: &[Chosen], results: &mut Results) {
    let ranks = group.size;
    while let Some(first) = cases.first() {
        let names: Vec<String> = cases.iter().map(|chosen| chosen.name.clone()).collect();
        let mut processes = match Processes::start(group.engine, ranks, &names, &group.variables()) {
            Ok(processes) => processes,
            Err(error) => {
                for chosen in cases {
                    results.add(&chosen.full, Err(format!("no processes: {error}")));
                }
                return;
            }
        };
        let mut board = Board::default();
        let mut limit = JOINING + first.case.limit;
        let mut failed = false;
        while let Some((chosen, rest)) = cases.split_first() {
            let result = board.of_all(&mut processes, ranks, &chosen.name, limit);
            failed = result.is_err();
            results.add(&chosen.full, result);
            cases = rest;
            limit = rest.first().map_or(limit, |next| next.case.limit);
            if failed {
                break;
            }
        }
        if !failed && let Err(error) = processes.finish(ENDING) {
            let error = format!("{error}\n{}", all_stderr(&processes, ranks));
            results.add(&format!("{}/the end", group.name()), Err(error));
        }
    }
}

/// What ranks have said, of which some are ahead of the others.
#[derive(Default)]
struct Board {
    said: BTreeMap<(String, usize), Result<(), String>>,
    gone: BTreeSet<usize>,
}

impl Board {
    /// Waits until all ranks have said what became of a case. The first error ends the waiting soon.
    fn of_all(&mut self, processes: &mut Processes, ranks: usize, name: &str, limit: Duration) -> Result<(), String> {
        let mut until = Instant::now() + limit;
        loop {
            let said = |rank: usize| self.said.get(&(name.to_owned(), rank));
            let known = |rank: &usize| said(*rank).is_some() || self.gone.contains(rank);
            let fails = |rank: usize| said(rank).map_or(self.gone.contains(&rank), Result::is_err);
            if (0..ranks).all(|rank| known(&rank)) {
                break;
            }
            if (0..ranks).any(fails) {
                until = until.min(Instant::now() + GRACE);
            }
            match processes.hear(until) {
                Some((rank, Heard::Case(of, result))) => drop(self.said.insert((of, rank), result)),
                Some((rank, Heard::Gone)) => drop(self.gone.insert(rank)),
                Some((_, Heard::Runs(_))) => {}
                None => break,
            }
        }
        let mut errors = String::new();
        for rank in 0..ranks {
            let _ = match self.said.get(&(name.to_owned(), rank)) {
                Some(Ok(())) => Ok(()),
                Some(Err(error)) => writeln!(errors, "rank {rank}: {error}"),
                None if self.gone.contains(&rank) => writeln!(errors, "rank {rank}: its process ended"),
                None => writeln!(errors, "rank {rank}: not at its end when the wait was over (limit {limit:?})"),
            };
        }
        if errors.is_empty() { Ok(()) } else { Err(errors + &all_stderr(processes, ranks)) }
    }
}

/// The end of what the ranks wrote to their standard errors.
fn all_stderr(processes: &Processes, ranks: usize) -> String {
    const SHOWN: usize = 3000;
    let mut all = String::new();
    for rank in 0..ranks {
        let text = processes.stderr(rank);
        let from = text.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
        if !text.is_empty() && !all.ends_with(&text[from..]) {
            let _ = write!(all, "-- standard error of rank {rank}\n{}", &text[from..]);
        }
    }
    all
}

/// Runs a case in processes of its own, and has what became of them judged.
fn run_apart(group: Ranks, chosen: &Chosen, apart: &Apart) -> Result<(), String> {
    let Ranks { engine, size: ranks, .. } = group;
    let names = [chosen.name.clone()];
    let variables = [&group.variables(), apart.variables].concat();
    let mut processes =
        Processes::start(engine, ranks, &names, &variables).map_err(|error| format!("no processes: {error}"))?;
    let until = processes.since + chosen.case.limit;
    let mut said: Vec<Option<(Result<(), String>, Duration)>> = vec![None; ranks];
    let mut gone: Vec<Option<Duration>> = vec![None; ranks];
    let is_over = |gone: &[Option<Duration>]| (0..ranks).all(|rank| gone[rank].is_some() || apart.lost.contains(&rank));
    // When a rank was first found to have ended that was never heard of.
    let mut ended: Vec<Option<Duration>> = vec![None; ranks];
    while !is_over(&gone) && Instant::now() < until {
        let heard = processes.hear(until.min(Instant::now() + Duration::from_millis(20)));
        let after = processes.since.elapsed();
        match heard {
            Some((rank, Heard::Case(_, result))) => said[rank] = Some((result, after)),
            // It comes after all that the rank has said.
            Some((rank, Heard::Gone)) => gone[rank] = Some(after),
            Some((_, Heard::Runs(_))) => {}
            None => {
                for rank in (0..ranks).filter(|&rank| !processes.runs(rank)).collect::<Vec<_>>() {
                    if processes.ended(rank).is_some() {
                        let since = *ended[rank].get_or_insert(after);
                        // What it said may be on its way.
                        gone[rank] = gone[rank].or_else(|| (after > since + GRACE).then_some(since));
                    }
                }
            }
        }
    }
    let exited = Instant::now() + EXITING;
    let code = |processes: &mut Processes, rank: usize| {
        while gone[rank].is_some() && Instant::now() < exited {
            if let Some(status) = processes.ended(rank) {
                return status.code().filter(|_| engine == Engine::Ring);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    };
    let codes: Vec<Option<i32>> = (0..ranks).map(|rank| code(&mut processes, rank)).collect();
    let killed: Vec<bool> = (0..ranks).map(|rank| engine == Engine::Ring && processes.ended(rank).is_none()).collect();
    processes.kill();
    let whole = processes.since.elapsed();
    let ended: Vec<Ended> = (0..ranks)
        .map(|rank| {
            let (said, after) =
                said[rank].take().map_or((None, gone[rank].unwrap_or(whole)), |(said, after)| (Some(said), after));
            Ended { said, code: codes[rank], is_killed: killed[rank], stderr: processes.stderr(rank), after }
        })
        .collect();
    (apart.judge)(&ended).map_err(|reason| format!("{reason}\n{ended:#?}"))
}
