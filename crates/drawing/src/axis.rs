//! Where numbers are on an axis, and which of them are written there.

/// An axis of numbers, or of their powers of ten.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
}

/// About how many numbers are written.
const TICKS: f64 = 5.0;

impl Axis {
    /// An axis of these numbers, all of which it can draw; none if there are none.
    pub fn from_numbers(numbers: impl Iterator<Item = f64>, logarithmic: bool) -> Option<Self> {
        let (from, to) = numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
        // One number lies in the middle of an axis of its own size.
        let room = (to.abs() / 2.0).max(f64::MIN_POSITIVE);
        match (from, to) {
            _ if from > to => None,
            _ if logarithmic => {
                let from = (from / 1.1).max(f64::MIN_POSITIVE);
                Some(Self { from, to: (to * 1.1).clamp(1.1 * from, f64::MAX), logarithmic })
            }
            _ if from < to => Some(Self { from, to, logarithmic }),
            _ => Some(Self { from: (from - room).max(f64::MIN), to: (to + room).min(f64::MAX), logarithmic }),
        }
    }

    /// Where a number is, from 0 to 1.
    #[must_use]
    pub fn place(self, number: f64) -> f64 {
        let at = |x: f64| if self.logarithmic { x.max(f64::MIN_POSITIVE).ln() } else { x };
        // Halves, since a difference of the largest numbers is infinite.
        let part = (at(number) / 2.0 - at(self.from) / 2.0) / (at(self.to) / 2.0 - at(self.from) / 2.0);
        // And half of the least difference is 0.
        if part.is_nan() { 0.5 } else { part.clamp(0.0, 1.0) }
    }

    /// The numbers that are written.
    #[must_use]
    pub fn ticks(self) -> Vec<f64> {
        if self.logarithmic { self.powers() } else { self.steps() }
    }

    /// Multiples of 1, 2 or 5 times a power of ten.
    fn steps(self) -> Vec<f64> {
        let least = (self.to / TICKS - self.from / TICKS).max(f64::MIN_POSITIVE);
        let power = 10_f64.powf(least.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * power).into_iter().find(|&step| step >= least).unwrap_or(least);
        let first = (self.from / step).ceil();
        // Where the range is far less than the numbers, a step does not change them.
        let ticks = (0..=TICKS as i32 + 1).map(|at| (first + f64::from(at)) * step);
        let mut ticks: Vec<f64> = ticks.filter(|tick| (self.from..=self.to).contains(tick)).collect();
        ticks.dedup();
        ticks
    }

    /// Powers of ten, with 2 and 5 times these where they are few, and not all where they are many.
    fn powers(self) -> Vec<f64> {
        let (low, high) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let every = ((high - low) / TICKS as i32).max(1);
        let within = |by: &'static [f64]| -> Vec<f64> {
            let all =
                (low..=high).step_by(every as usize).flat_map(|power| by.iter().map(move |by| by * 10_f64.powi(power)));
            all.filter(|tick| (self.from..=self.to).contains(tick)).collect()
        };
        let ticks = within(&[1.0]);
        match ticks.len() {
            0 | 1 if within(&[1.0, 2.0, 5.0]).len() < 2 => Self { logarithmic: false, ..self }.steps(),
            0..=2 => within(&[1.0, 2.0, 5.0]),
            _ => ticks,
        }
    }
}

/// A number in three digits or so.
#[must_use]
pub fn number(number: f64) -> String {
    precise(number, 0)
}

/// What is written at ticks: each in as many digits as tell it from the others.
#[must_use]
pub fn labels(ticks: &[f64]) -> Vec<String> {
    let written = |more| -> Vec<String> { ticks.iter().map(|&tick| precise(tick, more)).collect() };
    // No two numbers are equal in seventeen digits.
    let differ = |labels: &Vec<String>| labels.iter().enumerate().all(|(at, label)| !labels[..at].contains(label));
    (0..17).map(written).find(differ).unwrap_or_else(|| written(17))
}

/// A number in three digits and so many more, without zeros at the end.
fn precise(number: f64, more: usize) -> String {
    let trimmed = |text: &str| -> String {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
    };
    let digits = match number.abs() {
        0.0 => 0,
        _ if !number.is_finite() => return number.to_string(),
        far if !(1e-4..1e6).contains(&far) => {
            let digits = 2 + more;
            let text = format!("{number:.digits$e}");
            let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
            return format!("{}e{power}", trimmed(mantissa));
        }
        large if large >= 100.0 => 0,
        tens if tens >= 10.0 => 1,
        other if other >= 1.0 => 2,
        small => -small.log10().floor() as usize + 2,
    } + more;
    trimmed(&format!("{number:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(from: f64, to: f64, logarithmic: bool) -> Vec<String> {
        labels(&Axis::from_numbers([from, to].into_iter(), logarithmic).unwrap().ticks())
    }

    #[test]
    fn few_round_numbers_are_written() {
        assert_eq!(ticks(0.0, 1.0, false), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(ticks(1.0, 487.0, false), ["100", "200", "300", "400"]);
        assert_eq!(ticks(-0.03, 0.041, false), ["-0.02", "0", "0.02", "0.04"]);
        assert_eq!(ticks(0.0004, 2.0, true), ["0.001", "0.01", "0.1", "1"]);
        assert_eq!(ticks(0.3, 4.0, true), ["0.5", "1", "2"]);
        assert_eq!(ticks(0.31, 0.38, true), ["0.3", "0.35", "0.4"]);
        assert_eq!(ticks(1e-9, 1e9, true), ["1e-6", "0.01", "100", "1e6"]);
    }

    #[test]
    fn no_numbers_are_too_large_or_too_near_for_an_axis() {
        let extremes = [f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, 0.0, 1.0, 1.0 + f64::EPSILON, 1e300];
        for from in extremes {
            for to in extremes.into_iter().filter(|&to| to >= from) {
                for logarithmic in [false, true].into_iter().filter(|&by| !by || from > 0.0) {
                    let axis = Axis::from_numbers([from, to].into_iter(), logarithmic).unwrap();
                    let (low, high) = (axis.place(from), axis.place(to));
                    assert!(low <= high && (0.0..=1.0).contains(&low), "{axis:?}: {low} {high}");
                    assert!(axis.ticks().len() < 12, "{axis:?}: {:?}", axis.ticks());
                }
            }
        }
        assert!(Axis::from_numbers(std::iter::empty(), false).is_none());
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 0.1, 0.25, 1.5, 42.0, 1234.6, 3e-7, -0.031, 2e6, 1_234_567.0, f64::INFINITY].map(number);
        assert_eq!(all, ["0", "0.1", "0.25", "1.5", "42", "1235", "3e-7", "-0.031", "2e6", "1.23e6", "inf"]);
    }

    #[test]
    fn ticks_that_lie_near_each_other_are_told_apart() {
        assert_eq!(ticks(1e6, 1.4e6, false), ["1e6", "1.1e6", "1.2e6", "1.3e6", "1.4e6"]);
        assert_eq!(ticks(1e6, 1e6 + 4.0, false), ["1e6", "1.000001e6", "1.000002e6", "1.000003e6", "1.000004e6"]);
        assert_eq!(ticks(1000.0, 1000.5, false), ["1000", "1000.1", "1000.2", "1000.3", "1000.4", "1000.5"]);
        assert_eq!(ticks(-3e-7, -2.94e-7, false).last().map(String::as_str), Some("-2.94e-7"));
        // Whatever the range, no two ticks have one label.
        let mut number = 1u64;
        for _ in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let from = (number >> 40) as f64 * 10f64.powi((number % 40) as i32 - 20);
            let to = from * (1.0 + 10f64.powi(-(((number >> 8) % 14) as i32)));
            for logarithmic in [false, true].into_iter().filter(|&by| !by || from > 0.0) {
                let labels = ticks(from, to, logarithmic);
                let distinct: std::collections::BTreeSet<&String> = labels.iter().collect();
                assert_eq!(distinct.len(), labels.len(), "{from} to {to}: {labels:?}");
            }
        }
    }
}
