//! Slices, gathers and updates.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{self, Ellipsis, IntoStrideBy, TryIndexMutOp, TryIndexOp};
use mlx_rs::{Array, ops};
use tacit_core::primitives::{self, TypedPrimitive};
use tacit_core::{Error, Value, extra_ops as moved};

use super::scene::{Generator, Scene};
use crate::call::Call;

pub(super) const GENERATORS: &[(&str, Generator)] = &[
    (primitives::Slice::NAME, slice),
    (primitives::Gather::NAME, gather),
    (primitives::GatherAxis::NAME, gather_axis),
    (primitives::SliceUpdate::NAME, slice_update),
    (primitives::DynamicSlice::NAME, dynamic_slice),
    (primitives::DynamicSliceUpdate::NAME, dynamic_slice_update),
    (primitives::ScatterAxis::NAME, scatter_axis),
];

fn slice(scene: &Scene) -> Vec<Call> {
    let (rows, columns) = (scene.shape[0], *scene.shape.last().unwrap_or(&1));
    let mut calls = vec![
        scene.alone("every other row", |w| w.try_index((..).stride_by(2))),
        scene.alone("rows from the last", |w| w.try_index((..).stride_by(-1))),
        scene.alone("all but the last column", move |w| w.try_index((Ellipsis, ..(columns - 1).max(1)))),
        scene.alone("every other column", |w| w.try_index((Ellipsis, (..).stride_by(2)))),
    ];
    let mut cuts = vec![1, rows / 2, rows / 2 / 32 * 32, rows - 1];
    cuts.retain(|&cut| 0 < cut && cut < rows);
    for cut in cuts {
        calls.push(scene.alone(&format!("the first {cut} rows"), move |w| w.try_index(..cut)));
        calls.push(scene.alone(&format!("the rows from {cut}"), move |w| w.try_index(cut..)));
    }
    for unit in [16, 32, 64, 128] {
        if columns > unit && columns % unit == 0 {
            calls.push(scene.alone(&format!("the first {unit} columns"), move |w| w.try_index((Ellipsis, ..unit))));
            calls.push(scene.alone(&format!("the columns from {unit}"), move |w| w.try_index((Ellipsis, unit..))));
        }
    }
    calls
}

fn gather(scene: &Scene) -> Vec<Call> {
    let last = scene.last();
    let mut calls = Vec::new();
    for (axis, extent) in [(0, scene.shape[0]), (last, scene.shape[last as usize])] {
        for shape in [&[5][..], &[2, 3], &[]] {
            let operands = vec![scene.w.clone(), scene.indices(extent, shape)];
            calls.push(Call::new(format!("take {shape:?} along {axis}"), operands, move |arrays| {
                indexing::take_axis(&arrays[0], &arrays[1], axis)
            }));
        }
    }
    calls
}

fn gather_axis(scene: &Scene) -> Vec<Call> {
    let operands = vec![scene.w.clone(), scene.indices(scene.shape[0], &scene.shape)];
    vec![Call::new("take_along_axis", operands, |arrays| indexing::take_along_axis(&arrays[0], &arrays[1], 0))]
}

/// The subject and rows that are written into it, of its own type: a packed array rounds what else is written.
fn with_rows(scene: &Scene, rows: i32) -> Vec<Value> {
    let shape = [&[rows], &scene.shape[1..]].concat();
    vec![scene.w.clone(), scene.another(&shape).unwrap_or_else(|| scene.dense(&shape))]
}

fn slice_update(scene: &Scene) -> Vec<Call> {
    // A single row mlx-rs would broadcast.
    let rows = scene.shape[0].min(2);
    vec![Call::new("the first rows replaced", with_rows(scene, rows), move |arrays| {
        let mut w = arrays[0].clone();
        w.try_index_mut(..rows, &arrays[1])?;
        Ok(w)
    })]
}

fn dynamic_slice(scene: &Scene) -> Vec<Call> {
    let (rows, mut size) = (scene.shape[0], scene.shape.clone());
    size[0] = 1;
    vec![scene.alone("the last row", move |w| {
        moved::dynamic_slice(w, &Array::from_slice(&[rows - 1], &[1]), &[0], &size).map_err(|error| refused(&error))
    })]
}

fn dynamic_slice_update(scene: &Scene) -> Vec<Call> {
    let last = scene.shape[0] - 1;
    vec![Call::new("the last row replaced", with_rows(scene, 1), move |arrays| {
        moved::dynamic_slice_update(&arrays[0], &arrays[1], &Array::from_slice(&[last], &[1]), &[0])
            .map_err(|error| refused(&error))
    })]
}

fn scatter_axis(scene: &Scene) -> Vec<Call> {
    let last = scene.shape[0] - 1;
    vec![Call::new("the last row put in its place", with_rows(scene, 1), move |arrays| {
        let places = ops::broadcast_to(Array::from_int(last), arrays[1].shape())?;
        arrays[0].put_along_axis(places, &arrays[1], 0)
    })]
}

fn refused(error: &Error) -> Exception {
    Exception::custom(error.to_string())
}
