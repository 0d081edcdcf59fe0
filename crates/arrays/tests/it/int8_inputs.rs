//! Products whose activations are rounded to 8 bits.

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::{Array, ops, transforms};
use tacit_arrays::format::Affine;
use tacit_arrays::{ActivationGranularity, AffineArray, Int8Inputs, Prepared, int8_rounded};
use tacit_conformance::oracle::floats;
use tacit_core::{Counters, Error, Policy, Result, Value, implicit};

use crate::messages::check;
use crate::operands::{FLOATS, normal, normal_of};

const BOTH: [ActivationGranularity; 2] = [ActivationGranularity::Token, ActivationGranularity::Tensor];

/// The definition, written as plainly as it can be.
fn by_definition(x: &Array, granularity: ActivationGranularity) -> Vec<f32> {
    let values = floats(x).expect("floats");
    let last = x.shape().last().map_or(1, |&last| last as usize);
    let share = if granularity == ActivationGranularity::Token { last } else { values.len() };
    let rounded = values.chunks(share).flat_map(|values| {
        let most = values.iter().fold(0f32, |most, x| most.max(x.abs()));
        let factor = if most == 0.0 { 0.0 } else { 127.0 / most };
        values.iter().map(move |x| (x * factor).round_ties_even().clamp(-127.0, 127.0) * (most / 127.0))
    });
    rounded.collect()
}

#[test]
fn activations_are_rounded_by_their_own_magnitude() {
    for per in BOTH {
        let x = normal(1, &[2, 3, 32]);
        assert_eq!(floats(&int8_rounded(&x, per).expect("rounds")).expect("floats"), by_definition(&x, per));
        let zeros = mlx_rs::ops::zeros::<f32>(&[2, 4]).expect("zeros");
        assert_eq!(floats(&int8_rounded(&zeros, per).expect("rounds")).expect("floats"), [0.0; 8]);
        for dtype in FLOATS {
            assert_eq!(int8_rounded(&normal_of(dtype, 1, &[4]), per).expect("rounds").dtype(), dtype);
        }
        assert_eq!(int8_rounded(&normal(1, &[0, 4]), per).expect("nothing").shape(), [0, 4]);
    }
}

#[test]
fn products_are_those_of_rounded_activations() {
    let w = || Value::from(Prepared::new(&normal(2, &[8, 64]), Affine { bits: 4, group: 32 }).expect("fits"));
    let _deny = Policy::Deny.scope();
    for per in BOTH {
        let eight = Int8Inputs::new(w(), per).expect("float");
        let x = normal(3, &[2, 5, 64]);
        let (y, counters) = Counters::during(|| implicit((&x, &eight), |(x, w)| x.matmul(w.t())));
        let flat = int8_rounded(&x.reshape(&[10, 64]).expect("flat"), per).expect("rounds");
        let plain = implicit((flat, w()), |(x, w)| x.matmul(w.t())?.reshape(&[2, 5, 8])).expect("multiplies");
        let [y, plain] = [y.expect("multiplies"), plain].map(|y| floats(&y.dense().expect("dense")).expect("floats"));
        assert_eq!(y, plain);
        assert_eq!(counters.materialized, 0);

        let columns = normal(4, &[64, 5]);
        let left = implicit((&columns, &eight), |(x, w)| w.matmul(x)).expect("multiplies");
        let tokens = int8_rounded(&columns.t(), per).expect("rounds");
        let plain = implicit((tokens, w()), |(x, w)| w.matmul(x.t())).expect("multiplies");
        let [left, plain] = [left, plain].map(|y| floats(&y.dense().expect("dense")).expect("floats"));
        assert_eq!(left, plain);
    }
}

/// Experts that each token chooses, and convolutions: their activations are rounded as those of matrices are.
#[test]
fn chosen_matrices_and_convolutions_round_as_well() -> Result<()> {
    let (left, right) = (Array::from_slice(&[0u32, 2, 1], &[3]), Array::from_slice(&[1u32, 0, 1], &[3]));
    let _deny = Policy::Deny.scope();
    for per in BOTH {
        let experts = AffineArray::quantize(&normal(2, &[2, 8, 64]), Affine { bits: 4, group: 32 })?;
        let product =
            |x: &Array, w: &Array| Ok::<_, Error>(ops::gather_mm(x, w.swap_axes(1, 2)?, &left, &right, None)?);
        let x = normal(3, &[3, 5, 64]);
        let found = implicit(Int8Inputs::new(experts.clone(), per)?, |w| product(&x, &w))?.dense()?;
        let rounded = int8_rounded(&x, per)?;
        assert_eq!(floats(&found)?, floats(&implicit(experts, |w| product(&rounded, &w))?.dense()?)?);

        let (x, w) = (normal(4, &[1, 6, 6, 3]), normal(5, &[4, 3, 3, 3]));
        let convolved = |x: &Array, w: &Array| Ok::<_, Error>(ops::conv2d(x, w, None, None, None, None)?);
        let found = implicit(Int8Inputs::new(&w, per)?, |w| convolved(&x, &w))?.dense()?;
        assert_eq!(floats(&found)?, floats(&convolved(&int8_rounded(&x, per)?, &w)?)?);
    }
    Ok(())
}

/// The number of units in 1 is no `f32`: infinity times 0 is none either.
#[test]
fn a_token_of_tiny_numbers_stays_finite() -> Result<()> {
    let x = Array::from_slice(&[2e-38f32, 0.0, -1e-38], &[1, 3]);
    for per in BOTH {
        let found = floats(&int8_rounded(&x, per)?)?;
        assert!(found[0] >= 0.0 && found[1] == 0.0 && found[2] <= 0.0, "{found:?}");
        assert!(found.iter().all(|found| found.abs() <= 2e-38), "{found:?}");
    }
    Ok(())
}

#[test]
fn both_sides_are_trained() {
    let (x, master) = (normal(5, &[3, 64]), normal(6, &[8, 64]));
    let y = |arrays: &[Array]| -> Result<Vec<Array>, Exception> {
        let _deny = Policy::Deny.scope();
        let w = Prepared::new(&arrays[1], Affine { bits: 4, group: 32 })?;
        let w = Int8Inputs::new(w, ActivationGranularity::Token)?;
        Ok(vec![implicit((&arrays[0], w), |(x, w)| x.matmul(w.t())?.sum(None))?.dense()?])
    };
    let (_, gradients) =
        transforms::value_and_grad_with_argnums(y, &[0, 1][..])(&[x.clone(), master.clone()]).expect("runs");
    // Straight through both: the sums of the rounded other side.
    let rounded = int8_rounded(&x, ActivationGranularity::Token).and_then(|x| Ok(x.sum_axis(0, None)?)).expect("sums");
    let rows = floats(&rounded).expect("floats").repeat(8);
    for (found, expected) in floats(&gradients[1]).expect("floats").iter().zip(rows) {
        assert!((found - expected).abs() < 1e-4);
    }
    assert!(floats(&gradients[0]).expect("floats").iter().any(|&g| g != 0.0));
}

#[test]
fn what_is_not_float_is_refused() {
    let integers = Array::from_slice(&[1i32, 2], &[2]);
    check(
        int8_rounded(&integers, ActivationGranularity::Token),
        expect![[r#"
        i32[2] is not rounded to 8 bits of activations
        help: round a float array"#]],
    );
    check(
        Int8Inputs::new(integers, ActivationGranularity::Token),
        expect![[r#"
        the matrix is i32[2], which is not float
        help: give an f32, f16 or bf16 array"#]],
    );
}

/// An embedding that is also the head: its rows are those of the weight, and its products round.
#[test]
fn rows_are_those_of_the_weight() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let codes = || AffineArray::quantize(&normal(2, &[8, 64]), Affine { bits: 4, group: 32 });
    let tokens = Array::from_slice(&[3u32, 1], &[2]);
    for per in BOTH {
        let rows = |w: &Array| Ok::<_, Error>((w.take_axis(&tokens, 0)?, w.reshape(&[16, 32])?));
        let (taken, reshaped) = implicit(Int8Inputs::new(codes()?, per)?, |w| rows(&w))?;
        let (expected, shaped) = implicit(codes()?, |w| rows(&w))?;
        assert_eq!(reshaped.to_string(), shaped.to_string());
        assert_eq!(floats(&taken.dense()?)?, floats(&expected.dense()?)?);
    }
    Ok(())
}

#[test]
fn tiny_activations_are_rounded_as_others() {
    for per in BOTH {
        for most in [2e-37f32, 2e-38, 1e-40] {
            let x = [most, -0.5 * most, 0.25 * most];
            let made = int8_rounded(&Array::from_slice(&x, &[1, 3]), per).expect("rounds");
            // 127 over such a magnitude is no float.
            for (found, own) in made.as_slice::<f32>().iter().zip(x) {
                assert!((found - own).abs() <= (most / 200.0).max(1e-44), "{found} of {own}");
            }
        }
    }
}

/// MLX repeats a matrix, and the matrices of a stack, for a batch.
#[test]
fn a_batch_is_rounded_where_the_matrix_is_repeated() -> Result<()> {
    let _deny = Policy::Deny.scope();
    for per in BOTH {
        let (w, x) = (normal(2, &[8, 64]), normal(3, &[2, 64, 5]));
        let found = implicit((&x, Int8Inputs::new(&w, per)?), |(x, w)| w.matmul(x))?.dense()?;
        let rounded = int8_rounded(&x.swap_axes(-1, -2)?, per)?.swap_axes(-1, -2)?;
        assert_eq!(floats(&found)?, floats(&w.matmul(&rounded)?)?);

        let (x, residual) = (normal(6, &[2, 5, 64]), normal(7, &[2, 5, 8]));
        let sum = |x: &Array, w: &Array| Ok::<_, Error>(ops::addmm(&residual, x, w.t(), None, None)?);
        let found = implicit((&x, Int8Inputs::new(&w, per)?), |(x, w)| sum(&x, &w))?.dense()?;
        assert_eq!(floats(&found)?, floats(&sum(&int8_rounded(&x, per)?, &w)?)?);

        for batch in [1, 2] {
            let (w, x) = (normal(4, &[3, 64, 8]), normal(5, &[batch, 3, 5, 64]));
            let found = implicit((&x, Int8Inputs::new(&w, per)?), |(x, w)| x.matmul(w))?.dense()?;
            assert_eq!(floats(&found)?, floats(&int8_rounded(&x, per)?.matmul(&w)?)?);
        }
    }
    Ok(())
}

#[test]
fn packed_activations_are_rounded_whatever_their_size() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let w = normal(2, &[8, 64]);
    for per in BOTH {
        for rows in [2, 32] {
            let x = AffineArray::quantize(&normal(3, &[rows, 64]), Affine { bits: 4, group: 32 })?;
            let product = |x: Value| implicit((x, Int8Inputs::new(&w, per)?), |(x, w)| x.matmul(w.t()))?.dense();
            let expected = product(Value::from(x.clone()).dense()?.into())?;
            assert_eq!(floats(&product(x.into())?)?, floats(&expected)?, "{rows} rows");
        }
    }
    Ok(())
}
