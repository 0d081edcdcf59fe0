//! The border to MLX: walking, emitting, kernels and gradients.

mod arrays;
mod checkpoints;
mod comparing;
mod custom_functions;
mod custom_vjp;
mod emitting;
mod failed_kernels;
mod graphs;
mod growth;
mod itself;
mod kernels;
mod mapped;
mod mlx;
mod mlx_rs;
mod no_compiler;
mod parameters;
mod planned;
mod ports;
mod processes;
mod programs;
mod recovering;
mod rewiring;
mod rewriting;
mod scopes;
mod vmap;
mod walking;
