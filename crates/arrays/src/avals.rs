//! What is asked of shapes, axes and dtypes, by all types.

pub(crate) mod axes;
pub(crate) mod checks;
pub(crate) mod dtypes;
