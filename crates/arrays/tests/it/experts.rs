//! Products with chosen experts that are packed as one array of three axes.

use mlx_rs::{Array, Dtype, ops};
use tacit_conformance::oracle::relative_error;
use tacit_core::{Policy, implicit};

use crate::operands::{FORMATS, Scales, normal_of};

/// In every format, turned round or not, as the dense products are, and without a dense weight.
#[test]
fn chosen_experts_are_multiplied_by_their_codes() {
    let index = Array::from_slice(&[2u32, 0, 1, 1], &[4]);
    for (dtype, tolerance) in [(Dtype::Float32, 1e-5), (Dtype::Bfloat16, 1e-2), (Dtype::Float16, 2e-3)] {
        let weight = normal_of(dtype, 1, &[3, 32, 64]);
        // Scales that are packed themselves are not cut: such experts are materialized, which the policy is asked for.
        for format in FORMATS.iter().filter(|format| format.scales != Scales::Nested) {
            let w = (format.of)(&weight).expect("quantizes");
            let dense = w.dense().expect("dense");
            let turned = implicit(&w, |w| w.swap_axes(1, 2)).expect("turns");
            assert!(turned.is_implicit() && turned.nbytes() <= dense.nbytes(), "{} is decoded: {turned}", format.name);
            for turned in [false, true] {
                let x = normal_of(dtype, 2, &[4, 2, if turned { 64 } else { 32 }]);
                let product = |x: &Array, w: &Array| {
                    let w = if turned { w.swap_axes(1, 2)? } else { w.clone() };
                    // MLX's own is of `f32` alone on a CPU.
                    ops::gather_mm(x, w, None, &index, None)
                };
                let found = {
                    let _deny = Policy::Deny.scope();
                    implicit((&x, &w), |(x, w)| product(&x, &w)).expect("multiplies").dense().expect("dense")
                };
                let wide = |array: &Array| array.as_dtype(Dtype::Float32).expect("f32");
                let expected = product(&wide(&x), &wide(&dense)).and_then(|y| y.as_dtype(dtype)).expect("multiplies");
                let error = relative_error(&found, &expected).expect("floats");
                assert!(error <= tolerance, "{} of {dtype:?}, turned: {turned}: off by {error}", format.name);
            }
        }
    }
}
