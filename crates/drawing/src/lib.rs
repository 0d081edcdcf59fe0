//! Charts as SVG, and text that is safe to print.
//!
//! A [`Canvas`] is a drawing as wide as a phone that takes the colors of the page around it, and an [`Axis`] says where numbers
//! are on it and which of them are written. [`Dots`] and [`Scatter`] are charts of these; `tacit-record` draws curves and bars.
//! Whatever is written goes through [`printable`], since names come from files that anybody may have written.

mod axis;
mod canvas;
mod dots;
pub mod printable;
mod scatter;

pub use axis::{Axis, labels, number};
pub use canvas::{Anchor, Canvas, EDGE, ROW, WIDTH, color};
pub use dots::{Dot, Dots};
pub use scatter::{Point, Scatter, front};
