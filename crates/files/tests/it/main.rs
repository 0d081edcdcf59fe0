//! Saves and journals whose program ends, or whose disk fails, at every operation on the file system.

mod faults;
mod folder;
mod journal;
mod places;
mod saves;
