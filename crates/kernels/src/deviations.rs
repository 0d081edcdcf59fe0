//! How far a stored matrix is from the floats that were quantized, and which scales and biases would bring it nearer.

use crate::{Isa, KernelError, Matrix, decode::decoder, matrix::check_length, threads, unit::Decode};

/// What is summed of errors, and what of an error a scale is to follow.
#[derive(Clone, Copy, Debug)]
pub enum Norm<'a> {
    /// The square, and all of it.
    Squares,
    /// This power, below 1, of the magnitude; and `sign(r) min(|r|, |r|^(power-1) weight)` with the weight of each block: what
    /// remains of `r` when outliers are taken out of it by the generalized soft threshold of the half-quadratic method (Badri
    /// and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023).
    Power(f32, &'a [f32]),
}

/// Sums over the elements of each block, where `v` is what an element is stored as, `r = x - v`, and `g` is how much of `r`
/// the scale and the bias are to follow: see [`deviations`].
#[derive(Debug)]
pub struct Deviations<'a> {
    /// Of `r^2`, or of the power of `|r|`.
    pub error: &'a mut [f32],
    /// Of `v`.
    pub value: &'a mut [f32],
    /// Of `v^2`.
    pub square: &'a mut [f32],
    /// Of `v g`.
    pub slope: &'a mut [f32],
    /// Of `g`.
    pub shift: &'a mut [f32],
}

/// Measures `w`, which `x` was quantized to, block by block.
///
/// The scale and the bias that follow the errors best are those of a linear regression of `g` on `v`.
///
/// ```
/// use tacit_kernels::{Codes, Deviations, Matrix, Norm, Scales, deviations};
///
/// let w = Matrix { n: 1, k: 2, codes: Codes::Signed { codes: &[1, 2] }, scales: Scales::F32(&[1.0]), biases: None, block: 2 };
/// let [mut error, mut value, mut square, mut slope, mut shift] = [[0.0]; 5];
/// let of = Deviations { error: &mut error, value: &mut value, square: &mut square, slope: &mut slope, shift: &mut shift };
/// deviations(&w, &[1.5, 3.0], Norm::Squares, of)?;
/// assert_eq!((error, value, square, slope, shift), ([1.25], [3.0], [5.0], [2.5], [1.5]));
/// // The scale is 1 + 2.5 / 5.
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A wrong length.
pub fn deviations(w: &Matrix<'_>, x: &[f32], norm: Norm<'_>, of: Deviations<'_>) -> Result<(), KernelError> {
    let elements = w.check()?;
    let blocks = elements.div_ceil(w.block);
    check_length("x", x.len(), elements, "each element has one")?;
    if let Norm::Power(_, weights) = norm {
        check_length("weights", weights.len(), blocks, "each block of elements has one")?;
    }
    let Deviations { error, value, square, slope, shift } = of;
    for of in [&*error, &*value, &*square, &*slope, &*shift] {
        check_length("a sum", of.len(), blocks, "each block of elements has one")?;
    }
    let isa = Isa::detect();
    let per_task = threads::per_task(w.block);
    let sums = error
        .chunks_mut(per_task)
        .zip(value.chunks_mut(per_task))
        .zip(square.chunks_mut(per_task))
        .zip(slope.chunks_mut(per_task))
        .zip(shift.chunks_mut(per_task))
        .enumerate();
    let mut sums = Some(sums);
    decoder(isa, w, &mut |decoder| {
        let Some(sums) = sums.take() else { return };
        threads::for_each_part(usize::MAX, sums, &|(task, ((((error, value), square), slope), shift))| {
            for (at, error) in error.iter_mut().enumerate() {
                let block = task * per_task + at;
                let start = block * w.block;
                let end = elements.min(start.saturating_add(w.block));
                let sums = measured(isa, decoder, start, &x[start..end], |x, values| match norm {
                    Norm::Squares => squared(x, values),
                    Norm::Power(power, weights) => robust(x, values, power, weights[block]),
                });
                [*error, value[at], square[at], slope[at], shift[at]] = sums.map(|sum| sum as f32);
            }
        });
    });
    Ok(())
}

/// Elements that are decoded at a time; sums of as many are taken in `f32`.
const PIECE: usize = 1024;

/// Sums that are taken beside each other.
const LANES: usize = 8;

fn measured(
    isa: Isa,
    decoder: &dyn Decode,
    start: usize,
    x: &[f32],
    sums_of: impl Fn(&[f32], &[f32]) -> [f32; 5],
) -> [f64; 5] {
    let mut sums = [0.0; 5];
    let mut values = [0.0; PIECE];
    for (at, x) in x.chunks(PIECE).enumerate() {
        let values = &mut values[..x.len()];
        decoder.decode(isa, start + at * PIECE, values, 0);
        for (sum, of_piece) in sums.iter_mut().zip(sums_of(x, values)) {
            *sum += f64::from(of_piece);
        }
    }
    sums
}

fn squared(x: &[f32], values: &[f32]) -> [f32; 5] {
    let mut lanes = [[0.0; LANES]; 5];
    let (x_whole, x_rest) = x.as_chunks::<LANES>();
    let (v_whole, v_rest) = values.as_chunks::<LANES>();
    let mut add = |lane: usize, x: f32, v: f32| {
        let r = x - v;
        for (sums, of_element) in lanes.iter_mut().zip([r * r, v, v * v, v * r, r]) {
            sums[lane] += of_element;
        }
    };
    for (x, v) in x_whole.iter().zip(v_whole) {
        for lane in 0..LANES {
            add(lane, x[lane], v[lane]);
        }
    }
    for (&x, &v) in x_rest.iter().zip(v_rest) {
        add(0, x, v);
    }
    lanes.map(|lanes| lanes.iter().sum())
}

fn robust(x: &[f32], values: &[f32], power: f32, weight: f32) -> [f32; 5] {
    let mut sums = [0.0; 5];
    for (&x, &v) in x.iter().zip(values) {
        let r = x - v;
        let magnitude = r.abs();
        // Without a deviation there is nothing to follow, and its power would be infinite.
        let steep = if magnitude == 0.0 { 0.0 } else { magnitude.powf(power - 1.0) };
        let g = magnitude.min(steep * weight).copysign(r);
        for (sum, of_element) in sums.iter_mut().zip([magnitude * steep, v, v * v, v * g, g]) {
            *sum += of_element;
        }
    }
    sums
}
