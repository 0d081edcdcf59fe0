//! Sums along axes in the middle of an array, such as those over the rows of a batch.

use crate::{
    KernelError,
    machine::threads_for,
    matrix::{check_length, product},
    threads,
};

/// The columns of one task, which a cache holds.
const COLUMNS: usize = 256;
/// The numbers that are added one after the other before their sum is.
const RUN: usize = 64;
/// The sums that are kept side by side where there is one column.
const LANES: usize = 16;
/// What an element costs, about.
const CYCLES: f64 = 0.5;

/// Writes the sums of `x`, which is `[outer, reduced, inner]`, along its middle axis.
///
/// At most 64 numbers are added one after the other, and then their sums are, so that the error grows with the number of
/// such runs. The order is the same whatever the number of threads.
///
/// ```
/// let mut sums = [0.0; 3];
/// tacit_kernels::sum(&[1.0, 2.0, 3.0, 10.0, 20.0, 30.0], [1, 2, 3], &mut sums)?;
/// assert_eq!(sums, [11.0, 22.0, 33.0]);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// Slices of other lengths than the extents say.
pub fn sum(x: &[f32], [outer, reduced, inner]: [usize; 3], sums: &mut [f32]) -> Result<(), KernelError> {
    check_length("x", x.len(), product(product(outer, reduced)?, inner)?, "outer * reduced * inner numbers")?;
    check_length("sums", sums.len(), product(outer, inner)?, "outer * inner numbers")?;
    if sums.is_empty() {
        return Ok(());
    }
    let threads = threads_for(x.len() as f64 * CYCLES);
    if inner == 1 {
        let step = outer.div_ceil(4 * threads);
        let parts = sums.chunks_mut(step).enumerate();
        threads::for_each_part(threads, parts, &|(part, sums): (usize, &mut [f32])| {
            for (at, sum) in sums.iter_mut().enumerate() {
                *sum = total(&x[(part * step + at) * reduced..][..reduced]);
            }
        });
        return Ok(());
    }
    // Small blocks go together, and wide ones are cut.
    let width = if outer >= 4 * threads { inner } else { threads::share(inner, threads, LANES, COLUMNS) };
    let blocks = if width == inner { outer.div_ceil(4 * threads) } else { 1 };
    let parts = sums.chunks_mut(blocks * inner).enumerate().flat_map(|(part, sums)| {
        sums.chunks_mut(blocks * width).enumerate().map(move |(cut, sums)| (part * blocks, cut * width, sums))
    });
    threads::for_each_part(threads, parts, &|(first_block, first, sums): (usize, usize, &mut [f32])| {
        for (block, sums) in sums.chunks_mut(width).enumerate() {
            let x = &x[(first_block + block) * reduced * inner..][..reduced * inner];
            for (cut, sums) in sums.chunks_mut(COLUMNS).enumerate() {
                add_rows(x, inner, first + cut * COLUMNS, sums);
            }
        }
    });
    Ok(())
}

/// The sums of as many columns of the rows of `x` as `sums` has, from this one on.
fn add_rows(x: &[f32], inner: usize, first: usize, sums: &mut [f32]) {
    sums.fill(0.0);
    let mut run = [0.0; COLUMNS];
    let run = &mut run[..sums.len()];
    for rows in x.chunks(RUN * inner) {
        run.fill(0.0);
        for row in rows.chunks_exact(inner) {
            run.iter_mut().zip(&row[first..]).for_each(|(sum, x)| *sum += x);
        }
        sums.iter_mut().zip(&*run).for_each(|(sum, run)| *sum += run);
    }
}

/// The sum of numbers that lie one after the other.
fn total(x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for run in x.chunks(RUN * LANES) {
        let mut lanes = [0.0; LANES];
        let (whole, rest) = run.as_chunks::<LANES>();
        for x in whole {
            lanes.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        }
        lanes.iter_mut().zip(rest).for_each(|(sum, x)| *sum += x);
        sums.iter_mut().zip(lanes).for_each(|(sum, lane)| *sum += lane);
    }
    sums.iter().sum()
}
