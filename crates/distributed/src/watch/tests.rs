#![allow(clippy::needless_pass_by_value, reason = "snapshots stand in the call")]

use std::net::TcpListener;

use expect_test::{Expect, expect};

use super::frame::Extent;
use super::*;

mod strangers;

/// Short, and long enough for a machine that does other things.
const LIMITS: Limits =
    Limits { join: Duration::from_secs(20), silence: Duration::from_millis(1500), wait: Duration::from_millis(1500) };

/// A place where nobody meets yet.
fn place() -> String {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").to_string()
}

const JOB: u64 = 4711;

/// What becomes of each rank that comes to a group of `size`.
fn met(place: &str, seats: &[Seat], limits: Limits) -> Vec<Result<Watch>> {
    thread::scope(|scope| {
        let ranks: Vec<_> =
            seats.iter().map(|&seat| scope.spawn(move || Watch::at(place, JOB, seat, limits))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

fn seats(size: usize) -> Vec<Seat> {
    (0..size).map(|rank| Seat { rank, size }).collect()
}

fn group(size: usize) -> Vec<Watch> {
    met(&place(), &seats(size), LIMITS).into_iter().map(|watch| watch.expect("all come")).collect()
}

fn all_sum(number: u64, waited: Duration) -> Doing {
    let label = "all_sum f32[8]".to_owned();
    Doing { number, label, extent: Extent::All, age: waited.as_millis() as u64 }
}

/// Lets a rank wait in its collective of this number until the watch gives it up.
fn wait_in_a_collective(watch: &Watch, number: u64) -> Error {
    let since = Instant::now();
    loop {
        watch.doing(all_sum(number, since.elapsed()));
        if let Err(error) = watch.check() {
            return error;
        }
        thread::sleep(Duration::from_millis(20));
        assert!(since.elapsed() < Duration::from_secs(20), "nobody gives the collective up");
    }
}

/// Compares a message, without the number of this process and seconds that differ from run to run.
fn check(error: &Error, expected: Expect) {
    let text = error.to_string().replace(&format!("process {}", std::process::id()), "process N");
    let words = text.split(' ').map(|word| {
        let digits = word.strip_suffix('s').unwrap_or(word);
        if word.contains('.') && digits.parse::<f64>().is_ok() { "T" } else { word }
    });
    expected.assert_eq(&words.collect::<Vec<_>>().join(" "));
}

impl Watch {
    /// Ends as a process does that says nothing.
    fn vanish(&self) {
        self.close(Closing::Panic);
    }
}

#[test]
fn ranks_that_leave_one_by_one_are_not_lost() {
    let place = place();
    let mut watches: Vec<Watch> =
        met(&place, &seats(3), LIMITS).into_iter().map(|watch| watch.expect("all come")).collect();
    TcpListener::bind(&place).expect("the port is free once all have come");
    while let Some(watch) = watches.pop() {
        drop(watch);
        thread::sleep(Duration::from_millis(100));
        for watch in &watches {
            watch.check().expect("who leaves in order is not lost");
        }
    }
}

#[test]
fn a_rank_that_vanishes_is_lost_to_all_within_a_moment() {
    let mut watches = group(3);
    let last = watches.pop().expect("three ranks");
    let begun = Instant::now();
    let errors = thread::scope(|scope| {
        scope.spawn(|| last.vanish());
        let waits = scope.spawn(|| wait_in_a_collective(&watches[0], 4));
        let does_not = watches[1].why(Duration::from_secs(10), None).expect("lost");
        [waits.join().expect("no panic"), does_not]
    });
    assert!(begun.elapsed() < LIMITS.silence, "a closed connection needs no silence");
    check(
        &errors[0],
        expect![[r#"
        rank 2 at 127.0.0.1, process N is lost in all_sum #4 f32[8]: its connection closed without a goodbye, as that of a process that ended
        help: save what this rank has, and start the ranks anew from the last checkpoint"#]],
    );
    assert!(matches!(&errors[1], Error::PeerLost { rank: 2, during: None, .. }), "{}", errors[1]);
    // It stays so.
    assert!(watches[0].check().is_err());
    // Rank 0 is lost in the same way, here to a rank that waits for a plan.
    let mut watches = group(2);
    let (second, first) = (watches.pop().expect("two ranks"), watches.pop().expect("two ranks"));
    first.vanish();
    assert!(matches!(second.agree(Vec::new()), Err(Error::PeerLost { rank: 0, .. })));
}

#[test]
fn a_rank_that_is_silent_is_lost_after_the_limit() {
    let place = place();
    let (first, silent) = thread::scope(|scope| {
        let first = scope.spawn(|| Watch::at(&place, JOB, Seat { rank: 0, size: 2 }, LIMITS));
        let until = Instant::now() + LIMITS.join;
        let addresses = meet::resolve(&place).expect("an address");
        let silent = join::come(&addresses, Seat { rank: 1, size: 2 }, JOB, until).expect("comes");
        (first.join().expect("no panic").expect("both come"), silent)
    });
    let begun = Instant::now();
    let error = first.why(Duration::from_secs(20), None).expect("silent");
    assert!(begun.elapsed() > LIMITS.silence / 2);
    check(
        &error,
        expect![[r#"
        rank 1 at 127.0.0.1, process N is lost: it has not been heard of for T s
        help: save what this rank has, and start the ranks anew from the last checkpoint"#]],
    );
    drop(silent);
}

#[test]
fn a_rank_that_does_not_come_is_named_by_all_that_did() {
    let limits = Limits { join: Duration::from_millis(300), ..LIMITS };
    let begun = Instant::now();
    let some = [Seat { rank: 0, size: 4 }, Seat { rank: 2, size: 4 }];
    for failed in met(&place(), &some, limits) {
        check(
            &failed.expect_err("two have not come"),
            expect![[r#"
            the group cannot begin: ranks 1 and 3 have not come within T s
            help: see whether every rank was started and reaches rank 0; `TACIT_WATCH_LIMITS=join=300` waits longer, in seconds"#]],
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
    let place = place();
    let failed = met(&place, &[Seat { rank: 1, size: 2 }], limits).remove(0).expect_err("nobody is there").to_string();
    assert!(failed.starts_with("the group cannot begin: rank 0 has not come within"), "{failed}");
    assert!(failed.contains(&place), "{failed}");
}

#[test]
fn ranks_of_one_job_that_do_not_fit_end_it() {
    for failed in met(&place(), &[Seat { rank: 0, size: 2 }, Seat { rank: 1, size: 3 }], LIMITS) {
        check(
            &failed.expect_err("no group"),
            expect![[r#"
            the group cannot begin: rank 1 was started for a group of 3, and rank 0 for one of 2
            help: start every rank of the group by one `tacit launch`, or with the same host file"#]],
        );
    }
    let twice = [Seat { rank: 0, size: 3 }, Seat { rank: 1, size: 3 }, Seat { rank: 1, size: 3 }];
    for failed in met(&place(), &twice, LIMITS) {
        let failed = failed.expect_err("no group").to_string();
        assert!(failed.starts_with("the group cannot begin: two processes were started as rank 1\n"), "{failed}");
    }
}

#[test]
fn rank_0_announces_a_place_where_none_is_named() {
    let (send, receive) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let first = scope.spawn(move || {
            let announce = |bytes| {
                send.send(bytes).expect("rank 1 listens");
                Ok(bytes)
            };
            Watch::announced(announce, Seat { rank: 0, size: 2 }, LIMITS)
        });
        let announce = |_| Ok(receive.recv().expect("rank 0 announces"));
        let second = Watch::announced(announce, Seat { rank: 1, size: 2 }, LIMITS).expect("comes");
        let first = first.join().expect("no panic").expect("both come");
        first.check().and(second.check()).expect("both are well");
    });
}

#[test]
fn a_collective_that_a_rank_skips_is_given_up_by_all() {
    let watches = group(2);
    let begun = Instant::now();
    let error = wait_in_a_collective(&watches[1], 1);
    assert!(begun.elapsed() > LIMITS.wait);
    check(
        &error,
        expect![[r#"
        all_sum #1 f32[8] of rank 1 has waited for T s while every rank is alive: rank 0 is in no collective, rank 1 in all_sum #1 f32[8]
        help: run the same collectives in the same order on every rank"#]],
    );
    assert!(matches!(watches[0].why(Duration::from_secs(5), None), Some(Error::Group { .. })));
}

#[test]
fn ranks_that_ran_different_collectives_learn_it() {
    let watches = group(2);
    for (rank, watch) in watches.iter().enumerate() {
        watch.begin("all_sum f32[8]", &Extent::All);
        watch.begin(&format!("send f32[8] to rank {}", 1 - rank), &Extent::Two(1 - rank));
        watch.begin("all_sum f32[4]", &Extent::All);
    }
    thread::sleep(Duration::from_millis(600));
    watches[0].check().expect("both ran the same");
    // Rank 1 is ahead.
    watches[1].begin("all_sum f32[9]", &Extent::All);
    thread::sleep(Duration::from_millis(600));
    watches[0].check().expect("nothing of the same number differs");
    watches[0].begin("all_gather f32[8]", &Extent::All);
    for watch in &watches {
        check(
            &watch.why(Duration::from_secs(10), None).expect("different"),
            expect![[r#"
            ranks ran different collectives: no. 3 of rank 0 was all_gather f32[8], of rank 1 all_sum f32[9]
            help: run the same collectives in the same order on every rank"#]],
        );
    }
}

#[test]
fn ranks_of_a_part_that_ran_different_collectives_learn_it() {
    let watches = group(4);
    let extent = |ranks: [usize; 2]| Extent::Part(Part { name: format!("/0:{}", ranks[0]), ranks: ranks.to_vec() });
    let (others, own) = (extent([0, 1]), extent([3, 2]));
    // Each part counts for itself, and rank 2 is ahead.
    watches[0].begin("all_max f32[8] among ranks 0 and 1", &others);
    watches[1].begin("all_max f32[8] among ranks 0 and 1", &others);
    watches[3].begin("all_sum f32[8] among ranks 3 and 2", &own);
    watches[2].begin("all_sum f32[8] among ranks 3 and 2", &own);
    watches[2].begin("all_sum f32[9] among ranks 3 and 2", &own);
    thread::sleep(Duration::from_millis(600));
    watches.iter().try_for_each(Watch::check).expect("nothing of the same number differs");
    watches[3].begin("all_sum f32[7] among ranks 3 and 2", &own);
    for watch in &watches {
        check(
            &watch.why(Duration::from_secs(10), None).expect("different"),
            expect![[r#"
            ranks ran different collectives: no. 2 of rank 2 was all_sum f32[9] among ranks 3 and 2, of rank 3 all_sum f32[7] among ranks 3 and 2
            help: run the same collectives in the same order on every rank"#]],
        );
    }
}

#[test]
fn a_part_goes_on_without_a_rank_that_left_and_is_not_of_it() {
    let mut watches = group(3);
    drop(watches.pop());
    for extent in [Extent::Part(Part { name: "/0:0".to_owned(), ranks: vec![0, 1] }), Extent::Two(0)] {
        let since = Instant::now();
        while since.elapsed() < LIMITS.silence + Duration::from_millis(500) {
            watches[1].doing(Doing { extent: extent.clone(), ..all_sum(1, since.elapsed()) });
            watches[1].check().expect("it waits for rank 0 alone");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(watches[1].why(Duration::from_millis(50), Some(&extent)).is_none());
    }
    for extent in [Extent::All, Extent::Two(2)] {
        assert!(watches[1].why(Duration::from_millis(50), Some(&extent)).is_some());
    }
}

#[test]
fn whoever_waits_for_a_rank_that_left_learns_it() {
    let mut watches = group(2);
    drop(watches.pop());
    let error = wait_in_a_collective(&watches[0], 1);
    assert!(matches!(&error, Error::PeerLost { rank: 1, reason, .. } if reason == "it has left the group"), "{error}");
}

#[test]
fn plans_are_compared_before_they_run() {
    let watches = group(3);
    let plan = |rank: usize, extent: i32| {
        let extent = if rank == 2 { extent } else { 3 };
        vec!["all_sum f32[8]".to_owned(), format!("all_gather f32[2,{extent}]")]
    };
    let agreed = |extent: i32| {
        thread::scope(|scope| {
            let ranks: Vec<_> = watches
                .iter()
                .enumerate()
                .map(|(rank, watch)| scope.spawn(move || watch.agree(plan(rank, extent))))
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Vec<_>>()
        })
    };
    assert!(agreed(3).iter().all(Result::is_ok));
    for failed in agreed(4) {
        check(
            &failed.expect_err("different"),
            expect![[r#"
            ranks are about to run different collectives: no. 2 of rank 0 is all_gather f32[2,3], of rank 2 all_gather f32[2,4]
            help: call the same functions with arguments of the same shapes on every rank"#]],
        );
    }
    // The group goes on after that.
    assert!(agreed(3).iter().all(Result::is_ok));
    // One that has no plan is missed.
    let failed = watches[0].agree(Vec::new()).expect_err("alone").to_string();
    assert!(failed.starts_with("not every rank has said within 1.5 s which"), "{failed}");
}
