//! Scores of attention: a deferred op, computed together with the mask, the softmax and the product behind it.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{Add, AsType, Divide, Matmul, Multiply, Select, Softmax};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, broadcast_source, handler};

use crate::avals::axes::with_last;
use crate::avals::checks::decline_if;
use crate::avals::dtypes::castable;
use crate::families::linear::{Linear, scalar};
use crate::kernel::{Attend, Hiding, StoredTokens};
use crate::packed::batched::Batched;

/// The products of queries with stored keys, which no memory holds: a [deferred](Materialize::DEFERRED) op.
///
/// A factor before or behind a mask that is added or [selected](ops::select) by, a cast, a softmax over the keys and a factor of
/// its weights are noted; the product of the weights with stored values is then one kernel, which goes through the tokens a chunk at
/// a time. Whatever else is done to them computes them, by the codes of the keys. All is computed in `f32` and rounded once, where
/// plain ops on half floats round each result.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::Nf4Array;
/// use tacit_core::{Policy, implicit};
///
/// let cache = Nf4Array::quantize(&ops::ones::<f32>(&[1, 2, 5, 64])?, 64)?;
/// let q = ops::ones::<f32>(&[1, 2, 1, 64])?;
/// let _deny = Policy::Deny.scope();
/// let y = implicit((q, &cache, &cache), |(q, k, v)| {
///     let scores = q.matmul(k.swap_axes(-1, -2)?)?.multiply(Array::from_f32(0.125))?;
///     ops::softmax_axis(scores, -1, None)?.matmul(v)
/// })?;
/// assert!((y.dense()?.max(None)?.item_exact::<f32>() - 1.0).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Scores")]
pub struct Scores {
    /// With the factor: `f32[.., m, k]`.
    q: Array,
    /// A [`Batched`] of transposes.
    keys: Value,
    /// What is added, of a shape that is broadcast to that of the scores.
    added: Option<Array>,
    /// Which scores are visible, likewise.
    visible: Option<Array>,
    /// The score where the mask hides: `f32[]`.
    hidden: Option<Array>,
    /// What the weights are multiplied by: `f32[]`.
    factor: Option<Array>,
    /// Whether they are the softmax.
    #[implicit(aux)]
    softmax: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl Scores {
    /// The products `q W` of `q: [.., m, k]` with keys that are transposed, `W: [.., k, tokens]`, in the dtype of `q`.
    ///
    /// # Errors
    ///
    /// It declines queries that are not floats of a batch like that of the keys, and keys that are not transposed.
    pub fn new(q: &Array, keys: Batched) -> Result<Self> {
        keys.fits(q)?;
        decline_if(!keys.is_transposed(), "the keys are not transposed")?;
        decline_if(!castable(q.dtype()), "only f32, bf16 and f16 are multiplied")?;
        let [.., columns] = keys.aval()?.shape[..] else { return Err(Error::decline("there are no matrices")) };
        let aval = Aval::new(&with_last(q.shape(), &[columns]), q.dtype());
        let q = q.as_dtype(Dtype::Float32)?;
        Ok(Self { q, keys: keys.into(), added: None, visible: None, hidden: None, factor: None, softmax: false, aval })
    }

    fn keys(&self) -> Result<&Batched> {
        self.keys.downcast().ok_or_else(|| Error::refuse("the keys of scores are not a batch of stored matrices"))
    }

    /// With a factor: of the weights, or of the queries and of what a mask adds or puts in their place.
    fn scaled(&self, f: impl Fn(&Array) -> Result<Array>) -> Result<Value> {
        let one = Array::from_f32(1.0);
        if self.softmax {
            let factor = Some(f(self.factor.as_ref().unwrap_or(&one))?);
            return Ok(Self { factor, ..self.clone() }.into());
        }
        let widely =
            |array: &Option<Array>| array.as_ref().map(|array| f(&array.as_dtype(Dtype::Float32)?)).transpose();
        let (added, hidden) = (widely(&self.added)?, widely(&self.hidden)?);
        Ok(Self { q: f(&self.q)?, added, hidden, ..self.clone() }.into())
    }

    fn hiding(&self) -> (Option<Hiding>, Vec<Array>) {
        let hiding = |mask: &Array, replaces| {
            let mut shape = vec![1; self.aval.shape.len() - mask.ndim()];
            shape.extend(mask.shape());
            Hiding { replaces, shape, scores: self.aval.shape.clone() }
        };
        match (&self.added, &self.visible, &self.hidden) {
            (Some(added), ..) => (Some(hiding(added, false)), vec![added.clone()]),
            (None, Some(visible), Some(hidden)) => (Some(hiding(visible, true)), vec![visible.clone(), hidden.clone()]),
            _ => (None, Vec::new()),
        }
    }

    fn attend(&self, values: &Batched) -> Result<Array> {
        let keys = self.keys()?;
        let (key_layout, key_children, groups) = keys.kernel()?;
        let (value_layout, value_children, value_groups) = values.kernel()?;
        decline_if(
            groups != value_groups || keys.batch() != values.batch(),
            "the values are of another batch than the keys",
        )?;
        let (hiding, mask) = self.hiding();
        let attend = Attend {
            keys: StoredTokens { layout: key_layout, children: key_children.len() },
            values: StoredTokens { layout: value_layout, children: value_children.len() },
            groups,
            hiding,
        };
        let mut shape = self.q.shape().to_vec();
        let depth = shape.pop().unwrap_or(1);
        let flat = self.q.reshape(&[shape.iter().product(), depth])?;
        let result = attend.apply(&flat, &mask, &key_children, &value_children)?;
        shape.push(value_layout.k as i32);
        let result = result.reshape(&shape)?;
        let result = self.factor.as_ref().map_or_else(|| Ok(result.clone()), |factor| result.multiply(factor))?;
        Ok(result.as_dtype(self.aval.dtype)?)
    }
}

impl Materialize for Scores {
    const DEFERRED: bool = true;

    fn materialize(&self) -> Result<Value> {
        let mut scores = self.keys()?.multiplied(&self.q)?;
        if let Some(added) = &self.added {
            scores = scores.add(added.as_dtype(Dtype::Float32)?)?;
        }
        if let (Some(visible), Some(hidden)) = (&self.visible, &self.hidden) {
            scores = ops::select(visible, scores, hidden)?;
        }
        if self.softmax {
            scores = ops::softmax_axis(&scores, -1, true)?;
        }
        if let Some(factor) = &self.factor {
            scores = scores.multiply(factor)?;
        }
        Ok(scores.as_dtype(self.aval.dtype)?.into())
    }

    fn check(&self) -> Result<()> {
        let result = Self::new(&self.q, self.keys()?.clone())?;
        let broadcasts = |mask: &Option<Array>| {
            mask.as_ref().is_none_or(|mask| {
                let extents = mask.shape().iter().rev().zip(self.aval.shape.iter().rev());
                mask.ndim() <= self.aval.shape.len()
                    && extents.into_iter().all(|(extent, whole)| extent == whole || *extent == 1)
            })
        };
        let number = |array: &Option<Array>| {
            array.as_ref().is_none_or(|array| array.ndim() == 0 && array.dtype() == Dtype::Float32)
        };
        let scalar = number(&self.hidden) && number(&self.factor) && (self.softmax || self.factor.is_none());
        let visible = self.visible.as_ref().is_none_or(|visible| visible.dtype() == Dtype::Bool);
        let pair = self.visible.is_some() == self.hidden.is_some() && !(self.visible.is_some() && self.added.is_some());
        let masks = broadcasts(&self.added) && broadcasts(&self.visible) && scalar && visible && pair;
        if masks
            && result.aval.shape == self.aval.shape
            && castable(self.aval.dtype)
            && self.q.dtype() == Dtype::Float32
        {
            return Ok(());
        }
        Err(Error::invalid(format!("{} are no scores of their queries and keys", self.aval), "compute them anew"))
    }
}

/// The products with keys, which wait for what is done to them.
#[handler(precedence = 1)]
pub(crate) fn scores_of(_op: &Matmul, q: &Array, keys: &Batched) -> Result<Value> {
    Ok(Scores::new(q, keys.clone())?.into())
}

/// A scalar as the other factor, which goes to the queries and the mask, or behind the softmax.
#[handler]
pub(crate) fn scores_multiply(_op: &Multiply, scores: &Scores, factor: &Array) -> Result<Value> {
    let factor = scalar(factor)?.as_dtype(Dtype::Float32)?;
    scores.scaled(|q| Ok(q.multiply(&factor)?))
}

/// A scalar as the divisor, as [`scores_multiply`] has a factor.
#[handler]
pub(crate) fn scores_divide(_op: &Divide, scores: &Scores, divisor: &Array) -> Result<Value> {
    let divisor = scalar(divisor)?.as_dtype(Dtype::Float32)?;
    scores.scaled(|q| Ok(q.divide(&divisor)?))
}

/// A mask that is added.
#[handler]
pub(crate) fn scores_add(_op: &Add, scores: &Scores, mask: &Array) -> Result<Value> {
    let mask = broadcast_source(mask)?;
    let is_late = scores.softmax || scores.visible.is_some();
    decline_if(is_late || !castable(mask.dtype()), "only floats are added, and before anything is hidden")?;
    let added = match &scores.added {
        Some(before) => before.as_dtype(Dtype::Float32)?.add(mask.as_dtype(Dtype::Float32)?)?,
        None => mask,
    };
    Ok(Scores { added: Some(added), ..scores.clone() }.into())
}

/// A number in the place of every score that a mask hides.
#[handler]
pub(crate) fn scores_select(_op: &Select, visible: &Array, scores: &Scores, hidden: &Array) -> Result<Value> {
    let is_late = scores.softmax || scores.added.is_some() || scores.visible.is_some();
    decline_if(is_late, "the scores have a mask or are weights already")?;
    let hidden = Some(scalar(hidden)?.as_dtype(Dtype::Float32)?);
    Ok(Scores { visible: Some(broadcast_source(visible)?), hidden, ..scores.clone() }.into())
}

/// Another float type, in which only the result is rounded.
#[handler]
pub(crate) fn scores_astype(op: &AsType, scores: &Scores) -> Result<Value> {
    decline_if(!castable(op.dtype), "only f32, bf16 and f16 are computed")?;
    let aval = Aval::new(&scores.aval.shape, op.dtype);
    Ok(Scores { aval, ..scores.clone() }.into())
}

/// The weights.
#[handler]
pub(crate) fn scores_softmax(_op: &Softmax, scores: &Scores) -> Result<Value> {
    decline_if(scores.softmax, "they are weights already")?;
    Ok(Scores { softmax: true, ..scores.clone() }.into())
}

/// The values of stored matrices, weighted: one kernel for all that was noted.
#[handler]
pub(crate) fn scores_matmul(_op: &Matmul, weights: &Scores, values: &dyn Linear) -> Result<Value> {
    decline_if(!weights.softmax, "the scores are no weights")?;
    let values = Batched::from_packed(values)?;
    decline_if(values.is_transposed(), "the values are transposed")?;
    Ok(weights.attend(&values)?.into())
}
