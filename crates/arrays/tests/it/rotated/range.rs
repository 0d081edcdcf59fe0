//! Half floats near the ends of their range, which a rotation takes beyond it.

use mlx_rs::ops::indexing::{self, IntoStrideBy, TryIndexOp, TryIndexUpdateOp};
use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Policy, Result, implicit};

use super::{F32, error, quantized};
use crate::operands::{normal, normal_of};

/// Something that is done with arrays.
type Way = fn(&[Array]) -> Result<Array>;

/// What is rotated is up to `sqrt(n)` times as large as the rows: that is no reason to overflow.
#[test]
fn half_floats_near_their_range_are_those_of_the_plain_format() {
    const F16: Dtype = Dtype::Float16;
    let row = ops::full::<f32>(&[4, 1024], Array::from_f32(9000.0)).expect("a constant");
    let x = row.add(normal(1, &[4, 1024])).and_then(|x| x.as_dtype(F16)).expect("casts");
    let small = ops::full::<f32>(&[3, 1024], Array::from_f32(1e-3)).and_then(|x| x.as_dtype(F16)).expect("casts");
    let large = ops::full::<f32>(&[3, 1024], Array::from_f32(9000.0)).and_then(|x| x.as_dtype(F16)).expect("casts");
    let thin =
        normal_of(F16, 3, &[4, 1024]).multiply(Array::from_f32(1e-3).as_dtype(F16).expect("casts")).expect("small");
    let wide = |array: Array| array.as_dtype(F32).and_then(|wide| wide.contiguous()).expect("f32");
    let ways: [(&str, Way); 10] = [
        ("all", |a| Ok(a[0].multiply(Array::from_int(1).as_dtype(a[0].dtype())?)?)),
        ("x W^T", |a| Ok(a[1].matmul(a[0].t())?)),
        ("W x^T", |a| Ok(a[0].matmul(a[1].t())?)),
        ("x W", |a| Ok(a[1].try_index((.., ..4))?.matmul(&a[0])?)),
        ("rows", |a| Ok(a[0].take_axis(Array::from_slice(&[3, -4], &[2]), 0)?)),
        ("written", |a| Ok(a[0].put_along_axis(ops::zeros::<i32>(&[1, 1024])?, a[2].try_index(..1)?, 0)?)),
        ("split", |a| Ok(a[0].split_equal(2, 0)?.swap_remove(1))),
        ("every other row", |a| Ok(a[0].try_index((..).stride_by(2))?)),
        ("repeated", |a| Ok(ops::broadcast_to(a[0].try_index(..1)?, &[3, 1024])?)),
        ("added", |a| {
            let row = a[2].try_index(..1)?;
            Ok(a[0].try_index_update((..1, ..), row, indexing::UpdateMode::Add).expect("fits"))
        }),
    ];
    let _allow = Policy::Allow.scope();
    for format in ["nf4:32", "affine:8:32", "int8:32", "mxfp8"] {
        let pairs = [(x.clone(), small.clone(), x.clone()), (thin.clone(), large.clone(), thin.clone())];
        for (own, by, written) in pairs {
            for (name, way) in ways {
                let made = |text: &str| {
                    let operands = [quantized(text, &own), by.clone().into(), written.clone().into()];
                    let made =
                        implicit(operands.to_vec(), |a: Vec<Array>| way(&a)).expect("runs").dense().expect("dense");
                    assert_eq!(made.dtype(), F16);
                    wide(made)
                };
                let (plain, rotated) = (made(format), made(&format!("rotated:{format}")));
                let finite = |array: &Array| array.as_slice::<f32>().iter().all(|x| x.is_finite());
                assert!(!finite(&plain) || finite(&rotated), "{name} of {format} overflows where it is rotated");
                if finite(&plain) {
                    let apart = error(&rotated, &plain);
                    assert!(apart < 0.25, "{name} of {format}: {apart}");
                }
            }
        }
    }
}

/// A row that is no whole number of blocks is written into what is built.
#[test]
fn half_floats_near_their_range_are_written_into_blocks_of_several_rows() -> Result<()> {
    let rows = |count: i32| {
        let rows = ops::full::<f32>(&[count, 12], Array::from_f32(3e4))?;
        rows.as_dtype(Dtype::Float16)
    };
    let _allow = Policy::Allow.scope();
    let w = quantized("rotated:nf4:32", &rows(4)?);
    let write = |(w, x): (Array, Array)| w.put_along_axis(ops::zeros::<i32>(&[1, 12])?, x, 0);
    let made = implicit((w, rows(1)?), write)?.dense()?.as_dtype(F32)?;
    let apart = error(&made, &rows(4)?.as_dtype(F32)?);
    assert!(apart < 0.25, "{apart}");
    Ok(())
}

/// Parts in several formats are built rotated, where a half float would be infinite.
#[test]
fn half_floats_near_their_range_are_joined_in_several_formats() -> Result<()> {
    let row = ops::full::<f32>(&[4, 1024], Array::from_f32(9000.0))?.as_dtype(Dtype::Float16)?;
    let parts = ["rotated:nf4:32", "rotated:int8:32"].map(|text| quantized(text, &row));
    let joined = implicit(parts.to_vec(), |parts: Vec<Array>| ops::concatenate(&parts, 0))?;
    let x = ops::full::<f32>(&[1, 1024], Array::from_f32(1e-3))?.as_dtype(Dtype::Float16)?;
    let y = {
        let _deny = Policy::Deny.scope();
        implicit((x, &joined), |(x, w)| x.matmul(w.t()))?.dense()?.as_dtype(F32)?
    };
    assert!(y.as_slice::<f32>().iter().all(|y| (y - 9216.0).abs() < 2000.0), "{y:?}");
    let _allow = Policy::Allow.scope();
    let joined = joined.dense()?;
    assert_eq!(joined.dtype(), Dtype::Float16);
    let joined = joined.as_dtype(F32)?;
    assert!(joined.as_slice::<f32>().iter().all(|x| (x - 9000.0).abs() < 2000.0), "{joined:?}");
    Ok(())
}
