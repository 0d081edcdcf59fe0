//! The orthonormal Hadamard transform of rows.

use crate::{
    Floats, FloatsMut, Isa, KernelError,
    output::Output,
    simd::{Kernel, Simd, run},
    threads,
};

/// Columns that the small matrix is applied to at a time.
const COLUMNS: usize = 16;

/// The largest order of a small matrix.
const LARGEST: usize = 148;

/// Writes `x H` into `out`, both rows of `n` elements, where `H` is orthonormal and symmetric, and so its own inverse.
///
/// `H` is `M (x) S`, divided by `sqrt(n)`: `S` is Sylvester's matrix of the largest power of two beside which
/// [`hadamard_order`] finds an order for `M`, [`hadamard_matrix`] of that order. Sums are taken in `f32` in an order that
/// depends on `n` alone.
///
/// ```
/// use tacit_kernels::hadamard;
///
/// let mut y = [0f32; 4];
/// hadamard(&[3f32, 0.0, 0.0, 1.0][..], 4, &mut y[..])?;
/// assert_eq!(y, [2.0, 1.0, 1.0, 2.0]);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// There is no such matrix of order `n`, `x` is not whole rows, or `out` is not as long.
pub fn hadamard<'a>(x: impl Into<Floats<'a>>, n: usize, out: impl Into<FloatsMut<'a>>) -> Result<(), KernelError> {
    let (x, out) = (x.into(), out.into());
    let order = hadamard_order(n).ok_or(KernelError::Hadamard { n })?;
    let rows = x.len() / n;
    crate::matrix::check_length("x", x.len(), rows * n, "rows are whole")?;
    out.check(x.len(), "one for each element of `x`")?;
    let (isa, matrix) = (Isa::detect(), hadamard_matrix(order));
    let x = x.widen();
    Output::rounded(out, n).for_each(usize::MAX, threads::per_task(n), n, &|mut part| {
        for at in part.rows() {
            let row = part.row(at);
            row.copy_from_slice(&x[at * n..(at + 1) * n]);
            run(isa, Row { order, matrix: &matrix, x: row });
        }
    });
    Ok(())
}

/// The order of the small matrix in the transform of rows of `n`: 1 for a power of two, 12, 20, 28, 36, 60, .. for its
/// multiples by powers of two; `None` where there is no transform.
///
/// The odd part of `n` is 1; or four times it is `2(q + 1)` for a prime `q`, or for the square of one, and divides `n`.
#[must_use]
pub fn hadamard_order(n: usize) -> Option<usize> {
    if n == 0 {
        return None;
    }
    let (odd, twos) = (n >> n.trailing_zeros(), n.trailing_zeros());
    let order = if odd == 1 { 1 } else { odd.checked_mul(4)? };
    (order == 1 || twos >= 2 && order <= LARGEST && Field::new(order / 2 - 1).is_some()).then_some(order)
}

/// The symmetric matrix of ones and minus ones of this order, row-major, whose rows are orthogonal: Paley's second
/// construction, from the squares of the field of `order / 2 - 1` elements.
///
/// An order that [`hadamard_order`] does not give has none here, and the matrix is empty.
///
/// Paley, "On orthogonal matrices", Journal of Mathematics and Physics 12 (1933).
#[must_use]
pub fn hadamard_matrix(order: usize) -> Vec<f32> {
    if order == 1 {
        return vec![1.0];
    }
    let half = order / 2;
    let Some(field) = half.checked_sub(1).and_then(Field::new).filter(|_| order == 2 * half) else { return Vec::new() };
    let squares = field.squares();
    let sign = |plus: bool| if plus { 1.0 } else { -1.0 };
    // The symmetric conference matrix: zero on the diagonal, ones along the first row and column.
    let conference = |i: usize, j: usize| match (i, j) {
        _ if i == j => 0.0,
        (0, _) | (_, 0) => 1.0,
        (i, j) => sign(squares[field.difference(i - 1, j - 1)]),
    };
    let mut matrix = Vec::with_capacity(order * order);
    for i in 0..order {
        for j in 0..order {
            let c = conference(i / 2, j / 2);
            // `C (x) [[1, 1], [1, -1]] + I (x) [[1, -1], [-1, -1]]`
            matrix.push(match (i % 2, j % 2) {
                _ if c == 0.0 => sign(i % 2 == 0 && j % 2 == 0),
                (1, 1) => -c,
                _ => c,
            });
        }
    }
    matrix
}

/// A field of `p` or `p^2` elements, one more than a multiple of four; an element `a + b i` is the number `a + p b`.
struct Field {
    p: usize,
    /// What the square of `i` is, in a field of `p^2` elements.
    square: Option<usize>,
}

impl Field {
    fn new(q: usize) -> Option<Self> {
        let prime = |p: usize| p > 1 && (2..p).take_while(|d| d * d <= p).all(|d| !p.is_multiple_of(d));
        let root = q.isqrt();
        match q % 4 == 1 {
            true if prime(q) => Some(Self { p: q, square: None }),
            true if root * root == q && prime(root) => {
                let field = Self { p: root, square: None };
                let squares = field.squares();
                Some(Self { square: (2..root).find(|&a| !squares[a]), ..field })
            }
            _ => None,
        }
    }

    fn elements(&self) -> usize {
        if self.square.is_some() { self.p * self.p } else { self.p }
    }

    fn difference(&self, x: usize, y: usize) -> usize {
        let p = self.p;
        let part = |a: usize, b: usize| (a + p - b) % p;
        part(x % p, y % p) + p * part(x / p, y / p)
    }

    fn squares(&self) -> Vec<bool> {
        let p = self.p;
        let mut squares = vec![false; self.elements()];
        for x in 0..self.elements() {
            let (a, b) = (x % p, x / p);
            squares[(a * a + b * b * self.square.unwrap_or(0)) % p + p * (2 * a * b % p)] = true;
        }
        squares
    }
}

struct Row<'a> {
    order: usize,
    matrix: &'a [f32],
    x: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    // Plain loops, which are compiled for the vectors of each instruction set.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { order, matrix, x } = self;
        let n = x.len();
        for block in x.chunks_exact_mut(n / order) {
            sylvester(block);
        }
        if order > 1 {
            multiply(matrix, order, x);
        }
        let scale = 1.0 / (n as f32).sqrt();
        for element in x {
            *element *= scale;
        }
    }
}

/// The butterflies of a power of two.
#[inline(always)]
fn sylvester(block: &mut [f32]) {
    let mut half = 1;
    // Three steps at a time where they lie in a vector.
    if block.len() >= 8 {
        for eight in block.chunks_exact_mut(8) {
            let [a, b, c, d, e, f, g, h] = *eight else { continue };
            let [a, b, c, d, e, f, g, h] = [a + b, a - b, c + d, c - d, e + f, e - f, g + h, g - h];
            let [a, b, c, d, e, f, g, h] = [a + c, b + d, a - c, b - d, e + g, f + h, e - g, f - h];
            eight.copy_from_slice(&[a + e, b + f, c + g, d + h, a - e, b - f, c - g, d - h]);
        }
        half = 8;
    }
    while half < block.len() {
        for pair in block.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// The small matrix times the row as `[order, n / order]`.
#[inline(always)]
fn multiply(matrix: &[f32], order: usize, row: &mut [f32]) {
    let power = row.len() / order;
    let mut panel = [[0f32; COLUMNS]; LARGEST];
    let mut column = 0;
    while column < power {
        let width = COLUMNS.min(power - column);
        for (i, part) in panel[..order].iter_mut().enumerate() {
            part[..width].copy_from_slice(&row[i * power + column..][..width]);
        }
        for i in 0..order {
            let mut sums = [0f32; COLUMNS];
            for (part, sign) in panel[..order].iter().zip(&matrix[i * order..]) {
                for (sum, x) in sums.iter_mut().zip(part) {
                    *sum += sign * x;
                }
            }
            row[i * power + column..][..width].copy_from_slice(&sums[..width]);
        }
        column += width;
    }
}
