//! NF4 kernels on a 4096 x 4096 weight with blocks of 64.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tacit_kernels::nf4::{self, Orientation, Weight};

const SIDE: usize = 4096;
const BLOCK: usize = 64;

fn kernels(criterion: &mut Criterion) {
    let elements = SIDE * SIDE;
    let dense: Vec<f32> = (0..elements).map(|i| ((i % 4099) as f32 * 0.618_034).sin()).collect();
    let mut packed = vec![0; nf4::packed_len(elements)];
    let mut absmax = vec![0.0; nf4::absmax_len(elements, BLOCK)];

    let mut group = criterion.benchmark_group("nf4");
    group.sample_size(20).throughput(Throughput::Bytes(4 * elements as u64));
    group.bench_function("quantize", |bencher| {
        bencher.iter(|| nf4::quantize(black_box(&dense), BLOCK, &mut packed, &mut absmax));
    });
    let mut out = vec![0.0; elements];
    group.bench_function("dequantize", |bencher| {
        bencher.iter(|| nf4::dequantize(black_box(&packed), &absmax, BLOCK, elements, &mut out));
    });

    let weight = Weight { packed: &packed, absmax: &absmax, block: BLOCK, n: SIDE, k: SIDE };
    for (name, orientation) in [("x W^T", Orientation::Transposed), ("x W", Orientation::Plain)] {
        for m in [1, 4, 32, 128, 512] {
            group.throughput(Throughput::Elements((m * elements) as u64));
            group.bench_with_input(BenchmarkId::new(name, m), &m, |bencher, &m| {
                let (x, y) = (&dense[..m * SIDE], &mut out[..m * SIDE]);
                bencher.iter(|| nf4::matmul(black_box(x), m, &weight, orientation, y));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, kernels);
criterion_main!(benches);
