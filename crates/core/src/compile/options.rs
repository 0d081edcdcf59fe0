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
    /// One trace for all shapes of the same rank whose extents of 0 and 1 are in the same places. Each new shape is
    /// checked: the function is recorded on it without being compiled, and where the graph is another one, because a
    /// shape went into it, that is an error.
    pub shapeless: bool,
    /// How many traces are kept; the one that was not used for the longest time is dropped first.
    pub capacity: usize,
    /// What happens when the function holds arrays that are not its arguments.
    pub constants: Constants,
    /// Which [passes](crate::pass) rewrite the graph before MLX compiles it.
    pub passes: Passes,
}

/// What happens when a function that is compiled holds arrays that are not its arguments, be they single numbers.
///
/// They are constants of the graph: what is put in their place later is not seen. Arrays that the function makes itself are
/// not among them, and neither are fields of an optimizer or a module in the state that are no leaves of it, such as a
/// learning rate; these are constants without a word.
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
