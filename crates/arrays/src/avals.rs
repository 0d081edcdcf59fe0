//! Functions of shapes, axes and dtypes that all array types use.

pub(crate) mod axes;
pub(crate) mod checks;
pub(crate) mod dtypes;
