//! Early stopping: a run ends when it gets no better.

/// Says when to stop a run whose loss no longer falls.
///
/// Ranks that train together each see the same loss, such as `Group::mean` of theirs: one that stopped by its own would leave the
/// others waiting.
///
/// ```
/// use tacit_nn::training::{EarlyStopping, Verdict};
///
/// let mut stopping = EarlyStopping::new(2);
/// let verdicts = [3.0, 2.0, 2.5, f32::NAN].map(|loss| stopping.see(loss));
/// assert_eq!(verdicts, [Verdict::Best, Verdict::Best, Verdict::Worse, Verdict::Stop]);
/// assert_eq!(stopping.best(), Some(2.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStopping {
    patience: u32,
    least_gain: f32,
    best: Option<f32>,
    worse: u32,
}

/// Whether a loss is the best so far, and whether to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the first, or less than the best before by more than the least gain: the model of now is the one to keep.
    Best,
    /// It is no new best.
    Worse,
    /// It is no new best, and neither were the losses before it: there are now as many of them in a row as the patience.
    Stop,
}

impl EarlyStopping {
    /// Stops at the `patience`-th loss in a row that is no new best.
    ///
    /// A patience of 0 is one of 1.
    #[must_use]
    pub const fn new(patience: u32) -> Self {
        Self { patience, least_gain: 0.0, best: None, worse: 0 }
    }

    /// The same where a loss is a new best only if it is less by more than this; what is below 0 or NaN counts as 0.
    #[must_use]
    pub const fn with_least_gain(self, least_gain: f32) -> Self {
        Self { least_gain: least_gain.max(0.0), ..self }
    }

    /// Sees the loss of a validation.
    ///
    /// One that is NaN is worse than any.
    pub fn see(&mut self, loss: f32) -> Verdict {
        if !loss.is_nan() && self.best.is_none_or(|best| loss < best - self.least_gain) {
            (self.best, self.worse) = (Some(loss), 0);
            return Verdict::Best;
        }
        self.worse = self.worse.saturating_add(1);
        if self.worse >= self.patience { Verdict::Stop } else { Verdict::Worse }
    }

    /// The loss of the latest [`Verdict::Best`].
    #[must_use]
    pub fn best(&self) -> Option<f32> {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Best, Stop, Worse};
    use super::*;

    #[test]
    fn patience_begins_anew_with_each_best() {
        let mut stopping = EarlyStopping::new(2).with_least_gain(0.5);
        let losses = [f32::NAN, 4.0, 3.8, 3.4, 3.2, 3.0];
        let verdicts = losses.map(|loss| stopping.see(loss));
        assert_eq!(verdicts, [Worse, Best, Worse, Best, Worse, Stop]);
        assert_eq!(stopping.best(), Some(3.4));
        assert_eq!(EarlyStopping::new(0).see(f32::INFINITY), Best);
    }
}
