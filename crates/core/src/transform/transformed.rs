//! What the transforms that make a function return.

use std::marker::PhantomData;

use crate::tree::Arguments;
use crate::values::Values;
use crate::{Result, Tree, Value};

/// A function that a transform made of a function of `A`; each [`call`](Self::call) gives an `R`.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::grad;
///
/// let mut gradient = grad(|(x, y): (Array, Array)| x.multiply(y));
/// let (x, y) = (Array::from_f32(3.0), Array::from_f32(5.0));
/// let (dx, _) = gradient.call((&x, &y))?;
/// assert_eq!(dx.array()?.item_exact::<f32>(), 5.0);
/// # Ok(())
/// # }
/// ```
pub struct Transformed<'f, A, R> {
    run: Box<dyn FnMut(Values) -> Result<R> + 'f>,
    args: PhantomData<fn(A)>,
}

impl<'f, A: Tree, R> Transformed<'f, A, R> {
    pub(super) fn new(run: impl FnMut(Values) -> Result<R> + 'f) -> Self {
        Self { run: Box::new(run), args: PhantomData }
    }

    /// Calls the function with anything of the structure of `A`: arrays, values, implicit arrays, or references to them.
    ///
    /// # Errors
    ///
    /// See the transform that made the function.
    pub fn call<B: Arguments<Arrays: Tree<With<Value> = A::With<Value>>>>(&mut self, args: B) -> Result<R> {
        let arguments = Values::from_arguments(&args)?;
        // What the caller let go of may be written over while the function runs.
        drop(args);
        (self.run)(arguments)
    }
}
