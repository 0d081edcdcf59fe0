//! Attention beside the limits of this machine, all measured in the same run.
//!
//! `cargo bench -p tacit-kernels --bench attention [filter]`. A row is a case, its time in milliseconds (the median, and the
//! least), and the median in units of the limit: for few queries the stored bytes at the bandwidth at which as many are read,
//! for many the multiplications at the rate of [`matmul`] with as many rows.

#[path = "kernels/stored.rs"]
#[allow(dead_code, reason = "benches use parts of it")]
mod stored;

use std::time::Instant;

use stored::{Stored, named};
use tacit_kernels::{Attention, Floats, Orientation, attention, machine, matmul, threads};

/// Heads of keys and values, and elements of each.
const GROUPS: usize = 8;
const HEAD: usize = 128;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    println!("{} threads, {:?}", threads::count(), tacit_kernels::Isa::detect());
    for (tokens, queries) in [(32768, 1), (32768, 2), (32768, 4), (8192, 64), (8192, 256)] {
        for name in ["nf4-64", "affine4-64", "affine8-64"] {
            let case = format!("{name}/{tokens}x{queries}");
            if wanted.is_empty() || wanted.iter().any(|part| case.contains(part.as_str())) {
                measure(&case, &Stored::new(named(name), (GROUPS * tokens, HEAD), 1), tokens, queries);
            }
        }
    }
}

fn measure(case: &str, cache: &Stored, tokens: usize, queries: usize) {
    // Two heads of queries for each of keys.
    let of: Vec<usize> = (0..2 * GROUPS).map(|entry| entry / 2).collect();
    let q: Vec<f32> = (0..of.len() * queries * HEAD).map(|i| (i as f32 * 0.37).sin() * 0.1).collect();
    let mut out = vec![0.0; q.len()];
    let given = Attention {
        q: Floats::F32(&q),
        queries,
        indices: &of,
        keys: cache.matrix(),
        values: cache.matrix(),
        tokens,
        mask: None,
    };
    let (median, least) = time(|| attention(&given, &mut out[..]).expect("fits"));
    let limit = if queries <= 8 {
        2.0 * cache.bytes() as f64 / machine::read_bandwidth(2 * cache.bytes())
    } else {
        let keys = given.keys;
        let x = &q[..2 * queries * HEAD];
        let mut scores = vec![0.0; 2 * queries * keys.n];
        let (transposed, _) =
            time(|| matmul(x, 2 * queries, &keys, Orientation::Transposed, &mut scores[..]).expect("fits"));
        let mut weighted = vec![0.0; x.len()];
        let (plain, _) =
            time(|| matmul(&scores[..], 2 * queries, &keys, Orientation::Plain, &mut weighted[..]).expect("fits"));
        transposed + plain
    };
    println!("{case:24} {:9.3} {:9.3} {:7.2}   {}", 1e3 * median, 1e3 * least, median / limit, cache.format.name);
}

/// The median and the least of some runs, in seconds.
fn time(mut f: impl FnMut()) -> (f64, f64) {
    f();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || (start.elapsed().as_secs_f64() < 0.5 && times.len() < 50) {
        let start = Instant::now();
        f();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}
