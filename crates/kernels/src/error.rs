//! The one error of this crate.

use half::bf16;

/// What a kernel refuses, each with the numbers that were wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The block size is not one that the format has.
    #[error("block size {block} is not a power of two from 32 to 4096\nhelp: use 64, the usual choice")]
    BlockSize {
        /// The block size that was given.
        block: usize,
    },
    /// A block of no elements.
    #[error("a block has no elements\nhelp: give the number of elements that share a scale")]
    EmptyBlock,
    /// Codes of a width that no format has.
    #[error("codes of {bits} bits are in no format\nhelp: tables take 1 to 4 bits, and integers 1 to 8")]
    Bits {
        /// The width that was given.
        bits: u32,
    },
    /// A table that no codes can stand for.
    #[error(
        "a table of {values} values is no codebook\nhelp: give 2, 4, 8, 16 or 256 values, one of them finite and not zero"
    )]
    Table {
        /// The number of values.
        values: usize,
    },
    /// Codes of 3 bits whose most significant bits come first.
    #[error("codes of 3 bits cannot be packed high first\nhelp: pack them low first, as one stream of bits")]
    Order,
    /// The elements do not make up whole groups.
    #[error("{elements} elements are not whole groups of {group}\nhelp: choose a group size that divides their number")]
    Group {
        /// The number of elements.
        elements: usize,
        /// Elements in a group.
        group: usize,
    },
    /// Scales of a type that the format does not store.
    #[error("the scales are of another type than the format's\nhelp: give `{needed}`")]
    ScaleType {
        /// The variant that the format has.
        needed: &'static str,
    },
    /// A global scale that nothing can be divided by.
    #[error("the global scale is {value}\nhelp: give the largest magnitude of the tensor, or `None` if that is zero")]
    GlobalScale {
        /// The value that was given.
        value: f32,
    },
    /// Rows of a length that no fast Hadamard matrix has.
    #[error(
        "rows of {n} elements have no fast Hadamard transform\nhelp: those of m 2^k have one, for m = 1, 12, 20, 28, 36, 52 \
         and others of which `hadamard_order` knows"
    )]
    Hadamard {
        /// Elements in a row.
        n: usize,
    },
    /// A product that is not computed with 8-bit activations.
    #[error("int8 activations do not take {what}\nhelp: use `matmul`, which multiplies every matrix both ways round")]
    Int8 {
        /// What is not taken.
        what: &'static str,
    },
    /// A slice does not have the length that the other arguments imply.
    #[error("`{name}` holds {actual} elements where {expected} are needed\nhelp: {help}")]
    Length {
        /// The parameter.
        name: &'static str,
        /// The length that was needed.
        expected: usize,
        /// The length that was given.
        actual: usize,
        /// Where the needed length comes from.
        help: &'static str,
    },
    /// A size, a stride or a place does not fit the other arguments.
    #[error("`{name}` is {actual} where {expected} is needed\nhelp: {help}")]
    Size {
        /// The parameter.
        name: &'static str,
        /// What was needed, or the nearest number that would do.
        expected: usize,
        /// What was given.
        actual: usize,
        /// Where it comes from.
        help: &'static str,
    },
    /// A NaN or an infinity was to be quantized; no code stands for either.
    #[error("element {index} is {value}, which no code can hold\nhelp: replace NaN and infinities before quantizing")]
    NonFinite {
        /// The first such element, counted in row-major order.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// A number was to be stored that is beyond those of the format.
    #[error(
        "element {index} is {value}, and the greatest number of the format is {max}\nhelp: take a format with a scale{}",
        if *max < bf16::MAX.to_f32() { ", or one with the range of `f32` such as `bf16`" } else { " such as `int8`" }
    )]
    TooLarge {
        /// The first such element, counted in row-major order.
        index: usize,
        /// Its value.
        value: f32,
        /// The greatest number of the format.
        max: f32,
    },
    /// A matrix is not cut into groups of so many rows.
    #[error(
        "{n} rows are not cut into groups of {rows}, where a block and a byte end after {seam}\nhelp: give groups of \
         a multiple of {seam} rows"
    )]
    Groups {
        /// The rows of the matrix.
        n: usize,
        /// The rows of a group.
        rows: usize,
        /// The rows after which a block and a byte end.
        seam: usize,
    },
    /// A row number lies outside the matrix.
    #[error("row {row} (entry {index}) is outside a matrix of {rows} rows\nhelp: rows count from 0 to {rows} - 1")]
    RowRange {
        /// The entry of the list of rows.
        index: usize,
        /// The row that it asks for.
        row: u32,
        /// The number of rows that there are.
        rows: usize,
    },
    /// An index of a matrix that is not there.
    #[error(
        "matrix {matrix} (entry {index}) is outside a stack of {count}\nhelp: matrices count from 0 to {count} - 1"
    )]
    MatrixRange {
        /// The entry of the list.
        index: usize,
        /// The matrix that it asks for.
        matrix: u32,
        /// The number of matrices that there are.
        count: usize,
    },
    /// The product of the given sizes does not fit in memory's address range.
    #[error("{rows} x {columns} elements overflow the address range\nhelp: split the matrix by rows")]
    Overflow {
        /// The first factor.
        rows: usize,
        /// The second factor.
        columns: usize,
    },
    /// A program that cannot run, or not on what it was given.
    #[error("the program {what}\nhelp: see `Program::new` for what a program may be made of")]
    Program {
        /// What it does or has.
        what: String,
    },
}

impl KernelError {
    /// The index of the element that is refused, where it is one.
    pub fn element(&mut self) -> Option<&mut usize> {
        match self {
            Self::NonFinite { index, .. } | Self::TooLarge { index, .. } => Some(index),
            _ => None,
        }
    }
}
