//! Scales that are searched where large inputs count.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::AnyFormat;
use tacit_arrays::{Calibrate, Gptq, Observation, Observed, WeightedSearch};
use tacit_core::{Policy, Result, Value, implicit};

use crate::messages::check;
use crate::operands::normal;

const K: i32 = 128;

/// Inputs of which every sixteenth is large.
fn inputs(rows: i32) -> Result<Array> {
    let sizes = Array::from_iter((0..K).map(|input| if input % 16 == 0 { 20_f32 } else { 1.0 }), &[K]);
    Ok(normal(1, &[rows, K]).multiply(sizes)?)
}

fn format(text: &str) -> AnyFormat {
    text.parse().expect("a format")
}

/// What is lost, each element by the mean square of its input.
fn weighted(w: &Array, codes: &Value, seen: &Observation) -> Result<f32> {
    let _allow = Policy::Allow.scope();
    let lost = codes.dense()?.as_dtype(Dtype::Float32)?.subtract(w.as_dtype(Dtype::Float32)?)?;
    Ok(lost.square()?.multiply(seen.mean_squares()?)?.sum(None)?.item_exact::<f32>())
}

#[test]
fn large_inputs_lose_less() -> Result<()> {
    let (w, seen) = (normal(2, &[24, K]), Observation::from_inputs(&inputs(256)?)?);
    for (text, at_most) in [
        ("affine:3:64", 0.6),
        ("affine:4:32", 0.8),
        ("nf4:64", 0.95),
        ("k:3", 0.8),
        ("k:2", 0.8),
        ("nf4:64:double", 0.99),
    ] {
        for dtype in [Dtype::Float32, Dtype::Bfloat16] {
            let (format, w) = (format(text), w.as_dtype(dtype)?);
            let plain = weighted(&w, &format.quantize(&w)?, &seen)?;
            let codes = WeightedSearch.quantize(&format, &w, &seen)?;
            assert!(format.stores(&codes), "{text}: {codes}");
            assert_eq!(codes.aval()?, (&w).into());
            let found = weighted(&w, &codes, &seen)?;
            assert!(found <= at_most * plain, "{text} of {dtype:?}: {found} where rounding has {plain}");
        }
    }
    Ok(())
}

#[test]
fn each_expert_is_searched_by_its_own_inputs() -> Result<()> {
    let (w, format) = (normal(3, &[2, 16, K]), format("affine:3:64"));
    let (large, even) = (inputs(64)?, normal(4, &[64, K]));
    let both = Observed::new(&w)?;
    let x = ops::stack(&[&large, &even], 0)?;
    implicit((x, &both), |(x, w)| x.matmul(w.swap_axes(1, 2)?))?;
    let codes = WeightedSearch.quantize(&format, &w, &both.finish()?)?;
    let _allow = Policy::Allow.scope();
    let codes = codes.dense()?;
    for (expert, x) in [(0, &large), (1, &even)] {
        let of = |array: &Array| array.take_axis(Array::from_int(expert), 0);
        let alone = WeightedSearch.quantize(&format, &of(&w)?, &Observation::from_inputs(x)?)?.dense()?;
        assert!(of(&codes)?.all_close(&alone, 1e-4, 1e-4, None)?, "expert {expert}");
    }
    Ok(())
}

/// Of whole numbers the sums are exact, however they are added up.
#[test]
fn squares_alone_are_searched_by() -> Result<()> {
    let (w, format) = (normal(3, &[2, 16, K]), format("affine:3:64"));
    let x = Array::from_iter((0..2 * 8 * K).map(|i| (i * 37 % 11 - i % 5) as f32), &[2, 8, K]);
    let [products, squares] = [Observed::new(&w)?, Observed::of_squares(&w)?].map(|observed| {
        implicit((&x, &observed), |(x, w)| x.matmul(w.swap_axes(1, 2)?))?;
        observed.finish()
    });
    let (products, squares) = (products?, squares?);
    assert!(squares.mean_squares()?.eq_exact(products.mean_squares()?)?);
    let _allow = Policy::Allow.scope();
    let codes = |seen: &Observation| WeightedSearch.quantize(&format, &w, seen)?.dense();
    assert!(codes(&squares)?.eq_exact(codes(&products)?)?);
    check(
        Gptq::default().quantize(&format, &w, &squares),
        expect![[r#"
        of what was seen only the squares f32[2,128] were recorded
        help: observe the weight by `Observed::new`, or the model by `Model::observe`"#]],
    );
    Ok(())
}

#[test]
fn scales_that_are_not_free_are_refused() -> Result<()> {
    let (w, seen) = (normal(2, &[24, K]), Observation::from_inputs(&inputs(64)?)?);
    check(
        WeightedSearch.quantize(&format("mxfp4"), &w, &seen),
        expect![[r#"
        the scales of mxfp4 are not searched: each block has none that may be any float
        help: take a format such as affine:4:64 or nf4:64, or the method `Gptq`"#]],
    );
    check(
        WeightedSearch.quantize(&format("nf4:512"), &w, &seen),
        expect![[r#"
        the weighted search does not code f32[24,128] in nf4:512: its blocks straddle rows
        help: take a format whose blocks lie along the rows and divide them, or another method"#]],
    );
    Ok(())
}
