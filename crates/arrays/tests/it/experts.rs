//! Products with chosen experts that are packed as one array.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Granularity, KQuant};
use tacit_arrays::{Int8Array, KQuantArray, Nf4Array, Prepared};
use tacit_conformance::oracle::relative_error;
use tacit_core::transform::{jvp, vjp};
use tacit_core::tree::Gradient;
use tacit_core::{Policy, Result, Value, implicit};

use crate::operands::{FORMATS, affine, every, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

fn indices(chosen: &[u32], shape: &[i32]) -> Array {
    Array::from_slice(chosen, shape)
}

/// In every format, transposed or not, as the dense products are, and without a dense weight.
#[test]
fn chosen_experts_are_multiplied_by_their_codes() {
    let index = indices(&[2, 0, 1, 1], &[4]);
    for (dtype, tolerance) in [(F32, 1e-5), (Dtype::Bfloat16, 1e-2), (Dtype::Float16, 2e-3)] {
        let weight = normal_of(dtype, 1, &[3, 32, 64]);
        for format in &FORMATS {
            let w = (format.of)(&weight).expect("quantizes");
            let dense = w.dense().expect("dense");
            let transposed = implicit(&w, |w| w.swap_axes(1, 2)).expect("turns");
            assert!(
                transposed.is_implicit() && transposed.nbytes() == w.nbytes(),
                "{} is decoded: {transposed}",
                format.name
            );
            for transposed in [false, true] {
                let x = normal_of(dtype, 2, &[4, 2, if transposed { 64 } else { 32 }]);
                let product = |x: &Array, w: &Array| {
                    let w = if transposed { w.swap_axes(1, 2)? } else { w.clone() };
                    // MLX's own is of `f32` alone on a CPU.
                    ops::gather_mm(x, w, None, &index, None)
                };
                let found = {
                    let _deny = Policy::Deny.scope();
                    implicit((&x, &w), |(x, w)| product(&x, &w)).expect("multiplies").dense().expect("dense")
                };
                let wide = |array: &Array| array.as_dtype(F32).expect("f32");
                let expected = product(&wide(&x), &wide(&dense)).and_then(|y| y.as_dtype(dtype)).expect("multiplies");
                let error = relative_error(&found, &expected).expect("floats");
                assert!(error <= tolerance, "{} of {dtype:?}, transposed: {transposed}: off by {error}", format.name);
            }
        }
    }
}

type Function<'f> = &'f dyn Fn(Vec<Array>) -> Result<Vec<Array>>;

/// The gradients for both operands and the tangent of the result, in `f32`.
fn derivatives(primals: &[Array; 2], along: &[Array; 2], cotangent: &Array, f: Function<'_>) -> Result<Vec<Array>> {
    let (_, gradients) = vjp(&primals[..], std::slice::from_ref(cotangent), f)?;
    let tangents: Vec<Gradient> = along.iter().cloned().map(Gradient::Dense).collect();
    let (_, changes) = jvp(&primals[..], tangents, f)?;
    let gradients = gradients.iter().map(|gradient| gradient.array().cloned());
    let all = gradients.chain(changes.iter().map(Value::dense)).collect::<Result<Vec<_>>>()?;
    all.iter().map(|array| Ok(array.as_dtype(F32)?)).collect()
}

/// The gradient of a master is a product of dense arrays, which MLX does not gather in half floats on a CPU.
#[test]
fn masters_of_any_float_type_have_derivatives() -> Result<()> {
    let index = indices(&[1, 0, 1], &[3]);
    let product = |x: &Array, w: &Array| ops::gather_mm(x, w.swap_axes(1, 2)?, None, &index, None);
    let of_master = |given: Vec<Array>| -> Result<Vec<Array>> {
        let w = Prepared::new(&given[1], "affine:4:32")?;
        Ok(vec![implicit((&given[0], w), |(x, w)| product(&x, &w))?.dense()?])
    };
    let of_weight = |given: Vec<Array>| -> Result<Vec<Array>> { Ok(vec![product(&given[0], &given[1])?]) };
    for (dtype, tolerance) in [(F32, 1e-5), (Dtype::Bfloat16, 1e-2), (Dtype::Float16, 2e-3)] {
        let own = |seed: u64, shape: &[i32]| normal_of(dtype, seed, shape);
        let (x, master, cotangent) = (own(1, &[3, 1, 64]), own(2, &[2, 8, 64]), own(3, &[3, 1, 8]));
        let along = [own(4, &[3, 1, 64]), own(5, &[2, 8, 64])];
        let wide = |array: &Array| array.as_dtype(F32).expect("f32");
        let weight = Prepared::new(&master, "affine:4:32")?.convert()?.dense()?;
        let expected =
            derivatives(&[wide(&x), wide(&weight)], &along.each_ref().map(wide), &wide(&cotangent), &of_weight)?;
        let found = {
            let _deny = Policy::Deny.scope();
            derivatives(&[x, master], &along, &cotangent, &of_master)?
        };
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = relative_error(found, expected).expect("floats");
            assert!(error <= tolerance, "derivative {number} in {dtype:?}: off by {error}");
        }
    }
    Ok(())
}

/// Values, gradients, derivatives and maps under `Policy::Deny`.
#[test]
fn every_choice_of_experts() {
    let top = [3u32, 0, 1, 3, 3, 1];
    for w in [nf4(&normal(1, &[4, 8, 32]), 64), affine(&normal(1, &[4, 8, 32]), 32, 4)] {
        let experts = |a: &Array| a.swap_axes(1, 2);
        let x = |shape: &[i32]| Value::from(normal(4, shape));
        // Expert 2 is never chosen, and the others as often as it comes.
        oracle(F32).transformed().check("a row each", &[x(&[6, 1, 32]), w.clone()], move |a| {
            Ok(vec![ops::gather_mm(&a[0], experts(&a[1])?, None, &indices(&top, &[6]), None)?])
        });
        oracle(F32).check("two for each token", &[x(&[3, 1, 1, 32]), w.clone()], move |a| {
            Ok(vec![ops::gather_mm(&a[0], experts(&a[1])?, None, &indices(&top, &[3, 2]), None)?])
        });
        oracle(F32).check("rows that are chosen again", &[x(&[4, 5, 8]), w.clone()], move |a| {
            let (left, right) = (indices(&[3, 1, 3], &[3]), indices(&[1, 1, 0], &[3]));
            Ok(vec![ops::gather_mm(&a[0], &a[1], &left, &right, None)?])
        });
        oracle(F32).check("indices of two shapes", &[x(&[4, 2, 32]), w.clone()], move |a| {
            let (left, right) = (indices(&[3, 0], &[2, 1]), indices(&[1, 2, 0], &[3]));
            Ok(vec![ops::gather_mm(&a[0], experts(&a[1])?, &left, &right, None)?])
        });
        oracle(F32).check("every expert in turn", &[x(&[1, 2, 32]), w.clone()], move |a| {
            Ok(vec![ops::gather_mm(&a[0], experts(&a[1])?, &indices(&[0; 4], &[4]), None, None)?])
        });
        oracle(F32).check("sorted", &[x(&[5, 1, 32]), w.clone()], move |a| {
            Ok(vec![ops::gather_mm(&a[0], experts(&a[1])?, None, &indices(&[0, 0, 1, 3, 3], &[5]), true)?])
        });
        // MLX's own has no gradient for a matrix that is not one of several.
        oracle(F32).values_only().check("one matrix", &[x(&[2, 32]), w.clone()], move |a| {
            let (left, right) = (indices(&[0; 2], &[2]), indices(&[2, 0], &[2]));
            Ok(vec![ops::gather_mm(&a[0], experts(&a[1])?, &left, &right, None)?])
        });
        oracle(F32).check("traced indices", &[x(&[4, 1, 32]), w, indices(&[3, 0, 1, 3], &[4]).into()], move |a| {
            Ok(vec![ops::gather_mm(&a[0], experts(&a[1])?, None, &a[2], None)?])
        });
    }
}

#[test]
fn every_number_of_experts() {
    for (count, pairs) in [(1, 4), (2, 40), (128, 9), (128, 300)] {
        let w = nf4(&normal(1, &[count, 6, 32]), 64);
        let chosen: Vec<u32> = (0..pairs).map(|i| (i * i * 31 + 7) % count as u32).collect();
        let x = normal(4, &[pairs as i32, 1, 32]);
        oracle(F32).eager_only().check("gather_mm", &[x.into(), w], move |a| {
            let right = indices(&chosen, &[pairs as i32]);
            Ok(vec![ops::gather_mm(&a[0], a[1].swap_axes(-1, -2)?, None, &right, None)?])
        });
    }
}

/// Experts that begin within a block or a byte, which are read from there.
#[test]
fn experts_without_blocks_of_their_own() {
    let x = normal(1, &[3, 5, 37]);
    let packed: [Value; 4] = [
        Nf4Array::quantize(&x, 64).expect("quantizes").into(),
        Int8Array::quantize(&x, Granularity::Block(1024)).expect("quantizes").into(),
        Int8Array::quantize(&x, 32).expect("quantizes").into(),
        KQuantArray::quantize(&x, KQuant { bits: 3 }).expect("quantizes").into(),
    ];
    for w in packed {
        oracle(F32).eager_only().check("x W^T", &[normal(4, &[4, 2, 37]).into(), w.clone()], |a| {
            Ok(vec![ops::gather_mm(&a[0], a[1].swap_axes(1, 2)?, None, &indices(&[2, 0, 1, 1], &[4]), None)?])
        });
        oracle(F32).eager_only().check("x W", &[normal(4, &[4, 2, 5]).into(), w], |a| {
            Ok(vec![ops::gather_mm(&a[0], &a[1], None, &indices(&[2, 0, 1, 1], &[4]), None)?])
        });
    }
}

#[test]
fn experts_in_several_axes_and_alone() {
    let two = nf4(&normal(1, &[2, 3, 8, 32]), 64);
    oracle(F32).check("two axes", &[normal(4, &[4, 1, 32]).into(), two], |a| {
        Ok(vec![ops::gather_mm(&a[0], a[1].swap_axes(-1, -2)?, None, &indices(&[5, 0, 3, 5], &[4]), None)?])
    });
    let one = nf4(&normal(1, &[8, 32]), 64);
    oracle(F32).check("no axis", &[normal(4, &[4, 1, 32]).into(), one], |a| {
        Ok(vec![ops::gather_mm(&a[0], a[1].t(), None, &indices(&[0; 4], &[4]), None)?])
    });
}

/// A product with each of the matrices, without a choice.
#[test]
fn batched_products_are_those_of_the_experts() {
    for w in every(F32, 1, &[3, 32, 64]) {
        let x = |rows: i32, columns: i32| Value::from(normal(4, &[3, rows, columns]));
        oracle(F32).check("x W", &[x(5, 32), w.clone()], |a| Ok(vec![a[0].matmul(&a[1])?]));
        oracle(F32).check("x W^T", &[x(5, 64), w.clone()], |a| Ok(vec![a[0].matmul(a[1].swap_axes(1, 2)?)?]));
        oracle(F32).check("W x", &[x(64, 5), w.clone()], |a| Ok(vec![a[1].matmul(&a[0])?]));
        oracle(F32).check("shared x", &[normal(4, &[5, 64]).into(), w.clone()], |a| {
            Ok(vec![a[0].matmul(a[1].swap_axes(1, 2)?)?])
        });
        oracle(F32).check("addmm", &[x(5, 64), w, x(5, 32)], |a| {
            Ok(vec![ops::addmm(&a[2], &a[0], a[1].swap_axes(1, 2)?, 0.5, -2.0)?])
        });
    }
}

/// Structural ops on experts that are transposed.
#[test]
fn transposed_experts_are_cut_joined_and_shaped() {
    type Op = fn(&Array) -> Result<Array>;
    let cases: [(&str, Op); 7] = [
        ("some of them", |w| Ok(w.swap_axes(1, 2)?.try_index(1..3)?)),
        ("one of them", |w| Ok(w.swap_axes(1, 2)?.try_index(1..2)?.squeeze_axes(&[0])?)),
        ("rows of each", |w| Ok(w.swap_axes(1, 2)?.try_index((.., .., 2..6))?)),
        ("again", |w| Ok(w.swap_axes(1, 2)?.swap_axes(1, 2)?)),
        ("in two axes", |w| Ok(w.swap_axes(1, 2)?.reshape(&[2, 2, 64, 8])?)),
        ("joined", |w| Ok(ops::concatenate(&[w.swap_axes(1, 2)?, w.swap_axes(1, 2)?], 2)?)),
        ("another type", |w| Ok(w.swap_axes(1, 2)?.as_dtype(Dtype::Bfloat16)?)),
    ];
    let w = nf4(&normal(1, &[4, 8, 64]), 64);
    for (name, f) in cases {
        oracle(F32).eager_only().check(name, std::slice::from_ref(&w), move |a| Ok(vec![f(&a[0])?]));
        let made = implicit(&w, move |w| f(&w)).expect("is handled");
        assert!(made.is_implicit(), "{name} became dense");
    }
}

#[test]
fn a_choice_that_is_not_there_is_an_error_of_the_eval() {
    let w = nf4(&normal(1, &[4, 8, 32]), 64);
    let product = |left: u32, right: u32| {
        let x = normal(4, &[2, 1, 32]);
        let y = implicit((x, &w), |(x, w)| {
            ops::gather_mm(x, w.swap_axes(1, 2)?, &indices(&[left], &[1]), &indices(&[right], &[1]), None)
        });
        y.and_then(|y| Ok(y.dense()?.eval()?)).map_err(|error| error.to_string())
    };
    assert_eq!(product(1, 3), Ok(()));
    for (left, right, message) in [(0, 4, "index 4 (entry 0) is outside an extent of 4"), (2, 0, "index 2 (entry 0)")] {
        let error = product(left, right).expect_err("there is no such matrix");
        assert!(error.contains(message), "{error}");
    }
    assert_eq!(product(1, 3), Ok(()));
}
