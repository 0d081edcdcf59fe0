//! Products with the subject on either side.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Value;
use tacit_core::primitives::{self, TypedPrimitive};

use super::scene::{Generator, Scene};
use crate::call::{Call, transposed_if};

pub(super) const GENERATORS: &[(&str, Generator)] = &[
    (primitives::Matmul::NAME, matmul),
    (primitives::AddMM::NAME, addmm),
    (primitives::GatherMM::NAME, gather_mm),
    (primitives::Convolution::NAME, convolution),
];

/// A form of the product: its name, the operands' order and whether each side is transposed.
struct Form {
    name: &'static str,
    left: Value,
    right: Value,
    transposed: (bool, bool),
}

/// The forms with both operands of two axes or more.
fn forms(scene: &Scene) -> Vec<Form> {
    let Some((rows, columns)) = scene.matrix() else { return Vec::new() };
    let m = scene.case.m;
    let w = || scene.w.clone();
    let mut forms = vec![
        Form { name: "x W", left: scene.dense(&scene.with_matrix(m, rows)), right: w(), transposed: (false, false) },
        Form {
            name: "x W^T",
            left: scene.dense(&scene.with_matrix(m, columns)),
            right: w(),
            transposed: (false, true),
        },
        Form { name: "W x", left: w(), right: scene.dense(&scene.with_matrix(columns, m)), transposed: (false, false) },
        Form { name: "W^T x", left: w(), right: scene.dense(&scene.with_matrix(rows, m)), transposed: (true, false) },
        Form { name: "x^T W", left: scene.dense(&scene.with_matrix(rows, m)), right: w(), transposed: (true, false) },
    ];
    if scene.shape.len() == 2 {
        forms.extend([
            Form { name: "batch W", left: scene.dense(&[2, m, rows]), right: w(), transposed: (false, false) },
            Form { name: "batch W^T", left: scene.dense(&[2, 1, m, columns]), right: w(), transposed: (false, true) },
            Form { name: "W batch", left: w(), right: scene.dense(&[2, columns, m]), transposed: (false, false) },
        ]);
    }
    forms.extend(scene.another(&scene.shape).map(|other| Form {
        name: "W V^T",
        left: w(),
        right: other,
        transposed: (false, true),
    }));
    if rows == columns {
        forms.extend(scene.another(&scene.shape).map(|other| Form {
            name: "W V",
            left: w(),
            right: other,
            transposed: (false, false),
        }));
    }
    forms
}

fn matmul(scene: &Scene) -> Vec<Call> {
    let with_vectors = match scene.matrix() {
        Some((rows, columns)) => {
            vec![("v W", scene.dense(&[rows]), scene.w.clone()), ("W v", scene.w.clone(), scene.dense(&[columns]))]
        }
        None => vec![
            ("x w", scene.dense(&[scene.case.m, scene.shape[0]]), scene.w.clone()),
            ("w x", scene.w.clone(), scene.dense(&[scene.shape[0], scene.case.m])),
        ],
    };
    let with_vectors = with_vectors
        .into_iter()
        .map(|(name, left, right)| Call::new(name, vec![left, right], |arrays| arrays[0].matmul(&arrays[1])));
    let products = forms(scene).into_iter().map(|form| {
        let (left, right) = form.transposed;
        Call::new(form.name, vec![form.left, form.right], move |arrays| {
            transposed_if(&arrays[0], left)?.matmul(transposed_if(&arrays[1], right)?)
        })
    });
    // An element of a gradient is a sum along the free axis of the product.
    let terms = scene.shape.iter().copied().max().unwrap_or(1).max(scene.case.m) as u32;
    with_vectors.chain(products).map(|call| Call { terms, ..call }).collect()
}

fn addmm(scene: &Scene) -> Vec<Call> {
    let mut calls = Vec::new();
    for (i, form) in forms(scene).into_iter().enumerate() {
        let (left, right) = form.transposed;
        let extent = |value: &Value, axis: usize| {
            value.aval().map(|aval| aval.shape[aval.shape.len() - 2 + axis]).unwrap_or_default()
        };
        let (rows, columns) = (extent(&form.left, usize::from(left)), extent(&form.right, usize::from(!right)));
        let c = match i % 3 {
            0 => scene.dense(&[columns]),
            1 => scene.dense(&[rows, columns]),
            _ => scene.dense(&[rows, 1]),
        };
        let (alpha, beta) = if i % 2 == 0 { (1.0, 1.0) } else { (0.5, -2.0) };
        calls.push(Call::new(format!("{} + c", form.name), vec![form.left, form.right, c], move |arrays| {
            ops::addmm(&arrays[2], transposed_if(&arrays[0], left)?, transposed_if(&arrays[1], right)?, alpha, beta)
        }));
    }
    calls.extend(scene.matrix().map(|(rows, columns)| {
        let operands = vec![scene.w.clone(), scene.dense(&[rows, 2]), scene.dense(&[2, columns])];
        Call::new("W + a b", operands, |arrays| ops::addmm(&arrays[0], &arrays[1], &arrays[2], 1.0, 1.0))
    }));
    calls
}

/// Products of matrices that are chosen by index, with the subject as the stack of matrices.
fn gather_mm(scene: &Scene) -> Vec<Call> {
    let &[stacked, rows, columns] = scene.shape.as_slice() else { return Vec::new() };
    let m = scene.case.m;
    let lhs: Value = Array::from_slice(&[1u32, 0, 1, 1], &[4]).into();
    let chosen: Vec<u32> = (0..4).map(|i| (i * 7 + 1) % stacked as u32).collect();
    let rhs: Value = Array::from_slice(&chosen, &[4]).into();
    [("x W[i]", rows, false), ("x W[i]^T", columns, true)]
        .into_iter()
        .map(|(name, depth, transposed)| {
            let operands = vec![scene.dense(&[2, m, depth]), scene.w.clone(), lhs.clone(), rhs.clone()];
            Call::new(name, operands, move |arrays| {
                let [x, w, lhs, rhs] = arrays else { return arrays[0].matmul(&arrays[1]) };
                ops::gather_mm(x, transposed_if(w, transposed)?, lhs, rhs, None)
            })
        })
        .collect()
}

/// The subject as the kernel of a convolution: `[out, size, in]`.
fn convolution(scene: &Scene) -> Vec<Call> {
    let (&[_, size, features], Dtype::Float32) = (scene.shape.as_slice(), scene.dtype()) else { return Vec::new() };
    let input = scene.dense(&[2, size + 2, features]);
    vec![Call::new("conv1d", vec![input, scene.w.clone()], |arrays| {
        ops::conv1d(&arrays[0], &arrays[1], None, None, None, None)
    })]
}
