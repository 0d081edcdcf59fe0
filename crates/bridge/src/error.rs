//! The errors of this crate, and how an error of a Rust callback gets through C++ with its type.

mod param;
mod vmap;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ffi;
pub use param::ParamError;
pub use vmap::VmapError;

/// Any error that a callback may return.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error of the bridge.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// MLX refused, in its own words.
    #[error("{0}")]
    Mlx(String),
    /// A callback of ours failed while MLX was calling it.
    #[error("{0}")]
    Callback(BoxError),
    /// The parameters of a primitive are not laid out as this build knows them.
    #[error("{0}")]
    Param(#[from] ParamError),
    /// A function cannot be mapped over these axes.
    #[error("{0}")]
    Vmap(#[from] VmapError),
    /// A string holds a NUL byte and cannot go to C++.
    #[error("the name {0:?} holds a NUL byte")]
    Nul(String),
    /// A variable that MLX reads is not set.
    #[error("the variable {0} is not set")]
    Unset(&'static str),
    /// A shape has a negative extent.
    #[error("the shape {0:?} has a negative extent")]
    NegativeExtent(Vec<i32>),
    /// A chain of ops is too long for the stack.
    #[error(
        "a chain of {depth} ops is too long for MLX, which calls itself for each: the stack of this thread has room for {room}\nhelp: evaluate in between, outside of what is traced, or run it on a thread with a larger stack"
    )]
    Deep {
        /// The ops of the chain.
        depth: usize,
        /// How many the stack has room for.
        room: usize,
    },
    /// The elements of an array are not all within the file that they are to be read from.
    #[error("{aval} from byte {offset} on is not within the {length} bytes of the file")]
    OutsideFile {
        /// The array.
        aval: crate::Aval,
        /// Where its elements begin.
        offset: usize,
        /// The bytes of the file.
        length: usize,
    },
    /// The elements of an array have another number of bytes than they are to be made of.
    #[error("{aval} is not made of {length} bytes")]
    OtherLength {
        /// The array.
        aval: crate::Aval,
        /// The bytes.
        length: usize,
    },
}

/// Errors on their way through C++, which keeps only their text, the newest last. More than this many at once are not
/// expected: a failing transform raises one.
const KEPT: usize = 16;

/// An error until somebody takes it, and its text.
type Kept = (String, Arc<Mutex<Option<BoxError>>>);

thread_local! {
    /// The errors of this thread. An error comes back on the thread that raised it, where no other can take it for one of its
    /// own that has the same text.
    static OWN: RefCell<VecDeque<Kept>> = const { RefCell::new(VecDeque::new()) };
}

/// The errors of all threads, for a text that was handed on to another.
static ALL: Mutex<VecDeque<Kept>> = Mutex::new(VecDeque::new());

/// Leaves `error`, whose text this is, for the C++ caller of the current callback.
pub(crate) fn raise(text: String, error: BoxError) {
    raise_text(&text);
    keep(text, error);
}

/// Leaves only the text of an error for the C++ caller of the current callback.
pub(crate) fn raise_text(text: &str) {
    // SAFETY: the pointer and length are those of a live string, which the callee copies.
    unsafe { ffi::tacit_set_callback_error(text.as_ptr().cast(), text.len()) };
}

/// Keeps `error` to be found again by [`recover`], for a caller that can pass on only its text.
pub fn remember(error: BoxError) {
    keep(error.to_string(), error);
}

fn keep(text: String, error: BoxError) {
    let entry = (text, Arc::new(Mutex::new(Some(error))));
    let oldest = push(&mut locked(&ALL), entry.clone());
    // A thread that ends has nobody who would ask it.
    let oldest_own = OWN.try_with(|own| push(&mut own.borrow_mut(), entry));
    // Errors of users go last: what they do then may come here again.
    drop((oldest, oldest_own));
}

/// Appends an error, and gives the one that has to go for it.
fn push(queue: &mut VecDeque<Kept>, entry: Kept) -> Option<Kept> {
    let oldest = if queue.len() == KEPT { queue.pop_front() } else { None };
    queue.push_back(entry);
    oldest
}

/// Takes back the callback error whose text MLX reported in `message`.
///
/// MLX carries only text through its own code, so an error of ours that went through a transform or an eval comes
/// back as an exception; this finds the original. Of errors with equal texts each thread gets its own.
#[must_use]
pub fn recover(message: &str) -> Option<BoxError> {
    OWN.try_with(|own| take(&own.borrow(), message)).ok().flatten().or_else(|| take(&locked(&ALL), message))
}

/// Of the errors whose text this is, the one that says most of it, then the newest.
fn take(queue: &VecDeque<Kept>, message: &str) -> Option<BoxError> {
    // MLX hands the text on as it is, and mlx-c adds the place where it caught it.
    let is = |text: &str| {
        let rest = message.strip_prefix(text).filter(|_| !text.is_empty());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" at "))
    };
    let there = queue.iter().filter(|(text, error)| is(text) && locked(error).is_some());
    let (_, error) = there.max_by_key(|(text, _)| text.len())?;
    locked(error).take()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns a status of the C++ side into a `Result`.
pub(crate) fn check(status: i32) -> Result<(), BridgeError> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the C++ side returns a NUL-terminated string that lives until the next failure on this thread.
    let text = unsafe { CStr::from_ptr(ffi::tacit_last_error()) }.to_string_lossy().into_owned();
    Err(match recover(&text) {
        Some(error) => BridgeError::Callback(error),
        None => BridgeError::Mlx(text),
    })
}
