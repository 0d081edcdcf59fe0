//! Figures of two commits beside each other.

use std::fmt;

use crate::{Line, Spread, median};

/// How much slower a case may be.
const ALLOWED: f64 = 1.1;

/// What became of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// `bench/case`.
    pub case: String,
    /// The unit of the figures.
    pub unit: String,
    /// The median before.
    pub before: f64,
    /// The median after.
    pub after: f64,
    /// How many times slower it is, or larger, over the rounds.
    pub slower: Spread,
    /// How many rounds there were.
    pub rounds: usize,
}

impl Change {
    /// Whether three quarters of the rounds are more than a tenth slower.
    #[must_use]
    pub fn is_regression(&self) -> bool {
        self.slower.low > ALLOWED
    }
}

/// What became of all cases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The cases that are in both, in the order of the later.
    pub changes: Vec<Change>,
    /// The cases that are only in the earlier, only in the later, or below nothing in one of them.
    pub alone: Vec<String>,
}

impl Comparison {
    /// The cases that are slower by more than what is allowed.
    pub fn regressions(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.is_regression())
    }
}

/// Compares lines that were recorded in turn: the first run of a case with the first run of it, and so on.
///
/// ```
/// let line = |value| tacit_figures::Line {
///     bench: "sums".into(), case: "long".into(), unit: "ms".into(), value, ratio: 1.0, ..Default::default()
/// };
/// let compared = tacit_figures::compare::compare(&[line(2.0), line(4.0)], &[line(1.0), line(2.0)]);
/// assert_eq!(compared.changes[0].slower.median, 0.5);
/// ```
#[must_use]
pub fn compare(before: &[Line], after: &[Line]) -> Comparison {
    let (before, after) = (by_case(before), by_case(after));
    let mut made = Comparison::default();
    for case in &after {
        let known = before.iter().find(|known| known.name == case.name && known.line.unit == case.line.unit);
        let pairs = known.into_iter().flat_map(|known| known.values.iter().copied().zip(case.values.iter().copied()));
        // What is above a baseline may come out below it, and then there is nothing to divide by.
        let pairs: Vec<(f64, f64)> = pairs.filter(|(before, after)| *before > 0.0 && *after > 0.0).collect();
        if pairs.is_empty() {
            made.alone.push(case.name.clone());
            continue;
        }
        let rate = case.line.is_rate();
        let slower = pairs.iter().map(|(before, after)| if rate { before / after } else { after / before });
        made.changes.push(Change {
            case: case.name.clone(),
            unit: case.line.unit.clone(),
            before: median(pairs.iter().map(|pair| pair.0).collect()),
            after: median(pairs.iter().map(|pair| pair.1).collect()),
            slower: Spread::from_numbers(slower.collect()),
            rounds: pairs.len(),
        });
    }
    made.alone.extend(
        before.iter().filter(|known| after.iter().all(|case| case.name != known.name)).map(|known| known.name.clone()),
    );
    made
}

struct Case<'a> {
    name: String,
    line: &'a Line,
    values: Vec<f64>,
}

fn by_case(lines: &[Line]) -> Vec<Case<'_>> {
    let mut cases: Vec<Case> = Vec::new();
    for line in lines {
        let name = format!("{}/{}", line.bench, line.case);
        match cases.iter_mut().find(|case| case.name == name) {
            // One run records a case beside each of its baselines.
            Some(case) if case.line.baseline != line.baseline => {}
            Some(case) => case.values.push(line.value),
            None => cases.push(Case { name, line, values: vec![line.value] }),
        }
    }
    cases
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<40} {:>12} {:>12} {:<12} {:>7}", "case", "before", "after", "", "slower")?;
        for change in &self.changes {
            let Change { case, unit, before, after, slower, rounds } = change;
            let Spread { low, median, high } = slower;
            let verdict = if change.is_regression() { "  SLOWER" } else { "" };
            writeln!(
                f,
                "{case:<40} {before:>12.4} {after:>12.4} {unit:<12} {median:>7.3} [{low:.3}, {high:.3}] of {rounds}{verdict}"
            )?;
        }
        for case in &self.alone {
            writeln!(f, "{case:<40} not in both")?;
        }
        Ok(())
    }
}
