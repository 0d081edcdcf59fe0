//! From CBLAS's arguments to a product of strided matrices.

use std::{
    ffi::c_int,
    ops::{Add, Mul},
    slice,
};

use gemm::Parallelism;
use tacit_kernels::{Dense, dense_matmul, threads};

/// Products of fewer multiplications take less time than waking a thread.
const PARALLEL: usize = 1 << 19;

/// `A` or `B` as the caller describes it.
#[derive(Clone, Copy)]
pub(super) struct Operand<T> {
    pub(super) trans: c_int,
    pub(super) data: *const T,
    pub(super) ld: c_int,
}

/// The arguments of a `cblas_?gemm`.
#[derive(Clone, Copy)]
pub(super) struct Arguments<T> {
    pub(super) order: c_int,
    pub(super) m: c_int,
    pub(super) n: c_int,
    pub(super) k: c_int,
    pub(super) alpha: T,
    pub(super) a: Operand<T>,
    pub(super) b: Operand<T>,
    pub(super) beta: T,
    pub(super) c: *mut T,
    pub(super) ldc: c_int,
}

/// The numbers that BLAS has functions for.
pub(super) trait Number: Copy + PartialEq + Send + Add<Output = Self> + Mul<Output = Self> + 'static {
    const ZERO: Self;

    /// Computes the product, and says so, if it is one that the kernels multiply better than `gemm` does.
    ///
    /// # Safety
    /// The matrices have these sizes, none of which is 0, and `c` is the caller's alone.
    unsafe fn by_kernel(_: &Sizes, _: &Matrices<Self>, _alpha: Self, _beta: Self) -> bool {
        false
    }
}

impl Number for f32 {
    const ZERO: Self = 0.0;

    #[allow(clippy::float_cmp)]
    unsafe fn by_kernel(&(m, n, k): &Sizes, (a, b, c): &Matrices<Self>, alpha: Self, beta: Self) -> bool {
        // `A * B^T`, whose `B` the `gemm` crate packs float by float: for small `A` that costs more than the product itself.
        // One row is a matrix-vector product, which needs no packing.
        let form = m > 1 && a.columns == 1 && b.rows == 1 && c.columns == 1;
        if !form || alpha != 1.0 || (beta != 0.0 && beta != 1.0) {
            return false;
        }
        let len = |rows: usize, columns: usize, stride: isize| (rows - 1) * stride as usize + columns;
        // SAFETY: each matrix is memory from its first element to its last, and that of `c` the caller's alone.
        let (a_values, b_values, c_values) = unsafe {
            (
                slice::from_raw_parts(a.data, len(m, k, a.rows)),
                slice::from_raw_parts(b.data, len(n, k, b.columns)),
                slice::from_raw_parts_mut(c.data, len(m, n, c.rows)),
            )
        };
        let x = Dense { values: a_values, rows: m, columns: k, stride: a.rows as usize };
        let w = Dense { values: b_values, rows: n, columns: k, stride: b.columns as usize };
        let out = Dense { values: c_values, rows: m, columns: n, stride: c.rows as usize };
        dense_matmul(x, w, out, beta == 1.0).is_ok()
    }
}

impl Number for f64 {
    const ZERO: Self = 0.0;
}

impl Number for super::Complex {
    const ZERO: Self = Self::new(0.0, 0.0);
}

/// A matrix by its strides.
#[derive(Clone, Copy)]
pub(super) struct Strided<P> {
    data: P,
    rows: isize,
    columns: isize,
    conjugate: bool,
}

// SAFETY: the pointers are only used by the one thread that takes them over, and by those that `gemm` hands disjoint
// parts to, while the caller, whose memory it is, waits.
unsafe impl<P> Send for Strided<P> {}

/// Reports the illegal argument at this position, counted from 1.
pub(super) fn report(function: &str, position: usize) {
    eprintln!("{function}: argument {position} has an illegal value; nothing was computed");
}

/// # Safety
/// The pointers are to matrices of the stated sizes and leading dimensions, `c` to writable memory that overlaps
/// neither operand.
pub(super) unsafe fn multiply<T: Number>(function: &str, arguments: Arguments<T>) {
    let Arguments { m, n, k, alpha, beta, .. } = arguments;
    let (a, b, c) = match arguments.check() {
        Ok(matrices) => matrices,
        Err(position) => return report(function, position),
    };
    // None is negative once checked.
    let (m, n, k) = (m as usize, n as usize, k as usize);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 || alpha == T::ZERO {
        // SAFETY: `c` has m rows and n columns.
        unsafe { scale(c, m, n, beta) };
        return;
    }
    // SAFETY: the caller's promise, in other words.
    if unsafe { T::by_kernel(&(m, n, k), &(a, b, c), alpha, beta) } {
        return;
    }
    let run = move |parallelism| {
        // Whole structs are captured, so that their `Send` counts.
        let (a, b, c) = (a, b, c);
        // SAFETY: the caller's promise; `c` is only read where `beta` is not 0.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.data,
                c.columns,
                c.rows,
                beta != T::ZERO,
                a.data,
                a.columns,
                a.rows,
                b.data,
                b.columns,
                b.rows,
                beta,
                alpha,
                false,
                a.conjugate,
                b.conjugate,
                parallelism,
            );
        }
    };
    if m.saturating_mul(n).saturating_mul(k) >= PARALLEL {
        threads::install(move |count| {
            run(if count > 1 { Parallelism::Rayon(count) } else { Parallelism::None });
        });
    } else {
        run(Parallelism::None);
    }
}

/// `C = beta * C`, without reading it where `beta` is 0.
///
/// # Safety
/// `c` has `m` rows and `n` columns.
unsafe fn scale<T: Number>(c: Strided<*mut T>, m: usize, n: usize, beta: T) {
    for i in 0..m {
        for j in 0..n {
            // SAFETY: the element lies in the matrix.
            unsafe {
                let at = c.data.offset(i as isize * c.rows + j as isize * c.columns);
                *at = if beta == T::ZERO { T::ZERO } else { beta * *at };
            }
        }
    }
}

/// `m`, `n` and `k`.
pub(super) type Sizes = (usize, usize, usize);

/// `A`, `B` and `C` once their arguments are known to be legal.
pub(super) type Matrices<T> = (Strided<*const T>, Strided<*const T>, Strided<*mut T>);

impl<T> Arguments<T> {
    /// The position of the first illegal argument, or the three matrices.
    fn check(&self) -> Result<Matrices<T>, usize> {
        let row_major = match self.order {
            101 => true,
            102 => false,
            _ => return Err(1),
        };
        for (position, trans) in [(2, self.a.trans), (3, self.b.trans)] {
            if !(111..=113).contains(&trans) {
                return Err(position);
            }
        }
        for (position, size) in [(4, self.m), (5, self.n), (6, self.k)] {
            if size < 0 {
                return Err(position);
            }
        }
        let empty = self.m == 0 || self.n == 0;
        let operand = |operand: &Operand<T>, rows: c_int, columns: c_int, position: usize| {
            let plain = operand.trans == 111;
            // The side that is contiguous as the matrix is stored, before `op`.
            let contiguous = if plain == row_major { columns } else { rows };
            if operand.data.is_null() && !empty && self.k > 0 {
                return Err(position);
            }
            if operand.ld < contiguous.max(1) {
                return Err(position + 1);
            }
            let (rows, columns) = strides(plain == row_major, operand.ld);
            Ok(Strided { data: operand.data, rows, columns, conjugate: operand.trans == 113 })
        };
        let a = operand(&self.a, self.m, self.k, 8)?;
        let b = operand(&self.b, self.k, self.n, 10)?;
        if self.c.is_null() && !empty {
            return Err(13);
        }
        if self.ldc < (if row_major { self.n } else { self.m }).max(1) {
            return Err(14);
        }
        let (rows, columns) = strides(row_major, self.ldc);
        Ok((a, b, Strided { data: self.c, rows, columns, conjugate: false }))
    }
}

/// The strides from row to row and from column to column.
fn strides(row_major: bool, ld: c_int) -> (isize, isize) {
    if row_major { (ld as isize, 1) } else { (1, ld as isize) }
}
