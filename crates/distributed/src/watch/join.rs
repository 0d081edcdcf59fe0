//! The ranks come to rank 0, and the group begins when all are there.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::Seat;
use super::frame::{Failing, Frame, NotJoined};
use super::judge::named;
use super::link::{Closed, Link};

/// Changes whenever frames do.
const VERSION: u32 = 1;

/// How long whoever connects may keep silent.
const NAMELESS: Duration = Duration::from_secs(5);

const LOOK: Duration = Duration::from_millis(5);

/// All have come: the links, by rank, and the addresses of all ranks.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) links: BTreeMap<usize, Link>,
    pub(super) addresses: Vec<String>,
}

/// Rank 0: waits for the others.
pub(super) fn host(
    listener: &TcpListener,
    own: IpAddr,
    seat: Seat,
    token: u64,
    until: Instant,
) -> Result<Joined, NotJoined> {
    let begun = Instant::now();
    let system = |error: std::io::Error| NotJoined { reason: error.to_string(), kind: Failing::System };
    listener.set_nonblocking(true).map_err(system)?;
    let mut nameless: Vec<(Link, Instant)> = Vec::new();
    let mut links: BTreeMap<usize, Link> = BTreeMap::new();
    let mut told = None;
    let refuse = |links: BTreeMap<usize, Link>, refused: NotJoined| {
        for (_, mut link) in links {
            link.send(&Frame::Refused(refused.clone()));
            link.finish(Duration::from_millis(100));
        }
        Err(refused)
    };
    loop {
        while let Ok((stream, _)) = listener.accept() {
            nameless.extend(Link::new(stream).ok().map(|link| (link, Instant::now())));
        }
        for (mut link, since) in std::mem::take(&mut nameless) {
            let mut frames = Vec::new();
            let open = link.receive(&mut frames);
            match (frames.into_iter().next(), open) {
                (Some(Frame::Hello { version, rank, size, token: theirs, process }), Ok(())) => {
                    if theirs != token {
                        let (reason, kind) = ("another group meets here".to_owned(), Failing::Elsewhere);
                        link.send(&Frame::Refused(NotJoined { reason, kind }));
                        link.finish(LOOK);
                    } else if let Some(reason) = unfit(version, rank, size, seat, &links) {
                        // Whose rank is in doubt is told as well.
                        let mut links = links;
                        links.insert(usize::MAX, link);
                        return refuse(links, NotJoined { reason, kind: Failing::Unfit });
                    } else {
                        link.process = process;
                        links.insert(rank, link);
                    }
                }
                (None, Ok(())) if since.elapsed() < NAMELESS => nameless.push((link, since)),
                // No rank of a group.
                _ => {}
            }
        }
        // One that is gone before the group begins may come again.
        links.retain(|_, link| link.receive(&mut Vec::new()).is_ok());
        let missing: Vec<usize> = (1..seat.size).filter(|rank| !links.contains_key(rank)).collect();
        if missing.is_empty() {
            let own = place(own, std::process::id());
            let others = links.values().map(|link| place(link.address.ip(), link.process));
            let addresses: Vec<String> = std::iter::once(own).chain(others).collect();
            let begin = Frame::Begin { addresses: addresses.clone() };
            for link in links.values_mut() {
                link.send(&begin);
            }
            return Ok(Joined { links, addresses });
        }
        if Instant::now() > until {
            let reason = not_come(&missing, begun.elapsed());
            return refuse(links, NotJoined { reason, kind: Failing::Late });
        }
        let now = (missing, links.len());
        if told.as_ref() != Some(&now) {
            let missing = Frame::Missing { ranks: now.0.clone() };
            for link in links.values_mut() {
                link.send(&missing);
            }
            told = Some(now);
        }
        thread::sleep(LOOK);
    }
}

/// Why the rank that came cannot be of this group.
fn unfit(version: u32, rank: usize, size: usize, seat: Seat, links: &BTreeMap<usize, Link>) -> Option<String> {
    if version != VERSION {
        Some(format!("rank {rank} runs another version of Tacit than rank 0"))
    } else if size != seat.size {
        Some(format!("rank {rank} was started for a group of {size}, and rank 0 for one of {}", seat.size))
    } else if rank == 0 || links.contains_key(&rank) {
        Some(format!("two processes were started as rank {rank}"))
    } else if rank >= size {
        Some(format!("a process was started as rank {rank} of {size}"))
    } else {
        None
    }
}

fn not_come(missing: &[usize], waited: Duration) -> String {
    let have = if missing.len() == 1 { "has" } else { "have" };
    format!("{} {have} not come within {:.1} s", named(missing), waited.as_secs_f64())
}

/// Where a process is, for those who look for it.
fn place(host: IpAddr, process: u32) -> String {
    format!("{host}, process {process}")
}

/// Another rank: goes to rank 0, at the first of `addresses` where its group meets.
pub(super) fn come(addresses: &[SocketAddr], seat: Seat, token: u64, until: Instant) -> Result<Joined, NotJoined> {
    let begun = Instant::now();
    // Rank 0 knows more, so its word is waited for where both began at the same time.
    let until = until + Duration::from_millis(500);
    let mut missing = vec![0];
    let mut last = None;
    while Instant::now() < until {
        for address in addresses {
            let left = until.saturating_duration_since(Instant::now()).clamp(LOOK, Duration::from_secs(1));
            match TcpStream::connect_timeout(address, left) {
                // A port of the system's choice may be connected to itself.
                Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {}
                Ok(stream) => match greet(stream, seat, token, until, &mut missing) {
                    Ok(Some(joined)) => return Ok(joined),
                    Ok(None) => {}
                    Err(refused) => return Err(refused),
                },
                Err(error) => last = Some(format!("{address}: {error}")),
            }
        }
        thread::sleep(Duration::from_millis(50).min(until.saturating_duration_since(Instant::now())));
    }
    let mut reason = not_come(&missing, begun.elapsed());
    if let Some(last) = last.filter(|_| missing == [0]) {
        reason = format!("{reason}: {last}");
    }
    Err(NotJoined { reason, kind: Failing::Late })
}

/// Waits at rank 0 until the group begins; none where it closes the connection before that, or is no rank 0.
fn greet(
    stream: TcpStream,
    seat: Seat,
    token: u64,
    until: Instant,
    missing: &mut Vec<usize>,
) -> Result<Option<Joined>, NotJoined> {
    let Ok(mut link) = Link::new(stream) else { return Ok(None) };
    link.send(&Frame::Hello { version: VERSION, rank: seat.rank, size: seat.size, token, process: std::process::id() });
    let mut open = Ok(());
    loop {
        let mut frames = Vec::new();
        let still = link.receive(&mut frames);
        for frame in frames {
            match frame {
                Frame::Begin { addresses } => {
                    return Ok(Some(Joined { links: BTreeMap::from([(0, link)]), addresses }));
                }
                Frame::Missing { ranks } => *missing = ranks,
                Frame::Refused(refused) if refused.kind != Failing::Elsewhere => return Err(refused),
                _ => return Ok(None),
            }
        }
        if matches!(open, Err(Closed)) || Instant::now() > until {
            return Ok(None);
        }
        open = still;
        thread::sleep(LOOK);
    }
}
