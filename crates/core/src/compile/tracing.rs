//! A call that makes a new trace.

use mlx_rs::Array;
use tacit_bridge::{BoxError, check_depth};

use super::captured::{Around, Seen};
use super::given_back::{GivenBack, Opened};
use super::key::Key;
use crate::pass::{self, PassStats, Passes};
use crate::tree::TreeDef;
use crate::{Result, Value};

/// Sees what was recorded.
pub(super) type Inspect<'i> = dyn FnMut(&Seen<'_>) -> Result<()> + 'i;

/// Runs the function on values, its own structure closed, and opens what it gives.
pub(super) type Body<'b> = dyn FnMut(Vec<Value>, &mut Inspect<'_>) -> Result<Opened<Value>> + 'b;

/// A call that is recorded: to be traced, or to check that a trace without shapes serves its inputs.
pub(super) struct Asked<'a> {
    pub(super) key: Key,
    pub(super) inputs: &'a [&'a Array],
    pub(super) around: &'a Around,
}

impl Asked<'_> {
    /// What the function gives on tracers of the inputs; `beside` are the tracers that it is not given.
    pub(super) fn recorded(
        &self,
        tracers: Vec<Array>,
        beside: &[Array],
        body: &mut Body<'_>,
        inspect: &mut Inspect<'_>,
    ) -> Result<Opened<Array>, BoxError> {
        let (result, def) = body(self.key.def.closed(tracers)?, &mut |seen| {
            let inputs = [seen.inputs, beside].concat();
            self.around.check(&inputs, seen.outputs)?;
            inspect(&Seen { inputs: &inputs, ..*seen })
        })?;
        Ok((dense(&result)?, def))
    }
}

/// A trace while it is made.
pub(super) struct Tracing<'t> {
    passes: &'t Passes,
    asked: &'t Asked<'t>,
    /// The opened structure of what it gives.
    pub(super) structure: Option<TreeDef>,
    pub(super) given_back: GivenBack,
    pub(super) pass_stats: PassStats,
}

impl<'t> Tracing<'t> {
    pub(super) fn new(passes: &'t Passes, asked: &'t Asked<'t>) -> Self {
        Self { passes, asked, structure: None, given_back: GivenBack::default(), pass_stats: PassStats::default() }
    }

    /// What the function gives on tracers of its arguments, rewritten; `program_tracers` begin with them.
    pub(super) fn results(
        &mut self,
        arguments: &[Array],
        program_tracers: &[Array],
        body: &mut Body<'_>,
        inspect: &mut Inspect<'_>,
    ) -> Result<Vec<Array>, BoxError> {
        let (results, def) =
            self.asked.recorded(arguments.to_vec(), &program_tracers[arguments.len()..], body, inspect)?;
        self.structure = Some(def);
        tacit_bridge::settle(&results)?;
        let (results, pass_stats) = pass::rewrite(self.passes, program_tracers, results)?;
        check_depth(&results, program_tracers)?;
        self.pass_stats = pass_stats;
        let (given_back, computed) = GivenBack::split(results, arguments);
        self.given_back = given_back;
        Ok(computed)
    }
}

pub(super) fn dense(values: &[Value]) -> Result<Vec<Array>> {
    values.iter().map(Value::dense).collect()
}
