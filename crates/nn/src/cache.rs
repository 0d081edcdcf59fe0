//! Caches of what a decoder has seen: keys and values, each in any stored format.

mod kv;
mod window;

pub use kv::KvCache;
pub use window::Window;
