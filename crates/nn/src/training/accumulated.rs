//! Gradients of several batches, accumulated to those of one.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_rs::module::FlattenedModuleParam;
use mlx_rs::{Array, Dtype, transforms};
use tacit_arrays::accumulator_dtype;
use tacit_core::{Aval, Error, Result};

use crate::path_order::path_order;

/// The sum of the gradients of several batches.
///
/// Where each loss is a mean over a batch of one size, the mean of the gradients is that of one batch of all of them.
///
/// Sums of half floats are `f32`. Each [`add`](Self::add) evaluates them, so that the activations of one batch at
/// a time are there; that is done beside compiled steps, not in them.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::optimizers::Sgd;
/// use mlx_rs::{Array, module::Module, nn, ops};
/// use tacit_nn::training::Accumulated;
/// use tacit_nn::{Model, ParameterFilter};
///
/// let mut model = Model::new(nn::Linear::new(4, 4)?)?;
/// let (mut sgd, mut accumulated) = (Sgd::new(0.1), Accumulated::default());
/// for seed in 0..4 {
///     let x = mlx_rs::random::normal::<f32>(&[8, 4], None, None, Some(&mlx_rs::random::key(seed)?))?;
///     let (_, gradients) = model.value_and_grad(ParameterFilter::default(), &x, |m, x| m.forward(x)?.square()?.mean(None))?;
///     accumulated.add(gradients)?;
/// }
/// // One step for 32 rows.
/// model.update(&mut sgd, &accumulated.take_mean()?)?;
/// assert_eq!(accumulated.batches(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Accumulated {
    /// Each sum with the dtype of its gradients.
    sums: BTreeMap<Rc<str>, (Array, Dtype)>,
    batches: u32,
}

/// How many sums are evaluated at a time: fewer than a layer of a decoder has, and enough for an evaluation to be worth its call.
const AT_ONCE: usize = 4;

impl Accumulated {
    /// How many batches were added since the latest mean.
    #[must_use]
    pub fn batches(&self) -> u32 {
        self.batches
    }

    /// Adds the gradients of a batch. Those that are passed by value go as they are added, and their memory with them.
    ///
    /// # Errors
    ///
    /// They are of other leaves than those before, or of other shapes; or they cannot be evaluated. The sums are then what they
    /// were.
    pub fn add(&mut self, gradients: impl Borrow<FlattenedModuleParam>) -> Result<()> {
        let mut sums = BTreeMap::new();
        // In one order, so that of several that do not fit an error always names the same.
        let in_order: BTreeMap<&Rc<str>, &Array> = gradients.borrow().iter().collect();
        for (path, gradient) in in_order {
            let term = gradient.as_dtype(accumulator_dtype(gradient.dtype()))?;
            let sum = match self.sums.get(path) {
                None if self.batches > 0 => {
                    return Err(other(&format!("has a gradient of {path}, and those before had none")));
                }
                None => term,
                Some((sum, _)) if sum.shape() != term.shape() => {
                    let (found, known) = (Aval::from(gradient), Aval::from(sum));
                    return Err(other(&format!("has a gradient {found} of {path}, and those before sum to {known}")));
                }
                Some((sum, _)) => sum.add(term)?,
            };
            sums.insert(path.clone(), (sum, gradient.dtype()));
        }
        drop(gradients);
        if let Some(path) = self.sums.keys().find(|path| !sums.contains_key(*path)) {
            return Err(other(&format!("has no gradient of {path}, and those before had one")));
        }
        // From the last layer to the first, as a gradient passes them. Of all that is asked for at once MLX computes some last, and
        // what these read of the layers that are passed would stay in memory until then.
        let mut ordered: Vec<_> = sums.iter().collect();
        ordered.sort_by(|(a, _), (b, _)| path_order(b, a));
        for few in ordered.chunks(AT_ONCE) {
            transforms::eval(few.iter().map(|(_, (sum, _))| sum))?;
        }
        (self.sums, self.batches) = (sums, self.batches + 1);
        Ok(())
    }

    /// The mean over the batches, each gradient in its own dtype; what is added next begins anew.
    ///
    /// # Errors
    ///
    /// Nothing was added.
    pub fn take_mean(&mut self) -> Result<FlattenedModuleParam> {
        if self.batches == 0 {
            return Err(Error::invalid("no gradients were added", "add those of a batch by `Accumulated::add`"));
        }
        let count = Array::from_f32(self.batches as f32);
        let mean = |(path, (sum, dtype)): (&Rc<str>, &(Array, Dtype))| {
            Ok((path.clone(), sum.divide(&count)?.as_dtype(*dtype)?))
        };
        let means = self.sums.iter().map(mean).collect::<Result<_>>()?;
        *self = Self::default();
        Ok(means)
    }
}

fn other(what: &str) -> Error {
    Error::invalid(format!("the batch {what}"), "add gradients of the same leaves, and take the mean before others")
}
