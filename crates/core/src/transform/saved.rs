//! Functions whose gradients read their activations in another form.

use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use tacit_bridge::{BoxError, Ends};

use super::opened::Opened;
use super::resident::Resident;
use super::{Differentiable, Transformed, apply};
use crate::materialize::built;
use crate::tree;
use crate::values::Values;
use crate::{Aval, Error, Result, Tree, Value, trace};

/// Lets a gradient through `f` read the activations of `f` in the form that `encode` gives them: memory for accuracy.
///
/// An activation is a float array that `f` makes of its dense arguments, and these arguments. What `f` captures is not one, so
/// that weights stay as they are: they have their gradients all the same. The results of `f`, and its tangents, are those of
/// `f` to the bit. For each activation that a gradient reads `encode` is called once, and what it returns stands for it from
/// the forward pass to the backward pass, which decodes it where it is needed. What a vjp reads is found in the vjp itself: a
/// sum, a cast or a slice reads nothing; a product whose weight is not trained needs no input; a view holds what its operand
/// holds. Masks and other whole numbers, such as that of a `maximum`, are saved as they are, and so is what a vjp divides by, as
/// that of a logarithm, a root or a quotient does.
///
/// `encode` returns a float value whose elements, in row-major order, begin with those of the activation: rows may be padded, and
/// the dtype may be another one. The gradients are exact where that value is.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::Value;
/// use tacit_core::transform::{grad, saved_as};
///
/// // Activations that are rounded to integers for the backward pass.
/// let rounded = |x: &Array| -> tacit_core::Result<Value> { Ok(x.round(None)?.into()) };
/// let mut gradient = grad(move |x: Array| saved_as(rounded, |x: Array| x.square()).call(x)?.dense());
/// assert_eq!(gradient.call(Array::from_f32(2.75))?.array()?.item_exact::<f32>(), 6.0);
/// # Ok(())
/// # }
/// ```
///
/// Call it inside what takes the gradient. Under `vmap`, and within an [`implicit`](crate::implicit()) around the gradient, it
/// saves nothing, and the gradients are those of `f`. A [`checkpoint`](super::checkpoint()) inside `f` holds what goes into it
/// in this form, and computes its inside again.
///
/// # Errors
///
/// A call fails where `f` fails. Where a gradient is taken, `encode` fails, or returns a value that is not float
/// or has too few elements. The gradient of such a gradient is an error, as what is encoded has no derivative.
pub fn saved_as<'f, A, O, E, Q, F>(encode: Q, mut f: F) -> Transformed<'f, A, O::With<Value>>
where
    A: Tree + 'f,
    O: Tree + 'f,
    E: Into<Error> + 'f,
    Q: Fn(&Array) -> Result<Value> + 'static,
    F: FnMut(A) -> Result<O, E> + 'f,
{
    let encode: Rc<Encode> = Rc::new(encode);
    Transformed::new(move |mut arguments| {
        if !tacit_bridge::in_transform() {
            return arguments.run(&mut f)?.into_tree();
        }
        let inputs = set_apart(&mut arguments)?;
        let mut results = arguments.run(&mut f)?;
        let outputs = set_apart(&mut results)?;
        let encode = Rc::clone(&encode);
        // Handlers take nodes of a graph that is plain only once its traces have ended.
        trace::once_plain(move || save(&encode, &[Ends { inputs, outputs, ..Ends::default() }]))?;
        results.into_tree()
    })
}

/// Has the gradients through these parts of the graph, which is plain, read their activations in a form.
pub(super) fn save(encode: &Rc<Encode>, parts: &[Ends]) -> Result<()> {
    let resident = Resident::new(Held(Rc::clone(encode)));
    let hold = move |args: &[Array]| -> Result<Vec<Array>, BoxError> { Ok(resident.get()?.hold(args)?) };
    Ok(tacit_bridge::saved(hold, parts)?)
}

/// Makes the dense arrays among some values nodes of their own; these.
fn set_apart(values: &mut Values) -> Result<Vec<Array>> {
    let dense: Vec<Array> = values.values.iter().filter_map(Value::as_dense).cloned().collect();
    let apart = tacit_bridge::apart(&dense)?;
    for (value, node) in values.values.iter_mut().filter(|value| !value.is_implicit()).zip(&apart) {
        *value = node.into();
    }
    Ok(apart)
}

/// What makes of an activation the value that stands for it.
pub(super) type Encode = dyn Fn(&Array) -> Result<Value>;

/// What activations are held as.
struct Held(Rc<Encode>);

impl Held {
    /// The first array as it is decoded, after the others are computed; then what it is decoded from.
    fn hold(&self, args: &[Array]) -> Result<Vec<Array>> {
        let Some((activation, cotangents)) = args.split_first() else {
            return Err(Error::invalid("there is no activation to save", "report this"));
        };
        let value = (self.0)(&without_second(activation)?)?;
        let (expected, found) = (Aval::from(activation), value.aval()?);
        if !found.dtype.is_float() || expected.size() > found.size() {
            return Err(Error::invalid(
                format!("an activation of {expected} is saved as {value}"),
                "return a float value that holds all its elements",
            ));
        }
        let opened = Opened::from_values(&Values::from_arguments(&value)?)?;
        let waiting = tacit_bridge::after(&opened.leaves, cotangents)?;
        let again = tree::unflatten(&opened.def, waiting.iter().map(Value::from).collect())?;
        let mut decoded = built(again)?;
        if found.shape != expected.shape {
            let size = expected.size() as i32;
            let flat = decoded.reshape(&[-1])?;
            let cut = if found.size() > expected.size() { flat.try_index(..size)? } else { flat };
            decoded = cut.reshape(&expected.shape)?;
        }
        let decoded = without_second(&decoded.as_dtype(expected.dtype)?)?;
        Ok(std::iter::once(decoded).chain(opened.leaves).collect())
    }
}

/// The same array, without derivatives: what is encoded has none, and zeros would be wrong.
fn without_second(array: &Array) -> Result<Array> {
    Ok(apply(std::slice::from_ref(array), Encoded)?.swap_remove(0))
}

struct Encoded;

impl Encoded {
    fn refused() -> Error {
        Error::invalid(
            "a derivative is taken of a gradient that read saved activations",
            "take derivatives of gradients without `saved`, whose activations are encoded",
        )
    }
}

impl Differentiable for Encoded {
    fn name(&self) -> &'static str {
        "saved"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(args.to_vec())
    }

    fn backward(&self, _: &[Array], _: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        Err(Self::refused())
    }

    fn tangents(&self, _: &[Array], _: &[Array], _: &[usize]) -> Option<Result<Vec<Array>>> {
        Some(Err(Self::refused()))
    }
}
