//! Clipping gradients by their norm, where ranks hold parts of them.

use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::module::{FlattenedModuleParam, ModuleParameters};
use tacit_core::Result;
use tacit_nn::Model;
use tacit_nn::training::{HeldTogether, clip_by_norm_over};

use crate::Group;
use crate::layout::leaves_in;

impl Group {
    /// Clips a model's gradients as [`clip_by_norm`](tacit_nn::training::clip_by_norm) does, by the norm of all that the ranks hold
    /// of them.
    ///
    /// Parts of [`Sharded`](crate::Sharded) and [`FullySharded`](crate::FullySharded) parameters count on every rank, and what
    /// every rank has counts once. So all ranks have one norm and scale alike.
    ///
    /// The gradients are those of the step: where each rank has a batch of its own, their
    /// [means](crate::FullyShard::mean_gradients). The group has all ranks over which the parameters are split. It may be the one
    /// that several groups were split off, with parameters split over each: every parameter counts once, by what the ranks of its
    /// own group have of it. Where other groups have the same parts, their ranks find the same.
    ///
    /// ```
    /// use mlx_rs::module::Module;
    /// use mlx_rs::{nn, ops};
    /// use tacit_distributed::{FullyShard, Group};
    /// use tacit_nn::{Model, ParameterFilter};
    ///
    /// # fn main() -> tacit_core::Result<()> {
    /// let group = Group::init()?;
    /// let mut model = Model::new(nn::Linear::new(8, 8)?)?.fully_shard("weight", &group)?;
    /// let x = ops::ones::<f32>(&[2, 8])?;
    /// let step = model.value_and_grad(ParameterFilter::default(), x, |m, x| m.forward(&x)?.square()?.sum(None));
    /// let gradients = model.mean_gradients(step?.1, &group)?;
    /// let (gradients, norm) = group.clip_by_norm(&model, gradients, 1e-3)?;
    /// assert!(norm.item_exact::<f32>() > 1e-3);
    /// assert!((group.clip_by_norm(&model, gradients, 1.0)?.1.item_exact::<f32>() - 1e-3).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `max` is not above 0; a parameter is split over ranks that are not in the group; or MLX fails.
    pub fn clip_by_norm<M: ModuleParameters>(
        &self,
        model: &Model<M>,
        gradients: FlattenedModuleParam,
        max: f32,
    ) -> Result<(FlattenedModuleParam, Array)> {
        let parts = leaves_in(model, self)?.into_iter().filter(|leaf| !leaf.alike);
        // Of one rank it is whole, and the same on all.
        let parts = parts.filter_map(|leaf| Some((leaf.path, leaf.over.filter(|over| over.size() > 1)?))).collect();
        clip_by_norm_over(gradients, max, &OverRanks { group: self, parts })
    }
}

struct OverRanks<'g> {
    group: &'g Group,
    /// The paths of what each rank has of its own, with the ranks that have the rest.
    parts: BTreeMap<String, Group>,
}

impl HeldTogether for OverRanks<'_> {
    fn is_part(&self, path: &str) -> bool {
        self.parts.contains_key(path)
    }

    fn sum(&self, squares: &[(Rc<str>, Array)]) -> Result<Array> {
        // In the order of the paths, which is one order on all ranks.
        let mut sums: Vec<(&Group, Array)> = Vec::new();
        for (path, square) in squares {
            let Some(group) = self.parts.get(&**path) else { continue };
            match sums.iter_mut().find(|(other, _)| *other == group) {
                Some((_, sum)) => *sum = sum.add(square)?,
                None => sums.push((group, square.clone())),
            }
        }
        sums.iter().try_fold(Array::from_f32(0.0), |total, (group, sum)| Ok(total.add(group.all_sum(sum)?)?))
    }

    fn greatest(&self, own: &Array) -> Result<Array> {
        self.group.all_max(own)
    }
}
