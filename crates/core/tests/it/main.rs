//! The contract of dispatch and interception, on small types and registries built by hand.

extern crate tacit_core as tacit;

mod check;
mod dispatch;
mod explaining;
mod graphs;
mod materializing;
mod messages;
mod modules;
mod policies;
mod redispatch;
mod surface;
mod threads;
mod transforms;
mod types;
