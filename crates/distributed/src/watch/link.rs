//! One side connection, read and written without waiting.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::frame::{Frame, LONGEST};

#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    pub(super) address: SocketAddr,
    /// The process of the other side, once it has said it.
    pub(super) process: u32,
    /// When something last came.
    pub(super) heard: Instant,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

/// The connection is at its end: the other side closed it, or sent what no rank sends.
#[derive(Debug)]
pub(super) struct Closed;

impl Link {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let address = stream.peer_addr()?;
        Ok(Self { stream, address, process: 0, heard: Instant::now(), incoming: Vec::new(), outgoing: Vec::new() })
    }

    /// Sends what the system takes now, and the rest when `flush` is next called.
    ///
    /// That the other side is gone is found by `receive`, which has read its last words then.
    pub(super) fn send(&mut self, frame: &Frame) {
        self.outgoing.extend(frame.line());
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(written) if written > 0 => drop(self.outgoing.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                _ => return self.outgoing.clear(),
            }
        }
    }

    /// Adds what has come to `frames`.
    pub(super) fn receive(&mut self, frames: &mut Vec<Frame>) -> Result<(), Closed> {
        self.flush();
        let mut piece = [0; 4096];
        let closed = loop {
            match self.stream.read(&mut piece) {
                Ok(0) => break true,
                Ok(read) => {
                    self.heard = Instant::now();
                    self.incoming.extend_from_slice(&piece[..read]);
                    if self.incoming.len() > 2 * LONGEST {
                        break true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(_) => break true,
            }
        };
        while let Some(end) = self.incoming.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.incoming.drain(..=end).collect();
            frames.push(Frame::read(&line).ok_or(Closed)?);
        }
        if closed || self.incoming.len() > LONGEST { Err(Closed) } else { Ok(()) }
    }

    /// The other side finds the connection closed once it has read everything.
    pub(super) fn say_no_more(&mut self) {
        if self.outgoing.is_empty() {
            drop(self.stream.shutdown(Shutdown::Write));
        }
    }

    /// Waits for what is yet unsent to go, for as long as `limit`.
    pub(super) fn finish(mut self, limit: Duration) {
        if !self.outgoing.is_empty()
            && self.stream.set_nonblocking(false).and_then(|()| self.stream.set_write_timeout(Some(limit))).is_ok()
        {
            drop(self.stream.write_all(&self.outgoing));
        }
    }
}
