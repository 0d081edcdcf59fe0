//! A record, read back.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tacit_core::{Error, Result};

use crate::entry::entries;
use crate::{Histogram, Recorded, Series};

/// What a run recorded, by name and step; of two entries of one name and step the later counts.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let file = std::env::temp_dir().join(format!("tacit-record-read-{}.jsonl", std::process::id()));
/// let mut recorder = tacit_record::Recorder::create(&file)?;
/// recorder.scalar(1, "error/layers.0", 0.1)?;
/// recorder.scalar(1, "error/layers.1", 0.2)?;
///
/// let record = tacit_record::Record::read(&file)?;
/// assert_eq!(record.latest("error/"), [("layers.0".to_owned(), 0.1), ("layers.1".to_owned(), 0.2)]);
/// # std::fs::remove_file(file).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    scalars: BTreeMap<String, BTreeMap<u64, f64>>,
    histograms: BTreeMap<String, BTreeMap<u64, Histogram>>,
}

impl Record {
    /// Reads a record, also one that is being written.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line of it is no [`Entry`](crate::Entry).
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(Error::file("read", path))?;
        let mut record = Self::default();
        for (entry, _) in entries(path, &bytes)? {
            match entry.recorded {
                Recorded::Value(value) => {
                    record.scalars.entry(entry.name).or_default().insert(entry.step, value);
                }
                Recorded::Histogram(histogram) => {
                    record.histograms.entry(entry.name).or_default().insert(entry.step, histogram);
                }
            }
        }
        Ok(record)
    }

    /// The names under which numbers were recorded, in order.
    pub fn scalars(&self) -> impl Iterator<Item = &str> {
        self.scalars.keys().map(String::as_str)
    }

    /// The names under which histograms were recorded, in order.
    pub fn histograms(&self) -> impl Iterator<Item = &str> {
        self.histograms.keys().map(String::as_str)
    }

    /// The numbers under a name.
    ///
    /// # Errors
    ///
    /// No number was recorded under this name.
    pub fn scalar(&self, name: &str) -> Result<Series> {
        let points = self.scalars.get(name).ok_or_else(|| missing("number", name, self.scalars()))?;
        Ok(points.iter().map(|(&step, &value)| (step, value)).collect())
    }

    /// The histograms under a name, by step.
    ///
    /// # Errors
    ///
    /// No histogram was recorded under this name.
    pub fn histogram(&self, name: &str) -> Result<&BTreeMap<u64, Histogram>> {
        self.histograms.get(name).ok_or_else(|| missing("histogram", name, self.histograms()))
    }

    /// The last number of each name that begins with `prefix`, by the rest of the name: such as the errors of all layers for
    /// [`Bars`](crate::Bars).
    #[must_use]
    pub fn latest(&self, prefix: &str) -> Vec<(String, f64)> {
        let found = self
            .scalars
            .iter()
            .filter_map(|(name, points)| Some((name.strip_prefix(prefix)?.to_owned(), *points.last_key_value()?.1)));
        found.collect()
    }
}

fn missing<'a>(what: &str, name: &str, names: impl Iterator<Item = &'a str>) -> Error {
    let names: Vec<&str> = names.collect();
    let names = if names.is_empty() { "none at all".to_owned() } else { names.join(", ") };
    Error::invalid(format!("no {what} was recorded as {name}"), format!("those that were: {names}"))
}
