//! What passes leave a compiled function to compute is what the function computes.

mod draws;
mod expressions;
mod halves;
mod models;
mod odd;
mod over_inputs;
mod parts;
mod passes;
mod plans;
mod residents;
mod same;
mod stages;
mod told;
mod unknown;
