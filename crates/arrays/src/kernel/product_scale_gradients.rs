//! Gradients for the scales and biases of a stored matrix whose own gradient is a product that is never built.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::scatter_add_single;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::{Matrix, Orientation, OuterProducts, Stack};

use super::encode::blocks;
use super::host::{Fallible, int, within};
use super::quantize::one_by_one;
use super::{Layout, gpu};

/// The gradients of the scale and of the bias of each block, `f32[blocks]`, where `x: [e, m, depth]` are multiplied with the matrices
/// of these numbers, `u32[e]`, and the products have this `cotangent: [e, m, columns]`. `codes` are those of a stack of `count`
/// matrices.
pub(super) fn product_scale_gradients(
    [x, cotangent, matrices]: [&Array; 3],
    orientation: Orientation,
    codes: &Array,
    (rows, count): (Layout, usize),
) -> Result<Vec<Array>> {
    let (left, right) = match orientation {
        Orientation::Transposed => (cotangent, x),
        Orientation::Plain => (x, cotangent),
    };
    let wide = |array: &Array| array.as_dtype(Dtype::Float32);
    apply(ProductScaleGradients { rows, count }, &[wide(left)?, wide(right)?, matrices.clone(), codes.clone()])
}

/// Of the left and the right side of the products that the gradient is a sum of, the matrix of each, and the codes: see
/// [`tacit_kernels::OuterProducts`].
pub(super) struct ProductScaleGradients {
    /// The rows of all matrices, of whose scales nothing is read.
    pub(super) rows: Layout,
    /// How many there are.
    pub(super) count: usize,
}

impl Kernel for ProductScaleGradients {
    fn name(&self) -> &'static str {
        self.rows.scheme.kernel("ProductScaleGradients")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(self.rows.params().into_iter().chain([("count", int(self.count))]).collect())
    }

    fn output_avals(&self, _: &[Aval]) -> Fallible<Vec<Aval>> {
        let Layout { n, k, block, .. } = self.rows;
        Ok(vec![Aval::new(&[(n * k).div_ceil(block) as i32], Dtype::Float32); 2])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let ([left, right, matrices, codes @ ..], [of_scales, of_biases]) = (inputs, outputs) else {
            return Err("three arrays and codes are expected".into());
        };
        let units = self.rows.unscaled();
        let matrix = Matrix { block: self.rows.block, ..units.matrix(codes)? };
        let rows = left.aval().shape.get(1).map_or(0, |&rows| rows as usize);
        let (left, right, matrices) = (left.elements()?, right.elements()?, matrices.elements()?);
        Ok(tacit_kernels::product_scale_gradients(
            &Stack { matrix, count: self.count },
            &OuterProducts { rows, left, right, matrices },
            of_scales.elements()?,
            of_biases.elements()?,
        )?)
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::product_scale_gradients(&self.rows, self.count, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let [left, right, matrices, codes] = inputs else { return Err("three arrays and codes are expected".into()) };
        let count = self.count as i32;
        let products = left.swap_axes(-1, -2)?.matmul(right)?;
        let shape = [count, products.dim(1), products.dim(2)];
        let gradient = if products.dim(0) == 1 && count == 1 {
            products
        } else {
            let zeros = ops::zeros::<f32>(&shape)?;
            scatter_add_single(zeros, within(matrices, count)?, products.expand_dims(1)?, 0)?
        };
        let block = self.rows.block;
        let gradient = blocks(&gradient, block)?;
        let values = blocks(&self.rows.unscaled().decoded(std::slice::from_ref(codes))?, block)?;
        let sums = [gradient.multiply(values)?, gradient].map(|terms| terms.sum_axis(-1, None));
        Ok(sums.into_iter().collect::<std::result::Result<_, Exception>>()?)
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        self.rows.permit(self.name(), reason)?;
        self.decompose(inputs)
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        Some(one_by_one(|| Self { rows: self.rows, count: self.count }, inputs, axes))
    }
}

#[cfg(test)]
mod tests;
