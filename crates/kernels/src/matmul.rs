//! Products of dense activations with a stored matrix.

use std::borrow::Cow;

#[cfg(target_arch = "x86_64")]
use crate::amx::codes;
use crate::{
    Floats, FloatsMut, Isa, KernelError, Matrix, Scales,
    by_columns::{ByColumns, MAX_COLUMNS, Step},
    by_rows::{Arrange, ByRows},
    codec::{Codec, Job, dispatch},
    decode::{Parts, Range},
    matrix::{check_length, product},
    panel::Turned,
    simd::run,
    threads,
    tile::{Product, TASK_COLUMNS, share},
    unit::{Decoded, Units},
};

/// Which way round the matrix `W: [n, k]` is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orientation {
    /// `y = x W^T`: `x: [m, k]`, `y: [m, n]`; a linear layer's forward pass.
    Transposed,
    /// `y = x W`: `x: [m, n]`, `y: [m, k]`; its backward pass.
    Plain,
}

/// Products smaller than this many multiplications do not wake a second thread.
const PARALLEL: usize = 1 << 17;

/// The most rows of activations at which the kernels for few rows beat the blocked product.
const FEW_ROWS: usize = 8;

/// The least rows of activations at which AMX beats fused multiply-adds.
#[cfg(target_arch = "x86_64")]
const MANY_ROWS: usize = 16;

/// Scales that one task widens.
const SCALES: usize = 1 << 14;

/// Multiplies `x` of `m` rows with `matrix` into `out`, never holding more than some tens of kilobytes of it as floats.
///
/// Sums are taken in `f32`, in an order that depends only on the sizes and the instruction set: the result has the
/// same bits whatever the number of threads. Activations of other types are widened first, and results rounded once, at
/// the end; so are scales of other types than `f32`, all of them where there are many rows of activations.
///
/// On [`Isa::Amx`], floats of large products are sums of three `bf16` numbers, whose products are exact. What is left out
/// of these is at most 2^-26 of a product; besides, a number of `x` or of a column of the matrix counts as fewer digits, or
/// as zero, where it is less than 2^-90 of the largest beside it. A NaN or an infinity in `x` has all of it multiplied as on
/// [`Isa::Avx512`].
///
/// # Errors
/// A matrix whose lengths do not match its sizes, or a wrong length of `x` or `out`.
pub fn matmul<'x, 'o>(
    x: impl Into<Floats<'x>>,
    m: usize,
    matrix: &Matrix,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    matmul_with(Isa::detect(), x, m, matrix, orientation, out)
}

/// [`matmul`] with the instruction set given.
pub fn matmul_with<'x, 'o>(
    isa: Isa,
    x: impl Into<Floats<'x>>,
    m: usize,
    matrix: &Matrix,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    multiply(isa, x.into(), m, matrix, orientation, out.into())
}

/// [`matmul_with`], compiled here once and not wherever it is called.
fn multiply(
    isa: Isa,
    x: Floats,
    m: usize,
    matrix: &Matrix,
    orientation: Orientation,
    out: FloatsMut,
) -> Result<(), KernelError> {
    isa.check()?;
    let elements = matrix.check()?;
    let (depth, columns) = match orientation {
        Orientation::Transposed => (matrix.k, matrix.n),
        Orientation::Plain => (matrix.n, matrix.k),
    };
    check_length("x", x.len(), product(m, depth)?, "`m` rows as long as the side of the matrix that is summed over")?;
    out.check(product(m, columns)?, "`m` rows as long as the side of the matrix that remains")?;
    let x = x.widen();
    let threads = if m.saturating_mul(elements) < PARALLEL { 1 } else { threads::count() };
    let run = |out: &mut [f32]| {
        if depth == 0 || out.is_empty() {
            return out.fill(0.0);
        }
        let out = out.as_mut_ptr();
        dispatch(matrix.codes, Multiply { isa, x: &x, m, matrix, orientation, out, threads });
    };
    match out {
        FloatsMut::F32(out) => run(out),
        other => {
            let mut values = vec![0.0; m * columns];
            run(&mut values);
            other.store(&values);
        }
    }
    Ok(())
}

/// A product whose lengths were checked, none of them 0; `out` has room for the result and is no one else's.
struct Multiply<'a> {
    isa: Isa,
    x: &'a [f32],
    m: usize,
    matrix: &'a Matrix<'a>,
    orientation: Orientation,
    out: *mut f32,
    threads: usize,
}

impl Job for Multiply<'_> {
    type Output = ();

    fn run<C: Codec>(self, codes: C) {
        if self.m > FEW_ROWS {
            return self.by_panels(codes);
        }
        // The sum with the codes and the one with the biases of a block could be opposite infinities.
        let apart = self.matrix.biases.is_none() || self.x.iter().all(|x| x.is_finite());
        let stored = apart && codes.stored().is_some_and(|units| self.few_rows(units));
        // Floats fit every matrix.
        let done = stored || self.few_rows(Decoded(&Parts { matrix: self.matrix, codes }));
        debug_assert!(done, "a matrix that no kernel takes");
    }
}

/// The start of the output, of which each task writes its own columns.
#[derive(Clone, Copy)]
struct Output(*mut f32);

// SAFETY: tasks write disjoint columns.
unsafe impl Sync for Output {}

impl Output {
    fn start(self) -> *mut f32 {
        self.0
    }
}

impl Multiply<'_> {
    /// Whether rows and blocks are whole spans of these units, so that the product could be taken.
    fn few_rows<U: Units>(&self, units: U) -> bool {
        match self.orientation {
            Orientation::Transposed => self.by_rows(units),
            Orientation::Plain => self.by_columns(units),
        }
    }

    fn by_rows<U: Units>(&self, units: U) -> bool {
        let &Self { isa, x, m, matrix, threads, .. } = self;
        let Some(x) = run(isa, Arrange { x, m, matrix, units }) else { return false };
        let out = Output(self.out);
        let each = share(matrix.n, threads, 16, TASK_COLUMNS);
        threads::for_each_on(threads, matrix.n.div_ceil(each), |i| {
            let rows = i * each..matrix.n.min((i + 1) * each);
            // SAFETY: tasks own disjoint columns of the output.
            run(isa, unsafe { ByRows::new(isa, &x, matrix, units, rows, out.start()) });
        });
        true
    }

    fn by_columns<U: Units>(&self, units: U) -> bool {
        let &Self { isa, x, m, matrix, threads, .. } = self;
        let Some(step) = run(isa, Step(matrix, units)) else { return false };
        let out = Output(self.out);
        let each = share(matrix.k, threads, step, MAX_COLUMNS);
        threads::for_each_on(threads, matrix.k.div_ceil(each), |i| {
            let columns = i * each..matrix.k.min((i + 1) * each);
            // SAFETY: tasks own disjoint columns of the output, and start with a multiple of the step.
            run(isa, unsafe { ByColumns::new(isa, x, m, matrix, units, columns, out.start()) });
        });
        true
    }

    fn by_panels<C: Codec>(&self, codes: C) {
        let &Self { isa, x, m, matrix, orientation, threads, .. } = self;
        let blocks = (matrix.n * matrix.k).div_ceil(matrix.block);
        let scales = widened(isa, &matrix.scales, blocks, threads);
        let biases = matrix.biases.map(|biases| widened(isa, &biases, blocks, threads));
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Amx && orientation == Orientation::Transposed && m >= MANY_ROWS {
            let product = codes::Product { matrix, scales: &scales, biases: biases.as_deref(), x, m, out: self.out };
            // SAFETY: all lengths were checked, and `out` is no one else's.
            if unsafe { codes::multiply(&product, threads) } {
                return;
            }
        }
        let range = Range { matrix, codes, scales: &scales, biases: biases.as_deref(), first: 0 };
        let (depth, columns) = match orientation {
            Orientation::Transposed => (matrix.k, matrix.n),
            Orientation::Plain => (matrix.n, matrix.k),
        };
        let product = Product {
            x: x.as_ptr(),
            x_stride: depth,
            m,
            depth,
            columns,
            panels: &Turned { range, orientation },
            out: self.out,
            out_stride: columns,
            accumulate: false,
        };
        // SAFETY: all lengths were checked, and `out` is no one else's.
        unsafe { product.run(isa, threads) };
    }
}

/// The first `count` scales as `f32`.
fn widened<'a>(isa: Isa, scales: &Scales<'a>, count: usize, threads: usize) -> Cow<'a, [f32]> {
    if let Some(values) = scales.floats() {
        return Cow::Borrowed(values);
    }
    let mut values = vec![0.0; count];
    let out = Output(values.as_mut_ptr());
    threads::for_each_on(threads, count.div_ceil(SCALES), |i| {
        let start = i * SCALES;
        let len = SCALES.min(count - start);
        // SAFETY: tasks write disjoint parts of `values`, which has `count` floats.
        let out = unsafe { std::slice::from_raw_parts_mut(out.start().add(start), len) };
        scales.widen(isa, start, out);
    });
    Cow::Owned(values)
}
