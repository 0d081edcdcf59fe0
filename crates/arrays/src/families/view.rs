//! Views that stand around an array as they are, wherever its elements go.

use std::cell::{Cell, RefCell};

use tacit_core::op::{Moving, Slice, TypedPrimitive};
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
///     fn of(half: Value) -> Result<Self> {
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
///     fn moved(&self, step: &Move<'_>) -> Result<Value> {
///         Ok(Self::of(step.of(&self.half)?)?.into())
///     }
/// }
///
/// let w = Double::of(Nf4Array::quantize(&ops::ones::<f32>(&[8, 64])?, 64)?.into())?;
/// let _deny = Policy::Deny.scope();
/// let pairs = implicit(w, |w| w.reshape(&[4, 2, 64]))?;
/// assert_eq!(pairs.to_string(), "Double(f32[4,2,64])");
/// # Ok(())
/// # }
/// ```
pub trait View: ImplicitArray {
    /// The view of the moved array: what it is around `step.of(..)` of the array behind it, and of all else that it has for
    /// each element.
    ///
    /// # Errors
    ///
    /// It declines a step after which it is no such view, as where an axis is cut that it needs whole.
    fn moved(&self, step: &Move<'_>) -> Result<Value>;
}

/// A primitive that moves the elements of a [`View`], and which of its results is asked for.
#[derive(Debug)]
pub struct Move<'m> {
    op: &'m Moving,
    shape: &'m [i32],
    rest: &'m [&'m Value],
    made: &'m [Aval],
    result: usize,
    /// What the primitive made of the arrays that were asked for, in their order; of several results all are made at once.
    memory: &'m RefCell<Vec<Vec<Value>>>,
    asked: Cell<usize>,
}

impl Move<'_> {
    /// The primitive.
    #[must_use]
    pub fn op(&self) -> &Moving {
        self.op
    }

    /// What the primitive makes of another array of the view's shape, of any dtype. A view asks for its arrays in one order.
    ///
    /// # Errors
    ///
    /// A handler fails, or the policy forbids a materialization.
    pub fn of(&self, value: &Value) -> Result<Value> {
        let asked = self.asked.replace(self.asked.get() + 1);
        let mut memory = self.memory.borrow_mut();
        if memory.len() <= asked {
            let operands: Vec<&Value> = std::iter::once(value).chain(self.rest.iter().copied()).collect();
            memory.push(self.op.apply(&operands)?);
        }
        Ok(memory[asked][self.result].clone())
    }

    /// The axis of the result that `axis` of the view is.
    ///
    /// # Errors
    ///
    /// It declines a primitive that does not move all of the axis together.
    pub fn axis(&self, axis: usize) -> Result<usize> {
        let after = self.op.axis_after(axis, self.shape, self.rest, self.made)?;
        after.ok_or_else(|| Error::decline(format!("{} does not keep axis {axis} whole", self.op.name())))
    }
}

/// The view of the moved elements.
// What is behind it may be cut in ways of its own.
#[handler(precedence = 1)]
pub(crate) fn view_moving(op: &Moving, view: &dyn View, rest: &[&Value], made: &[Aval]) -> Result<Vec<Value>> {
    if op.name() == Slice::NAME {
        forward(&op.view()?, &made[0])?;
    }
    let shape = view.aval()?.shape;
    let memory = RefCell::default();
    let moved = |result| {
        let asked = Cell::new(0);
        view.moved(&Move { op, shape: &shape, rest, made, result, memory: &memory, asked })
    };
    (0..made.len()).map(moved).collect()
}
