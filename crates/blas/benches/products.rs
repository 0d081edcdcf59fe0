//! Products of single precision through the exported BLAS, in units of what fused multiply-adds could do at most.
//!
//! `cargo bench -p tacit-blas --bench products [isa] [filter]`. A row is a case and an instruction set, the median and the
//! least time, and the share of that instruction set's peak, measured in the same run, that the least time is. Products
//! that are taken by tiles of an engine may exceed it.

use std::{ffi::c_int, time::Instant};

use tacit_blas::cblas_sgemm;
use tacit_kernels::{Isa, machine, threads};

/// `A` transposed, `B` transposed, m, n, k.
type Case = (bool, bool, usize, usize, usize);

const CASES: &[Case] = &[
    (false, true, 128, 512, 784),
    (true, false, 784, 512, 128),
    (true, false, 512, 784, 128),
    (false, false, 128, 784, 512),
    (false, true, 128, 512, 512),
    (false, false, 128, 512, 512),
    (true, false, 512, 512, 128),
    (false, true, 128, 10, 512),
    (false, false, 128, 512, 10),
    (true, false, 512, 10, 128),
    (true, false, 10, 512, 128),
    (false, true, 2048, 512, 512),
    (false, false, 2048, 512, 512),
    (true, false, 512, 512, 2048),
    (true, true, 512, 512, 2048),
    (false, false, 512, 4096, 4096),
    (false, true, 512, 4096, 4096),
    (true, false, 512, 4096, 4096),
    (false, false, 333, 777, 555),
    (true, false, 333, 777, 555),
    (false, true, 333, 777, 555),
    (false, false, 8, 4096, 1024),
    (false, true, 8, 4096, 1024),
    (false, false, 1, 4096, 1024),
    (false, true, 1, 4096, 1024),
    (false, false, 4096, 1, 1024),
    (true, false, 4096, 1, 1024),
    (false, true, 1, 512, 784),
    (false, false, 4, 4, 4),
    (false, true, 16, 16, 16),
    (false, false, 64, 64, 64),
    (false, true, 64, 64, 64),
    (true, false, 64, 64, 64),
    (false, true, 256, 256, 64),
    (false, false, 256, 64, 256),
];

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let (isas, filter) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    for isa in Isa::available().into_iter().filter(|isa| format!("{isa:?}").starts_with(&isas)) {
        isa.with(|| {
            let peak = machine::fma_peak();
            println!("{isa:?}: {} threads, fma {:.0} GFLOP/s", threads::count(), peak / 1e9);
            for &case in CASES {
                measure(case, &filter, peak);
            }
        });
    }
}

fn measure((ta, tb, m, n, k): Case, filter: &str, peak: f64) {
    let name = format!("{m}x{n}x{k} {} {}", if ta { "A^T" } else { "A" }, if tb { "B^T" } else { "B" });
    if !name.contains(filter) {
        return;
    }
    let floats = |len: usize| -> Vec<f32> { (0..len).map(|i| ((i * 7919) % 1013) as f32 / 512.0 - 1.0).collect() };
    let (a, b, mut c) = (floats(m * k), floats(k * n), vec![0.0; m * n]);
    let size = |size: usize| size as c_int;
    let mut call = || {
        // SAFETY: the matrices have these sizes.
        unsafe {
            cblas_sgemm(
                101,
                if ta { 112 } else { 111 },
                if tb { 112 } else { 111 },
                size(m),
                size(n),
                size(k),
                1.0,
                a.as_ptr(),
                size(if ta { m } else { k }),
                b.as_ptr(),
                size(if tb { k } else { n }),
                0.0,
                c.as_mut_ptr(),
                size(n),
            );
        }
    };
    // Short products are timed some at a time, so that the clock does not count.
    let each = ((1 << 21) / (m * n * k)).max(1);
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 5 || begin.elapsed().as_millis() < 60 {
        let start = Instant::now();
        (0..each).for_each(|_| call());
        times.push(start.elapsed().as_secs_f64() / each as f64);
    }
    times.sort_unstable_by(f64::total_cmp);
    let (median, least, limit) = (times[times.len() / 2], times[0], 2.0 * (m * n * k) as f64 / peak);
    println!("{name:<26} {:>11.5} {:>11.5} ms {:>6.2}", 1e3 * median, 1e3 * least, limit / least);
}
