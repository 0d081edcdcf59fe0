//! Products of dense matrices.

use tacit_core::Aval;
use tacit_core::kernel::{Input, Output};
use tacit_kernels::{Dense, Factors, Operand, Orientation, dense_matmul};

use super::staged::{BoxError, Stage};

/// `a b`, for each matrix of a batch, or `alpha a b + beta c`.
#[derive(Clone, Copy)]
pub(super) struct Product {
    /// Rows, inner extent and columns.
    size: [usize; 3],
    orientations: [Orientation; 2],
    /// Those of a product that is added to a third operand, which is such a batch, or a row.
    added: Option<Factors>,
}

impl Product {
    pub(super) fn new(a: &Aval, b: &Aval, added: Option<Factors>) -> Self {
        let extent = |aval: &Aval, from_end: usize| aval.shape[aval.shape.len() - from_end] as usize;
        let size = [extent(a, 2), extent(a, 1), extent(b, 1)];
        Self { size, orientations: [Orientation::Plain; 2], added }
    }

    /// The same with operands that are stored so.
    pub(super) fn with(self, orientations: [Orientation; 2]) -> Self {
        Self { orientations, ..self }
    }

    pub(super) fn is_added(self) -> bool {
        self.added.is_some()
    }
}

/// A matrix that is multiplied as one of so many rows and columns.
fn operand(values: &[f32], rows: usize, columns: usize, orientation: Orientation) -> Operand<'_> {
    let (rows, columns) = if orientation == Orientation::Plain { (rows, columns) } else { (columns, rows) };
    Operand { matrix: Dense { values, rows, columns, stride: columns }, orientation }
}

impl Stage for Product {
    fn name(&self) -> &'static str {
        if self.added.is_some() { "AddMM" } else { "Matmul" }
    }

    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let [m, k, n] = self.size;
        let (a, b, out) = (inputs[0].elements::<f32>()?, inputs[1].elements::<f32>()?, output.elements::<f32>()?);
        if out.is_empty() {
            return Ok(());
        }
        if self.added.is_some() {
            let addend = inputs[2].elements::<f32>()?;
            out.chunks_mut(addend.len()).for_each(|out| out.copy_from_slice(addend));
        }
        let factors = self.added.unwrap_or_default();
        for (batch, out) in out.chunks_mut(m * n).enumerate() {
            let a = operand(&a[batch * m * k..][..m * k], m, k, self.orientations[0]);
            let b = operand(&b[batch * k * n..][..k * n], k, n, self.orientations[1]);
            dense_matmul(a, b, Dense { values: out, rows: m, columns: n, stride: n }, factors)?;
        }
        Ok(())
    }
}
