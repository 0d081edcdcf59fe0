//! The dense product that the benchmark `dense` times, in a process with Tacit's BLAS and in one without.

use std::time::Instant;

use mlx_rs::error::Exception;
use mlx_rs::{Array, random, transforms};

/// `x W^T` for `x: f32[128,4096]` and `W: f32[4096,4096]`.
pub(crate) struct Product {
    x: Array,
    w: Array,
}

impl Product {
    /// Draws the operands.
    pub(crate) fn new() -> Result<Self, Exception> {
        let key = random::key(0)?;
        let x = random::normal::<f32>(&[128, 4096], None, None, Some(&key))?;
        let w = random::normal::<f32>(&[4096, 4096], None, None, Some(&key))?;
        transforms::eval([&x, &w])?;
        Ok(Self { x, w })
    }

    /// The seconds of one product.
    pub(crate) fn seconds(&self) -> Result<f64, Exception> {
        let start = Instant::now();
        self.x.matmul(self.w.t())?.eval()?;
        Ok(start.elapsed().as_secs_f64())
    }
}
