//! The families: traits that an array type implements, so that the handlers of a family take it.

pub(crate) mod adapter;
pub(crate) mod cut;
pub(crate) mod distributed;
pub(crate) mod linear;
pub(crate) mod packed;
pub(crate) mod structural;
pub(crate) mod view;
