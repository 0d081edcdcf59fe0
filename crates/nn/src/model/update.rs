//! The step of an optimizer on a model.

use std::borrow::Borrow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use mlx_rs::module::{FlattenedModuleParam, ModuleParameters};
use mlx_rs::optimizers::Optimizer;
use mlx_rs::{Array, Dtype};
use tacit_arrays::accumulator_dtype;
use tacit_core::{Aval, Error, Result};

use super::Model;
use crate::filter::Role;
use crate::moments_before::MomentsBefore;
use crate::parameters::{check_step, listed, some_of};

impl<M: ModuleParameters> Model<M> {
    /// Makes a step of an optimizer of mlx-rs with these gradients.
    ///
    /// Every leaf keeps its dtype.
    ///
    /// The optimizers are given gradients of half floats as `f32`, since they square a gradient in its own dtype, and that of 1e-4 is
    /// zero in `f16`. They leave `f32` in the place of such a leaf where they are called by themselves; where they fail then, some
    /// leaves and moments are moved and others are not. Here what they made is rounded to the leaf's own dtype, so that a model of half
    /// floats stays one, and a step is made whole or not at all.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::optimizers::Adam;
    /// use mlx_rs::{Dtype, module::Module, nn, ops};
    /// use tacit_nn::{Model, ParameterFilter};
    ///
    /// let mut model = Model::new(nn::Linear::new(4, 4)?)?;
    /// model.replace("*", |_, value| Ok(Some(value.dense()?.as_dtype(Dtype::Bfloat16)?.into())))?;
    /// let (x, mut adam) = (ops::ones::<f32>(&[2, 4])?.as_dtype(Dtype::Bfloat16)?, Adam::new(1e-3));
    /// let (_, gradients) =
    ///     model.value_and_grad(ParameterFilter::default(), x, |m, x| m.forward(&x)?.square()?.mean(None))?;
    /// model.update(&mut adam, &gradients)?;
    /// assert_eq!(model.get("weight")?.to_string(), "bf16[4,4]");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A parameter that is trained as its codes, as [`prepare`](Self::prepare) has it, is decoded, moved, and rounded to codes at
    /// random. An optimizer that is called by itself passes over it. A NaN or an infinity has no code: after a step by such a gradient the
    /// next eval is an error, and the weight is lost, which has no master. Check the norm that
    /// [`clip_by_norm`](crate::training::clip_by_norm) returns before the step.
    ///
    /// mlx-rs's own `update` of a module, which puts other arrays in the places of its parameters, is
    /// `ModuleParameters::update(&mut model, parameters)`; [`set_leaves`](Self::set_leaves) does that with checks.
    ///
    /// # Errors
    ///
    /// There is a gradient of what is no leaf, of codes, which no step moves, or of another shape than its leaf; the optimizer
    /// fails, or makes another shape of a leaf, as by moments of another model; it has moments of a path that is
    /// [tied](Self::tie) to another one, and none of that one, which has a gradient; or a parameter is trained as its codes, and the
    /// step is inside a gradient. The leaves are then what they were, and so are the moments that the optimizer lists as its state.
    /// They are after a panic of the optimizer, too, which goes on to the caller.
    pub fn update<O: Optimizer>(
        &mut self,
        optimizer: &mut O,
        gradients: impl Borrow<FlattenedModuleParam>,
    ) -> Result<()> {
        let gradients = gradients.borrow();
        let moments = MomentsBefore::new(optimizer);
        if let Some((tied, parameter)) =
            self.parts.ties.misplaced(&moments.keys(), &gradients.keys().map(|path| &**path))
        {
            // A step would begin them anew.
            return Err(Error::invalid(
                format!("the optimizer has moments of {tied}, which is tied to {parameter}, and none of {parameter}"),
                format!("tie {parameter} to {tied}, as the run did that made them, or begin with a new optimizer"),
            ));
        }
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            if !self.is_coded() {
                return self.step(optimizer, gradients);
            }
            self.transaction(|model| {
                let lent = model.lend_for_step()?;
                model.step(optimizer, gradients)?;
                model.take_steps(&lent)
            })
        }));
        if !matches!(stepped, Ok(Ok(()))) {
            moments.give_back(optimizer);
        }
        stepped.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn step<O: Optimizer>(&mut self, optimizer: &mut O, gradients: &FlattenedModuleParam) -> Result<()> {
        let before = self.moved(gradients)?;
        let wide = |(path, gradient): (&Rc<str>, &Array)| {
            Ok((path.clone(), gradient.as_dtype(accumulator_dtype(gradient.dtype()))?))
        };
        let gradients = gradients.iter().map(wide).collect::<Result<FlattenedModuleParam>>()?;
        let stepped = catch_unwind(AssertUnwindSafe(|| optimizer.update(self, gradients)));
        let mut slots = self.slots();
        let stepped = stepped.map(|stepped| {
            stepped?;
            before.iter().try_for_each(|(path, before)| {
                slots.get(path).map_or(Ok(()), |stepped| check_step(path, stepped, before))
            })
        });
        for (path, before) in before {
            let Some(slot) = slots.get_mut(&path) else { continue };
            match &stepped {
                Ok(Ok(())) if slot.dtype() != before.dtype() => **slot = slot.as_dtype(before.dtype())?,
                Ok(Ok(())) => {}
                _ => **slot = before,
            }
        }
        stepped.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The leaves that these gradients move, as they are.
    fn moved(&mut self, gradients: &FlattenedModuleParam) -> Result<Vec<(Rc<str>, Array)>> {
        let slots = self.slots();
        let mut paths: Vec<&Rc<str>> = gradients.keys().collect();
        paths.sort_unstable();
        let leaf = |path: &Rc<str>| {
            let Some(slot) = slots.get(path) else {
                return Err(Error::invalid(format!("the model has no leaf {path}"), listed(slots.keys())));
            };
            let (aval, gradient) = (Aval::from(&**slot), Aval::from(&gradients[path]));
            if !aval.dtype.is_float() {
                return Err(Error::invalid(
                    format!("there is a gradient {gradient} of the leaf {path}, and its codes {aval} are not trained"),
                    "take gradients by `Model::value_and_grad`, which has those of float leaves alone",
                ));
            }
            if aval.shape != gradient.shape {
                return Err(Error::invalid(
                    format!("the leaf {path} is {aval}, and its gradient is {gradient}"),
                    "give a gradient of the leaf's own shape",
                ));
            }
            Ok((path.clone(), (**slot).clone()))
        };
        paths.into_iter().map(leaf).collect()
    }

    /// Notes which of the leaves that a gradient was taken of are half floats.
    pub(super) fn note_halves<'p>(&mut self, leaves: impl Iterator<Item = (&'p String, &'p Array)>) {
        let half = |array: &Array| matches!(array.dtype(), Dtype::Float16 | Dtype::Bfloat16);
        let halves = leaves.filter(|(_, array)| half(array));
        self.halves = halves.map(|(path, array)| (path.clone(), array.dtype())).collect();
    }

    /// Says of half floats that are `f32` since the latest gradient that an optimizer widened them: an error of a master, which
    /// has the dtype of its parameter, and once a warning of any other.
    pub(super) fn check_halves(&mut self) -> Result<()> {
        if self.halves.is_empty() {
            return Ok(());
        }
        let halves = std::mem::take(&mut self.halves);
        let slots = self.slots();
        let is_wide = |path: &&String| slots.get(path.as_str()).is_some_and(|slot| slot.dtype() == Dtype::Float32);
        let widened: Vec<&String> = halves.keys().filter(is_wide).collect();
        if widened.is_empty() {
            return Ok(());
        }
        let message = format!("half floats became f32 since the latest gradient: {}", some_of(widened.iter()));
        let masters =
            self.parts.implicit.values().flat_map(|leaves| &leaves.leaves).filter(|leaf| leaf.role == Role::Master);
        if masters.into_iter().any(|leaf| widened.contains(&&leaf.path)) {
            let help = "step by `Model::update`, which keeps dtypes: the optimizers of mlx-rs return f32";
            return Err(Error::invalid(message, help));
        }
        tracing::warn!(
            target: "tacit",
            "{message}; step by `Model::update`, which keeps dtypes, or replace them by f32 with `Model::replace` first"
        );
        Ok(())
    }
}
