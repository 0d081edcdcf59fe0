//! Contenders that take turns, and what their turns took.

use std::time::{Duration, Instant};

use crate::{Bench, Line, Spread, median};

/// How long a turn of a contender lasts at least, by repeated calls.
const TURN: f64 = 1e-3;

/// What a figure is in terms of the seconds of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit<'a> {
    /// The time itself; less is better.
    Time {
        /// As it is printed.
        name: &'a str,
        /// How many of it are a second.
        per_second: f64,
    },
    /// So much work in a second; more is better.
    Rate {
        /// As it is printed.
        name: &'a str,
        /// The work of a turn.
        work: f64,
    },
    /// The time above that of the baseline.
    Above {
        /// As it is printed.
        name: &'a str,
        /// How many of it are a second.
        per_second: f64,
    },
}

impl<'a> Unit<'a> {
    /// A time, in the unit with which the name begins: `s`, `ms`, `us` or `ns`, as in `us/call`.
    #[must_use]
    pub fn time(name: &'a str) -> Self {
        Self::Time { name, per_second: per_second(name) }
    }

    /// Work in a second, such as `GB/s`, where a call does so much of it.
    #[must_use]
    pub const fn rate(name: &'a str, work: f64) -> Self {
        Self::Rate { name, work }
    }

    /// The time above that of the baseline, in the unit with which the name begins.
    #[must_use]
    pub fn above(name: &'a str) -> Self {
        Self::Above { name, per_second: per_second(name) }
    }

    const fn name(&self) -> &'a str {
        match self {
            Self::Time { name, .. } | Self::Rate { name, .. } | Self::Above { name, .. } => name,
        }
    }

    fn value(&self, seconds: f64) -> f64 {
        match self {
            Self::Time { per_second, .. } | Self::Above { per_second, .. } => seconds * per_second,
            Self::Rate { work, .. } => work / seconds,
        }
    }
}

fn per_second(name: &str) -> f64 {
    let own: String = name.chars().take_while(char::is_ascii_alphabetic).collect();
    match own.as_str() {
        "ms" => 1e3,
        "us" => 1e6,
        "ns" => 1e9,
        _ => 1.0,
    }
}

/// A turn: the seconds of one call.
type Turn<'a, E> = Box<dyn FnMut() -> Result<f64, E> + 'a>;

struct Contender<'a, E> {
    name: &'a str,
    turn: Turn<'a, E>,
    /// Has turns while they take no longer than those of the others.
    seldom: bool,
}

/// Contenders that are about to take their turns.
///
/// In a round each has one turn, and which comes first changes from round to round, so that what slows the machine down
/// for a while slows all of them down. Rounds end when the time is over.
pub struct Turns<'a, E> {
    /// Where they are recorded, if they are.
    bench: Option<&'a Bench>,
    contenders: Vec<Contender<'a, E>>,
    time: Duration,
    least: usize,
}

impl Bench {
    /// Lets contenders take turns.
    #[must_use]
    pub fn turns<E>(&self) -> Turns<'_, E> {
        let (time, least) = if self.is_quick() { (200, 3) } else { (1500, 9) };
        Turns { bench: Some(self), ..Turns::unrecorded(Duration::from_millis(time), least) }
    }
}

impl<'a, E> Turns<'a, E> {
    /// Takes turns for so long, and so many rounds at least, outside of a benchmark.
    #[must_use]
    pub fn unrecorded(time: Duration, least: usize) -> Self {
        Self { bench: None, contenders: Vec::new(), time, least }
    }

    /// Takes turns for so long where `--quick` is not given, a seventh of it where it is, and so many rounds at least.
    #[must_use]
    pub fn within(mut self, time: Duration, least: usize) -> Self {
        let quick = self.bench.is_some_and(Bench::is_quick);
        self.time = if quick { time / 7 } else { time };
        self.least = if quick { least.min(3) } else { least };
        self
    }

    /// A contender that is timed from its call to its return; calls that are short are repeated for a turn.
    #[must_use]
    pub fn run(self, name: &'a str, mut f: impl FnMut() -> Result<(), E> + 'a) -> Self {
        let mut calls = None;
        self.with(name, false, move || {
            let calls = if let Some(calls) = calls {
                calls
            } else {
                // What is traced, compiled or read for the first time is none of a call's.
                f()?;
                let start = Instant::now();
                f()?;
                *calls.insert((TURN / start.elapsed().as_secs_f64()).clamp(1.0, 1e6).ceil() as u32)
            };
            let start = Instant::now();
            for _ in 0..calls {
                f()?;
            }
            Ok(start.elapsed().as_secs_f64() / f64::from(calls))
        })
    }

    /// A contender that says itself how many seconds it took.
    #[must_use]
    pub fn measure(self, name: &'a str, f: impl FnMut() -> Result<f64, E> + 'a) -> Self {
        self.with(name, false, f)
    }

    /// A contender that takes long, or is a limit of the machine: it says its seconds, and has a turn in the first round
    /// and where all of its turns took no longer than those of the others.
    #[must_use]
    pub fn seldom(self, name: &'a str, f: impl FnMut() -> Result<f64, E> + 'a) -> Self {
        self.with(name, true, f)
    }

    fn with(mut self, name: &'a str, seldom: bool, f: impl FnMut() -> Result<f64, E> + 'a) -> Self {
        self.contenders.push(Contender { name, turn: Box::new(f), seldom });
        self
    }

    /// Lets them take their turns, after one to warm up for each that is not seldom; ends with the first error.
    pub fn take(mut self) -> Result<Rounds<'a>, E> {
        for contender in self.contenders.iter_mut().filter(|contender| !contender.seldom) {
            (contender.turn)()?;
        }
        let count = self.contenders.len();
        let mut seconds = vec![Vec::new(); count];
        // Of those that have a turn in each round, and of each other.
        let (mut often, mut seldom) = (0.0, vec![0.0; count]);
        let start = Instant::now();
        for round in 0.. {
            if round >= self.least && start.elapsed() >= self.time {
                break;
            }
            for place in 0..count {
                let place = (round + place) % count;
                let contender = &mut self.contenders[place];
                if contender.seldom && round > 0 && seldom[place] > often {
                    seconds[place].push(None);
                    continue;
                }
                let begin = Instant::now();
                seconds[place].push(Some((contender.turn)()?));
                let taken = begin.elapsed().as_secs_f64();
                *if contender.seldom { &mut seldom[place] } else { &mut often } += taken;
            }
        }
        let names = self.contenders.iter().map(|contender| contender.name);
        Ok(Rounds { bench: self.bench, contenders: names.zip(seconds).collect() })
    }
}

/// The seconds that contenders took in each round.
pub struct Rounds<'a> {
    bench: Option<&'a Bench>,
    /// None where a contender had no turn.
    contenders: Vec<(&'a str, Vec<Option<f64>>)>,
}

impl Rounds<'_> {
    /// Records the first contender beside each other one.
    ///
    /// # Panics
    ///
    /// Panics if the turns are of no benchmark, or if the file cannot be written.
    pub fn record(&self, case: &str, unit: Unit) {
        for (baseline, _) in &self.contenders[1..] {
            self.record_of(case, self.contenders[0].0, baseline, unit);
        }
    }

    /// Records one contender beside another.
    ///
    /// # Panics
    ///
    /// Panics if no contender has the name, if the turns are of no benchmark, or if the file cannot be written.
    pub fn record_of(&self, case: &str, name: &str, baseline: &str, unit: Unit) {
        let bench = self.bench.expect("the turns are of a benchmark");
        bench.record(self.line(bench, case, name, baseline, unit));
    }

    /// The median seconds of a contender.
    ///
    /// # Panics
    ///
    /// Panics if no contender has the name.
    #[must_use]
    pub fn seconds(&self, name: &str) -> f64 {
        median(self.turns(name).iter().flatten().copied().collect())
    }

    /// The ratio of one contender's seconds to another's in the same rounds.
    ///
    /// # Panics
    ///
    /// Panics if no contender has the name.
    #[must_use]
    pub fn ratio(&self, name: &str, baseline: &str) -> Spread {
        Spread::from_numbers(self.pairs(name, baseline).map(|(ours, theirs)| ours / theirs).collect())
    }

    fn turns(&self, name: &str) -> &[Option<f64>] {
        let found = self.contenders.iter().find(|(own, _)| *own == name);
        &found.unwrap_or_else(|| panic!("no contender is called `{name}`")).1
    }

    /// The rounds in which both had a turn.
    fn pairs(&self, name: &str, baseline: &str) -> impl Iterator<Item = (f64, f64)> {
        self.turns(name).iter().zip(self.turns(baseline)).filter_map(|(&ours, &theirs)| Some((ours?, theirs?)))
    }

    fn line(&self, bench: &Bench, case: &str, name: &str, baseline: &str, unit: Unit) -> Line {
        let least = |name| self.turns(name).iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let (ours, theirs) = (self.seconds(name), self.seconds(baseline));
        let spread = match unit {
            Unit::Rate { .. } => {
                Spread::from_numbers(self.pairs(name, baseline).map(|(ours, theirs)| theirs / ours).collect())
            }
            _ => self.ratio(name, baseline),
        };
        let (value, least_value) = match unit {
            Unit::Above { per_second, .. } => {
                let above = self.pairs(name, baseline).map(|(ours, theirs)| ours - theirs).collect();
                (median(above) * per_second, (least(name) - least(baseline)) * per_second)
            }
            _ => (unit.value(ours), unit.value(least(name))),
        };
        Line {
            bench: bench.name().to_owned(),
            case: case.to_owned(),
            unit: unit.name().to_owned(),
            value,
            least: Some(least_value),
            baseline: baseline.to_owned(),
            baseline_value: Some(unit.value(theirs)),
            baseline_least: Some(unit.value(least(baseline))),
            ratio: spread.median,
            spread: Some([spread.low, spread.high]),
            rounds: Some(self.pairs(name, baseline).count()),
            ..Line::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;
    use std::thread::sleep;

    use super::*;
    use crate::bench::tests::idle;

    #[test]
    fn a_ratio_is_of_turns_side_by_side() {
        // The machine became three times slower after the first round: medians of each alone would say 1.
        let bench = idle();
        let ours = vec![Some(1.0), Some(3.0), Some(3.0)];
        let theirs = vec![Some(2.0), Some(6.0), None];
        let rounds = Rounds { bench: Some(&bench), contenders: vec![("ours", ours), ("theirs", theirs)] };
        assert_eq!(rounds.ratio("ours", "theirs"), Spread { low: 0.5, median: 0.5, high: 0.5 });
        let line = rounds.line(&bench, "case", "ours", "theirs", Unit::time("ms/call"));
        assert_eq!((line.value, line.least, line.rounds), (3e3, Some(1e3), Some(2)));
        assert_eq!((line.baseline_value, line.baseline_least), (Some(4e3), Some(2e3)));
        let line = rounds.line(&bench, "case", "ours", "theirs", Unit::rate("GB/s", 12.0));
        assert_eq!((line.value, line.least, line.ratio, line.spread), (4.0, Some(12.0), 2.0, Some([2.0, 2.0])));
        let line = rounds.line(&bench, "case", "theirs", "ours", Unit::above("us above it"));
        assert_eq!((line.value, line.ratio), (2e6, 2.0));
    }

    #[test]
    #[should_panic(expected = "no contender is called `theirs`")]
    fn a_contender_that_there_is_none_of_is_named() {
        let _ = Rounds { bench: None, contenders: vec![("ours", vec![Some(1.0)])] }.seconds("theirs");
    }

    #[test]
    #[should_panic(expected = "the turns are of a benchmark")]
    fn turns_of_no_benchmark_are_not_recorded() {
        let contenders = vec![("ours", vec![Some(1.0)]), ("theirs", vec![Some(1.0)])];
        Rounds { bench: None, contenders }.record("case", Unit::time("ms"));
    }

    #[test]
    fn who_comes_first_changes_and_the_dear_come_seldom() {
        let bench = idle();
        let order = RefCell::new(String::new());
        let turn = |letter, seconds| {
            let order = &order;
            move || {
                order.borrow_mut().push(letter);
                sleep(Duration::from_secs_f64(seconds));
                Ok::<_, Infallible>(seconds)
            }
        };
        let turns = bench.turns().within(Duration::ZERO, 3);
        let rounds = turns.measure("a", turn('a', 0.0)).measure("b", turn('b', 0.0)).seldom("c", turn('c', 0.5));
        let Ok(rounds) = rounds.take();
        // Both warm up; the third has its turn once.
        assert_eq!(order.borrow().as_str(), "ababcbaab");
        assert_eq!(rounds.pairs("a", "c").count(), 1);
    }

    #[test]
    fn short_calls_are_repeated_and_an_error_ends_the_rounds() {
        let bench = idle();
        let calls = RefCell::new(0);
        let count = || {
            *calls.borrow_mut() += 1;
            if *calls.borrow() < 5000 { Ok(()) } else { Err("enough") }
        };
        let taken = bench.turns().within(Duration::from_mins(1), 1).run("counting", count).take();
        assert_eq!((taken.err(), *calls.borrow()), (Some("enough"), 5000));
    }
}
