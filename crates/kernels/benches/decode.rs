//! The products of one token: 28 layers of 7 with one row of activations each, as Qwen3-0.6B has them, one after the other.
//!
//! `cargo bench -p tacit-kernels --bench decode`. A row is a format, with weights that stay in a cache or not; the median
//! time of a token, the sum of the least times of its products, and both over the time in which this machine reads as many
//! bytes. The last rows are those of a mixture's layer, 8 of 128 experts of 768 x 2048, beside the bytes of these 8.

#[path = "kernels/stored.rs"]
#[allow(dead_code, reason = "benches use parts of it")]
mod stored;

use std::time::Instant;

use stored::{Stored, named};
use tacit_kernels::{Indices, Orientation, Stack, gather_matmul, machine, matmul, threads};

/// Rows and columns of a layer's weights.
const LAYER: [(usize, usize); 7] =
    [(2048, 1024), (1024, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (3072, 1024), (1024, 3072)];
const LAYERS: usize = 28;
const TOKENS: usize = 15;

fn main() {
    let (x, mut y) = (vec![0.5_f32; 3072], vec![0.0_f32; 3072]);
    for (case, resident) in [("hot", 1), ("cold", LAYERS)] {
        for format in ["nf4-64", "affine4-64"] {
            let layer = |seed| LAYER.map(|sizes| Stored::new(named(format), sizes, seed));
            let layers: Vec<_> = (1..=resident as u64).map(layer).collect();
            let bytes = layers[0].iter().map(Stored::bytes).sum::<usize>();
            let (mut least, mut tokens) = ([f64::INFINITY; LAYER.len()], Vec::new());
            for _ in 0..TOKENS {
                let token = Instant::now();
                for layer in 0..LAYERS {
                    for (weight, least) in layers[layer % resident].iter().zip(&mut least) {
                        let (x, y) = (&x[..weight.k], &mut y[..weight.n]);
                        let start = Instant::now();
                        matmul(x, 1, &weight.matrix(), Orientation::Transposed, y).unwrap();
                        *least = least.min(start.elapsed().as_secs_f64());
                    }
                }
                tokens.push(token.elapsed().as_secs_f64());
            }
            tokens.sort_unstable_by(f64::total_cmp);
            let limit = (LAYERS * bytes) as f64 / machine::read_bandwidth(resident * bytes);
            let least = LAYERS as f64 * least.iter().sum::<f64>();
            let median = tokens[TOKENS / 2];
            println!(
                "{format:<12}{case:<6}{:>8.3}{:>8.3} ms {:>6.2}{:>6.2} of {:.1} GB/s on {} threads",
                1e3 * median,
                1e3 * least,
                median / limit,
                least / limit,
                (LAYERS * bytes) as f64 / limit / 1e9,
                threads::count()
            );
        }
    }
    experts();
}

/// The products of a row with 8 experts of 128, the same ones each time and then others.
fn experts() {
    const COUNT: usize = 128;
    const CHOSEN: usize = 8;
    const CALLS: usize = 300;
    let weight = Stored::new(named("nf4-64"), (COUNT * 768, 2048), 5);
    let (x, mut y) = (vec![0.5_f32; 2048], vec![0.0_f32; CHOSEN * 768]);
    for (case, stride) in [("hot", 0), ("cold", CHOSEN)] {
        let stack = Stack { matrix: weight.matrix(), count: COUNT };
        let mut times: Vec<f64> = (0..CALLS)
            .map(|call| {
                let experts: Vec<u32> = (0..CHOSEN).map(|i| ((call * stride + i) % COUNT) as u32).collect();
                let chosen = Indices { rows: 1, x: &[0; CHOSEN], stack: &experts };
                let start = Instant::now();
                gather_matmul(&x[..], chosen, &stack, Orientation::Transposed, &mut y[..]).unwrap();
                start.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_unstable_by(f64::total_cmp);
        let bytes = weight.bytes() * CHOSEN / COUNT;
        let resident = if stride == 0 { bytes } else { bytes * COUNT / CHOSEN };
        let limit = bytes as f64 / machine::read_bandwidth(resident);
        let [median, least] = [times[CALLS / 2], times[0]];
        println!(
            "experts     {case:<6}{:>8.3}{:>8.3} ms {:>6.2}{:>6.2} of {:.1} GB/s on {} threads",
            1e3 * median,
            1e3 * least,
            median / limit,
            least / limit,
            bytes as f64 / limit / 1e9,
            threads::count()
        );
    }
}
