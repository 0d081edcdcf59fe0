//! Processes that come to where a group meets and do not belong to it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn a_late_rank_and_strangers_do_no_harm() {
    let (place, _held) = place();
    let limits = Limits { silence: SHORT, ..LIMITS };
    thread::scope(|scope| {
        let first = scope.spawn(|| Watch::at(&place, JOB, RankInfo { rank: 0, size: 2 }, limits));
        let silent = connect(&place);
        thread::sleep(SHORT);
        for text in ["GET / HTTP/1.1\r\n\r\n", "{\"Left\":{\"rank\":1}}\n", "null\n"] {
            TcpStream::connect(&place)
                .and_then(|mut stream| stream.write_all(text.as_bytes()))
                .expect("rank 0 listens");
        }
        let late = Watch::at(&place, JOB, RankInfo { rank: 1, size: 2 }, limits).expect("comes");
        let first = first.join().expect("no panic").expect("both come");
        drop(silent);
        thread::sleep(SHORT / 2);
        first.check().and(late.check()).expect("both are well");
    });
}

/// A process that says this and nothing more, and reads what it is told.
fn stranger(place: &str, words: &str) -> TcpStream {
    let mut stream = connect(place);
    stream.write_all(words.as_bytes()).expect("rank 0 reads");
    stream
}

fn hello(rank: usize, size: usize, token: u64, version: u32) -> String {
    format!(r#"{{"Hello":{{"version":{version},"rank":{rank},"size":{size},"token":{token},"process":1}}}}"#) + "\n"
}

#[test]
fn a_stray_hello_does_not_end_a_joining_job() {
    // Of a job that has no name, and of one that has: whoever does not know the name may say whatever it likes.
    for (job, tokens) in [(0, &[0, 5][..]), (JOB, &[0, 5][..])] {
        let (place, _held) = place();
        thread::scope(|scope| {
            let first = scope.spawn(|| Watch::at(&place, job, RankInfo { rank: 0, size: 2 }, LIMITS));
            for &token in tokens {
                for (rank, size, version) in [(1, 3, 1), (0, 2, 1), (7, 2, 1), (usize::MAX, 2, 1), (1, 2, 99)] {
                    let mut stray = stranger(&place, &hello(rank, size, token, version));
                    let mut told = String::new();
                    stray.read_to_string(&mut told).expect("is told");
                    assert!(told.contains("Refused"), "{told}");
                }
            }
            let second = Watch::at(&place, job, RankInfo { rank: 1, size: 2 }, LIMITS).expect("comes");
            let first = first.join().expect("no panic").expect("both come");
            first.check().and(second.check()).expect("both are well");
        });
    }
}

#[test]
fn what_kept_a_rank_of_a_nameless_job_away_is_told_in_the_end() {
    let [first, misfit] = too_few(0, 2, RankInfo { rank: 1, size: 3 });
    check(
        &misfit,
        expect![[r#"
        the group cannot begin: rank 1 was started for a group of 3, and rank 0 for one of 2
        help: start every rank of the group by one `tacit launch`, or with the same host file"#]],
    );
    check(
        &first,
        expect![[r#"
        the group cannot begin: rank 1 has not come within T s, and rank 1 was started for a group of 3, and rank 0 for one of 2
        help: start every rank of the group by one `tacit launch`, or with the same host file"#]],
    );
}

#[test]
fn ranks_of_two_jobs_that_meet_at_one_place_stay_apart() {
    let (place, _held) = place();
    let (one, other) = (RankInfo { rank: 0, size: 2 }, RankInfo { rank: 1, size: 2 });
    let at = |job, rank_info| Watch::at(&place, job, rank_info, LIMITS).expect("comes");
    thread::scope(|scope| {
        let first = scope.spawn(move || at(1, one));
        // The second rank of another job is there before that of the first.
        let stranger = scope.spawn(move || at(2, other));
        thread::sleep(Duration::from_millis(300));
        assert!(!first.is_finished() && !stranger.is_finished(), "they have joined each other");
        let ours = [at(1, other), first.join().expect("no panic")];
        // Its own rank 0 finds the place free now.
        let theirs = [at(2, one), stranger.join().expect("no panic")];
        ours.iter().chain(&theirs).try_for_each(Watch::check).expect("all are well");
    });
    let limits = Limits { join: Duration::from_secs(2), ..LIMITS };
    thread::scope(|scope| {
        let first = scope.spawn(|| Watch::at(&place, 1, one, LIMITS));
        drop(connect(&place));
        let lost = Watch::at(&place, 2, other, limits).expect_err("another job's").to_string();
        assert!(lost.contains(": another job meets here\n"), "{lost}");
        at(1, other).check().and(first.join().expect("no panic").expect("comes").check()).expect("both are well");
    });
}

#[test]
fn a_crowd_that_sends_tiny_frames_keeps_no_rank_away() {
    let (place, _held) = place();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let first = scope.spawn(|| Watch::at(&place, JOB, RankInfo { rank: 0, size: 2 }, LIMITS));
        drop(connect(&place));
        for words in ["{\"Left\":{\"rank\":1}}\n", "\n", "{"] {
            let words = words.repeat((1 << 20) / words.len());
            let (place, over) = (&place, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    // Whoever is sent away comes again.
                    drop(TcpStream::connect(place).and_then(|mut stream| stream.write_all(words.as_bytes())));
                }
            });
        }
        let silent: Vec<TcpStream> = (0..100).flat_map(|_| TcpStream::connect(&place)).collect();
        thread::sleep(Duration::from_millis(300));
        let second = Watch::at(&place, JOB, RankInfo { rank: 1, size: 2 }, LIMITS);
        over.store(true, Ordering::Relaxed);
        second
            .expect("comes")
            .check()
            .and(first.join().expect("no panic").expect("comes").check())
            .expect("both are well");
        drop(silent);
    });
}

#[test]
fn a_rank_that_sends_many_frames_at_once_is_read_in_a_moment() {
    const COUNT: usize = 100_000;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut sender = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (stream, _) = listener.accept().expect("accepts");
    let mut link = link::Link::new(stream).expect("a link").known(1);
    let writes = thread::spawn(move || {
        let words = "{\"Left\":{\"rank\":1}}\n".repeat(COUNT);
        sender.write_all(words.as_bytes()).expect("is read");
    });
    let begun = Instant::now();
    let mut frames = Vec::new();
    while link.receive(&mut frames).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} frames only", frames.len());
    }
    writes.join().expect("no panic");
    assert_eq!(frames.len(), COUNT);
}

#[test]
fn one_that_listens_and_is_no_rank_0_is_given_up_for_another_address() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (place, _held) = place();
    let ranks = ranks(2);
    thread::scope(|scope| {
        let first = scope.spawn(|| Watch::at(&place, JOB, ranks[0], LIMITS));
        let addresses = [silent.local_addr().expect("bound"), place.parse().expect("an address")];
        let second = join::come(&addresses, ranks[1], JOB, &mut Deadline::after(LIMITS.join)).expect("at the second");
        first.join().expect("no panic").expect("comes").check().expect("both are well");
        drop(second);
    });
}

#[test]
fn a_rank_that_cannot_be_of_the_group_learns_why() {
    let hello = |version, rank| Frame::Hello { version, rank, size: 2, token: JOB, process: 1 };
    let told = |hello: Frame| {
        let [first, told] = not_begun(JOB, 2, &hello);
        assert_eq!(shown(&first), shown(&told));
        shown(&told)
    };
    let found = [hello(join::VERSION + 1, 1), hello(join::VERSION, 0), hello(join::VERSION, 7)].map(told);
    expect![[r#"
        the group cannot begin: rank 1 runs another version of Tacit than rank 0
        help: start every rank of the group by one `tacit launch`, or with the same host file
        the group cannot begin: two processes were started as rank 0
        help: start every rank of the group by one `tacit launch`, or with the same host file
        the group cannot begin: a process was started as rank 7 of 2
        help: start every rank of the group by one `tacit launch`, or with the same host file"#]]
    .assert_eq(&found.join("\n"));
}

/// What a rank ends with that looks for rank 0 so long where another program listens, which says `words` and stays, or goes at once.
fn beside(words: Option<&str>, limit: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    listener.set_nonblocking(true).expect("does not wait");
    let over = AtomicBool::new(false);
    let met = thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = Vec::new();
            while !over.load(Ordering::Relaxed) {
                if let (Ok((mut stream, _)), Some(words)) = (listener.accept(), words) {
                    stream.write_all(words.as_bytes()).expect("it listens");
                    open.push(stream);
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let mut deadline = Deadline::after(limit);
        let met = join::come(&[address], RankInfo { rank: 1, size: 2 }, JOB, &mut deadline);
        over.store(true, Ordering::Relaxed);
        met
    });
    shown(&refused(&met.expect_err("nobody of the group"), None)).replace(&address.to_string(), "ADDRESS")
}

#[test]
fn who_is_met_in_the_place_of_rank_0_is_told() {
    let words = [Some("{\"Left\":{\"rank\":1}}\n"), None, Some("")];
    let found = words.map(|words| beside(words, Duration::from_secs(1)));
    expect![[r#"
        the group cannot begin: rank 0 has not come within T s: ADDRESS: whoever listens there is no rank 0
        help: see whether every rank was started and reaches rank 0; `TACIT_WATCH_LIMITS=join=300` waits longer, in seconds
        the group cannot begin: rank 0 has not come within T s: ADDRESS: whoever listens there has closed the connection
        help: see whether every rank was started and reaches rank 0; `TACIT_WATCH_LIMITS=join=300` waits longer, in seconds
        the group cannot begin: rank 0 has not come within T s: ADDRESS: the group has not begun
        help: see whether every rank was started and reaches rank 0; `TACIT_WATCH_LIMITS=join=300` waits longer, in seconds"#]].assert_eq(&found.join("\n"));
}

/// So long that another address would have been tried, if there were one.
#[test]
fn who_stays_silent_in_the_place_of_rank_0_is_told() {
    expect![[r#"
        the group cannot begin: rank 0 has not come within T s: ADDRESS: whoever listens there says nothing
        help: see whether every rank was started and reaches rank 0; `TACIT_WATCH_LIMITS=join=300` waits longer, in seconds"#]].assert_eq(&beside(Some(""), Duration::from_secs(7)));
}

#[test]
fn a_place_where_nobody_can_listen_is_told() {
    let nowhere = Watch::at("nowhere", JOB, RankInfo { rank: 0, size: 2 }, LIMITS).expect_err("is no place");
    // Rank 0 announces nothing where it could not listen.
    let nothing = Watch::announced(|_| Ok([0; ANNOUNCEMENT]), RankInfo { rank: 1, size: 2 }, LIMITS);
    let found = [nowhere, nothing.expect_err("nobody listens")].map(|error| shown(&error));
    expect![[r#"
        the group cannot begin: nowhere: invalid socket address
        help: set TACIT_WATCH to a host and a free port of rank 0, as in `10.0.0.1:7300`
        the group cannot begin: rank 0 could not listen
        help: let ranks reach each other by TCP, or leave the watch out with `TACIT_WATCH=off`"#]]
    .assert_eq(&found.join("\n"));
}
