//! Scales of every type as `f32`.

use std::borrow::Cow;

use crate::{
    Isa, Scales,
    matrix::bytes,
    minifloat::e8m0,
    output::Output,
    simd::{Kernel, Simd, run},
};

impl<'a> Scales<'a> {
    /// All of them, if they are `f32` already.
    pub(crate) fn floats(&self) -> Option<&'a [f32]> {
        match *self {
            Self::F32(values) => Some(values),
            _ => None,
        }
    }

    /// Writes the numbers of the blocks from `start`; each is what [`get`](Self::get) gives, to the bit.
    ///
    /// # Panics
    /// If there are not as many.
    pub(crate) fn widen(&self, isa: Isa, start: usize, out: &mut [f32]) {
        run(isa, Widen { scales: self, start, out });
    }
}

/// The first `count` scales as `f32`.
pub(crate) fn widened<'a>(isa: Isa, scales: &Scales<'a>, count: usize, threads: usize) -> Cow<'a, [f32]> {
    if let Some(values) = scales.floats() {
        return Cow::Borrowed(values);
    }
    let mut values = vec![0.0; count];
    Output::new(&mut values, count).for_each(threads, 1, WIDENED, &|mut part| {
        let start = part.columns().start;
        scales.widen(isa, start, part.row(0));
    });
    Cow::Owned(values)
}

/// Scales that one task widens.
const WIDENED: usize = 1 << 14;

struct Widen<'a> {
    scales: &'a Scales<'a>,
    start: usize,
    out: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { scales, start, out } = self;
        let end = start + out.len();
        let whole = out.len() / S::LANES * S::LANES;
        match *scales {
            Scales::One => out.fill(1.0),
            Scales::F32(values) => out.copy_from_slice(&values[start..end]),
            Scales::F16(values) => {
                let values = &values[start..end];
                for i in (0..whole).step_by(S::LANES) {
                    // SAFETY: `whole` numbers lie in both slices.
                    unsafe { simd.store(out.as_mut_ptr().add(i), simd.load_f16(values.as_ptr().add(i).cast())) };
                }
            }
            Scales::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[start..end]) {
                    *out = f32::from_bits(u32::from(value.to_bits()) << 16);
                }
            }
            Scales::E8m0(bytes) => {
                for (out, byte) in out.iter_mut().zip(&bytes[start..end]) {
                    *out = e8m0(*byte);
                }
            }
            Scales::E4m3 { bytes, factor } => {
                let bytes = &bytes[start..end];
                for i in (0..whole).step_by(S::LANES) {
                    // SAFETY: as above.
                    unsafe {
                        let values = simd.e4m3(simd.load_bytes(bytes.as_ptr().add(i)));
                        simd.store(out.as_mut_ptr().add(i), simd.mul(values, simd.splat(factor)));
                    }
                }
            }
            Scales::Nested { codes, map, absmax, block, offset } => {
                let (codes, absmax) = (&codes[start..end], Blocks::new(simd, absmax, block));
                let map = simd.far(map);
                for i in (0..whole).step_by(S::LANES) {
                    // SAFETY: as above.
                    unsafe {
                        let values = simd.lookup_far(map, simd.load_bytes(codes.as_ptr().add(i)));
                        let values = simd.mul(values, absmax.of(simd, start + i));
                        simd.store(out.as_mut_ptr().add(i), simd.add(values, simd.splat(offset)));
                    }
                }
            }
            Scales::Integers { codes, units, block } => {
                let (codes, units) = (bytes(&codes[start..end]), Blocks::new(simd, units, block));
                let quick = units.quick::<S>(start, whole);
                for i in (0..whole).step_by(S::LANES) {
                    // SAFETY: as above, and these vectors are those that `quick` is for.
                    unsafe {
                        let unit = if i < quick { units.of_quick(simd, start + i) } else { units.of(simd, start + i) };
                        let values = simd.to_float(simd.load_signed(codes.as_ptr().add(i)));
                        simd.store(out.as_mut_ptr().add(i), simd.mul(values, unit));
                    }
                }
            }
        }
        let by_vectors =
            matches!(scales, Scales::F16(_) | Scales::E4m3 { .. } | Scales::Nested { .. } | Scales::Integers { .. });
        if by_vectors {
            for (i, out) in out.iter_mut().enumerate().skip(whole) {
                *out = scales.get(start + i);
            }
        }
    }
}

/// What the numbers of scales in blocks are multiplied by.
struct Blocks<'a, I> {
    values: &'a [f32],
    block: usize,
    /// The block as a power of two, if it is one: a division would take longer than all else.
    shift: Option<u32>,
    /// Which of the values of a vector's blocks each lane has, if a vector is whole blocks.
    index: I,
}

impl<'a, I: Copy> Blocks<'a, I> {
    #[inline(always)]
    fn new<S: Simd<I = I>>(simd: S, values: &'a [f32], block: usize) -> Self {
        let index: [u32; 16] = std::array::from_fn(|i| (i / block) as u32);
        // SAFETY: there are 16 words, the most that a vector holds.
        let index = unsafe { simd.load_words(index.as_ptr().cast()) };
        let shift = block.is_power_of_two().then(|| block.trailing_zeros());
        Self { values, block, shift, index }
    }

    /// How many of the `len` numbers from `start` on, which are whole vectors, [`of_quick`](Self::of_quick) is for.
    #[inline(always)]
    fn quick<S: Simd<I = I>>(&self, start: usize, len: usize) -> usize {
        let &Self { values, block, shift, .. } = self;
        let fits = start.is_multiple_of(block.min(S::LANES));
        let Some(shift) = shift.filter(|_| fits) else { return 0 };
        // Each vector in one block, or as many values readable as a vector has.
        let values = if block < S::LANES { (values.len() + 1).saturating_sub(S::LANES) } else { values.len() };
        len.min((values << shift).saturating_sub(start))
    }

    /// The values of a vector of numbers from `first`, without looking where they are.
    ///
    /// # Safety
    /// The first of them is among those that [`quick`](Self::quick) says.
    #[inline(always)]
    unsafe fn of_quick<S: Simd<I = I>>(&self, simd: S, first: usize) -> S::F {
        // SAFETY: the caller's promise: there is a shift, and at it a value, or as many as a vector has.
        unsafe {
            let from = self.values.as_ptr().add(first >> self.shift.unwrap_unchecked());
            if self.block < S::LANES { simd.spread(from, S::LANES, self.index) } else { simd.splat(*from) }
        }
    }

    /// The values of the numbers from `first`.
    #[inline(always)]
    fn of<S: Simd<I = I>>(&self, simd: S, first: usize) -> S::F {
        let &Self { values, block, shift, index } = self;
        if let Some(shift) = shift {
            let within = first & (block - 1);
            if within + S::LANES <= block {
                return simd.splat(values[first >> shift]);
            }
            if block <= S::LANES && within == 0 {
                let values = &values[first >> shift..];
                if values.len() >= S::LANES {
                    // SAFETY: as many floats, of which the first are spread.
                    return unsafe { simd.spread(values.as_ptr(), S::LANES, index) };
                }
                let values = &values[..S::LANES >> shift];
                // SAFETY: as many floats.
                return unsafe { simd.spread(values.as_ptr(), values.len(), index) };
            }
        }
        let mut lanes = [0.0; 16];
        for (lane, number) in lanes.iter_mut().zip(first..first + S::LANES) {
            *lane = values[number / block];
        }
        // SAFETY: there are 16 floats, the most that a vector holds.
        unsafe { simd.load(lanes.as_ptr()) }
    }
}
