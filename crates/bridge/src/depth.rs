//! Whether MLX can go through a graph on the stack that is left.

use mlx_rs::Array;

use crate::arrays;
use crate::error::{BoxError, BridgeError};
use crate::ffi::{self, Span};

/// Bytes of the stack that MLX takes for each op of a chain, with room to spare.
const FRAME: usize = 512;

/// Bytes of the stack that a chain leaves to everything else.
const RESERVE: usize = 128 << 10;

/// Chains that any stack has room for.
const SHORT: usize = 1000;

/// Fails where the graph from `inputs` to `outputs` is deeper than the stack of this thread: MLX's transforms and its compile
/// call themselves for each op of a chain, and a stack that overflows ends the process. They end at the arrays that they gave
/// the function, however long a history these have.
///
/// # Errors
///
/// [`BridgeError::Deep`].
pub fn check_depth(outputs: &[Array], inputs: &[Array]) -> Result<(), BridgeError> {
    let depth = depth(outputs, inputs)?;
    if depth <= SHORT {
        return Ok(());
    }
    let room = stack_left().saturating_sub(RESERVE) / FRAME;
    if depth > room { Err(BridgeError::Deep { depth, room }) } else { Ok(()) }
}

/// `function`, which fails where [`check_depth`] does.
pub(crate) fn checked(
    function: &mut dyn FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError>,
) -> impl FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError> {
    |args: Vec<Array>| {
        let outputs = function(args.clone())?;
        check_depth(&outputs, &args)?;
        Ok(outputs)
    }
}

/// The number of ops in the longest chain that a walk from `outputs` goes down before it ends at `inputs`, or at what was there
/// before.
pub fn depth(outputs: &[Array], inputs: &[Array]) -> Result<usize, BridgeError> {
    let (outputs, inputs) = (arrays::handles(outputs), arrays::handles(inputs));
    // SAFETY: the handles and the number are live for the call.
    arrays::written(0, |depth| unsafe { ffi::tacit_depth(Span::new(&outputs), Span::new(&inputs), depth) })
}

/// Bytes below the frame of the caller.
#[cfg(target_os = "linux")]
fn stack_left() -> usize {
    use std::mem::MaybeUninit;

    let mut attributes = MaybeUninit::uninit();
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the first call fills the attributes of this thread, which are read and destroyed if it did.
    let known = unsafe {
        libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 && {
            let known = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size) == 0;
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            known
        }
    };
    if known { (&raw const size).addr().saturating_sub(lowest.addr()) } else { DEFAULT_STACK }
}

/// Bytes below the frame of the caller.
#[cfg(target_vendor = "apple")]
fn stack_left() -> usize {
    let here = 0_u8;
    // SAFETY: both only read what the system knows of this thread.
    let (highest, size) = unsafe {
        let thread = libc::pthread_self();
        (libc::pthread_get_stackaddr_np(thread), libc::pthread_get_stacksize_np(thread))
    };
    (&raw const here).addr().saturating_sub(highest.addr().saturating_sub(size))
}

/// What is taken for granted where the system does not tell: a part of what Rust gives a thread.
#[cfg(not(target_vendor = "apple"))]
const DEFAULT_STACK: usize = 1 << 20;

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn stack_left() -> usize {
    DEFAULT_STACK
}
