//! The products of one token: 28 layers of 7 with one row of activations each, as Qwen3-0.6B has them, one after the other.
//!
//! `cargo bench -p tacit-kernels --bench decode`. A row is a format, with weights that stay in a cache or not; the median
//! time of a token, the sum of the least times of its products, and both over the time in which this machine reads as many
//! bytes. The last rows are those of a mixture's layer, 8 of 128 experts of 768 x 2048, beside the bytes of these 8.

use std::time::Instant;

use tacit_kernels::{
    Codes, Indices, Matrix, Order, Orientation, Scales, Stack, gather_matmul, machine, matmul, nf4, threads,
};

/// Rows and columns of a layer's weights.
const LAYER: [(usize, usize); 7] =
    [(2048, 1024), (1024, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (3072, 1024), (1024, 3072)];
const LAYERS: usize = 28;
const BLOCK: usize = 64;
const TOKENS: usize = 15;

struct Weight {
    n: usize,
    k: usize,
    codes: Vec<u8>,
    numbers: Vec<f32>,
}

impl Weight {
    fn new((n, k): (usize, usize), seed: usize) -> Self {
        let codes = (0..n * k / 2).map(|i| (((i + seed) * 2_654_435_761) >> 13) as u8).collect();
        Self { n, k, codes, numbers: (0..n * k / BLOCK).map(|i| 0.01 + (i % 97) as f32 * 1e-4).collect() }
    }

    fn matrix(&self, affine: bool) -> Matrix<'_> {
        let (bytes, scales) = (&self.codes[..], Scales::F32(&self.numbers));
        let codes = if affine {
            Codes::Unsigned { bytes, bits: 4 }
        } else {
            Codes::Table { bytes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK }
        };
        Matrix { n: self.n, k: self.k, codes, scales, biases: affine.then_some(scales), block: BLOCK }
    }
}

fn main() {
    let layers: Vec<Vec<Weight>> =
        (0..LAYERS).map(|layer| LAYER.iter().map(|&sizes| Weight::new(sizes, layer * 77)).collect()).collect();
    let (x, mut y) = (vec![0.5_f32; 3072], vec![0.0_f32; 3072]);
    for (case, resident) in [("hot", 1), ("cold", LAYERS)] {
        for affine in [false, true] {
            let numbers = if affine { 2 } else { 1 };
            let bytes = LAYER.iter().map(|(n, k)| n * k / 2 + 4 * numbers * n * k / BLOCK).sum::<usize>();
            let (mut least, mut tokens) = ([f64::INFINITY; LAYER.len()], Vec::new());
            for _ in 0..TOKENS {
                let token = Instant::now();
                for layer in 0..LAYERS {
                    for (weight, least) in layers[layer % resident].iter().zip(&mut least) {
                        let (x, y) = (&x[..weight.k], &mut y[..weight.n]);
                        let start = Instant::now();
                        matmul(x, 1, &weight.matrix(affine), Orientation::Transposed, y).unwrap();
                        *least = least.min(start.elapsed().as_secs_f64());
                    }
                }
                tokens.push(token.elapsed().as_secs_f64());
            }
            tokens.sort_unstable_by(f64::total_cmp);
            let limit = (LAYERS * bytes) as f64 / machine::read_bandwidth(resident * bytes);
            let format = if affine { "affine4-64" } else { "nf4-64" };
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
    let weight = Weight::new((COUNT * 768, 2048), 5);
    let (x, mut y) = (vec![0.5_f32; 2048], vec![0.0_f32; CHOSEN * 768]);
    for (case, stride) in [("hot", 0), ("cold", CHOSEN)] {
        let stack = Stack { matrix: weight.matrix(false), count: COUNT };
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
        let bytes = (weight.codes.len() + 4 * weight.numbers.len()) * CHOSEN / COUNT;
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
