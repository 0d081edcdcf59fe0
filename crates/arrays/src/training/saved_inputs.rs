//! Weights whose gradients read activations from codes.

use mlx_rs::Array;
use tacit_core::primitives::{self, Class, Derivative};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Primitive, Result, Value, broadcast_source, handler};

use crate::avals::checks::{check_children, check_float, checked};
use crate::format::AnyFormat;
use crate::training::saved::{check_saving, form_of};

/// A weight whose ops have gradients read their activations from codes of a format: [`saved`](crate::saved()) by parameters in
/// place of functions.
///
/// It stands for the inner array, dense or implicit: each op is that of the inner array, to the bit. Activations are the other
/// operands of such an op, as of a product, a convolution or a norm, and what plain code makes of its results up to the next op of
/// a `SavedInputs` of any format. A gradient that reads one reads codes of it, which are made once, and reads the weight
/// itself as it is. What no gradient reads is not coded: the input of a product with a frozen weight, say. Casts, transposes,
/// parts and multiples of the weight save as it does.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::SavedInputs;
/// use tacit_core::implicit;
/// use tacit_core::transform::grad;
///
/// let x = ops::ones::<f32>(&[4, 64])?;
/// let mut gradient = grad(move |w: Array| -> tacit_core::Result<Array> {
///     let w = SavedInputs::new(w, "affine:8:64")?;
///     implicit((&x, w), |(x, w)| x.matmul(w)?.sum(None))?.dense()
/// });
/// assert_eq!(gradient.call(ops::ones::<f32>(&[64, 8])?)?.to_string(), "f32[64,8]");
/// # Ok(())
/// # }
/// ```
///
/// All of it is in one trace, such as a call of a model. It composes as [`saved`](crate::saved()) does. Where another operand
/// takes every op too, as an [`Ste`](crate::Ste) does, the op is an [`Error::TwoDefaults`].
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.SavedInputs", default = saving)]
pub struct SavedInputs {
    /// The weight.
    #[implicit(get)]
    inner: Value,
    /// The format of the activations; `None` where they stay as they are.
    #[implicit(aux, get)]
    format: Option<AnyFormat>,
    #[implicit(aux)]
    aval: Aval,
}

impl SavedInputs {
    /// `inner`, whose ops save activations in `format`.
    ///
    /// # Errors
    ///
    /// `inner` is not float, or the format has no such options or rounds by a random key.
    pub fn new(inner: impl Into<Value>, format: impl TryInto<AnyFormat, Error: Into<Error>>) -> Result<Self> {
        Self::with_format(inner.into(), Some(format.try_into().map_err(Into::into)?))
    }

    /// `inner`, whose activations stay as they are: behind an op of it no format of another weight reaches.
    ///
    /// # Errors
    ///
    /// `inner` is not float.
    pub fn exact(inner: impl Into<Value>) -> Result<Self> {
        Self::with_format(inner.into(), None)
    }

    fn with_format(inner: Value, format: Option<AnyFormat>) -> Result<Self> {
        checked(Self { aval: inner.aval()?, inner, format })
    }

    /// Another weight that saves as this one does. What is not float is given as it is.
    fn around(&self, inner: Value) -> Result<Value> {
        let aval = inner.aval()?;
        Ok(if aval.dtype.is_float() { Self { inner, format: self.format.clone(), aval }.into() } else { inner })
    }
}

impl Materialize for SavedInputs {
    fn materialize(&self) -> Result<Value> {
        self.inner.opened()
    }

    fn used_as(&self) -> Result<Option<Value>> {
        let Value::Implicit(inner) = &self.inner else { return Ok(None) };
        let Some(used) = inner.used_as()? else { return Ok(None) };
        self.around(used).map(Some)
    }

    fn check(&self) -> Result<()> {
        self.format.as_ref().map_or(Ok(()), check_saving)?;
        let inner = self.inner.aval()?;
        check_float("the weight", &inner)?;
        check_children("a weight that saves activations", &self.aval, &[("its weight", self.aval.clone(), inner)])
    }
}

/// Numbers beside the weight are its own, and all else is activations. It goes before a view of the multiple, which not every op
/// takes.
#[handler]
pub(crate) fn saved_inputs_binary(op: &primitives::Binary, w: &SavedInputs, other: &Array) -> Result<Vec<Value>> {
    saving(op, &[&Value::from(w.clone()), &Value::from(other)])
}

/// Any primitive, of the inner array: what is made of the weight alone saves as it does where that is a weight still, and an op
/// with activations saves these.
fn saving(primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Value>> {
    let weights: Vec<Option<&SavedInputs>> = operands.iter().map(|value| value.downcast()).collect();
    let inner = operands.iter().zip(&weights).map(|(&operand, weight)| weight.map_or(operand, |weight| &weight.inner));
    let inner: Vec<&Value> = inner.collect();
    let (mut places, mut activations) = (Vec::new(), Vec::new());
    for (place, &operand) in operands.iter().enumerate().filter(|(place, _)| weights[*place].is_none()) {
        if !is_number(operand)? {
            places.push(place);
            activations.push(operand.clone());
        }
    }
    // The format of one of them counts.
    let Some(weight) = weights.iter().flatten().max_by_key(|weight| weight.format.is_some()) else {
        return Err(Error::decline("no operand saves activations"));
    };
    if activations.is_empty() {
        let results = primitive.apply(&inner)?;
        return if keeps(primitive) {
            results.into_iter().map(|result| weight.around(result)).collect()
        } else {
            Ok(results)
        };
    }
    form_of(weight.format.as_ref()).run(&activations, |activations| {
        let mut inner = inner.clone();
        for (&place, activation) in places.iter().zip(activations) {
            inner[place] = activation;
        }
        primitive.apply(&inner)
    })
}

/// Whether each element of the results of a primitive is made of one of the weight's.
fn keeps(primitive: &Primitive) -> bool {
    primitives::describe(primitive.name()).is_some_and(|row| match row.class {
        Class::Binary => true,
        Class::Unary | Class::Moving | Class::Reshaping => row.derivative == Derivative::Linear,
        _ => false,
    })
}

/// Whether a value repeats one float, which is no activation.
fn is_number(value: &Value) -> Result<bool> {
    Ok(match value {
        Value::Dense(array) => array.dtype().is_float() && broadcast_source(array)?.size() == 1,
        Value::Implicit(_) => false,
    })
}
