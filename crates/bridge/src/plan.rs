//! Kernels that run one after the other as one primitive.
//!
//! MLX takes some microseconds for each node: it makes its arrays, finds its turn, and hands it to a thread. A [`Plan`]
//! is one node for many kernels. The arrays between the kernels lie in one arena, at offsets that are chosen once.
//!
//! Stages that compute the same elements a [piece](Kernel::pieces) at a time run together: one piece goes through all
//! of them before the next ([`chains`] says which). An array that only they use then takes the memory of one piece for
//! each thread.

mod arena;
mod chains;
mod draft;
mod gaps;
mod memory;
mod over_inputs;
mod pieced;
mod places;
#[cfg(test)]
mod tests;
mod times;

use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

use mlx_rs::Array;

use crate::callback::guarded;
use crate::error::{BoxError, BridgeError};
use crate::ffi::{self, Buffer, KernelTable, Span};
use crate::kernel::{self, Input, Kernel, KernelError, Output};
use crate::{Aval, arrays, aval};

use arena::Arena;
use memory::{Bases, Dense, Place, in_place, input, output};
use pieced::Pieced;
pub use pieced::Threads;
pub use places::PlanBuilder;
pub use times::StageTimes;
use times::Watch;

/// An array of a [`Plan`], as its builder knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanValue(usize);

/// Kernels that run one after the other as one primitive.
///
/// ```
/// use std::sync::Arc;
/// use mlx_rs::{Array, Dtype};
/// use tacit_bridge::kernel::{Input, Kernel, Output};
/// use tacit_bridge::{Aval, BoxError, PlanBuilder};
///
/// struct Twice;
///
/// impl Kernel for Twice {
///     fn name(&self) -> &'static str {
///         "Twice"
///     }
///     fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
///         Ok(inputs.to_vec())
///     }
///     fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
///         let elements = outputs[0].elements::<f32>()?.iter_mut().zip(inputs[0].elements::<f32>()?);
///         Ok(elements.for_each(|(y, x)| *y = 2.0 * x))
///     }
///     fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
///         Ok(vec![inputs[0].multiply(Array::from_f32(2.0))?])
///     }
/// }
///
/// # fn main() -> Result<(), BoxError> {
/// let mut plan = PlanBuilder::default();
/// let x = plan.input(Aval::new(&[2], Dtype::Float32));
/// let once = plan.stage(Arc::new(Twice), &[x])?[0];
/// let twice = plan.stage(Arc::new(Twice), &[once])?[0];
/// let plan = plan.finish(&[twice])?;
/// let y = plan.apply(&[Array::from_slice(&[1f32, 2.0], &[2])])?.swap_remove(0);
/// assert_eq!(y.as_slice::<f32>(), [4.0, 8.0]);
/// # Ok(())
/// # }
/// ```
pub struct Plan {
    inputs: Vec<Dense>,
    outputs: Vec<Dense>,
    stages: Vec<Stage>,
    /// The stages that run together, in the order of the stages.
    pieced: Vec<Pieced>,
    /// The bytes that the stages leave to each other need at once.
    arena: usize,
    /// Outputs that may take the memory of an input: each that of the first one that nobody else holds.
    donated: Vec<(usize, usize)>,
}

struct Stage {
    kernel: Arc<dyn Kernel>,
    /// The aval of the first output.
    result: Option<Aval>,
    /// The inputs of a stage that runs by itself.
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    /// What the first output holds before the kernel runs; nothing where that may be anything.
    begins_as: Option<Place>,
    /// The outputs that lie in the memory of an input, if the plan was given that memory.
    in_place: Vec<(usize, usize)>,
}

impl Stage {
    /// The outputs that lie in an input, each with that input.
    fn lying_in_place(&self, bases: &Bases<'_>) -> impl Iterator<Item = (usize, usize)> {
        let pairs = self.in_place.iter().copied();
        pairs.filter(move |&(output, input)| bases.at(&self.inputs[input]) == bases.at(&self.outputs[output]))
    }
}

impl Plan {
    /// Puts the plan into the graph.
    ///
    /// # Errors
    ///
    /// The inputs are not of the plan's avals.
    pub fn apply(self, inputs: &[Array]) -> Result<Vec<Array>, BridgeError> {
        let donated: Vec<usize> = self.donated.iter().flat_map(|&(output, input)| [output, input]).collect();
        let handles = arrays::handles(inputs);
        let table = KernelTable { eval, failed, ..kernel::TABLE };
        arrays::collected(|results| {
            // SAFETY: the callee takes the box over and frees it by `release`; everything else is live for the call.
            arrays::with_stream(|stream| unsafe {
                let (name, plan) = (c"Plan".as_ptr(), kernel::boxed(Arc::new(self)));
                ffi::tacit_plan_apply(table, plan, name, stream, Span::new(&handles), Span::new(&donated), results)
            })
        })
    }

    /// The kernels in the order in which they run, each with the aval of its first result.
    #[must_use]
    pub fn stages(&self) -> impl ExactSizeIterator<Item = (&dyn Kernel, Option<&Aval>)> {
        self.stages.iter().map(|stage| (&*stage.kernel, stage.result.as_ref()))
    }

    /// How many of the stages run together with others, one [piece](Kernel::pieces) after the other.
    #[must_use]
    pub fn pieced(&self) -> usize {
        self.pieced.iter().map(|together| together.stages.len()).sum()
    }

    /// The bytes that what the stages leave to each other needs at once.
    #[must_use]
    pub fn arena(&self) -> usize {
        self.arena
    }

    /// The kernel that an error's text begins with, and the rest of the text.
    fn failed_stage<'a>(&self, text: &'a str) -> Option<(&'static str, &'a str)> {
        self.stages.iter().find_map(|stage| {
            let name = stage.kernel.name();
            Some((name, KernelError::own_words(name, text)?))
        })
    }

    /// Runs all kernels, and leaves the name of the one that runs in `name`.
    ///
    /// # Safety
    ///
    /// The buffers are live and dense; nobody else writes the inputs, or holds the outputs. An output may be the memory of the
    /// input that `donated` names with it.
    unsafe fn run(&self, inputs: &[Buffer], outputs: &[Buffer], name: &mut &'static str) -> Result<(), BoxError> {
        *name = "Plan";
        let fit = |expected: &[Dense], buffers: &[Buffer]| {
            expected.len() == buffers.len()
                && expected.iter().zip(buffers).all(|(array, buffer)| {
                    array.bytes == buffer.bytes && aval::dtype_of(buffer.aval.dtype) == Some(array.aval.dtype)
                })
        };
        if !fit(&self.inputs, inputs) || !fit(&self.outputs, outputs) {
            return Err("a plan was given other arrays than it was made for".into());
        }
        let mut watch = Watch::begin();
        let mut arena = Arena::take(self.arena)?;
        let bases = Bases { inputs, outputs, arena: arena.as_mut_ptr() };
        let (mut read, mut written): (Vec<Input<'_>>, Vec<Output<'_>>) = Default::default();
        let (mut number, mut pieced) = (0, self.pieced.iter().peekable());
        while let Some(stage) = self.stages.get(number) {
            let start = watch.is_some().then(Instant::now);
            let mut told = stage.kernel.name();
            if let Some(together) = pieced.next_if(|together| together.stages.start == number) {
                // SAFETY: as below, for all of the stages.
                let run = unsafe { together.run(&bases) };
                run.map_err(|(failed, error)| {
                    *name = self.stages[failed].kernel.name();
                    error
                })?;
                (number, told) = (together.stages.end, pieced::NAME);
            } else {
                *name = told;
                // SAFETY: the builder placed what a stage reads and what it writes within their memory, and apart from each other
                // and from all that later stages still read; of an input that lies in an output there is no slice. The slices
                // end with the stage.
                unsafe {
                    if let (Some(from), Some(to)) = (&stage.begins_as, stage.outputs.first()) {
                        bases.copy(from, to);
                    }
                    read.extend(stage.inputs.iter().enumerate().map(|(number, place)| {
                        match stage.lying_in_place(&bases).find(|&(_, input)| input == number) {
                            Some((output, _)) => in_place(output, &place.array.aval),
                            None => input(bases.at(place), &place.array),
                        }
                    }));
                    written.extend(stage.outputs.iter().enumerate().map(|(number, place)| {
                        let begins = stage.lying_in_place(&bases).any(|(output, _)| output == number);
                        output(bases.at(place), &place.array, stage.begins_as.is_none() && !begins)
                    }));
                    stage.kernel.eval_cpu(&read, &mut written)?;
                    read.clear();
                    written.clear();
                }
                number += 1;
            }
            if let (Some(watch), Some(start)) = (&mut watch, start) {
                watch.stage(told, start);
            }
        }
        watch.into_iter().for_each(Watch::end);
        Ok(())
    }
}

/// # Safety
///
/// `kernel` must be the box that [`Plan::apply`] gave away, still alive.
unsafe fn plan_of<'a>(kernel: *mut c_void) -> Option<&'a Plan> {
    // SAFETY: as the caller promises.
    (unsafe { kernel::kernel_of(kernel) } as &dyn Any).downcast_ref()
}

extern "C" fn eval(kernel: *mut c_void, inputs: Span<Buffer>, outputs: Span<Buffer>) -> c_int {
    kernel::evaluated(|name| {
        // SAFETY: the C++ side passes live buffers for the length of the call, each output's its own, but for those that an
        // input is donated to.
        unsafe {
            let plan = plan_of(kernel).ok_or("the kernel is no plan")?;
            plan.run(inputs.get(), outputs.get(), name)
        }
    })
}

extern "C" fn failed(kernel: *mut c_void, text: *const c_char, length: usize, poisoned: bool) -> c_int {
    guarded(|| {
        // SAFETY: the plan and the text, of this length, are live for the call.
        let (plan, text) = unsafe { (plan_of(kernel), std::slice::from_raw_parts(text.cast(), length)) };
        let text = String::from_utf8_lossy(text);
        let own = || ("Plan", KernelError::own_words("Plan", &text).unwrap_or(&text));
        let (stage, words) = plan.and_then(|plan| plan.failed_stage(&text)).unwrap_or_else(own);
        Err(KernelError::new(stage, words, poisoned).into())
    })
}

impl Kernel for Plan {
    fn name(&self) -> &'static str {
        "Plan"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        if !inputs.iter().eq(self.inputs.iter().map(|input| &input.aval)) {
            let own: Vec<Aval> = self.inputs.iter().map(|input| input.aval.clone()).collect();
            let (found, own) = (Aval::list(inputs), Aval::list(&own));
            return Err(format!("a plan was given {found} and was made for {own}\nhelp: make a plan for these").into());
        }
        Ok(self.outputs.iter().map(|output| output.aval.clone()).collect())
    }

    /// Its inputs and outputs may be the same memory, so that it is run on buffers.
    fn eval_cpu(&self, _: &[Input<'_>], _: &mut [Output<'_>]) -> Result<(), BoxError> {
        Err("a plan is run on buffers".into())
    }

    /// A plan is put into a graph that nothing transforms any more.
    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err("a plan of a compiled graph has no derivative\nhelp: differentiate the function before it is compiled"
            .into())
    }
}
