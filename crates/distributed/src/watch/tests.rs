#![allow(clippy::needless_pass_by_value, reason = "snapshots stand in the call")]

use std::net::TcpStream;

use expect_test::{Expect, expect};
use tacit_bridge::ports::Held;

use super::frame::{Extent, Frame};
use super::*;

mod strangers;

/// Over only where something hangs, on however slow a machine.
const LIMITS: Limits =
    Limits { join: Duration::from_mins(1), silence: Duration::from_mins(1), wait: Duration::from_mins(1) };

/// In place of the limit that a test waits for.
const SHORT: Duration = Duration::from_millis(1500);

/// A place where nobody meets yet, and nobody else while it is held.
fn place() -> (String, Held) {
    let held = Held::new(1).expect("a free port");
    (format!("127.0.0.1:{}", held.numbers()[0]), held)
}

/// A connection to rank 0, as soon as that listens.
fn connect(place: &str) -> TcpStream {
    let until = Instant::now() + LIMITS.join;
    loop {
        match TcpStream::connect(place) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "nobody listens: {error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

const JOB: u64 = 4711;

/// What becomes of each rank that comes to a group of `size`.
fn met(place: &str, ranks: &[RankInfo], limits: Limits) -> Vec<Result<Watch>> {
    thread::scope(|scope| {
        let ranks: Vec<_> =
            ranks.iter().map(|&rank_info| scope.spawn(move || Watch::at(place, JOB, rank_info, limits))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

fn ranks(size: usize) -> Vec<RankInfo> {
    (0..size).map(|rank| RankInfo { rank, size }).collect()
}

fn group(size: usize, limits: Limits) -> Vec<Watch> {
    met(&place().0, &ranks(size), limits).into_iter().map(|watch| watch.expect("all come")).collect()
}

/// What rank 0 of too small a group ends with, and what the one that `came` before it looked is told.
fn too_few(job: u64, size: usize, RankInfo { rank, size: its_size }: RankInfo) -> [Error; 2] {
    not_begun(job, size, &Frame::Hello { version: join::VERSION, rank, size: its_size, token: job, process: 1 })
}

/// The same of one that says this.
fn not_begun(job: u64, size: usize, hello: &Frame) -> [Error; 2] {
    let (place, _held) = place();
    let listener = meet::listen(&place).expect("a free port");
    let mut link = link::Link::new(connect(&place)).expect("a link").known(0);
    link.send(hello);
    let mut deadline = Deadline::after(Duration::from_millis(300));
    let first = join::host(&listener, RankInfo { rank: 0, size }, job, &mut deadline);
    let (since, mut frames) = (Instant::now(), Vec::new());
    while link.receive(&mut frames).is_ok() {
        assert!(since.elapsed() < LIMITS.join, "the connection stays open");
        thread::sleep(Duration::from_millis(5));
    }
    let told = frames.into_iter().find_map(|frame| match frame {
        Frame::Refused(failed) => Some(failed),
        _ => None,
    });
    [first.expect_err("too few"), told.expect("is told")].map(|failed| refused(&failed, None))
}

fn all_sum(number: u64, waited: Duration) -> Doing {
    let label = "all_sum f32[8]".to_owned();
    Doing { number, label, extent: Extent::All, age: waited.as_millis() as u64 }
}

/// Lets a rank that has waited so long in its first collective wait on until the watch gives it up.
fn wait_in_a_collective(watch: &Watch, before: Duration) -> Error {
    let since = Instant::now();
    loop {
        watch.doing(all_sum(1, before + since.elapsed()));
        if let Err(error) = watch.check() {
            return error;
        }
        thread::sleep(Duration::from_millis(20));
        assert!(since.elapsed() < LIMITS.wait, "nobody gives the collective up");
    }
}

/// Lets a rank be in a collective for as long as it says, and not only for a moment after it said so.
fn stays_in(watch: &Watch, doing: Doing) {
    watch.shared.lock().doing = Some((doing, Instant::now() + LIMITS.wait));
}

/// Waits until a rank has heard that another left, and puts that longer ago than any limit.
fn left_long_ago(watch: &Watch, rank: usize) {
    assert!(watch.why(LIMITS.wait, Some(&Extent::Two(rank))).is_some(), "it has heard nothing of it");
    let before = Instant::now().checked_sub(2 * LIMITS.silence).expect("a time");
    watch.shared.lock().left.insert(rank, before);
}

/// Compares a message, as it is [`shown`].
fn check(error: &Error, expected: Expect) {
    expected.assert_eq(&shown(error));
}

/// A message without the number of this process and seconds that differ from run to run.
fn shown(error: &Error) -> String {
    let text = error.to_string().replace(&format!("process {}", std::process::id()), "process N");
    let words = text.split(' ').map(|word| {
        let digits = word.strip_suffix('s').unwrap_or(word);
        if word.contains('.') && digits.parse::<f64>().is_ok() { "T" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

impl Watch {
    /// Ends as a process does that says nothing.
    fn vanish(&self) {
        self.close(Closing::Panic);
    }
}

#[test]
fn ranks_that_leave_one_by_one_are_not_lost() {
    let (place, _held) = place();
    let mut watches: Vec<Watch> =
        met(&place, &ranks(3), LIMITS).into_iter().map(|watch| watch.expect("all come")).collect();
    TcpStream::connect(&place).expect_err("nobody listens once all have come");
    while let Some(watch) = watches.pop() {
        drop(watch);
        thread::sleep(Duration::from_millis(100));
        for watch in &watches {
            watch.check().expect("who leaves in order is not lost");
        }
    }
}

#[test]
fn a_rank_that_vanishes_is_lost_to_all_without_a_silence() {
    let mut watches = group(3, LIMITS);
    let last = watches.pop().expect("three ranks");
    stays_in(&watches[0], all_sum(4, Duration::ZERO));
    last.vanish();
    let errors: Vec<Error> = watches.iter().map(|watch| watch.why(LIMITS.wait, None).expect("lost")).collect();
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
    let mut watches = group(2, LIMITS);
    let (second, first) = (watches.pop().expect("two ranks"), watches.pop().expect("two ranks"));
    first.vanish();
    assert!(matches!(second.agree(Vec::new()), Err(Error::PeerLost { rank: 0, .. })));
}

#[test]
fn a_rank_that_is_silent_is_lost_after_the_limit() {
    let (place, _held) = place();
    let limits = Limits { silence: SHORT, ..LIMITS };
    let begun = Instant::now();
    let (first, silent) = thread::scope(|scope| {
        let first = scope.spawn(|| Watch::at(&place, JOB, RankInfo { rank: 0, size: 2 }, limits));
        let mut deadline = Deadline::after(LIMITS.join);
        let addresses = meet::resolve(&place).expect("an address");
        let silent = join::come(&addresses, RankInfo { rank: 1, size: 2 }, JOB, &mut deadline).expect("comes");
        (first.join().expect("no panic").expect("both come"), silent)
    });
    let error = first.why(LIMITS.wait, None).expect("silent");
    assert!(begun.elapsed() > SHORT);
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
    for failed in too_few(JOB, 4, RankInfo { rank: 2, size: 4 }) {
        check(
            &failed,
            expect![[r#"
            the group cannot begin: ranks 1 and 3 have not come within T s
            help: see whether every rank was started and reaches rank 0; `TACIT_WATCH_LIMITS=join=300` waits longer, in seconds"#]],
        );
    }
    let (place, _held) = place();
    let limits = Limits { join: Duration::from_millis(300), ..LIMITS };
    let begun = Instant::now();
    let failed =
        met(&place, &[RankInfo { rank: 1, size: 2 }], limits).remove(0).expect_err("nobody is there").to_string();
    assert!(failed.starts_with("the group cannot begin: rank 0 has not come within"), "{failed}");
    assert!(failed.contains(&place), "{failed}");
    assert!(begun.elapsed() < LIMITS.join, "it waits for the limits of others");
}

#[test]
fn ranks_of_one_job_that_do_not_fit_end_it() {
    for failed in met(&place().0, &[RankInfo { rank: 0, size: 2 }, RankInfo { rank: 1, size: 3 }], LIMITS) {
        check(
            &failed.expect_err("no group"),
            expect![[r#"
            the group cannot begin: rank 1 was started for a group of 3, and rank 0 for one of 2
            help: start every rank of the group by one `tacit launch`, or with the same host file"#]],
        );
    }
    let twice = [RankInfo { rank: 0, size: 3 }, RankInfo { rank: 1, size: 3 }, RankInfo { rank: 1, size: 3 }];
    for failed in met(&place().0, &twice, LIMITS) {
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
            Watch::announced(announce, RankInfo { rank: 0, size: 2 }, LIMITS)
        });
        let announce = |_| Ok(receive.recv().expect("rank 0 announces"));
        let second = Watch::announced(announce, RankInfo { rank: 1, size: 2 }, LIMITS).expect("comes");
        let first = first.join().expect("no panic").expect("both come");
        first.check().and(second.check()).expect("both are well");
    });
}

#[test]
fn a_collective_that_a_rank_skips_is_given_up_by_all() {
    let watches = group(2, Limits { wait: SHORT, ..LIMITS });
    let begun = Instant::now();
    let error = wait_in_a_collective(&watches[1], Duration::ZERO);
    assert!(begun.elapsed() > SHORT);
    check(
        &error,
        expect![[r#"
        all_sum #1 f32[8] of rank 1 has waited for T s while every rank is alive: rank 0 is in no collective, rank 1 in all_sum #1 f32[8]
        help: run the same collectives in the same order on every rank"#]],
    );
    assert!(matches!(watches[0].why(LIMITS.wait, None), Some(Error::Group { .. })));
}

#[test]
fn ranks_that_ran_different_collectives_learn_it() {
    let watches = group(2, LIMITS);
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
            &watch.why(LIMITS.wait, None).expect("different"),
            expect![[r#"
            ranks ran different collectives: no. 3 of rank 0 was all_gather f32[8], of rank 1 all_sum f32[9]
            help: run the same collectives in the same order on every rank"#]],
        );
    }
}

#[test]
fn ranks_of_a_part_that_ran_different_collectives_learn_it() {
    let watches = group(4, LIMITS);
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
            &watch.why(LIMITS.wait, None).expect("different"),
            expect![[r#"
            ranks ran different collectives: no. 2 of rank 2 was all_sum f32[9] among ranks 3 and 2, of rank 3 all_sum f32[7] among ranks 3 and 2
            help: run the same collectives in the same order on every rank"#]],
        );
    }
}

#[test]
fn a_part_goes_on_without_a_rank_that_left_and_is_not_of_it() {
    let mut watches = group(3, LIMITS);
    drop(watches.pop());
    left_long_ago(&watches[1], 2);
    for extent in [Extent::Part(Part { name: "/0:0".to_owned(), ranks: vec![0, 1] }), Extent::Two(0)] {
        stays_in(&watches[1], Doing { extent: extent.clone(), ..all_sum(1, 2 * LIMITS.silence) });
        thread::sleep(Duration::from_millis(500));
        watches[1].check().expect("it waits for rank 0 alone");
        assert!(watches[1].why(Duration::from_millis(50), Some(&extent)).is_none());
    }
    for extent in [Extent::All, Extent::Two(2)] {
        assert!(watches[1].why(Duration::from_millis(50), Some(&extent)).is_some());
    }
}

#[test]
fn whoever_waits_for_a_rank_that_left_learns_it() {
    let mut watches = group(2, LIMITS);
    drop(watches.pop());
    left_long_ago(&watches[0], 1);
    let error = wait_in_a_collective(&watches[0], 2 * LIMITS.silence);
    assert!(matches!(&error, Error::PeerLost { rank: 1, reason, .. } if reason == "it has left the group"), "{error}");
    check(
        &watches[0].check_nobody_left(LIMITS.silence).expect_err("one has left"),
        expect![[r"
            rank 1 has left the group before it began
            help: see what that rank says about it, and start all ranks anew"]],
    );
}

#[test]
fn plans_are_compared_before_they_run() {
    let mut watches = group(3, LIMITS);
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
    watches[0].limits.wait = SHORT;
    let failed = watches[0].agree(Vec::new()).expect_err("alone").to_string();
    assert!(failed.starts_with("not every rank has said within 1.5 s which"), "{failed}");
}

#[test]
fn a_plan_is_given_up_as_soon_as_a_rank_has_left() {
    let mut watches = group(2, LIMITS);
    let other = watches.pop();
    let begun = Instant::now();
    let failed = thread::scope(|scope| {
        let waits = scope.spawn(|| watches[0].agree(Vec::new()));
        drop(other);
        waits.join().expect("no panic").expect_err("alone").to_string()
    });
    assert!(failed.starts_with("rank 1 has left the group, and others are about to run collectives"), "{failed}");
    assert!(begun.elapsed() < LIMITS.wait, "it waits for the limit");
}

#[test]
fn a_rank_that_never_says_what_it_runs_is_given_up() {
    let ranks = group(2, Limits { wait: SHORT, ..LIMITS });
    let error = ranks[0].agree(vec!["all_sum f32[8]".to_owned()]).expect_err("the other says nothing");
    check(
        &error,
        expect![[r#"
        not every rank has said within T s which collectives it is about to run
        help: call the same functions with arguments of the same shapes on every rank"#]],
    );
}
