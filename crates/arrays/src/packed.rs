//! Arrays of codes and scales: the type of every stored format, and the handlers of all of them.

pub(crate) mod added;
pub(crate) mod alike;
pub(crate) mod array;
pub(crate) mod attention;
pub(crate) mod batched;
pub(crate) mod dynamic8;
pub(crate) mod factor;
pub(crate) mod in_pieces;
pub(crate) mod join;
pub(crate) mod linear;
pub(crate) mod products;
pub(crate) mod quantize;
pub(crate) mod read;
pub(crate) mod reblock;
pub(crate) mod scores;
pub(crate) mod shape;
pub(crate) mod slice;
pub(crate) mod super_blocks;
pub(crate) mod trained_scales;
pub(crate) mod units;
pub(crate) mod update;
