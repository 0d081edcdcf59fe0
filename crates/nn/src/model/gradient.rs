//! The gradient of a loss of a model.

use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::module::{FlattenedModuleParam, ModuleParameters};
use tacit_core::tree::{self, Gradient, Open};
use tacit_core::{Error, Result, Tree, Value, array_id, transform};

use super::restored::Restored;
use super::{Model, dense_tree};
use crate::ParameterFilter;
use crate::parameters::listed;

impl<M: ModuleParameters> Model<M> {
    /// The model whose `trainable_parameters`, for mlx-rs, are the float leaves of this part that are not frozen.
    ///
    /// Without it that is [the default](ParameterFilter#impl-Default-for-ParameterFilter): dense parameters, adapters and masters.
    #[must_use]
    pub fn training(mut self, trained: ParameterFilter) -> Self {
        self.parts.trained = trained;
        self
    }

    /// The value of `f`, and its gradient with respect to the float leaves of a part of the model.
    ///
    /// The first result of `f` is the loss, one float element. `args` are handed to `f` as they are. The gradients are by the leaves'
    /// paths, as [`update`](Self::update) and mlx-rs's optimizers take them. Leaves that the module has frozen, and running statistics,
    /// have none.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::module::Module;
    /// use mlx_rs::optimizers::Sgd;
    /// use mlx_rs::{nn, ops};
    /// use tacit_arrays::format::Affine;
    /// use tacit_nn::{Model, ParameterFilter};
    ///
    /// let mut model = Model::new(nn::Linear::new(64, 8)?)?.quantize("weight", Affine { bits: 4, group: 64 })?;
    /// let x = ops::ones::<f32>(&[2, 64])?;
    /// let (loss, gradients) = model.value_and_grad(ParameterFilter::Dense, &x, |m, x| m.forward(x)?.square()?.mean(None))?;
    /// assert_eq!(loss.ndim(), 0);
    /// assert_eq!(gradients["bias"].shape(), [8]);
    /// model.update(&mut Sgd::new(0.1), &gradients)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `f` fails, the loss is not one float element, the part has no float leaf, an adapter with dropout has no key by
    /// [`drop_features`](Self::drop_features) in training, or an optimizer that was called by itself has made an `f32` master of one of
    /// half floats. The model is then what it was.
    #[expect(clippy::needless_pass_by_value, reason = "a filter is written where the call is")]
    pub fn value_and_grad<A, O: Tree, E: Into<Error>>(
        &mut self,
        filter: ParameterFilter,
        args: A,
        f: impl FnOnce(&mut Self, A) -> Result<O, E>,
    ) -> Result<(O, FlattenedModuleParam)> {
        let mut state = Restored::new(self);
        state.model.check_halves()?;
        state.model.check_dropout()?;
        let lends = state.model.lend_for_gradient()?;
        let (paths, arrays): (Vec<String>, Vec<Array>) =
            state.model.trainable(&filter).into_iter().map(|(path, array)| (path, array.clone())).unzip();
        if paths.is_empty() {
            let paths = state.model.trainable(&ParameterFilter::All).into_iter().map(|(path, _)| path);
            return Err(Error::invalid(format!("the model has no float leaf to train in {filter:?}"), listed(paths)));
        }
        state.model.tell_of_shared(&paths);
        let mut call = Some((f, args));
        let (mut def, mut lent) = (None, Vec::new());
        let mut step = transform::value_and_grad(|arrays: Vec<Array>| {
            let (f, args) = call.take().ok_or_else(|| Error::invalid("the loss was called twice", "report it"))?;
            lent = arrays.iter().map(array_id).collect();
            state.model.lend(paths.iter().zip(arrays));
            let (leaves, structure) = tree::flatten(&f(state.model, args).map_err(Into::into)?, Open::Closed)?;
            def = Some(structure);
            leaves.iter().map(Value::dense).collect::<Result<Vec<Array>>>()
        });
        let (results, gradients) = step.call(&arrays)?;
        drop(step);
        let results = dense_tree(def, &results)?;
        // Assigned parameters, such as running statistics, stay; what was lent goes.
        state.model.note_halves(paths.iter().zip(&arrays));
        state.model.take_back(paths.iter().zip(lent).zip(arrays));
        if lends {
            state.model.each_coded(&mut |codes| Ok(codes.clone().at_rest()))?;
        }
        state.keep();
        let gradients = paths.into_iter().zip(gradients).filter_map(|(path, gradient)| match gradient {
            Gradient::Dense(array) => Some((Rc::from(path), array)),
            Gradient::Nothing | Gradient::Node { .. } => None,
        });
        Ok((results, gradients.collect()))
    }

    /// In training a dropout without a key would drop nothing, and nobody would see it.
    fn check_dropout(&self) -> Result<()> {
        let mut lacking = self.parts.implicit.iter().filter_map(|(path, leaves)| Some((path, leaves.lacks_key()?)));
        match lacking.next().filter(|_| self.parts.training) {
            None => Ok(()),
            Some((path, dropout)) => Err(Error::invalid(
                format!("the adapter of {path} drops features with a probability of {dropout}, and has no random key"),
                "give each step a key by `model.drop_features(Some(&key))`, or take a `dropout` of 0; in evaluation mode nothing is \
                 dropped",
            )),
        }
    }

    /// Puts leaves back where the arrays with these ids, which were lent, still are.
    fn take_back<'p>(&mut self, leaves: impl Iterator<Item = ((&'p String, usize), Array)>) {
        let mut slots = self.slots();
        for ((path, lent), array) in leaves {
            if let Some(slot) = slots.get_mut(path.as_str())
                && array_id(slot) == lent
            {
                **slot = array;
            }
        }
    }

    fn lend<'p>(&mut self, leaves: impl Iterator<Item = (&'p String, Array)>) {
        let mut slots = self.slots();
        for (path, array) in leaves {
            slots.entry(Rc::from(path.as_str())).and_modify(|slot| **slot = array);
        }
    }
}
