//! Views of other arrays, by which types without handlers of their own are transposed, cut, cast, joined and scaled.

pub(crate) mod cast;
pub(crate) mod concat;
pub(crate) mod masked;
pub(crate) mod of_linear;
pub(crate) mod repeated;
pub(crate) mod rotated;
pub(crate) mod scaled;
pub(crate) mod scaled_channels;
pub(crate) mod sliced;
pub(crate) mod stacked;
pub(crate) mod transposed;
