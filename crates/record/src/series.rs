//! Series of numbers by step.

/// Numbers by step, in the order of the steps.
///
/// ```
/// use tacit_record::Series;
///
/// let losses: Series = [(1, 4.0), (2, 2.0), (3, 2.0), (4, 1.0)].into_iter().collect();
/// // Where single steps jump, means of some are easier to read.
/// assert_eq!(losses.means(2).points(), [(2, 3.0), (4, 1.5)]);
/// assert_eq!(losses.last(), Some(1.0));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series(Vec<(u64, f64)>);

impl Series {
    /// The steps with their numbers.
    #[must_use]
    pub fn points(&self) -> &[(u64, f64)] {
        &self.0
    }

    /// The number of the last step.
    #[must_use]
    pub fn last(&self) -> Option<f64> {
        self.0.last().map(|&(_, number)| number)
    }

    /// The mean of each `points` points, at the step of their last one.
    #[must_use]
    pub fn means(&self, points: usize) -> Self {
        let means = self.0.chunks(points.max(1)).filter_map(|chunk| {
            let &(step, _) = chunk.last()?;
            Some((step, chunk.iter().map(|(_, number)| number).sum::<f64>() / chunk.len() as f64))
        });
        Self(means.collect())
    }

    /// The same steps with what a function makes of each number, such as megabytes of bytes.
    #[must_use]
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self(self.0.iter().map(|&(step, number)| (step, f(number))).collect())
    }
}

/// Where there are two numbers of one step, the later counts.
impl FromIterator<(u64, f64)> for Series {
    fn from_iter<I: IntoIterator<Item = (u64, f64)>>(points: I) -> Self {
        let points: std::collections::BTreeMap<u64, f64> = points.into_iter().collect();
        Self(points.into_iter().collect())
    }
}
