//! What is wrong with the axes over which a function is mapped.

use crate::Aval;

/// Why a function cannot be mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmapError {
    /// The number of axes is not the number of arrays.
    #[error("{axes} axes are given for {arrays} {what}\nhelp: give one axis, or none, for each")]
    Count {
        /// `inputs` or `results`.
        what: &'static str,
        /// The number of axes.
        axes: usize,
        /// The number of arrays.
        arrays: usize,
    },
    /// No input is mapped.
    #[error("no input is mapped\nhelp: give at least one input an axis")]
    NothingMapped,
    /// An array has no such axis.
    #[error(
        "axis {axis} is out of range for {what} {index}, which is {aval}\nhelp: choose one of {rank} axes, from 0 on or, from the last one on, from -1 on"
    )]
    Axis {
        /// `input` or `result`.
        what: &'static str,
        /// Which one.
        index: usize,
        /// The axis.
        axis: i32,
        /// The array: an input, or a result with the mapped axis left out.
        aval: Aval,
        /// The number of axes among which to choose.
        rank: i32,
    },
    /// Mapped axes are not of one length.
    #[error(
        "the mapped axes differ in length: axis {axis} of input {index}, which is {aval}, has {found} and another one {expected}\nhelp: map over axes of one length"
    )]
    Extent {
        /// Which input.
        index: usize,
        /// Its axis.
        axis: i32,
        /// Its aval.
        aval: Aval,
        /// The length of its axis.
        found: i32,
        /// The length of the first mapped axis.
        expected: i32,
    },
    /// A function that is called again on mapped arrays captured one.
    #[error(
        "a function with a derivative of its own captured an array that is mapped around it\nhelp: pass the array to the function as an argument"
    )]
    Captured,
    /// A rule of a function gave other results than the function gives for each example, or axes that do not fit them.
    #[error(
        "the vmap of {function} gave {count} results, {results}, with the mapped axes {axes:?}\nhelp: give what each of {examples} examples has, {expected}, with an axis more for them"
    )]
    Rule {
        /// The function.
        function: String,
        /// The number of results.
        count: usize,
        /// The results, printed.
        results: String,
        /// The axes.
        axes: Vec<usize>,
        /// The number of examples.
        examples: i32,
        /// The results of one example, printed.
        expected: String,
    },
}
