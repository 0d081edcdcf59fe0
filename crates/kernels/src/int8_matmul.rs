//! Products with activations in 8 bits: faster than floats, and less exact.
//!
//! A row of `x` becomes integers from -127 to 127 in units of its largest magnitude over 127. A table of values becomes
//! integers in units of its largest magnitude over whichever of 64 to 127 rounds them least; signed codes are integers
//! already. Products of integers are summed exactly over the elements of a row that
//! share a scale, at most [`STEP`] at a time; each such sum is rounded to `f32`, multiplied by the scale and added, from
//! the front of the row to its end, and the result multiplied by the two units. Every instruction set computes the
//! same integers and rounds in the same places.

use std::sync::{Mutex, PoisonError};

use crate::{
    Codes, Floats, FloatsMut, Isa, KernelError, Matrix, Order, Orientation, encode,
    encode::Format,
    int8::{Int8, Scale},
    matrix::{check_length, product},
    simd::{Kernel, Simd, run},
    threads,
};

/// Multiplies `x: [m, k]` with the transpose of `matrix: [n, k]` into `out: [m, n]`, rounding `x` to 8 bits.
///
/// The codes of `matrix` are a table of 4 bits or signed bytes, without biases. An element of `x` is rounded to within
/// 1/254 of the largest of its row, and a value of the table to within 1/128 of the table's. On normally distributed
/// `x` and NF4 weights the result differs from that of [`matmul`](crate::matmul) by about 3e-3 of its largest magnitude in
/// the root mean square, and by 1e-2 at worst in blocks of 64. A row of `x` with a NaN or an infinity gives a row of NaN.
///
/// The result has the same bits on every instruction set and for every number of threads.
///
/// ```
/// use tacit_kernels::{Codes, Matrix, Orientation, Scales, int8_matmul};
///
/// let codes = Codes::Signed { codes: &[127, 0, 0, 127] };
/// let matrix = Matrix { n: 2, k: 2, codes, scales: Scales::F32(&[1.0 / 127.0; 2]), biases: None, block: 2 };
/// let mut y = [0.0; 2];
/// int8_matmul(&[1.0, 0.5][..], 1, &matrix, Orientation::Transposed, &mut y[..])?;
/// assert!(y[0] == 1.0 && (y[1] - 0.5).abs() < 1.0 / 254.0);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// Other codes, biases, [`Orientation::Plain`], a matrix whose lengths do not match its sizes, or a wrong length of `x`
/// or `out`.
pub fn int8_matmul<'x, 'o>(
    x: impl Into<Floats<'x>>,
    m: usize,
    matrix: &Matrix,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    int8_matmul_with(Isa::detect(), x, m, matrix, orientation, out)
}

/// [`int8_matmul`] with the instruction set given.
pub fn int8_matmul_with<'x, 'o>(
    isa: Isa,
    x: impl Into<Floats<'x>>,
    m: usize,
    matrix: &Matrix,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    isa.check()?;
    matrix.check()?;
    if orientation != Orientation::Transposed {
        return Err(KernelError::Int8 { what: "the plain orientation" });
    }
    if matrix.biases.is_some() {
        return Err(KernelError::Int8 { what: "biases" });
    }
    let weights = Weights::new(&matrix.codes)?;
    let (x, out) = (x.into(), out.into());
    check_length("x", x.len(), product(m, matrix.k)?, "`m` rows as long as the rows of the matrix")?;
    let results = product(m, matrix.n)?;
    out.check(results, "`m` rows of one number for each row of the matrix")?;
    let mut rows = Rows::new(isa, &x.widen(), matrix.k);
    rows.units.iter_mut().for_each(|unit| *unit *= weights.unit);
    match out {
        FloatsMut::F32(out) => multiply(isa, &rows, matrix, &weights, out),
        narrow => {
            let mut y = vec![0.0; results];
            multiply(isa, &rows, matrix, &weights, &mut y);
            narrow.store(&y);
        }
    }
    Ok(())
}

/// Elements of a row whose products are summed before they are scaled, at most. Below 2^10 every such sum is an `f32`.
pub(crate) const STEP: usize = 512;

/// A matrix's codes as integers.
pub(crate) struct Weights<'a> {
    pub(crate) codes: Integers<'a>,
    /// What an integer is worth, in units of its block's scale.
    unit: f32,
}

pub(crate) enum Integers<'a> {
    Table { bytes: &'a [u8], order: Order, values: [i8; 16] },
    Signed(&'a [i8]),
}

impl<'a> Weights<'a> {
    fn new(codes: &Codes<'a>) -> Result<Self, KernelError> {
        match *codes {
            Codes::Table { bytes, bits: 4, order, values } => {
                let (values, unit) = round_table(values);
                Ok(Self { codes: Integers::Table { bytes, order, values }, unit })
            }
            Codes::Signed { codes } => Ok(Self { codes: Integers::Signed(codes), unit: 1.0 }),
            Codes::Table { .. } => Err(KernelError::Int8 { what: "tables of fewer than 4 bits" }),
            Codes::Unsigned { .. } => Err(KernelError::Int8 { what: "unsigned codes" }),
            Codes::E4m3 { .. } => Err(KernelError::Int8 { what: "E4M3 codes" }),
        }
    }
}

/// The integers nearest to a table's values in the unit that the squares of their errors are least in, and the unit.
fn round_table(values: &[f32; 16]) -> ([i8; 16], f32) {
    let top = f64::from(encode::absmax(values));
    let round = |steps: u8| values.map(|value| (f64::from(value) * (f64::from(steps) / top)).round_ties_even());
    let error = |steps: u8| -> f64 {
        let exact = values.iter().map(|value| f64::from(*value) / top);
        exact.zip(round(steps)).map(|(value, integer)| (value - integer / f64::from(steps)).powi(2)).sum()
    };
    // A table of zeros, or with a NaN, has no error that compares; any number of steps will do.
    let steps = (64..=127).min_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap_or(127);
    (round(steps).map(|integer| integer as i8), (top / f64::from(steps)) as f32)
}

/// Activations as integers.
pub(crate) struct Rows {
    /// `[m, k]`.
    pub(crate) codes: Vec<i8>,
    /// What a sum of products is worth in each row, in units of the block's scale.
    pub(crate) units: Vec<f32>,
}

impl Rows {
    fn new(isa: Isa, x: &[f32], k: usize) -> Self {
        let mut rows = Self { codes: vec![0; x.len()], units: vec![0.0; x.len().checked_div(k).unwrap_or(0)] };
        let k = k.max(1);
        let each = ROUNDED.div_ceil(k);
        let tasks = rows.units.len().div_ceil(each);
        let parts = rows.codes.chunks_mut(each * k).zip(rows.units.chunks_mut(each)).zip(x.chunks(each * k));
        let parts = Mutex::new(parts);
        threads::for_each(tasks, |_| {
            let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            if let Some(((codes, units), x)) = part {
                run(isa, Round { x, k, codes, units });
            }
        });
        rows
    }
}

/// Elements that one task rounds, about.
const ROUNDED: usize = 1 << 14;

struct Round<'a> {
    x: &'a [f32],
    k: usize,
    codes: &'a mut [i8],
    units: &'a mut [f32],
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for ((x, codes), unit) in self.x.chunks(self.k).zip(self.codes.chunks_mut(self.k)).zip(self.units) {
            let most = encode::absmax(x);
            if !most.is_finite() {
                *unit = f32::NAN;
                continue;
            }
            let scale = Scale::new(most);
            *unit = scale.unit;
            for (code, x) in codes.iter_mut().zip(x) {
                *code = Int8.code(scale, *x).cast_signed();
            }
        }
    }
}

fn multiply(isa: Isa, rows: &Rows, matrix: &Matrix, weights: &Weights, y: &mut [f32]) {
    let (m, n, k) = (rows.units.len(), matrix.n, matrix.k);
    if y.is_empty() || k == 0 {
        y.fill(0.0);
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if matches!(isa, Isa::Avx512 | Isa::Amx) && crate::vnni::multiply(isa, rows, matrix, weights, y) {
        return;
    }
    // By rows of the matrix, each of which is decoded once.
    let mut turned = vec![0.0; m * n];
    let each = (1_usize << 16).div_ceil(k * m).clamp(1, n.div_ceil(4 * threads::count()));
    let parts = Mutex::new(turned.chunks_mut(each * m).enumerate());
    threads::for_each(n.div_ceil(each), |_| {
        let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        if let Some((at, turned)) = part {
            run(isa, ByRows { rows, matrix, weights, first: at * each, turned });
        }
    });
    for (i, (y, unit)) in y.chunks_mut(n).zip(&rows.units).enumerate() {
        for (j, y) in y.iter_mut().enumerate() {
            *y = turned[j * m + i] * unit;
        }
    }
}

/// Rows of a matrix against all rows of activations, in any layout.
struct ByRows<'a> {
    rows: &'a Rows,
    matrix: &'a Matrix<'a>,
    weights: &'a Weights<'a>,
    first: usize,
    /// `[rows of the matrix, m]`.
    turned: &'a mut [f32],
}

impl Kernel for ByRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { rows, matrix, weights, first, turned } = self;
        let k = matrix.k;
        let mut row = vec![0_i8; k];
        for (r, out) in turned.chunks_mut(rows.units.len()).enumerate() {
            let start = (first + r) * k;
            match &weights.codes {
                Integers::Signed(codes) => row.copy_from_slice(&codes[start..start + k]),
                Integers::Table { bytes, order, values } => {
                    for (e, value) in (start..).zip(&mut row) {
                        let high = (e % 2 == 0) == (*order == Order::HighFirst);
                        let byte = bytes[e / 2];
                        *value = values[usize::from(if high { byte >> 4 } else { byte & 15 })];
                    }
                }
            }
            for (out, x) in out.iter_mut().zip(rows.codes.chunks_exact(k)) {
                let mut at = 0;
                while at < k {
                    let block = (start + at) / matrix.block;
                    let end = ((block + 1) * matrix.block - start).min((at / STEP + 1) * STEP).min(k);
                    let products = x[at..end].iter().zip(&row[at..end]);
                    let sum: i32 = products.map(|(x, w)| i32::from(*x) * i32::from(*w)).sum();
                    *out += sum as f32 * matrix.scales.get(block);
                    at = end;
                }
            }
        }
    }
}
