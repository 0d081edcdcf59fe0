//! Matrices that a few numbers describe.

pub(crate) mod constant;
pub(crate) mod diagonal;
pub(crate) mod identity;
pub(crate) mod low_rank;
pub(crate) mod sparse24;
