//! Whether a graph that was traced without shapes serves a new shape.

use std::collections::HashSet;

use mlx_rs::Array;
use tacit_bridge::mlx::{self, Refusal};
use tacit_bridge::typed::{Class, describe};
use tacit_bridge::{BoxError, Tape, difference, record_shapeless};

use crate::{Aval, Error, Result};

/// How many shapes are remembered.
const KEPT: usize = 1024;

type Shapes = Vec<Vec<i32>>;

type Function<'f> = dyn FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError> + 'f;

/// The graph of a shapeless function as it was recorded, and the shapes that it was seen to serve.
///
/// MLX replays such a graph for any shape, whether or not a shape went into it: as the extents of a reshape, say, or as
/// a constant that the function computed from one. So the function is recorded once on each new shape, and the two
/// graphs must be the same program.
pub(super) struct Recorded {
    tracers: Vec<Array>,
    outputs: Vec<Array>,
    latest: Shapes,
    served: HashSet<Shapes>,
}

impl Recorded {
    /// Records `function` on the shapes that it is compiled for: MLX changes the graph that it compiles, and this one
    /// stays as it is.
    pub(super) fn new(inputs: &[&Array], function: &mut Function<'_>) -> Result<Self> {
        let (tracers, outputs) = record_shapeless(inputs, function)?;
        let latest = shapes(inputs);
        Ok(Self { tracers, outputs, served: HashSet::from([latest.clone()]), latest })
    }

    /// Whether the graph reduces an axis of one element, which only a graph that knows the shape leaves out: evaluated,
    /// MLX's reduction would read out of bounds.
    pub(super) fn reduces_one(&self) -> Result<bool> {
        let tape = Tape::walk(&self.outputs, &self.tracers, &[])?;
        for node in 0..tape.len() {
            let reduces = describe(tape.name(node).text()).is_some_and(|row| row.class == Class::Reduction);
            if reduces && tape.operand(node, 0)?.size() == tape.result(node, 0)?.size() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether these outputs of the compiled graph have the avals of the function's own, of the same inputs.
    pub(super) fn makes(&self, outputs: &[Array]) -> bool {
        outputs.iter().map(Aval::from).eq(self.outputs.iter().map(Aval::from))
    }

    /// Whether inputs of these shapes may be served: their extents of 0 and 1 are where those of the trace are, since
    /// such an extent broadcasts, or is reduced, by another rule.
    pub(super) fn fits(&self, inputs: &[&Array]) -> bool {
        let same = |tracer: &Array, input: &Array| {
            tracer.shape().iter().zip(input.shape()).all(|(&own, &other)| own == other || (own > 1 && other > 1))
        };
        self.tracers.iter().zip(inputs).all(|(tracer, input)| same(tracer, input))
    }

    /// Whether inputs of these shapes were seen to be served.
    pub(super) fn serves(&mut self, inputs: &[&Array]) -> bool {
        if inputs.iter().map(|input| input.shape()).eq(self.latest.iter().map(Vec::as_slice)) {
            return true;
        }
        let shapes = shapes(inputs);
        if self.served.contains(&shapes) {
            self.latest = shapes;
            return true;
        }
        false
    }

    /// Records `function` on these shapes and compares: the avals of its results.
    pub(super) fn check(&mut self, name: &str, inputs: &[&Array], function: &mut Function<'_>) -> Result<Vec<Aval>> {
        let (tracers, outputs) = record_shapeless(inputs, function)?;
        if let Some(found) = difference(&self.outputs, &self.tracers, &outputs, &tracers)? {
            return Err(Error::Shapeless { function: name.to_owned(), reason: found.to_string() });
        }
        Ok(outputs.iter().map(Aval::from).collect())
    }

    /// Remembers that these shapes are served.
    pub(super) fn served(&mut self, inputs: &[&Array]) {
        if self.served.len() == KEPT {
            self.served.clear();
        }
        self.latest = shapes(inputs);
        self.served.insert(self.latest.clone());
    }
}

fn shapes(inputs: &[&Array]) -> Shapes {
    inputs.iter().map(|input| input.shape().to_vec()).collect()
}

/// What MLX says when a primitive has no rule for its result shapes.
pub(super) fn named(name: &str, error: Error) -> Error {
    match error {
        Error::Mlx(text) if mlx::refusal(&text) == Refusal::Shapeless => {
            Error::Shapeless { function: name.to_owned(), reason: text }
        }
        other => other,
    }
}
