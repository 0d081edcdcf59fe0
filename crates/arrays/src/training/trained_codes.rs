//! Weights that are trained as their codes, without a float master.

use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};

use crate::avals::checks::{check_children, checked};
use crate::format::by_key::{decoded, redrawn, scales_reach};
use crate::format::{AnyFormat, Quantizer};
use crate::training::prepared::Prepared;
use crate::training::ste::with_gradient_of;

/// A weight that *is* its codes while it is trained: no float master is kept beside them.
///
/// A step decodes it, moves the floats and rounds them to codes again, at random, as its format says: `int8+stochastic`. A step of
/// a hundredth of the distance of two codes so moves one code of a hundred, and the mean of the weights is that of floats; the
/// nearest codes would all stay. Everywhere else it is the array of its codes.
///
/// Scales are made anew in a step, and reach every element of their blocks, also where the format's own would not. Formats whose scales
/// are rounded to the nearest of some codes, as those of double quantization are, are refused. Scales of half floats, as `affine` has
/// them of a weight of these, reach as far as their rounding lets them: what is at an end of its block moves inward alone by small
/// steps. `Model::cast_scales` holds them in `f32`.
///
/// `Model::prepare` puts it in the place of a weight, and `Model::update` makes its steps. By hand they are three: what
/// [`for_gradient`](Self::for_gradient) gives has a gradient, an optimizer moves the floats of [`for_step`](Self::for_step), and
/// [`stepped`](Self::stepped) rounds them.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops, random};
/// use tacit_arrays::TrainedCodes;
///
/// let w = TrainedCodes::from_value(&ops::ones::<f32>(&[8, 64])?.into(), "int8+stochastic", &random::key(1)?)?;
/// let moving = w.for_step()?;
/// let moved = moving.value().expect("it is moved").subtract(Array::from_f32(0.01))?;
/// let w = moving.with_value(moved).stepped()?;
/// assert_eq!(w.codes().to_string(), "Int8(f32[8,64])");
/// assert!(w.codes().dense()?.max(None)?.item_exact::<f32>() < 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.TrainedCodes")]
pub struct TrainedCodes {
    /// The array of codes.
    #[implicit(get)]
    codes: Value,
    /// The random key that the steps to come are rounded by: `u32[2]`.
    #[implicit(get)]
    key: Array,
    /// What has the gradient, or is moved, during a step.
    #[implicit(get)]
    value: Option<Array>,
    /// The format, such as `int8+stochastic`.
    #[implicit(aux, get)]
    format: AnyFormat,
    #[implicit(aux)]
    aval: Aval,
}

impl TrainedCodes {
    /// The codes of `value` in `format`, which rounds at random: those that it has, where it is in that format already, and
    /// otherwise the nearest.
    ///
    /// One that is [`Prepared`] has the codes that it stands for, and in another format those of its master. The steps to come are
    /// rounded by `key: u32[2]`.
    ///
    /// # Errors
    ///
    /// The format rounds to the nearest, or rounds its scales so, as double quantization and K-quants do, or has no such options, or the
    /// value does not fit it; the key is another array; or the policy forbids to build the floats of an implicit value.
    pub fn from_value(value: &Value, format: impl TryInto<AnyFormat, Error: Into<Error>>, key: &Array) -> Result<Self> {
        let format = format.try_into().map_err(Into::into)?;
        let inner = rounding_to(&format)?;
        let value = match value.downcast::<Prepared>() {
            Some(prepared) => {
                let codes = prepared.convert()?;
                if inner.stores(&codes) { codes } else { prepared.master().into() }
            }
            None => value.downcast::<Self>().map_or(value, Self::codes).clone(),
        };
        let codes = if inner.stores(&value) { value } else { inner.quantize(&value.dense()?)? };
        if !scales_reach(&codes) {
            return Err(Error::invalid(
                format!(
                    "codes are not trained in the format {format}, whose scales are rounded too: a step would cut off ends of blocks"
                ),
                "take a format whose scales are floats, such as int8+stochastic or nf4:64+stochastic, or mxfp4+stochastic",
            ));
        }
        checked(Self { key: key.clone(), value: None, aval: codes.aval()?, codes, format })
    }

    /// The same with another value.
    #[must_use]
    pub fn with_value(self, value: Array) -> Self {
        Self { value: Some(value), ..self }
    }

    /// The same without a value, as it is between steps.
    #[must_use]
    pub fn at_rest(self) -> Self {
        Self { value: None, ..self }
    }

    /// The same with a value that gets the gradient of the weight.
    ///
    /// Nobody reads its numbers: it is a single zero, repeated.
    ///
    /// # Errors
    ///
    /// MLX refuses it.
    pub fn for_gradient(&self) -> Result<Self> {
        let zero = ops::zeros_dtype(&[], self.aval.dtype)?;
        Ok(self.clone().with_value(ops::broadcast_to(&zero, &self.aval.shape)?))
    }

    /// The same with a value that an optimizer moves: the floats that the codes stand for, in `f32` whatever the type of the weight.
    ///
    /// # Errors
    ///
    /// The policy forbids to build them.
    pub fn for_step(&self) -> Result<Self> {
        Ok(self.clone().with_value(decoded(&self.codes)?))
    }

    /// The codes of the value, rounded at random by one half of the key; the other half stays for the steps to come.
    ///
    /// Without a value it is itself.
    ///
    /// # Errors
    ///
    /// The value has another shape.
    pub fn stepped(self) -> Result<Self> {
        let Some(value) = &self.value else { return Ok(self) };
        self.check()?;
        let (next_key, key) = random::split(&self.key, 2)?;
        let codes = redrawn(&self.codes, rounding_to(&self.format)?, &value.as_dtype(Dtype::Float32)?, &key)?;
        Ok(Self { codes, key: next_key, ..self.at_rest() })
    }

    fn straight(&self) -> Result<Value> {
        match &self.value {
            Some(value) => with_gradient_of(self.codes.clone(), value.clone()),
            None => Ok(self.codes.clone()),
        }
    }
}

/// The format whose codes one draws; one that does not is refused.
fn rounding_to(format: &AnyFormat) -> Result<&dyn Quantizer> {
    format.stochastic().ok_or_else(|| {
        Error::invalid(
            format!("codes are not trained in the format {format}, which rounds small steps away"),
            format!("write {format}+stochastic"),
        )
    })
}

impl Materialize for TrainedCodes {
    fn materialize(&self) -> Result<Value> {
        self.straight()?.opened()
    }

    fn used_as(&self) -> Result<Option<Value>> {
        self.straight().map(Some)
    }

    fn check(&self) -> Result<()> {
        if !rounding_to(&self.format)?.stores(&self.codes) {
            return Err(Error::invalid(
                format!("{} is not in the format {}, in which a step would round it", self.codes, self.format),
                "take the format that made these codes",
            ));
        }
        let key = ("its key", Aval::new(&[2], Dtype::Uint32), Aval::from(&self.key));
        let mut children = vec![("its codes", self.aval.clone(), self.codes.aval()?), key];
        if let Some(value) = &self.value {
            children.push(("its value", Aval::new(&self.aval.shape, value.dtype()), Aval::from(value)));
        }
        check_children("a weight of trained codes", &self.aval, &children)
    }
}
