//! What of the past a token sees.

/// What of the past a token sees, itself included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// Everything before it.
    Everything,
    /// The last `size` tokens, and the first `sinks` of the sequence.
    Sliding {
        /// Tokens.
        size: i32,
        /// Tokens at the beginning that stay.
        sinks: i32,
    },
    /// What lies in its own chunk of `size` tokens.
    Chunked {
        /// Tokens.
        size: i32,
    },
}
