//! Straight-through gradients.

use std::cell::RefCell;

use mlx_rs::{Array, ops, transforms};
use tacit_core::op::StopGradient;
use tacit_core::transform::{Differentiable, apply, intercept};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Primitive, Result, Value, handler};

/// Makes `f`, which quantizes a float master, pass the gradient straight through to it.
///
/// The forward pass uses what `f` returns, by the handlers of its type. The backward pass takes the vjp of the plain
/// primitive, again with the implicit operand intercepted, and gives the master the cotangent of the dense weight that
/// neither pass builds.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops, transforms};
/// use tacit_arrays::{Nf4Array, ste};
/// use tacit_core::implicit;
///
/// let x = ops::ones::<f32>(&[1, 32])?;
/// let loss = |master: &Array| -> tacit_core::Result<Array> {
///     let w = ste(|w: &Array| Nf4Array::quantize(w, 32))(master)?;
///     implicit(|[x, w]: [Array; 2]| x.matmul(w)?.sum(None))([(&x).into(), w])?.dense()
/// };
/// let mut gradient = transforms::grad(move |master: &Array| Ok(loss(master)?));
/// let gradient = gradient(&ops::ones::<f32>(&[32, 2])?)?;
/// assert_eq!(gradient.as_slice::<f32>(), [1.0; 64]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The returned function fails where `f` fails, or if `f` returns another shape or dtype than the master's.
pub fn ste<V: Into<Value>, E: Into<Error>>(
    mut f: impl FnMut(&Array) -> Result<V, E>,
) -> impl FnMut(&Array) -> Result<Value> {
    move |master| {
        let inner = f(&mlx_rs::stop_gradient(master)?).map_err(Into::into)?.into();
        let (expected, found) = (Aval::from(master), inner.aval()?);
        if expected != found {
            return Err(Error::invalid(
                format!("the function given to ste made {inner} of {expected}"),
                "return an array of the master's own shape and dtype",
            ));
        }
        joined(master.clone(), inner)
    }
}

/// A float master whose forward value is another array.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Ste", default = straight_through)]
pub struct Ste {
    master: Array,
    inner: Value,
    #[implicit(aux)]
    aval: Aval,
}

impl Ste {
    /// The float array that the gradient goes to.
    #[must_use]
    pub fn master(&self) -> &Array {
        &self.master
    }

    /// The array that the forward pass uses.
    #[must_use]
    pub fn inner(&self) -> &Value {
        &self.inner
    }
}

impl Materialize for Ste {
    fn materialize(&self) -> Result<Value> {
        // The policy was asked for the whole, which counts once.
        let inner = match &self.inner {
            Value::Implicit(inner) => inner.build()?,
            dense @ Value::Dense(_) => dense.clone(),
        };
        joined(self.master.clone(), inner)
    }
}

/// The value of `inner` with the gradient of `master`.
fn joined(master: Array, inner: Value) -> Result<Value> {
    match inner {
        Value::Implicit(_) => Ok(Ste { aval: Aval::from(&master), master, inner }.into()),
        Value::Dense(value) => {
            let mut made = apply(Passed(value), &[master])?;
            Ok(made.swap_remove(0).into())
        }
    }
}

/// A constant whose gradient goes to the argument.
struct Passed(Array);

impl Differentiable for Passed {
    fn name(&self) -> &'static str {
        "ste"
    }

    fn forward(&self, _: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![self.0.clone()])
    }

    fn backward(&self, _: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        Ok(cotangents.to_vec())
    }
}

/// Nothing behind it gets a gradient, the master neither.
#[handler]
pub fn ste_stop_gradient(op: &StopGradient, array: &Ste) -> Result<Value> {
    match &array.inner {
        Value::Implicit(inner) => crate::structural::stop_gradient(op, &**inner),
        Value::Dense(inner) => Ok(mlx_rs::stop_gradient(inner)?.into()),
    }
}

/// Any primitive on a [`Ste`]: applied to `inner`, differentiated on the master.
fn straight_through(primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Value>> {
    let inner: Vec<&Value> =
        operands.iter().map(|value| value.downcast::<Ste>().map_or(*value, |ste| &ste.inner)).collect();
    let results = primitive.apply(&inner)?;
    if results.iter().any(Value::is_implicit) {
        // A view: the master is viewed the same way.
        let masters: Vec<Value> = operands
            .iter()
            .map(|value| value.downcast::<Ste>().map_or_else(|| (*value).clone(), |ste| (&ste.master).into()))
            .collect();
        let masters = primitive.apply(&masters.iter().collect::<Vec<_>>())?;
        return masters.iter().zip(results).map(|(master, result)| joined(master.dense()?, result)).collect();
    }
    if operands.iter().any(|value| value.downcast::<Ste>().is_none() && has_float_children(value)) {
        return Err(Error::decline("the children of the other implicit operand would get no gradient"));
    }
    let mut args = Vec::new();
    let roles = operands
        .iter()
        .enumerate()
        .map(|(position, value)| match (value.downcast::<Ste>(), value) {
            (Some(ste), _) => {
                args.push(ste.master.clone());
                Role::Master(ste.inner.clone())
            }
            // Also what has no gradient, such as indices, is an argument: `vmap` maps arguments only.
            (None, Value::Dense(array)) => {
                args.push(array.clone());
                // MLX has no gradient for the value that `Pad` pads with, and reads past its list when asked for both.
                let has_gradient = array.dtype().is_inexact() && (primitive.name(), position) != ("Pad", 1);
                if has_gradient { Role::Differentiable } else { Role::Constant }
            }
            (None, fixed) => Role::Fixed((*fixed).clone()),
        })
        .collect();
    let results = results.iter().map(Value::dense).collect::<Result<Vec<_>>>()?;
    let made =
        apply(StraightThrough { primitive: primitive.clone(), roles, results: RefCell::new(Some(results)) }, &args)?;
    Ok(made.into_iter().map(Value::from).collect())
}

/// Whether a gradient may go to a child of an implicit operand.
fn has_float_children(value: &Value) -> bool {
    let Value::Implicit(array) = value else { return false };
    array.children().iter().any(|(_, child)| match child {
        Value::Dense(child) => child.dtype().is_inexact(),
        nested @ Value::Implicit(_) => has_float_children(nested),
    })
}

/// What an operand is to the gradient.
enum Role {
    /// The next argument is a master; the forward pass uses this instead.
    Master(Value),
    /// The next argument.
    Differentiable,
    /// The next argument, which has no gradient.
    Constant,
    /// Not an argument.
    Fixed(Value),
}

struct StraightThrough {
    primitive: Primitive,
    roles: Vec<Role>,
    /// The results on the first arguments, which are there before the custom vjp is.
    results: RefCell<Option<Vec<Array>>>,
}

impl StraightThrough {
    /// The operands of the forward pass: masters replaced by what stands for them.
    fn operands(&self, args: &[Array]) -> Vec<Value> {
        let mut args = args.iter();
        self.roles
            .iter()
            .filter_map(|role| match role {
                Role::Master(inner) => args.next().map(|_| inner.clone()),
                Role::Differentiable | Role::Constant => args.next().map(Value::from),
                Role::Fixed(value) => Some(value.clone()),
            })
            .collect()
    }
}

impl Differentiable for StraightThrough {
    fn name(&self) -> &str {
        self.primitive.name()
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        // MLX calls it at once with the first arguments; another call, such as vmap's, has others.
        if let Some(results) = self.results.take() {
            return Ok(results);
        }
        let operands = self.operands(args);
        self.primitive.apply(&operands.iter().collect::<Vec<_>>())?.iter().map(Value::dense).collect()
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        let fixed: Vec<bool> = self.roles.iter().map(|role| matches!(role, Role::Fixed(_) | Role::Constant)).collect();
        let mut args = self.operands(primals);
        // As arguments the cotangents bound the walk, which would otherwise go through all that made them.
        args.extend(cotangents.iter().map(Value::from));
        let gradients = intercept(&args, |arrays| {
            let (operands, cotangents) = arrays.split_at(fixed.len());
            let chosen: Vec<Array> =
                operands.iter().zip(&fixed).filter(|(_, fixed)| !**fixed).map(|(array, _)| array.clone()).collect();
            let function = |chosen: &[Array]| {
                let mut chosen = chosen.iter();
                let operands: Vec<Array> = operands
                    .iter()
                    .zip(&fixed)
                    .filter_map(|(array, fixed)| if *fixed { Some(array) } else { chosen.next() })
                    .cloned()
                    .collect();
                Ok(self.primitive.emit(&operands)?)
            };
            Ok(transforms::fallible_vjp(function, &chosen, cotangents)?.1)
        })?;
        let mut gradients = gradients.iter();
        let args = self.roles.iter().filter(|role| !matches!(role, Role::Fixed(_)));
        args.zip(primals)
            .map(|(role, primal)| match role {
                Role::Constant => Ok(ops::zeros_like(primal)?),
                _ => gradients.next().map_or_else(|| Ok(ops::zeros_like(primal)?), Value::dense),
            })
            .collect()
    }
}
