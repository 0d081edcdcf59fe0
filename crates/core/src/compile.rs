//! Compiled functions of trees.
//!
//! [`compile`] traces a function once for each structure of its arguments and then replays the graph that MLX simplified
//! and fused. Implicit arrays are opened: their children are the inputs of the graph, and handlers run only while it is
//! traced. It traces again for another structure or static field, another dtype, rank or shape, another default device
//! or stream, and another registry, [`Policy`](crate::Policy) or [`DeviceFallback`](crate::DeviceFallback) in force, since these
//! decide what a trace does; [`CompileStats`] says why each time.
//! `mlx_rs::with_device` makes a new stream each time; give a stream of your own to `with_stream` around compiled calls.
//!
//! Random numbers that a function draws without a key, as `mlx_rs::nn::Dropout` does, are drawn anew in each call, inside a
//! transform too, from the random state of the thread; those of a function without shapes are a constant.
//!
//! An array that the function captured instead of taking it as an argument is a constant of the graph, frozen with the
//! value that it had; [`Constants`] says what happens then. To tell it from an array that the function makes, such as
//! `Array::from_f32(0.5)`, a function that may have captured one is recorded a second time when it is traced. Where it belongs to a transform around the call, as an argument
//! of the function that `grad` differentiates does, nothing is compiled and the function itself runs, so that the
//! derivative reaches it.

mod captured;
pub(crate) mod drawn;
mod engine;
mod entry;
mod given_back;
pub(crate) mod held;
mod kept;
mod key;
mod options;
mod shapeless;
mod stats;
mod steady;
mod switch;
mod tracing;

pub use crate::phases::Phases;
pub(crate) use captured::holds_tracer;
pub use held::CapturedArray;
pub use options::{CompileOptions, Constants};
pub use stats::CompileStats;
pub use switch::{COMPILE_VARIABLE, MLX_VARIABLE, disable, disable_fusion, enable, is_enabled};
pub use tacit_bridge::StageTimes;

use captured::Seen;
use engine::Engine;
use given_back::Made;

use crate::state::{CALL, GIVEN, Lent, MADE, Step, show};
use crate::tree::{Arguments, Flattened, Open, Reader};
use crate::values::{Values, arrays_of, never_called};
use crate::{Error, Result, Tree, Value, trace};

/// Compiles a function: it is traced for each structure of its arguments and replayed after that.
///
/// What it returns has the traces: keep it. The same function compiled a second time is traced a second time, and a loop
/// that compiles in each turn is warned of.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::compile;
///
/// let mut product = compile(|(x, w): (Array, Array)| x.matmul(w.t()));
/// let x = Array::from_slice(&[1f32, 2.0], &[1, 2]);
/// for _ in 0..3 {
///     assert_eq!(product.call((&x, &x))?.dense()?.item_exact::<f32>(), 5.0);
/// }
/// assert_eq!((product.stats().calls, product.stats().traces), (3, 1));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Each call fails where `f` fails, and as for [`implicit`](crate::implicit()).
#[track_caller]
pub fn compile<'f, A: Tree, O: Tree, E: Into<Error>>(f: impl FnMut(A) -> Result<O, E> + 'f) -> Compiled<'f, A, O> {
    compile_with(CompileOptions::default(), f)
}

/// Compiles a function as [`compile`] does, with options.
///
/// # Errors
///
/// Each call fails as for [`compile`], and where the options forbid what the function does: a captured array under
/// [`Constants::Deny`], or a shape in the graph of a shapeless function.
#[track_caller]
pub fn compile_with<'f, A: Tree, O: Tree, E: Into<Error>>(
    options: CompileOptions,
    mut f: impl FnMut(A) -> Result<O, E> + 'f,
) -> Compiled<'f, A, O> {
    Compiled(compile_with_state(options, move |(): &mut (), args| f(args)))
}

/// Compiles a function of a state that it changes, and of arguments.
///
/// The state is a tree of parameters, optimizer moments, random keys, caches: its arrays go into the graph as inputs and
/// come out as outputs, and its structure may change, as when a cache grows. Inside the function all arrays of the state are
/// plain, those too that stand for implicit ones; an implicit array that the function leaves alone stays as it is. An error
/// or a panic leaves the state as it was.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::{compile_with_state, compile::CompileOptions};
///
/// let mut add = compile_with_state(CompileOptions::default(), |total: &mut Array, x: Array| {
///     *total = total.add(&x)?;
///     total.square()
/// });
/// let mut total = Array::from_f32(0.0);
/// add.call(&mut total, Array::from_f32(2.0))?;
/// let square = add.call(&mut total, Array::from_f32(1.0))?.dense()?;
/// assert_eq!((total.item_exact::<f32>(), square.item_exact::<f32>()), (3.0, 9.0));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Each call fails as for [`compile_with`], and where the state cannot take what the function left in it.
#[track_caller]
pub fn compile_with_state<'f, S: Tree, A: Tree, O: Tree, E: Into<Error>>(
    options: CompileOptions,
    mut f: impl FnMut(&mut S, A) -> Result<O, E> + 'f,
) -> CompiledWithState<'f, S, A, O> {
    CompiledWithState {
        engine: Engine::new(options),
        f: Box::new(move |state, args| f(state, args).map_err(Into::into)),
    }
}

/// A compiled function; made by [`compile`].
pub struct Compiled<'f, A: Tree, O: Tree>(CompiledWithState<'f, (), A, O>);

impl<A: Tree, O: Tree> Compiled<'_, A, O> {
    /// Calls the function with anything of the structure of `A`: arrays, values, implicit arrays, or references to them.
    ///
    /// # Errors
    ///
    /// See [`compile`].
    pub fn call<B>(&mut self, args: B) -> Result<O::With<Value>>
    where
        B: Arguments<Arrays: Tree<With<Value> = A::With<Value>>>,
    {
        self.0.call(&mut (), args)
    }

    /// How often it was called and traced, and why.
    #[must_use]
    pub fn stats(&self) -> &CompileStats {
        self.0.stats()
    }

    /// Forgets every trace.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// A compiled function of a state; made by [`compile_with_state`].
pub struct CompiledWithState<'f, S, A, O> {
    engine: Engine,
    f: Box<Stateful<'f, S, A, O>>,
}

/// A function of a state and of arguments.
type Stateful<'f, S, A, O> = dyn FnMut(&mut S, A) -> Result<O> + 'f;

impl<S: Tree, A: Tree, O: Tree> CompiledWithState<'_, S, A, O> {
    /// Calls the function on `state`, which is then what the function made of it.
    ///
    /// # Errors
    ///
    /// See [`compile`]; the state is then what it was.
    pub fn call<B>(&mut self, state: &mut S, args: B) -> Result<O::With<Value>>
    where
        B: Arguments<Arrays: Tree<With<Value> = A::With<Value>>>,
    {
        let replayed = self.engine.replay(|visitor| show(GIVEN, &*state, &args, visitor))?;
        if let Some(Made { leaves, def, unchanged, passed }) = replayed {
            let unchanged = unchanged.as_deref();
            let mut reader = Reader::new(&def, leaves)?.made(unchanged);
            let results = Self::results(&mut reader)?;
            // Most states take whatever has their form, and need no copy of what they were.
            if unchanged.is_some_and(|unchanged| unchanged.is_taken) {
                state.assign(&mut reader)?;
                return Ok(results);
            }
            let before = Values::beside(&*state, &passed)?;
            let lent = Lent::new(&mut *state, before);
            match lent.state.assign(&mut reader) {
                Ok(()) => {
                    lent.keep();
                    return Ok(results);
                }
                Err(error) if unchanged.is_some_and(|unchanged| unchanged.keeps_form) => return Err(lent.failed(error)),
                // A module cannot take another form than its own unless it can be copied. The function itself may change it.
                Err(_) => {
                    drop(lent);
                    // Nobody can take its results, and another trace of its key is made; where that fails the call is at fault.
                    let refused = self.engine.take_latest();
                    let results = self.trace(state, &args);
                    if results.is_err() {
                        self.engine.put_back(refused);
                    }
                    return results;
                }
            }
        }
        self.trace(state, &args)
    }

    /// The results of a call, whose state `state` becomes.
    fn taken(state: &mut S, mut reader: Reader<'_>) -> Result<O::With<Value>> {
        let results = Self::results(&mut reader)?;
        state.assign(&mut reader)?;
        Ok(results)
    }

    /// The results of a call; the state is read next.
    fn results(reader: &mut Reader<'_>) -> Result<O::With<Value>> {
        reader.enter(CALL)?;
        O::With::<Value>::unflatten(reader)
    }

    fn trace(&mut self, state: &mut S, args: &impl Arguments) -> Result<O::With<Value>> {
        let Self { engine, f } = self;
        let (leaves, closed) = Flattened::shown(Open::Closed, |visitor| show(GIVEN, &*state, args, visitor))?;
        let before = Values::from_arguments(&*state)?;
        let outcome = engine.call(leaves, &closed, &mut |values, inspect| {
            let mut structure = None;
            let results = trace::run(&values, |arrays| {
                let inputs = arrays.clone();
                let _step = Step::enter();
                let lent = Lent::new(&mut *state, before.clone());
                let mut reader = Reader::new(&closed, arrays)?.traced();
                reader.enter(CALL)?;
                lent.state.assign(&mut reader)?;
                let results = f(&mut *lent.state, A::unflatten(&mut reader)?)?;
                let outputs = arrays_of(|visitor| show(MADE, &results, &*lent.state, visitor), &mut structure)?;
                let again = || Flattened::shown(Open::Closed, |visitor| show(GIVEN, &*lent.state, args, visitor));
                inspect(&Seen { inputs: &inputs, outputs: &outputs, again: &again })?;
                Ok(outputs)
            })?;
            let (leaves, def) = structure.ok_or_else(never_called)?.opened(results)?;
            // A trace whose results the types outside cannot take is not kept.
            let lent = Lent::new(&mut *state, before.clone());
            Self::taken(&mut *lent.state, Reader::new(&def, leaves.clone())?.made(None))?;
            drop(lent);
            Ok((leaves, def))
        });
        let lent = Lent::new(state, before);
        let taken = outcome.and_then(|Made { leaves, def, unchanged, .. }| {
            let reader = Reader::new(&def, leaves)?.made(unchanged.as_deref());
            Self::taken(&mut *lent.state, reader)
        });
        match taken {
            Ok(results) => {
                lent.keep();
                Ok(results)
            }
            Err(error) => Err(lent.failed(error)),
        }
    }

    /// How often it was called and traced, and why.
    #[must_use]
    pub fn stats(&self) -> &CompileStats {
        &self.engine.stats
    }

    /// Forgets every trace.
    pub fn clear(&mut self) {
        self.engine.clear();
    }
}
