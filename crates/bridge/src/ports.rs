//! Ports of this machine that are held for processes which are about to listen there.
//!
//! A port that was free when somebody looked may be another's before its process listens. MLX's ring shares its ports
//! with whoever wants to, so two groups that found the same one would be connected to each other.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::ops::Range;

use socket2::{Domain, Socket, Type};

/// Where ports are taken from: below those that systems give to connections.
const PORTS: Range<u16> = 20_000..32_000;

/// Ports of 127.0.0.1 that nobody else holds, until this is dropped.
///
/// Whoever shares ports (`SO_REUSEPORT`) and runs for the same user can listen there meanwhile: MLX's ring, and [`listen`].
#[derive(Debug)]
pub struct Held {
    numbers: Vec<u16>,
    _sockets: Vec<Socket>,
}

impl Held {
    /// So many ports in a row, of which none is anybody's.
    ///
    /// # Errors
    ///
    /// There are not so many free ones, or a process may not have so many sockets.
    pub fn new(count: usize) -> io::Result<Self> {
        let count = u16::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut first = PORTS.start + (std::process::id() * 61 % PORTS.len() as u32) as u16;
        let mut tried = 0;
        while tried < PORTS.len() {
            if PORTS.end - first < count {
                tried += usize::from(PORTS.end - first);
                first = PORTS.start;
                continue;
            }
            let row = first..first + count;
            let sockets = row.clone().map_while(|port| hold(port).transpose()).collect::<io::Result<Vec<_>>>()?;
            if sockets.len() == row.len() {
                return Ok(Self { numbers: row.collect(), _sockets: sockets });
            }
            // No row has the port that is another's.
            tried += sockets.len() + 1;
            first += sockets.len() as u16 + 1;
        }
        Err(io::ErrorKind::AddrNotAvailable.into())
    }

    /// Their numbers.
    #[must_use]
    pub fn numbers(&self) -> &[u16] {
        &self.numbers
    }
}

/// A socket at this port of 127.0.0.1, none where the port is another's.
fn hold(port: u16) -> io::Result<Option<Socket>> {
    // A socket is an open file, of which a process may have only so many: that error is not another's port.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into()).is_err() {
        return Ok(None);
    }
    // Shared only once it is ours, so that two processes never hold one.
    socket.set_reuse_port(true)?;
    Ok(Some(socket))
}

/// Listens at an address, also at a port that is [`Held`] for this process.
///
/// # Errors
///
/// Another listens there, or the address does not belong to this machine.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).or_else(|error| {
        if error.kind() != io::ErrorKind::AddrInUse {
            return Err(error);
        }
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        // Another that listens alone does not share, and its error is as good as the first.
        socket.bind(&address.into())?;
        socket.listen(128)?;
        Ok(socket.into())
    })
}
