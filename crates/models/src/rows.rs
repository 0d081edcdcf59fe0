//! Texts of a data set, as rows of tokens of one length.

use std::collections::BTreeMap;

use mlx_rs::{Array, ops, random};
use tacit_core::{Error, Result};

/// A text as tokens, and which of them a model learns to predict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Whether the loss of a token counts, for each of them: not that of a prompt, as a rule.
    pub learned: Vec<bool>,
}

/// A data set for training: rows of tokens of one length, with the tokens whose losses count.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_models::{Rows, Sample};
///
/// let sample = |tokens: &[u32], prompt| Sample {
///     tokens: tokens.to_vec(),
///     learned: (0..tokens.len()).map(|at| at >= prompt).collect(),
/// };
/// let rows = Rows::packed(&[sample(&[1, 2, 3, 4], 2), sample(&[5, 6], 1)], 8, 0)?;
/// assert_eq!((rows.len(), rows.learned(&[0])), (1, 3));
/// let batch = rows.batch(&[0]);
/// assert_eq!((batch.tokens.shape(), batch.weights.shape()), (&[1, 8][..], &[1, 7][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    length: usize,
    /// The tokens of all rows, one after the other.
    tokens: Vec<u32>,
    learned: Vec<bool>,
    cut: usize,
}

/// Some rows, as a step of training takes them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `u32[batch, length]`, as [`token_losses`](crate::token_losses) takes them.
    pub tokens: Array,
    /// What the loss of each token but the first of a row is multiplied by: `f32[batch, length - 1]` of 1 where it counts, and of 0.
    pub weights: Array,
}

/// Stands behind the texts of a row. No token sees those behind it, and its loss does not count.
const PADDING: u32 = 0;

impl Rows {
    /// Puts samples together in rows, so that few places are left over.
    ///
    /// The seed decides which samples come together.
    ///
    /// A sample that fits into a row is in one as a whole. Samples of a row see those before them, as is usual; the first token of
    /// each follows nothing, and its loss does not count. A longer sample becomes several rows, each of which begins with the last
    /// token of the one before. What has no token that is learned is left out.
    ///
    /// # Errors
    ///
    /// A row has fewer than two tokens or more than an array can have, a sample does not say of each of its tokens
    /// whether it is learned, or no token is learned.
    pub fn packed(samples: &[Sample], length: usize, seed: u64) -> Result<Self> {
        let mut rows = Self::none(length)?;
        check(samples)?;
        // Rows with this many places left.
        let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for number in shuffled(samples.len(), seed)? {
            for (tokens, learned) in rows.pieces(&samples[number]) {
                let fitting = open.range_mut(tokens.len()..).find_map(|(&left, rows)| Some((left, rows.pop()?)));
                let (left, row) = fitting.unwrap_or_else(|| (length, rows.push()));
                rows.put(row, length - left, tokens, learned);
                open.entry(left - tokens.len()).or_default().push(row);
            }
        }
        rows.checked()
    }

    /// Gives each sample a row of its own, filled up with padding.
    ///
    /// Samples that are longer than a row are cut up as by [`packed`](Self::packed).
    ///
    /// # Errors
    ///
    /// As for [`packed`](Self::packed).
    pub fn apart(samples: &[Sample], length: usize) -> Result<Self> {
        let mut rows = Self::none(length)?;
        check(samples)?;
        for sample in samples {
            for (tokens, learned) in rows.pieces(sample) {
                let row = rows.push();
                rows.put(row, 0, tokens, learned);
            }
        }
        rows.checked()
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len() / self.length
    }

    /// Whether there are no rows: never true for rows that were made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// How many samples were longer than a row, and are in several.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// How many tokens of these rows have a loss that counts.
    ///
    /// # Panics
    ///
    /// There is no such row.
    #[must_use]
    pub fn learned(&self, rows: &[usize]) -> usize {
        let learned = rows.iter().flat_map(|row| &self.learned[row * self.length + 1..(row + 1) * self.length]);
        learned.filter(|learned| **learned).count()
    }

    /// The numbers of all rows in an order that the seed decides, such as that of an epoch.
    ///
    /// # Errors
    ///
    /// MLX fails.
    pub fn order(&self, seed: u64) -> Result<Vec<usize>> {
        shuffled(self.len(), seed)
    }

    /// These rows as arrays.
    ///
    /// # Panics
    ///
    /// There is no such row.
    #[must_use]
    pub fn batch(&self, rows: &[usize]) -> Batch {
        let (mut tokens, mut weights) = (Vec::new(), Vec::new());
        for row in rows {
            let (first, behind) = (row * self.length, (row + 1) * self.length);
            tokens.extend_from_slice(&self.tokens[first..behind]);
            weights.extend(self.learned[first + 1..behind].iter().map(|&learned| f32::from(u8::from(learned))));
        }
        let shape = |width: usize| [rows.len() as i32, width as i32];
        Batch {
            tokens: Array::from_slice(&tokens, &shape(self.length)),
            weights: Array::from_slice(&weights, &shape(self.length - 1)),
        }
    }

    fn none(length: usize) -> Result<Self> {
        if length < 2 {
            let message = format!("no token follows another one in rows of {length}");
            return Err(Error::invalid(message, "give rows of at least two tokens"));
        }
        if i32::try_from(length).is_err() {
            return Err(Error::invalid(format!("no array has rows of {length}"), "give shorter rows"));
        }
        Ok(Self { length, tokens: Vec::new(), learned: Vec::new(), cut: 0 })
    }

    /// The parts of a sample that fit into a row, without those of which nothing is learned.
    fn pieces<'s>(&mut self, sample: &'s Sample) -> Vec<(&'s [u32], &'s [bool])> {
        let Sample { tokens, learned } = sample;
        self.cut += usize::from(tokens.len() > self.length);
        let begins = (0..tokens.len().saturating_sub(1)).step_by(self.length - 1);
        let piece = |begin: usize| begin..tokens.len().min(begin + self.length);
        let pieces = begins.map(|begin| (&tokens[piece(begin)], &learned[piece(begin)]));
        pieces.filter(|(_, learned)| learned[1..].contains(&true)).collect()
    }

    /// A new row of padding.
    fn push(&mut self) -> usize {
        let row = self.len();
        self.tokens.resize(self.tokens.len() + self.length, PADDING);
        self.learned.resize(self.learned.len() + self.length, false);
        row
    }

    fn put(&mut self, row: usize, at: usize, tokens: &[u32], learned: &[bool]) {
        let places = row * self.length + at..row * self.length + at + tokens.len();
        self.tokens[places.clone()].copy_from_slice(tokens);
        self.learned[places.clone()].copy_from_slice(learned);
        self.learned[places.start] = false;
    }

    fn checked(self) -> Result<Self> {
        if self.is_empty() {
            let help = "give texts of at least two tokens, or completions that are not empty";
            return Err(Error::invalid("no token of the data is learned", help));
        }
        Ok(self)
    }
}

/// Checks that each token is said to be learned, or not.
fn check(samples: &[Sample]) -> Result<()> {
    for (number, Sample { tokens, learned }) in samples.iter().enumerate() {
        if tokens.len() != learned.len() {
            let message = format!(
                "sample {number} has {} tokens, and says of {} whether they are learned",
                tokens.len(),
                learned.len()
            );
            return Err(Error::invalid(message, "say it of each token"));
        }
    }
    Ok(())
}

/// The numbers below `count` in an order that the seed decides.
fn shuffled(count: usize, seed: u64) -> Result<Vec<usize>> {
    // mlx-rs gives no slice of an array without elements.
    if count == 0 {
        return Ok(Vec::new());
    }
    let draws = random::uniform::<_, f32>(0.0, 1.0, &[count as i32], Some(&random::key(seed)?))?;
    let order = ops::argsort_axis(&draws, 0)?;
    order.eval()?;
    Ok(order.as_slice::<u32>().iter().map(|&number| number as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample of these tokens, of which the first `prompt` are given.
    fn sample(tokens: std::ops::Range<u32>, prompt: usize) -> Sample {
        let tokens: Vec<u32> = tokens.collect();
        let learned = (0..tokens.len()).map(|at| at >= prompt).collect();
        Sample { tokens, learned }
    }

    /// The samples of a row, by the first token of each: tokens of one sample follow each other.
    fn row(rows: &Rows, number: usize) -> &[u32] {
        &rows.tokens[number * rows.length..(number + 1) * rows.length]
    }

    #[test]
    fn samples_that_fit_are_whole_in_a_row() -> Result<()> {
        let lengths = [5, 3, 2, 6, 4, 8, 2, 2];
        let samples: Vec<Sample> =
            lengths.iter().zip(1u32..).map(|(&length, n)| sample(100 * n..100 * n + length, 1)).collect();
        let rows = Rows::packed(&samples, 8, 3)?;
        // 32 tokens in rows of 8.
        assert!(rows.len() <= 5, "{rows:?}");
        let mut found: Vec<Vec<u32>> = Vec::new();
        for number in 0..rows.len() {
            let parts = row(&rows, number).chunk_by(|a, b| a + 1 == *b && a / 100 == b / 100);
            found.extend(parts.filter(|part| part[0] != PADDING).map(<[u32]>::to_vec));
        }
        found.sort();
        assert_eq!(found, samples.iter().map(|sample| sample.tokens.clone()).collect::<Vec<_>>());
        // The first token of each is not learned.
        let all: Vec<usize> = (0..rows.len()).collect();
        assert_eq!(rows.learned(&all), 32 - 8);
        assert_eq!((rows.cut(), rows.clone()), (0, Rows::packed(&samples, 8, 3)?));
        assert_ne!(rows, Rows::packed(&samples, 8, 4)?);
        Ok(())
    }

    #[test]
    fn every_learned_token_of_a_long_sample_is_predicted_once() -> Result<()> {
        let long = sample(10..30, 5);
        let rows = Rows::packed(std::slice::from_ref(&long), 4, 0)?;
        let all: Vec<usize> = (0..rows.len()).collect();
        assert_eq!((rows.learned(&all), rows.cut()), (15, 1));
        let mut predicted = Vec::new();
        for &number in &all {
            let learned = &rows.learned[number * 4..(number + 1) * 4];
            predicted.extend(row(&rows, number)[1..].iter().zip(&learned[1..]).filter(|(_, l)| **l).map(|(t, _)| *t));
        }
        predicted.sort_unstable();
        assert_eq!(predicted, (15..30).collect::<Vec<_>>());
        // The first piece is of the prompt alone.
        assert!(!rows.tokens.contains(&10), "{rows:?}");
        assert_eq!(Rows::apart(&[long], 4)?.learned(&all), 15);
        Ok(())
    }

    #[test]
    fn weights_are_those_of_the_tokens_that_are_predicted() -> Result<()> {
        let rows = Rows::apart(&[sample(1..4, 1), sample(5..7, 0)], 4)?;
        let Batch { tokens, weights } = rows.batch(&[1, 0]);
        assert_eq!(tokens.as_slice::<u32>(), [5, 6, 0, 0, 1, 2, 3, 0]);
        assert_eq!(weights.as_slice::<f32>(), [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        Ok(())
    }

    #[test]
    fn orders_are_those_of_their_seeds() -> Result<()> {
        let samples: Vec<Sample> = (0..50).map(|n| sample(10 * n..10 * n + 4, 1)).collect();
        let rows = Rows::apart(&samples, 4)?;
        let orders = [rows.order(1)?, rows.order(1)?, rows.order(2)?];
        assert!(orders[0] == orders[1] && orders[0] != orders[2]);
        let mut sorted = orders[2].clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn a_sample_says_of_each_token_whether_it_is_learned() {
        for learned in [vec![true], vec![true; 4]] {
            let count = learned.len();
            let samples = [sample(5..7, 1), Sample { tokens: vec![1, 2, 3], learned }];
            for made in [Rows::packed(&samples, 4, 0), Rows::apart(&samples, 4)] {
                let error = made.expect_err("the marks are not those of the tokens").to_string();
                let expected = format!("sample 1 has 3 tokens, and says of {count} whether they are learned");
                assert_eq!(error, expected + "\nhelp: say it of each token");
            }
        }
    }

    #[test]
    fn data_of_which_nothing_is_learned_is_refused() {
        for samples in [vec![], vec![sample(1..9, 8)], vec![sample(1..2, 0)], vec![Sample::default()]] {
            let error = Rows::packed(&samples, 4, 0).expect_err("nothing is learned").to_string();
            let help = "help: give texts of at least two tokens, or completions that are not empty";
            assert_eq!(error, format!("no token of the data is learned\n{help}"));
        }
        let said = |length: usize| Rows::apart(&[sample(1..9, 1)], length).expect_err("is refused").to_string();
        assert_eq!(said(1), "no token follows another one in rows of 1\nhelp: give rows of at least two tokens");
        let long = format!("no array has rows of {}\nhelp: give shorter rows", usize::MAX);
        assert_eq!(said(usize::MAX), long);
    }
}
