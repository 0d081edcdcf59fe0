//! Weights that record what they are multiplied with.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{AddMM, Gather, GatherMM, TypedPrimitive};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Primitive, Result, Value, any_tracer, implicit};

use crate::avals::axes::extent;
use crate::avals::checks::check_float;
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Factor, Gain, Linear, Product, as_given};
use crate::families::view::{Move, View};
use crate::training::observation::{Observation, Recorded};
use crate::training::recorder::{Ledger, Meeting, Recorder, in_transformation};

/// A weight that records what it is multiplied with while plain code runs.
///
/// It stands for the weight, dense or implicit, and everything but its products is the weight's own. A product sums `x^T x`
/// of the rows that it is multiplied with, in `f32`, and is computed before the next: so the sums of many batches take the
/// memory of one, and what a model does in one call is done when it returns. Transposes, reshapes and slices that keep the
/// axis of the inputs whole are observed as the weight itself is, and of a stack of matrices each is, through batched
/// products and `gather_mm`. Lookups of rows, as of an embedding, are no products.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::Observed;
/// use tacit_core::implicit;
///
/// let w = Observed::new(&ops::ones::<f32>(&[8, 2])?)?;
/// for batch in [[1f32, 0.0, 2.0, 3.0], [0.0, 1.0, 1.0, 1.0]] {
///     let x = Array::from_slice(&batch, &[2, 2]);
///     implicit((x, &w), |(x, w)| x.matmul(w.t()))?;
/// }
/// let seen = w.finish()?;
/// assert_eq!(seen.gram()?.as_slice::<f32>(), [6.0, 7.0, 7.0, 11.0]);
/// assert_eq!(seen.rows(), [4]);
/// # Ok(())
/// # }
/// ```
///
/// What is not computed yet cannot be summed: a product inside `compile`, `vmap` or a gradient is an error. A clone records
/// to the same sums; one that is read from a file records nothing.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Observed", default = observed_default, family(Linear, Cut, View))]
pub struct Observed {
    /// The weight.
    #[implicit(get)]
    inner: Value,
    #[implicit(aux)]
    recorder: Recorder,
    /// The axis of the weight that each axis is, where all of it is there.
    #[implicit(aux)]
    axes: Vec<Option<usize>>,
    #[implicit(aux)]
    aval: Aval,
}

impl Observed {
    /// `weight`, which records from now on.
    ///
    /// # Errors
    ///
    /// It is not a float matrix or a stack of them.
    pub fn new(weight: impl Into<Value>) -> Result<Self> {
        Self::recording(weight.into(), Ledger::new(Recorded::Products))
    }

    /// The same, but of `x^T x` only the diagonal is recorded: `4 k` bytes for `k` inputs, in place of `4 k^2`. That is all that
    /// [`Observation::mean_squares`] and [`WeightedSearch`](crate::WeightedSearch) look at.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn of_squares(weight: impl Into<Value>) -> Result<Self> {
        Self::recording(weight.into(), Ledger::new(Recorded::Squares))
    }

    /// Another weight of the same model, of which the same is recorded from now on. Where both have met the very same rows, they have
    /// one [`Observation`]: queries, keys and values of a layer take the memory of one, and the time.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::Observed;
    /// use tacit_core::{array_id, implicit};
    ///
    /// let keys = Observed::new(&ops::ones::<f32>(&[8, 2])?)?;
    /// let values = keys.beside(&ops::ones::<f32>(&[4, 2])?)?;
    /// let x = ops::ones::<f32>(&[3, 2])?;
    /// for weight in [&keys, &values] {
    ///     implicit((&x, weight), |(x, w)| x.matmul(w.t()))?;
    /// }
    /// assert_eq!(array_id(keys.finish()?.gram()?), array_id(values.finish()?.gram()?));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), or the recording of this one has ended.
    pub fn beside(&self, weight: impl Into<Value>) -> Result<Self> {
        Self::recording(weight.into(), self.recorder.ledger().ok_or_else(|| self.ended())?)
    }

    fn recording(inner: Value, ledger: Ledger) -> Result<Self> {
        let aval = inner.aval()?;
        check_float("the observed weight", &aval)?;
        let rank = aval.shape.len();
        if !(2..=3).contains(&rank) {
            return Err(Error::invalid(
                format!("the observed weight is {aval}, which is neither a matrix nor a stack of them"),
                "observe a weight of two or three axes",
            ));
        }
        Ok(Self { inner, recorder: Recorder::new(rank == 3, ledger), axes: (0..rank).map(Some).collect(), aval })
    }

    /// Whether a product was seen, as long as the recording lasts.
    #[must_use]
    pub fn met(&self) -> bool {
        self.recorder.has_met()
    }

    /// What was seen so far, along the last axis of the weight; nothing is recorded from now on.
    ///
    /// # Errors
    ///
    /// No product was seen, or one along another axis; activations were not finite; or the recording ended before.
    pub fn finish(&self) -> Result<Observation> {
        let mut by_axis = self.recorder.end().ok_or_else(|| self.ended())?;
        let last = self.axes.len() - 1;
        if let Some(axis) = by_axis.keys().find(|&&axis| axis != last) {
            return Err(Error::invalid(
                format!("the weight {} was multiplied along axis {axis}, and its inputs lie along the last", self.aval),
                "observe a weight whose products sum over its last axis, as `x W^T` does, or store its transpose",
            ));
        }
        let observation = by_axis.remove(&last).ok_or_else(|| {
            Error::invalid(
                format!("the weight {} was not multiplied while it was observed", self.aval),
                "run the model on inputs that reach it, or leave it out",
            )
        })?;
        observation.finite()
    }

    fn ended(&self) -> Error {
        Error::invalid(
            format!("the recording of {} has ended", self.aval),
            "finish a recording once, and keep what it gives",
        )
    }

    fn mapped(&self, axes: Vec<Option<usize>>, f: impl FnOnce(Array) -> Result<Array>) -> Result<Value> {
        Self::around(implicit(&self.inner, f)?, &self.recorder, axes)
    }

    fn around(inner: Value, recorder: &Recorder, axes: Vec<Option<usize>>) -> Result<Value> {
        Ok(Self { aval: inner.aval()?, inner, recorder: recorder.clone(), axes }.into())
    }

    /// Records rows `x`, with the inputs along the axis that `product` sums over, beside a result of the same product.
    fn record(&self, product: Product, x: &Value, result: &Value) -> Result<()> {
        if !self.recorder.is_on() {
            return Ok(());
        }
        let x = match x.downcast::<Self>() {
            Some(other) => &other.inner,
            None => x,
        };
        let x = &implicit(x, |x| match product {
            // The rows that `W x` meets are the columns of `x`.
            Product::Left if x.ndim() > 1 => x.swap_axes(-1, -2),
            _ => Ok(x),
        })?
        .dense()?;
        check_computed(x, result)?;
        let rank = self.axes.len();
        let along = self.axis(if product == Product::Left { rank - 1 } else { rank - 2 })?;
        let k = x.dim(-1);
        let rows = match self.stack()? {
            None => x.reshape(&[extent(&x.shape()[..x.ndim() - 1]) as i32, k])?,
            Some(count) => {
                // Of a batch `[.., e, n, k]` the matrices come first.
                let x = if x.ndim() < 2 { x.reshape(&[1, k])? } else { x.clone() };
                let (batch, n) = (&x.shape()[..(x.ndim() - 2).saturating_sub(1)], x.dim(-2));
                let whole = ops::broadcast_to(&x, &[batch, &[count, n, k]].concat())?;
                // MLX infers no extent of an empty array.
                let repeats: i32 = batch.iter().product();
                whole.reshape(&[repeats, count, n, k])?.swap_axes(0, 1)?.reshape(&[count, repeats * n, k])?
            }
        };
        self.recorder.add(along, Meeting { rows, chosen: None })
    }

    /// How many matrices the weight is a stack of, if it is one, which may be repeated along axes before it.
    fn stack(&self) -> Result<Option<i32>> {
        if !self.recorder.is_stacked() {
            return Ok(None);
        }
        let is_whole = |&first: &usize| self.axes[first] == Some(0) && self.axes[..first].iter().all(Option::is_none);
        let first = self.axes.len().checked_sub(3).filter(is_whole).ok_or_else(|| part(&self.aval))?;
        Ok(Some(self.aval.shape[first]))
    }

    /// The axis of the weight that an axis is.
    fn axis(&self, axis: usize) -> Result<usize> {
        self.axes[axis].ok_or_else(|| part(&self.aval))
    }
}

fn part(aval: &Aval) -> Error {
    Error::invalid(
        format!("a product with {aval} is of a part of the inputs of an observed weight, or of a part of a stack"),
        "leave the weight out of what is observed",
    )
}

/// Checks that what is recorded can be computed at once.
fn check_computed(x: &Array, result: &Value) -> Result<()> {
    let traced = any_tracer(&[x]) || result.as_dense().is_some_and(|result| any_tracer(&[result]));
    if traced { Err(in_transformation()) } else { Ok(()) }
}

impl Materialize for Observed {
    fn materialize(&self) -> Result<Value> {
        self.inner.opened()
    }

    fn check(&self) -> Result<()> {
        let inner = self.inner.aval()?;
        check_float("the observed weight", &inner)?;
        if inner != self.aval || self.axes.len() != inner.shape.len() {
            return Err(Error::invalid(
                format!("an observed weight of {} has {inner} with {} axes", self.aval, self.axes.len()),
                "build it by its constructor",
            ));
        }
        Ok(())
    }
}

impl Linear for Observed {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        let result = implicit((x, &self.inner), |(x, w)| product.apply(&x, &w))?;
        if product != Product::Rows {
            self.record(product, x, &result)?;
        }
        Ok(result)
    }

    fn gather_mm(&self, op: &GatherMM, x: &Value, left: &Array, right: &Array) -> Result<Value> {
        let sorted = op.left_sorted || op.right_sorted;
        let result = implicit((x, &self.inner), |(x, w)| ops::gather_mm(x, w, left, right, sorted))?;
        if !self.recorder.is_on() {
            return Ok(result);
        }
        let x = x.dense()?;
        check_computed(&x, &result)?;
        let along = self.axis(self.axes.len() - 2)?;
        let count = self.stack()?.filter(|_| self.axes.len() == 3).ok_or_else(|| part(&self.aval))?;
        let &[.., n, k] = x.shape() else { return Err(Error::decline("vectors are gathered")) };
        let matrices: i32 = x.shape()[..x.ndim() - 2].iter().product();
        let rows = x.reshape(&[matrices, n, k])?.take_axis(left, 0)?.reshape(&[left.size() as i32 * n, k])?;
        let indices =
            ops::broadcast_to(&right.expand_dims(-1)?, &[right.shape(), &[n]].concat())?.flatten(None, None)?;
        self.recorder.add(along, Meeting { rows, chosen: Some((indices, count)) })?;
        Ok(result)
    }

    /// As the weight has it: a model computes the same bits whether it is observed or not, and whichever of its weights are.
    fn sum(&self, op: &AddMM, product: Product, x: &Value, c: &Value) -> Result<Value> {
        let (alpha, beta) = (op.alpha, op.beta);
        let result = implicit((x, &self.inner, as_given(c)?), |(x, w, c)| match product {
            Product::Left => ops::addmm(c, w, x, alpha, beta),
            _ => ops::addmm(c, x, w, alpha, beta),
        })?;
        self.record(product, x, &result)?;
        Ok(result)
    }

    /// It is asked first, whatever a product with the other side saves.
    fn gain(&self) -> Gain {
        Gain::Nothing
    }

    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        let permuted = axes.iter().map(|&axis| self.axes[axis as usize]).collect();
        self.mapped(permuted, |w| Ok(w.transpose_axes(axes)?))
    }

    fn cast(&self, dtype: Dtype) -> Result<Value> {
        self.mapped(self.axes.clone(), |w| Ok(w.as_dtype(dtype)?))
    }

    fn scaled(&self, by: &Factor) -> Result<Value> {
        self.mapped(self.axes.clone(), |w| by.on(&w))
    }
}

impl Cut for Observed {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let mut axes = self.axes.clone();
        axes[axis] = axes[axis].filter(|_| range == (0..self.aval.shape[axis]));
        Self::around(cut(&self.inner, axis as i32, range)?, &self.recorder, axes)
    }
}

impl View for Observed {
    fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>> {
        // Rows that are looked up are activations, and matrices of a stack are weights.
        if step.op().name() == Gather::NAME && !self.recorder.is_stacked() {
            return step.around([&self.inner], |[taken]| Ok(taken));
        }
        let axes = (0..self.axes.len()).map(|axis| (step.axis(axis).ok(), self.axes[axis]));
        let axes: Vec<_> = axes.filter_map(|(now, own)| Some((now?, own))).collect();
        step.around([&self.inner], |[inner]| {
            let rank = inner.aval()?.shape.len();
            let own = (0..rank).map(|axis| axes.iter().find(|(now, _)| *now == axis).and_then(|(_, own)| *own));
            Self::around(inner, &self.recorder, own.collect())
        })
    }
}

/// Any other primitive, of the weight itself.
fn observed_default(primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Value>> {
    let unwrapped = |value: &&Value| value.downcast::<Observed>().map_or_else(|| (*value).clone(), |w| w.inner.clone());
    let inner: Vec<Value> = operands.iter().map(unwrapped).collect();
    primitive.apply(&inner.iter().collect::<Vec<_>>())
}
