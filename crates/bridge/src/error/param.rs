//! What is wrong with the parameters of a primitive.

/// Why parameters could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// The bytes end inside a value.
    #[error("the parameters end inside a value, {0} bytes in")]
    Truncated(usize),
    /// A byte that announces no known value.
    #[error("{0} is not the tag of a parameter")]
    Tag(u8),
    /// A code that is no element type of MLX.
    #[error("{0} is not the code of a dtype")]
    Dtype(i32),
    /// Text that is not UTF-8.
    #[error("a text parameter is not UTF-8")]
    Text,
    /// Lists within lists, deeper than any primitive has them.
    #[error("the parameters are nested too deeply")]
    Depth,
    /// Another number of parameters than the typed view has.
    #[error(
        "{primitive} has {expected} parameters, but {found} were given\nhelp: read them from a primitive of that name"
    )]
    Count {
        /// MLX's name of the primitive.
        primitive: &'static str,
        /// The number of the typed view's fields.
        expected: usize,
        /// The number of parameters.
        found: usize,
    },
    /// A parameter that the field of the typed view cannot hold.
    #[error(
        "parameter {field} of {primitive} is {found}, which is not {expected}\nhelp: read it from a primitive of that name"
    )]
    Field {
        /// MLX's name of the primitive.
        primitive: &'static str,
        /// The parameter's name.
        field: &'static str,
        /// The type that was expected.
        expected: &'static str,
        /// The parameter, printed.
        found: String,
    },
}
