//! Caches of what a decoder has seen: keys and values, each in any stored format, and the states of other layers.

mod arrays;
mod batch;
mod halves;
mod kv;
mod list;
mod padding;
mod slots;
mod store;
mod tokens;
mod window;
mod written;

pub use arrays::ArraysCache;
pub use kv::KvCache;
pub use list::Cache;
pub use padding::PaddingSide;
pub use window::Window;
