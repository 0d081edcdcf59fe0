//! What the calls of a primitive are made of.

use std::cell::Cell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Value};

use crate::call::Call;
use crate::case::Case;
use crate::subject::Subject;

/// What a generator makes calls of: a subject in one case, and dense operands beside it.
pub(crate) struct Scene<'a> {
    subject: &'a Subject,
    pub(super) case: &'a Case,
    /// The subject.
    pub(super) w: Value,
    pub(super) shape: Vec<i32>,
    drawn: Cell<u64>,
}

/// Makes the calls of one primitive.
pub(crate) type Generator = fn(&Scene) -> Vec<Call>;

impl<'a> Scene<'a> {
    /// The scene of a case; `None` where the subject cannot stand for the aval.
    pub(crate) fn new(subject: &'a Subject, case: &'a Case) -> Option<Self> {
        let w = subject.normal(&case.aval, case.seed)?;
        Some(Self { subject, case, w, shape: case.aval.shape.clone(), drawn: Cell::new(0) })
    }

    pub(super) fn dense(&self, shape: &[i32]) -> Value {
        self.drawn.set(self.drawn.get() + 1);
        self.case.array(shape, self.drawn.get()).into()
    }

    /// Indices below a bound, of a shape; half of them count from the end.
    pub(super) fn indices(&self, bound: i32, shape: &[i32]) -> Value {
        let size: i32 = shape.iter().product();
        let step = self.case.seed as i32 + 1;
        let values: Vec<i32> =
            (0..size).map(|i| (i * step + step) % bound - if i % 2 == 1 { bound } else { 0 }).collect();
        Array::from_slice(&values, shape).into()
    }

    /// Another array of the subject's type.
    pub(super) fn another(&self, shape: &[i32]) -> Option<Value> {
        self.drawn.set(self.drawn.get() + 1);
        self.subject.normal(&Aval::new(shape, self.case.aval.dtype), self.case.seed + 64 * self.drawn.get())
    }

    /// A function of the subject alone.
    pub(super) fn alone(&self, name: &str, run: impl Fn(&Array) -> Result<Array, Exception> + 'static) -> Call {
        Call::new(name, vec![self.w.clone()], move |arrays| run(&arrays[0]))
    }

    /// The last two extents, if there are two.
    pub(super) fn matrix(&self) -> Option<(i32, i32)> {
        self.shape.last_chunk().map(|&[rows, columns]| (rows, columns))
    }

    /// The shape with other last two extents.
    pub(super) fn with_matrix(&self, rows: i32, columns: i32) -> Vec<i32> {
        let batch = self.shape.len().saturating_sub(2);
        [&self.shape[..batch], &[rows, columns]].concat()
    }

    /// The last axis as MLX counts it.
    pub(super) fn last(&self) -> i32 {
        self.shape.len() as i32 - 1
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.case.aval.dtype
    }
}
