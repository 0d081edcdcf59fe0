//! A step with its state.

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use tacit_core::{Error, Result, Tree, tree};

type Step<'a, S> = Box<dyn FnMut(&Array, &mut S) -> Result<Array> + 'a>;

/// A step and the state that it changes.
pub(super) struct Steps<'a, S> {
    step: Step<'a, S>,
    pub(super) state: &'a mut S,
    /// The tokens that the step knows: how many logits it gave last.
    pub(super) vocabulary: Option<i32>,
}

impl<'a, S: Tree + Clone> Steps<'a, S> {
    pub(super) fn new<E: Into<Error>>(
        mut step: impl FnMut(&Array, &mut S) -> Result<Array, E> + 'a,
        state: &'a mut S,
    ) -> Self {
        Self { step: Box::new(move |tokens, state| step(tokens, state).map_err(Into::into)), state, vocabulary: None }
    }

    /// The logits after each of `tokens: u32[batch, n]`, or after the last alone. Where the step fails, the state is what it was.
    pub(super) fn logits(&mut self, tokens: &Array) -> Result<Array> {
        self.then(tokens, Ok)
    }

    /// The logits after the last of `tokens`, `[batch, vocabulary]`.
    pub(super) fn last_logits(&mut self, tokens: &Array) -> Result<Array> {
        self.then(tokens, last_of)
    }

    /// What `f` makes of the logits after `tokens`, as a graph. Where it fails, or the step does, the state is what it was.
    pub(super) fn then<T>(&mut self, tokens: &Array, f: impl FnOnce(Array) -> Result<T>) -> Result<T> {
        // It shares the buffers, and is gone before any of them is written.
        let before = self.state.clone();
        self.run(tokens).and_then(f).inspect_err(|_| *self.state = before)
    }

    fn run(&mut self, tokens: &Array) -> Result<Array> {
        let logits = (self.step)(tokens, self.state)?;
        let (batch, count) = (tokens.dim(0), tokens.dim(1));
        let fits = match *logits.shape() {
            [rows, _] => rows == batch,
            [rows, each, _] => rows == batch && (each == count || each == 1),
            _ => false,
        };
        if !fits {
            return Err(Error::invalid(
                format!("a step on {count} tokens of {batch} sequences gives logits of {:?}", logits.shape()),
                "return [batch, tokens, vocabulary], or [batch, 1, vocabulary] or [batch, vocabulary] of the last token",
            ));
        }
        self.vocabulary = logits.shape().last().copied();
        Ok(logits)
    }

    /// Gives the state all of `tokens: u32[batch, n]` but the last, `u32[batch, 1]`, which comes back. No logits are computed.
    pub(super) fn prefill(&mut self, tokens: &Array, piece: usize) -> Result<Array> {
        let last = tokens.dim(1) - 1;
        let mut begin = 0;
        while begin < last {
            let end = last.min(begin.saturating_add(i32::try_from(piece).unwrap_or(i32::MAX)));
            self.logits(&tokens.try_index((.., begin..end))?)?;
            // Piece by piece, so that the activations of only one are there at a time.
            tree::eval(&*self.state)?;
            begin = end;
        }
        Ok(tokens.try_index((.., last..))?)
    }

    /// Begins to compute `arrays` and what the state has become, of which nothing then depends on a chain of former steps.
    pub(super) fn begin(&self, arrays: impl IntoIterator<Item = Array>) -> Result<()> {
        tree::async_eval(&(&*self.state, arrays.into_iter().collect::<Vec<_>>()))
    }
}

/// The logits of the last token, `[batch, vocabulary]`.
pub(super) fn last_of(logits: Array) -> Result<Array> {
    if logits.ndim() == 2 { Ok(logits) } else { Ok(logits.try_index((.., -1, ..))?) }
}

/// The rows, filled up on the left to the longest: `u32[batch, n]`.
pub(super) fn padded<P: AsRef<[u32]>>(rows: &[P], padding: u32) -> Array {
    let longest = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let mut tokens = Vec::with_capacity(rows.len() * longest);
    for row in rows {
        tokens.extend(std::iter::repeat_n(padding, longest - row.as_ref().len()));
        tokens.extend_from_slice(row.as_ref());
    }
    Array::from_slice(&tokens, &[rows.len() as i32, longest as i32])
}
