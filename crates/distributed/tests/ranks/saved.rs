//! Gradients of split models that read activations from codes.

use std::rc::Rc;

use mlx_rs::{Array, transforms};
use tacit_core::{Policy, Result};
use tacit_distributed::{FullyShard, Group, Shard, Split};
use tacit_nn::ParameterFilter;

use crate::case::Case;
use crate::checkpoints::{Layers, layers, loss, normal};

pub(crate) const CASES: &[Case] = &[Case::new("activations_of_split_weights", activations_of_split_weights)];

const DIVIDED: [fn(&Group) -> Result<Layers>; 2] = [
    |group| layers()?.shard("layers.0.*", Split::Columns(group))?.shard("layers.2.weight", Split::Rows(group)),
    |group| layers()?.fully_shard("*", group),
];

type Gradients = Vec<(Rc<str>, Array)>;

/// The loss, and the gradients by path.
fn step(mut model: Layers, format: Option<&str>) -> Result<(f32, Gradients)> {
    if let Some(format) = format {
        model.saved_activations("*", format)?;
    }
    let _deny = Policy::Deny.scope();
    let batch = (normal(1, &[64, 16])?, normal(2, &[64, 4])?);
    let (loss, gradients) = model.value_and_grad(ParameterFilter::default(), batch, loss)?;
    let mut gradients: Gradients = gradients.into_iter().collect();
    gradients.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    transforms::eval(gradients.iter().map(|(_, gradient)| gradient).chain([&loss]))?;
    Ok((loss.item_exact::<f32>(), gradients))
}

fn activations_of_split_weights(group: &Group) -> Result<()> {
    let norm = |x: &Array| -> Result<f32> { Ok(x.square()?.sum(None)?.sqrt()?.item_exact::<f32>()) };
    for model in DIVIDED {
        let (loss, plain) = step(model(group)?, None)?;
        let (found, gradients) = step(model(group)?, Some("affine:8:32"))?;
        assert!((found - loss).abs() <= 1e-6 * loss, "{found} and not {loss}");
        assert_eq!(gradients.len(), plain.len());
        let mut most = 0f32;
        for ((path, found), (other, expected)) in gradients.iter().zip(&plain) {
            assert_eq!((path, found.shape()), (other, expected.shape()));
            let off = norm(&found.subtract(expected)?)? / norm(expected)?;
            assert!(off < 2e-2, "{path} is off by {off}");
            most = most.max(off);
        }
        assert!(most > 0.0, "nothing was read from codes");
    }
    Ok(())
}
