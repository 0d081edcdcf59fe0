//! The family of views that stay as they are when the elements of the array inside are moved.

use tacit_core::primitives::{BroadcastAxes, Moving, TypedPrimitive};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, handler};

use crate::avals::axes::forward;

/// The family of views of an array of the same shape, element by element: an array in another dtype, times a number, under a
/// mask.
///
/// A member says what it is around the moved elements; all primitives that only move elements, such as transposes, slices,
/// reshapes and gathers, follow from this. What is behind the view is moved by its own handlers.
///
/// ```
/// # extern crate tacit_core as tacit;
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::{Move, Nf4Array, View};
/// use tacit_core::{Aval, ImplicitArray, Materialize, Policy, Result, Value, implicit};
///
/// /// Twice another array.
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = "docs.Double", family(View))]
/// struct Double {
///     half: Value,
///     #[implicit(aux)]
///     aval: Aval,
/// }
///
/// impl Double {
///     fn new(half: Value) -> Result<Self> {
///         Ok(Self { aval: half.aval()?, half })
///     }
/// }
///
/// impl Materialize for Double {
///     fn materialize(&self) -> Result<Value> {
///         Ok(self.half.dense()?.multiply(Array::from_f32(2.0))?.into())
///     }
/// }
///
/// impl View for Double {
///     fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>> {
///         step.around([&self.half], |[half]| Ok(Self::new(half)?.into()))
///     }
/// }
///
/// let w = Double::new(Nf4Array::quantize(&ops::ones::<f32>(&[8, 64])?, 64)?.into())?;
/// let _deny = Policy::Deny.scope();
/// let pairs = implicit(w, |w| w.reshape(&[4, 2, 64]))?;
/// assert_eq!(pairs.to_string(), "Double(f32[4,2,64])");
/// # Ok(())
/// # }
/// ```
pub trait View: ImplicitArray {
    /// The view of each result: what [`step.around`](Move::around) makes of the array behind it, and of all else that it has for
    /// each element.
    ///
    /// # Errors
    ///
    /// It declines a step after which it is no such view, as where an axis is cut that it needs whole.
    fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>>;
}

/// A primitive that moves the elements of a [`View`].
#[derive(Debug)]
pub struct Move<'m> {
    op: &'m Moving,
    shape: &'m [i32],
    rest: &'m [&'m Value],
    results: &'m [Aval],
}

impl Move<'_> {
    /// The primitive.
    #[must_use]
    pub fn op(&self) -> &Moving {
        self.op
    }

    /// What `view` makes, for each result, of what the primitive makes of these arrays: they have the view's shape, and any
    /// dtype.
    ///
    /// # Errors
    ///
    /// A handler or `view` fails, or the policy forbids a materialization.
    pub fn around<const N: usize>(
        &self,
        arrays: [&Value; N],
        view: impl Fn([Value; N]) -> Result<Value>,
    ) -> Result<Vec<Value>> {
        let apply = |array| {
            let operands: Vec<&Value> = std::iter::once(array).chain(self.rest.iter().copied()).collect();
            self.op.apply(&operands)
        };
        let moved = arrays.into_iter().map(apply).collect::<Result<Vec<_>>>()?;
        (0..self.results.len()).map(|result| view(std::array::from_fn(|array| moved[array][result].clone()))).collect()
    }

    /// The axis of each result that `axis` of the view is.
    ///
    /// # Errors
    ///
    /// It declines a primitive that does not move all of the axis together.
    pub fn axis(&self, axis: usize) -> Result<usize> {
        let after = self.op.axis_after(axis, self.shape, self.rest, self.results)?;
        after.ok_or_else(|| Error::decline(format!("{} does not keep axis {axis} whole", self.op.name())))
    }
}

/// The view of the moved elements.
// What is behind it may be cut in ways of its own.
#[handler(precedence = 1)]
pub(crate) fn view_moving(op: &Moving, view: &dyn View, rest: &[&Value], results: &[Aval]) -> Result<Vec<Value>> {
    let shape = view.aval()?.shape;
    forward(op, &shape, results)?;
    if op.name() == BroadcastAxes::NAME && shape.len() == 2 {
        // One that has products was asked for them before. Others are built, once and not for each entry.
        return Err(Error::decline("it is repeated for a product, and has none"));
    }
    view.moved(&Move { op, shape: &shape, rest, results })
}
