//! MLX's own products, which its CPU backend has too, against the kernels.

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_conformance::oracle::relative_error;
use tacit_core::kernel::{Fallback, Kernel};
use tacit_core::{Counters, Error, Policy, explain};
use tacit_kernels::Orientation;

use super::super::Layout;
use super::super::matmul::{Matmul, matmul};
use super::super::tests::{Case, case, cases, normal};
use crate::format::mx::ScaleRule;
use crate::format::{Affine, Bf16, F16, Format, Int8, Mxfp4, Mxfp8, Nf4, Nvfp4, Symmetric};

const BOTH: [Orientation; 2] = [Orientation::Transposed, Orientation::Plain];

/// Every mode of MLX's, and all that a mode may vary in.
fn modes() -> Vec<Case> {
    let mut modes = Vec::new();
    for bits in [2, 3, 4, 5, 6, 8] {
        modes.extend([32, 64, 128].map(|group| case(&Affine { bits, group }, 5, 128)));
    }
    for bits in [2, 3, 4, 8] {
        modes.push(case(&Symmetric { bits, group: 32 }, 5, 128));
    }
    modes.push(case(&Mxfp4 { rule: ScaleRule::Ceil }, 5, 96));
    modes.push(case(&Mxfp8 { rule: ScaleRule::Ceil }, 5, 96));
    modes.push(case(&Nvfp4::default(), 5, 96));
    let mut scaled = case(&Nvfp4::default(), 5, 96);
    scaled.children.push(Array::from_f32(0.37));
    modes.push(scaled);
    modes
}

fn depth(layout: Layout, orientation: Orientation) -> i32 {
    (if orientation == Orientation::Transposed { layout.k } else { layout.n }) as i32
}

fn own(x: &Array, Case { layout, children }: &Case, orientation: Orientation) -> Array {
    super::product(x, *layout, children, orientation).expect("fits").expect("MLX has a mode")
}

fn near(found: &Array, expected: &Array, tolerance: f64) {
    assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()));
    let error = relative_error(found, expected).expect("floats");
    assert!(error <= tolerance, "{error}");
}

#[test]
fn they_equal_the_kernels() {
    // MLX's CPU backend sums half types as they are.
    for (dtype, tolerance) in [(Dtype::Float32, 1e-5), (Dtype::Float16, 1e-2), (Dtype::Bfloat16, 6e-2)] {
        for case in modes() {
            for orientation in BOTH {
                for m in [1, 3, 20] {
                    let x = normal(2, &[m, depth(case.layout, orientation)]).as_dtype(dtype).expect("a float type");
                    let expected = matmul(&x, case.layout, &case.children, orientation).expect("fits");
                    near(&own(&x, &case, orientation), &expected, tolerance);
                }
            }
        }
    }
}

#[test]
fn they_take_scales_of_another_float_type() {
    for Case { layout, mut children } in modes().into_iter().filter(|case| case.layout.scheme.label == "affine") {
        for child in &mut children[1..] {
            *child = child.as_dtype(Dtype::Float16).expect("a float type");
        }
        let x = normal(2, &[3, layout.k as i32]);
        let expected = matmul(&x, layout, &children, Orientation::Transposed).expect("fits");
        near(&own(&x, &Case { layout, children }, Orientation::Transposed), &expected, 1e-5);
    }
}

#[test]
fn the_factor_of_nvfp4_may_be_what_keeps_f16_finite() {
    let mut case = case(&Nvfp4::default(), 2, 512);
    // The greatest scale and code, of which a sum is 1e6 and more without the factor.
    case.children[0] = ops::broadcast_to(Array::from_slice(&[0x7777_7777u32], &[]), &[2, 64]).expect("codes");
    case.children[1] = ops::broadcast_to(Array::from_slice(&[0x7eu8], &[]), &[2, 32]).expect("scales");
    case.children.push(Array::from_f32(1e-5));
    let x = ops::ones::<f32>(&[1, 512]).and_then(|ones| ones.as_dtype(Dtype::Float16)).expect("ones");
    let expected = matmul(&x, case.layout, &case.children, Orientation::Transposed).expect("fits");
    near(&own(&x, &case, Orientation::Transposed), &expected, 1e-3);
}

#[test]
fn the_gradient_is_that_of_the_kernel() {
    for case in modes() {
        for orientation in BOTH {
            let x = normal(2, &[3, depth(case.layout, orientation)]);
            let gradient = |f: &dyn Fn(&Array) -> Array| {
                let mut gradient = transforms::grad(|x: &Array| f(x).square()?.sum(None));
                gradient(&x).expect("has a gradient")
            };
            let expected = gradient(&|x| matmul(x, case.layout, &case.children, orientation).expect("fits"));
            near(&gradient(&|x| own(x, &case, orientation)), &expected, 1e-5);
        }
    }
}

/// What stands for the kernel off the CPU.
fn off_the_cpu(x: &Array, case: &Case) -> Result<Array, Error> {
    let inputs = [std::slice::from_ref(x), &case.children].concat();
    let results = Matmul { layout: case.layout, orientation: Orientation::Transposed, groups: None }
        .fallback(&inputs, Fallback::Device);
    results.map(|mut results| results.remove(0)).map_err(|error| *error.downcast::<Error>().expect("ours"))
}

#[test]
fn nothing_is_asked_of_the_policy_off_the_cpu() {
    let _deny = Policy::Deny.scope();
    for case in modes() {
        let x = normal(2, &[3, case.layout.k as i32]);
        let (result, counters) = Counters::during(|| off_the_cpu(&x, &case));
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(counters.materialized, 0);
    }
}

#[test]
fn formats_that_mlx_has_not_are_asked_for() {
    let mut asked = Vec::new();
    for case in cases() {
        let x = normal(2, &[3, case.layout.k as i32]);
        let denied = {
            let _deny = Policy::Deny.scope();
            off_the_cpu(&x, &case)
        };
        let Err(denied) = denied else { continue };
        assert!(matches!(denied, Error::FallbackDenied { reason: Fallback::Device, .. }), "{denied}");
        asked.push(case.layout.scheme.label);
        let _allow = Policy::Allow.scope();
        let (result, counters) = Counters::during(|| off_the_cpu(&x, &case).expect("is allowed"));
        assert_eq!(counters.materialized, 1);
        near(&result, &matmul(&x, case.layout, &case.children, Orientation::Transposed).expect("fits"), 1e-5);
    }
    asked.sort_unstable();
    asked.dedup();
    // Of NVFP4, rows that are no multiple of 32.
    assert_eq!(
        asked.join(" "),
        "bf16 binary e4m3 e5m2 f16 fp4 high1 high2 high3 high4 int8 k nf4 nvfp4 table1 table2 table3 table4 ternary"
    );
    let case = case(&Nf4::from(64), 4, 64);
    let _deny = Policy::Deny.scope();
    let denied = off_the_cpu(&normal(2, &[3, 64]), &case).expect_err("is denied");
    expect![[r#"
        kernel Nf4Matmul builds a dense f32[4,64] off the CPU, which the policy forbids
        help: run it on the CPU, or only the kernel with TACIT_DEVICE_FALLBACK=cpu, or allow it here with `Policy::Allow.scope()`"#]]
    .assert_eq(&denied.to_string());
}

#[test]
fn the_graph_holds_no_dense_weight() {
    let _allow = Policy::Allow.scope();
    let mut graphs = Vec::new();
    for case in [
        case(&Affine { bits: 4, group: 64 }, 5, 128),
        case(&Mxfp4::default(), 5, 128),
        case(&Mxfp8::default(), 5, 128),
        case(&Nvfp4::default(), 5, 128),
    ] {
        // Whatever is recorded of the product is recorded on its other side.
        let x = tacit_conformance::opaque::Opaque::new(normal(2, &[3, 128]));
        let product = |x: Array| off_the_cpu(&x, &case).map_err(Exception::from);
        graphs.push(explain(x, product).expect("is recorded").to_string());
    }
    expect![[r#"
        { lambda a:Opaque(f32[3,128]) .
            b:f32[3,5] = quantized_matmul[group_size=64,bits=4,mode=affine,transpose=true] a u32[5,16] f32[5,2] f32[5,2]   materialized
            in (b) }   1 ops, 0 handled, 1 materialized (1536 B)
        { lambda a:Opaque(f32[3,128]) .
            b:f32[3,5] = quantized_matmul[group_size=32,bits=4,mode=mxfp4,transpose=true] a u32[5,16] u8[5,4]   materialized
            in (b) }   1 ops, 0 handled, 1 materialized (1536 B)
        { lambda a:Opaque(f32[3,128]) .
            b:f32[3,5] = quantized_matmul[group_size=32,bits=8,mode=mxfp8,transpose=true] a u32[5,32] u8[5,4]   materialized
            in (b) }   1 ops, 0 handled, 1 materialized (1536 B)
        { lambda a:Opaque(f32[3,128]) .
            b:f32[3,5] = quantized_matmul[group_size=16,bits=4,mode=nvfp4,transpose=true] a u32[5,16] u8[5,8]   materialized
            in (b) }   1 ops, 0 handled, 1 materialized (1536 B)"#]].assert_eq(&graphs.join("\n"));
}

#[test]
fn only_what_mlx_reads_as_it_lies_has_a_mode() {
    let mode = |scheme, k, block| super::mode(Layout { scheme, n: 4, k, block });
    let affine = |bits| Affine { bits, group: 64 }.scheme();
    assert!(mode(affine(4), 64, 64).is_some());
    for (scheme, k, block) in [
        (affine(7), 64, 64),
        (affine(4), 64, 16),
        (Nvfp4::default().scheme(), 48, 16),
        (Nvfp4::default().scheme(), 64, 32),
        (Mxfp4::default().scheme(), 64, 64),
        (Nf4::from(64).scheme(), 64, 64),
        (Int8::default().scheme(), 64, 64),
    ] {
        assert_eq!(mode(scheme, k, block), None, "{scheme:?} {block}");
    }
}

#[test]
fn half_floats_are_multiplied_where_they_lie() {
    for (case, dtype, tolerance) in
        [(case(&F16, 5, 96), Dtype::Float16, 1e-2), (case(&Bf16, 5, 96), Dtype::Bfloat16, 6e-2)]
    {
        for orientation in BOTH {
            let x = normal(2, &[3, depth(case.layout, orientation)]);
            let half = x.as_dtype(dtype).expect("a float type");
            let expected = matmul(&half, case.layout, &case.children, orientation).expect("fits");
            near(&own(&half, &case, orientation), &expected, tolerance);
            // Others would have MLX widen the matrix, which is to be asked for.
            assert!(super::product(&x, case.layout, &case.children, orientation).expect("fits").is_none());
        }
    }
}
