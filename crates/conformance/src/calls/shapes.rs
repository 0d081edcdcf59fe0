//! Shapes: views, joins, splits.

use mlx_rs::ops::{self, PadMode};
use mlx_rs::{Array, Dtype};
use tacit_core::primitives::{self, TypedPrimitive};

use super::scene::{Generator, Scene};
use crate::call::Call;

pub(super) const GENERATORS: &[(&str, Generator)] = &[
    (primitives::Transpose::NAME, transpose),
    (primitives::Reshape::NAME, reshape),
    (primitives::Flatten::NAME, flatten),
    (primitives::Unflatten::NAME, unflatten),
    (primitives::ExpandDims::NAME, |scene| vec![expanded(scene, 0), expanded(scene, -1)]),
    (primitives::Squeeze::NAME, squeeze),
    (primitives::Broadcast::NAME, broadcast),
    (primitives::Concatenate::NAME, concatenate),
    (primitives::Split::NAME, split),
    (primitives::Pad::NAME, |scene| vec![scene.alone("pad", |w| ops::pad(w, 1, None, PadMode::Constant))]),
    (primitives::Contiguous::NAME, |scene| vec![scene.alone("contiguous", Array::contiguous)]),
    (primitives::View::NAME, view),
    (primitives::Full::NAME, full),
];

fn transpose(scene: &Scene) -> Vec<Call> {
    let mut calls = vec![
        scene.alone("t", |w| Ok(w.t())),
        scene.alone("t t", |w| ops::add(w.t(), w.t())),
        scene.alone("t of t", |w| Ok(w.t().t())),
    ];
    if scene.shape.len() > 2 {
        calls.push(scene.alone("swap_axes", |w| w.swap_axes(-1, -2)));
        calls.push(scene.alone("move_axis", |w| ops::move_axis(w, 0, -1)));
    }
    calls
}

fn reshape(scene: &Scene) -> Vec<Call> {
    let mut reversed = scene.shape.clone();
    reversed.reverse();
    let (mut halves, last) = (scene.shape.clone(), scene.shape.len() - 1);
    let mut calls = vec![scene.alone("reshape to the reverse", move |w| w.reshape(&reversed))];
    if last > 0 && halves[last] % 2 == 0 {
        halves[last] /= 2;
        halves[0] *= 2;
        calls.push(scene.alone("reshape to halves", move |w| w.reshape(&halves)));
    }
    if last > 0 && scene.shape[0] % 2 == 0 {
        let mut doubles = scene.shape.clone();
        doubles[0] /= 2;
        doubles[last] *= 2;
        calls.push(scene.alone("reshape to doubles", move |w| w.reshape(&doubles)));
    }
    calls
}

fn flatten(scene: &Scene) -> Vec<Call> {
    let mut calls = vec![scene.alone("flatten", |w| ops::flatten(w, None, None))];
    if scene.shape.len() > 2 {
        calls.push(scene.alone("flatten the first axes", |w| ops::flatten(w, 0, -2)));
        calls.push(scene.alone("flatten the last axes", |w| ops::flatten(w, 1, -1)));
    }
    calls
}

fn unflatten(scene: &Scene) -> Vec<Call> {
    let last = scene.last();
    let mut calls = Vec::new();
    for (axis, extent) in [(0, scene.shape[0]), (last, scene.shape[last as usize])] {
        for first in [1, 2] {
            if extent % first == 0 {
                let parts = [first, extent / first];
                calls.push(
                    scene.alone(&format!("unflatten {axis} to {parts:?}"), move |w| ops::unflatten(w, axis, &parts)),
                );
            }
        }
    }
    calls
}

fn expanded(scene: &Scene, axis: i32) -> Call {
    scene.alone(&format!("expand_dims {axis}"), move |w| ops::expand_dims(w, axis))
}

fn squeeze(scene: &Scene) -> Vec<Call> {
    let mut narrow = scene.shape.clone();
    narrow[0] = 1;
    let narrow = scene.another(&narrow).into_iter();
    let narrow = narrow.map(|w| Call::new("squeeze", vec![w], |arrays| ops::squeeze_axes(&arrays[0], &[0])));
    let there = scene.alone("squeeze of expand_dims", |w| ops::squeeze_axes(ops::expand_dims(w, 0)?, &[0]));
    narrow.chain([there]).collect()
}

fn broadcast(scene: &Scene) -> Vec<Call> {
    let wider = [&[2], scene.shape.as_slice()].concat();
    let mut narrow = scene.shape.clone();
    narrow[0] = 1;
    let full = scene.shape.clone();
    let narrow = scene.another(&narrow).into_iter().map(|w| {
        let full = full.clone();
        Call::new("broadcast one row", vec![w], move |arrays| ops::broadcast_to(&arrays[0], &full))
    });
    let wider = scene.alone("broadcast to more axes", move |w| ops::broadcast_to(w, &wider));
    narrow.chain([wider]).collect()
}

fn concatenate(scene: &Scene) -> Vec<Call> {
    let mut calls = Vec::new();
    for axis in [0, scene.last()] {
        let dense = scene.dense(&scene.shape);
        let others = scene.another(&scene.shape).into_iter().chain([dense]);
        for (i, other) in others.enumerate() {
            let name = format!("concatenate along {axis} with {}", if i == 0 { "another" } else { "dense" });
            calls.push(Call::new(name, vec![scene.w.clone(), other, scene.w.clone()], move |arrays| {
                ops::concatenate(arrays, axis)
            }));
        }
    }
    calls
}

fn split(scene: &Scene) -> Vec<Call> {
    let mut calls = Vec::new();
    for axis in [0, scene.last()] {
        let extent = scene.shape[axis as usize];
        let mut cuts = vec![1, extent / 2, extent / 2 / 32 * 32];
        cuts.retain(|&cut| 0 < cut && cut < extent);
        for cut in cuts {
            let name = format!("split along {axis} at {cut}");
            calls.push(Call::several(name, vec![scene.w.clone()], move |arrays| {
                ops::split_at_indices(&arrays[0], &[cut], axis)
            }));
        }
    }
    calls
}

fn view(scene: &Scene) -> Vec<Call> {
    let same_size = if scene.dtype() == Dtype::Float32 { Dtype::Uint32 } else { Dtype::Uint16 };
    vec![scene.alone("view", move |w| w.view_dtype(same_size))]
}

fn full(scene: &Scene) -> Vec<Call> {
    let wider = [&[2], scene.shape.as_slice()].concat();
    vec![scene.alone("full", move |w| Array::full::<f32>(&wider, w))]
}
