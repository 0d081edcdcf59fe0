//! A stored matrix times a number, added to dense floats.

use half::slice::HalfFloatSliceExt;

use crate::decode::{AHEAD, CHUNK, PIECE, decoder, in_parts};
use crate::matrix::check_length;
use crate::simd::{Kernel, Simd, run};
use crate::unit::Decode;
use crate::{Floats, FloatsMut, Isa, KernelError, Matrix};

/// Writes `factor * matrix + x` for `x: [n, k]` into `out: [n, k]`.
///
/// The product and the sum are each rounded to the type of `out`, as they are where they are made one after the other.
///
/// ```
/// use tacit_kernels::{BlockScales, Codes, Matrix, Order, Scales, add_dense, nf4};
///
/// let (mut packed, mut absmax) = ([0; 32], [0.0]);
/// nf4::encoder(64).quantize(&[1.0; 64], &mut packed, BlockScales::Floats(&mut absmax))?;
/// let codes = Codes::Table { bits: 4, bytes: &packed, order: Order::HighFirst, values: &nf4::CODEBOOK };
/// let matrix = Matrix { n: 2, k: 32, block: 64, codes, scales: Scales::F32(&absmax), biases: None };
/// let mut out = [0.0; 64];
/// add_dense(&matrix, 0.5, &[2.0_f32; 64][..], &mut out[..])?;
/// assert_eq!(out, [2.5; 64]);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A matrix whose lengths do not match its sizes, or a wrong length of `x` or `out`.
pub fn add_dense<'a>(
    matrix: &Matrix,
    factor: f32,
    x: impl Into<Floats<'a>>,
    out: impl Into<FloatsMut<'a>>,
) -> Result<(), KernelError> {
    let (x, out) = (x.into(), out.into());
    let elements = matrix.check()?;
    check_length("x", x.len(), elements, "one for each element of the matrix")?;
    out.check(elements, "one for each element of the matrix")?;
    let (isa, mut out) = (Isa::detect(), Some(out));
    decoder(isa, matrix, &mut |decoder| {
        let sum = Sum { isa, decoder, factor, x: &x };
        match out.take() {
            Some(FloatsMut::F32(out)) => in_parts(out, PIECE, CHUNK, &|from, out| sum.whole(from, out)),
            Some(FloatsMut::F16(out)) => in_parts(out, PIECE, CHUNK, &|from, out| sum.rounded(from, out)),
            Some(FloatsMut::Bf16(out)) => in_parts(out, PIECE, CHUNK, &|from, out| sum.rounded(from, out)),
            None => {}
        }
    });
    Ok(())
}

struct Sum<'s> {
    isa: Isa,
    decoder: &'s dyn Decode,
    factor: f32,
    x: &'s Floats<'s>,
}

impl Sum<'_> {
    /// Writes the elements of the sum from one on.
    fn whole(&self, from: usize, out: &mut [f32]) {
        self.decoder.decode(self.isa, from, out, AHEAD);
        let x = self.x.part(from..from + out.len()).widen();
        run(self.isa, MultiplyAdd { factor: self.factor, x: &x, out });
    }

    /// Writes the elements of the sum from one on in a half type.
    fn rounded<T>(&self, from: usize, out: &mut [T])
    where
        [T]: HalfFloatSliceExt,
    {
        let (mut piece, mut x) = ([0.0; PIECE], [0.0; PIECE]);
        let (piece, x) = (&mut piece[..out.len()], &mut x[..out.len()]);
        self.decoder.decode(self.isa, from, piece, AHEAD);
        #[expect(clippy::float_cmp, reason = "a product with 1 changes nothing, with any other number it may")]
        if self.factor != 1.0 {
            for element in &mut *piece {
                *element *= self.factor;
            }
        }
        out.convert_from_f32_slice(piece);
        out.convert_to_f32_slice(piece);
        self.x.part(from..from + out.len()).widen_into(x);
        piece.iter_mut().zip(x).for_each(|(out, x)| *out += *x);
        out.convert_from_f32_slice(piece);
    }
}

/// Multiplies and adds, each rounded, in one pass in the widest vectors.
struct MultiplyAdd<'a> {
    factor: f32,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for MultiplyAdd<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { factor, x, out } = self;
        for (out, x) in out.iter_mut().zip(x) {
            *out = *out * factor + x;
        }
    }
}
