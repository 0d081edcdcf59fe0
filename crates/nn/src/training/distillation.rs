//! How far the outputs of a model are from those of its teacher.

use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::{Aval, Error, Result};

/// The divergence of the probabilities of each row of `logits: [.., classes]` from those of a teacher:
/// `T^2 KL(softmax(teacher / T) || softmax(logits / T))` at the temperature `T`, in nats, `f32[..]`.
///
/// It is the loss of knowledge distillation (Hinton et al., 2015). The teacher's logits have no gradient. With a quantized model, the
/// same model in floats as its teacher, and gradients of [`ParameterFilter::Scales`](crate::ParameterFilter::Scales) it is DWQ of
/// mlx-lm: scales and biases make up for what the codes lose, and the codes stay.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::module::Module;
/// use mlx_rs::optimizers::Adam;
/// use mlx_rs::{nn, random};
/// use tacit_nn::training::distillation_loss;
/// use tacit_nn::{Model, ParameterFilter};
///
/// let mut teacher = nn::Linear::new(64, 8)?;
/// let mut student = Model::new(teacher.clone())?.quantize("weight", "affine:2:64")?;
/// let (x, mut adam) = (random::normal::<f32>(&[32, 64], None, None, &random::key(0)?)?, Adam::new(1e-3));
/// let targets = teacher.forward(&x)?;
/// let mut losses = Vec::new();
/// for _ in 0..10 {
///     let (loss, gradients) = student.value_and_grad(ParameterFilter::Scales, &x, |student, x| {
///         Ok::<_, tacit_core::Error>(distillation_loss(&student.forward(x)?, &targets, 1.0)?.mean(None)?)
///     })?;
///     student.update(&mut adam, &gradients)?;
///     losses.push(loss.item_exact::<f32>());
/// }
/// assert!(losses[9] < losses[0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The two are not float logits of one shape, or the temperature is not a number above 0.
pub fn distillation_loss(logits: &Array, teacher: &Array, temperature: f32) -> Result<Array> {
    let fit = logits.ndim() > 0 && logits.shape() == teacher.shape();
    if !fit || !logits.dtype().is_float() || !teacher.dtype().is_float() {
        return Err(Error::invalid(
            format!("the logits are {}, and those of the teacher are {}", Aval::from(logits), Aval::from(teacher)),
            "give float logits of the same rows and classes, `[.., classes]`",
        ));
    }
    if !temperature.is_finite() || temperature <= 0.0 {
        return Err(Error::invalid(
            format!("a temperature of {temperature} is not a number above 0"),
            "give 1, or more to weigh what the teacher holds unlikely",
        ));
    }
    // MLX refuses the logarithms of no rows. Both logits are computed all the same: other ranks may wait for this one to gather
    // a head.
    if logits.size() == 0 && logits.dim(-1) > 0 {
        let (student, expected) = (logits.as_dtype(Dtype::Float32)?, stop_gradient(teacher.as_dtype(Dtype::Float32)?)?);
        return Ok(student.add(expected)?.reshape(&logits.shape()[..logits.ndim() - 1])?);
    }
    // Half floats would lose the divergence in sums over the classes.
    let log_probabilities = |logits: &Array| -> Result<Array> {
        let logits = logits.as_dtype(Dtype::Float32)?.divide(Array::from_f32(temperature))?;
        Ok(logits.subtract(logits.logsumexp_axis(-1, true)?)?)
    };
    let (student, expected) = (log_probabilities(logits)?, stop_gradient(log_probabilities(teacher)?)?);
    let probabilities = expected.exp()?;
    // A class that is ruled out counts for nothing, however unlikely it is to the model.
    let terms = probabilities.multiply(expected.subtract(student)?)?;
    let none = Array::from_f32(0.0);
    let terms = ops::select(probabilities.eq(&none)?, &none, terms)?;
    Ok(terms.sum_axis(-1, false)?.multiply(Array::from_f32(temperature * temperature))?)
}
