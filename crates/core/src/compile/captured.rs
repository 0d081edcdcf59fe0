//! What a compiled function holds without having got it.

use std::cell::Cell;

use mlx_rs::{Array, Dtype};
use tacit_bridge::{Scope, any_tracer, array_id, constants, frontier};

use super::{CapturedArray, CompileOptions, Constants};
use crate::policy::warn;
use crate::{Aval, Error, Result};

/// Whether a transform of MLX's is going on, so that an array may be a tracer of it.
pub(crate) fn in_transform() -> Result<bool> {
    // Only then does MLX say of an array without data that it is one.
    let probe = Scope::new()?.placeholder(&Aval::new(&[], Dtype::Bool))?;
    Ok(any_tracer(&[&probe]))
}

/// Whether a function that was recorded on `inputs` holds a tracer of another transform, to which a constant would pass
/// no derivative.
pub(crate) fn holds_tracer(inputs: &[Array], outputs: &[Array]) -> Result<bool> {
    let frontier = frontier(outputs, inputs)?;
    Ok(any_tracer(&frontier.iter().collect::<Vec<_>>()))
}

/// The transform of MLX's around a call, if one goes on, and whether the function holds a tracer of it.
pub(super) struct Around {
    goes_on: bool,
    held: Cell<bool>,
}

impl Around {
    pub(super) fn now() -> Result<Self> {
        Ok(Self { goes_on: in_transform()?, held: Cell::new(false) })
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

/// Does with the arrays that a function holds as its options say.
pub(super) fn inspect(options: &CompileOptions, inputs: &[Array], outputs: &[Array]) -> Result<()> {
    if options.constants == Constants::Allow {
        return Ok(());
    }
    let mut held = Vec::new();
    for array in &frontier(outputs, inputs)? {
        let sources = constants(std::slice::from_ref(array), &[])?;
        if !sources.is_empty() {
            let own = sources.iter().any(|source| array_id(source) == array_id(array));
            let sources = if own { Vec::new() } else { sources.iter().map(Aval::from).collect() };
            held.push(CapturedArray { aval: array.into(), sources });
        }
    }
    if held.is_empty() {
        return Ok(());
    }
    let error = Error::Constants { function: options.name.clone(), held };
    if options.constants == Constants::Deny {
        return Err(error);
    }
    warn(&error.to_string());
    Ok(())
}
