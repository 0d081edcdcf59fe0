//! Compiled functions: what MLX's compile keeps of a traced function, called again and again.

use std::cell::Cell;
use std::env;
use std::ffi::{c_int, c_void};

use mlx_rs::Array;
use mlx_sys::mlx_array;

use crate::arrays;
use crate::error::{BoxError, BridgeError, check};
use crate::ffi::{self, Arrays, Span};
use crate::function::Borrowed;

/// What [`Program::call`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It built the recorded graph on the inputs.
    Replayed,
    /// It traced, and then built the recorded graph on the inputs.
    Traced,
    /// It called the function on the inputs themselves and recorded nothing: an input is a tracer of MLX's, or
    /// compilation is switched off.
    Inlined,
}

/// One compiled MLX function for one set of input avals.
///
/// Arrays that the traced function captures are kept until the program is dropped. Called with other avals, or on another
/// default stream, it traces again, and [`matches`](Self::matches) compares with the latest trace.
///
/// MLX keeps what it compiled for the thread that did, so a program stays on its thread.
pub struct Program {
    raw: *mut c_void,
    /// Memory for handles, to be used again.
    handles: Cell<Vec<mlx_array>>,
}

impl Program {
    /// A program that has not been traced yet. Shapeless, one trace serves all shapes of the same ranks.
    ///
    /// Where no compiler is installed MLX does not compile for the CPU. The program then replays the graph as it was
    /// recorded, for one set of shapes: [`is_shapeless`](Self::is_shapeless) is false.
    pub fn new(shapeless: bool) -> Result<Self, BridgeError> {
        // SAFETY: the pointer is live for the call.
        let raw = arrays::pointer(|raw| unsafe { ffi::tacit_program_new(shapeless, !compiler_available(), raw) })?;
        Ok(Self { raw, handles: Cell::default() })
    }

    /// Whether one trace serves all shapes.
    #[must_use]
    pub fn is_shapeless(&self) -> bool {
        // SAFETY: the program is live.
        unsafe { ffi::tacit_program_shapeless(self.raw) }
    }

    /// Whether a call with `inputs` needs no trace: their avals, the default device and its default stream are those of
    /// the latest trace, and none is a tracer of MLX's.
    #[must_use]
    pub fn matches(&self, inputs: &[&Array]) -> bool {
        self.matches_beside(&[], inputs)
    }

    /// The same of a call with what is known, in the order of the inputs, and the others. While a transform of MLX's goes on,
    /// nothing is known.
    #[must_use]
    pub fn matches_beside(&self, known: &[&KnownInputs], others: &[&Array]) -> bool {
        let known = KnownInputs::pointers(known);
        // SAFETY: the program, what is known and the handles are live.
        self.with_handles(others, |handles| unsafe { ffi::tacit_program_matches(self.raw, Span::new(&known), handles) })
    }

    /// Calls the program and appends its results to `outputs`.
    ///
    /// `trace` is called when MLX has to trace: it gets tracers of the inputs' avals and returns the results.
    ///
    /// # Errors
    ///
    /// `trace` fails or panics; the error itself comes back as [`BridgeError::Callback`], and the next call traces
    /// again. Or MLX cannot build the results on inputs of these shapes.
    pub fn call(
        &mut self,
        inputs: &[&Array],
        outputs: &mut Vec<Array>,
        trace: &mut dyn FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError>,
    ) -> Result<Outcome, BridgeError> {
        let mut function = Borrowed::new(trace);
        let mut outcome: c_int = 0;
        // SAFETY: everything is live for the call.
        check(self.with_handles(inputs, |handles| unsafe {
            let (function, outputs) = (function.table(), arrays::sink_into(outputs));
            ffi::tacit_program_call(self.raw, handles, function, outputs, &raw mut outcome)
        }))?;
        Ok(match outcome {
            0 => Outcome::Replayed,
            1 => Outcome::Traced,
            _ => Outcome::Inlined,
        })
    }

    /// What calls need not be given again: `inputs`, which follow each other from number `first` on, as long as they stay the
    /// same. `None` where a call must be given them: before the first trace, where MLX runs what it compiled, where an array is
    /// not computed yet, and where collectives are told apart by their inputs.
    pub fn know(&self, first: usize, inputs: &[&Array]) -> Result<Option<KnownInputs>, BridgeError> {
        // SAFETY: the program, the handles and the pointer are live for the call.
        let know = |handles, raw| unsafe { ffi::tacit_program_know(self.raw, first, handles, raw) };
        let raw = arrays::pointer(|raw| self.with_handles(inputs, |handles| know(handles, raw)))?;
        Ok((!raw.is_null()).then_some(KnownInputs { raw }))
    }

    /// Replays on what is known, in the order of the inputs, and on the others, and appends the results to `outputs`. Where they do
    /// not [match](Self::matches_beside) it does nothing and gives false.
    ///
    /// # Errors
    ///
    /// MLX cannot build the results.
    pub fn call_beside(
        &self,
        known: &[&KnownInputs],
        others: &[&Array],
        outputs: &mut Vec<Array>,
    ) -> Result<bool, BridgeError> {
        let known = KnownInputs::pointers(known);
        arrays::written(false, |matches| {
            // SAFETY: everything is live for the call.
            self.with_handles(others, |handles| unsafe {
                let (known, outputs) = (Span::new(&known), arrays::sink_into(outputs));
                ffi::tacit_program_call_beside(self.raw, known, handles, outputs, matches)
            })
        })
    }

    fn with_handles<T>(&self, inputs: &[&Array], call: impl FnOnce(Arrays) -> T) -> T {
        let mut handles = self.handles.take();
        handles.clear();
        handles.extend(inputs.iter().map(|input| input.as_ptr()));
        let value = call(Span::new(&handles));
        self.handles.set(handles);
        value
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is ours and is freed once, on the thread that made it.
        unsafe { ffi::tacit_program_free(self.raw) };
    }
}

/// Inputs of a [`Program`] that stay what they are from call to call; made by [`Program::know`].
///
/// It serves this program, and this trace of it, alone.
pub struct KnownInputs {
    raw: *mut c_void,
}

impl KnownInputs {
    fn pointers(inputs: &[&Self]) -> Vec<*const c_void> {
        inputs.iter().map(|known| known.raw.cast_const()).collect()
    }

    /// One of them, counted from the first.
    ///
    /// # Errors
    ///
    /// There are not so many.
    pub fn array(&self, number: usize) -> Result<Array, BridgeError> {
        // SAFETY: `self.raw` is live, and the handle that is filled becomes ours.
        arrays::filled(|out| unsafe { ffi::tacit_known_get(self.raw, number, out) })
    }
}

// SAFETY: what it holds is never changed, and its arrays are computed, so that whoever has a reference only counts references,
// which MLX does atomically.
unsafe impl Send for KnownInputs {}
// SAFETY: as for `Send`.
unsafe impl Sync for KnownInputs {}

impl Drop for KnownInputs {
    fn drop(&mut self) {
        // SAFETY: it is ours and is freed once.
        unsafe { ffi::tacit_known_free(self.raw) };
    }
}

/// Whether a transform of MLX's goes on, so that an array may be a tracer of it.
#[must_use]
pub fn in_transform() -> bool {
    // SAFETY: it reads what MLX notes of the thread.
    unsafe { ffi::tacit_in_transform() }
}

/// Whether any of `inputs` is a tracer of MLX's at this moment; MLX does not compile a call that has one.
#[must_use]
pub fn any_tracer(inputs: &[&Array]) -> bool {
    let handles = arrays::handles(inputs.iter().copied());
    // SAFETY: the handles are live for the call.
    unsafe { ffi::tacit_any_tracer(Span::new(&handles)) }
}

/// Whether any of `held` belongs to a transform whose function is called now: unlike [`any_tracer`] also where MLX works out
/// gradients, and counts every array as a tracer.
#[must_use]
pub fn any_held_tracer(held: &[Array]) -> bool {
    let handles = arrays::handles(held);
    // SAFETY: the handles are live for the call.
    unsafe { ffi::tacit_holds_tracer(Span::new(&handles)) }
}

/// Whether `g++`, which MLX compiles fused CPU kernels with, is in the search path.
#[must_use]
pub fn compiler_available() -> bool {
    let Some(path) = env::var_os("PATH") else { return false };
    env::split_paths(&path).any(|folder| folder.join("g++").is_file())
}

/// Makes MLX's compile simplify graphs but not fuse them into kernels, in this whole process from now on.
///
/// It does not make MLX compile where no compiler is installed; [`Program`] replays there by itself.
pub fn set_no_fuse() {
    // SAFETY: an atomic store.
    unsafe { ffi::tacit_set_no_fuse() };
}
