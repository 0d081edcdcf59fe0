//! Where the ranks of a group meet for their side connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::Path;

use tacit_bridge::ports;
use tacit_core::{Error, Result};

use super::history::{OFFSET, checksum};

/// The variable that names the place.
pub(super) const VARIABLE: &str = "TACIT_WATCH";

/// The variable that names the job, so that ranks of another are told apart that come to the same place.
const JOB: &str = "TACIT_JOB";

/// The number of this process's job, 0 where it has no name.
///
/// It tells jobs apart and keeps nobody out: it is sent as plain text, as everything between ranks is.
pub(crate) fn job() -> u64 {
    std::env::var_os(JOB).map_or(0, |name| number_of_job(name.as_encoded_bytes()))
}

/// The same on every machine, and 0 for no name alone.
fn number_of_job(name: &[u8]) -> u64 {
    if name.is_empty() { 0 } else { checksum(OFFSET, name.iter().copied()).max(1) }
}

/// Where ranks meet, as far as it is known before MLX's engine begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// `TACIT_WATCH=off`: they do not.
    Nowhere,
    /// At this host and port, of rank 0.
    At(String),
    /// Rank 0 says it to the others through the engine, once that has begun.
    Announced,
}

impl Place {
    /// `TACIT_WATCH` where it is set; at rank 0's host by the ring's host file where there is one.
    pub(crate) fn from_environment() -> Result<Self> {
        match std::env::var_os(VARIABLE) {
            Some(text) if text == "off" => return Ok(Self::Nowhere),
            Some(text) if !text.is_empty() => return Ok(Self::At(text.to_string_lossy().into_owned())),
            _ => {}
        }
        match std::env::var_os("MLX_HOSTFILE") {
            Some(file) if std::env::var_os("MLX_RANK").is_some() => beside_the_ring(Path::new(&file)).map(Self::At),
            _ => Ok(Self::Announced),
        }
    }
}

/// Rank 0's first host in the ring's host file, with the port after the highest one that the file names: every rank finds
/// the same without a word.
fn beside_the_ring(file: &Path) -> Result<String> {
    let mut ports = Vec::new();
    let mut host = None;
    for address in ranks_of_ring(file)?.iter().flatten() {
        let port = address.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?)));
        let (name, port) = port.ok_or_else(|| wrong(file, format!("{address} has no port")))?;
        host.get_or_insert_with(|| name.to_owned());
        ports.push(port);
    }
    let (Some(host), Some(highest), Some(lowest)) = (host, ports.iter().max(), ports.iter().min()) else {
        return Err(wrong(file, "it names no rank".to_owned()));
    };
    let port = highest.checked_add(1).unwrap_or_else(|| lowest.saturating_sub(1));
    Ok(format!("{host}:{port}"))
}

/// The addresses of each rank in the ring's host file.
pub(crate) fn ranks_of_ring(file: &Path) -> Result<Vec<Vec<String>>> {
    let text = std::fs::read_to_string(file).map_err(Error::file("read", file))?;
    serde_json::from_str(&text).map_err(|error| wrong(file, error.to_string()))
}

fn wrong(file: &Path, reason: String) -> Error {
    Error::checkpoint(file, None, reason, "write a list with a list of `ip:port` for each rank, as MLX's ring reads it")
}

/// Waits for connections at `place`, or at its port on every address where this machine has none of that name.
pub(super) fn listen(place: &str) -> io::Result<TcpListener> {
    let mut failed = None;
    for address in resolve(place)? {
        match ports::listen(reachable(place, address)) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = Some((error, address.port())),
        }
    }
    match failed {
        Some((error, port)) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            ports::listen((Ipv4Addr::UNSPECIFIED, port).into())
        }
        Some((error, _)) => Err(error),
        None => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

/// The address of `place`, or every address where that is one of the loopback, which many systems give a machine's own name: the
/// other machines know the name by another one.
fn reachable(place: &str, address: SocketAddr) -> SocketAddr {
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    let is_meant = host == "localhost" || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if address.ip().is_loopback() && !is_meant { (Ipv4Addr::UNSPECIFIED, address.port()).into() } else { address }
}

/// The address at which the others reach who listens.
pub(super) fn address_of(listener: &TcpListener) -> IpAddr {
    let own = listener.local_addr().map(|address| address.ip()).ok().filter(|address| !address.is_unspecified());
    own.or_else(|| outward().map(IpAddr::from)).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

pub(super) fn resolve(place: &str) -> io::Result<Vec<SocketAddr>> {
    place.to_socket_addrs().map(Iterator::collect)
}

pub(crate) const ANNOUNCEMENT: usize = 64;

/// What rank 0 tells the others where nothing names a place: its addresses, and a number that tells this group from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(super) token: u64,
    port: u16,
    hosts: Vec<Ipv4Addr>,
}

impl Announcement {
    /// Listens on a port that the system chooses.
    pub(super) fn listen() -> io::Result<(Self, TcpListener)> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let port = listener.local_addr()?.port();
        let token = getrandom::u64()?.max(1);
        let hosts = outward().into_iter().chain([Ipv4Addr::LOCALHOST]).collect();
        Ok((Self { token, port, hosts }, listener))
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.hosts.iter().map(|&host| (host, self.port).into()).collect()
    }

    pub(super) fn bytes(&self) -> [u8; ANNOUNCEMENT] {
        let mut bytes = [0; ANNOUNCEMENT];
        bytes[..8].copy_from_slice(&self.token.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.port.to_le_bytes());
        for (place, host) in bytes[10..].chunks_exact_mut(4).zip(&self.hosts) {
            place.copy_from_slice(&host.octets());
        }
        bytes
    }

    /// None where rank 0 could not listen.
    pub(super) fn read(bytes: &[u8; ANNOUNCEMENT]) -> Option<Self> {
        let token = u64::from_le_bytes(bytes[..8].try_into().ok()?);
        let port = u16::from_le_bytes(bytes[8..10].try_into().ok()?);
        let hosts = bytes[10..].chunks_exact(4).filter_map(|host| <[u8; 4]>::try_from(host).ok().map(Ipv4Addr::from));
        let hosts = hosts.filter(|host| !host.is_unspecified()).collect();
        (port != 0).then_some(Self { token, port, hosts })
    }
}

/// The address by which this machine reaches others; connecting a socket of datagrams only asks for the route.
fn outward() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address of the range for documentation, which no machine has.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    match socket.local_addr().ok()? {
        SocketAddr::V4(address) if !address.ip().is_loopback() => Some(*address.ip()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use expect_test::expect;

    use super::*;

    #[test]
    fn the_place_beside_the_ring_is_the_same_for_all_and_no_port_of_it() {
        let file = std::env::temp_dir().join(format!("tacit-watch-hosts-{}", std::process::id()));
        let place = |text: &str| {
            std::fs::write(&file, text).expect("writes");
            beside_the_ring(&file)
        };
        assert_eq!(
            place(r#"[["10.0.0.1:5000", "10.0.0.1:5003"], ["10.0.0.2:5001"]]"#).expect("a place"),
            "10.0.0.1:5004"
        );
        assert_eq!(place(r#"[["10.0.0.1:65535"], ["10.0.0.2:5001"]]"#).expect("a place"), "10.0.0.1:5000");
        for wrong in ["", "{}", "[]", r#"[["10.0.0.1:99999"]]"#] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
        let said = ["[[]]", r#"[["10.0.0.1"]]"#].map(|wrong| place(wrong).expect_err("is refused").to_string());
        expect![[r"
            FILE: it names no rank
            help: write a list with a list of `ip:port` for each rank, as MLX's ring reads it
            FILE: 10.0.0.1 has no port
            help: write a list with a list of `ip:port` for each rank, as MLX's ring reads it"]]
        .assert_eq(&said.join("\n").replace(file.to_str().expect("text"), "FILE"));
        drop(std::fs::remove_file(&file));
    }

    #[test]
    fn the_name_of_a_machine_is_an_address_that_others_reach() {
        let local: [SocketAddr; 2] = [(Ipv4Addr::new(127, 0, 1, 1), 7300).into(), (Ipv6Addr::LOCALHOST, 7300).into()];
        for address in local {
            assert_eq!(reachable("node7:7300", address).to_string(), "0.0.0.0:7300");
            for place in ["localhost:7300", "127.0.1.1:7300", "[::1]:7300"] {
                assert_eq!(reachable(place, address), address);
            }
        }
        let outer: SocketAddr = (Ipv4Addr::new(10, 0, 0, 7), 7300).into();
        assert_eq!(reachable("node7:7300", outer), outer);
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
        assert!(!address_of(&listener).is_unspecified());
    }

    #[test]
    fn jobs_of_different_names_have_different_numbers_and_only_no_name_is_0() {
        assert_eq!(number_of_job(b""), 0);
        assert_ne!(number_of_job(b"a"), number_of_job(b"b"));
        // The same in every build, since ranks of a group may run others.
        assert_eq!(number_of_job(b"4711"), 0x4b02_25d8_977b_d192);
    }

    #[test]
    fn an_announcement_is_what_it_was() {
        let (announced, listener) = Announcement::listen().expect("listens");
        assert_eq!(Announcement::read(&announced.bytes()), Some(announced.clone()));
        assert!(
            announced.addresses().contains(&(Ipv4Addr::LOCALHOST, listener.local_addr().expect("bound").port()).into())
        );
        assert_eq!(Announcement::read(&[0; ANNOUNCEMENT]), None);
    }
}
