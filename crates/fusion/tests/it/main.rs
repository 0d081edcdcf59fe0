//! What passes leave a compiled function to compute is what the function computes.

mod expressions;
mod halves;
mod models;
mod passes;
mod plans;
mod residents;
mod same;
mod stages;
mod told;
