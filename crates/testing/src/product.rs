//! The dense product that the benchmark `dense` times, in a process with Tacit's BLAS and in one without.

use std::time::Instant;

use mlx_rs::error::Exception;
use mlx_rs::{random, transforms};

/// The median seconds of `x W^T` for `x: f32[128,4096]` and `W: f32[4096,4096]`, after one product to warm up.
///
/// # Errors
///
/// MLX fails.
pub fn median_seconds(rounds: usize) -> Result<f64, Exception> {
    let key = random::key(0)?;
    let x = random::normal::<f32>(&[128, 4096], None, None, Some(&key))?;
    let w = random::normal::<f32>(&[4096, 4096], None, None, Some(&key))?;
    transforms::eval([&x, &w])?;
    let mut times = Vec::with_capacity(rounds + 1);
    for _ in 0..=rounds {
        let start = Instant::now();
        x.matmul(w.t())?.eval()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
