//! What comes of a quantization that failed is an error, never numbers.

use expect_test::expect;
use mlx_rs::transforms::{async_eval, eval};
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::Nf4Array;
use tacit_core::{Error, Result, Value, implicit};

use crate::messages::check;
use crate::operands::normal;

fn with_nan() -> Array {
    let mut values = vec![1.0f32; 64 * 4];
    values[130] = f32::NAN;
    Array::from_slice(&values, &[4, 64])
}

fn quantized(x: &Array) -> Value {
    Nf4Array::quantize(x, 64).expect("is lazy").into()
}

#[test]
fn the_dense_array_of_a_nan_stays_an_error() {
    let dense = quantized(&with_nan()).dense().expect("is lazy");
    check(
        dense.eval().map_err(Error::from),
        expect![[r#"
            kernel Nf4Quantize failed: element 130 is NaN, which no code can hold
            help: replace NaN and infinities before quantizing"#]],
    );
    for _ in 0..2 {
        check(
            dense.eval().map_err(Error::from),
            expect![[r#"
                kernel Nf4Quantize failed: element 130 is NaN, which no code can hold; this array comes of what it left
                help: replace NaN and infinities before quantizing, and build the array again"#]],
        );
        assert!(dense.try_as_slice::<f32>().is_err());
        assert!(dense.sum(None).and_then(|sum| sum.eval()).is_err());
    }
    let built_again = quantized(&ops::ones::<f32>(&[4, 64]).expect("builds")).dense();
    assert_eq!(built_again.expect("is lazy").as_slice::<f32>()[..1], [1.0]);
}

#[test]
fn so_are_its_codes_its_products_and_what_is_updated_by_them() -> Result<()> {
    let weight = Nf4Array::quantize(&with_nan(), 64)?;
    let (packed, x) = (weight.codes().clone(), normal(0, &[2, 64]));
    let product = implicit((x, weight), |(x, w)| x.matmul(w.t()))?.dense()?;
    let chosen = ops::indexing::argmax_axis(&product, -1, false)?;
    let (parameter, other) = (ops::zeros::<f32>(&[2])?, ops::ones::<f32>(&[2])?.add(Array::from_f32(1.0))?);
    let updated = parameter.add(&chosen.as_dtype(Dtype::Float32)?)?;
    // It errs where the kernel has failed by then.
    let begun = async_eval([&updated, &other]);
    assert!(begun.is_err() || eval([&updated]).is_err());
    for poisoned in [&packed, &product, &chosen, &updated] {
        assert!(poisoned.eval().is_err(), "{:?}", poisoned.shape());
    }
    assert_eq!(other.as_slice::<f32>(), [2.0, 2.0]);
    assert_eq!(parameter.as_slice::<f32>(), [0.0, 0.0]);
    Ok(())
}
