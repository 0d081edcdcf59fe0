//! Caches that are trimmed, copied, swapped and held between compiled steps, some of which fail: as with eager steps.

use std::cell::Cell;

use mlx_rs::{Array, Dtype, fast, random};
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::model::{KvCache, Window};
use tacit::{Error, Result, implicit_with_state};

const WIDTH: i32 = 32;

/// What a step is given: queries, keys and values.
type Given = (Array, Array, Array);

fn step(cache: &mut KvCache, (q, k, v): Given) -> Result<Array> {
    let mask = cache.mask(q.dim(2))?;
    let (keys, values) = cache.update(&k, &v)?;
    Ok(fast::scaled_dot_product_attention(&q, &keys, &values, 0.25, Some((&mask).into()), None)?)
}

fn numbers(array: &Array) -> Vec<f32> {
    let array = array.as_dtype(Dtype::Float32).and_then(|array| array.flatten(None, None)).expect("floats");
    let array = array.multiply(mlx_rs::ops::ones::<f32>(array.shape()).expect("ones")).expect("a copy");
    array.eval().expect("evaluates");
    array.as_slice::<f32>().to_vec()
}

/// All that a cache holds.
fn held(cache: &KvCache) -> Result<Vec<f32>> {
    if cache.is_empty() {
        return Ok(Vec::new());
    }
    let (keys, values) = cache.tokens()?;
    Ok([numbers(&keys.dense()?), numbers(&values.dense()?), numbers(&cache.offset().clone())].concat())
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], told: &str) {
    let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 2e-2 * b.abs().max(1.0));
    assert!(near && found.len() == expected.len(), "{told}: {found:?} and not {expected:?}");
}

fn caches() -> Result<Vec<KvCache>> {
    let new = |dtype| KvCache::new([1, 2, WIDTH], dtype);
    let sliding = Window::Sliding { size: 5, sinks: 1 };
    Ok(vec![
        new(Dtype::Float32)?,
        new(Dtype::Float16)?,
        new(Dtype::Float32)?.with_window(sliding)?,
        new(Dtype::Float32)?.with_window(Window::Chunked { size: 4 })?,
        new(Dtype::Float32)?.stored(Some("affine:8:32".parse()?), Some("affine:4:32".parse()?))?,
        new(Dtype::Float32)?.with_window(sliding)?.stored(Some("affine:8:32".parse()?), None)?,
    ])
}

#[test]
fn a_cache_is_what_eager_steps_leave_in_it() -> Result<()> {
    for (kind, cache) in caches()?.into_iter().enumerate() {
        let dtype = if kind == 1 { Dtype::Float16 } else { Dtype::Float32 };
        for seed in 0..3u64 {
            let mut state = 0x9e37_79b9_7f4a_7c15 ^ (seed + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mut below = |bound: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % bound
            };
            let fails = Cell::new(false);
            let mut compiled = compile_with_state(CompileOptions::default(), |cache: &mut KvCache, given: Given| {
                let y = step(cache, given)?;
                if fails.get() { Err(Error::invalid("not now", "try again")) } else { Ok(y) }
            });
            let mut pairs = vec![(cache.clone(), cache.clone())];
            let mut kept: Vec<(KvCache, Vec<f32>)> = Vec::new();
            for call in 0..14u64 {
                let told = format!("cache {kind}, seed {seed}, call {call}");
                let at = below(pairs.len() as u64) as usize;
                let forks = pairs.len() < 3;
                let (found, expected) = &mut pairs[at];
                match below(8) {
                    0 if found.len() > 1 => {
                        let (a, b) = (found.trim(1), expected.trim(1));
                        assert_eq!(a.is_ok(), b.is_ok(), "{told}");
                    }
                    1 if forks => {
                        let copy = pairs[at].clone();
                        pairs.push(copy);
                    }
                    2 => {
                        let now = held(found)?;
                        kept.push((found.clone(), now));
                    }
                    _ => {
                        let tokens = 1 + below(3) as i32;
                        let draw = |heads: i32, more: u64| {
                            let key = random::key(100 * seed + 10 * call + more)?;
                            random::normal::<f32>(&[1, heads, tokens, WIDTH], None, None, &key)?.as_dtype(dtype)
                        };
                        let given = (draw(4, 0)?, draw(2, 1)?, draw(2, 2)?);
                        for cache in [&mut *found, &mut *expected] {
                            cache.reserve_trim(1)?;
                            cache.reserve(tokens)?;
                        }
                        if below(3) == 0 {
                            let before = held(found)?;
                            fails.set(true);
                            compiled.clear();
                            assert!(compiled.call(found, (&given.0, &given.1, &given.2)).is_err());
                            fails.set(false);
                            assert!(held(found)? == before, "{told}");
                        }
                        let made = compiled.call(found, (&given.0, &given.1, &given.2))?.dense()?;
                        let y = implicit_with_state(expected, (given.0, given.1, given.2), step)?.dense()?;
                        assert_near(&numbers(&made), &numbers(&y), &told);
                    }
                }
                for (found, expected) in &pairs {
                    assert_near(&held(found)?, &held(expected)?, &told);
                }
                for (cache, before) in &kept {
                    assert!(held(cache)? == *before, "{told}");
                }
            }
        }
    }
    Ok(())
}
