//! The contract of dispatch and interception, on small types and registries built by hand.

extern crate tacit_core as tacit;

mod approx;
mod arguments;
mod check;
mod compiling;
mod compiling_traps;
mod compositions;
mod control_flow;
mod control_flow_messages;
mod dispatch;
mod explaining;
mod families;
mod graphs;
mod keeping;
mod log;
mod materializing;
mod messages;
mod policies;
mod redispatch;
mod surface;
mod threads;
mod traced;
mod transforms;
mod transforms_gradients;
mod transforms_mapped;
mod transforms_shared;
mod transforms_tangents;
mod trees;
mod trees_assigning;
mod trees_derive;
mod trees_foreign;
mod trees_functions;
mod trees_messages;
mod trees_opening;
mod types;
mod used_as;
