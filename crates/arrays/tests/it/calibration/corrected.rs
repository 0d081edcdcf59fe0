//! Low-rank corrections of what codes lose.

use expect_test::expect;
use mlx_rs::{Array, Dtype, Stream, linalg, ops, with_stream};
use tacit_arrays::format::AnyFormat;
use tacit_arrays::{Calibrate, Corrected, Gptq, Lora, Observation, Observed, Rounding};
use tacit_conformance::oracle::floats;
use tacit_core::{Error, Policy, Result, Value, implicit};

use super::{K, N, error, format, inputs, weight};
use crate::messages::check;
use crate::operands::normal;

/// The least error that a product of this rank leaves of `lost`, by all eigenvalues of `lost x^T x lost^T`.
fn least(lost: &Array, gram: &Array, rank: usize) -> Result<f64> {
    let product = lost.matmul(gram)?.matmul(lost.t())?;
    let values = with_stream(&Stream::cpu(), || linalg::eigvalsh(&product, None))?;
    let mut values = floats(&values)?;
    values.sort_by(f32::total_cmp);
    Ok(values[..values.len() - rank].iter().map(|&value| f64::from(value.max(0.0))).sum())
}

#[test]
fn a_correction_is_the_best_of_its_rank() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let (x, w) = (inputs(1, K as i32), weight());
    let seen = Observation::from_inputs(&x)?;
    for text in ["affine:2:64", "nf4:64"] {
        for rank in [1, 4, 16, N as i32] {
            let format = format(text);
            let codes = format.quantize(&w)?;
            let expected = least(&w.subtract(codes.dense()?)?, seen.gram()?, rank as usize)?;
            let plain = error(&x, &w, &codes);
            let value = Corrected::new(Rounding, rank)?.quantize(&format, &w, &seen)?;
            let found = error(&x, &w, &value);
            assert!(found <= 1.01 * expected + 1e-4 * plain, "{text} {rank}: {found}, at best {expected} of {plain}");
            let lora = value.downcast::<Lora>().expect("is one");
            assert!(format.stores(lora.base()), "{value}");
            assert_eq!((lora.a().shape(), lora.b().shape()), (&[rank, K as i32][..], &[N as i32, rank][..]));
            assert!((lora.scale() - 1.0).abs() < 1e-6);
            // Of a full rank the last factors are nearly nothing.
            let size = |array: &Array| Ok::<_, Error>(array.square()?.mean(None)?.sqrt()?.item_exact::<f32>());
            let (a, b) = (size(lora.a())?, size(lora.b())?);
            assert!(rank == N as i32 || (0.7..1.4).contains(&(a / b)), "{a} {b}");
        }
    }
    Ok(())
}

/// Codes and factors in turn, by any method, of half floats, of inputs that say nothing.
#[test]
fn rounds_of_corrections_never_lose_more() -> Result<()> {
    let (x, identity) = (inputs(1, K as i32), ops::eye::<f32>(K as i32, None, None)?);
    for (seen, x) in [(Observation::from_inputs(&x)?, &x), (Observation::from_inputs(&identity)?, &identity)] {
        for dtype in [Dtype::Float32, Dtype::Bfloat16] {
            let w = weight().as_dtype(dtype)?;
            let format = format("affine:2:64");
            let of = |rounds| Corrected::new(Gptq::default(), 4)?.with_rounds(rounds)?.quantize(&format, &w, &seen);
            let [one, five] = [1, 5].map(of);
            let (one, five) = (error(x, &w, &one?), error(x, &w, &five?));
            assert!(five <= 1.001 * one, "{dtype:?}: {five} after {one}");
        }
    }
    Ok(())
}

#[test]
fn what_is_not_corrected() {
    let seen = |k| Observation::from_inputs(&normal(1, &[64, k])).expect("finite");
    let of = |rank, w: &Array, seen: &Observation| {
        Corrected::new(Rounding, rank).and_then(|method| method.quantize(&format("affine:4:32"), w, seen))
    };
    check(
        of(0, &normal(2, &[4, 64]), &seen(64)),
        expect![[r#"
        a correction of rank 0 changes nothing
        help: give at least 1; 16 is usual"#]],
    );
    check(
        of(5, &normal(2, &[4, 64]), &seen(64)),
        expect![[r#"
        a correction of rank 5 is more than f32[4,64] has
        help: give a rank of at most the smaller extent"#]],
    );
    let stack = Observed::new(normal(2, &[2, 4, 64])).expect("floats");
    let chosen = Array::from_slice(&[0u32, 1], &[2]);
    let product = |w: Array| ops::gather_mm(normal(3, &[2, 8, 64]), w.swap_axes(1, 2)?, &chosen, &chosen, None);
    implicit(stack.clone(), product).expect("is observed");
    check(
        of(2, &normal(2, &[2, 4, 64]), &stack.finish().expect("was multiplied")),
        expect![[r#"
        f32[2,4,64] is a stack, whose matrices have no factors of their own
        help: correct matrices alone, and quantize stacks by the method itself"#]],
    );
    check(
        Corrected::new(Rounding, 2).and_then(|method| method.with_rounds(0)),
        expect![[r#"
        0 rounds are not made
        help: make 1, or 5 as LoftQ does"#]],
    );
    let infinite = ops::full::<f32>(&[4, 64], Array::from_f32(f32::INFINITY)).expect("fills");
    let format = format("affine:4:32");
    check(
        Corrected::new(Zeros, 2).and_then(|method| method.quantize(&format, &infinite, &seen(64))),
        expect![[r#"
        the weight f32[4,64] has an element that is not finite
        help: replace NaN and infinities before quantizing"#]],
    );
}

/// Zeros for whatever there is.
struct Zeros;

impl Calibrate for Zeros {
    fn quantize(&self, format: &AnyFormat, weight: &Array, _: &Observation) -> Result<Value> {
        format.quantize(&ops::zeros_like(weight)?)
    }
}
