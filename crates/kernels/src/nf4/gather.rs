//! Codes to floats: the whole matrix, or some of its rows.

use super::{
    codebook::CODEBOOK,
    weight::{Weight, check_codes, check_length, product},
};
use crate::{
    Isa, KernelError,
    simd::{Kernel, Simd, run},
    threads,
};

/// Elements that one task writes; even, so that tasks start on a byte.
const CHUNK: usize = 1 << 16;

/// Writes the values of `n` codes, `CODEBOOK[code] * absmax`, into `out: f32[n]`.
///
/// # Errors
/// A block size that is not a power of two from 32 to 4096, or a wrong length.
pub fn dequantize(packed: &[u8], absmax: &[f32], block: usize, n: usize, out: &mut [f32]) -> Result<(), KernelError> {
    dequantize_with(Isa::detect(), packed, absmax, block, n, out)
}

/// [`dequantize`] with the instruction set given.
pub fn dequantize_with(
    isa: Isa,
    packed: &[u8],
    absmax: &[f32],
    block: usize,
    n: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    isa.check()?;
    let n = product(n, 1)?;
    check_codes(packed, absmax, block, n)?;
    check_length("out", out.len(), n, "one for each code")?;
    let weight = Weight { packed, absmax, block, n: 1, k: n };
    let out = Output::new(out);
    threads::for_each(n.div_ceil(CHUNK), |task| {
        let start = task * CHUNK;
        // SAFETY: tasks write disjoint chunks of `out`, whose length is n.
        let out = unsafe { out.part(start, CHUNK.min(n - start)) };
        run(isa, Decode { weight: &weight, start, out });
    });
    Ok(())
}

/// Writes the rows of `weight` that `rows: u32[r]` names into `out: f32[r, k]`.
///
/// # Errors
/// A weight whose lengths do not match its sizes, a row outside it, or a wrong length of `out`.
pub fn gather_rows(weight: &Weight, rows: &[u32], out: &mut [f32]) -> Result<(), KernelError> {
    gather_rows_with(Isa::detect(), weight, rows, out)
}

/// [`gather_rows`] with the instruction set given.
pub fn gather_rows_with(isa: Isa, weight: &Weight, rows: &[u32], out: &mut [f32]) -> Result<(), KernelError> {
    isa.check()?;
    weight.check()?;
    let k = weight.k;
    check_length("out", out.len(), product(rows.len(), k)?, "one row of the weight for each entry of `rows`")?;
    if let Some((index, &row)) = rows.iter().enumerate().find(|(_, row)| **row as usize >= weight.n) {
        return Err(KernelError::RowRange { index, row, rows: weight.n });
    }
    let each = (CHUNK / k.max(1)).max(1);
    let out = Output::new(out);
    threads::for_each(rows.len().div_ceil(each), |task| {
        for (i, row) in rows.iter().enumerate().skip(task * each).take(each) {
            // SAFETY: row i of `out`, whose length is rows.len() * k, is this task's alone.
            let out = unsafe { out.part(i * k, k) };
            run(isa, Decode { weight, start: *row as usize * k, out });
        }
    });
    Ok(())
}

/// The start of an output that tasks write disjoint parts of.
#[derive(Clone, Copy)]
pub(super) struct Output(*mut f32);

// SAFETY: tasks only write disjoint parts, as each use states.
unsafe impl Sync for Output {}

impl Output {
    pub(super) fn new(out: &mut [f32]) -> Self {
        Self(out.as_mut_ptr())
    }

    pub(super) fn start(self) -> *mut f32 {
        self.0
    }

    /// # Safety
    /// The part lies in the output and belongs to the caller alone.
    unsafe fn part<'a>(self, start: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

struct Decode<'a> {
    weight: &'a Weight<'a>,
    start: usize,
    out: &'a mut [f32],
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        decode_range(simd, self.weight, self.start, self.out);
    }
}

/// Writes the values of the elements from `start`, in row-major order.
///
/// # Panics
/// If the range is not within the weight, whose lengths were checked.
#[inline(always)]
pub(super) fn decode_range<S: Simd>(simd: S, weight: &Weight, start: usize, out: &mut [f32]) {
    let mut done = 0;
    while done < out.len() {
        let at = start + done;
        let len = (weight.block - at % weight.block).min(out.len() - done);
        let absmax = weight.absmax[at / weight.block];
        let run = &mut out[done..done + len];
        // A run that starts in the middle of a byte takes one element from it first.
        let head = at % 2;
        if head == 1 {
            run[0] = CODEBOOK[usize::from(weight.packed[at / 2] & 15)] * absmax;
        }
        let bytes = &weight.packed[at.div_ceil(2)..(at + len).div_ceil(2)];
        let run = &mut run[head..];
        let whole = run.len() / S::LANES * S::LANES;
        let scale = simd.splat(absmax);
        for i in (0..whole).step_by(S::LANES) {
            // SAFETY: elements i to i + LANES lie in `run`, and their codes in `bytes`.
            unsafe {
                let values = simd.mul(simd.decode(bytes.as_ptr().add(i / 2)), scale);
                simd.store(run.as_mut_ptr().add(i), values);
            }
        }
        for (i, value) in run.iter_mut().enumerate().skip(whole) {
            let byte = bytes[i / 2];
            *value = CODEBOOK[usize::from(if i % 2 == 0 { byte >> 4 } else { byte & 15 })] * absmax;
        }
        done += len;
    }
}
