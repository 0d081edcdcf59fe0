//! Products of single precision through the exported BLAS, in units of what fused multiply-adds could do at most, and
//! beside other libraries.
//!
//! `cargo bench -p tacit-blas --bench products [isa] [filter] [--beside LIBRARY..]`. A library is a file that exports
//! `cblas_sgemm`, such as libopenblas.so.0, an older build of this crate, or the one of the package scipy-openblas32. A row
//! is a case and an instruction set: the share of that instruction set's peak, measured with the case, and then for each
//! library its share, and how many times as long as ours it takes. All take turns, after a pause in which threads of others
//! come to rest; numbers are medians of [`ROUNDS`] turns, of which the fastest call counts. Products that are taken by
//! tiles of an engine may exceed the peak.

#[cfg(unix)]
use std::ffi::{CStr, CString};
use std::{
    ffi::c_int,
    thread::sleep,
    time::{Duration, Instant},
};

use tacit_blas::cblas_sgemm;
use tacit_kernels::{Isa, machine, threads};

/// `A` transposed, `B` transposed, m, n, k.
type Case = (bool, bool, usize, usize, usize);

type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);

/// Sizes of which all three orientations are measured: cubes, and those of a transformer's training step.
const SIZES: &[[usize; 3]] = &[
    [64, 64, 64],
    [128, 128, 128],
    [256, 256, 256],
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [512, 512, 2048],
    [512, 2048, 512],
    [2048, 512, 512],
    [4096, 512, 512],
    [128, 784, 512],
    [333, 777, 555],
];

/// Others, each of one orientation.
const CASES: &[Case] = &[
    (false, true, 128, 10, 512),
    (false, false, 128, 512, 10),
    (true, false, 512, 10, 128),
    (true, true, 512, 512, 2048),
    (false, true, 512, 4096, 4096),
    (false, false, 8, 4096, 1024),
    (false, true, 8, 4096, 1024),
    (false, true, 1, 4096, 1024),
    (false, false, 4096, 1, 1024),
    (false, false, 4, 4, 4),
    (false, true, 16, 16, 16),
    (false, true, 256, 256, 64),
    (false, false, 256, 64, 256),
];

const ROUNDS: usize = 5;

/// What a turn takes at least.
const TURN: Duration = Duration::from_millis(8);

/// Longer than threads of other libraries look out for work.
const PAUSE: Duration = Duration::from_millis(12);

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let beside = words.iter().position(|word| word == "--beside").map(|at| words.split_off(at)).unwrap_or_default();
    let libraries: Vec<Sgemm> = beside.iter().skip(1).map(|path| load(path)).collect();
    let mut words = words.into_iter();
    let (isas, filter) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let threes = SIZES
        .iter()
        .flat_map(|&[m, n, k]| [(false, false), (false, true), (true, false)].map(|(ta, tb)| (ta, tb, m, n, k)));
    let cases: Vec<Case> = threes.chain(CASES.iter().copied()).collect();
    for isa in Isa::available().into_iter().filter(|isa| format!("{isa:?}").starts_with(&isas)) {
        isa.with(|| {
            println!("{isa:?}: {} threads, fma {:.0} GFLOP/s", threads::count(), machine::fma_peak() / 1e9);
            for &case in &cases {
                measure(case, &filter, &libraries);
            }
        });
    }
}

#[cfg(unix)]
fn load(path: &str) -> Sgemm {
    const NAMES: [&CStr; 2] = [c"cblas_sgemm", c"scipy_cblas_sgemm"];
    let file = CString::new(path).expect("a path without a zero");
    // SAFETY: a library of the person who measures, whose functions are what their names say.
    unsafe {
        let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "{path} is not a library that can be loaded");
        let found = NAMES.map(|name| libc::dlsym(library, name.as_ptr())).into_iter().find(|found| !found.is_null());
        std::mem::transmute::<*mut libc::c_void, Sgemm>(found.expect("the library has no cblas_sgemm"))
    }
}

#[cfg(not(unix))]
fn load(path: &str) -> Sgemm {
    panic!("{path} cannot be loaded on this system")
}

fn measure((ta, tb, m, n, k): Case, filter: &str, libraries: &[Sgemm]) {
    let name = format!("{m}x{n}x{k} {} {}", if ta { "A^T" } else { "A" }, if tb { "B^T" } else { "B" });
    if !name.contains(filter) {
        return;
    }
    let floats = |len: usize| -> Vec<f32> { (0..len).map(|i| ((i * 7919) % 1013) as f32 / 512.0 - 1.0).collect() };
    let (a, b, mut c) = (floats(m * k), floats(k * n), vec![0.0; m * n]);
    let size = |size: usize| size as c_int;
    let (trans_a, trans_b) = (if ta { 112 } else { 111 }, if tb { 112 } else { 111 });
    let (lda, ldb) = (size(if ta { m } else { k }), size(if tb { k } else { n }));
    // Short products are timed some at a time, so that the clock does not count.
    let each = ((1 << 21) / (m * n * k)).max(1);
    let mut turn = |sgemm: Sgemm| {
        let mut least = f64::INFINITY;
        let begin = Instant::now();
        while least.is_infinite() || begin.elapsed() < TURN {
            let start = Instant::now();
            for _ in 0..each {
                // SAFETY: the matrices have these sizes.
                unsafe {
                    sgemm(
                        101,
                        trans_a,
                        trans_b,
                        size(m),
                        size(n),
                        size(k),
                        1.0,
                        a.as_ptr(),
                        lda,
                        b.as_ptr(),
                        ldb,
                        0.0,
                        c.as_mut_ptr(),
                        size(n),
                    );
                }
            }
            least = least.min(start.elapsed().as_secs_f64() / each as f64);
        }
        least
    };
    let limit = 2.0 * (m * n * k) as f64 / machine::fma_peak();
    let all: Vec<Sgemm> = std::iter::once(cblas_sgemm as Sgemm).chain(libraries.iter().copied()).collect();
    let mut rounds = vec![Vec::new(); all.len()];
    for _ in 0..ROUNDS {
        for (times, &sgemm) in rounds.iter_mut().zip(&all) {
            if !libraries.is_empty() {
                sleep(PAUSE);
            }
            times.push(turn(sgemm));
        }
    }
    let ours = &rounds[0];
    print!("{name:<24} {:>10.4} ms {:>5.2}", 1e3 * median(ours.clone()), limit / median(ours.clone()));
    for theirs in &rounds[1..] {
        let ratios = theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours).collect();
        print!("  | {:>5.2} {:>6.2}x", limit / median(theirs.clone()), median(ratios));
    }
    println!();
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
