//! What a cache costs beside its buffers: this is the only test of its program, as MLX counts the bytes of a whole one.

extern crate tacit_core as tacit;

mod peak;

use std::time::Instant;

use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_blas as _;
use tacit_core::compile::CompileOptions;
use tacit_core::tree::{self, Open};
use tacit_core::{Policy, Result, Tree, compile_with_state, implicit_with_state};
use tacit_nn::KvCache;

use peak::peak;

type Tokens = (Array, Array);

fn token(at: i32) -> Tokens {
    let x = ops::full::<f32>(&[1, 4, 1, 64], Array::from_f32(1.0 + at as f32)).expect("numbers");
    (x.clone(), x)
}

/// A step that attends to nothing: the first slots of the buffers alone are read.
fn write(cache: &mut KvCache, (k, v): Tokens) -> Result<Array> {
    cache.update(&k, &v)?;
    Ok(cache.offset().clone())
}

fn evaluated(state: &impl Tree) {
    let leaves = tree::leaves(state, Open::Fully).expect("leaves");
    transforms::eval(&leaves.iter().map(|leaf| leaf.dense().expect("dense")).collect::<Vec<_>>()).expect("evaluates");
}

/// Evaluates what attention reads, and nothing else of the cache.
fn attended(cache: &KvCache) {
    evaluated(&(cache.keys().clone(), cache.values().clone()));
}

fn cache(format: &str, capacity: i32) -> KvCache {
    let cache = KvCache::new([1, 4, 64], Dtype::Float32).expect("a cache");
    let format = || (format != "dense").then(|| format.parse().expect("a format"));
    let mut cache = cache.stored(format(), format()).expect("fits").with_capacity(capacity).expect("room");
    let (k, v) = token(0);
    implicit_with_state(&mut cache, (&k, &v), write).expect("writes");
    evaluated(&cache);
    cache
}

#[test]
fn a_token_costs_its_own_bytes() {
    let _deny = Policy::Deny.scope();
    for format in ["dense", "affine:8:64", "affine:4:64", "nf4:64", "int8:64"] {
        let mut cache = cache(format, 8192);
        let most = peak(|| {
            for at in 1..20 {
                let (k, v) = token(at);
                implicit_with_state(&mut cache, (&k, &v), write).expect("writes");
                evaluated(&cache);
            }
        });
        assert!(most < cache.nbytes() / 32, "{format}: {most} bytes beside {}", cache.nbytes());

        let mut step = compile_with_state(CompileOptions::default(), write);
        let run = |step: &mut tacit_core::compile::CompiledWithState<'_, KvCache, Tokens, Array>,
                   cache: &mut KvCache| {
            let (k, v) = token(cache.len());
            step.call(cache, &(k, v)).expect("writes");
            attended(cache);
        };
        run(&mut step, &mut cache);
        evaluated(&cache);
        let most = peak(|| (0..50).for_each(|_| run(&mut step, &mut cache)));
        assert!(most < cache.nbytes() / 32, "{format} compiled: {most} bytes beside {}", cache.nbytes());
        assert_eq!(step.stats().traces, 1);
    }

    // A prefix is shared until it is written.
    let prefix = cache("affine:8:64", 4096);
    let mut branch = prefix.clone();
    let shared = peak(|| evaluated(&branch));
    assert!(shared < 4096, "{shared}");
    let copied = peak(|| {
        let (k, v) = token(1);
        implicit_with_state(&mut branch, (&k, &v), write).expect("writes");
        evaluated(&branch);
    });
    assert!((prefix.nbytes()..prefix.nbytes() * 5 / 4).contains(&copied), "{copied} of {}", prefix.nbytes());

    // Growth holds no more than the old buffers and the new ones.
    let mut grown = cache_of_growth();
    let (old, most) = (
        grown.nbytes(),
        peak(|| {
            grown.reserve(4096).expect("room");
            evaluated(&grown);
        }),
    );
    assert!(most < grown.nbytes() + old / 4, "{most} bytes for {} beside {old}", grown.nbytes());

    // Ten thousand compiled steps: one trace, and no time or memory that grows.
    let mut cache = cache("affine:4:64", 10_001);
    let q = ops::ones::<f32>(&[1, 4, 1, 64]).expect("ones");
    let mut step = compile_with_state(CompileOptions::default(), write);
    let mut seconds = Vec::new();
    let most = peak(|| {
        for _ in 0..10 {
            let begun = Instant::now();
            for _ in 0..1000 {
                step.call(&mut cache, (q.clone(), q.clone())).expect("writes");
                attended(&cache);
            }
            seconds.push(begun.elapsed().as_secs_f64());
        }
    });
    assert_eq!((step.stats().traces, cache.len()), (1, 10_001));
    assert!(most < 1 << 20, "{most} bytes");
    println!("a compiled step of one token into {} slots: {seconds:.3?} ms", cache.capacity());
}

fn cache_of_growth() -> KvCache {
    let cache = KvCache::new([1, 4, 64], Dtype::Float32).expect("a cache");
    let format = || "affine:8:64".parse().expect("a format");
    let mut cache = cache.stored(Some(format()), Some(format())).expect("fits");
    cache.reserve(4096).expect("room");
    evaluated(&cache);
    cache
}
