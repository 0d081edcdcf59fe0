//! A stored matrix times a number, added to a dense array.

use mlx_rs::Array;
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Output, Pieces, apply};
use tacit_core::{Aval, Param, Result};

use super::host::{Fallible, floats, floats_mut, single};
use super::pieces::Unit;
use super::{Layout, gpu};

/// `factor * matrix + x` in the type of `x: [n, k]`, of which the product is not built; `factor: f32[]`.
pub(crate) fn add_dense(layout: Layout, children: &[Array], factor: Option<&Array>, x: &Array) -> Result<Array> {
    let inputs: Vec<Array> = std::iter::once(x).chain(factor).chain(children).cloned().collect();
    single(apply(AddDense { layout, scaled: factor.is_some() }, &inputs)?)
}

/// A kernel of the dense array, the factor if there is one, and the children.
pub(super) struct AddDense {
    pub(super) layout: Layout,
    pub(super) scaled: bool,
}

impl AddDense {
    /// Where the children begin.
    fn children_from(&self) -> usize {
        1 + usize::from(self.scaled)
    }
}

impl Kernel for AddDense {
    fn name(&self) -> &'static str {
        self.layout.scheme.kernel("AddDense")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(self.layout.params().into_iter().chain([("scaled", Param::Bool(self.scaled))]).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![inputs[0].clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let factor = if self.scaled { inputs[1].elements::<f32>()?[0] } else { 1.0 };
        let matrix = self.layout.matrix(&inputs[self.children_from()..])?;
        Ok(tacit_kernels::add_dense(&matrix, factor, floats(&inputs[0])?, floats_mut(&mut outputs[0])?)?)
    }

    fn pieces(&self, inputs: &[Aval]) -> Option<Pieces> {
        let Self { layout, scaled } = *self;
        let (elements, unit) = (layout.n * layout.k, Unit::new(&layout.scheme, layout.block)?);
        let (each, children) =
            (unit.element_bytes(&inputs[0]), unit.children(&layout, &inputs[self.children_from()..])?);
        let factor = scaled.then_some(None);
        Some(Pieces {
            elements,
            unit: unit.elements,
            inputs: std::iter::once(Some(each)).chain(factor).chain(children).collect(),
            outputs: vec![each],
            eval: Box::new(move |piece, inputs, outputs| {
                Self { layout: layout.of_piece(piece.len()), scaled }.eval_cpu(inputs, outputs)
            }),
        })
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::add_dense(&self.layout, self.scaled, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let (x, mut product) = (&inputs[0], self.layout.decoded(&inputs[self.children_from()..])?);
        if self.scaled {
            product = product.multiply(&inputs[1])?;
        }
        Ok(vec![product.as_dtype(x.dtype())?.add(x)?])
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        self.layout.permit(self.name(), reason)?;
        self.decompose(inputs)
    }

    /// The dense array has the gradient of the sum.
    fn vjp(&self, _: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        (argnums == [0]).then(|| Ok(cotangents.to_vec()))
    }
}
