//! What a split costs, before anybody starts the ranks: bytes, messages and seconds of a collective, and of a step.
//!
//! A [`Network`] is an engine's algorithms with a latency and a bandwidth; [`Network::cost`] is the arithmetic of one
//! collective. [`Step::estimate`] puts a whole training step on two lanes, one that computes and one that sends, and says
//! how long it takes and how much of it is waiting. Nothing here talks to a group or to MLX. The page of the book, a benchmark and
//! a test on ranks each use a part.

#![allow(dead_code, unused_imports, reason = "each program that includes this uses a part of it")]

mod network;
mod step;

pub(crate) use network::{Collective, Cost, Engine, Network};
pub(crate) use step::{Estimate, Split, Step};
