//! The gradients of stored matrices for their scales and biases, where those of the matrices are products that are not built.

use crate::{
    Dense, Factors, Isa, KernelError, Matrix, Operand, Orientation, Scales, Stack,
    decode::decoder,
    dense_matmul::dense_matmul,
    gather_matmul::{check_range, gathered},
    matrix::{check_length, check_size, product},
    threads,
    unit::Decode,
};

/// The gradient of a stack of matrices, as sums of outer products: that of matrix `i` is the sum of `left[e]^T right[e]` over the
/// entries `e` with `matrices[e] = i`.
///
/// Of `y = x W^T` the left side is the cotangent of `y`, and the right one is `x`; of `y = x W` it is the other way round.
#[derive(Clone, Copy, Debug)]
pub struct OuterProducts<'a> {
    /// Rows of an entry.
    pub rows: usize,
    /// `[entries, rows, n]`, for matrices `[n, k]`.
    pub left: &'a [f32],
    /// `[entries, rows, k]`.
    pub right: &'a [f32],
    /// The matrix of each entry.
    pub matrices: &'a [u32],
}

/// Writes the gradient of each block's scale, the sum of `g q` over its elements, and of its bias, the sum of `g`, where `q` is the
/// value of a code and `g` the `gradient` of its element.
///
/// The codes are constants, so that scales and biases are all that a matrix depends on, and it is linear in them: their values are
/// not looked at. A part of the gradient of the matrix is there at a time. Sums over a part are taken in `f64`.
///
/// ```
/// use tacit_kernels::{Codes, Matrix, OuterProducts, Scales, Stack, product_scale_gradients};
///
/// // The gradient of the matrix is [2, 5].
/// let gradient = OuterProducts { rows: 1, left: &[1.0], right: &[2.0, 5.0], matrices: &[0] };
/// let codes = Codes::Signed { codes: &[1, 3] };
/// let matrix = Matrix { n: 1, k: 2, codes, scales: Scales::One, biases: None, block: 2 };
/// let (mut of_scales, mut of_biases) = ([0.0], [0.0]);
/// product_scale_gradients(&Stack { matrix, count: 1 }, &gradient, &mut of_scales, &mut of_biases)?;
/// assert_eq!((of_scales, of_biases), ([17.0], [7.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A wrong length, or an entry of a matrix that is not there.
pub fn product_scale_gradients(
    stack: &Stack,
    gradient: &OuterProducts,
    of_scales: &mut [f32],
    of_biases: &mut [f32],
) -> Result<(), KernelError> {
    let &Stack { matrix, count } = stack;
    let elements = matrix.check()?;
    let (n, k) = (matrix.n.checked_div(count).unwrap_or(0), matrix.k);
    check_size("matrix.n", matrix.n, n * count, "rows of a stack of matrices, all of which have as many")?;
    gradient.check([n, k], count)?;
    let blocks = elements.div_ceil(matrix.block);
    for (name, length) in [("of_scales", of_scales.len()), ("of_biases", of_biases.len())] {
        check_length(name, length, blocks, "each block of elements has one")?;
    }
    of_scales.fill(0.0);
    of_biases.fill(0.0);
    if elements == 0 || gradient.rows == 0 {
        return Ok(());
    }
    let mut order: Vec<usize> = (0..gradient.matrices.len()).collect();
    order.sort_by_key(|&entry| gradient.matrices[entry]);
    let isa = Isa::detect();
    let units = Matrix { scales: Scales::One, biases: None, block: elements, ..matrix };
    let mut outcome = Ok(());
    decoder(isa, &units, &mut |codes| {
        let mut sums = Sums { isa, codes, block: matrix.block, of_scales: &mut *of_scales, of_biases: &mut *of_biases };
        let same = |&a: &usize, &b: &usize| gradient.matrices[a] == gradient.matrices[b];
        outcome = order.chunk_by(same).try_for_each(|entries| {
            let first = gradient.matrices[entries[0]] as usize * n;
            gradient.for_each_part(entries, [n, k], |row, part| sums.add((first + row) * k, part))
        });
    });
    outcome
}

/// Elements of the gradient of a matrix that are there at a time, about.
const PART: usize = 1 << 20;

/// The fewest rows of a part: each part brings the right side into the order of the product anew.
const ROWS: usize = 16;

impl OuterProducts<'_> {
    fn check(&self, [n, k]: [usize; 2], count: usize) -> Result<(), KernelError> {
        let rows = product(self.matrices.len(), self.rows)?;
        check_length("left", self.left.len(), product(rows, n)?, "[entries, rows, n]")?;
        check_length("right", self.right.len(), product(rows, k)?, "[entries, rows, k]")?;
        check_range(self.matrices, count)
    }

    /// Calls `f` with the gradient of a matrix, that of these entries: with some of its rows at a time, and the first of them.
    fn for_each_part(
        &self,
        entries: &[usize],
        [n, k]: [usize; 2],
        mut f: impl FnMut(usize, &[f32]),
    ) -> Result<(), KernelError> {
        let (left, right) = (gathered(self.left, entries, self.rows * n), gathered(self.right, entries, self.rows * k));
        let depth = entries.len() * self.rows;
        let right = Dense { values: &*right, rows: depth, columns: k, stride: k };
        let right = Operand { matrix: right, orientation: Orientation::Plain };
        let step = (PART / k).max(ROWS).min(n);
        let mut part = vec![0.0; step * k];
        for start in (0..n).step_by(step) {
            let rows = step.min(n - start);
            let values = &left[start..][..(depth - 1) * n + rows];
            let left = Dense { values, rows: depth, columns: rows, stride: n };
            let left = Operand { matrix: left, orientation: Orientation::Transposed };
            let part = &mut part[..rows * k];
            dense_matmul(left, right, Dense { values: &mut *part, rows, columns: k, stride: k }, Factors::default())?;
            f(start, part);
        }
        Ok(())
    }
}

struct Sums<'a> {
    isa: Isa,
    /// The values of the codes.
    codes: &'a dyn Decode,
    block: usize,
    of_scales: &'a mut [f32],
    of_biases: &'a mut [f32],
}

impl Sums<'_> {
    /// Adds what the gradients of the elements from `start` on are to their blocks.
    fn add(&mut self, start: usize, gradient: &[f32]) {
        let &mut Self { isa, codes, block, .. } = self;
        let end = start + gradient.len();
        let blocks = start / block..(end - 1) / block + 1;
        // Where a block begins, if that is among these elements.
        let begin = |at: usize| at.saturating_mul(block).clamp(start, end);
        let per_task = threads::per_task(block);
        let of_scales = self.of_scales[blocks.clone()].chunks_mut(per_task);
        let parts = of_scales.zip(self.of_biases[blocks.clone()].chunks_mut(per_task)).enumerate();
        threads::for_each_part(usize::MAX, parts, &|(task, (of_scales, of_biases))| {
            let first = blocks.start + task * per_task;
            let from = begin(first);
            let mut values = vec![0.0; begin(first + of_scales.len()) - from];
            codes.decode(isa, from, &mut values, 0);
            for (at, (of_scale, of_bias)) in (first..).zip(of_scales.iter_mut().zip(of_biases)) {
                let range = begin(at)..begin(at + 1);
                let values = &values[range.start - from..range.end - from];
                let [scale, bias] = summed(&gradient[range.start - start..range.end - start], values);
                *of_scale += scale as f32;
                *of_bias += bias as f32;
            }
        });
    }
}

/// Sums that are taken beside each other.
const LANES: usize = 8;

/// The sum of the products of both, and that of the first.
fn summed(gradient: &[f32], values: &[f32]) -> [f64; 2] {
    let mut lanes = [[0.0_f64; LANES]; 2];
    let (g_whole, g_rest) = gradient.as_chunks::<LANES>();
    let (q_whole, q_rest) = values.as_chunks::<LANES>();
    let mut add = |lane: usize, g: f32, q: f32| {
        lanes[0][lane] += f64::from(g) * f64::from(q);
        lanes[1][lane] += f64::from(g);
    };
    for (g, q) in g_whole.iter().zip(q_whole) {
        for lane in 0..LANES {
            add(lane, g[lane], q[lane]);
        }
    }
    for (&g, &q) in g_rest.iter().zip(q_rest) {
        add(0, g, q);
    }
    lanes.map(|lanes| lanes.iter().sum())
}
