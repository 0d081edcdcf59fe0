//! Products of two dense matrices, either of them as it is stored or transposed.

use crate::{
    Dense, Factors, Isa, KernelError, Operand,
    copy::{Block, copy},
    engine,
    factors::scale,
    gemm::{PackB, Product},
    machine::{Cycles, FROM_MEMORY, Machine, threads_for},
    matrix::{check_size, product},
    microkernel::PanelB,
    output::Output,
    simd::panel_width_of,
    vector,
};

/// Computes `out = alpha * (a * b) + beta * out`, with `a: [m, k]`, `b: [k, n]` and `out: [m, n]` as they are multiplied.
///
/// What lies between the rows of `out` stays. Where `alpha` is 0 neither `a` nor `b` is looked at. Sums are taken as by
/// [`matmul`](crate::matmul) for many rows of activations, those of a single row or column by fused multiply-adds.
///
/// ```
/// use tacit_kernels::{Dense, Factors, Operand, Orientation, dense_matmul};
///
/// let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let matrix = Dense { values: &values[..], rows: 2, columns: 3, stride: 3 };
/// let a = Operand { matrix, orientation: Orientation::Plain };
/// let mut out = [0.0; 4];
/// let gram = Dense { values: &mut out[..], rows: 2, columns: 2, stride: 2 };
/// dense_matmul(a, a.transposed(), gram, Factors::default())?;
/// assert_eq!(out, [14.0, 32.0, 32.0, 77.0]);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// Sizes that do not fit each other, or the lengths.
pub fn dense_matmul(a: Operand, b: Operand, out: Dense<&mut [f32]>, factors: Factors) -> Result<(), KernelError> {
    let Factors { alpha, beta } = factors;
    check(&a, &b, &out)?;
    let Dense { values, rows, columns, stride } = out;
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let depth = a.columns();
    if depth == 0 || alpha == 0.0 {
        for row in values.chunks_mut(stride.max(columns)) {
            scale(&mut row[..columns], beta);
        }
        return Ok(());
    }
    let isa = Isa::detect();
    let mut out = Output::strided(values, rows, columns, stride);
    if rows == 1 {
        vector::multiply(isa, b.transposed(), a, factors, &mut out);
    } else if columns == 1 {
        vector::multiply(isa, a, b.transposed(), factors, &mut out);
    } else {
        let mut product = Product { x: a, panels: &b, columns, factors, threads: 1 };
        product.threads = threads_for(engine::cost(isa, &product, columns));
        engine::multiply(&product, isa, &mut out);
    }
    Ok(())
}

/// Whether the matrices hold what they say, and have the sizes of a product.
pub(crate) fn check<T>(a: &Operand<T>, b: &Operand<T>, out: &Dense<&mut [T]>) -> Result<(), KernelError> {
    a.check("a")?;
    b.check("b")?;
    out.check("out", out.values.len())?;
    product(out.rows, out.columns)?;
    check_size("b.rows()", b.rows(), a.columns(), "a row for each column of `a`")?;
    check_size("out.rows", out.rows, a.rows(), "one row for each of `a`")?;
    check_size("out.columns", out.columns, b.columns(), "one column for each of `b`")
}

impl PackB for Operand<'_> {
    fn cycles(&self, machine: &Machine) -> f64 {
        let Cycles { load, store, .. } = *machine.cycles;
        let loads = if self.is_plain() { 1.0 } else { 5.0 };
        loads * load + store + 4.0 * machine.cycles.lanes / FROM_MEMORY
    }

    unsafe fn fill(&self, isa: Isa, start: usize, depth: usize, first: usize, columns: usize, panel: *mut f32) {
        let width = panel_width_of(isa);
        let stride = self.matrix.stride;
        // The panel that follows is that of the next columns.
        let (rows, columns, next) =
            if self.is_plain() { (depth, columns, width) } else { (columns, depth, width * stride) };
        let from = self.at(start, first);
        let block = Block { from, stride, rows, columns, to: panel, to_stride: width, next };
        // SAFETY: the caller's promise; a panel is two vectors wide.
        unsafe { copy(isa, block, self.orientation) }
    }

    fn in_place(&self, start: usize, first: usize) -> Option<PanelB> {
        self.is_plain().then(|| PanelB { at: self.at(start, first), stride: self.matrix.stride })
    }
}
