//! The border to MLX: walking, emitting, kernels and gradients.

mod arrays;
mod custom_vjp;
mod emitting;
mod kernels;
mod parameters;
mod recovering;
mod rewiring;
mod scopes;
mod vmapped;
mod walking;
