//! The options of a compiled function.

use crate::pass::Passes;

/// The options of a compiled function.
///
/// ```
/// use tacit_core::compile::{Constants, CompileOptions};
///
/// let options = CompileOptions { name: "step".into(), constants: Constants::Deny, ..CompileOptions::default() };
/// assert_eq!(options.capacity, 32);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// What messages call the function.
    pub name: String,
    /// Whether one trace serves all shapes of the same rank whose extents of 0 and 1 are in the same places; off by default.
    ///
    /// Each new shape is checked: the function is recorded on it without being compiled. If the graph is another one, because a
    /// shape went into it, the call is an error.
    pub shapeless: bool,
    /// How many traces are kept, at least one and 32 by default; the one that was not used for the longest time is dropped first.
    pub capacity: usize,
    /// What happens when the function holds arrays that are not its arguments.
    pub constants: Constants,
    /// Which [passes](crate::pass) rewrite the graph before MLX compiles it.
    pub passes: Passes,
}

/// What happens when a function that is compiled holds arrays that are not its arguments, single numbers included.
///
/// They are constants of the graph: a later change of them is not seen. Arrays that the function makes itself do not count.
/// Fields of an optimizer or a module in the state that are no leaves of it, such as a learning rate, are constants as well,
/// and are not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Constants {
    /// Nothing.
    Allow,
    /// A warning with their avals, at each trace.
    #[default]
    Warn,
    /// An error with their avals.
    Deny,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            name: "the function".to_owned(),
            shapeless: false,
            capacity: 32,
            constants: Constants::default(),
            passes: Passes::default(),
        }
    }
}
