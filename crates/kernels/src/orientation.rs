//! The orientation of a product: with a matrix, or with its transpose.

/// Which way round the matrix `W: [n, k]` is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orientation {
    /// `y = x W^T`: `x: [m, k]`, `y: [m, n]`; a linear layer's forward pass.
    Transposed,
    /// `y = x W`: `x: [m, n]`, `y: [m, k]`; its backward pass.
    Plain,
}

impl Orientation {
    /// The other way round.
    #[must_use]
    pub const fn transposed(self) -> Self {
        match self {
            Self::Transposed => Self::Plain,
            Self::Plain => Self::Transposed,
        }
    }

    /// The elements of a row of `x` and of one of `y`, for a matrix `[n, k]`.
    pub(crate) const fn sides(self, n: usize, k: usize) -> (usize, usize) {
        match self {
            Self::Transposed => (k, n),
            Self::Plain => (n, k),
        }
    }
}
