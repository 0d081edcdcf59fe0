//! Numbers and strings one after the other, none of them read beyond the end.

use std::str;

/// A place in the bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Bytes from the start.
    pub(super) at: usize,
}

/// Why something cannot be read.
pub(super) type Reason = String;

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], Reason> {
        let Some(taken) = self.bytes[self.at..].get(..count) else {
            return Err(format!(
                "the file ends in {what}: {count} bytes are needed at byte {}, and {} are left",
                self.at,
                self.remaining()
            ));
        };
        self.at += count;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Reason> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Reason> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Reason> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number of things, each of which takes at least so many bytes of what is left.
    pub(super) fn count(&mut self, least: usize, what: &str) -> Result<usize, Reason> {
        let count = self.u64(what)?;
        let most = (self.remaining() / least.max(1)) as u64;
        if count > most {
            return Err(format!(
                "{count} is given as {what}, and the {} bytes that are left hold {most} at most",
                self.remaining()
            ));
        }
        Ok(count as usize)
    }

    /// A length and as many bytes.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a str, Reason> {
        let length = self.count(1, &format!("the length of {what}"))?;
        str::from_utf8(self.take(length, what)?).map_err(|_| format!("{what} is not UTF-8"))
    }
}
