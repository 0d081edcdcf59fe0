//! Attention over rotated keys and values.

use mlx_rs::{Array, fast, ops};
use tacit_core::{Counters, Policy, Result, Value, implicit};

use super::{error, quantized};
use crate::operands::{FLOATS, normal, normal_of, oracle};

/// `softmax(q k^T / sqrt(d)) v` over one head.
fn attention((q, k, v): (Array, Array, Array)) -> Result<Array> {
    let scale = Array::from_f32(1.0 / (k.dim(-1) as f32).sqrt());
    Ok(ops::softmax_axis(q.multiply(scale)?.matmul(k.t())?, -1, None)?.matmul(&v)?)
}

/// What attention over 512 tokens of 128 channels is off by, with keys of which four channels are offset by so many times
/// 4 to 10 standard deviations: for each format, plain and rotated.
#[test]
fn keys_with_outliers_lose_less_where_they_are_rotated() {
    let _deny = Policy::Deny.scope();
    let (tokens, d) = (512, 128);
    let mut offsets = vec![0f32; d as usize];
    for (channel, offset) in [(3, 4.0), (40, 7.0), (77, 10.0), (101, 5.0)] {
        offsets[channel] = offset;
    }
    let offsets = Array::from_slice(&offsets, &[d]);
    let (q, v) = (normal(1, &[64, d]), normal(2, &[tokens, d]));
    // Without outliers, and with those of 4 to 10 and of 20 to 50 standard deviations.
    let expected = [
        (0.0, "affine:4:64", [0.116, 0.118]),
        (1.0, "affine:4:64", [0.203, 0.155]),
        (5.0, "affine:4:64", [0.705, 0.403]),
        (0.0, "nf4:64", [0.120, 0.118]),
        (1.0, "nf4:64", [0.214, 0.160]),
        (5.0, "nf4:64", [0.762, 0.531]),
        (5.0, "affine:8:64", [0.045, 0.022]),
    ];
    for (times, text, figures) in expected {
        let k = offsets.multiply(Array::from_f32(times)).and_then(|k| k.add(normal(3, &[tokens, d]))).expect("keys");
        let exact = attention((q.clone(), k.clone(), v.clone())).expect("runs");
        let found = [text.to_owned(), format!("rotated:{text}")].map(|text| {
            let made = implicit((&q, quantized(&text, &k), quantized(&text, &v)), attention).expect("runs");
            error(&made.dense().expect("dense"), &exact)
        });
        for (found, figure) in found.iter().zip(figures) {
            assert!((found - figure).abs() < 0.03 * figure, "{text}, {times}: {found}, not {figure}");
        }
    }
}

#[test]
fn attention_over_rotated_keys_and_values_builds_nothing() {
    for dtype in FLOATS {
        // Four query heads share each of two; 80 = 20 * 4.
        for (d, text) in [(64, "rotated:affine:4:32"), (128, "rotated:nf4:64"), (80, "rotated:int8:16")] {
            let cache = |seed| quantized(text, &normal_of(dtype, seed, &[2, 2, 21, d]));
            let q = Value::from(normal_of(dtype, 3, &[2, 8, 5, d]));
            let mask = Value::from(normal(4, &[2, 1, 5, 21]).gt(Array::from_f32(-0.5)).expect("a mask"));
            let operands = [q, cache(1), cache(2), mask];
            oracle(dtype).values_only().check("attention", &operands, |a| {
                Ok(vec![fast::scaled_dot_product_attention(&a[0], &a[1], &a[2], 0.125, Some((&a[3]).into()), None)?])
            });
            let (made, counters) = Counters::during(|| {
                implicit(&operands, |a| {
                    fast::scaled_dot_product_attention(&a[0], &a[1], &a[2], 0.125, Some((&a[3]).into()), None)
                })
            });
            made.expect("runs");
            assert_eq!(counters.materialized, 0, "{text} in {dtype:?}");
        }
    }
}
