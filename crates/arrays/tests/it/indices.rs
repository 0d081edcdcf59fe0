//! The one rule for indices, over every array type: negative ones count from the end, and one that is outside is an error.

use mlx_rs::ops::indexing::gather_single;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, Nf4};
use tacit_arrays::{
    ActivationGranularity, AffineArray, AsStored, Batched, Cast, Concat, Constant, Diagonal, Dora, Identity, Int8Array,
    Int8Inputs, Lora, LoraSet, LowRank, Masked, Nf4Array, Observed, Prepared, QaLora, Rotated, Scaled, ScaledChannels,
    Sliced, Sparse24, Stacked, Transposed, ste,
};
use tacit_conformance::assert_close;
use tacit_core::transform::vmap;
use tacit_core::{Policy, Result, Value, compile, implicit};

use crate::operands::{every, nf4, normal};

const F32: Dtype = Dtype::Float32;

/// A matrix of 32 rows and 32 columns in every type that has rows.
fn matrices() -> Vec<Value> {
    every_matrix().expect("is made")
}

fn every_matrix() -> Result<Vec<Value>> {
    let x = |seed| normal(seed, &[32, 32]);
    let base = || nf4(&normal(3, &[32, 32]), 32);
    let lora = || Lora::new(base(), normal(1, &[2, 32]), normal(2, &[32, 2]), 2.0);
    let affine = AffineArray::quantize(&x(3), Affine { bits: 4, group: 32 })?;
    let nf4_format = || Nf4 { block: 32, double: false };
    let mut made = every(F32, 1, &[32, 32]);
    made.extend([
        Constant::full(&[32, 32], &Array::from_f32(0.5))?.into(),
        Identity::new(32, F32)?.into(),
        Diagonal::new(normal(1, &[32]))?.into(),
        LowRank::new(normal(1, &[32, 2]), normal(2, &[2, 32]))?.into(),
        lora()?.into(),
        Dora::new(base(), normal(1, &[2, 32]), normal(2, &[32, 2]), 2.0)?.into(),
        QaLora::new(affine, normal(1, &[2, 1]), normal(2, &[32, 2]), 2.0)?.into(),
        AsStored::new(lora()?, Nf4::from(32))?.into(),
        LoraSet::new(&[lora()?, lora()?], Array::from_slice(&[1u32], &[]))?.into(),
        Masked::new(base(), x(4).gt(Array::from_f32(0.0))?)?.into(),
        Sparse24::prune(&x(1))?.into(),
        Transposed::new(base(), &[1, 0])?.into(),
        Scaled::new(base(), &Array::from_f32(0.5))?.into(),
        Concat::new(vec![nf4(&normal(1, &[12, 32]), 32), normal(2, &[20, 32]).into()], 0)?.into(),
        Concat::new(vec![nf4(&normal(1, &[32, 16]), 32), normal(2, &[32, 16]).into()], 1)?.into(),
        Stacked::new((0..32).map(|seed| nf4(&normal(seed, &[32]), 32)).collect())?.into(),
        Rotated::new(base(), -1)?.into(),
        ScaledChannels::new(base(), &normal(2, &[32]), -1)?.into(),
        Sliced::new(nf4(&normal(1, &[96, 32]), 32), &[40, 0], &[72, 32])?.into(),
        Cast::new(Int8Array::quantize(&x(1).as_dtype(Dtype::Bfloat16)?, 32)?, F32)?.into(),
        Prepared::new(&x(1), nf4_format())?.into(),
        Int8Inputs::new(base(), ActivationGranularity::Token)?.into(),
        Observed::new(base())?.into(),
        ste(x(1), |x| Nf4Array::quantize(x, 32))?,
    ]);
    Ok(made)
}

/// What the eval of something says, if it fails.
fn failure(made: Result<Value>) -> Option<String> {
    made.and_then(|value| Ok(value.dense()?.eval()?)).err().map(|error| error.to_string())
}

type Choose = fn(&Array, &Array) -> Result<Array>;

/// Ways to choose rows of a matrix by an array.
const CHOICES: [(&str, Choose); 4] = [
    ("rows", |w, at| Ok(w.take_axis(at, 0)?)),
    ("columns", |w, at| Ok(w.take_axis(at, 1)?)),
    ("a slice of rows", |w, at| Ok(gather_single(w, at, 0, &[1, 16])?)),
    ("along the rows", |w, at| {
        Ok(w.take_along_axis(ops::broadcast_to(at.reshape(&[-1, 1])?, &[at.size() as i32, 32])?, 0)?)
    }),
];

#[test]
fn an_index_outside_is_a_named_error_of_every_type() {
    let _allow = Policy::Allow.scope();
    for w in matrices() {
        for (name, choose) in CHOICES {
            for index in [32, 100_000_000, i32::MAX, -33, i32::MIN] {
                let at = Array::from_slice(&[0, 31, index, 1], &[4]);
                let made = implicit((&w, at), |(w, at)| choose(&w, &at));
                let error = failure(made).unwrap_or_else(|| panic!("{name} of {w} at {index} are taken"));
                let expected = format!("index {index} (entry 2) is outside an extent of 32");
                assert!(error.contains(&expected) && error.contains("help: "), "{name} of {w}: {error}");
            }
        }
    }
}

#[test]
fn negative_indices_of_every_type_count_from_the_end() {
    let _allow = Policy::Allow.scope();
    for w in matrices() {
        for (_, choose) in CHOICES {
            let taken = |at: &[i32]| {
                let at = Array::from_slice(at, &[at.len() as i32]);
                implicit((&w, at), |(w, at)| choose(&w, &at)).and_then(|value| value.dense()).expect("is taken")
            };
            let (found, expected) = (taken(&[-1, 3, -32, -7]), taken(&[31, 3, 0, 25]));
            assert_close!(found, expected, 0.0);
            let dense = w.dense().expect("is built");
            let at = Array::from_slice(&[31, 3, 0, 25], &[4]);
            assert_close!(found, choose(&dense, &at).expect("is taken"), 2e-5);
        }
    }
}

/// Numbers that another type would wrap: the rule looks at the indices as they are given.
#[test]
fn indices_of_every_integer_type_are_looked_at_as_they_are() {
    let w = nf4(&normal(1, &[200, 32]), 32);
    let taken = |at: Array| implicit((&w, at), |(w, at)| w.take_axis(&at, 0));
    for at in [
        Array::from_slice(&[(1i64 << 32) + 1], &[1]),
        Array::from_slice(&[u64::MAX], &[1]),
        Array::from_slice(&[u32::MAX], &[1]),
        Array::from_slice(&[200u8], &[1]),
    ] {
        let error = failure(taken(at.clone())).unwrap_or_else(|| panic!("{at:?} is taken"));
        assert!(error.contains("outside an extent of 200"), "{error}");
    }
    // The last row has no number in `i8`.
    let last = taken(Array::from_slice(&[-1i8], &[1])).and_then(|value| value.dense()).expect("is taken");
    let expected = taken(Array::from_slice(&[199u8], &[1])).and_then(|value| value.dense()).expect("is taken");
    assert_close!(last, expected, 0.0);
}

/// Stacks of five matrices in every way that has products of chosen ones.
fn stacks() -> Vec<Value> {
    let packed = nf4(&normal(1, &[5, 32, 64]), 64);
    let parts = |seeds: std::ops::Range<u64>| seeds.map(|seed| nf4(&normal(seed, &[32, 64]), 64)).collect();
    let sliced = Sliced::new(nf4(&normal(1, &[9, 32, 64]), 64), &[2, 0, 0], &[7, 32, 64]);
    let joined = Concat::new(vec![nf4(&normal(1, &[2, 32, 64]), 64), normal(2, &[3, 32, 64]).into()], 0);
    vec![
        packed.clone(),
        Batched::new(packed, &[5], vec![4, 0, 3, 1, 2], false).expect("is made").into(),
        Stacked::new(parts(0..5)).expect("is made").into(),
        sliced.expect("is made").into(),
        joined.expect("is made").into(),
        Masked::new(
            nf4(&normal(1, &[5, 32, 64]), 64),
            normal(2, &[5, 32, 64]).gt(Array::from_f32(0.0)).expect("a mask"),
        )
        .expect("is made")
        .into(),
    ]
}

#[test]
fn a_matrix_outside_the_stack_is_a_named_error_of_every_type() {
    let _allow = Policy::Allow.scope();
    let x = normal(2, &[3, 1, 32]);
    for w in stacks() {
        let product = |left: &[i32; 2], right: &[i32; 2]| {
            let [left, right] = [left, right].map(|index| Array::from_slice(index, &[2]));
            failure(implicit((&x, &w), |(x, w)| ops::gather_mm(x, w, &left, &right, None)))
        };
        assert_eq!(product(&[0, 2], &[4, 0]), None, "{w}");
        // A negative one is no index here: MLX has made it unsigned.
        for (left, right, message) in [
            ([0, 1], [0, 5], "index 5 (entry 1) is outside an extent of 5"),
            ([0, 1], [-1, 0], "index 4294967295 (entry 0) is outside an extent of 5"),
            ([3, 1], [0, 0], "index 3 (entry 0) is outside an extent of 3"),
            ([0, 100_000_000], [0, 0], "index 100000000 (entry 1) is outside an extent of 3"),
        ] {
            let error = product(&left, &right).unwrap_or_else(|| panic!("{w} at {left:?} and {right:?}"));
            assert!(error.contains(message), "{w}: {error}");
        }
    }
}

/// What is written would be written into foreign memory.
#[test]
fn rows_are_not_written_outside() {
    let _allow = Policy::Allow.scope();
    let w = nf4(&normal(1, &[8, 64]), 64);
    let written = |row: i32| {
        let at = ops::broadcast_to(Array::from_slice(&[row], &[1, 1]), &[1, 64]).expect("a row");
        let new = normal(2, &[1, 64]);
        implicit((&w, new), |(w, new)| w.put_along_axis(&at, new, 0))
    };
    let error = failure(written(8)).expect("there is no such row");
    assert!(error.contains("index 8 (entry 0) is outside an extent of 8"), "{error}");
    let [last, expected] = [-1, 7].map(|row| written(row).and_then(|value| value.dense()).expect("is written"));
    assert_close!(last, expected, 0.0);
}

/// Under `compile` and `vmap` the indices are checked as well.
#[test]
fn indices_are_checked_in_transforms() {
    let w = nf4(&normal(1, &[8, 64]), 64);
    let rows = |(w, at): (Array, Array)| w.take_axis(&at, 0);
    let index = |last: i32| Value::from(Array::from_slice(&[0, -8, 7, last], &[2, 2]));
    let plain = implicit((&w, index(2)), |(w, at)| rows((w, at))).and_then(|rows| rows.dense()).expect("is taken");
    let mut mapped = vmap([None, Some(0)], 0, rows);
    let mut compiled = compile(rows);
    let mut both = |last: i32| [mapped.call((w.clone(), index(last))), compiled.call((w.clone(), index(last)))];
    for made in both(2) {
        assert_close!(made.and_then(|rows| rows.dense()).expect("is taken"), plain, 0.0);
    }
    for made in both(8) {
        let error = failure(made).expect("there is no such row");
        assert!(error.contains("index 8") && error.contains("outside an extent of 8"), "{error}");
    }
}
