//! Functions mapped over an axis of their arguments.

use std::ffi::{c_int, c_void};

use mlx_rs::Array;

use crate::callback::guarded;
use crate::error::{BoxError, BridgeError, VmapError};
use crate::ffi::{self, Arrays, AxisSink, Integers, Placement, Sink, Span};
use crate::function::Borrowed;
use crate::{Aval, arrays, depth};

/// Results of a mapped function, and the mapped axis of each.
pub type Mapped = (Vec<Array>, Vec<usize>);

/// Maps `function` over an axis of each input; one without an axis goes to every example whole.
///
/// `out_axes` gets the number of results and tells where each one's mapped axis goes. A negative axis counts from the last
/// one. What MLX has no rule for is computed for one example after the other.
///
/// # Errors
///
/// The axes do not fit ([`VmapError`]), or `function` fails or panics.
pub fn vmap(
    inputs: &[Array],
    in_axes: &[Option<i32>],
    out_axes: impl FnOnce(usize) -> Vec<i32>,
    function: &mut dyn FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError>,
) -> Result<Vec<Array>, BridgeError> {
    let axes = checked(inputs, in_axes)?;
    let handles = arrays::handles(inputs);
    let mut function = depth::checked(function);
    let mut function = Borrowed::new(&mut function);
    let mut out_axes = Some(out_axes);
    let mut choose = |results| out_axes.take().map_or_else(Vec::new, |choose| choose(results));
    let mut choose: Choose<'_> = &mut choose;
    let placement = Placement { ctx: (&raw mut choose).cast(), call: chosen };
    let mut captured = false;
    // SAFETY: everything is live for the call, and there is an axis for each input.
    let results = arrays::collected(|results| unsafe {
        let (from, axes) = (Span::new(&handles), Span::new(&axes));
        ffi::tacit_vmap(from, axes, function.table(), placement, &raw mut captured, results)
    })?;
    if captured { Err(VmapError::Captured.into()) } else { Ok(results) }
}

/// The axes as C++ takes them: not negative, but -1 for none.
fn checked(inputs: &[Array], axes: &[Option<i32>]) -> Result<Vec<i32>, VmapError> {
    if inputs.len() != axes.len() {
        return Err(VmapError::Count { what: "inputs", axes: axes.len(), arrays: inputs.len() });
    }
    let mut extent = None;
    let mut plain = Vec::with_capacity(axes.len());
    for (index, (input, &axis)) in inputs.iter().zip(axes).enumerate() {
        let Some(axis) = axis else {
            plain.push(-1);
            continue;
        };
        let aval = Aval::from(input);
        let rank = aval.shape.len() as i32;
        let place = in_range(axis, rank).ok_or_else(|| VmapError::Axis {
            what: "input",
            index,
            axis,
            aval: aval.clone(),
            rank,
        })?;
        let found = aval.shape[place as usize];
        let expected = *extent.get_or_insert(found);
        if found != expected {
            return Err(VmapError::Extent { index, axis, aval, found, expected });
        }
        plain.push(place);
    }
    if extent.is_none() { Err(VmapError::NothingMapped) } else { Ok(plain) }
}

fn in_range(axis: i32, rank: i32) -> Option<i32> {
    (-rank..rank).contains(&axis).then(|| axis.rem_euclid(rank))
}

type Choose<'a> = &'a mut dyn FnMut(usize) -> Vec<i32>;

extern "C" fn chosen(ctx: *mut c_void, outputs: Arrays, sink: AxisSink) -> c_int {
    guarded(|| {
        // SAFETY: `ctx` is what `vmap` is waiting with, and the outputs are live.
        let (choose, outputs) = unsafe { (&mut **ctx.cast::<Choose<'_>>(), arrays::copies(outputs)?) };
        let axes = choose(outputs.len());
        if axes.len() != outputs.len() {
            return Err(VmapError::Count { what: "results", axes: axes.len(), arrays: outputs.len() }.into());
        }
        for (index, (output, &axis)) in outputs.iter().zip(&axes).enumerate() {
            let aval = Aval::from(output);
            let rank = aval.shape.len() as i32 + 1;
            let place = in_range(axis, rank).ok_or(VmapError::Axis { what: "result", index, axis, aval, rank })?;
            (sink.push)(sink.ctx, place);
        }
        Ok(())
    })
}

/// Answers MLX's call of a vmap rule; `expected` gives the avals of the results of one example from those of its inputs.
///
/// MLX takes the answer on trust, and puts as many results as there are in the places of those that it recorded.
///
/// # Safety
///
/// `inputs` and `axes` must be live.
pub(crate) unsafe fn answer_vmap(
    function: &str,
    inputs: Arrays,
    axes: Integers,
    rule: impl FnOnce(&[Array], &[Option<usize>]) -> Option<Result<Mapped, BoxError>>,
    expected: impl FnOnce(&[Aval]) -> Result<Vec<Aval>, BoxError>,
    results: &Sink,
    result_axes: &AxisSink,
) -> Result<Option<()>, BoxError> {
    // SAFETY: as the caller promises.
    let (inputs, axes) = unsafe { (arrays::copies(inputs)?, axes.get()) };
    let mapped: Vec<Option<usize>> = axes.iter().map(|&axis| usize::try_from(axis).ok()).collect();
    let Some((outputs, axes)) = rule(&inputs, &mapped).transpose()? else { return Ok(None) };
    let (examples, example) = one_example(&inputs, &mapped);
    let expected = expected(&example)?;
    let one_fits = |((array, &axis), one): ((&Array, &usize), &Aval)| {
        let mut aval = Aval::from(array);
        axis < aval.shape.len() && aval.shape.remove(axis) == examples && aval == *one
    };
    let alike = outputs.len() == axes.len() && outputs.len() == expected.len();
    if !alike || !outputs.iter().zip(&axes).zip(&expected).all(one_fits) {
        let (results, expected) = (Aval::list(&Aval::all(&outputs)), Aval::list(&expected));
        let (function, count) = (function.to_owned(), outputs.len());
        return Err(VmapError::Rule { function, count, results, axes, examples, expected }.into());
    }
    arrays::pour(&outputs, results)?;
    for axis in axes {
        (result_axes.push)(result_axes.ctx, axis as i32);
    }
    Ok(Some(()))
}

/// The number of examples, and the avals of the inputs of one.
fn one_example(inputs: &[Array], axes: &[Option<usize>]) -> (i32, Vec<Aval>) {
    let mut examples = 0;
    let of_one = |(input, axis): (&Array, &Option<usize>)| {
        let mut aval = Aval::from(input);
        if let Some(axis) = *axis {
            examples = aval.shape.remove(axis);
        }
        aval
    };
    let avals = inputs.iter().zip(axes).map(of_one).collect();
    (examples, avals)
}
