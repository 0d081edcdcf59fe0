//! Attention over stored keys and values, from the codes.
//!
//! Neither the scores of all tokens nor the dense keys or values exist: some tokens at a time are multiplied with the
//! queries, weighted by a [softmax](softmax) that goes on, and multiplied with the values.

mod mask;
mod softmax;

use std::ops::Range;

use crate::{
    Floats, FloatsMut, Isa, KernelError, Matrix, Orientation, engine,
    grouped_matmul::{check_indices, runs},
    machine::threads_for,
    matrix::{check_length, product},
    output::Output,
    part::{Numbers, gcd},
    stored::StoredProduct,
    threads,
};

use mask::{HIDDEN, Masked};
use softmax::Row;

pub use mask::{Mask, MaskValues};

/// Tokens that are multiplied at a time: the scores of many queries stay in the second-level cache.
const CHUNK: usize = 512;

/// The same for a few queries.
const LONG_CHUNK: usize = 2048;

/// Queries that are a few.
const FEW: usize = 8;

/// Queries that go through the tokens together.
const ROWS: usize = 192;

/// Where there are fewer tasks than this, tokens are split as well.
const TASKS: usize = 32;

/// Tokens of one task, where they are split.
const SPLIT: usize = 2048;

/// Weights below this one times the greatest do not count.
const LEAST: f32 = -87.0;

/// What [`attention`] computes: `softmax(q K^T + mask) V` for each entry of `q`.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// The queries, `[entries, queries, keys.k]`, in which the factor of the scores is.
    pub q: Floats<'a>,
    /// Queries of an entry.
    pub queries: usize,
    /// Which of the matrices of keys and of values each entry attends to; neighbors that share them read them once.
    pub indices: &'a [usize],
    /// The keys, `tokens` rows for each of the matrices.
    pub keys: Matrix<'a>,
    /// The values, as the keys; a row may be of another length and format.
    pub values: Matrix<'a>,
    /// The rows of each of the matrices.
    pub tokens: usize,
    /// What hides tokens.
    pub mask: Option<Mask<'a>>,
}

/// Writes the attention into `out: [entries, queries, values.k]`.
///
/// All is computed in `f32`, and rounded once. A run of tokens that a mask hides from every query of a task is never
/// decoded: where hidden scores are replaced by a number, or have one below -1e30 added to them, it takes part only if the
/// query sees nothing beside it, as in a softmax over everything: the mean of the values for a finite number, NaN for minus
/// infinity. What such runs hold at either end of what a task's queries see does not matter, not even NaN; a token between those
/// that are seen has the weight 0, and 0 times NaN is NaN, as in a softmax over everything. The result has the same bits
/// whatever the number of threads.
///
/// # Errors
/// Matrices whose lengths do not match their sizes, or that are not cut into such of `tokens` rows; an index that
/// names none of them; a mask that does not reach; or a wrong length of `q` or `out`.
pub fn attention<'o>(attention: &Attention, out: impl Into<FloatsMut<'o>>) -> Result<(), KernelError> {
    let &Attention { q, queries, indices, ref keys, ref values, tokens, ref mask } = attention;
    let out = out.into();
    for matrix in [keys, values] {
        matrix.check()?;
        matrix.check_groups(tokens)?;
        check_indices(indices, matrix, tokens)?;
    }
    let total = product(indices.len(), queries)?;
    check_length("q", q.len(), product(total, keys.k)?, "`queries` rows as long as a key for each entry")?;
    mask.map_or(Ok(()), |mask| mask.check(indices.len(), queries, tokens))?;
    out.check(product(total, values.k)?, "`queries` rows as long as a value for each entry")?;
    let q = q.widen();
    out.rounded(|out| {
        if out.is_empty() {
            return;
        }
        let isa = Isa::detect();
        let cost = |matrix: &Matrix, orientation, columns| {
            let matrix = &Matrix { n: tokens, ..*matrix };
            let product = StoredProduct { x: &q, m: queries, matrix, orientation, threads: 1, cut_from: None };
            engine::cost(isa, &product, columns)
        };
        let token_cost = cost(keys, Orientation::Transposed, tokens) + cost(values, Orientation::Plain, values.k);
        let threads = threads_for(indices.len() as f64 * token_cost);
        Attending { attention, q: &q, isa, seam: seam(keys, values) }.run(threads, out);
    });
    Ok(())
}

/// The tokens after which blocks and bytes of both end.
fn seam(keys: &Matrix, values: &Matrix) -> usize {
    let (keys, values) = (keys.seam(), values.seam());
    keys / gcd(keys, values) * values
}

struct Attending<'a> {
    attention: &'a Attention<'a>,
    q: &'a [f32],
    isa: Isa,
    seam: usize,
}

/// Queries of entries that share keys and values, and some of their tokens.
struct Task<'a> {
    matrix: usize,
    /// Counted through all entries.
    rows: Range<usize>,
    tokens: Range<usize>,
    /// The weighted values of each.
    out: &'a mut [f32],
    state: &'a mut [Row],
}

impl Attending<'_> {
    fn run(&self, threads: usize, out: &mut [f32]) {
        let &Attention { queries, indices, ref values, tokens, .. } = self.attention;
        let blocks: Vec<(usize, Range<usize>)> = runs(indices)
            .flat_map(|run| {
                let rows = run.entries.start * queries..run.entries.end * queries;
                // Blocks of nearly equal height.
                let count = rows.len().div_ceil(ROWS);
                (0..count).map(move |i| {
                    let at = |i: usize| rows.start + i * rows.len() / count;
                    (run.matrix, at(i)..at(i + 1))
                })
            })
            .collect();
        // By the sizes alone, so that no number of threads changes a sum.
        let split = if blocks.len() < TASKS { SPLIT.next_multiple_of(self.seam) } else { usize::MAX };
        let ranges: Vec<Range<usize>> =
            (0..tokens).step_by(split).map(|start| start..tokens.min(start.saturating_add(split))).collect();
        let total = indices.len() * queries;
        let mut state = vec![Row::EMPTY; total * ranges.len()];
        out.fill(0.0);
        let mut others = vec![0.0; total * values.k * ranges.len().saturating_sub(1)];
        {
            let (mut rest, mut first, mut states) = (&mut others[..], &mut *out, &mut state[..]);
            let mut tasks = Vec::with_capacity(ranges.len() * blocks.len());
            for (i, range) in ranges.iter().enumerate() {
                for (matrix, rows) in &blocks {
                    let from = if i == 0 { &mut first } else { &mut rest };
                    let (out, left) = std::mem::take(from).split_at_mut(rows.len() * values.k);
                    *from = left;
                    let (state, left) = std::mem::take(&mut states).split_at_mut(rows.len());
                    states = left;
                    tasks.push(Task { matrix: *matrix, rows: rows.clone(), tokens: range.clone(), out, state });
                }
            }
            threads::for_each_part(threads, tasks.into_iter(), &|mut task| self.attend(&mut task, true));
        }
        for row in 0..total {
            let to = &mut out[row * values.k..][..values.k];
            let mut known = state[row];
            for i in 1..ranges.len() {
                let at = i * total + row;
                let (own, other) = known.join(self.isa, &state[at]);
                let from = &others[(at - total) * values.k..][..values.k];
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *to * own + from * other);
            }
            state[row] = known;
        }
        let again =
            blocks.into_iter().filter(|(_, rows)| state[rows.clone()].iter().any(|row| self.counts_hidden(row)));
        for (matrix, rows) in again.collect::<Vec<_>>() {
            let state = &mut state[rows.clone()];
            let out = &mut out[rows.start * values.k..rows.end * values.k];
            state.fill(Row::EMPTY);
            out.fill(0.0);
            self.attend(&mut Task { matrix, rows, tokens: 0..tokens, out, state }, false);
        }
        for (out, row) in out.chunks_exact_mut(values.k).zip(&state) {
            let factor = 1.0 / row.sum;
            for out in out {
                *out *= factor;
            }
        }
    }

    /// Whether tokens that were passed over have weights beside those that a query sees.
    fn counts_hidden(&self, row: &Row) -> bool {
        row.hidden
            && match self.attention.mask.and_then(|mask| mask.replacement()) {
                // Minus infinity gives NaN where there is nothing else, as no sum does.
                Some(hidden) => hidden.is_nan() || hidden != f32::NEG_INFINITY && hidden >= row.max + LEAST,
                None => row.max <= HIDDEN / 2.0,
            }
    }

    /// Goes through the tokens of a task; those that are hidden from all of its queries are passed over if `skip`.
    fn attend(&self, task: &mut Task, skip: bool) {
        let &Self { attention: &Attention { queries, ref keys, ref values, tokens, ref mask, .. }, q, isa, seam } =
            self;
        let (head, value) = (keys.k, values.k);
        let count = task.rows.len();
        let chunk = if count <= FEW { LONG_CHUNK } else { CHUNK };
        let chunk = chunk.next_multiple_of(seam).min(task.tokens.len());
        let (mut scores, mut weighted) = (vec![0.0; count * chunk], vec![0.0; count * value]);
        let (mut key_numbers, mut value_numbers) = (Numbers::default(), Numbers::default());
        for start in task.tokens.clone().step_by(chunk) {
            let mut range = start..task.tokens.end.min(start + chunk);
            if let (Some(mask), true) = (mask, skip) {
                let mut seen: Option<Range<usize>> = None;
                for (row, state) in task.rows.clone().zip(task.state.iter_mut()) {
                    let own = mask.seen(row / queries, row % queries, &range);
                    state.hidden |= own.as_ref().is_none_or(|own| *own != range) || mask.replacement().is_some();
                    seen = match (seen, own) {
                        (Some(a), Some(b)) => Some(a.start.min(b.start)..a.end.max(b.end)),
                        (a, b) => a.or(b),
                    };
                }
                let Some(seen) = seen else { continue };
                range = seen.start / seam * seam..seen.end;
            }
            let len = range.len();
            let rows = task.matrix * tokens + range.start..task.matrix * tokens + range.end;
            let scores = &mut scores[..count * len];
            let matrix = &keys.part(isa, rows.clone(), &mut key_numbers);
            let x = &q[task.rows.start * head..task.rows.end * head];
            multiply(isa, x, matrix, Orientation::Transposed, scores);
            for ((scores, row), (state, out)) in scores
                .chunks_exact_mut(len)
                .zip(task.rows.clone())
                .zip(task.state.iter_mut().zip(task.out.chunks_exact_mut(value)))
            {
                if let Some(mask) = mask {
                    let hidden = if skip { f32::NEG_INFINITY } else { mask.replacement().unwrap_or_default() };
                    let (entry, query) = (row / queries, row % queries);
                    crate::simd::run(isa, Masked { mask, entry, query, first: range.start, hidden, scores });
                }
                let factor = state.take(isa, scores);
                if factor < 1.0 {
                    for out in out {
                        *out *= factor;
                    }
                }
            }
            let matrix = &values.part(isa, rows, &mut value_numbers);
            multiply(isa, scores, matrix, Orientation::Plain, &mut weighted);
            task.out.iter_mut().zip(&weighted).for_each(|(out, weighted)| *out += weighted);
        }
    }
}

/// A product with a matrix, on this thread.
fn multiply(isa: Isa, x: &[f32], matrix: &Matrix, orientation: Orientation, out: &mut [f32]) {
    let (depth, columns) = orientation.sides(matrix.n, matrix.k);
    if depth == 0 {
        return out.fill(0.0);
    }
    let product = StoredProduct { x, m: x.len() / depth, matrix, orientation, threads: 1, cut_from: None };
    product.multiply(isa, &mut Output::new(out, columns));
}
