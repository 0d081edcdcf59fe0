//! Slices, gathers and updates.

use mlx_rs::ops::indexing::{self, Ellipsis, IntoStrideBy, TryIndexMutOp, TryIndexOp};
use tacit_core::op::{self, TypedPrimitive};

use super::{Generator, Scene};
use crate::call::Call;

pub(super) const GENERATORS: &[(&str, Generator)] = &[
    (op::Slice::NAME, slice),
    (op::Gather::NAME, gather),
    (op::GatherAxis::NAME, gather_axis),
    (op::SliceUpdate::NAME, slice_update),
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

fn slice_update(scene: &Scene) -> Vec<Call> {
    let row = scene.dense(&scene.shape[1..]);
    vec![Call::new("the first row replaced", vec![scene.w.clone(), row], |arrays| {
        let mut w = arrays[0].clone();
        w.try_index_mut(0, &arrays[1])?;
        Ok(w)
    })]
}
