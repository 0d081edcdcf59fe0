//! Rows that are split, such as logits of a split vocabulary, as one rank has them.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_conformance::close;
use tacit_conformance::oracle::floats;
use tacit_core::transform::grad;
use tacit_core::{Error, Result, Value, implicit};
use tacit_distributed::{Group, Sharded};

use crate::case::Case;
use crate::checkpoints::normal;

pub(crate) const CASES: &[Case] =
    &[Case::new("of_half_floats", vocabulary_in_half_floats), Case::new("with_infinities", rows_with_infinities)];

/// The logarithm of the sum of exponentials, and the softmax, of rows that are split, and of whole ones.
fn along_rows(logits: &Array, group: &Group) -> Result<[(Array, Array); 3]> {
    let x = Value::from(Sharded::split(logits, -1, group)?);
    let whole = |value: Value| match value.downcast::<Sharded>() {
        Some(split) => group.all_gather(&split.part().dense()?, -1),
        None => value.dense(),
    };
    let sum = implicit(&x, |x| x.logsumexp_axis(-1, false))?;
    let [plain, precise] = [false, true].map(|precise| implicit(&x, |x| ops::softmax_axis(x, -1, precise)));
    Ok([
        (whole(sum)?, logits.logsumexp_axis(-1, false)?),
        (whole(plain?)?, ops::softmax_axis(logits, -1, true)?),
        (whole(precise?)?, ops::softmax_axis(logits, -1, true)?),
    ])
}

/// Sums of many in half floats are those of one rank, which counts in `f32`.
fn vocabulary_in_half_floats(group: &Group) -> Result<()> {
    for dtype in [Dtype::Bfloat16, Dtype::Float16, Dtype::Float32] {
        for logits in [ops::zeros::<f32>(&[2, 65_536])?, normal(1, &[2, 65_536])?.multiply(Array::from_f32(8.0))?] {
            let tolerance = if dtype == Dtype::Float32 { 1e-5 } else { 1e-2 };
            for (found, expected) in along_rows(&logits.as_dtype(dtype)?, group)? {
                assert_eq!(found.dtype(), dtype);
                close(&found, &expected, tolerance).unwrap_or_else(|error| panic!("{dtype:?}: {error}"));
            }
        }
        let zeros = ops::zeros::<f32>(&[1, 65_536])?.as_dtype(dtype)?;
        let [(found, expected), ..] = along_rows(&zeros, group)?;
        assert!(found.eq(&expected)?.item_exact::<bool>(), "{found} is not {expected}");
    }
    Ok(())
}

/// Rows that are masked whole, or in all of a rank's part, and rows with an infinity or no number.
fn rows_with_infinities(group: &Group) -> Result<()> {
    const WIDTH: usize = 16;
    let rows: [fn(usize) -> f32; 6] = [
        |_| f32::NEG_INFINITY,
        |at| if at == 3 { f32::INFINITY } else { at as f32 },
        |at| if at == 3 { f32::INFINITY } else { f32::NEG_INFINITY },
        |at| if at < WIDTH / 2 { f32::NEG_INFINITY } else { at as f32 },
        |at| if at == 5 { f32::NAN } else { at as f32 },
        |at| 30_000.0 + at as f32 * 16.0,
    ];
    let numbers: Vec<f32> = rows.iter().flat_map(|row| (0..WIDTH).map(row)).collect();
    let same = |found: &Array, expected: &Array, what: &str| {
        let (found, expected) = (floats(found)?, floats(expected)?);
        assert_eq!(found.len(), expected.len(), "{what}");
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let near = (found - expected).abs() <= 1e-2 * expected.abs().max(1.0);
            let same = near || found.total_cmp(expected).is_eq() || (found.is_nan() && expected.is_nan());
            assert!(same, "{what}: element {at} is {found}, not {expected}");
        }
        Ok::<_, Error>(())
    };
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        let logits = Array::from_slice(&numbers, &[rows.len() as i32, WIDTH as i32]).as_dtype(dtype)?;
        for (number, (found, expected)) in along_rows(&logits, group)?.iter().enumerate() {
            same(found, expected, &format!("{number} of {dtype:?}"))?;
        }
        // What a rank has none of has no gradient, which is a number.
        let part = logits.try_index(3..4)?;
        let loss = |x: Array| -> Result<Array> { Ok(x.logsumexp_axis(-1, false)?.sum(None)?) };
        let expected = grad(loss).call(&part)?;
        let found = grad(loss).call(Sharded::split(&part, -1, group)?)?;
        let found = group.all_gather(found.child("part").array()?, -1)?;
        same(&found, expected.array()?, &format!("the gradient of {dtype:?}"))?;
    }
    Ok(())
}
