//! A dense matrix product through the exported BLAS, against the BLAS that MLX's wheel brings.
//!
//! MLX takes `cblas_sgemm` from the executable that it runs in, so the baseline is another executable, timed by this
//! one in the same run.

#[path = "../../../benches/figures/mod.rs"]
mod figures;

use std::process::Command;

use figures::Figure;
use tacit_blas as _;

fn main() {
    let ours = tacit_testing::product::median_seconds(15).expect("MLX multiplies");
    let child = Command::new(env!("CARGO_BIN_EXE_wheel-product")).output().expect("the baseline runs");
    assert!(child.status.success(), "the baseline fails: {}", String::from_utf8_lossy(&child.stderr));
    let wheel: f64 = String::from_utf8_lossy(&child.stdout).trim().parse().expect("the baseline prints seconds");
    Figure {
        bench: "dense",
        case: "128x4096x4096",
        value: ours * 1e3,
        unit: "ms",
        baseline: "the BLAS of MLX's wheel",
        ratio: wheel / ours,
    }
    .record();
}
