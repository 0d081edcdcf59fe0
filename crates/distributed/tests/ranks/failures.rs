//! Ranks that do not do what the others wait for: an error in bounded time on all that live, and processes that end.

use std::process::{Command, id};
use std::thread::{self, sleep};
use std::time::Duration;

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops, transforms};
use tacit_core::{Result, compile};
use tacit_distributed::{Group, GroupOptions};

use crate::case::{Apart, Case, Ended};
use crate::child::until_heard;
use crate::processes::HELD;

type Judge = fn(&[Ended]) -> Result<(), String>;
type Variables = &'static [(&'static str, &'static str)];

/// For what is found as soon as ranks hear of each other: no limit is over before that, however slow the machine.
const LIMITS: Variables = &[("TACIT_WATCH_LIMITS", "join=60 silence=60 wait=60")];

/// For a rank that says nothing: only its silence tells of it.
const SILENCE: Variables = &[("TACIT_WATCH_LIMITS", "join=60 silence=2 wait=60")];

/// For a rank that does not come to a collective: only the wait of another tells of it.
const WAIT: Variables = &[("TACIT_WATCH_LIMITS", "join=60 silence=60 wait=2")];

/// For ranks that are stopped for longer than any may wait.
const PAUSE: Variables = &[("TACIT_WATCH_LIMITS", "join=60 silence=60 wait=4")];

/// For a rank that never comes; named, so that ranks meet before any engine begins.
const HASTE: Variables = &[("TACIT_WATCH_LIMITS", "join=1 silence=60 wait=60"), ("TACIT_WATCH", HELD)];

/// By when ranks that live have said their errors, on however slow a machine.
const BOUND: Duration = Duration::from_mins(1);

pub(crate) const CASES: &[Case] = &[
    case(
        "a_killed_rank",
        |group| sums_until(group, "KILL"),
        joins,
        LIMITS,
        &[1],
        |ranks| is_lost(&ranks[0], "closed without a goodbye"),
    ),
    case(
        "a_stopped_rank",
        |group| sums_until(group, "STOP"),
        joins,
        SILENCE,
        &[1],
        |ranks| is_lost(&ranks[0], "has not been heard of for"),
    ),
    case("a_stopped_rank_and_what_is_begun_afterwards", begins_when_lost, joins, SILENCE, &[1], |ranks| {
        is_lost(&ranks[0], "has not been heard of for")?;
        ensure(!ranks[0].is_killed, "it does not end")
    }),
    case("a_rank_that_skips", skips, joins, WAIT, &[], |ranks| {
        all_say(ranks, &["has waited for", "rank 0 is in all_sum #1 f32[8], rank 1 in no collective"])
    }),
    case("a_rank_that_skips_what_gives_indices", skips_indices, joins, WAIT, &[], |ranks| {
        all_say(ranks, &["has waited for", "rank 0 is in all_max #1 u32[8], rank 1 in no collective"])
    }),
    case("a_rank_without_memory", sums_without_memory, joins, WAIT, &[], |ranks| all_say(ranks, &[])),
    case("a_wrong_shape", sums_of_two_shapes, joins, LIMITS, &[], |ranks| {
        all_say(ranks, &["no. 1 of rank 0 was all_sum f32[8], of rank 1 all_sum f32[9]"])
    }),
    case("another_order", sums_in_two_orders, joins, LIMITS, &[], |ranks| {
        all_say(ranks, &["no. 2 of rank 0 was all_sum f32[8], of rank 1 all_sum f32[8] behind 1 made after it"])
    }),
    case("an_eval_that_fails_before_its_sum", sums_behind_a_failure, joins, LIMITS, &[], |ranks| {
        all_say(ranks, &["no. 1 of rank 0 was all_sum f32[8], of rank 1 all_sum f32[8] after 1 whose eval failed"])
    }),
    case("a_wrong_shape_before_it_runs", compiled_sum_of_two_shapes, compares, LIMITS, &[], |ranks| {
        all_say(ranks, &["about to run different", "no. 1 of rank 0 is all_sum f32[8], of rank 1 all_sum f32[9]"])
    }),
    case("a_killed_rank_of_a_part", sums_of_parts_until_one_is_killed, joins, LIMITS, &[3], |ranks| {
        let lost = ["rank 3 at ", "is lost in all_sum", "closed without a goodbye"];
        all_say(&ranks[..3], &lost)?;
        says(&ranks[2], &["among ranks 2 and 3"])
    })
    .sizes(&[4]),
    case("a_wrong_shape_in_a_part", sums_of_two_shapes_in_a_part, joins, LIMITS, &[], |ranks| {
        all_say(
            ranks,
            &["no. 1 of rank 2 was all_sum f32[8] among ranks 2 and 3, of rank 3 all_sum f32[9] among ranks 2 and 3"],
        )
    })
    .sizes(&[4]),
    case("a_late_rank", Group::barrier, comes_late, LIMITS, &[], |ranks| all_go_on(ranks, "a late rank is waited for")),
    case("ranks_that_are_stopped_together", sums_across_a_pause, joins, PAUSE, &[], |ranks| {
        all_go_on(ranks, "nobody waits while it is stopped")
    }),
    case(
        "a_rank_that_never_comes",
        |_| Ok(()),
        never_comes,
        HASTE,
        &[1],
        |ranks| says(&ranks[0], &["the group cannot begin: rank 1 has not come within"]),
    ),
];

const fn case(
    name: &'static str,
    run: fn(&Group) -> Result<()>,
    join: fn(usize) -> Result<Group>,
    variables: Variables,
    lost: &'static [usize],
    judge: Judge,
) -> Case {
    Case::new(name, run).sizes(&[2]).within(Duration::from_mins(2)).apart(Apart { variables, join, lost, judge })
}

fn joins(_: usize) -> Result<Group> {
    Group::init()
}

fn compares(_: usize) -> Result<Group> {
    let mut options = GroupOptions::from_environment()?;
    options.compares_plans = true;
    Group::with(&options)
}

fn comes_late(rank: usize) -> Result<Group> {
    if rank == 1 {
        sleep(Duration::from_secs(1));
    }
    Group::init()
}

fn never_comes(rank: usize) -> Result<Group> {
    if rank == 1 {
        sleep(Duration::from_mins(10));
    }
    Group::init()
}

/// As a training step has them, until a signal comes in the midst.
fn sums_until(group: &Group, signal: &str) -> Result<()> {
    sums_where(group, group.rank() == 1, signal)
}

/// As [`sums_until`], with the signal to this rank if it `ends`.
fn sums_where(group: &Group, ends: bool, signal: &str) -> Result<()> {
    for step in 0..100 {
        if step == 10 && ends {
            drop(Command::new("sh").args(["-c", &format!("kill -{signal} {}", id())]).status());
        }
        group.all_sum(&ops::ones::<f32>(&[1000])?)?.eval()?;
    }
    Ok(())
}

/// The ranks of the other part wait for the lost one: rank 0, which tells of it, stays until it is lost.
fn sums_of_parts_until_one_is_killed(group: &Group) -> Result<()> {
    let part = group.split(group.rank() / 2)?;
    // No rank is in the split any more.
    group.barrier()?;
    sums_where(&part, group.rank() == 3, "KILL")?;
    group.barrier()
}

/// The other rank stops, and this one goes on with what needs nobody else: its end waits for that, and not for the engine.
fn begins_when_lost(group: &Group) -> Result<()> {
    let lost = sums_until(group, "STOP");
    transforms::async_eval([&ops::ones::<f32>(&[8])?.square()?])?;
    lost
}

/// All ranks are stopped, the first one within a sum that the others have not come to, and go on later.
fn sums_across_a_pause(group: &Group) -> Result<()> {
    let all = group.all_gather(&Array::from_slice(&[id()], &[1]), 0)?;
    all.eval()?;
    if group.rank() == 0 {
        let all = all.as_slice::<u32>().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let script = format!("sleep 0.5; kill -STOP {all}; sleep 7; kill -CONT {all}");
        drop(thread::spawn(move || Command::new("sh").args(["-c", &script]).status()));
    } else {
        sleep(Duration::from_secs(1));
    }
    group.barrier()
}

/// The second rank does not sum, and lives on until it learns what comes of that.
fn skips(group: &Group) -> Result<()> {
    comes_too_late(group);
    group.all_sum(&ops::ones::<f32>(&[8])?)?.eval()?;
    goes_on_until_told(group)
}

/// The second rank has no memory for its first sum and passes over that: what it evaluates next is what the first one is in.
fn sums_without_memory(group: &Group) -> Result<()> {
    if group.rank() == 1 {
        let petabytes = ops::broadcast_to(Array::from_f32(1.0), &[1 << 30, 1 << 20])?;
        if group.all_sum(&petabytes)?.eval().is_ok() {
            return Ok(());
        }
    }
    goes_on_until_told(group)
}

/// The eval of the second rank fails before its first sum begins, and it goes on: its second one, which looks the same, meets the
/// first one of the other rank.
fn sums_behind_a_failure(group: &Group) -> Result<()> {
    let numbers = || Array::from_slice(&[1.0_f32; 8], &[8]).negative();
    let lazy = if group.rank() == 1 { thread::spawn(numbers).join().expect("no panic")? } else { numbers()? };
    let first = group.all_sum(&lazy)?.eval();
    assert!(group.rank() == 0 || first.is_err(), "another thread made its operand");
    drop(group.all_sum(&numbers()?)?.eval());
    goes_on_until_told(group)
}

/// As [`skips`]: MLX takes the rows all the same, by indices that have to be some of the table's.
fn skips_indices(group: &Group) -> Result<()> {
    comes_too_late(group);
    let indices = group.all_max(&ops::zeros::<u32>(&[8])?)?;
    ops::ones::<f32>(&[4, 256])?.take_axis(indices, 0)?.eval()?;
    goes_on_until_told(group)
}

/// The second rank goes on only once the first has given up its wait. What it begins then has what the first one sent,
/// so an engine may give it the right numbers before it is told.
fn comes_too_late(group: &Group) {
    if group.rank() == 1 {
        until_heard();
    }
}

/// The engine gives numbers for that, which mean nothing.
fn sums_of_two_shapes(group: &Group) -> Result<()> {
    let extent = 8 + group.rank() as i32;
    drop(group.all_sum(&ops::ones::<f32>(&[extent])?)?.eval());
    goes_on_until_told(group)
}

/// What ranks have begun comes to the others a moment later, so they go on until it has.
fn goes_on_until_told(group: &Group) -> Result<()> {
    loop {
        // Few a second: what is told of each other goes back so many collectives only.
        sleep(Duration::from_secs(1));
        group.barrier()?;
    }
}

/// As [`sums_of_two_shapes`], on two of four ranks: the others learn it as well.
fn sums_of_two_shapes_in_a_part(group: &Group) -> Result<()> {
    let part = group.split(group.rank() / 2)?;
    let extent = if group.rank() == 3 { 9 } else { 8 };
    drop(part.all_sum(&ops::ones::<f32>(&[extent])?)?.eval());
    goes_on_until_told(group)
}

/// Sums of one shape, each evaluated by itself, the first one last on the second rank: the engine swaps them.
fn sums_in_two_orders(group: &Group) -> Result<()> {
    let sum = |number: f32| group.all_sum(&ops::full::<f32>(&[8], Array::from_f32(number))?);
    let mut sums = [sum(1.0)?, sum(2.0)?];
    if group.rank() == 1 {
        sums.reverse();
    }
    for sum in sums {
        drop(sum.eval());
    }
    goes_on_until_told(group)
}

fn compiled_sum_of_two_shapes(group: &Group) -> Result<()> {
    let x = ops::ones::<f32>(&[8 + group.rank() as i32])?;
    let sum = |x: Array| group.all_sum(&x).map_err(|error| Exception::custom(error.to_string()));
    compile(sum).call(&x).map(drop)
}

fn is_lost(rank: &Ended, reason: &str) -> Result<(), String> {
    says(rank, &["rank 1 at ", "is lost in all_sum", reason])
}

fn all_go_on(ranks: &[Ended], otherwise: &str) -> Result<(), String> {
    ranks.iter().try_for_each(|rank| ensure(matches!(rank.said, Some(Ok(()))), otherwise))
}

fn all_say(ranks: &[Ended], words: &[&str]) -> Result<(), String> {
    ranks.iter().try_for_each(|rank| says(rank, words))
}

/// The rank has an error of these words, in time. MPI's launcher may have ended it before it could say so: once another
/// rank fails, or the engine itself refuses.
fn says(rank: &Ended, words: &[&str]) -> Result<(), String> {
    let launcher = || ["prterun", "mpirun"].iter().any(|name| rank.stderr.contains(name));
    match &rank.said {
        Some(Err(error)) => {
            words.iter().try_for_each(|word| ensure(error.contains(word), &format!("no word of: {word}")))?;
        }
        None if launcher() => {}
        _ => return Err("no error".to_owned()),
    }
    ensure(rank.after < BOUND, "late")
}

pub(crate) fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}
