//! Row programs: straight-line programs of elementwise ops and reductions over rows, in one pass over memory.
//!
//! A [`Program`] has a domain of `rows` rows of `columns` elements. Its values are one number for *each* element or one for
//! each *row*; a [`Map`] says which of an input's numbers belong to which. It is run block by block: a block's values stay
//! in the first cache levels, ops follow one another there, and blocks are shared out over the threads. Values lie there as
//! `f32`; what a step of a half type makes is rounded to that type, as it is where each op is run by itself. Each number
//! depends on its row alone, and sums are taken in `f32`, in an order that only depends on `columns`, and rounded at their
//! end, so that results carry the same bits for any number of threads. They do so on every machine as well, but for what the
//! C library computes, as it does for MLX: powers, `expm1`, `log1p`, sines of very large angles, and functions of half floats.

mod apply;
mod data;
mod half_floats;
mod in_place;
mod math;
mod op;
mod parts;
mod plan;
mod reduce;
mod run;
mod source;

pub use data::{Data, DataMut, Kind};
pub use op::{Op, Precision};
pub use parts::Parts;
pub use plan::{Extent, Program, Step, Value};
pub use source::{Columns, Map, Source};
