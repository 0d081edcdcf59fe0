//! Products of matrices and vectors, and linear algebra.
//!
//! MLX has its factorizations on the CPU only, so they run there whatever the default device is.

use mlx_rs::{
    Axes, Stream,
    linalg::{self, NormOptions},
    ops, with_stream,
};

family! {
    "matmul" [0, 1] (a: signed[3, 4], b: signed[4, 2]) => ops::matmul(a, b);
    "matmul[batched]" [0, 1] (a: signed[2, 3, 4], b: signed[2, 4, 2]) => ops::matmul(a, b);
    "matmul[shared_right]" [0, 1] (a: signed[2, 3, 4], b: signed[4, 2]) => ops::matmul(a, b);
    "matmul[vector]" [0, 1] (a: signed[3, 4], b: signed[4]) => ops::matmul(a, b);
    "addmm" [0, 1, 2] (c: signed[2], a: signed[3, 4], b: signed[4, 2]) => ops::addmm(c, a, b, 0.5, 2.0);
    "einsum" [0, 1] (a: signed[2, 3, 4], b: signed[2, 4, 2]) => ops::einsum("bij,bjk->bik", [a, b]);
    "gather_mm" [0, 1] (a: signed[3, 2, 4], b: signed[3, 4, 2], lhs: list[2, 0], rhs: list[1, 1]) =>
        ops::gather_mm(a, b, lhs, rhs, None);
    "block_masked_mm" [0, 1, 2, 3, 4] (
        a: signed[32, 32], b: signed[32, 32], out: positive[1, 1], lhs: positive[1, 1], rhs: positive[1, 1]
    ) => ops::block_masked_mm(a, b, 32, out, lhs, rhs);
    "segmented_mm" [] (a: signed[3, 4], b: signed[4, 2], segments: segments[0, 1, 4]) => ops::segmented_mm(a, b, segments);
    "inner" [0, 1] (a: signed[3, 4], b: signed[2, 4]) => ops::inner(a, b);
    "kron" [0, 1] (a: signed[2, 3], b: signed[2, 2]) => ops::kron(a, b);
    "outer" [0, 1] (a: signed[3], b: signed[4]) => ops::outer(a, b);
    "tensordot_axes" [0, 1] (a: signed[2, 3, 5], b: signed[5, 3, 2]) => ops::tensordot_axes(a, b, &[1, 2], &[1, 0]);
    "tensordot_axis" [0, 1] (a: signed[3, 4], b: signed[4, 2]) => ops::tensordot_axis(a, b, 1);
    "vecdot" [0, 1] (a: signed[3, 4], b: signed[3, 4]) => ops::vecdot(a, b, -1);
    "hadamard_transform" [0] (x: signed[3, 8]) => x.hadamard_transform(0.5);
    "hadamard_transform[12]" [0] (x: signed[2, 24]) => x.hadamard_transform(0.5);

    "linalg::cross" [0, 1] (a: signed[4, 3], b: signed[4, 3]) => linalg::cross(a, b, None);
    "linalg::norm" [0] (x: signed[3, 4]) => on_cpu(|| linalg::norm(x, 3.0, rows()));
    "linalg::norm_l2" [0] (x: signed[3, 4]) => on_cpu(|| linalg::norm_l2(x, NormOptions::default()));
    "linalg::norm_matrix" [0] (x: signed[3, 4]) => on_cpu(|| linalg::norm_matrix(x, "fro", NormOptions::default()));
    "linalg::cholesky" [] (x: spd[3]) => on_cpu(|| linalg::cholesky(x, None));
    "linalg::cholesky_inv" [] (x: lower[3]) => on_cpu(|| linalg::cholesky_inv(x, None));
    "linalg::det" [0] (x: square[3]) => on_cpu(|| linalg::det(x));
    "linalg::slogdet" [0] (x: square[3]) => on_cpu(|| linalg::slogdet(x).map(|parts| (parts.sign, parts.log_abs_det)));
    "linalg::eig" [] (x: square[3]) => on_cpu(|| linalg::eig(x));
    "linalg::eigvals" [] (x: square[3]) => on_cpu(|| linalg::eigvals(x));
    "linalg::eigh" [] (x: spd[3]) => on_cpu(|| linalg::eigh(x, None));
    "linalg::eigvalsh" [] (x: spd[3]) => on_cpu(|| linalg::eigvalsh(x, None));
    "linalg::inv" [] (x: square[3]) => on_cpu(|| linalg::inv(x));
    "linalg::tri_inv" [] (x: lower[3]) => on_cpu(|| linalg::tri_inv(x, None));
    "linalg::lu" [] (x: square[3]) => on_cpu(|| linalg::lu(x));
    "linalg::lu_factor" [] (x: square[3]) => on_cpu(|| linalg::lu_factor(x));
    "linalg::pinv" [] (x: signed[4, 3]) => on_cpu(|| linalg::pinv(x));
    "linalg::qr" [] (x: signed[4, 3]) => on_cpu(|| linalg::qr(x));
    "linalg::solve" [1] (a: square[3], b: signed[3, 2]) => on_cpu(|| linalg::solve(a, b));
    "linalg::solve_triangular" [1] (a: lower[3], b: signed[3, 2]) => on_cpu(|| linalg::solve_triangular(a, b, None));
    "linalg::svd" [] (x: signed[4, 3]) => on_cpu(|| linalg::svd(x));
}

fn on_cpu<T>(call: impl FnOnce() -> T) -> T {
    with_stream(&Stream::cpu(), call)
}

fn rows() -> NormOptions {
    NormOptions { axes: Axes::Axis(-1), keep_dims: true }
}
