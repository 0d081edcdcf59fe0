//! Which addresses the ranks of a group have.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::Path;

use tacit_core::{Error, Result};

/// The ports from which those of this machine's ranks are taken: below the ones that systems give to connections, so that
/// none of those takes one before its rank does.
const PORTS: Range<u16> = 20_000..32_000;

/// A machine, and how many ranks it has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) address: IpAddr,
    pub(super) ranks: usize,
}

/// Where the ranks of all machines listen, and where they meet for the watch.
#[derive(Debug)]
pub(super) struct Places {
    machines: Vec<Vec<SocketAddr>>,
    watch: SocketAddr,
}

/// Reads lines `ADDRESS [RANKS]`, a rank where the number is left out; `#` begins a comment.
pub(super) fn read(file: &Path) -> Result<Vec<Host>> {
    let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let hosts = lines.enumerate().filter(|(_, line)| !line.is_empty()).map(|(at, line)| {
        host(line).ok_or_else(|| {
            let help = "write the IP address of a machine and how many ranks it has, as in `10.0.0.1 4`";
            Error::checkpoint(file, None, format!("line {} is {line}", at + 1), help)
        })
    });
    let hosts = hosts.collect::<Result<Vec<_>>>()?;
    if hosts.is_empty() {
        return Err(Error::checkpoint(file, None, "it names no machine", "write a line for each, as in `10.0.0.1 4`"));
    }
    Ok(hosts)
}

fn host(line: &str) -> Option<Host> {
    let mut words = line.split_whitespace();
    let address = words.next()?.parse().ok()?;
    let ranks = words.next().map_or(Some(1), |ranks| ranks.parse().ok().filter(|&ranks| ranks > 0))?;
    words.next().is_none().then_some(Host { address, ranks })
}

impl Places {
    /// So many ranks on this machine, at ports that nothing listens on.
    pub(super) fn here(ranks: usize) -> Result<Self> {
        if ranks == 0 || ranks >= PORTS.len() {
            return Err(Error::invalid(
                format!("{ranks} ranks cannot be started here"),
                "start at least one, as in `-n 4`",
            ));
        }
        let first = std::process::id() as usize * 61 % PORTS.len();
        let ports = (0..PORTS.len()).map(|at| PORTS.start + ((first + at) % PORTS.len()) as u16);
        let free = ports.filter(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
        let mut free = free.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let local: Vec<SocketAddr> = free.by_ref().take(ranks).collect();
        match free.next() {
            Some(watch) if local.len() == ranks => Ok(Self { machines: vec![local], watch }),
            _ => {
                Err(Error::invalid(format!("{} has too few free ports", Ipv4Addr::LOCALHOST), "end what listens there"))
            }
        }
    }

    /// The ranks of these machines, at ports from `port` on; at `port` itself on the first they meet.
    pub(super) fn on(hosts: &[Host], port: u16) -> Result<Self> {
        let most = hosts.iter().map(|host| host.ranks).max().unwrap_or(0);
        if usize::from(port) + most > usize::from(u16::MAX) {
            return Err(Error::invalid(format!("{most} ranks have no ports from {port} on"), "give a lower `--port`"));
        }
        let mut next = std::collections::HashMap::new();
        let mut machine = |host: &Host| {
            let next = next.entry(host.address).or_insert(port);
            let places = (0..host.ranks).map(|_| {
                *next += 1;
                SocketAddr::new(host.address, *next)
            });
            places.collect()
        };
        let machines: Vec<Vec<SocketAddr>> = hosts.iter().map(&mut machine).collect();
        let first = hosts.first().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |host| host.address);
        Ok(Self { machines, watch: SocketAddr::new(first, port) })
    }

    /// The ring's host file.
    pub(super) fn ring(&self) -> String {
        let ranks: Vec<[String; 1]> = self.machines.iter().flatten().map(|place| [place.to_string()]).collect();
        serde_json::json!(ranks).to_string()
    }

    pub(super) fn watch(&self) -> String {
        self.watch.to_string()
    }

    /// Whether there is only one rank.
    pub(super) fn is_one(&self) -> bool {
        self.machines.iter().flatten().count() == 1
    }

    /// The ranks of a machine.
    pub(super) fn ranks(&self, machine: usize) -> Range<usize> {
        let before = self.machines[..machine].iter().map(Vec::len).sum();
        before..before + self.machines[machine].len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_machines_and_their_ranks() {
        assert_eq!(host("10.0.0.1 4"), Some(Host { address: [10, 0, 0, 1].into(), ranks: 4 }));
        assert_eq!(host("10.0.0.1"), Some(Host { address: [10, 0, 0, 1].into(), ranks: 1 }));
        for wrong in ["server", "10.0.0.1 0", "10.0.0.1 four", "10.0.0.1 4 5"] {
            assert_eq!(host(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_rank_has_a_port_of_its_own() {
        let machine = |last, ranks| Host { address: [10, 0, 0, last].into(), ranks };
        let places = Places::on(&[machine(1, 2), machine(2, 1), machine(1, 1)], 7300).expect("ports");
        assert_eq!(places.ring(), r#"[["10.0.0.1:7301"],["10.0.0.1:7302"],["10.0.0.2:7301"],["10.0.0.1:7303"]]"#);
        assert_eq!(places.watch(), "10.0.0.1:7300");
        assert_eq!(places.ranks(1), 2..3);
        assert!(Places::on(&[machine(1, 300)], 65_300).is_err());
        let here = Places::here(3).expect("ports");
        let mut ports: Vec<u16> = here.machines[0].iter().chain([&here.watch]).map(SocketAddr::port).collect();
        ports.dedup();
        assert_eq!(ports.len(), 4);
        assert!(Places::here(0).is_err());
    }
}
