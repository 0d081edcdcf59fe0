//! What an array type may say of itself, so that the handlers of a family serve it.

pub(crate) mod adapter;
pub(crate) mod cut;
pub(crate) mod distributed;
pub(crate) mod linear;
pub(crate) mod packed;
pub(crate) mod structural;
pub(crate) mod view;
