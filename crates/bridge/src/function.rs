//! A Rust function that C++ may call for as long as it is borrowed.

use std::ffi::{c_int, c_void};

use mlx_rs::Array;

use crate::arrays;
use crate::callback::guarded;
use crate::error::BoxError;
use crate::ffi::{Arrays, Function, Sink};

type Closure<'a> = &'a mut dyn FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError>;

/// A borrowed function from arrays to arrays.
pub(crate) struct Borrowed<'a> {
    function: Closure<'a>,
}

impl<'a> Borrowed<'a> {
    pub(crate) fn new(function: Closure<'a>) -> Self {
        Self { function }
    }

    /// What the C++ side calls, valid while `self` is borrowed.
    pub(crate) fn table(&mut self) -> Function {
        Function { ctx: std::ptr::from_mut(self).cast(), call }
    }
}

extern "C" fn call(ctx: *mut c_void, args: Arrays, results: Sink) -> c_int {
    guarded(|| {
        // SAFETY: `ctx` is the function that `table` borrowed, and no other call of it is under way: the C++ side calls
        // it only from within the call that it was given to. The arguments are live.
        let (borrowed, args) = unsafe { (&mut *ctx.cast::<Borrowed<'_>>(), arrays::copies(args)?) };
        Ok(arrays::pour(&(borrowed.function)(args)?, &results)?)
    })
}
