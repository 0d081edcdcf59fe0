//! Caches of what a decoder has seen: keys and values, each in any stored format, and the states of other layers.

mod arrays;
mod batch;
mod hole;
mod kv;
mod list;
mod slots;
mod store;
mod window;
mod written;

pub use arrays::ArraysCache;
pub use hole::Side;
pub use kv::KvCache;
pub use list::Cache;
pub use window::Window;
