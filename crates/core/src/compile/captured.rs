//! Arrays that a compiled function uses without taking them as arguments.

use std::cell::Cell;
use std::collections::HashSet;

use mlx_rs::Array;
use tacit_bridge::{any_held_tracer, array_id, constants, frontier, held_elsewhere, holders, in_transform, reached};

use super::held::may_be_key;
use super::{CapturedArray, CompileOptions, Constants};
use crate::policy::warn;
use crate::tree::{self, TreeDef};
use crate::{Aval, Error, Result, Value};

/// Whether a function that was recorded on `inputs` holds a tracer of another transform, to which a constant would pass
/// no derivative.
pub(crate) fn holds_tracer(inputs: &[Array], outputs: &[Array]) -> Result<bool> {
    Ok(any_held_tracer(&frontier(outputs, inputs)?))
}

/// The transform of MLX's around a call, if one goes on, and whether the function holds a tracer of it.
pub(super) struct Around {
    goes_on: bool,
    held: Cell<bool>,
}

impl Around {
    pub(super) fn now() -> Self {
        Self { goes_on: in_transform(), held: Cell::new(false) }
    }

    /// Ends the trace of a function that was recorded on `inputs` and holds a tracer of the transform.
    pub(super) fn check(&self, inputs: &[Array], outputs: &[Array]) -> Result<()> {
        if self.goes_on && holds_tracer(inputs, outputs)? {
            self.held.set(true);
            return Err(Error::invalid("the function holds a tracer", "run it as it is"));
        }
        Ok(())
    }

    /// Whether a trace ended so.
    pub(super) fn is_held(&self) -> bool {
        self.held.get()
    }
}

/// What a function was recorded on, and what it returned.
pub(super) struct Seen<'s> {
    pub(super) inputs: &'s [Array],
    pub(super) outputs: &'s [Array],
    /// Takes the state and the arguments apart once more; while what it gives lives, each of their fields has one more handle.
    pub(super) again: &'s dyn Fn() -> Result<(Vec<Value>, TreeDef)>,
}

/// The arrays that a function may hold: somebody else holds them too, and no field of the state or the arguments is one.
///
/// Intermediate results that something keeps, such as a rule of a derivative in the graph, are among them;
/// [`inspect`] tells by a second recording.
pub(super) fn suspects(options: &CompileOptions, seen: &Seen<'_>) -> Result<Vec<Array>> {
    if options.constants == Constants::Allow {
        return Ok(Vec::new());
    }
    let found = held_elsewhere(seen.outputs, seen.inputs)?;
    let count = || found.iter().map(holders).collect::<Result<Vec<_>, _>>();
    let before = count()?;
    // A field of a module or an optimizer that is no leaf of it, such as a learning rate, is copied with it.
    let fields = if found.is_empty() { None } else { Some((seen.again)()?) };
    let after = count()?;
    // A leaf itself is no field: the function got a tracer in its place, and so holds it by itself.
    let leaves: HashSet<_> = match &fields {
        Some((values, _)) => tree::arrays(values)?.iter().map(array_id).collect(),
        None => HashSet::new(),
    };
    drop(fields);
    let counts = before.iter().zip(&after);
    let is_held =
        |(array, (before, after)): &(&Array, (&usize, &usize))| before == after || leaves.contains(&array_id(array));
    Ok(found.iter().zip(counts).filter(is_held).map(|(array, _)| array.clone()).collect())
}

/// Does with the arrays that a function holds as its options say: those of the `suspects` of one recording that another
/// recording has as well, since an array that is new in each is not held. `draws` counts what comes from a random state too.
pub(super) fn inspect(options: &CompileOptions, suspects: &[Array], seen: &Seen<'_>, draws: bool) -> Result<()> {
    if options.constants == Constants::Allow {
        return Ok(());
    }
    let arrays = again_in(suspects, seen)?;
    let mut captured = Vec::new();
    for array in &arrays {
        let sources = constants(std::slice::from_ref(array), &[])?;
        let is_source = sources.iter().any(|source| array_id(source) == array_id(array));
        captured
            .push(CapturedArray { aval: array.into(), sources: if is_source { Vec::new() } else { avals(&sources) } });
    }
    let drawn = if draws { frontier(seen.outputs, seen.inputs)? } else { Vec::new() };
    for array in &drawn {
        let sources = avals(&constants(std::slice::from_ref(array), &arrays)?);
        if sources.iter().any(may_be_key) {
            captured.push(CapturedArray { aval: array.into(), sources });
        }
    }
    if captured.is_empty() {
        return Ok(());
    }
    let error = Error::Constants { function: options.name.clone(), held: captured };
    if options.constants == Constants::Deny {
        return Err(error);
    }
    warn(&error.to_string());
    Ok(())
}

/// The arrays of `suspects` that this recording has as well.
fn again_in(suspects: &[Array], seen: &Seen<'_>) -> Result<Vec<Array>> {
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let ids: HashSet<_> = suspects.iter().map(array_id).collect();
    let reached = reached(seen.outputs, &[seen.inputs, suspects].concat())?;
    Ok(reached.into_iter().filter(|array| ids.contains(&array_id(array))).collect())
}

fn avals(arrays: &[Array]) -> Vec<Aval> {
    arrays.iter().map(Aval::from).collect()
}
