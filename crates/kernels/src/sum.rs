//! The sum of a matrix and a thin product, such as that of a weight and an adapter, a piece at a time.

use std::ops::Range;

use crate::{
    Floats, Isa, KernelError, Matrix,
    decode::decoder,
    encode,
    matrix::{check_length, product},
    simd::{Kernel, Simd, run},
    threads,
    unit::Decode,
};

/// The matrix `factors * (base + left right)` of `n` rows of `k` elements, which is never built.
///
/// Of an element first the product is summed, in the order of the rank, then the base is added, then the row's factor
/// multiplies: each step rounded to `f32`, so that neither the machine nor the number of threads changes a bit.
#[derive(Clone, Copy, Debug)]
pub struct Sum<'a> {
    /// Rows.
    pub n: usize,
    /// Elements in a row.
    pub k: usize,
    /// What is added to.
    pub base: Base<'a>,
    /// The columns of `left`, and the rows of `right`.
    pub rank: usize,
    /// `[n, rank]`.
    pub left: &'a [f32],
    /// `[rank, k]`.
    pub right: &'a [f32],
    /// What each row is multiplied by.
    pub factors: Option<&'a [f32]>,
}

/// What a [`Sum`] adds to.
#[derive(Clone, Copy, Debug)]
pub enum Base<'a> {
    /// A matrix in a stored format.
    Stored(Matrix<'a>),
    /// Floats, row-major.
    Dense(Floats<'a>),
}

/// What is done with the elements of a piece, and with the part of an output that is its own.
type OfPiece<'a, P> = dyn Fn(&[f32], P) -> Result<(), KernelError> + Sync + 'a;

/// Writes the elements of a base from a place on.
type Decoded<'a> = dyn Fn(usize, &mut [f32]) + Sync + 'a;

impl Sum<'_> {
    /// Calls `f` with the elements of each piece of `each` elements, of which the last may have fewer, and with what
    /// `parts` has for it; pieces are handed to all threads.
    ///
    /// # Errors
    /// Lengths that do not match the sizes, or an error of `f`, in which the index of an element then counts through the
    /// whole sum.
    pub fn for_each_piece<P: Send>(
        &self,
        each: usize,
        parts: impl Iterator<Item = P>,
        f: &OfPiece<'_, P>,
    ) -> Result<(), KernelError> {
        let elements = self.check()?;
        if each == 0 {
            return Err(KernelError::EmptyBlock);
        }
        let isa = Isa::detect();
        let (mut pieces, mut done) = (Some((0..elements).step_by(each).zip(parts)), Ok(()));
        self.decoded_by(isa, &mut |base| {
            let Some(pieces) = pieces.take() else { return };
            done = threads::try_each_part(pieces, &|(start, part)| {
                let mut piece = vec![0.0; each.min(elements - start)];
                self.write(isa, base, start, &mut piece);
                f(&piece, part).map_err(|mut error| {
                    // A global scale that is NaN fails the pieces before the element that made it so as well.
                    let place = error.element().map_or((true, start), |index| {
                        *index += start;
                        (false, *index)
                    });
                    (place, error)
                })
            });
        });
        done
    }

    /// Writes the length of each row: the root of the sum of its squares.
    ///
    /// # Errors
    /// Lengths that do not match the sizes.
    pub fn norms(&self, out: &mut [f32]) -> Result<(), KernelError> {
        self.of_rows(out, norm)
    }

    /// Writes the largest magnitude of each row; NaN or infinite if an element is.
    ///
    /// # Errors
    /// Lengths that do not match the sizes.
    pub fn absmax(&self, out: &mut [f32]) -> Result<(), KernelError> {
        struct Absmax<'a>(&'a [f32]);
        impl Kernel for Absmax<'_> {
            type Output = f32;
            #[inline(always)]
            fn run<S: Simd>(self, simd: S) -> f32 {
                encode::absmax(simd, self.0)
            }
        }
        let isa = Isa::detect();
        self.of_rows(out, |row| run(isa, Absmax(row)))
    }

    fn of_rows(&self, out: &mut [f32], f: impl Fn(&[f32]) -> f32 + Sync) -> Result<(), KernelError> {
        check_length("out", out.len(), self.n, "one for each row")?;
        if self.k == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let rows = (PIECE / self.k).max(1);
        self.for_each_piece(rows * self.k, out.chunks_mut(rows), &|piece, out| {
            for (row, out) in piece.chunks(self.k).zip(out) {
                *out = f(row);
            }
            Ok(())
        })
    }

    /// The elements of a piece for a quantizer with such blocks: whole ones, in whole bytes.
    #[must_use]
    pub fn piece(&self, block: usize) -> usize {
        encode::chunk(self.n.saturating_mul(self.k), block.max(1))
    }

    fn check(&self) -> Result<usize, KernelError> {
        let elements = product(self.n, self.k)?;
        match self.base {
            Base::Stored(matrix) => {
                check_length("base", matrix.check()?, elements, "as many as the sum has elements")?;
            }
            Base::Dense(floats) => check_length("base", floats.len(), elements, "as many as the sum has elements")?,
        }
        check_length("left", self.left.len(), product(self.n, self.rank)?, "[n, rank]")?;
        check_length("right", self.right.len(), product(self.rank, self.k)?, "[rank, k]")?;
        self.factors.map_or(Ok(()), |factors| check_length("factors", factors.len(), self.n, "one for each row"))?;
        Ok(elements)
    }

    /// Writes the elements from `start`. It has no type parameters, so that it is compiled with this crate's optimization.
    fn write(&self, isa: Isa, base: &Decoded<'_>, start: usize, piece: &mut [f32]) {
        base(start, piece);
        run(isa, Added { sum: self, start, piece });
    }

    /// Calls `then` with what writes the base's elements from a place on.
    fn decoded_by(&self, isa: Isa, then: &mut dyn FnMut(&Decoded<'_>)) {
        match self.base {
            Base::Stored(matrix) => decoder(isa, &matrix, &mut |decoder: &dyn Decode| {
                then(&|start, out| decoder.decode(isa, start, out, AHEAD));
            }),
            Base::Dense(floats) => then(&|start, out| floats.part(start..start + out.len()).widen_into(out)),
        }
    }
}

/// The root of the sum of squares, which is summed in `f64`.
fn norm(x: &[f32]) -> f32 {
    encode::summed(x, |x| f64::from(x) * f64::from(x)).sqrt() as f32
}

/// Elements of a piece of whole rows, unless a row has more.
const PIECE: usize = 1 << 16;

/// Elements between one that is decoded and one that is asked for.
const AHEAD: usize = 4096;

/// Columns whose product is summed at a time.
const COLUMNS: usize = 256;

/// Adds the product to a piece that holds the base, and multiplies by the factors.
struct Added<'a> {
    sum: &'a Sum<'a>,
    start: usize,
    piece: &'a mut [f32],
}

impl Kernel for Added<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { sum: &Sum { k, rank, left, right, factors, .. }, start, piece } = self;
        let mut done = 0;
        while done < piece.len() {
            let (row, column) = ((start + done) / k, (start + done) % k);
            let columns = column..k.min(column + COLUMNS).min(column + piece.len() - done);
            let part = &mut piece[done..done + columns.len()];
            done += part.len();
            add_product(&left[row * rank..(row + 1) * rank], right, k, columns, part);
            if let Some(factors) = factors {
                for x in part {
                    *x *= factors[row];
                }
            }
        }
    }
}

/// Adds the product of a row of the left side with some columns of the right one.
#[inline(always)]
fn add_product(left: &[f32], right: &[f32], k: usize, columns: Range<usize>, out: &mut [f32]) {
    let mut product = [0.0; COLUMNS];
    let product = &mut product[..out.len()];
    let rows = |r: usize| &right[r * k + columns.start..r * k + columns.end];
    let (fours, rest) = left.as_chunks::<4>();
    for (i, &[a, b, c, d]) in fours.iter().enumerate() {
        let (wa, wb, wc, wd) = (rows(4 * i), rows(4 * i + 1), rows(4 * i + 2), rows(4 * i + 3));
        for (j, sum) in product.iter_mut().enumerate() {
            *sum = (((*sum + a * wa[j]) + b * wb[j]) + c * wc[j]) + d * wd[j];
        }
    }
    for (i, a) in rest.iter().enumerate() {
        for (sum, w) in product.iter_mut().zip(rows(4 * fours.len() + i)) {
            *sum += a * w;
        }
    }
    for (x, product) in out.iter_mut().zip(product) {
        *x += *product;
    }
}
