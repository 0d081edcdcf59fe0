//! Random programs: graphs over the op surface in every way of running them.
//!
//! A seed becomes a [`Program`]: inputs of all dtypes, half floats first, that are views, lazy, in flight, misaligned, empty,
//! of NaN and of infinities; ops of the [surface](crate::ops) on them; and transforms around it. It is run as it is, compiled
//! without passes, with each pass alone and with all, called again with other numbers, with a state, after an error of the
//! function and after a node that failed; transforms are compared with plain code, implicit inputs with what they
//! materialize to. Half floats and integers are compared to the last bit where no sum is in another order and no function
//! approximated in another way. What fails is made as short as it gets and listed.
//!
//! In some programs implicit arrays of every subject meet: in each other, in ops that move their elements, in products after
//! these, in transforms around each other.

mod compare;
mod draw;
mod erred;
mod inputs;
mod kind;
mod meeting;
mod met;
mod nearness;
mod perturbed;
mod program;
mod run;
mod shrink;
mod tripwire;

use std::fmt;
use std::ops::Range;

use compare::Scene;
pub use program::Program;
pub(crate) use tripwire::Tripwire;

use crate::report::{Report, guarded};
use crate::subject::Subject;
use crate::sweep::Sweep;

/// The variable that chooses what [`programs`] runs: seeds as `FIRST..END`, one seed, or `@FILE` with listings, an empty line
/// between them.
pub const PROGRAMS_VARIABLE: &str = "TACIT_PROGRAMS";

/// Runs programs in every way; implicit inputs are of the given subjects.
///
/// A few hundred seeds, and with `TACIT_SWEEP=full` a thousand, the same in each run; [`PROGRAMS_VARIABLE`] chooses
/// others. Each finding is printed when it is found, with the least program that shows it.
///
/// In a process that calls it MLX's compile should fuse no ops (`tacit_core::compile::disable_fusion`): a run of the C++
/// compiler for each program costs minutes.
///
/// # Panics
///
/// The variable chooses nothing that there is.
#[must_use]
pub fn programs(subjects: &[Subject]) -> Report {
    run("random programs", Sweep::current().programs(), draw::draw, program, subjects)
}

/// Runs programs in which implicit arrays of the given subjects meet, and compares each with its run on dense arrays.
///
/// Every subject in a few turns, and with `TACIT_SWEEP=full` with every op that moves elements; [`PROGRAMS_VARIABLE`] chooses
/// other seeds, and listings. Each finding is printed when it is found, with the least program that shows it.
///
/// MLX's compile should fuse no ops, as for [`programs`].
///
/// # Panics
///
/// As [`programs`].
#[must_use]
pub fn meetings(subjects: &[Subject]) -> Report {
    let count = Sweep::current().meetings(subjects.len());
    run("meetings", count, meeting::draw, meeting, subjects)
}

type Draw = fn(u64, &[Subject]) -> Program;

/// Says what differs between the ways of running a program.
type Check = fn(&Program, &[Subject]) -> Result<(), String>;

fn run(part: &str, count: u64, draw: Draw, check: Check, subjects: &[Subject]) -> Report {
    let chosen = std::env::var(PROGRAMS_VARIABLE).ok();
    // What ends the process is known by the name that was printed last.
    let named = chosen.is_some();
    let chosen =
        chosen.map(|text| Chosen::read(&text).unwrap_or_else(|what| panic!("{PROGRAMS_VARIABLE} is {text}: {what}")));
    let chosen = chosen.unwrap_or(Chosen::Seeds(0..count));
    let mut report = Report::new(format!("{part}, {chosen}"));
    let alone = chosen.len() == 1;
    let drawn: Box<dyn Iterator<Item = (String, Program)>> = match chosen {
        Chosen::Seeds(seeds) => Box::new(seeds.map(|seed| (format!("seed {seed}"), draw(seed, subjects)))),
        Chosen::Listings(all) => Box::new((1..).zip(all).map(|(at, program)| (format!("listing {at}"), program))),
    };
    for (name, program) in drawn {
        if named {
            println!("{name}");
        }
        if alone {
            println!("{program}");
        }
        report.compared_one();
        if let Err(what) = check(&program, subjects) {
            let least = shrink::shrunk(program, &|program| check(program, subjects).is_err());
            let what = check(&least, subjects).err().unwrap_or(what);
            println!("{name}: {what}\n{least}\n");
            report.found(name, format_args!("{what}\n{least}"));
        }
    }
    report
}

/// Runs one program in every way.
///
/// # Errors
///
/// What differs.
pub fn program(program: &Program, subjects: &[Subject]) -> Result<(), String> {
    guarded(|| Scene { program, subjects }.check())
}

/// Compares one program with its run on the dense arrays that its implicit inputs stand for.
///
/// # Errors
///
/// What differs.
pub fn meeting(program: &Program, subjects: &[Subject]) -> Result<(), String> {
    guarded(|| Scene { program, subjects }.meet())
}

enum Chosen {
    Seeds(Range<u64>),
    Listings(Vec<Program>),
}

impl Chosen {
    fn len(&self) -> usize {
        match self {
            Self::Seeds(seeds) => seeds.end.saturating_sub(seeds.start) as usize,
            Self::Listings(all) => all.len(),
        }
    }

    fn read(text: &str) -> Result<Self, String> {
        let chosen = Self::read_any(text)?;
        if chosen.len() == 0 { Err("it chooses no program".to_owned()) } else { Ok(chosen) }
    }

    fn read_any(text: &str) -> Result<Self, String> {
        if let Some(file) = text.strip_prefix('@') {
            let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
            let listings = text.split("\n\n").filter(|listing| !listing.trim().is_empty());
            return listings.map(str::parse).collect::<Result<_, _>>().map(Self::Listings);
        }
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("`{text}` is no seed"));
        Ok(Self::Seeds(match text.split_once("..") {
            Some((first, end)) => number(first)?..number(end)?,
            None => number(text)?..number(text)? + 1,
        }))
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seeds(seeds) => write!(f, "seeds {seeds:?}"),
            Self::Listings(all) => write!(f, "{} listings", all.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::Array;

    use super::program::{Around, Operand, State};
    use super::{Chosen, Program, draw, meeting, shrink};
    use crate::opaque::Opaque;
    use crate::subject::Subject;

    #[test]
    fn a_listing_is_read_as_the_program_that_it_lists() {
        for seed in 0..300 {
            let program = draw::draw(seed, &[]);
            assert_eq!(program.to_string().parse(), Ok(program), "seed {seed}");
        }
    }

    #[test]
    fn meetings_are_listed_and_of_every_kind() {
        let subjects = [Subject::new("opaque", |x: &Array| Ok(Opaque::new(x.clone())))];
        let programs: Vec<Program> = (0..120).map(|seed| meeting::draw(seed, &subjects)).collect();
        for program in &programs {
            assert_eq!(program.to_string().parse::<Program>().as_ref(), Ok(program));
            assert!(
                program.inputs.iter().any(|input| input.subject.is_some()) && !program.steps.is_empty(),
                "{program}"
            );
        }
        for around in Around::ALL {
            assert!(programs.iter().any(|program| program.around.contains(around)), "{around:?}");
        }
        let mut inputs = programs.iter().flat_map(|program| &program.inputs);
        assert!(inputs.any(|input| input.state == State::Shared && input.subject.is_some()));
    }

    #[test]
    fn a_listing_that_names_what_is_not_there_is_refused() {
        for (listing, what) in [
            ("0 argument f32[2] rows ready normal", "an input needs seven words"),
            ("0 argument f32[2] sideways ready normal 1", "`sideways` is not one of"),
            ("1 = 0 | no_such_op", "no op `no_such_op`"),
            ("results 4", "there is no value 4"),
        ] {
            let error = listing.parse::<Program>().expect_err("it is refused");
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_choice_of_nothing_is_refused() {
        let listings = std::env::temp_dir().join(format!("tacit-programs-{}", std::process::id()));
        std::fs::write(&listings, "\n\n  \n").expect("the file is written");
        for text in ["9..9", "9..3", &format!("@{}", listings.display())] {
            let refused = Chosen::read(text).err();
            assert_eq!(refused.as_deref(), Some("it chooses no program"), "{text}");
        }
        std::fs::remove_file(listings).expect("the file is removed");
        assert_eq!(Chosen::read("9..11").expect("two seeds").len(), 2);
    }

    #[test]
    fn what_is_not_needed_for_a_failure_goes() {
        let fails = |program: &Program| program.steps.iter().any(|step| step.op == "multiply");
        let mut programs = (0..2000).map(|seed| draw::draw(seed, &[]));
        let long = programs.find(|program| program.steps.len() > 8 && fails(program));
        let least = shrink::shrunk(long.expect("one of the seeds"), &fails);
        // An operand may be what a step makes of nothing, and each of two operands an input.
        assert!(least.steps.len() <= 2 && least.results.len() == 1 && least.inputs.len() <= 2, "{least}");
        assert!(least.around.is_empty());
    }

    #[test]
    fn programs_are_of_every_kind() {
        let programs: Vec<Program> = (0..600).map(|seed| draw::draw(seed, &[])).collect();
        for around in &draw::AROUND {
            assert!(programs.iter().any(|program| program.around.contains(around)), "{around:?}");
        }
        let mut ops: Vec<&str> = programs.iter().flat_map(|program| &program.steps).map(|step| step.op).collect();
        ops.sort_unstable();
        ops.dedup();
        assert!(ops.len() > crate::ops::all().len() * 2 / 3, "{} ops", ops.len());
        let operands = || programs.iter().flat_map(|program| &program.steps).flat_map(|step| &step.operands);
        assert!(operands().any(|operand| matches!(operand, Operand::Fitted(..))));
    }
}
