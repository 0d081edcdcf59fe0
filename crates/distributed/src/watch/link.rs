//! One side connection, read and written without waiting.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::frame::{Frame, GREETING, LONGEST};

/// How many bytes are read at once, so that whoever sends without end does not keep the others waiting.
const AT_ONCE: usize = 1 << 18;

#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    pub(super) address: SocketAddr,
    /// The process of the other side, once it has said it.
    pub(super) process: u32,
    /// When something last came.
    pub(super) heard: Instant,
    incoming: Vec<u8>,
    /// How many bytes of it have no line's end.
    searched: usize,
    /// The longest line that is believed.
    longest: usize,
    outgoing: Vec<u8>,
}

/// The connection is at its end: the other side closed it, or sent what no rank sends.
#[derive(Debug)]
pub(super) struct Closed;

impl Link {
    /// The link of whoever has connected: only a greeting is believed until it is [`known`](Self::known).
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let address = stream.peer_addr()?;
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        let heard = Instant::now();
        Ok(Self { stream, address, process: 0, heard, incoming, searched: 0, longest: GREETING, outgoing })
    }

    /// The other side is a rank of this group, or rank 0.
    pub(super) fn known(mut self, process: u32) -> Self {
        (self.process, self.longest) = (process, LONGEST);
        self
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

    /// Adds what has come to `frames`, or a part of it where that is much.
    pub(super) fn receive(&mut self, frames: &mut Vec<Frame>) -> Result<(), Closed> {
        self.flush();
        let mut piece = [0; 4096];
        let mut taken = 0;
        let closed = loop {
            // One that may only greet is not read further than that.
            if taken >= AT_ONCE.min(2 * self.longest) {
                break false;
            }
            match self.stream.read(&mut piece) {
                Ok(0) => break true,
                Ok(read) => {
                    self.heard = Instant::now();
                    taken += read;
                    self.incoming.extend_from_slice(&piece[..read]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(_) => break true,
            }
        };
        let whole = self.lines(frames);
        if closed || self.incoming.len() > self.longest { Err(Closed) } else { whole }
    }

    /// Takes the whole lines out of what has come, each byte of which is looked at once.
    fn lines(&mut self, frames: &mut Vec<Frame>) -> Result<(), Closed> {
        let mut begin = 0;
        while let Some(length) = self.incoming[self.searched..].iter().position(|&byte| byte == b'\n') {
            let end = self.searched + length;
            frames.push(Frame::read(&self.incoming[begin..end]).ok_or(Closed)?);
            begin = end + 1;
            self.searched = begin;
        }
        self.incoming.drain(..begin);
        self.searched = self.incoming.len();
        Ok(())
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
