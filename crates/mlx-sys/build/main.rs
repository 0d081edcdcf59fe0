//! Builds `mlx-c` against a ready-made MLX and writes its Rust bindings.
//!
//! The steps in order, one module each: find MLX ([`locate`], [`wheel`]), check the C++ compiler ([`compiler`]), find
//! and compile `mlx-c` ([`mlx_c`]), write the bindings ([`bindings`]), tell cargo how to link ([`link`]) and read
//! in advance what MLX compiles at run time ([`kernels`]). Whatever goes wrong ends as one [`failure::Failure`], printed
//! without a backtrace. Where only documentation is wanted, there are the bindings and nothing else.

mod bindings;
mod cache;
mod compiler;
mod elf;
mod environment;
mod failure;
mod header;
mod kernels;
mod leftovers;
mod link;
mod locate;
mod mach_o;
mod mlx_c;
mod python;
mod versions;
mod wheel;

use failure::Failure;

fn main() {
    if let Err(failure) = build() {
        eprintln!("{failure}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), Failure> {
    for own in ["build", "csrc"] {
        println!("cargo::rerun-if-changed={own}");
    }
    if environment::documents() {
        bindings::write(&mlx_c::source()?)?;
        link::publish_version(versions::OLDEST);
        return Ok(());
    }
    let mlx = locate::locate()?;
    println!("cargo::rerun-if-changed={}", mlx.version_header().display());
    println!("cargo::rerun-if-changed={}", mlx.library.display());
    let compiler = compiler::Compiler::check()?;
    let source = mlx_c::source()?;
    bindings::write(&source)?;
    link::publish(&mlx, &source, &compiler)?;
    link::emit(&mlx)?;
    let preamble = kernels::precompile(&mlx);
    mlx_c::compile(&source, &mlx, &compiler)?;
    kernels::finish(preamble);
    Ok(())
}
