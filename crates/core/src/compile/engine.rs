//! The traces of a compiled function: which of them serves a call, and the making of a new one.

use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mlx_rs::{Array, random};
use tacit_bridge::{BoxError, Outcome, Program, any_tracer, record};

use super::captured::{self, Around, Seen};
use super::drawn::{Drawn, drawing, may_draw};
use super::entry::{Entry, Served};
use super::given_back::{GivenBack, Made, Opened};
use super::key::{Key, Scope};
use super::shapeless::{self, Recorded};
use super::steady::Steady;
use super::tracing::{Asked, Body, Tracing, dense};
use super::{CompileOptions, CompileStats, kept, switch};
use crate::pass::{PassStats, Passes};
use crate::phases::Phases;
use crate::tree::{Matched, Matcher, TreeDef, Visitor};
use crate::{Aval, Error, Result, Value, recording};

pub(super) struct Engine {
    options: CompileOptions,
    entries: Vec<Entry>,
    /// The entry that served the latest call.
    latest: usize,
    pub(super) stats: CompileStats,
    /// Where the function was compiled.
    place: &'static Location<'static>,
}

/// Gives the results of a trace on the tracers of its program.
type Results<'r> = dyn FnMut(&mut Tracing<'_>, &[Array]) -> Result<Vec<Array>, BoxError> + 'r;

/// A program that has just traced, and what its first call gave.
struct Trace {
    program: Program,
    outcome: Outcome,
    structure: TreeDef,
    given_back: GivenBack,
    outputs: Vec<Array>,
    pass_stats: PassStats,
    recorded: Option<Recorded>,
    drawn: Option<Drawn>,
}

impl Engine {
    #[track_caller]
    pub(super) fn new(options: CompileOptions) -> Self {
        switch::warn_without_compiler();
        Self { options, entries: Vec::new(), latest: 0, stats: CompileStats::default(), place: Location::caller() }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Takes the trace away that served the latest call.
    pub(super) fn take_latest(&mut self) -> Option<Entry> {
        let taken = (self.latest < self.entries.len()).then(|| self.entries.remove(self.latest));
        self.latest = self.entries.len();
        taken
    }

    /// Keeps a trace again that was taken away.
    pub(super) fn put_back(&mut self, entry: Option<Entry>) {
        self.latest = self.entries.len();
        self.entries.extend(entry);
    }

    /// Replays the trace that serves the inputs that `show` shows; nothing where there is none.
    pub(super) fn replay<'a>(&mut self, show: impl Fn(&mut dyn Visitor<'a>) -> Result<()>) -> Result<Option<Made>> {
        let start = Instant::now();
        let replayed = self.replayed(show)?;
        if replayed.is_some() {
            self.stats.spent(Phases { build: start.elapsed(), ..Phases::default() }, Phases::total());
        }
        Ok(replayed)
    }

    fn replayed<'a>(&mut self, show: impl Fn(&mut dyn Visitor<'a>) -> Result<()>) -> Result<Option<Made>> {
        self.stats.calls += 1;
        if self.entries.is_empty() || !switch::is_enabled() || recording::is_recording() {
            return Ok(None);
        }
        let scope = Scope::current();
        let count = self.entries.len();
        for i in 0..count {
            if let Some(result) = self.replayed_beside((self.latest + i) % count, &scope, &show)? {
                return Ok(Some(result));
            }
        }
        // The structure that was compared last, and the arrays in it if the inputs have it.
        let mut compared: Option<(TreeDef, Option<Matched<'a>>)> = None;
        for i in 0..count {
            let i = (self.latest + i) % count;
            let entry = &mut self.entries[i];
            if entry.key.scope != scope {
                continue;
            }
            if compared.as_ref().is_none_or(|(def, _)| !def.same(&entry.key.def)) {
                let mut matcher = Matcher::new(&entry.key.def, &[]);
                show(&mut matcher)?;
                let matched = matcher.finish();
                compared = Some((entry.key.def.clone(), matched));
            }
            let Some((_, Some(matched))) = &compared else { continue };
            match entry.serve(matched, &Rc::default())? {
                Served::Not => {}
                Served::Dropped => {
                    self.entries.remove(i);
                    self.latest = self.entries.len();
                    return Ok(None);
                }
                Served::With(result) => {
                    entry.used = self.stats.calls;
                    self.latest = i;
                    return Ok(Some(result));
                }
            }
        }
        Ok(None)
    }

    /// Replays a trace where parts of the state are what they were in the calls before, without a look at them.
    fn replayed_beside<'a>(
        &mut self,
        i: usize,
        scope: &Scope,
        show: &impl Fn(&mut dyn Visitor<'a>) -> Result<()>,
    ) -> Result<Option<Made>> {
        let entry = &mut self.entries[i];
        let known = entry.steady.known();
        if known.parts.is_empty() || entry.recorded.is_some() || entry.key.scope != *scope {
            return Ok(None);
        }
        let mut matcher = Matcher::new(&entry.key.def, &known.parts);
        show(&mut matcher)?;
        let Some(matched) = matcher.finish() else { return Ok(None) };
        let Served::With(result) = entry.serve(&matched, &Rc::new(known.only(&matched.passed)))? else {
            return Ok(None);
        };
        entry.used = self.stats.calls;
        self.latest = i;
        self.stats.steady += u64::from(!result.passed.is_empty());
        Ok(Some(result))
    }

    /// Calls the function where no trace serves the inputs: `leaves` in the structure `closed`.
    pub(super) fn call(&mut self, leaves: Vec<Value>, closed: &TreeDef, body: &mut Body<'_>) -> Result<Made> {
        let (start, before, inlined) = (Instant::now(), Phases::total(), self.stats.inlined);
        let result = self.called(leaves, closed, body);
        let time = start.elapsed();
        let is_traced = self.stats.inlined == inlined;
        let [trace, build] = if is_traced { [time, Duration::ZERO] } else { [Duration::ZERO, time] };
        self.stats.spent(Phases { trace, build, ..Phases::default() }, before);
        result
    }

    fn called(&mut self, leaves: Vec<Value>, closed: &TreeDef, body: &mut Body<'_>) -> Result<Made> {
        if !switch::is_enabled() || recording::is_recording() {
            return self.inlined(leaves, body);
        }
        let (opened, def) = closed.opened(leaves.clone())?;
        let inputs = dense(&opened)?;
        let inputs: Vec<&Array> = inputs.iter().collect();
        if any_tracer(&inputs) {
            return self.inlined(leaves, body);
        }
        let around = Around::now();
        let asked = Asked { key: Key::new(def, &inputs, Scope::current()), inputs: &inputs, around: &around };
        let checked = self.checked(&asked, body);
        let traced = || self.traced(asked, body).map(Made::new);
        let result = checked.and_then(|found| found.map_or_else(traced, Ok));
        if around.is_held() { self.inlined(leaves, body) } else { result }
    }

    fn inlined(&mut self, leaves: Vec<Value>, body: &mut Body<'_>) -> Result<Made> {
        self.stats.inlined += 1;
        let (result, def) = body(leaves, &mut |_| Ok(()))?;
        Ok(Made::new((dense(&result)?, def)))
    }

    /// A trace that serves other shapes too; nothing where there can be none for these.
    fn shapeless(&self, asked: &Asked<'_>, body: &mut Body<'_>) -> Result<Option<Trace>> {
        let program = Program::new(true)?;
        if !program.is_shapeless() {
            return Ok(None);
        }
        let mut suspects = Vec::new();
        let recorded = Recorded::new(asked.inputs, &mut |tracers| {
            let (results, _) = asked.recorded(tracers, &[], body, &mut |seen| {
                suspects = captured::suspects(&self.options, seen)?;
                Ok(())
            })?;
            Ok(results)
        })?;
        if recorded.reduces_one()? {
            return Ok(None);
        }
        // A pass looks at shapes.
        let trace = self.run(program, &Passes::Off, asked, asked.inputs, &mut |tracing, tracers| {
            let inspect = &mut |seen: &Seen<'_>| captured::inspect(&self.options, &suspects, seen, true);
            tracing.results(tracers, tracers, body, inspect)
        })?;
        // MLX works out the shapes anew, by rules that are not those of the ops where an extent is 0.
        let same = recorded.makes(&trace.outputs);
        Ok(same.then_some(Trace { recorded: Some(recorded), ..trace }))
    }

    fn shaped(&self, asked: &Asked<'_>, body: &mut Body<'_>) -> Result<Trace> {
        let passes = &self.options.passes;
        let (mut draws, mut suspects) = (false, Vec::new());
        let trace = self.run(Program::new(false)?, passes, asked, asked.inputs, &mut |tracing, tracers| {
            tracing.results(tracers, tracers, body, &mut |seen| {
                draws = may_draw(seen.inputs, seen.outputs)?;
                if draws {
                    return Err(Error::decline("it draws random numbers"));
                }
                suspects = captured::suspects(&self.options, seen)?;
                Ok(())
            })
        });
        if !draws {
            let trace = trace?;
            self.confirmed(&suspects, asked, body)?;
            return Ok(trace);
        }
        // Where it draws from the random state of the thread, the trace is made anew with a key for an input.
        let mut drawn = Drawn::new()?;
        let first = drawn.key.clone();
        let with_key: Vec<&Array> = asked.inputs.iter().copied().chain([&first]).collect();
        let trace = self.run(Program::new(false)?, passes, asked, &with_key, &mut |tracing, tracers| {
            let Some((random, arguments)) = tracers.split_last() else { return Err("there is no key".into()) };
            let suspect = &mut |seen: &Seen<'_>| {
                suspects = captured::suspects(&self.options, seen)?;
                Ok(())
            };
            let results = drawing(random, || tracing.results(arguments, tracers, body, suspect))?;
            drawn.see(random, &results)?;
            Ok(results)
        })?;
        self.confirmed(&suspects, asked, body)?;
        Ok(Trace { drawn: Some(drawn), ..trace })
    }

    /// Records the function once more, to tell which of the suspects of its trace it holds, and does as the options say.
    fn confirmed(&self, suspects: &[Array], asked: &Asked<'_>, body: &mut Body<'_>) -> Result<()> {
        if suspects.is_empty() {
            return Ok(());
        }
        let inspect = &mut |seen: &Seen<'_>| captured::inspect(&self.options, suspects, seen, false);
        // The random state of the thread is left alone.
        let function = &mut |tracers| {
            let results = || asked.recorded(tracers, &[], body, inspect);
            Ok(drawing(&random::key(0)?, results)?.0)
        };
        record(asked.inputs, function)?;
        Ok(())
    }

    /// Calls a new program on `inputs`, which traces the function by `results` of its tracers.
    fn run(
        &self,
        mut program: Program,
        passes: &Passes,
        asked: &Asked<'_>,
        inputs: &[&Array],
        results: &mut Results<'_>,
    ) -> Result<Trace> {
        let mut tracing = Tracing::new(passes, asked);
        let mut outputs = Vec::new();
        let outcome = program
            .call(inputs, &mut outputs, &mut |tracers| results(&mut tracing, &tracers))
            .map_err(|error| shapeless::named(&self.options.name, error.into()))?;
        let Tracing { structure, given_back, pass_stats, .. } = tracing;
        let structure = structure.ok_or_else(crate::values::never_called)?;
        let outputs = given_back.filled(inputs, outputs);
        Ok(Trace { program, outcome, structure, given_back, outputs, pass_stats, recorded: None, drawn: None })
    }

    /// Serves new shapes by a shapeless trace, if there is one.
    fn checked(&mut self, asked: &Asked<'_>, body: &mut Body<'_>) -> Result<Option<Made>> {
        let Self { options, entries, stats, latest, .. } = self;
        let (key, inputs) = (&asked.key, asked.inputs);
        let found = entries.iter_mut().enumerate().find_map(|(i, entry)| {
            let same = entry.key.scope == key.scope && entry.key.def == key.def && entry.recorded.is_some();
            let same = same && entry.program.matches(inputs);
            entry.recorded.take_if(|recorded| same && recorded.fits(inputs)).map(|recorded| (i, recorded))
        });
        let Some((i, mut recorded)) = found else { return Ok(None) };
        let entry = &mut entries[i];
        let mut found_def = None;
        let function = &mut |tracers| {
            let (results, def) = asked.recorded(tracers, &[], body, &mut |_| Ok(()))?;
            found_def = Some(def);
            Ok(results)
        };
        let expected = recorded.check(&options.name, inputs, function);
        stats.checked += 1;
        let result = expected.and_then(|expected| {
            if let Some(difference) = found_def.as_ref().and_then(|found| entry.structure.difference(found)) {
                return Err(Error::Shapeless {
                    function: options.name.clone(),
                    reason: format!("a shape went into the structure of its results: {difference}"),
                });
            }
            let Some(outputs) = entry.replayed(inputs)? else { return Ok(None) };
            let found: Vec<Aval> = outputs.iter().map(Aval::from).collect();
            if found != expected {
                return Err(Error::Shapeless {
                    function: options.name.clone(),
                    reason: format!("the compiled graph makes {}, the function {}", listed(&found), listed(&expected)),
                });
            }
            recorded.served(inputs);
            Ok(Some(outputs))
        });
        if matches!(result, Ok(None)) {
            entries.remove(i);
            *latest = entries.len();
            return Ok(None);
        }
        entry.recorded = Some(recorded);
        entry.used = stats.calls;
        *latest = i;
        let unchanged = Some(Rc::clone(&entry.unchanged));
        Ok(result?.map(|outputs| Made { unchanged, ..Made::new((outputs, entry.structure.clone())) }))
    }

    fn traced(&mut self, asked: Asked<'_>, body: &mut Body<'_>) -> Result<Opened<Array>> {
        let shapeless = self.options.shapeless.then(|| self.shapeless(&asked, body));
        let trace = match shapeless.transpose()?.flatten() {
            Some(trace) => trace,
            None => self.shaped(&asked, body)?,
        };
        let mut key = asked.key;
        let Self { options, entries, stats, latest, .. } = self;
        let Trace { program, outcome, structure, given_back, outputs, pass_stats, recorded, drawn } = trace;
        if outcome == Outcome::Inlined {
            stats.inlined += 1;
            return Ok((outputs, structure));
        }
        stats.traces += 1;
        PassStats { rewritten: stats.rewritten, nodes: stats.nodes } = pass_stats;
        if stats.traces > 1 {
            let reason = entries.get(*latest).map(|before| before.key.reason(&key));
            stats.retraced(reason.unwrap_or_else(|| "the trace was dropped".to_owned()));
        }
        // Entries of one structure share its definition, so that a call compares it once.
        if let Some(same) = entries.iter().find(|entry| entry.key.def == key.def) {
            key.def = same.key.def.clone();
        }
        if entries.len() >= options.capacity.max(1) {
            let oldest = entries.iter().enumerate().min_by_key(|(_, entry)| entry.used).map_or(0, |(i, _)| i);
            entries.swap_remove(oldest);
            stats.evicted += 1;
        }
        *latest = entries.len();
        let (unchanged, shared) = (Rc::new(given_back.unchanged(&structure, &key.def)), structure.clone());
        let (steady, used) = (Steady::default(), stats.calls);
        entries.push(Entry { key, program, structure: shared, given_back, unchanged, recorded, drawn, steady, used });
        Ok((outputs, structure))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.stats.calls == 1 && self.stats.traces == 1 {
            kept::dropped_after_one_call(&self.options.name, self.place);
        }
    }
}

fn listed(avals: &[Aval]) -> String {
    avals.iter().map(Aval::to_string).collect::<Vec<_>>().join(", ")
}
