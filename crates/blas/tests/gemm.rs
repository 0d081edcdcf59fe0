//! The exported BLAS functions, by their C names, against plain loops.

use std::{
    env,
    ffi::{c_int, c_void},
    io::pipe,
    ops::{Add, Mul},
    process::{Command, Stdio},
};

use random::Random;
use tacit_blas as _;
use tacit_kernels::threads;

#[path = "../../kernels/tests/it/random.rs"]
mod random;

// Declared, not imported: what a foreign library links to.
unsafe extern "C" {
    #[rustfmt::skip]
    fn cblas_sgemm(
        order: c_int,
        ta: c_int,
        tb: c_int,
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
    );
    #[rustfmt::skip]
    fn cblas_dgemm(
        order: c_int,
        ta: c_int,
        tb: c_int,
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
    );
    #[rustfmt::skip]
    fn cblas_cgemm(
        order: c_int,
        ta: c_int,
        tb: c_int,
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
    );
}

const ROW_MAJOR: c_int = 101;
const COLUMN_MAJOR: c_int = 102;
const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;
const CONJUGATED: c_int = 113;

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Complex(f64, f64);

impl Add for Complex {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }
}

impl Mul for Complex {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self(self.0 * other.0 - self.1 * other.1, self.0 * other.1 + self.1 * other.0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    order: c_int,
    ta: c_int,
    tb: c_int,
    m: usize,
    n: usize,
    k: usize,
    padding: usize,
}

impl Shape {
    /// Leading dimension and stored length of a matrix of these logical sizes.
    fn layout(&self, trans: c_int, rows: usize, columns: usize) -> (usize, usize) {
        let (outer, inner) =
            if (trans == PLAIN) == (self.order == ROW_MAJOR) { (rows, columns) } else { (columns, rows) };
        let ld = inner.max(1) + self.padding;
        (ld, (outer * ld).max(1))
    }

    fn at(&self, trans: c_int, ld: usize, row: usize, column: usize) -> usize {
        if (trans == PLAIN) == (self.order == ROW_MAJOR) { row * ld + column } else { column * ld + row }
    }
}

/// Runs `gemm` on numbers from N(0, 1) and compares with loops in double precision.
fn check<T: Copy + PartialEq + std::fmt::Debug>(
    shape: Shape,
    (alpha, beta): (Complex, Complex),
    tolerance: f64,
    (number, value): (impl Fn(Complex) -> T, impl Fn(T) -> Complex),
    gemm: impl Fn(Shape, &[T], usize, &[T], usize, &mut [T], usize),
) {
    let Shape { ta, tb, m, n, k, .. } = shape;
    let mut random = Random::new((m * 10_000 + n * 100 + k) as u64);
    let mut fill = |len: usize| -> Vec<T> {
        let parts = random.normal(2 * len);
        parts.chunks(2).map(|p| number(Complex(f64::from(p[0]), f64::from(p[1])))).collect()
    };
    let ((lda, len_a), (ldb, len_b), (ldc, len_c)) =
        (shape.layout(ta, m, k), shape.layout(tb, k, n), shape.layout(PLAIN, m, n));
    let (a, b, before) = (fill(len_a), fill(len_b), fill(len_c));
    let mut c = before.clone();
    let zero = beta == Complex(0.0, 0.0);
    if zero {
        // What must not be read.
        for i in 0..m {
            for j in 0..n {
                c[shape.at(PLAIN, ldc, i, j)] = number(Complex(f64::NAN, f64::NAN));
            }
        }
    }
    gemm(shape, &a, lda, &b, ldb, &mut c, ldc);

    let mut touched = vec![false; len_c];
    let conjugate = |trans, z: Complex| if trans == CONJUGATED { Complex(z.0, -z.1) } else { z };
    for i in 0..m {
        for j in 0..n {
            let mut sum = Complex(0.0, 0.0);
            for l in 0..k {
                let a = conjugate(ta, value(a[shape.at(ta, lda, i, l)]));
                sum = sum + a * conjugate(tb, value(b[shape.at(tb, ldb, l, j)]));
            }
            let at = shape.at(PLAIN, ldc, i, j);
            touched[at] = true;
            let mut expected = alpha * sum;
            if !zero {
                expected = expected + beta * value(before[at]);
            }
            let ours = value(c[at]);
            let near = |ours: f64, expected: f64| (ours - expected).abs() <= tolerance * (k as f64 + 8.0);
            let both = near(ours.0, expected.0) && near(ours.1, expected.1);
            assert!(both, "{shape:?} at {i}, {j}: {ours:?} against {expected:?}");
        }
    }
    for (at, touched) in touched.into_iter().enumerate() {
        assert!(touched || c[at] == before[at], "{shape:?}: padding at {at} was written");
    }
}

#[allow(clippy::type_complexity)]
fn sgemm(alpha: f32, beta: f32) -> impl Fn(Shape, &[f32], usize, &[f32], usize, &mut [f32], usize) {
    move |s, a, lda, b, ldb, c, ldc| {
        let [m, n, k, lda, ldb, ldc] = [s.m, s.n, s.k, lda, ldb, ldc].map(|size| size as c_int);
        // SAFETY: the slices were made for these sizes.
        unsafe {
            cblas_sgemm(
                s.order,
                s.ta,
                s.tb,
                m,
                n,
                k,
                alpha,
                a.as_ptr(),
                lda,
                b.as_ptr(),
                ldb,
                beta,
                c.as_mut_ptr(),
                ldc,
            );
        }
    }
}

fn every_form(check: impl Fn(Shape, (f64, f64))) {
    for order in [ROW_MAJOR, COLUMN_MAJOR] {
        for ta in [PLAIN, TRANSPOSED, CONJUGATED] {
            for tb in [PLAIN, TRANSPOSED, CONJUGATED] {
                for (m, n, k) in
                    [(1, 1, 1), (3, 5, 7), (1, 40, 33), (40, 1, 33), (17, 33, 0), (0, 4, 4), (4, 0, 4), (65, 70, 130)]
                {
                    for padding in [0, 3] {
                        for factors in [(1.0, 0.0), (0.5, 1.0), (-2.0, 0.25), (0.0, 0.5), (0.0, 0.0)] {
                            check(Shape { order, ta, tb, m, n, k, padding }, factors);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn single_precision_is_right_in_every_form() {
    every_form(|shape, (alpha, beta)| {
        let real = (|z: Complex| z.0 as f32, |x: f32| Complex(f64::from(x), 0.0));
        let factors = (Complex(alpha, 0.0), Complex(beta, 0.0));
        check(shape, factors, 2e-6, real, sgemm(alpha as f32, beta as f32));
    });
}

#[test]
fn double_precision_is_right_in_every_form() {
    every_form(|shape, (alpha, beta)| {
        let real = (|z: Complex| z.0, |x: f64| Complex(x, 0.0));
        let factors = (Complex(alpha, 0.0), Complex(beta, 0.0));
        check(shape, factors, 1e-14, real, |s, a: &[f64], lda, b: &[f64], ldb, c: &mut [f64], ldc| {
            let [m, n, k, lda, ldb, ldc] = [s.m, s.n, s.k, lda, ldb, ldc].map(|size| size as c_int);
            // SAFETY: the slices were made for these sizes.
            unsafe {
                cblas_dgemm(
                    s.order,
                    s.ta,
                    s.tb,
                    m,
                    n,
                    k,
                    alpha,
                    a.as_ptr(),
                    lda,
                    b.as_ptr(),
                    ldb,
                    beta,
                    c.as_mut_ptr(),
                    ldc,
                );
            }
        });
    });
}

#[test]
fn complex_numbers_are_right_in_every_form() {
    every_form(|shape, (alpha, beta)| {
        let complex = (|z: Complex| [z.0 as f32, z.1 as f32], |z: [f32; 2]| Complex(f64::from(z[0]), f64::from(z[1])));
        let factors = (Complex(alpha, alpha / 2.0), Complex(beta, -beta));
        check(shape, factors, 4e-6, complex, |s, a: &[[f32; 2]], lda, b: &[[f32; 2]], ldb, c: &mut [[f32; 2]], ldc| {
            let [m, n, k, lda, ldb, ldc] = [s.m, s.n, s.k, lda, ldb, ldc].map(|size| size as c_int);
            let [alpha, beta] = [factors.0, factors.1].map(|z| [z.0 as f32, z.1 as f32]);
            // SAFETY: the slices were made for these sizes, and a pair of floats is a complex number.
            unsafe {
                cblas_cgemm(
                    s.order,
                    s.ta,
                    s.tb,
                    m,
                    n,
                    k,
                    alpha.as_ptr().cast(),
                    a.as_ptr().cast(),
                    lda,
                    b.as_ptr().cast(),
                    ldb,
                    beta.as_ptr().cast(),
                    c.as_mut_ptr().cast(),
                    ldc,
                );
            }
        });
    });
}

#[test]
#[allow(clippy::float_cmp)]
fn illegal_arguments_leave_the_output_alone() {
    let good = [ROW_MAJOR, PLAIN, PLAIN, 2, 2, 2, 2, 2, 2];
    for (position, bad) in [(0, 0), (1, 110), (2, 114), (3, -1), (4, -1), (5, -1), (6, 1), (7, 1), (8, 1), (6, -7)] {
        let mut args = good;
        args[position] = bad;
        let [order, ta, tb, m, n, k, lda, ldb, ldc] = args;
        let (a, mut c) = ([1.0_f32; 4], [7.0_f32; 4]);
        // SAFETY: the sizes that are legal fit the arrays, and the others are what is tested.
        unsafe { cblas_sgemm(order, ta, tb, m, n, k, 1.0, a.as_ptr(), lda, a.as_ptr(), ldb, 0.0, c.as_mut_ptr(), ldc) };
        assert_eq!(c, [7.0; 4], "argument {position} = {bad}");
    }
    let (a, mut c) = ([1.0_f32; 4], [7.0_f32; 4]);
    let null = std::ptr::null::<f32>();
    // SAFETY: null pointers are what is tested; the rest fits the arrays.
    unsafe {
        cblas_sgemm(ROW_MAJOR, PLAIN, PLAIN, 2, 2, 2, 1.0, null, 2, a.as_ptr(), 2, 0.0, c.as_mut_ptr(), 2);
        cblas_sgemm(ROW_MAJOR, PLAIN, PLAIN, 2, 2, 2, 1.0, a.as_ptr(), 2, null, 2, 0.0, c.as_mut_ptr(), 2);
        cblas_sgemm(ROW_MAJOR, PLAIN, PLAIN, 2, 2, 2, 1.0, a.as_ptr(), 2, a.as_ptr(), 2, 0.0, null.cast_mut(), 2);
        cblas_cgemm(
            ROW_MAJOR,
            PLAIN,
            PLAIN,
            1,
            1,
            1,
            null.cast(),
            a.as_ptr().cast(),
            1,
            a.as_ptr().cast(),
            1,
            a.as_ptr().cast(),
            c.as_mut_ptr().cast(),
            1,
        );
    }
    assert_eq!(c, [7.0; 4]);
}

#[test]
#[allow(clippy::float_cmp)]
fn a_report_that_nobody_can_read_ends_no_program() {
    const CHILD: &str = "TACIT_TEST_BLAS_CHILD";
    if env::var_os(CHILD).is_some() {
        let (a, mut c) = ([1.0_f32; 4], [7.0_f32; 4]);
        let (a, out) = (a.as_ptr(), c.as_mut_ptr());
        // SAFETY: the order is what is illegal; the rest fits the arrays.
        unsafe { cblas_sgemm(0, PLAIN, PLAIN, 2, 2, 2, 1.0, a, 2, a, 2, 0.0, out, 2) };
        assert_eq!(c, [7.0; 4]);
        return;
    }
    let (reader, writer) = pipe().expect("opens");
    drop(reader);
    let mut child = Command::new(env::current_exe().expect("this test"));
    child.args(["--exact", "a_report_that_nobody_can_read_ends_no_program", "--nocapture"]).env(CHILD, "1");
    let output = child.stdout(Stdio::piped()).stderr(writer).output().expect("starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
}

#[test]
fn large_products_carry_the_same_bits_on_any_number_of_threads() {
    for (m, n, k) in [(128, 700, 900), (1, 2048, 1024), (600, 10, 512)] {
        let mut random = Random::new(1);
        let (a, b) = (random.normal(m * k), random.normal(k * n));
        let product = |count| {
            threads::with_count(count, || {
                let mut c = vec![f32::NAN; m * n];
                let shape = Shape { order: ROW_MAJOR, ta: PLAIN, tb: TRANSPOSED, m, n, k, padding: 0 };
                sgemm(1.0, 0.0)(shape, &a, k, &b, k, &mut c, n);
                c
            })
        };
        let one = product(1);
        for count in [2, 5] {
            assert!(one == product(count), "{m} {n} {k} on {count} threads");
        }
    }
}

/// MLX passes on views of files, which begin at any byte.
#[test]
fn operands_may_begin_at_any_address() {
    let (m, n, k) = (9, 33, 20);
    let mut random = Random::new(7);
    let numbers = [m * k, k * n, m * n].map(|size| random.normal(size));
    let mut expected = numbers[2].clone();
    let product = |a: *const f32, b: *const f32, c: *mut f32| {
        let [m, n, k] = [m, n, k].map(|size| size as c_int);
        // SAFETY: the memory is as long as these sizes ask; the address is what is tested.
        unsafe { cblas_sgemm(ROW_MAJOR, PLAIN, PLAIN, m, n, k, 0.5, a, k, b, n, 2.0, c, n) };
    };
    product(numbers[0].as_ptr(), numbers[1].as_ptr(), expected.as_mut_ptr());
    for off in 0..8_usize {
        let shift = |operand: usize| off >> operand & 1;
        let mut bytes: [Vec<u8>; 3] = std::array::from_fn(|operand| {
            let padding = vec![0; shift(operand)];
            padding.into_iter().chain(numbers[operand].iter().flat_map(|number| number.to_ne_bytes())).collect()
        });
        let [a, b, c] = &mut bytes;
        product(a[shift(0)..].as_ptr().cast(), b[shift(1)..].as_ptr().cast(), c[shift(2)..].as_mut_ptr().cast());
        let found = c[shift(2)..].chunks(4).map(|number| f32::from_ne_bytes(number.try_into().unwrap()));
        assert!(found.eq(expected.iter().copied()), "operands {off:03b} are shifted");
    }
}
