//! Rows written into packed arrays: what is written is quantized as it would be alone, and nothing else changes.

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Nvfp4, Parts, Symmetric};
use tacit_arrays::{Nvfp4Array, SymmetricArray};
use tacit_core::extra_ops::{dynamic_slice, dynamic_slice_update};
use tacit_core::{Aval, Counters, Policy, Result, Value, implicit};

use crate::operands::{FLOATS, FORMATS, Format, Scales, dense, normal, normal_of};

/// Keys of two sequences with three heads.
const BUFFER: [i32; 4] = [2, 3, 16, 64];

type Write = fn(&Array, &Array) -> Result<Array>;

/// Ways to write so many tokens at slot 5 of a buffer.
const WRITES: [(&str, i32, Write); 5] = [
    ("dynamic slice update", 4, |a, x| dynamic_slice_update(a, x, &Array::from_slice(&[5i32], &[1]), &[2])),
    ("of two axes", 4, |a, x| dynamic_slice_update(a, x, &Array::from_slice(&[0i32, 5], &[2]), &[0, 2])),
    ("beyond the end", 4, |a, x| dynamic_slice_update(a, x, &Array::from_slice(&[99i32], &[1]), &[2])),
    ("slice update", 4, |a, x| {
        use mlx_rs::ops::indexing::TryIndexMutOp;
        let mut a = a.clone();
        a.try_index_mut((.., .., 5..9, ..), x)?;
        Ok(a)
    }),
    ("scatter axis", 3, |a, x| {
        let places = Array::from_slice(&[9i32, 0, 15], &[1, 1, 3, 1]);
        Ok(a.put_along_axis(ops::broadcast_to(places, x.shape())?, x, 2)?)
    }),
];

fn writable(format: &&Format) -> bool {
    ![Scales::Nested, Scales::Factor].contains(&format.scales)
}

/// Exactly equal, as nothing is computed from the numbers.
#[track_caller]
fn assert_same(made: &Array, expected: &Array) {
    assert_eq!(made.shape(), expected.shape());
    assert!(made.all_close(expected, 0.0, 0.0, None).expect("compares"));
}

#[test]
fn what_is_written_is_quantized_alone_and_the_rest_stays() {
    for dtype in FLOATS {
        let x = normal_of(dtype, 1, &BUFFER);
        for format in FORMATS.iter().filter(writable) {
            let w = (format.of)(&x).expect("quantizes");
            for (name, tokens, write) in WRITES {
                let new = normal_of(dtype, 2, &[2, 3, tokens, 64]);
                let coded = (format.of)(&new).expect("quantizes");
                let expected = write(&dense(&w), &dense(&coded)).expect("writes");
                for update in [Value::from(new), coded] {
                    let (made, counters) = Counters::during(|| {
                        let _deny = Policy::Deny.scope();
                        implicit((&w, &update), |(w, x)| write(&w, &x))
                    });
                    let made = made.unwrap_or_else(|error| panic!("{name} of {update} into {w}: {error}"));
                    assert_eq!((made.to_string(), made.nbytes()), (w.to_string(), w.nbytes()), "{name}");
                    assert_eq!(counters.materialized, 0);
                    assert_eq!(made.aval().expect("an aval").dtype, dtype);
                    assert_same(&dense(&made), &expected);
                }
            }
        }
    }
}

#[test]
fn rows_are_read_where_an_array_says() {
    for format in FORMATS.iter().filter(writable) {
        let w = (format.of)(&normal(1, &BUFFER)).expect("quantizes");
        let read = |w: &Array| dynamic_slice(w, &Array::from_slice(&[1i32, 7], &[2]), &[0, 2], &[1, 3, 5, 64]);
        let _deny = Policy::Deny.scope();
        let made = implicit(&w, |w| read(&w)).expect("is handled");
        assert!(made.is_implicit());
        assert_same(&dense(&made), &read(&dense(&w)).expect("reads"));
    }
}

#[test]
fn what_is_no_whole_rows_is_built() {
    let cases: [(&[i32], Write); 3] = [
        (&[2, 3, 16, 32], |a, x| dynamic_slice_update(a, x, &Array::from_slice(&[32i32], &[1]), &[3])),
        // A place for each element, as far as a handler can see.
        (&[2, 3, 1, 64], |a, x| Ok(a.put_along_axis(ops::zeros::<i32>(x.shape())?, x, 2)?)),
        (&[2, 3, 16, 1], |a, x| Ok(a.put_along_axis(ops::zeros::<i32>(x.shape())?, x, 3)?)),
    ];
    for (shape, write) in cases {
        let (w, x) = ((FORMATS[4].of)(&normal(1, &BUFFER)).expect("quantizes"), normal(2, shape));
        let run = || implicit((&w, &x), |(w, x)| write(&w, &x));
        {
            let _deny = Policy::Deny.scope();
            assert!(run().is_err());
        }
        let _allow = Policy::Allow.scope();
        let made = run().expect("is built").dense().expect("dense");
        assert_same(&made, &write(&dense(&w), &x).expect("writes"));
    }
}

#[test]
fn dense_tokens_behind_packed_ones_stay_as_they_are() {
    for format in &FORMATS {
        let (w, x) = ((format.of)(&normal(1, &BUFFER)).expect("quantizes"), normal(2, &[2, 3, 1, 64]));
        let joined = {
            let _deny = Policy::Deny.scope();
            implicit((&w, &x), |(w, x)| ops::concatenate(&[w, x], 2)).expect("is handled")
        };
        assert_eq!(joined.to_string(), "Concat(f32[2,3,17,64])");
        let expected = ops::concatenate(&[dense(&w), x], 2).expect("joins");
        assert_same(&dense(&joined), &expected);
    }
}

/// The transpose of a matrix is stored the other way round than the rows that it is written to.
#[test]
fn a_transposed_matrix_is_written_as_what_it_shows() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let write = |a: &Array, x: &Array| dynamic_slice_update(a, x, &Array::from_slice(&[16i32], &[1]), &[0]);
    for format in FORMATS.iter().filter(writable) {
        let (w, x) = ((format.of)(&normal(1, &[128, 64]))?, (format.of)(&normal(2, &[64, 64]))?);
        let coded = (format.of)(&dense(&x).t())?;
        let made = implicit((&w, &x), |(w, x)| write(&w, &x.t()))?;
        assert_eq!(made.to_string(), w.to_string());
        assert_same(&dense(&made), &write(&dense(&w), &dense(&coded))?);
    }
    Ok(())
}

/// Scales that are relative to one of the whole array mean something else in another one.
#[test]
fn rows_with_a_scale_of_their_own_are_written_as_what_they_stand_for() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let rows = Nvfp4Array::quantize_relative(&ops::ones::<f32>(&[2, 16])?, &Array::from_f32(100.0))?;
    let parts = Parts {
        codes: rows.codes().clone(),
        scales: rows.scales().cloned(),
        biases: None,
        global_scale: rows.global_scale().cloned(),
    };
    let rows = Nvfp4Array::from_parts(parts, Nvfp4::default(), Aval::new(&[2, 16], Dtype::Float32))?;
    let cache = Nvfp4Array::quantize(&ops::zeros::<f32>(&[4, 16])?, Nvfp4::default())?;
    let expected = Value::from(rows.clone()).dense()?.sum(None)?.item_exact::<f32>();
    let at = Array::from_slice(&[0i32], &[1]);
    let written = implicit((cache, rows), |(cache, rows)| dynamic_slice_update(&cache, &rows, &at, &[0]))?;
    let found = written.dense()?.sum(None)?.item_exact::<f32>();
    // Coded anew, by scales of eight bits.
    assert!((found - expected).abs() < 0.05 * expected, "{found} and not {expected}");
    Ok(())
}

/// As `Q8_0` of a GGUF file is read: `f32`, with scales in `f16`.
fn with_half_scales(x: &Array, format: Symmetric) -> Value {
    let made = SymmetricArray::quantize(x, format).expect("quantizes");
    let scales = made.scales().and_then(Value::as_dense).expect("scales").as_dtype(Dtype::Float16).expect("casts");
    let aval = Aval::from(x);
    SymmetricArray::from_parts(Parts::new(made.codes().clone(), scales), format, aval).expect("fits").into()
}

#[test]
fn rows_written_beside_half_scales_are_what_was_written() {
    let _allow = Policy::Allow.scope();
    let format = Symmetric { bits: 8, group: 32 };
    let w = with_half_scales(&normal(1, &[4, 64]), format);
    let write = |w: &Array, x: &Array| dynamic_slice_update(w, x, &Array::from_slice(&[1i32], &[1]), &[0]);
    // Ordinary rows; rows whose scales are beyond f16 (infinite, and NaN where the code is the middle one); rows whose scales are
    // nothing in f16.
    for factor in [1.0, 1e8, 1e-7] {
        let x = normal(2, &[1, 64]).multiply(Array::from_f32(factor)).expect("scales");
        let coded = Value::from(SymmetricArray::quantize(&x, format).expect("quantizes"));
        let expected = write(&w.dense().expect("dense"), &coded.dense().expect("dense")).expect("writes");
        for update in [coded.clone(), x.into()] {
            let made = implicit((&w, &update), |(w, x)| write(&w, &x)).and_then(|made| made.dense()).expect("writes");
            assert!(made.all_close(&expected, 0.0, 0.0, None).expect("compares"), "{factor} of {update}: {made:?}");
        }
    }
}
