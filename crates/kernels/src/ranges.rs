//! The ends of the blocks of an array.

use crate::{
    Isa, KernelError,
    encode::{self, absmax, chunk, finite},
    matrix::check_length,
    simd::{Kernel, Simd, run},
    threads,
};

/// Writes the least and the greatest element of each block of `x`, of which the last may be shorter.
///
/// ```
/// let (mut low, mut high) = ([0.0; 2], [0.0; 2]);
/// tacit_kernels::ranges(&[1.0, -2.0, 0.5], 2, &mut low, &mut high)?;
/// assert_eq!((low, high), ([-2.0, 0.5], [1.0, 0.5]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// An element is NaN or infinite; a block has no elements; a wrong length.
pub fn ranges(x: &[f32], block: usize, low: &mut [f32], high: &mut [f32]) -> Result<(), KernelError> {
    if block == 0 {
        return Err(KernelError::EmptyBlock);
    }
    for (name, ends) in [("low", &*low), ("high", &*high)] {
        check_length(name, ends.len(), x.len().div_ceil(block), "each block of elements has one")?;
    }
    let (isa, chunk) = (Isa::detect(), chunk(x.len(), block));
    let blocks = chunk.div_ceil(block);
    let ends = low.chunks_mut(blocks).zip(high.chunks_mut(blocks));
    threads::try_each_part(x.chunks(chunk).zip(ends).enumerate(), &|(at, (part, (low, high)))| {
        finite(x, run(isa, Part { x: part, block, low, high }).map(|index| at * chunk + index))
    })
}

struct Part<'a> {
    x: &'a [f32],
    block: usize,
    low: &'a mut [f32],
    high: &'a mut [f32],
}

impl Kernel for Part<'_> {
    /// The first element that is not finite.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Option<usize> {
        let Self { x, block, low, high } = self;
        for (of_block, (low, high)) in x.chunks(block).zip(low.iter_mut().zip(high)) {
            if !absmax(simd, of_block).is_finite() {
                return x.iter().position(|value| !value.is_finite());
            }
            (*low, *high) = encode::range(simd, of_block);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_element_without_an_end_is_named_on_any_threads() {
        let mut x: Vec<f32> = (0..70_001).map(|at| (f64::from(at) * 0.7).sin() as f32).collect();
        for isa in Isa::available() {
            for block in [1, 7, 16, 32, 100_000] {
                let blocks = x.len().div_ceil(block);
                let (mut low, mut high) = (vec![0.0; blocks], vec![0.0; blocks]);
                isa.with(|| ranges(&x, block, &mut low, &mut high)).expect("finite");
                for (x, ends) in x.chunks(block).zip(low.into_iter().zip(high)) {
                    let least = x.iter().copied().fold(f32::INFINITY, f32::min);
                    assert_eq!(
                        ends,
                        (least, x.iter().copied().fold(f32::NEG_INFINITY, f32::max)),
                        "{block} on {isa:?}"
                    );
                }
            }
        }
        (x[60_007], x[60_090]) = (f32::NAN, f32::INFINITY);
        let (mut low, mut high) = (vec![0.0; 2188], vec![0.0; 2188]);
        let error = ranges(&x, 32, &mut low, &mut high).expect_err("it has no range");
        assert!(matches!(error, KernelError::NonFinite { index: 60_007, .. }), "{error}");
        assert!(ranges(&x, 0, &mut low, &mut high).is_err() && ranges(&x, 32, &mut low, &mut []).is_err());
    }
}
