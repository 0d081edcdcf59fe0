//! The three BLAS functions that MLX imports: `cblas_sgemm`, `cblas_dgemm`, `cblas_cgemm`.
//!
//! They are exported under their C names. A dynamic linker prefers a definition in the executable over one in a
//! library, so a program that links this crate (naming it is enough: `use tacit_blas as _;`) and loads libmlx.so
//! gives MLX these instead of the reference BLAS of its wheel, with no set-up. They follow the CBLAS interface with
//! 32-bit sizes, except that an illegal argument is reported on standard error and leaves `C` as it was, where the
//! reference implementation ends the process.
//!
//! The arithmetic is that of [`tacit_kernels`], on its threads: [`dense_matmul`](tacit_kernels::dense_matmul),
//! [`double_matmul`](tacit_kernels::double_matmul) and [`complex_matmul`](tacit_kernels::complex_matmul).

mod product;

use std::ffi::{c_int, c_void};

use product::{Arguments, Given, multiply};
use tacit_kernels::Complex;

/// `C = alpha * op(A) * op(B) + beta * C` in single precision.
///
/// # Safety
/// `a`, `b` and `c` point to matrices of the stated sizes and leading dimensions, all of them memory from the first element
/// to the last; that of `c` is the caller's alone and overlaps neither of the others.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cblas_sgemm(
    order: c_int,
    trans_a: c_int,
    trans_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: f32,
    a: *const f32,
    lda: c_int,
    b: *const f32,
    ldb: c_int,
    beta: f32,
    c: *mut f32,
    ldc: c_int,
) {
    let (a, b) = (Given { trans: trans_a, data: a, ld: lda }, Given { trans: trans_b, data: b, ld: ldb });
    // SAFETY: the caller's promise.
    unsafe { multiply("cblas_sgemm", Arguments { order, m, n, k, alpha, a, b, beta, c, ldc }) }
}

/// `C = alpha * op(A) * op(B) + beta * C` in double precision.
///
/// # Safety
/// As for [`cblas_sgemm`].
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cblas_dgemm(
    order: c_int,
    trans_a: c_int,
    trans_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: f64,
    a: *const f64,
    lda: c_int,
    b: *const f64,
    ldb: c_int,
    beta: f64,
    c: *mut f64,
    ldc: c_int,
) {
    let (a, b) = (Given { trans: trans_a, data: a, ld: lda }, Given { trans: trans_b, data: b, ld: ldb });
    // SAFETY: the caller's promise.
    unsafe { multiply("cblas_dgemm", Arguments { order, m, n, k, alpha, a, b, beta, c, ldc }) }
}

/// `C = alpha * op(A) * op(B) + beta * C` for complex numbers of two `f32`.
///
/// # Safety
/// As for [`cblas_sgemm`]; `alpha` and `beta` point to one complex number each.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cblas_cgemm(
    order: c_int,
    trans_a: c_int,
    trans_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    lda: c_int,
    b: *const c_void,
    ldb: c_int,
    beta: *const c_void,
    c: *mut c_void,
    ldc: c_int,
) {
    let (alpha, beta) = (alpha.cast::<Complex>(), beta.cast::<Complex>());
    if alpha.is_null() || beta.is_null() {
        return product::report("cblas_cgemm", if alpha.is_null() { 7 } else { 12 });
    }
    let a = Given { trans: trans_a, data: a.cast::<Complex>(), ld: lda };
    let b = Given { trans: trans_b, data: b.cast::<Complex>(), ld: ldb };
    // SAFETY: the caller's promise; neither factor is null, and an unaligned read asks for no more than that.
    unsafe {
        let (alpha, beta) = (alpha.read_unaligned(), beta.read_unaligned());
        multiply("cblas_cgemm", Arguments { order, m, n, k, alpha, a, b, beta, c: c.cast::<Complex>(), ldc });
    }
}
