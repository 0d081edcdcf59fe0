//! Every type is cut into parts that materialize to the slices of the whole, or says that it is not.

use std::collections::BTreeSet;
use std::ops::Range;

use mlx_rs::{Array, Dtype};
use tacit_arrays::{cut, shard};
use tacit_core::{Error, Policy, Value};

use crate::{normal, subjects};

/// Types that have no parts of their own kind.
const WHOLE: [&str; 4] = ["diagonal", "identity", "repeated", "trained_codes"];

/// Types whose elements are sums, which a product of another shape may round otherwise.
const SUMS: [&str; 7] = ["dora", "as_stored", "lora", "lora_set", "low_rank", "qa_lora", "rotated"];

#[test]
fn parts_are_slices_of_the_whole() {
    let mut uncut = BTreeSet::new();
    for subject in subjects() {
        let mut parts = 0;
        for shape in [&[64, 64][..], &[6, 192], &[4, 6, 64], &[256, 12]] {
            for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
                let x = normal(7, shape).as_dtype(dtype).expect("a float type");
                let Ok(whole) = subject.make(&x) else { continue };
                for (axis, &extent) in shape.iter().enumerate() {
                    for (range, made) in all(&whole, axis, extent) {
                        let made = match made {
                            Ok(made) => made,
                            Err(Error::Invalid { help: Some(_), .. }) => continue,
                            Err(error) => panic!("{whole} is cut {range:?} along {axis}: {error}"),
                        };
                        parts += usize::from(range != (0..extent));
                        let what = format!("{} {whole}, {range:?} along {axis}", subject.name());
                        compare(&what, &made, &whole, axis, &range, SUMS.contains(&subject.name()));
                    }
                }
            }
        }
        if parts == 0 {
            uncut.insert(subject.name());
        }
    }
    assert_eq!(uncut.into_iter().collect::<Vec<_>>(), WHOLE);
}

type Part = (Range<i32>, Result<Value, Error>);

/// Equal parts, and some that begin and end anywhere.
fn all(whole: &Value, axis: usize, extent: i32) -> Vec<Part> {
    let mut parts = Vec::new();
    for count in [2, 3, 4] {
        let (index, length) = (count as i32 - 1, extent / count as i32);
        let made = shard(whole, axis as i32, count - 1, count);
        assert_eq!(made.is_ok(), shard(whole, axis as i32, 0, count).is_ok(), "one part of {whole}");
        parts.push((index * length..(index + 1) * length, made));
    }
    for range in [0..extent, 1..extent - 1, extent / 4..extent / 2, extent / 8..extent] {
        if range.start < range.end {
            parts.push((range.clone(), cut(whole, axis as i32, range)));
        }
    }
    parts
}

fn compare(what: &str, part: &Value, whole: &Value, axis: usize, range: &Range<i32>, sums: bool) {
    let _allow = Policy::Allow.scope();
    let expected = cut(&whole.dense().expect("materializes").into(), axis as i32, range.clone()).expect("is sliced");
    assert_eq!(part.aval().expect("an aval"), expected.aval().expect("an aval"), "{what}");
    if let Value::Implicit(array) = part {
        let children = array.children().into_iter().map(|(_, child)| child).collect();
        array.with_children(children).unwrap_or_else(|error| panic!("{what}: {error}"));
        // Smaller blocks have more scales, those of a few elements more of them than codes.
        let extent = whole.aval().expect("an aval").shape[axis];
        let half = extent >= 64 && 2 * range.len() as i32 <= extent;
        assert!(
            !half || part.nbytes() < whole.nbytes() || whole.nbytes() <= 4,
            "{what} holds {} bytes of {}",
            part.nbytes(),
            whole.nbytes()
        );
    }
    let [found, expected] = [part.dense(), expected.dense()]
        .map(|array| array.and_then(|array| Ok(array.as_dtype(Dtype::Float32)?.contiguous()?)).expect("materializes"));
    let [found, expected]: [&[f32]; 2] = [&found, &expected].map(Array::as_slice);
    // One unit in the last place, and in f32 a few.
    let bound = match whole.aval().expect("an aval").dtype {
        _ if !sums => 0.0,
        Dtype::Bfloat16 => 8e-3,
        Dtype::Float16 => 1e-3,
        _ => 1e-6,
    };
    for (a, b) in found.iter().zip(expected) {
        assert!(a.to_bits() == b.to_bits() || (a - b).abs() <= bound * b.abs().max(1.0), "{what}: {a} is not {b}");
    }
}
