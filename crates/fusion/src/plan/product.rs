//! Products of dense matrices.

use std::sync::Arc;

use half::{bf16, f16};
use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Element, Input, Output};
use tacit_kernels::{
    Codes, Dense, Factors, Floats, FloatsMut, Matrix, Operand, Orientation, Scales, dense_matmul, matmul,
};

use super::staged::{BoxError, Stage};
use super::steps::{size, steps};

/// `a b`, for each matrix of a batch, or `alpha a b + beta c`.
#[derive(Clone)]
pub(super) struct Product {
    /// Rows, inner extent and columns.
    size: [usize; 3],
    orientations: [Orientation; 2],
    /// The factors of a product that is added to a third operand, which is such a batch, or a row.
    added: Option<Factors>,
    dtype: Dtype,
    /// For an operand with fewer matrices than the batch: which one each product takes.
    shared: [Option<Arc<[usize]>>; 2],
    /// Whether two further operands say which matrices each product takes.
    gathered: bool,
}

impl Product {
    pub(super) fn new(a: &Aval, b: &Aval, added: Option<Factors>, result: &Aval) -> Option<Self> {
        let extent = |aval: &Aval, from_end: usize| aval.shape[aval.shape.len() - from_end] as usize;
        let size = [extent(a, 2), extent(a, 1), extent(b, 1)];
        let dtype = result.dtype;
        let known = matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16);
        let same = a.dtype == dtype && b.dtype == dtype;
        let orientations = [Orientation::Plain; 2];
        (known && same).then_some(Self { size, orientations, added, dtype, shared: [None, None], gathered: false })
    }

    /// The same with operands that are stored so.
    pub(super) fn with(&self, orientations: [Orientation; 2]) -> Self {
        Self { orientations, ..self.clone() }
    }

    /// The same with an operand that is broadcast from one shape to another; none where its matrices themselves are.
    pub(super) fn sharing(mut self, operand: usize, from: &[i32], to: &[i32]) -> Option<Self> {
        let (batch, matrix) = to.split_at(to.len() - 2);
        let batch_axes = from.len().checked_sub(2).filter(|&at| from[at..] == *matrix && !self.gathered)?;
        let batch_steps = steps(&from[..batch_axes]);
        let mut which = vec![0];
        for (axis, &extent) in batch.iter().enumerate() {
            let step =
                (axis + batch_axes).checked_sub(batch.len()).filter(|&at| from[at] > 1).map_or(0, |at| batch_steps[at]);
            which = which.iter().flat_map(|first| (0..extent as usize).map(move |at| first + at * step)).collect();
        }
        self.shared[operand] = Some(which.into());
        Some(self)
    }

    /// The product of matrices that two further operands choose from `a` and `b`.
    pub(super) fn gathered(a: &Aval, b: &Aval, chosen: [&Aval; 2], result: &Aval) -> Option<Self> {
        let indices = chosen.into_iter().all(|chosen| chosen.dtype == Dtype::Uint32);
        let product = Self::new(a, b, None, result).filter(|_| indices && result.dtype == Dtype::Float32)?;
        Some(Self { gathered: true, ..product })
    }

    pub(super) fn is_gathered(&self) -> bool {
        self.gathered
    }

    /// The same with the matrices that operands choose.
    fn chosen(&self, inputs: &[Input<'_>]) -> Result<Self, BoxError> {
        let which = |operand: usize| {
            let shape = &inputs[operand].aval().shape;
            // Not by their elements: matrices of an inner extent of 0 have none.
            let count = size(&shape[..shape.len() - 2]);
            let indices = inputs[operand + 2].elements::<u32>()?;
            if let Some(index) = indices.iter().find(|&&index| index as usize >= count) {
                return Err(format!(
                    "the index {index} is not among {count} matrices\nhelp: give indices below {count}"
                )
                .into());
            }
            Ok::<Arc<[usize]>, BoxError>(indices.iter().map(|&index| index as usize).collect())
        };
        Ok(Self { shared: [Some(which(0)?), Some(which(1)?)], ..self.clone() })
    }

    pub(super) fn is_shared(&self, operand: usize) -> bool {
        self.shared[operand].is_some()
    }

    /// Whether an operand may be stored transposed: half floats of the left side are widened row by row.
    pub(super) fn takes_transposed(&self, operand: usize) -> bool {
        self.dtype == Dtype::Float32 || operand == 1
    }

    pub(super) fn is_added(&self) -> bool {
        self.added.is_some()
    }

    /// The first products of so many that follow each other and take one matrix on the right, so that they are one, with the
    /// numbers of what they take.
    fn runs(&self, count: usize) -> impl Iterator<Item = Run> + '_ {
        let which = |operand: usize, at: usize| self.shared[operand].as_ref().map_or(at, |which| which[at]);
        let joins = self.shared[0].is_none() && self.orientations[0] == Orientation::Plain;
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = next;
            if first >= count {
                return None;
            }
            next += 1;
            while joins && next < count && which(1, next) == which(1, first) {
                next += 1;
            }
            Some(Run { first, products: next - first, a: which(0, first), b: which(1, first) })
        })
    }

    fn single(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let [m, k, n] = self.size;
        let (a, b, out) = (inputs[0].elements::<f32>()?, inputs[1].elements::<f32>()?, output.elements::<f32>()?);
        if self.added.is_some() {
            let addend = inputs[2].elements::<f32>()?;
            out.chunks_mut(addend.len()).for_each(|out| out.copy_from_slice(addend));
        }
        if let Some(Factors { beta, .. }) = self.added.filter(|_| k == 0) {
            // As MLX, which multiplies the addend by a factor of 0 too where there is no product.
            for sum in out {
                *sum *= beta;
            }
            return Ok(());
        }
        let factors = self.added.unwrap_or_default();
        for Run { first, products, a: of_a, b: of_b } in self.runs(out.len() / (m * n)) {
            let rows = products * m;
            let a = operand(&a[of_a * m * k..][..rows * k], rows, k, self.orientations[0]);
            let b = operand(&b[of_b * k * n..][..k * n], k, n, self.orientations[1]);
            let values = &mut out[first * m * n..][..rows * n];
            dense_matmul(a, b, Dense { values, rows, columns: n, stride: n }, factors)?;
        }
        Ok(())
    }

    /// In single precision, and rounded once, at the end.
    fn halves<T: Element + Into<f32>>(
        &self,
        inputs: &[Input<'_>],
        output: &mut Output<'_>,
        codes: impl Fn(&[T]) -> Codes<'_>,
        round: fn(f32) -> T,
    ) -> Result<(), BoxError>
    where
        for<'a> &'a [T]: Into<Floats<'a>>,
        for<'a> &'a mut [T]: Into<FloatsMut<'a>>,
    {
        let [m, k, n] = self.size;
        let (a, b, out) = (inputs[0].elements::<T>()?, inputs[1].elements::<T>()?, output.elements::<T>()?);
        let orientation = self.orientations[1];
        let [rows, columns] = if orientation == Orientation::Plain { [k, n] } else { [n, k] };
        let mut wide = Vec::new();
        for Run { first, products, a: of_a, b: of_b } in self.runs(out.len() / (m * n)) {
            let m = products * m;
            let (a, b) = (&a[of_a * self.size[0] * k..][..m * k], &b[of_b * k * n..][..k * n]);
            let out = &mut out[first * self.size[0] * n..][..m * n];
            let block = (k * n).max(1);
            let matrix = Matrix { n: rows, k: columns, codes: codes(b), scales: Scales::One, biases: None, block };
            let Some(Factors { alpha, beta }) = self.added else {
                matmul(a, m, &matrix, orientation, out)?;
                continue;
            };
            wide.resize(m * n, 0.0);
            matmul(a, m, &matrix, orientation, &mut wide[..])?;
            let addend = inputs[2].elements::<T>()?;
            let addend = if addend.len() == n { addend } else { &addend[first * self.size[0] * n..][..m * n] };
            let sums = wide.iter().zip(addend.iter().cycle());
            // As BLAS: what is multiplied by 0 is not read, NaN and infinities too. MLX reads it where there is no product.
            let is_read = beta != 0.0 || k == 0;
            let sums = sums.map(
                |(product, addend)| {
                    if is_read { alpha * product + beta * (*addend).into() } else { alpha * product }
                },
            );
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = round(sum));
        }
        Ok(())
    }
}

/// Products of a batch that are computed as one.
struct Run {
    first: usize,
    products: usize,
    /// The numbers of the first one's operands.
    a: usize,
    b: usize,
}

/// A matrix that is multiplied as one of so many rows and columns.
fn operand(values: &[f32], rows: usize, columns: usize, orientation: Orientation) -> Operand<'_> {
    let (rows, columns) = if orientation == Orientation::Plain { (rows, columns) } else { (columns, rows) };
    Operand { matrix: Dense { values, rows, columns, stride: columns }, orientation }
}

impl Stage for Product {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        if output.bytes().is_empty() {
            return Ok(());
        }
        match self.dtype {
            Dtype::Float16 => self.halves(inputs, output, |codes| Codes::F16 { codes }, f16::from_f32),
            Dtype::Bfloat16 => self.halves(inputs, output, |codes| Codes::Bf16 { codes }, bf16::from_f32),
            _ if self.gathered => self.chosen(inputs)?.single(inputs, output),
            _ => self.single(inputs, output),
        }
    }
}
