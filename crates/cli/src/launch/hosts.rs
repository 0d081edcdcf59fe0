//! Which addresses the ranks of a group have.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::Path;

use tacit_bridge::ports::Held;
use tacit_core::{Error, Result};

/// A line of a file of machines: one of them, and how many of the next ranks it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) address: Ipv4Addr,
    pub(super) ranks: usize,
}

/// Where the ranks of all machines listen, and where they meet for the watch.
#[derive(Debug)]
pub(super) struct Places {
    /// In the order of the ranks.
    ranks: Vec<SocketAddrV4>,
    watch: SocketAddrV4,
    /// Their ports, where they are this machine's own.
    _held: Option<Held>,
}

/// Reads lines `ADDRESS [RANKS]`, a rank where the number is left out; `#` begins a comment.
pub(super) fn read(file: &Path) -> Result<Vec<Host>> {
    let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let hosts = lines.enumerate().filter(|(_, line)| !line.is_empty()).map(|(at, line)| {
        host(line).map_err(|help| Error::checkpoint(file, None, format!("line {} is {line}", at + 1), help))
    });
    let hosts = hosts.collect::<Result<Vec<_>>>()?;
    if hosts.is_empty() {
        return Err(Error::checkpoint(file, None, "it names no machine", "write a line for each, as in `10.0.0.1 4`"));
    }
    Ok(hosts)
}

/// What a line says, or what it should say.
fn host(line: &str) -> Result<Host, &'static str> {
    const HELP: &str = "write the IPv4 address of a machine and how many ranks it has, as in `10.0.0.1 4`";
    let mut words = line.split_whitespace();
    let address = match words.next().and_then(|word| word.parse().ok()) {
        Some(IpAddr::V4(address)) => address,
        // MLX's ring ends an address at its first colon.
        Some(IpAddr::V6(_)) => return Err("give the machine's IPv4 address: the ring takes no other"),
        None => return Err(HELP),
    };
    let ranks = words.next().map_or(Ok(1), |ranks| ranks.parse().ok().filter(|&ranks| ranks > 0).ok_or(HELP))?;
    if words.next().is_some() { Err(HELP) } else { Ok(Host { address, ranks }) }
}

/// Each machine once, in the order of the lines, with all of its ranks.
pub(super) fn machines(hosts: &[Host]) -> Vec<Host> {
    let mut machines: Vec<Host> = Vec::new();
    for host in hosts {
        match machines.iter_mut().find(|machine| machine.address == host.address) {
            Some(machine) => machine.ranks = machine.ranks.saturating_add(host.ranks),
            None => machines.push(*host),
        }
    }
    machines
}

impl Places {
    /// So many ranks on this machine, at ports that nobody has and that stay theirs for as long as this lives.
    pub(super) fn here(ranks: usize) -> Result<Self> {
        if ranks == 0 {
            return Err(Error::invalid("0 ranks cannot be started here", "start at least one, as in `-n 4`"));
        }
        // One more, for the watch.
        let held = Held::new(ranks.saturating_add(1)).map_err(|error| {
            let help = "start fewer ranks, or end what listens on this machine";
            Error::invalid(format!("{ranks} ranks have no ports here: {error}"), help)
        })?;
        let mut places = held.numbers().iter().map(|&port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        let local = places.by_ref().take(ranks).collect();
        let watch = places.next().unwrap_or(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
        Ok(Self { ranks: local, watch, _held: Some(held) })
    }

    /// The ranks of these lines, at ports from `port` on; at `port` itself on the first machine they meet.
    pub(super) fn on(hosts: &[Host], port: u16) -> Result<Self> {
        let most = machines(hosts).iter().map(|machine| machine.ranks).max().unwrap_or(0);
        if most > usize::from(u16::MAX - port) {
            return Err(Error::invalid(format!("{most} ranks have no ports from {port} on"), "give a lower `--port`"));
        }
        let mut next: BTreeMap<Ipv4Addr, u16> = BTreeMap::new();
        let addresses = hosts.iter().flat_map(|host| std::iter::repeat_n(host.address, host.ranks));
        let ranks = addresses.map(|address| {
            let last = next.entry(address).or_insert(port);
            *last += 1;
            SocketAddrV4::new(address, *last)
        });
        let ranks = ranks.collect();
        let first = hosts.first().map_or(Ipv4Addr::LOCALHOST, |host| host.address);
        Ok(Self { ranks, watch: SocketAddrV4::new(first, port), _held: None })
    }

    /// The ring's host file.
    pub(super) fn ring(&self) -> String {
        let ranks: Vec<[String; 1]> = self.ranks.iter().map(|place| [place.to_string()]).collect();
        serde_json::json!(ranks).to_string()
    }

    pub(super) fn watch(&self) -> String {
        self.watch.to_string()
    }

    /// Whether there is only one rank.
    pub(super) fn is_one(&self) -> bool {
        self.ranks.len() == 1
    }

    pub(super) fn ranks(&self) -> Vec<usize> {
        (0..self.ranks.len()).collect()
    }

    /// The ranks of a machine, of all of its lines.
    pub(super) fn ranks_of(&self, machine: Ipv4Addr) -> Vec<usize> {
        self.ranks().into_iter().filter(|&rank| *self.ranks[rank].ip() == machine).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(last: u8, ranks: usize) -> Host {
        Host { address: [10, 0, 0, last].into(), ranks }
    }

    #[test]
    fn lines_name_machines_and_their_ranks() {
        assert_eq!(host("10.0.0.1 4"), Ok(machine(1, 4)));
        assert_eq!(host("10.0.0.1"), Ok(machine(1, 1)));
        for wrong in ["server", "10.0.0.1 0", "10.0.0.1 four", "10.0.0.1 4 5", "::1 2", "fe80::1"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_rank_has_a_port_of_its_own_and_a_machine_all_ranks_of_its_lines() {
        let lines = [machine(1, 2), machine(2, 1), machine(1, 1)];
        let places = Places::on(&lines, 7300).expect("ports");
        assert_eq!(places.ring(), r#"[["10.0.0.1:7301"],["10.0.0.1:7302"],["10.0.0.2:7301"],["10.0.0.1:7303"]]"#);
        assert_eq!(places.watch(), "10.0.0.1:7300");
        assert_eq!(places.ranks_of([10, 0, 0, 1].into()), [0, 1, 3]);
        assert_eq!(places.ranks_of([10, 0, 0, 2].into()), [2]);
        assert_eq!(machines(&lines), [machine(1, 3), machine(2, 1)]);
        let here = Places::here(3).expect("ports");
        let mut ports: Vec<u16> = here.ranks.iter().chain([&here.watch]).map(SocketAddrV4::port).collect();
        ports.dedup();
        assert_eq!(ports.len(), 4);
    }

    #[test]
    fn more_ranks_than_ports_are_refused() {
        let all = [machine(1, usize::MAX), machine(1, usize::MAX)];
        assert!(Places::on(&all, 7300).is_err());
        assert!(Places::on(&[machine(1, 150), machine(2, 1), machine(1, 150)], 65_300).is_err());
        assert!(Places::on(&[machine(1, 235)], 65_300).is_ok());
        assert!(Places::here(0).is_err());
        assert!(Places::here(50_000).is_err());
        assert!(Places::here(usize::MAX).is_err());
    }
}
