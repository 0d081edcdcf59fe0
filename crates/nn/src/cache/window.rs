//! Which earlier tokens a token sees.

use mlx_rs::{Array, ops};
use tacit_core::{Error, Result};

/// Which tokens a token sees, itself included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// All tokens up to its own.
    Everything,
    /// The last `size` tokens, and the first `sinks` of the sequence.
    Sliding {
        /// The number of tokens, its own included.
        size: i32,
        /// The number of tokens at the beginning that stay.
        sinks: i32,
    },
    /// The tokens of its own chunk of `size` tokens.
    Chunked {
        /// The number of tokens.
        size: i32,
    },
}

impl Window {
    /// How many of the last tokens are kept, and how many of the first; `None` where all are.
    ///
    /// ```
    /// use tacit_nn::Window;
    ///
    /// assert_eq!(Window::Sliding { size: 4, sinks: 1 }.bounds(), Some((4, 1)));
    /// assert_eq!(Window::Everything.bounds(), None);
    /// ```
    #[must_use]
    pub fn bounds(self) -> Option<(i32, i32)> {
        match self {
            Self::Everything => None,
            Self::Sliding { size, sinks } => Some((size, sinks)),
            Self::Chunked { size } => Some((size, 0)),
        }
    }

    pub(super) fn check(self) -> Result<()> {
        match self.bounds() {
            Some((size, sinks)) if size < 1 || sinks < 0 => Err(Error::invalid(
                format!("there is no window of {size} tokens behind {sinks}"),
                "let a token see itself at least",
            )),
            _ => Ok(()),
        }
    }

    /// Whether tokens at the positions `asked: i32[batch, 1, tokens, 1]` see those at `held: i32[batch, 1, 1, capacity]`, of
    /// which those below zero hold no token.
    pub(super) fn sees(self, asked: &Array, held: &Array) -> Result<Array> {
        let past = held.ge(Array::from_int(0))?.logical_and(held.le(asked)?)?;
        let near = match self {
            Self::Everything => return Ok(past),
            Self::Sliding { size, sinks } => {
                let near = held.gt(asked.subtract(Array::from_int(size))?)?;
                if sinks == 0 { near } else { near.logical_or(held.lt(Array::from_int(sinks))?)? }
            }
            Self::Chunked { size } => {
                let chunk = |at: &Array| ops::floor_divide(at, Array::from_int(size));
                chunk(held)?.eq(chunk(asked)?)?
            }
        };
        Ok(past.logical_and(near)?)
    }
}
