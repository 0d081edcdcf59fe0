//! Medians and quartiles.

/// The median of some numbers and the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// A quarter of the numbers lie below.
    pub low: f64,
    /// Half of them lie below.
    pub median: f64,
    /// Three quarters of them lie below.
    pub high: f64,
}

impl Spread {
    /// The spread of these numbers; NaN of none.
    #[must_use]
    pub fn from_numbers(mut numbers: Vec<f64>) -> Self {
        numbers.sort_by(f64::total_cmp);
        let [low, median, high] = [0.25, 0.5, 0.75].map(|part| at(&numbers, part));
        Self { low, median, high }
    }
}

/// The median of these numbers; NaN of none.
#[must_use]
pub fn median(numbers: Vec<f64>) -> f64 {
    Spread::from_numbers(numbers).median
}

/// What lies at a part of the way through sorted numbers, between two of them in proportion.
fn at(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = part * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_numbers_in_proportion() {
        assert_eq!(Spread::from_numbers(vec![4.0, 1.0, 3.0, 2.0]), Spread { low: 1.75, median: 2.5, high: 3.25 });
        assert_eq!(Spread::from_numbers(vec![5.0]), Spread { low: 5.0, median: 5.0, high: 5.0 });
        assert!(median(Vec::new()).is_nan());
    }
}
