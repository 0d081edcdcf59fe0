//! A low-rank correction of what the codes lose.

use mlx_rs::{Array, Dtype, Stream, linalg, ops, random, transforms, with_stream};
use tacit_core::{Aval, Error, Result, Value, tree};

use crate::adapters::lora::Lora;
use crate::format::AnyFormat;
use crate::training::calibration::calibrate::{Calibrate, errors, matrices, not_finite};
use crate::training::calibration::coder::dense;
use crate::training::observation::Observation;

/// Codes by another method, and beside them the product of two thin matrices that makes up for what they lose: a [`Lora`].
///
/// Of all products `B A` of the rank it is the one for which the layer error `tr((W - Q - B A) x^T x (W - Q - B A)^T)` is the
/// least: `B` is made of the first eigenvectors of `(W - Q) x^T x (W - Q)^T`, and `A = B^T (W - Q)`. That is the method `EoRA`
/// (Liu et al., 2024), without its inverse of a square root. With several rounds the codes are then those of `W - B A`, and
/// so on in turn, of which the best are the result: `LoftQ` (Li et al., 2023), which looks at no inputs, is this beside
/// [`Rounding`], with what was seen of the identity.
///
/// The factors are those that `ParameterFilter::Lora` of a model trains: an adapter that begins where the codes were wrong. The rank
/// is at most the smaller extent of the matrix. A stack of matrices is an error.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, random};
/// use tacit_arrays::format::Affine;
/// use tacit_arrays::{Calibrate, Corrected, Gptq, Observation};
///
/// let normal = |seed, shape: &[i32]| random::normal::<f32>(shape, None, None, &random::key(seed)?);
/// let (w, x) = (normal(0, &[32, 64])?, normal(1, &[128, 64])?);
/// let seen = Observation::from_inputs(&x)?;
/// let error = |codes: tacit_core::Value| -> tacit_core::Result<f32> {
///     Ok(x.matmul(w.subtract(codes.dense()?)?.t())?.square()?.sum(None)?.item_exact::<f32>())
/// };
/// let format = Affine { bits: 2, group: 64 }.into();
/// let codes = Gptq::default().quantize(&format, &w, &seen)?;
/// let corrected = Corrected::new(Gptq::default(), 8)?.quantize(&format, &w, &seen)?;
/// assert_eq!(corrected.to_string(), "Lora(f32[32,64])");
/// assert!(error(corrected)? < 0.8 * error(codes)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Corrected<M> {
    method: M,
    rank: i32,
    rounds: u32,
}

/// Codes of each element by itself, whatever was seen: what [`Corrected`] makes better.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rounding;

impl Calibrate for Rounding {
    fn quantize(&self, format: &AnyFormat, weight: &Array, _: &Observation) -> Result<Value> {
        format.quantize(weight)
    }
}

impl<M: Calibrate> Corrected<M> {
    /// The codes of `method`, with factors of this rank beside them.
    ///
    /// # Errors
    ///
    /// The rank is not at least 1.
    pub fn new(method: M, rank: i32) -> Result<Self> {
        if rank < 1 {
            return Err(Error::invalid(
                format!("a correction of rank {rank} changes nothing"),
                "give at least 1; 16 is usual",
            ));
        }
        Ok(Self { method, rank, rounds: 1 })
    }

    /// The same, with codes and factors that are chosen so many times in turn.
    ///
    /// # Errors
    ///
    /// No round is asked for, or more than 100 are.
    pub fn with_rounds(self, rounds: u32) -> Result<Self> {
        if !(1..=100).contains(&rounds) {
            return Err(Error::invalid(format!("{rounds} rounds are not made"), "make 1, or 5 as LoftQ does"));
        }
        Ok(Self { rounds, ..self })
    }
}

impl<M: Calibrate> Calibrate for Corrected<M> {
    fn quantize(&self, format: &AnyFormat, weight: &Array, seen: &Observation) -> Result<Value> {
        let (_, gram) = matrices(weight, seen)?;
        let &[n, k] = weight.shape() else {
            return Err(Error::invalid(
                format!("{} is a stack, whose matrices have no factors of their own", Aval::from(weight)),
                "correct matrices alone, and quantize stacks by the method itself",
            ));
        };
        if self.rank > n.min(k) {
            return Err(Error::invalid(
                format!("a correction of rank {} is more than {} has", self.rank, Aval::from(weight)),
                "give a rank of at most the smaller extent",
            ));
        }
        let (wide, gram) = (weight.as_dtype(Dtype::Float32)?, gram.reshape(&[k, k])?);
        if !wide.is_finite()?.all(None)?.item_exact::<bool>() {
            return Err(not_finite(weight));
        }
        let mut best: Option<(f32, Value)> = None;
        let mut coded = weight.clone();
        for _ in 0..self.rounds {
            let codes = self.method.quantize(format, &coded, seen)?;
            let lost = wide.subtract(dense(&codes)?)?;
            let [a, b] = factors(&lost, &gram, self.rank)?;
            let product = b.matmul(&a)?;
            let residual = lost.subtract(&product)?;
            let error = errors(&residual, &gram)?.sum(None)?;
            coded = wide.subtract(product)?.as_dtype(weight.dtype())?;
            transforms::eval([&error, &coded, &a, &b])?;
            let error = error.item_exact::<f32>();
            if best.as_ref().is_none_or(|(least, _)| error < *least) {
                best = Some((error, Lora::new(codes, a, b, self.rank as f32)?.into()));
            }
        }
        let (_, value) = best.ok_or_else(|| Error::decline("no round was made"))?;
        tree::eval(&value)?;
        Ok(value)
    }
}

/// `a: [r, k]` and `b: [n, r]` whose product is nearest to `lost: [n, k]`, as `gram: [k, k]` counts errors. The elements of both are of
/// like sizes.
fn factors(lost: &Array, gram: &Array, rank: i32) -> Result<[Array; 2]> {
    /// Vectors beyond the rank, and how often all are multiplied: with these the eigenvectors are exact to some digits.
    const MORE: i32 = 8;
    const ROUNDS: usize = 6;
    let (n, k) = (lost.dim(0), lost.dim(1));
    let count = (rank + MORE).min(n).min(k);
    let multiplied = |x: &Array| Ok::<_, Error>(lost.matmul(gram.matmul(lost.t().matmul(x)?)?)?);
    let orthogonal = |x: &Array| Ok::<_, Error>(with_stream(&Stream::cpu(), || linalg::qr(x))?.0);
    let mut basis = random::normal::<f32>(&[n, count], None, None, &random::key(0)?)?;
    for _ in 0..ROUNDS {
        basis = orthogonal(&multiplied(&basis)?)?;
        transforms::eval([&basis])?;
    }
    // Within their space the eigenvectors are those of a small matrix, the greatest last.
    let inside = basis.t().matmul(multiplied(&basis)?)?;
    let inside = inside.add(inside.t())?;
    let (_, vectors) = with_stream(&Stream::cpu(), || linalg::eigh(&inside, None))?;
    let greatest = ops::arange::<_, u32>(count - rank, count, None)?;
    let b = basis.matmul(vectors.take_axis(greatest, 1)?)?;
    let a = b.t().matmul(lost)?;
    let size = a.square()?.mean_axis(1, true)?.sqrt()?.multiply(Array::from_f32((n as f32).sqrt()))?;
    let size = ops::maximum(size, Array::from_f32(f32::MIN_POSITIVE))?.sqrt()?;
    Ok([a.divide(&size)?, b.multiply(size.t())?])
}
