//! Random nestings of array types in plain code, against the dense arrays that they stand for.
//!
//! A seed draws formats, views, adapters and structured arrays around each other, and a few of the functions below. A
//! failure names the seed, the types, the function and what differs. `TACIT_SWEEP=full` tries ten times as many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_rs::Dtype::{self, Bfloat16 as BF16, Float16 as F16, Float32 as F32};
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexMutOp, TryIndexOp};
use mlx_rs::{Array, ops, stop_gradient};
use tacit_arrays::format::{Affine, Granularity};
use tacit_arrays::{
    AffineArray, Batched, Cast, Concat, Constant, Diagonal, Dora, E4m3Array, Identity, Int8Array, Lora, LoraSet,
    LowRank, Masked, Mxfp8Array, Nf4Array, Rotated, ScaleRule, Scaled, ScaledChannels, Sliced, Sparse24, Stacked,
    TernaryArray, Transposed,
};
use tacit_conformance::Sweep;
use tacit_conformance::oracle::{Oracle, floats};
use tacit_core::{Policy, Result, Value};

use crate::normal;

/// Rows and columns: squares, whole groups of 32, and parts of one.
const EXTENTS: [[i32; 2]; 7] = [[8, 64], [32, 32], [6, 12], [4, 96], [16, 16], [4, 32], [40, 8]];

/// The functions that a seed draws for its arrays.
const DRAWN: usize = 14;

/// How far what is `f32` throughout may be off: some sums of a gradient cancel.
const SINGLE: f64 = 3e-3;

#[test]
fn matrices() {
    let trial = |(dtype, tolerance)| Trial { cases: MATRICES, batch: &[], dtype, tolerance, wide: false };
    check(&[(F32, 3e-2), (F16, 3e-2), (BF16, 1e-1)].map(trial), 70);
}

#[test]
fn stacks() {
    let trial = |(dtype, tolerance)| Trial { cases: STACKS, batch: &[3], dtype, tolerance, wide: false };
    check(&[(F32, 2e-2), (F16, 1e-1), (BF16, 2e-1)].map(trial), 45);
}

/// What is in the range of `f16` stays there, though some of its factors are large, and others small.
#[test]
fn ranges() {
    check(&[Trial { cases: MATRICES, batch: &[], dtype: F16, tolerance: 3e-2, wide: true }], 100);
}

/// Functions that are compared on arrays of one rank and dtype.
struct Trial {
    cases: &'static [Case],
    /// The axes before rows and columns.
    batch: &'static [i32],
    dtype: Dtype,
    tolerance: f64,
    /// With factors far from one and operands of some hundreds: derivatives leave the range, values are compared.
    wide: bool,
}

/// Compares on the arrays of so many seeds.
#[track_caller]
fn check(trials: &[Trial], seeds: usize) {
    let seeds = if Sweep::current() == Sweep::Full { 10 * seeds } else { seeds };
    let found = |trial| (0..seeds).flat_map(move |seed| Trial::outcomes(trial, seed).expect("arrays"));
    let outcomes: Vec<_> = trials.iter().flat_map(found).collect();
    let failures: Vec<&String> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    failures.iter().take(10).for_each(|failure| eprintln!("{failure}"));
    assert!(failures.is_empty(), "{} of {} comparisons differ", failures.len(), outcomes.len());
    assert!(outcomes.len() > trials.len() * seeds * DRAWN / 2, "only {} comparisons", outcomes.len());
}

impl Trial {
    /// What a seed's comparisons found.
    fn outcomes(&self, seed: usize) -> Result<Vec<Result<(), String>>> {
        let _allow = Policy::Allow.scope();
        let mut random = Random { state: seed as u64, dtype: self.dtype, wide: self.wide, magnitude: 1.0 };
        let shape = [self.batch, &EXTENTS[random.below(EXTENTS.len())]].concat();
        let depths = [1 + random.below(2), random.below(3)];
        let [w, other] = [random.nested(depths[0], &shape)?, random.nested(depths[1], &shape)?];
        let mut outcomes = Vec::new();
        for _ in 0..DRAWN {
            let case = &self.cases[random.below(self.cases.len())];
            let second = if case.0.contains("other") { other.clone() } else { Array::from_int(0).into() };
            let operands = random.operands(w.clone(), second, &shape)?;
            let context = |what| format!("seed {seed}, {} and {}: {what}", nesting(&w), nesting(&operands[1]));
            outcomes.extend(self.compare(case, &operands).map(|outcome| outcome.map_err(context)));
        }
        Ok(outcomes)
    }

    /// What differs; nothing where dense operands have no result, or one that is out of range.
    fn compare(&self, &(name, run): &'static Case, operands: &[Value]) -> Option<Result<(), String>> {
        let dense = operands.iter().map(Value::dense).collect::<Result<Vec<_>>>().ok()?;
        let expected = floats(&run(&dense).ok()?).ok()?;
        if self.wide && !expected.iter().all(|element| element.is_finite()) {
            return None;
        }
        let oracle = self.oracle(name, operands);
        let compare = || oracle.compare(name, operands, move |arrays| Ok(vec![run(&arrays)?]));
        let compared = catch_unwind(AssertUnwindSafe(compare)).map_err(|_| format!("{name} panics"));
        match compared.and_then(|compared| compared.map_err(|mismatch| mismatch.to_string())) {
            // MLX has no derivative of some ops.
            Err(what) if what.contains(": the dense gradient side failed") => None,
            outcome => Some(outcome.map(|_| ())),
        }
    }

    fn oracle(&self, name: &str, operands: &[Value]) -> Oracle {
        let nested: String = operands[..2].iter().map(nesting).collect();
        let half = self.dtype != F32 || name.contains("F16") || nested.contains("Cast");
        let tolerance = if name.contains("BF16") {
            self.tolerance.max(5e-2)
        } else if half {
            self.tolerance
        } else {
            SINGLE
        };
        let oracle = Oracle::new(tolerance).least(if self.dtype == F32 { 0.05 } else { 1.0 }).allowing().eager_only();
        // The dense gradient of one number, as of a constant, is summed in its half type, and loses its terms.
        let lost = half && (nested.contains("number") || name.contains("scalar"));
        if self.wide || lost { oracle.values_only() } else { oracle }
    }
}

/// The types of an implicit array and of those in it.
fn nesting(value: &Value) -> String {
    let array = match value {
        Value::Dense(array) if array.size() == 1 && array.dtype().is_float() => return "number".to_owned(),
        Value::Dense(_) => return "dense".to_owned(),
        Value::Implicit(array) => array,
    };
    let name = value.to_string().split('(').next().unwrap_or_default().to_owned();
    let children = array.children();
    let inner: Vec<_> = children.iter().map(|(_, child)| nesting(child)).filter(|inner| inner != "dense").collect();
    if inner.is_empty() { name } else { format!("{name}({})", inner.join(", ")) }
}

/// Arrays that a seed determines.
struct Random {
    state: u64,
    dtype: Dtype,
    wide: bool,
    /// What the elements of the innermost arrays are about as large as.
    magnitude: f32,
}

impl Random {
    /// A number below the bound, by Steele's splitmix64.
    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % bound as u64) as usize
    }

    fn number(&self, number: f32) -> Result<Array> {
        Ok(Array::from_f32(number).as_dtype(self.dtype)?)
    }

    fn normal(&mut self, shape: &[i32], factor: f32) -> Result<Array> {
        Ok(normal(self.below(1 << 32) as u64, shape).as_dtype(self.dtype)?.multiply(self.number(factor)?)?)
    }

    /// The factors of a matrix of rank two, the left one as large as the right one is small.
    fn factors(&mut self, n: i32, k: i32) -> Result<[Array; 2]> {
        let large = if self.wide { 256.0 } else { 1.0 };
        Ok([self.normal(&[n, 2], large)?, self.normal(&[2, k], 1.0 / large)?])
    }

    fn leaf(&mut self, shape: &[i32]) -> Result<Value> {
        let x = self.normal(shape, self.magnitude)?;
        let whole = x.dim(-1) % 32 == 0;
        Ok(match (self.below(14), shape) {
            (0, _) => x.into(),
            (1, _) => Nf4Array::quantize(&x, 32)?.into(),
            (2, _) if whole => AffineArray::quantize(&x, Affine { bits: 4, group: 32 })?.into(),
            (3, _) if whole => Mxfp8Array::quantize(&x, ScaleRule::Ceil)?.into(),
            (4, _) => E4m3Array::quantize(&x, 32)?.into(),
            (5, _) => TernaryArray::quantize(&x, 32)?.into(),
            (6, _) => Int8Array::quantize(&x, 32)?.into(),
            (7, [_, _]) => Int8Array::quantize(&x, Granularity::Column)?.into(),
            (8, _) => Constant::full(shape, &self.number(0.5)?)?.into(),
            (9, _) if x.dim(-1) % 4 == 0 => Sparse24::prune(&x)?.into(),
            (10, &[n, k]) if n == k => Diagonal::new(self.normal(&[n], 1.0)?)?.into(),
            (11, &[n, k]) if n == k => Identity::new(n, self.dtype)?.into(),
            (10..=12, &[n, k]) => self.factors(n, k).and_then(|[left, right]| LowRank::new(left, right))?.into(),
            (10, [3, ..]) if whole => Batched::new(Int8Array::quantize(&x, 32)?, &[3], vec![2, 0, 1], false)?.into(),
            _ => Int8Array::quantize(&x, Granularity::Row)?.into(),
        })
    }

    /// An array around others, so many deep.
    fn nested(&mut self, depth: usize, shape: &[i32]) -> Result<Value> {
        let Some(depth) = depth.checked_sub(1) else { return self.leaf(shape) };
        match *shape {
            [n, k] if self.below(9) == 0 => Ok(LowRank::new(self.nested(depth, &[n, 4])?, self.leaf(&[4, k])?)?.into()),
            [n, k] if self.below(3) == 0 => self.adapter(depth, n, k),
            [count, n, k] if self.below(3) == 0 => {
                let experts = (0..count).map(|_| self.nested(depth, &[n, k])).collect::<Result<_>>()?;
                Ok(Stacked::new(experts)?.into())
            }
            _ => self.view(depth, shape),
        }
    }

    fn adapter(&mut self, depth: usize, n: i32, k: i32) -> Result<Value> {
        let base = self.nested(depth, &[n, k])?;
        let [b, a] = self.factors(n, k)?;
        Ok(match self.below(3) {
            0 => Lora::new(base, a, b, 2.0)?.into(),
            1 => Dora::with_magnitudes(base, a, b, self.normal(&[n], 1.0)?.as_dtype(F32)?, 2.0)?.into(),
            _ => {
                let loras = [Lora::new(base.clone(), a.clone(), b.clone(), 1.0)?, Lora::new(base, a, b, 2.0)?];
                LoraSet::new(&loras, Array::from_slice(&[self.below(2) as u32], &[]))?.into()
            }
        })
    }

    fn view(&mut self, depth: usize, shape: &[i32]) -> Result<Value> {
        let (rank, axis) = (shape.len(), self.below(shape.len()));
        Ok(match self.below(8) {
            0 => {
                // Two axes are swapped, which is its own inverse.
                let (mut axes, mut inner) = ([0, 1, 2], shape.to_vec());
                axes.swap(axis, (axis + 1) % rank);
                inner.swap(axis, (axis + 1) % rank);
                Transposed::new(self.nested(depth, &inner)?, &axes[..rank])?.into()
            }
            1 | 2 => self.scaled(depth, shape, axis)?,
            3 => Masked::new(self.nested(depth, shape)?, self.normal(shape, 1.0)?.gt(self.number(0.0)?)?)?.into(),
            4 if shape[axis] > 1 => {
                let (mut first, mut second) = (shape.to_vec(), shape.to_vec());
                first[axis] = (shape[axis] / [2, 4][self.below(2)]).max(1);
                second[axis] -= first[axis];
                Concat::new(vec![self.nested(depth, &first)?, self.nested(depth, &second)?], axis as i32)?.into()
            }
            5 => {
                let mut start = vec![1; rank];
                start[rank - 1] = [32, 16][self.below(2)]; // Where a group starts, or within one.
                let sum = |a: &[i32], b: &[i32]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<i32>>();
                let stop = sum(&start, shape);
                Sliced::new(self.nested(depth, &sum(&start, &stop))?, &start, &stop)?.into()
            }
            // Some extents have no Hadamard matrix.
            6 => self.nested(depth, shape).map(|w| Rotated::new(w.clone(), axis as i32).map_or(w, Value::from))?,
            _ => {
                let dtype = self.dtype;
                self.dtype = if dtype == F32 { [F16, BF16][self.below(2)] } else { F32 };
                let inner = self.nested(depth, shape);
                self.dtype = dtype;
                Cast::new(inner?, dtype)?.into()
            }
        })
    }

    /// Scales around elements that are as small as the scales are large, or the other way.
    fn scaled(&mut self, depth: usize, shape: &[i32], axis: usize) -> Result<Value> {
        let factor = if self.wide { [256.0, 1e-3][self.below(2)] } else { 1.0 };
        self.magnitude = 1.0 / factor;
        let inner = self.nested(depth, shape);
        self.magnitude = 1.0;
        if self.below(3) == 0 {
            return Ok(Scaled::new(inner?, &self.number(0.5 * factor)?)?.into());
        }
        Ok(ScaledChannels::new(inner?, &self.normal(&[shape[axis]], factor)?, axis as i32)?.into())
    }

    /// What the functions take, in the order in which they name it.
    fn operands(&mut self, w: Value, other: Value, shape: &[i32]) -> Result<Vec<Value>> {
        let (n, k) = (shape[shape.len() - 2], shape[shape.len() - 1]);
        let size = if self.wide { 200.0 } else { 1.0 };
        let shapes: [&[i32]; 7] = [&[5, k], &[5, n], &[k], &[n], &[3, 4, k], &[3, 4, n], &[6, 1, k]];
        let mut arrays = shapes.iter().map(|shape| self.normal(shape, size)).collect::<Result<Vec<_>>>()?;
        arrays.extend([self.normal(shape, 1.0)?, self.number(0.75)?]);
        arrays.extend([Array::from_slice(&[1, -1, 0, 1], &[4]), Array::from_slice(&[0u32, 2, 1, 1, 0, 2], &[6])]);
        Ok([w, other].into_iter().chain(arrays.into_iter().map(Value::from)).collect())
    }
}

/// A function of the operands, and its text as a name.
type Case = (&'static str, fn(&[Array]) -> Result<Array, Exception>);

macro_rules! cases {
    ($operands:pat => $($result:expr;)*) => {
        &[$((stringify!($result), |operands| {
            #[allow(unused_variables, reason = "a function needs some of them")]
            let $operands = operands else { return Err(Exception::custom("other operands")) };
            $result
        })),*]
    };
}

/// Not `w.t().reshape(..)`: MLX fails on dense operands that are contiguous by columns. Nor writes of whole rows: a
/// packed array rounds them to its format.
const MATRICES: &[Case] = cases! { [w, other, x, y, row, column, xs, ys, tokens, dense, scalar, rows, experts] =>
    x.matmul(w.t()); y.matmul(w); w.matmul(x.t()); w.t().matmul(y.t()); column.matmul(w); w.matmul(xs.swap_axes(1, 2)?);
    w.matmul(other.t()); ops::einsum("bij,kj->bki", [xs, w]); x.matmul(stop_gradient(w)?.t()); w.t().matmul(other);
    ops::addmm(column, x, w.t(), 0.5, -2.0); ops::addmm(w, y.t(), x, 0.5, -2.0); x.matmul(w.t())?.matmul(other);
    x.matmul(w.add(other)?.t()); y.matmul(w.divide(scalar)?); w.add(other); w.take(rows); w.matmul(w.t());
    x.matmul(w.multiply(row)?.t()); y.matmul(w.multiply(column.expand_dims(1)?)?); w.multiply(other); w.multiply(row);
    scalar.divide(w.square()?.add(scalar)?); w.multiply(column.expand_dims(1)?); dense.subtract(w); w.sum_axis(0, None);
    ops::gather_mm(tokens, ops::stack(&[w, other, w], 0)?.swap_axes(1, 2)?, None, experts, None);
    row.multiply(w.multiply(column.expand_dims(1)?)?); w.multiply(scalar)?.exp(); ops::softmax_axis(w, -1, false);
    ops::select(row.gt(scalar)?, ops::zeros_dtype(&[], w.dtype())?, w); ops::select(dense.gt(scalar)?, w, other);
    ops::select(dense.gt(scalar)?, w, ops::zeros_dtype(&[], w.dtype())?); ops::concatenate(&[w, other], 0);
    ops::concatenate(&[dense, w, x], 0); x.matmul(w.take_axis(rows, 0)?.t()); w.try_index((..).stride_by(-1));
    ops::concatenate(&[x, x], 1)?.matmul(ops::concatenate(&[w, other], 1)?.t()); w.as_dtype(F16);
    x.matmul(ops::stack(&[w, other], 0)?.swap_axes(1, 2)?); x.matmul(ops::concatenate(&[w, other], 0)?.t());
    ops::stack(&[w.t(), other.t()], 1)?.transpose_axes(&[2, 1, 0]); w.reshape(&[-1, 2, w.dim(1) / 2]);
    x.try_index((.., 1..9))?.matmul(w.try_index((.., 1..9))?.t()); y.try_index((.., 1..3))?.matmul(w.try_index(1..3)?);
    w.as_dtype(F16)?.as_dtype(F32); x.matmul(w.reshape(&[2, -1, w.dim(1)])?.swap_axes(-1, -2)?);
    { let mut w = w.clone(); w.try_index_mut((1..3, 1..3), dense.try_index((1..3, 1..3))?)?; Ok(w) };
    w.expand_dims(1)?.transpose_axes(&[2, 0, 1]); ops::broadcast_to(w.expand_dims(1)?, &[2, w.dim(0), 3, w.dim(1)]);
    Ok(w.split_equal(2, 0)?.swap_remove(1)); Ok(ops::split_at_indices(w, &[3, 8], -1)?.swap_remove(1));
    x.matmul(w.as_dtype(BF16)?.as_dtype(x.dtype())?.t()); x.as_dtype(F16)?.matmul(w.t());
};

const STACKS: &[Case] = cases! { [w, other, x, y, row, column, xs, ys, tokens, dense, scalar, rows, experts] =>
    x.matmul(w.swap_axes(1, 2)?); y.matmul(w); xs.matmul(w.swap_axes(1, 2)?); ys.matmul(w); column.matmul(w);
    w.swap_axes(1, 2)?.matmul(ys.swap_axes(1, 2)?); ops::einsum("ebk,enk->ben", [xs, w]); w.multiply(row);
    xs.expand_dims(1)?.matmul(w.swap_axes(1, 2)?.expand_dims(0)?); w.matmul(other.swap_axes(1, 2)?); w.as_dtype(F16);
    ops::addmm(column, xs, w.swap_axes(1, 2)?, 0.5, -2.0); w.swap_axes(1, 2)?.matmul(other); w.try_index((rows, rows));
    ops::gather_mm(ys, w, experts, experts, None); ops::gather_mm(w, xs.swap_axes(1, 2)?, experts, experts, None);
    ops::gather_mm(tokens, w.swap_axes(1, 2)?, None, &ops::sort_axis(experts, 0)?, true);
    ops::gather_mm(xs.expand_dims(1)?, w.swap_axes(1, 2)?, None, &experts.reshape(&[3, 2])?, None);
    w.multiply(column.expand_dims(1)?); x.matmul(w.try_index(-2)?.t()); w.reshape(&[3, 2, -1, w.dim(2)]);
    ops::gather_mm(tokens, w.divide(scalar)?.swap_axes(1, 2)?, None, experts, None);
    ops::gather_mm(tokens, ops::concatenate(&[other, w], 0)?.swap_axes(1, 2)?, None, &experts.multiply(experts)?, None);
    ops::softmax_axis(xs.matmul(w.swap_axes(1, 2)?)?, -1, true)?.matmul(other); w.take_axis(rows.reshape(&[2, 2])?, 0);
    xs.matmul(ops::concatenate(&[w, other], 1)?.swap_axes(1, 2)?); x.matmul(w.reshape(&[-1, w.dim(2)])?.t());
    xs.matmul(w.multiply(column.expand_dims(1)?)?.swap_axes(1, 2)?); w.transpose_axes(&[1, 2, 0])?.multiply(scalar);
    xs.expand_dims(1)?.matmul(ops::broadcast_to(w.expand_dims(1)?, &[3, 2, w.dim(1), w.dim(2)])?.swap_axes(2, 3)?);
    w.try_index(((..).stride_by(-2), (..).stride_by(2))); w.transpose_axes(&[1, 0, 2])?.reshape(&[-1, 3 * w.dim(2)]);
    xs.try_index(1..1)?.matmul(w.try_index(1..1)?.swap_axes(1, 2)?); Ok(w.split_equal(2, 1)?.swap_remove(1));
    ops::broadcast_to(w.expand_dims(1)?, &[3, 2, w.dim(1), w.dim(2)]); ops::concatenate(&[w, other], 0);
    ops::softmax_axis(w, 1, false); ops::select(dense.gt(scalar)?, w, ops::zeros_dtype(&[], w.dtype())?);
};
