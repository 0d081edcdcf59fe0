//! Structures with arrays at their leaves.
//!
//! A [`Tree`] is an array, a value, a container of trees, a [`Static`] number or string, a struct with `#[derive(Tree)]`, or
//! a wrapper that [`register_node!`](crate::register_node) declares. [`flatten`] takes one apart into its leaves and its
//! [`TreeDef`], [`unflatten`] puts it together again. An implicit array is a leaf, or a node that is opened into its
//! children, as [`Open`] says.

mod arguments;
mod beside;
mod containers;
mod def;
pub(crate) mod definition;
mod entry;
mod evaluating;
mod fixed;
mod flattened;
mod foreign;
mod functions;
mod gradient;
mod leaf;
mod matcher;
mod node;
mod path;
mod places;
mod print;
mod reader;
mod stamp;
mod unchanged;
mod visitor;

pub use arguments::Arguments;
pub use def::{Difference, TreeDef};
pub use evaluating::{arrays, async_eval, eval};
pub use fixed::{Static, StaticLeaf};
#[doc(hidden)]
pub use foreign::{flatten_node, unflatten_node};
pub use functions::{
    assign, depth, flatten, flatten_with_path, leaves, map, map_with_path, map2, structure, unflatten, update, zip,
};
pub use gradient::Gradient;
pub use leaf::Leaf;
pub use node::{Labels, Node, NodeKind, StaticField};
pub use path::Path;
pub use reader::{Entered, Reader};
pub use stamp::Stamp;
pub use visitor::{Branch, Open, Visitor};

pub(crate) use beside::{beside, check_aval};
pub(crate) use flattened::Flattened;
pub(crate) use matcher::{Listed, Matched, Matcher, Shown};
pub(crate) use reader::Item;
pub(crate) use stamp::Part;
pub(crate) use unchanged::Unchanged;

use definition::Tree;
