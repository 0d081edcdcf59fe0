//! Floats as integers from -127 to 127 for products of integers: each row, or each column, in units of its largest magnitude
//! over 127.

use crate::{
    Floats, Isa, KernelError, Orientation,
    copy::{Block, copy},
    encode,
    int8::{self, Int8, Scale},
    machine::threads_for,
    matrix::{check_length, product},
    simd::{Kernel, Simd, run},
    threads,
};

/// How a matrix of floats becomes rows of integers of 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Int8Rounding<'a> {
    /// Columns of the matrix.
    pub columns: usize,
    /// Its own rows, if [`Plain`](Orientation::Plain), or those of its transpose.
    pub orientation: Orientation,
    /// What the elements of such a row are multiplied by first, one for each.
    pub factors: Option<&'a [f32]>,
}

impl Int8Rounding<'_> {
    /// Writes the integers of each row to `codes`, row after row, and what an integer of a row is worth to `units`.
    ///
    /// A row with a NaN or an infinity has a unit of NaN, and zeros; one of zeros has a unit of zero. An element is rounded to the
    /// nearest integer, ties to even, as [`int8_matmul`](crate::int8_matmul) does.
    ///
    /// ```
    /// use tacit_kernels::{Int8Rounding, Orientation};
    ///
    /// let (mut codes, mut units) = ([0; 4], [0.0; 2]);
    /// let rows = Int8Rounding { columns: 2, orientation: Orientation::Plain, factors: None };
    /// rows.round(&[127.0, -1.0, 254.0, 64.0][..], &mut codes, &mut units)?;
    /// assert_eq!((codes, units), ([127, -1, 127, 32], [1.0, 2.0]));
    ///
    /// let columns = Int8Rounding { orientation: Orientation::Transposed, factors: Some(&[1.0, 0.5]), ..rows };
    /// columns.round(&[127.0, -1.0, 254.0, 254.0][..], &mut codes, &mut units)?;
    /// assert_eq!((codes, units), ([127, 127, -1, 127], [1.0, 1.0]));
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A wrong length.
    pub fn round<'x>(&self, x: impl Into<Floats<'x>>, codes: &mut [i8], units: &mut [f32]) -> Result<(), KernelError> {
        let (isa, x) = (Isa::detect(), x.into());
        let &Self { columns, orientation, factors } = self;
        let (rows, length) = match orientation {
            Orientation::Plain => (units.len(), columns),
            Orientation::Transposed => (columns, x.len().checked_div(columns).unwrap_or(0)),
        };
        check_length("units", units.len(), rows, "one for each column of `x`")?;
        check_length("x", x.len(), product(rows, length)?, "whole rows, and as many as there are units by rows")?;
        check_length("codes", codes.len(), x.len(), "one for each element of `x`")?;
        if let Some(factors) = factors {
            check_length("factors", factors.len(), length, "one for each element of a row of integers")?;
        }
        match orientation {
            _ if x.is_empty() => units.fill(0.0),
            Orientation::Plain => round_rows(isa, &x, factors, codes, units),
            Orientation::Transposed => round_columns(isa, &x.widen(), factors, codes, units),
        }
        Ok(())
    }
}

/// Elements that one task rounds, about.
const ROUNDED: usize = 1 << 14;

/// Rounds rows, of which there are as many as units.
pub(crate) fn round_rows(isa: Isa, x: &Floats, factors: Option<&[f32]>, codes: &mut [i8], units: &mut [f32]) {
    let k = x.len().checked_div(units.len()).unwrap_or(0).max(1);
    let rows = ROUNDED.div_ceil(k);
    let parts = codes.chunks_mut(rows * k).zip(units.chunks_mut(rows)).enumerate();
    let threads = threads_for(x.len() as f64);
    threads::for_each_part(threads, parts, &|(i, (codes, units))| {
        let mut x = x.part(i * rows * k..i * rows * k + codes.len()).widen();
        if let Some(factors) = factors {
            x.to_mut().chunks_mut(k).for_each(|row| multiply(row, factors));
        }
        run(isa, Round { x: &x, k, codes, units });
    });
}

/// Columns that one task rounds: their elements in a row are two cache lines.
const COLUMNS: usize = 32;

/// Floats of the longest vector.
const VECTOR: usize = 16;

/// Rounds the columns of a matrix that has elements, of which there are as many as units.
fn round_columns(isa: Isa, x: &[f32], factors: Option<&[f32]>, codes: &mut [i8], units: &mut [f32]) {
    let columns = units.len();
    let rows = x.len() / columns;
    let length = rows.next_multiple_of(VECTOR);
    let parts = codes.chunks_mut(COLUMNS * rows).zip(units.chunks_mut(COLUMNS)).enumerate();
    let threads = threads_for(2.0 * x.len() as f64);
    threads::for_each_part(threads, parts, &|(i, (codes, units))| {
        let mut panel = vec![0.0; units.len() * length];
        let (from, to) = (x[i * COLUMNS..].as_ptr(), panel.as_mut_ptr());
        let block = Block { from, stride: columns, rows, columns: units.len(), to, to_stride: length, next: 0 };
        // SAFETY: the machine has `isa`, the columns lie in `x`, and those of the panel are whole vectors.
        unsafe { copy(isa, block, Orientation::Transposed) };
        for ((column, codes), unit) in panel.chunks_mut(length).zip(codes.chunks_mut(rows)).zip(units.chunks_mut(1)) {
            let column = &mut column[..rows];
            if let Some(factors) = factors {
                multiply(column, factors);
            }
            run(isa, Round { x: column, k: rows, codes, units: unit });
        }
    });
}

fn multiply(row: &mut [f32], factors: &[f32]) {
    row.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
}

/// Rows whose largest magnitude is below this are rounded as so many times as large: 2^-110, and 2^64.
const TINY: f32 = 7.703_72e-34;
const GROWN: f32 = 18_446_744_073_709_551_616.0;

struct Round<'a> {
    x: &'a [f32],
    k: usize,
    codes: &'a mut [i8],
    units: &'a mut [f32],
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for ((x, codes), unit) in self.x.chunks(self.k).zip(self.codes.chunks_mut(self.k)).zip(self.units) {
            let absmax = encode::absmax(simd, x);
            if !absmax.is_finite() {
                *unit = f32::NAN;
                codes.fill(0);
                continue;
            }
            if absmax > 0.0 && absmax < TINY {
                // 127 over the magnitude is no float.
                let x: Vec<f32> = x.iter().map(|x| x * GROWN).collect();
                let scale = Scale::new(absmax * GROWN);
                *unit = scale.unit / GROWN;
                encode::put::<Int8, S>((), simd, scale, &x, int8::as_bytes(codes));
                continue;
            }
            let scale = Scale::new(absmax);
            *unit = scale.unit;
            encode::put::<Int8, S>((), simd, scale, x, int8::as_bytes(codes));
        }
    }
}
