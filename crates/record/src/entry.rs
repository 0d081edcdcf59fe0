//! What one line of a record says.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tacit_core::{Error, Result};

use crate::Histogram;

/// One line: `{"step":3,"name":"loss","value":0.25}`, or with a `histogram` in place of the value.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Entry {
    /// The steps that were made when it was recorded.
    pub step: u64,
    /// What was recorded: `loss`, `scales/layers.0.weight`.
    pub name: String,
    /// The number or the numbers.
    #[serde(flatten)]
    pub recorded: Recorded,
}

/// What an [`Entry`] records: a number, or a histogram.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Recorded {
    /// One number. Infinities and NaN, which JSON does not have, are the texts `inf`, `-inf` and `NaN`.
    Value(#[serde(with = "tacit_core::json_number")] f64),
    /// How the values of many numbers are distributed.
    Histogram(Histogram),
}

impl Entry {
    /// The entry as a line of a file, with its end.
    pub(crate) fn to_line(&self, file: &Path) -> Result<String> {
        let line = serde_json::to_string(self).map_err(|error| Error::file("write", file)(error.into()))?;
        Ok(line + "\n")
    }
}

/// The entries of a file in its order, with the length of each line.
///
/// What follows the last end of a line is left out: the program was killed as it wrote it, or is writing it now.
pub(crate) fn entries(file: &Path, bytes: &[u8]) -> Result<Vec<(Entry, usize)>> {
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let lines = bytes[..whole].split_inclusive(|&byte| byte == b'\n').enumerate();
    let parsed = lines.map(|(at, line)| {
        let wrong = |reason: String| {
            let reason = format!("line {}{reason}", at + 1);
            Error::checkpoint(file, None, reason, "give the path of a file that a `Recorder` wrote")
        };
        let entry: Entry =
            serde_json::from_slice(line).map_err(|error| wrong(format!(" is not an entry of a record: {error}")))?;
        if let Recorded::Histogram(histogram) = &entry.recorded {
            histogram.check().map_err(|reason| wrong(format!(": {reason}")))?;
        }
        Ok((entry, line.len()))
    });
    parsed.collect()
}
