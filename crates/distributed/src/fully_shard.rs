//! Models whose parameters are each split over all ranks, and the gradients of these.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::module::{FlattenedModuleParam, ModuleParameters};
use tacit_core::{Error, Result};
use tacit_nn::{Model, Pattern};

use crate::layout::{Layout, Leaf, check_over, leaves};
use crate::put_in_parts::put_in_parts;
use crate::{FullySharded, Group};

/// Splits parameters of a model over the ranks of a group, to be gathered a layer at a time.
pub trait FullyShard: Sized {
    /// The model whose parameters that the pattern names are [`FullySharded`]; the code of the model stays as it is.
    ///
    /// Every rank gives the same model. The parts are computed, and the wholes are gone. What an optimizer then keeps of a
    /// parameter is split with it.
    ///
    /// ```
    /// use mlx_rs::module::Module;
    /// use mlx_rs::optimizers::AdamW;
    /// use mlx_rs::{nn, ops};
    /// use tacit_distributed::{FullyShard, Group};
    /// use tacit_nn::{Model, ParameterFilter};
    ///
    /// # fn main() -> tacit_core::Result<()> {
    /// let group = Group::init()?;
    /// let mut model = Model::new(nn::Linear::new(8, 8)?)?.fully_shard("weight", &group)?;
    /// let x = ops::ones::<f32>(&[2, 8])?;
    /// let step = model.value_and_grad(ParameterFilter::default(), x, |m, x| m.forward(&x)?.square()?.mean(None));
    /// let (_, gradients) = step?;
    /// let gradients = model.mean_gradients(gradients, &group)?;
    /// model.update(&mut AdamW::new(1e-2), &gradients)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The pattern names no parameter, or one is split already, trained as its codes or cannot be computed; the model is dropped
    /// then.
    fn fully_shard(self, pattern: impl TryInto<Pattern, Error: Into<Error>>, group: &Group) -> Result<Self>;

    /// The mean over the ranks of gradients that each took of its own batch.
    ///
    /// Every rank has the same weight. Where batches are of unequal lengths, give each rank the sum of the losses of its rows or
    /// tokens, divided by the [mean](Group::mean) of their numbers over the ranks.
    ///
    /// Gradients of [`FullySharded`] parameters are sums over the ranks already, and are divided in the dtype of the part. Those of
    /// parameters that every rank holds are averaged. Those of parameters that are [`Sharded`](crate::Sharded) over the group stay as
    /// they are: ranks that share these have one batch. A parameter that is split over another group, such as one of
    /// [`Group::split`], is averaged like one that is not split: the ranks of `group` must have the same part of it.
    ///
    /// # Errors
    ///
    /// A gradient is not float; a parameter is split over another group that has several ranks of this one; or MLX refuses an
    /// op.
    fn mean_gradients(&self, gradients: FlattenedModuleParam, group: &Group) -> Result<FlattenedModuleParam>;
}

impl<M: ModuleParameters> FullyShard for Model<M> {
    fn fully_shard(mut self, pattern: impl TryInto<Pattern, Error: Into<Error>>, group: &Group) -> Result<Self> {
        put_in_parts(&mut self, pattern, |whole| Ok(Some(FullySharded::new(whole, group)?.into())))?;
        Ok(self)
    }

    fn mean_gradients(&self, gradients: FlattenedModuleParam, group: &Group) -> Result<FlattenedModuleParam> {
        if group.size() == 1 {
            return Ok(gradients);
        }
        let leaves = leaves(self)?;
        let is_mixed = |leaf: &&Leaf| leaf.over.as_ref().is_some_and(|over| over.in_common(group) > 1);
        check_over(leaves.iter().filter(is_mixed), group)?;
        let over_group = leaves.into_iter().filter(|leaf| leaf.over.as_ref() == Some(group));
        let layouts: BTreeMap<String, Layout> = over_group.map(|leaf| (leaf.path, leaf.layout)).collect();
        let layout = |path: &str| layouts.get(path).copied().unwrap_or(Layout::Whole);
        // In one order on all ranks.
        let mut gradients: Vec<(Rc<str>, Array)> = gradients.into_iter().collect();
        gradients.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let (whole, split): (Vec<_>, Vec<_>) =
            gradients.into_iter().partition(|(path, _)| layout(path) == Layout::Whole);
        let (paths, whole): (Vec<_>, Vec<_>) = whole.into_iter().unzip();
        let mut means: HashMap<Rc<str>, Array> = paths.into_iter().zip(group.mean(&whole)?).collect();
        for (path, gradient) in split {
            let mean = match layout(&path) {
                Layout::Flat => gradient.divide(Array::from_f32(group.size() as f32).as_dtype(gradient.dtype())?)?,
                _ => gradient,
            };
            means.insert(path, mean);
        }
        Ok(means)
    }
}
