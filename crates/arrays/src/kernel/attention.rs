//! Attention over stored keys and values.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Mapped, Output, apply};
use tacit_core::{Aval, Error, Param, Result};
use tacit_kernels::{Attention, Mask, MaskValues, Orientation};

use super::host::{Fallible, floats, floats_mut, int, single};
use super::layout::scalar;
use super::matmul::{Groups, grouped_matmul};
use super::{Layout, derivatives, gpu};
use crate::avals::axes::{broadcast_strides, oriented, walked};

/// `softmax(q K^T + mask) V` in `f32`, for each entry of a batch.
///
/// Its inputs are the queries, `f32[entries * m, head_dim]`; what [`Hiding`] has; and the children of the keys and of the values.
#[derive(Clone)]
pub(crate) struct Attend {
    pub(crate) keys: StoredTokens,
    pub(crate) values: StoredTokens,
    /// Which of the matrices of keys and of values each entry attends to.
    pub(crate) groups: Groups,
    pub(crate) hiding: Option<Hiding>,
}

/// Keys or values.
#[derive(Clone)]
pub(crate) struct StoredTokens {
    pub(crate) layout: Layout,
    /// How many children there are.
    pub(crate) children: usize,
}

/// A mask: one input of numbers that are added, or two, which scores are visible and the scalar that stands for the others.
#[derive(Clone, Debug)]
pub(crate) struct Hiding {
    pub(crate) replaces: bool,
    /// The shape of the mask, in which every extent is that of the scores or 1.
    pub(crate) shape: Vec<i32>,
    /// The shape of the scores.
    pub(crate) scores: Vec<i32>,
}

impl Hiding {
    pub(super) fn inputs(&self) -> usize {
        if self.replaces { 2 } else { 1 }
    }

    /// Where the mask of each entry begins, and how far it is to the next query and the next token.
    fn places(&self) -> (Vec<usize>, usize, usize) {
        let strides = broadcast_strides(&self.shape);
        let (batch, matrix) = strides.split_at(strides.len() - 2);
        (walked(&self.scores, batch, 0), matrix[0], matrix[1])
    }

    fn on(&self, scores: &Array, mask: &[Array]) -> Result<Array, Exception> {
        let scores = scores.reshape(&self.scores)?;
        let numbers = mask[0].reshape(&self.shape)?;
        if self.replaces {
            ops::select(numbers, scores, &mask[1])
        } else {
            scores.add(numbers.as_dtype(Dtype::Float32)?)
        }
    }
}

struct Parts<'a, T> {
    q: &'a T,
    mask: &'a [T],
    keys: &'a [T],
    values: &'a [T],
}

impl Attend {
    pub(crate) fn apply(self, q: &Array, mask: &[Array], keys: &[Array], values: &[Array]) -> Result<Array> {
        single(apply(self, &[std::slice::from_ref(q), mask, keys, values].concat())?)
    }

    fn parts<'a, T>(&self, inputs: &'a [T]) -> Parts<'a, T> {
        let (q, rest) = inputs.split_at(1);
        let (mask, rest) = rest.split_at(self.hiding.as_ref().map_or(0, Hiding::inputs));
        let (keys, values) = rest.split_at(self.keys.children);
        Parts { q: &q[0], mask, keys, values }
    }

    /// Softmax and masks in plain ops between two products.
    fn by_products(
        &self,
        inputs: &[Array],
        product: impl Fn(&Array, &StoredTokens, &[Array], Orientation) -> Fallible<Array>,
    ) -> Fallible<Array> {
        let Parts { q, mask, keys, values } = self.parts(inputs);
        let entries = self.groups.matrices.len() as i32;
        let per_entry = |rows: &Array, columns: i32| rows.reshape(&[entries, q.dim(0) / entries.max(1), columns]);
        let mut scores = product(&per_entry(q, q.dim(1))?, &self.keys, keys, Orientation::Transposed)?;
        if let Some(hiding) = &self.hiding {
            scores = hiding.on(&scores, mask)?;
        }
        let weights = per_entry(&ops::softmax_axis(&scores, -1, true)?, self.groups.rows as i32)?;
        Ok(product(&weights, &self.values, values, Orientation::Plain)?.flatten(0, 1)?)
    }

    /// From the codes, with the scores of all tokens: what derivatives are taken of.
    fn recomputed(&self, inputs: &[Array]) -> Result<Vec<Array>> {
        let result = self.by_products(inputs, |x, side, children, orientation| {
            Ok(grouped_matmul(x, side.layout, children, orientation, self.groups.clone())?)
        });
        Ok(vec![result.map_err(Error::Function)?])
    }
}

impl Kernel for Attend {
    fn name(&self) -> &'static str {
        "PackedAttention"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let mut params: Vec<(&'static str, Param)> = self.groups.params().into();
        for side in [&self.keys, &self.values] {
            params.push(("format", Param::Str(side.layout.scheme.label.to_owned())));
            params.push(("children", int(side.children)));
            params.extend(side.layout.params());
        }
        if let Some(Hiding { replaces, shape, scores }) = &self.hiding {
            let ints = |shape: &[i32]| Param::Ints(shape.iter().map(|&extent| i64::from(extent)).collect());
            params.extend([("replaces", Param::Bool(*replaces)), ("mask", ints(shape)), ("scores", ints(scores))]);
        }
        Some(params)
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&[inputs[0].shape[0], self.values.layout.k as i32], inputs[0].dtype)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let Parts { q, mask, keys, values } = self.parts(inputs);
        let Groups { matrices, rows } = &self.groups;
        let places = self.hiding.as_ref().map(Hiding::places);
        let mask = match (&places, &self.hiding) {
            (Some((entries, row, column)), Some(hiding)) => {
                let values = if hiding.replaces {
                    MaskValues::Visible { visible: mask[0].bytes(), hidden: scalar(&mask[1])? }
                } else {
                    MaskValues::Added(floats(&mask[0])?)
                };
                Some(Mask { values, entries, row: *row, column: *column })
            }
            _ => None,
        };
        let attention = Attention {
            q: floats(q)?,
            queries: q.aval().shape[0] as usize / matrices.len().max(1),
            indices: matrices,
            keys: self.keys.layout.matrix(keys)?,
            values: self.values.layout.matrix(values)?,
            tokens: *rows,
            mask,
        };
        Ok(tacit_kernels::attention(&attention, floats_mut(&mut outputs[0])?)?)
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::attention(self, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let result = self.by_products(inputs, |x, side, children, orientation| {
            let dense = self.groups.taken(&side.layout.decoded(children)?)?;
            Ok(x.matmul(oriented(&dense, orientation)?)?)
        })?;
        Ok(vec![result])
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        self.keys.layout.permit(self.name(), reason)?;
        self.values.layout.permit(self.name(), reason)?;
        self.decompose(inputs)
    }

    /// Of the queries and the mask by products with the codes; float children ask for their dense arrays there.
    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let gradients = derivatives::of_named(primals, cotangents, argnums, |inputs| self.recomputed(inputs));
        Some(gradients.map_err(Into::into))
    }

    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let is_float = |argnum: &usize| primals[*argnum].dtype().is_inexact();
        let chosen: Vec<usize> = argnums.iter().copied().filter(is_float).collect();
        let tangent = || {
            if chosen.is_empty() {
                let shape = [primals[0].dim(0), self.values.layout.k as i32];
                return Ok(vec![ops::zeros_dtype(&shape, primals[0].dtype())?]);
            }
            let chosen_primals: Vec<Array> = chosen.iter().map(|&at| primals[at].clone()).collect();
            let along = argnums.iter().zip(tangents).filter(|(argnum, _)| chosen.contains(argnum));
            let along: Vec<Array> = along.map(|(_, tangent)| tangent.clone()).collect();
            let of_chosen = derivatives::of_chosen(primals, &chosen, |inputs| self.recomputed(inputs));
            Ok(derivatives::tangents(&chosen_primals, &along, &of_chosen)?)
        };
        Some(tangent())
    }

    /// The entries of all examples as one batch, if they share keys and values.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        let Parts { mask, .. } = self.parts(inputs);
        let keys_from = 1 + mask.len();
        let scalar = self.hiding.as_ref().filter(|hiding| hiding.replaces).map(|_| axes[2]);
        if axes[keys_from..].iter().any(Option::is_some) || scalar.flatten().is_some() {
            return None;
        }
        let batches = inputs.iter().zip(axes).find_map(|(input, axis)| Some(input.dim((*axis)? as i32)))?;
        let mapped = || -> Fallible<Mapped> {
            let q = match axes[0] {
                Some(axis) => inputs[0].move_axis(axis as i32, 0)?,
                None => ops::broadcast_to(&inputs[0], &[&[batches], inputs[0].shape()].concat())?,
            };
            let mut mapped = inputs.to_vec();
            mapped[0] = q.flatten(0, 1)?;
            let mut hiding = self.hiding.clone();
            if let Some(hiding) = &mut hiding {
                hiding.scores.insert(0, batches);
                hiding.shape.insert(0, if axes[1].is_some() { batches } else { 1 });
                if let Some(axis) = axes[1] {
                    mapped[1] = inputs[1].move_axis(axis as i32, 0)?;
                }
            }
            let batch = Self { groups: self.groups.repeated(batches as usize), hiding, ..self.clone() };
            let result = single(apply(batch, &mapped)?)?;
            Ok((vec![result.reshape(&[batches, q.dim(1), self.values.layout.k as i32])?], vec![0]))
        };
        Some(mapped())
    }
}
