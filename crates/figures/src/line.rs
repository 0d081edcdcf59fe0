//! One figure as a line of JSON.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::machine::Run;

/// A figure and what it is compared with, both from one run, and that run.
///
/// A field that an older program did not write has its default.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The benchmark.
    pub bench: String,
    /// The case in it.
    pub case: String,
    /// The unit of the figures: a rate if it ends in `/s`, of which more is better; of everything else less is better.
    pub unit: String,
    /// The median.
    pub value: f64,
    /// The figure of the shortest turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<f64>,
    /// What it is compared with.
    #[serde(default)]
    pub baseline: String,
    /// Its median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_value: Option<f64>,
    /// The baseline's figure in its shortest turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_least: Option<f64>,
    /// The figure over that of the baseline: the median over all rounds of the ratio in a round.
    #[serde(default)]
    pub ratio: f64,
    /// The quartiles of these ratios.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<[f64; 2]>,
    /// How many rounds there were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// Whose figure it is, where it is not Tacit's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Where, when and of what it was measured.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

impl Line {
    /// Whether more is better.
    #[must_use]
    pub fn is_rate(&self) -> bool {
        self.unit.ends_with("/s")
    }
}

/// The lines of a file.
///
/// # Errors
///
/// Fails if the file cannot be read, or if a line is not one of these: the message names it.
pub fn read(path: &Path) -> io::Result<Vec<Line>> {
    let text = fs::read_to_string(path).map_err(|error| named(path, &error))?;
    let parsed = text
        .lines()
        .enumerate()
        .map(|(i, line)| serde_json::from_str(line).map_err(|error| named(path, &format!("line {}: {error}", i + 1))));
    parsed.collect()
}

fn named(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}
