//! The ranks come to rank 0, and the group begins when all are there.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::{Failing, Frame, NotJoined};
use super::link::{Closed, Link};
use super::meet;
use super::rank_info::RankInfo;
use crate::named::named;
use crate::pauses::{self, Deadline};

/// Changes whenever frames do.
pub(super) const VERSION: u32 = 2;

/// How long whoever connects may keep silent.
const NAMELESS: Duration = Duration::from_secs(5);

/// How many may have connected at a time that have not said who they are; the first of more than these goes.
const STRANGERS: usize = 256;

const LOOK: Duration = Duration::from_millis(5);

/// All have come: the links, by rank, and the addresses of all ranks.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) links: BTreeMap<usize, Link>,
    pub(super) addresses: Vec<String>,
}

/// Rank 0: waits for the others. `token` is the job's number, 0 where it has none.
pub(super) fn host(
    listener: &TcpListener,
    rank_info: RankInfo,
    token: u64,
    deadline: &mut Deadline,
) -> Result<Joined, NotJoined> {
    let begun = Instant::now();
    let system = |error: std::io::Error| NotJoined { reason: error.to_string(), kind: Failing::System };
    listener.set_nonblocking(true).map_err(system)?;
    let mut hall = Hall { rank_info, token, strangers: VecDeque::new(), links: BTreeMap::new(), turned_away: None };
    let mut told = None;
    loop {
        // The rest of a crowd waits for the next round.
        for (stream, _) in (0..STRANGERS).map_while(|_| listener.accept().ok()) {
            hall.strangers.extend(Link::new(stream).ok().map(|link| (link, Instant::now())));
        }
        let surplus = hall.strangers.len().saturating_sub(STRANGERS);
        hall.strangers.drain(..surplus);
        if let Err(refused) = hall.admit() {
            return hall.refuse(refused);
        }
        // One that is gone before the group begins may come again.
        hall.links.retain(|_, link| link.receive(&mut Vec::new()).is_ok());
        let links = &mut hall.links;
        let missing: Vec<usize> = (1..rank_info.size).filter(|rank| !links.contains_key(rank)).collect();
        if missing.is_empty() {
            let here = place(meet::address_of(listener), std::process::id());
            let others = links.values().map(|link| place(link.address.ip(), link.process));
            let addresses: Vec<String> = std::iter::once(here).chain(others).collect();
            let begin = Frame::Begin { addresses: addresses.clone() };
            for link in links.values_mut() {
                link.send(&begin);
            }
            return Ok(Joined { links: hall.links, addresses });
        }
        if deadline.is_over() {
            let late = not_come(&missing, begun.elapsed());
            let refused = match hall.turned_away.take() {
                Some(reason) => NotJoined { reason: format!("{late}, and {reason}"), kind: Failing::Unfit },
                None => NotJoined { reason: late, kind: Failing::Late },
            };
            return hall.refuse(refused);
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

/// Who has come to rank 0.
struct Hall {
    rank_info: RankInfo,
    token: u64,
    /// Who has not said who it is, and since when.
    strangers: VecDeque<(Link, Instant)>,
    /// The ranks.
    links: BTreeMap<usize, Link>,
    /// Why one that said it is a rank was sent away.
    turned_away: Option<String>,
}

impl Hall {
    /// Hears who the strangers are. The error is that of one who ends the group.
    fn admit(&mut self) -> Result<(), NotJoined> {
        for _ in 0..self.strangers.len() {
            let Some((mut link, since)) = self.strangers.pop_front() else { break };
            let mut frames = Vec::new();
            let open = link.receive(&mut frames);
            match (frames.into_iter().next(), open) {
                (Some(Frame::Hello { version, rank, size, token, process }), Ok(())) => {
                    if token != self.token {
                        let reason = "another job meets here".to_owned();
                        send_away(link, NotJoined { reason, kind: Failing::Elsewhere });
                    } else if let Some(reason) = self.unfit(version, rank, size) {
                        let refused = NotJoined { reason: reason.clone(), kind: Failing::Unfit };
                        // One that knows the job's name belongs to it. Without a name it may be anybody's, whom the ranks of
                        // this group, which may all be well, need not end for.
                        if self.token != 0 {
                            // Whose rank is in doubt is told as well.
                            self.links.insert(usize::MAX, link);
                            return Err(refused);
                        }
                        send_away(link, refused);
                        self.turned_away = Some(reason);
                    } else {
                        self.links.insert(rank, link.known(process));
                    }
                }
                (None, Ok(())) if since.elapsed() < NAMELESS => self.strangers.push_back((link, since)),
                // No rank of a group.
                _ => {}
            }
        }
        Ok(())
    }

    /// Why the rank that came cannot be of this group.
    fn unfit(&self, version: u32, rank: usize, size: usize) -> Option<String> {
        if version != VERSION {
            Some(format!("rank {rank} runs another version of Tacit than rank 0"))
        } else if size != self.rank_info.size {
            Some(format!(
                "rank {rank} was started for a group of {size}, and rank 0 for one of {}",
                self.rank_info.size
            ))
        } else if rank == 0 || self.links.contains_key(&rank) {
            Some(format!("two processes were started as rank {rank}"))
        } else if rank >= size {
            Some(format!("a process was started as rank {rank} of {size}"))
        } else {
            None
        }
    }

    /// The group does not begin, and all who have come are told why.
    fn refuse<T>(self, refused: NotJoined) -> Result<T, NotJoined> {
        self.links.into_values().for_each(|link| send_away(link, refused.clone()));
        Err(refused)
    }
}

fn send_away(mut link: Link, refused: NotJoined) {
    link.send(&Frame::Refused(refused));
    link.finish(LOOK);
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
pub(super) fn come(
    addresses: &[SocketAddr],
    rank_info: RankInfo,
    token: u64,
    deadline: &mut Deadline,
) -> Result<Joined, NotJoined> {
    let begun = Instant::now();
    // Rank 0 knows more, so its word is waited for where both began at the same time.
    deadline.extend(Duration::from_millis(500));
    let mut missing = vec![0];
    let mut last = None;
    while !deadline.is_over() {
        for address in addresses {
            let timeout = deadline.remaining().clamp(LOOK, pauses::LOOK);
            match TcpStream::connect_timeout(address, timeout) {
                // A port of the system's choice may be connected to itself.
                Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {}
                Ok(stream) => match greet(stream, rank_info, token, deadline, &mut missing) {
                    Ok(joined) => return Ok(joined),
                    Err(Turned::Away(refused)) => return Err(refused),
                    // One that the end of the time cuts off knows less than one before it.
                    Err(Turned::Wrong(_)) if last.is_some() && deadline.is_over() => {}
                    Err(Turned::Wrong(reason)) => last = Some(format!("{address}: {reason}")),
                },
                Err(error) => last = Some(format!("{address}: {error}")),
            }
        }
        thread::sleep(Duration::from_millis(50).min(deadline.remaining()));
    }
    let mut reason = not_come(&missing, begun.elapsed());
    if let Some(last) = last.filter(|_| missing == [0]) {
        reason = format!("{reason}: {last}");
    }
    Err(NotJoined { reason, kind: Failing::Late })
}

/// How greeting at an address may end that is not the group's begin.
enum Turned {
    /// Rank 0 of this job does not let the group begin.
    Away(NotJoined),
    /// Rank 0 of this job is not there, or not there any more.
    Wrong(String),
}

/// Waits at rank 0 until the group begins.
fn greet(
    stream: TcpStream,
    rank_info: RankInfo,
    token: u64,
    deadline: &mut Deadline,
    missing: &mut Vec<usize>,
) -> Result<Joined, Turned> {
    let wrong = |reason: &str| Turned::Wrong(reason.to_owned());
    let mut link = Link::new(stream).map_err(|error| Turned::Wrong(error.to_string()))?.known(0);
    link.send(&Frame::Hello {
        version: VERSION,
        rank: rank_info.rank,
        size: rank_info.size,
        token,
        process: std::process::id(),
    });
    let since = Instant::now();
    let mut answered = false;
    loop {
        let mut frames = Vec::new();
        let open = link.receive(&mut frames);
        for frame in frames {
            answered = true;
            match frame {
                Frame::Begin { addresses } => return Ok(Joined { links: BTreeMap::from([(0, link)]), addresses }),
                Frame::Missing { ranks } => *missing = ranks,
                Frame::Refused(refused) if refused.kind == Failing::Elsewhere => return Err(wrong(&refused.reason)),
                Frame::Refused(refused) => return Err(Turned::Away(refused)),
                _ => return Err(wrong("whoever listens there is no rank 0")),
            }
        }
        if matches!(open, Err(Closed)) {
            return Err(wrong("whoever listens there has closed the connection"));
        }
        // Rank 0 says at once who is missing, so a silent one is something else: another address may be right.
        if !answered && since.elapsed() > NAMELESS {
            return Err(wrong("whoever listens there says nothing"));
        }
        if deadline.is_over() {
            return Err(wrong("the group has not begun"));
        }
        thread::sleep(LOOK);
    }
}
