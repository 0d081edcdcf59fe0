//! Saves whose program ends, or whose disk fails, at every operation on the file system.

mod faults;
mod folder;
mod places;
mod saves;
