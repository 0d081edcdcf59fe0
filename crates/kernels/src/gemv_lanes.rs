//! `y = x W^T` with few rows of activations and short rows of the matrix: each lane of a vector is a row of the matrix.
//!
//! A sum that is spread over the lanes has to be added up for each row, which takes as long as the products of a short one.
//! Words of codes are transposed instead, so that a lane sums a row of its own.

use crate::{
    Isa, Matrix, Orientation,
    codec::Codec,
    codec_of::{Job, dispatch},
    machine::{Cycles, Machine},
    output::{Output, Rectangle},
    simd::{Kernel, Simd, run},
    stored::{StoredProduct, Work},
};

/// Rows that are longer than this are multiplied along the lanes.
const SHORT: usize = 512;

/// Rows of activations that are multiplied at a time; more would not stay in the registers.
const GROUP: usize = 4;

/// Sums that are taken side by side, so that none waits for the one before it.
const CHAINS: usize = 4;

/// Whether the matrix has short rows of whole words, and of whole blocks whose numbers are floats.
pub(crate) fn takes(product: &StoredProduct) -> bool {
    let &StoredProduct { x, matrix, orientation, .. } = product;
    let Matrix { k, block, codes, ref scales, ref biases, .. } = *matrix;
    let word = match codes.bits() {
        4 => 8,
        8 if !matches!(codes, crate::Codes::Bytes { .. }) => 4,
        _ => return false,
    };
    orientation == Orientation::Transposed
        && k <= SHORT
        && k.is_multiple_of(block)
        && block.is_multiple_of(word)
        && scales.floats().is_some()
        // The sum with the codes and the one with the biases of a block could be opposite infinities.
        && biases.is_none_or(|biases| biases.floats().is_some() && x.iter().all(|x| x.is_finite()))
}

pub(crate) fn cost(work: &Work, machine: &Machine) -> f64 {
    let Cycles { fma, load, lanes, .. } = *machine.cycles;
    // Words are transposed, activations repeated in all lanes, and the scales of a vector's rows gathered one by one.
    let turn = 4.0 * load;
    let vectors = work.shape.vectors(machine);
    work.shape.by_fours(|rows| {
        vectors * (work.decode + turn / lanes + rows * (fma + load)) + work.numbers * (1.0 + rows * fma / lanes)
    })
}

pub(crate) fn multiply(product: &StoredProduct, isa: Isa, out: &mut Output<f32>) -> usize {
    dispatch(isa, product.matrix.codes, Multiply { product, isa, out });
    product.m
}

struct Multiply<'a, 'o> {
    product: &'a StoredProduct<'a>,
    isa: Isa,
    out: &'a mut Output<'o, f32>,
}

impl Job for Multiply<'_, '_> {
    type Output = ();

    fn run<C: Codec>(self, codes: C) {
        let Self { product, isa, out } = self;
        let &StoredProduct { x, m, matrix, threads, .. } = product;
        let (scales, biases) = (matrix.scales.floats(), matrix.biases.and_then(|biases| biases.floats()));
        let scales = scales.unwrap_or_default();
        out.for_each_run(threads, 16, &|out| run(isa, GemvLanes { x, m, matrix, codes, scales, biases, out }));
    }
}

/// The product for some rows of the matrix.
struct GemvLanes<'a, C> {
    x: &'a [f32],
    m: usize,
    matrix: &'a Matrix<'a>,
    codes: C,
    scales: &'a [f32],
    biases: Option<&'a [f32]>,
    /// All rows of the output, and its columns for some rows of the matrix.
    out: Rectangle<'a, f32>,
}

impl<C: Codec> Kernel for GemvLanes<'_, C> {
    type Output = ();
    const VECTORS: bool = !C::PORTABLE;
    /// Portable codes are not read by words.
    const PORTABLE: bool = C::PORTABLE;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut first = 0;
        while first < self.m {
            first += match self.m - first {
                1 => self.group::<S, 1>(simd, first),
                2 | 3 => self.group::<S, 2>(simd, first),
                _ => self.group::<S, GROUP>(simd, first),
            }
        }
    }
}

impl<C: Codec> GemvLanes<'_, C> {
    /// Multiplies `M` rows of activations, from row `first`, with all rows; gives `M`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    fn group<S: Simd, const M: usize>(&mut self, simd: S, first: usize) -> usize {
        let (k, block) = (self.matrix.k, self.matrix.block);
        let (ready, bytes) = (self.codes.ready(simd), self.codes.bytes());
        // Codes of a word in the order of its bits.
        let flip = self.codes.place(0);
        let (in_row, in_block, blocks) = (k / C::WORD.max(1), block / C::WORD.max(1), k / block);
        let sums = self.sums::<M>(first);
        let mut words = [0_u32; 256];
        let rows = self.out.columns();
        for start in rows.clone().step_by(S::LANES) {
            let count = S::LANES.min(rows.end - start);
            let mut totals = [simd.splat(0.0); M];
            let mut parts = [[simd.splat(0.0); CHAINS]; M];
            for chunk in (0..in_row).step_by(S::LANES) {
                let len = S::LANES.min(in_row - chunk);
                let from = bytes.as_ptr().wrapping_add(4 * (start * in_row + chunk));
                // SAFETY: the words lie in the rows.
                unsafe { simd.transpose_some(from, 4 * in_row, count, len, &mut words) };
                for d in 0..len {
                    let x = &self.x[first * k + (chunk + d) * C::WORD..];
                    // SAFETY: `words` has a vector for each word; x has M rows of k floats from there on.
                    unsafe {
                        let codes = simd.load_words(words.as_ptr().add(d * S::LANES).cast());
                        let whole = C::whole_words(ready, simd, codes);
                        for place in 0..C::WORD {
                            let values = match whole {
                                Some(whole) => whole[place],
                                None => C::word_values(ready, simd, codes, place),
                            };
                            for m in 0..M {
                                let x = simd.splat(*x.as_ptr().add(m * k + (place ^ flip)));
                                let part = &mut parts[m][place % CHAINS];
                                *part = simd.fma(values, x, *part);
                            }
                        }
                    }
                    if !(chunk + d + 1).is_multiple_of(in_block) {
                        continue;
                    }
                    let within = (chunk + d) / in_block;
                    let numbers = |given: &[f32]| {
                        let mut numbers = [0.0; 16];
                        for (row, number) in numbers.iter_mut().enumerate().take(count) {
                            *number = given[(start + row) * blocks + within];
                        }
                        numbers
                    };
                    let scales = numbers(self.scales);
                    // SAFETY: there are 16 floats, the most that a vector holds.
                    let scales = unsafe { simd.load(scales.as_ptr()) };
                    for m in 0..M {
                        let [a, b, c, d] = parts[m];
                        totals[m] = simd.fma(simd.add(simd.add(a, b), simd.add(c, d)), scales, totals[m]);
                        parts[m] = [simd.splat(0.0); CHAINS];
                    }
                    if let Some(biases) = self.biases {
                        let biases = numbers(biases);
                        // SAFETY: as above.
                        let biases = unsafe { simd.load(biases.as_ptr()) };
                        for m in 0..M {
                            totals[m] = simd.fma(biases, simd.splat(sums[m][within]), totals[m]);
                        }
                    }
                }
            }
            for m in 0..M {
                let mut lanes = [0.0; 16];
                // SAFETY: as above.
                unsafe { simd.store(lanes.as_mut_ptr(), totals[m]) };
                self.out.row(first + m)[start - rows.start..][..count].copy_from_slice(&lanes[..count]);
            }
        }
        M
    }

    /// The sums of the activations of each block, which its bias is multiplied with.
    fn sums<const M: usize>(&self, first: usize) -> [Vec<f32>; M] {
        std::array::from_fn(|m| match self.biases {
            Some(_) => {
                let x = &self.x[(first + m) * self.matrix.k..][..self.matrix.k];
                x.chunks(self.matrix.block).map(|x| x.iter().sum()).collect()
            }
            None => Vec::new(),
        })
    }
}
